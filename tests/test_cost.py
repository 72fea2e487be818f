"""The cost report against closed forms and against the lowered program."""

import functools
import io
import json
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from msajax.cli.inspect import print_cost
from msajax.config import ModelConfig
from msajax.models.build import build_model
from msajax.models.contract import Prediction, blank_sample
from msajax.models.cost import cost_report, matmul_flops
from msajax.spec import CorpusSpec

MOSI = CorpusSpec(("text", "audio", "video"), (300, 74, 47), (20, 20, 20))


@functools.cache
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
        "attention projections": 2 * 4 * s * d**2, "attention maps": 2 * 2 * s**2 * d,
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
    text = io.StringIO()
    print_cost(found, Console(file=text, width=100))
    assert "dominate the cost, take 3.6 % of these FLOPs." in text.getvalue()
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
    spec = CorpusSpec(("text",), (5,), (7,))
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
        {"fusion": "pooled", "pooling_method": "attention", "gate_input": "concat"},
        {"n_layers_post_fuse": 1, "head": "concat", "activation": "geglu", "head_dim": 5},
    ],
    ids=["pooled", "fused in sequence and then encoded"],
)
def test_products_are_those_of_the_lowered_program(settings):
    spec = CorpusSpec(("text", "audio"), (6, 5), (4, 3))
    settings |= {"n_layers_mod": 1, "overrides": ("audio.n_layers_mod=0",)}
    model = build_model(ModelConfig(model_dim=8, num_heads=2, ff_dim=12, **settings), spec)
    found = cost_report(model, spec)
    features, masks = blank_sample(spec)
    variables = jax.eval_shape(model.init, jax.random.key(0), features, masks)

    def score(variables):
        return model.apply(variables, features, masks).score.sum()

    assert found["flops"] == flops_of_program(jax.jit(score).lower(variables).as_text())
    gradient = jax.jit(jax.value_and_grad(score)).lower(variables).as_text()
    assert found["training_flops"] == flops_of_program(gradient)


# --- modules that the report does not know ---


@pytest.mark.parametrize(
    ("x", "kernel", "options", "expected"),
    [
        # [batch, steps, channels] and [taps, channels of a group, channels of the result].
        ((2, 9, 4), (3, 4, 5), {"padding": "SAME"}, 2 * (2 * 9 * 5) * (3 * 4)),
        ((2, 9, 4), (3, 4, 5), {}, 2 * (2 * 7 * 5) * (3 * 4)),
        ((2, 9, 4), (3, 4, 5), {"window_strides": (2,)}, 2 * (2 * 4 * 5) * (3 * 4)),
        ((2, 9, 4), (3, 4, 5), {"rhs_dilation": (3,)}, 2 * (2 * 3 * 5) * (3 * 4)),
        ((2, 9, 4), (3, 2, 6), {"feature_group_count": 2}, 2 * (2 * 7 * 6) * (3 * 2)),
        ((2, 9, 4), (3, 1, 4), {"feature_group_count": 4}, 2 * (2 * 7 * 4) * (3 * 1)),
        # Transposed: every step of the input meets every tap.
        ((2, 9, 4), (3, 4, 5), {"lhs_dilation": (2,), "padding": [(2, 2)]}, 2 * (2 * 9 * 4) * 15),
        ((2, 9, 8, 4), (3, 2, 4, 5), {"window_strides": (1, 2)}, 2 * (2 * 7 * 4 * 5) * (6 * 4)),
    ],
    ids=["same", "valid", "strided", "dilated", "groups", "depthwise", "transposed", "image"],
)
def test_convolutions_cost_what_their_formulas_say(x, kernel, options, expected):
    space = "HW"[: len(x) - 2]
    numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
    usual = {"window_strides": (1,) * len(space), "padding": "VALID"}

    def convolve(x, kernel):
        all_options = {**usual, **options, "dimension_numbers": numbers}
        return jax.lax.conv_general_dilated(x, kernel, **all_options)

    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (x, kernel)]
    assert matmul_flops(convolve, *arguments) == {(): expected}
    if options.get("padding") != "SAME":  # XLA leaves out what is multiplied with padding
        assert jax.jit(convolve).lower(*arguments).cost_analysis()["flops"] == expected
    both = jax.value_and_grad(lambda *both: convolve(*both).sum(), (0, 1))
    assert sum(matmul_flops(both, *arguments).values()) == 3 * expected


