"""The cost report against closed forms and against the lowered program."""

import io
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from msajax.config import ModelConfig
from msajax.evaluation.tables import print_cost
from msajax.models import blank_sample, build_model
from msajax.models.cost import cost_report, matmul_flops
from msajax.spec import CorpusSpec

MOSI = CorpusSpec(("text", "audio", "video"), (300, 74, 47), (20, 20, 20))


def report(spec=MOSI, **settings):
    found = cost_report(build_model(ModelConfig(**settings), spec), spec)
    json.dumps(found, allow_nan=False)
    return found


def by_part(found, stage):
    return {row["part"]: row["flops"] for row in found["stages"] if row["stage"] == stage}


def test_the_sequence_level_model_costs_what_its_formulas_say():
    s, d, f, m = 20, 128, 256, 3
    found = report()
    block = {
        "attention projections": 2 * 4 * s * d**2,
        "attention maps": 2 * 2 * s**2 * d,
        "feed-forward": 2 * 2 * s * d * f,
    }
    for name, width in zip(MOSI.modalities, MOSI.widths, strict=True):
        twice = {part: 2 * flops for part, flops in block.items()}
        expected = {"input projection": 2 * s * width * d, **twice}
        assert by_part(found, f"{name}_encoder") == expected
    assert by_part(found, "fusion") == {part: 2 * flops for part, flops in block.items()}
    gate = 2 * (d * d // 2 + d // 2 * m)
    assert by_part(found, "head") == {"gate": gate, "weighted sum": 2 * m * d}
    assert by_part(found, "regression") == {"output": 2 * d}
    assert found["flops"] == sum(row["flops"] for row in found["stages"])
    assert found["parameters"]["total"] == 1_130_372
    modules = {name: n for name, n in found["parameters"].items() if name != "total"}
    assert sum(n for name, n in modules.items() if "/" not in name) == 1_130_372
    encoder = sum(n for name, n in modules.items() if name.startswith("text_encoder/"))
    one_block = 4 * d**2 + 2 * d * f + 9 * d + f
    assert encoder == modules["text_encoder"] == (300 + 1 + s) * d + 2 * one_block
    assert modules["text_encoder/blocks_1"] == one_block
    # Element-wise work comes on top of the products.
    assert found["flops"] < found["xla_flops"] < 1.2 * found["flops"]


def test_a_tied_projection_costs_a_product_with_the_embedding():
    t, d, v = 7, 8, 47
    spec = CorpusSpec(("text",), (0,), (t,), "next_token", ("nats", "tokens"), (v,))
    found = report(spec, name="next_token", causal=True, model_dim=d, n_layers_mod=1, ff_dim=12)
    tied = [row for row in found["stages"] if row["part"] == "tied projection"]
    assert [(row["flops"], row["grows_as"]) for row in tied] == [(2 * t * d * v, "S D V")]
    assert found["parameters"]["text_embedding"] == v * d
    assert "input projection" not in {row["part"] for row in found["stages"]}
    text = io.StringIO()
    print_cost(found, Console(file=text, width=100))
    assert "text 7 x token ids" in text.getvalue()


def test_a_recurrent_layer_counts_every_step():
    spec = CorpusSpec(("text",), (5,), (7,))
    found = report(spec, model_dim=8, n_layers_mod=2, mixer="gru", both_directions=True)
    # Two layers of seven steps in two directions: three gates, from 8 inputs and 4 states.
    expected = 2 * 2 * 7 * 2 * 3 * (8 * 4 + 4 * 4)
    assert by_part(found, "text_encoder")["recurrence"] == expected


@pytest.mark.parametrize("guidance", ["gradient_x_input", "deeplift"])
def test_a_guided_model_costs_two_passes_and_its_attributions(guidance):
    spec = CorpusSpec(("text", "audio"), (5, 6), (7, 4))
    settings = {"model_dim": 8, "num_heads": 2, "ff_dim": 12, "n_layers_mod": 1}
    plain, guided = report(spec, **settings), report(spec, **settings, guidance=guidance)
    assert guided["parameters"] == plain["parameters"]
    rows = {(row["stage"], row["part"]): row["flops"] for row in guided["stages"]}
    attribution = rows.pop(("guidance", "attribution"))
    assert rows == {(row["stage"], row["part"]): 2 * row["flops"] for row in plain["stages"]}
    # Both passes in training too: twice the gradient, but no gradient of queries' and keys' source.
    fixed = sum(2 * 2 * spec.length(m) * 8 * 8 for m in spec.modalities)
    expected = 2 * plain["training_flops"] - fixed + attribution
    assert guided["training_flops"] == expected


def test_attributions_of_integrated_gradients_cost_their_steps():
    spec = CorpusSpec(("text",), (5,), (7,))
    settings = {"model_dim": 8, "num_heads": 2, "ff_dim": 12, "n_layers_mod": 1}
    few, many = (
        report(spec, **settings, guidance="integrated_gradients", guidance_steps=n)
        for n in (3, 12)
    )
    few, many = (by_part(found, "guidance")["attribution"] for found in (few, many))
    assert many == 4 * few


def flops_of_program(text: str) -> int:
    """The products of a StableHLO program, from its text."""
    total = 0
    for line in text.splitlines():
        if "stablehlo.dot_general" in line:
            contracted = re.search(r"contracting_dims = \[([\d, ]*)\]", line)[1]
            left, _, result = (
                [int(n) for n in shape.split("x")[:-1]]
                for shape in re.findall(r"tensor<([^>]+)>", line)
            )
            size = np.prod([left[int(i)] for i in contracted.split(",") if i.strip()])
            total += 2 * int(size) * int(np.prod(result))
    return total


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fusion": "pooled", "pooling_method": "attention", "gate_input": "concat"},
        {"n_layers_post_fuse": 1, "head": "concat", "activation": "geglu", "head_dim": 5},
    ],
    ids=["sequence level", "pooled", "fused first"],
)
def test_products_are_those_of_the_lowered_program(settings):
    spec = CorpusSpec(("text", "audio"), (6, 5), (4, 3))
    config = ModelConfig(model_dim=8, num_heads=2, ff_dim=12, n_layers_mod=1, **settings)
    model = build_model(config, spec)
    found = cost_report(model, spec)
    features, masks = blank_sample(spec)
    variables = jax.eval_shape(model.init, jax.random.key(0), features, masks)

    def score(variables):
        return model.apply(variables, features, masks).score.sum()

    assert found["flops"] == flops_of_program(jax.jit(score).lower(variables).as_text())
    gradient = jax.jit(jax.value_and_grad(score)).lower(variables).as_text()
    assert found["training_flops"] == flops_of_program(gradient)


def test_a_loop_of_unknown_length_is_refused():
    def power(x):
        return jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y @ y, x)

    with pytest.raises(NotImplementedError, match="unknown length"):
        matmul_flops(power, jnp.eye(3))