class OfAUser(nn.Module):
    """A model of modules that no part names."""

    @nn.compact
    def __call__(self, features, masks):
        x = nn.Conv(8, (3,), feature_group_count=2, name="local")(features["text"])
        x = Branches(name="branches")(x)
        x = x @ self.param("own", nn.initializers.ones, (8, 8))
        score = nn.Dense(1, name="readout")(x.mean(1))
        return Prediction(score, masks["text"].any(-1, keepdims=True) * 1.0)


class Branches(nn.Module):
    """A module of a known name, einsums of its own, and a module [in brackets]."""

    @nn.compact
    def __call__(self, x):
        query = nn.Dense(8, name="query")(x)
        mixed = jnp.einsum("btd,bsd->bts", query, x) @ nn.Dense(3, name="[b]inner[/b]")(x)
        return x + jnp.einsum("bti,id->btd", mixed, jnp.ones((3, 8)))


class Settles(nn.Module):
    """A loop of unknown length, through which a gradient is asked for or not."""

    constant: bool

    @nn.compact
    def __call__(self, features, masks):
        x = nn.Dense(8, use_bias=False, name="dense")(features["text"].mean(1))
        y = jax.lax.stop_gradient(x) if self.constant else x

        def step(y):
            return jax.lax.scan(lambda y, _: (y @ jnp.ones((8, 8)), None), y, length=5)[0]

        with jax.named_scope("settle"):
            y = jax.lax.while_loop(lambda y: y.sum() < 9, step, y)
        score = (x + y).sum(-1, keepdims=True)
        return Prediction(score, masks["text"].any(-1, keepdims=True) * 1.0)


USERS_SPEC = CorpusSpec(("text",), (4,), (6,))


def test_products_that_no_part_names_are_parts_named_after_their_modules():
    found = cost_report(OfAUser(), USERS_SPEC)
    rows = {(r["stage"], r["part"]): (r["grows_as"], r["flops"]) for r in found["stages"]}
    assert rows == {
        ("local", "local"): (None, 2 * (6 * 8) * (3 * 2)),
        ("branches", "attention projections"): ("S D^2", 2 * 6 * 8 * 8),
        ("branches", "branches"): (None, 2 * (6 * 6 * 8 + 6 * 6 * 3 + 6 * 3 * 8)),
        ("branches", "[b]inner[/b]"): (None, 2 * 6 * 8 * 3),
        ("OfAUser", "OfAUser"): (None, 2 * 6 * 8 * 8), ("readout", "readout"): (None, 2 * 8),
    }
    assert found["flops"] == sum(flops for _, flops in rows.values())
    assert found["parameters"]["own"] == 64
    assert not any(row["counted_once"] for row in found["stages"])
    json.dumps(found, allow_nan=False)
    console = Console(file=io.StringIO(), width=100)
    print_cost(found, console)
    text = console.file.getvalue()
    assert "[b]inner[/b]" in text and "None" not in text and "(*)" not in text
    assert f"Forward and backward: {found['training_flops']:,} FLOPs" in text


@pytest.mark.parametrize("constant", [True, False])
def test_a_loop_of_unknown_length_is_counted_once_and_the_report_says_so(constant):
    found = cost_report(Settles(constant), USERS_SPEC)
    rows = {r["part"]: (r["flops"], r["grows_as"], r["counted_once"]) for r in found["stages"]}
    once = 5 * 2 * 8 * 8
    assert rows == {"dense": (2 * 4 * 8, None, False), "settle": (once, None, True)}
    assert found["flops"] == 2 * 4 * 8 + once
    # Forward and the kernel's gradient; none of the loop, which JAX cannot differentiate.
    assert found["training_flops"] == (2 * 2 * 4 * 8 + once if constant else None)
    console = Console(file=io.StringIO(), width=100)
    print_cost(found, console)
    text = console.file.getvalue()
    assert "settle (*)" in text and "(*) in a loop of unknown length" in text
    assert ("Forward and backward: unknown FLOPs" in text) != constant


def test_a_mistake_in_a_model_is_no_loop_of_unknown_length():
    class Wrong(nn.Module):
        @nn.compact
        def __call__(self, features, masks):
            @jax.custom_vjp
            def identity(x):
                return x

            def refuse(_, dy):
                raise ValueError("no gradient")

            identity.defvjp(lambda x: (x, None), refuse)
            score = identity(nn.Dense(1)(features["text"].mean(1)))
            return Prediction(score, score)

    with pytest.raises(ValueError, match="no gradient"):
        cost_report(Wrong(), USERS_SPEC)
