"""The whole model: against a float64 implementation, its sizes, its masks, and its guards."""

import dataclasses
import functools
import itertools
import json
import pathlib
import re

import check_reference
import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from layer_formulas import dense, layer_norm

from msajax.config import ModelConfig
from msajax.layers.basic import Dropout
from msajax.layers.prng import dropout_key
from msajax.models.build import build_model
from msajax.spec import CorpusSpec

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "shared" / "reference"
SMALL = ModelConfig(model_dim=16, num_heads=2, ff_dim=24, n_layers_mod=1, dropout_rate=0.25)
SPEC = CorpusSpec(("text", "audio"), (5, 4), (9, 8))
STEPS = {"text": 6, "audio": 5}


# --- making weights and batches ---


@functools.cache
def shapes_of(config, spec, batch=1, steps=4):
    """The model, and abstract parameters, features and masks for it."""
    features = {
        m: jax.ShapeDtypeStruct((batch, steps), jnp.int32)
        if spec.vocabulary(m)
        else jax.ShapeDtypeStruct((batch, steps, spec.width(m)), jnp.float32)
        for m in spec.modalities
    }
    masks = {m: jax.ShapeDtypeStruct((batch, steps), bool) for m in spec.modalities}
    model = build_model(config, spec)
    params = jax.eval_shape(model.init, jax.random.key(0), features, masks)["params"]
    return model, params, features, masks


def random_params(config, spec, seed=0):
    """Every weight, biases and scales included, is a random number: none can be forgotten."""
    rng = np.random.default_rng(seed)
    shapes = flax.traverse_util.flatten_dict(shapes_of(config, spec)[1])
    params = {
        path: (rng.normal(size=w.shape, scale=0.35) + (path[-1] == "scale")).astype(np.float32)
        for path, w in shapes.items()
    }
    return flax.traverse_util.unflatten_dict(params)


def random_features(spec, steps, batch, seed=1):
    rng = np.random.default_rng(seed)
    return {
        m: rng.normal(size=(batch, steps[m], spec.width(m))).astype(np.float32)
        for m in spec.modalities
    }


def awkward_masks(steps, anchor):
    """Six rows: whole, leading padding and a hole, trailing padding, an absent modality, an absent
    anchor, and nothing at all."""
    masks = {m: np.ones((6, t), bool) for m, t in steps.items()}
    for mask in masks.values():
        mask[1, [0, 2]] = False
        mask[2, -2:] = False
        mask[5] = False
    masks[[m for m in steps if m != anchor or len(steps) == 1][-1]][3] = False
    masks[anchor][4] = False
    return masks


# --- the model in float64, written from the specification: one sample at a time, and what a mask
# --- hides is left out rather than masked


def attention(params, x, context, added=0.0):
    """Attends where `added`, broadcast to `[Tq, Tk]`, is not -inf."""
    if not len(context):
        return np.zeros_like(x)
    added = np.broadcast_to(added, (len(x), len(context)))
    sees_a_key = np.isfinite(added).any(1)[:, None]

    def heads(name, source):  # [heads, length, head_dim]
        return np.moveaxis(np.tensordot(source, params[name]["kernel"], 1), 1, 0) + (
            params[name]["bias"][:, None]
        )

    q, k, v = heads("query", x), heads("key", context), heads("value", context)
    scores = q @ k.mT / np.sqrt(q.shape[-1]) + np.where(sees_a_key, added, 0)
    weights = scipy.special.softmax(scores, axis=-1)
    out = np.tensordot(weights @ v, params["out"]["kernel"], ([0, 2], [0, 1]))
    return np.where(sees_a_key, out + params["out"]["bias"], 0)


def block(params, x, context, eps, added=0.0):
    attended = attention(params["attention"], x, context, added)
    x = layer_norm(params["norm_attention"], x + attended, eps)
    inner = dense(params["ffn"]["inner"], x)
    fed = dense(params["ffn"]["outer"], inner * (1 + scipy.special.erf(inner / np.sqrt(2))) / 2)
    return layer_norm(params["norm_ffn"], x + fed, eps)


def numpy_sample(params, config, spec, features, masks, added):
    """Score and modality weights of one sample: all without the batch axis.

    `added`, `{modality: [T, T]}`, is what attention masks add, -inf where they hide.
    """
    names, eps = spec.modalities, config.norm_eps
    anchor = config.anchor or ("text" if "text" in names else names[0])
    seq = {}
    for m in names:
        p = params[f"{m}_encoder"]
        x = dense(p["projection"], features[m]) + p["positions"]["embedding"][: len(features[m])]
        for i in range(config.n_layers_mod):
            x = block(p[f"blocks_{i}"], x, x[masks[m]], eps, added[m][:, masks[m]])
        seq[m] = x
    others = [m for m in names if m != anchor]
    for i in range(config.n_layers_fuse):
        for m in others:
            p = params["fusion"][f"layers_{i}"][f"{anchor}_from_{m}"]
            seq[anchor] = block(p, seq[anchor], seq[m][masks[m]], eps)
        for m in others if config.bidirectional_fusion else ():
            p = params["fusion"][f"layers_{i}"][f"{m}_from_{anchor}"]
            seq[m] = block(p, seq[m], seq[anchor][masks[anchor]], eps)
    for m, i in itertools.product(names, range(config.n_layers_post_fuse)):
        p, x = params[f"{m}_after_fusion"][f"blocks_{i}"], seq[m]
        seq[m] = block(p, x, x[masks[m]], eps, added[m][:, masks[m]])
    pooled = np.zeros((len(names), config.model_dim))
    for row, m in zip(pooled, names, strict=True):
        valid = seq[m][masks[m]]
        if not len(valid):
            continue
        if config.pooling_method == "mean":
            row[:] = valid.mean(0)
        else:
            p = params["head"][f"{m}_pool"]
            scores = dense(p["score"], np.tanh(dense(p["hidden"], valid)))
            row[:] = scipy.special.softmax(scores[:, 0]) @ valid
    counted = np.array([config.missing_modality == "reference" or masks[m].any() for m in names])
    weights = np.zeros(len(names))
    if counted.any():
        p = params["head"]["gate"]
        logits = dense(p["weights"], np.maximum(dense(p["hidden"], pooled[counted].mean(0)), 0))
        weights[counted] = scipy.special.softmax(logits[counted])
    vector = weights @ pooled
    for k in range(config.n_layers_head):
        vector = np.maximum(dense(params["hidden"][f"layers_{k}"], vector), 0)
    return dense(params["regression"], vector), weights


def numpy_model(params, config, spec, features, masks, added=()):
    """Scores `[B, K]` and modality weights `[B, M]`; `added` is `{modality: [B, T, T]}`."""
    params, features = jax.tree.map(np.float64, (params, features))
    added = {m: np.zeros((*mask.shape, mask.shape[1])) for m, mask in masks.items()} | dict(added)
    rows = [
        numpy_sample(
            params,
            config,
            spec,
            {m: x[b] for m, x in features.items()},
            {m: mask[b] for m, mask in masks.items()},
            {m: x[b] for m, x in added.items()},
        )
        for b in range(len(masks[spec.modalities[0]]))
    ]
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


def settings(spec=SPEC, **changes):
    return dataclasses.replace(SMALL, **changes), spec


def corpus(*names, labels=1):
    widths = (5, 4, 3, 6)[: len(names)]
    lengths = (6, 4, 5, 7)[: len(names)]
    return CorpusSpec(names, widths, lengths, label_names=("sentiment", "anger")[:labels])


CASES = {
    "unidirectional, mean, no text, two outputs": settings(corpus("video", "audio", labels=2)),
    "bidirectional, attention, no encoder blocks": settings(
        corpus("text", "audio"),
        n_layers_mod=0,
        bidirectional_fusion=True,
        pooling_method="attention",
        n_layers_fuse=2,
        norm_eps=0.05,
    ),
    "no fusion, layers behind the pooled vector": settings(
        n_layers_fuse=0, pooling_method="attention", n_layers_head=2
    ),
    "anchor last of unsorted names, head size set": settings(
        corpus("face", "body"),
        n_layers_mod=0,
        anchor="body",
        num_heads=3,
        head_dim=5,
        bidirectional_fusion=True,
    ),
    "four modalities, text in the middle": settings(
        corpus("video", "text", "pulse", "audio"), n_layers_mod=0, pooling_method="attention"
    ),
    "one modality": settings(
        corpus("brain"), n_layers_mod=2, n_layers_fuse=2, bidirectional_fusion=True
    ),
    "literal absence, attention": settings(
        missing_modality="reference", pooling_method="attention", n_layers_mod=0
    ),
}


@pytest.mark.parametrize(("config", "spec"), CASES.values(), ids=CASES)
def test_model_equals_the_float64_implementation(config, spec):
    steps = {m: spec.length(m) - (i == 1) for i, m in enumerate(spec.modalities)}
    anchor = config.anchor or ("text" if "text" in steps else spec.modalities[0])
    masks = awkward_masks(steps, anchor)
    features, params = random_features(spec, steps, batch=6), random_params(config, spec)
    model = build_model(config, spec)
    got = jax.jit(model.apply)({"params": params}, features, masks)
    score, weights = numpy_model(params, config, spec, features, masks)
    chex.assert_shape(got.score, (6, len(spec.label_names)))
    assert np.ptp(score) > 0.1  # a constant would agree too easily
    chex.assert_trees_all_close(got.score, score, atol=3e-6, rtol=0)
    chex.assert_trees_all_close(got.modality_weights, weights, atol=1e-6, rtol=0)


# --- sizes ---

MOSI, MOSEI = (300, 74, 47), (300, 74, 713)
# (D, F, n_layers_mod, n_layers_fuse): unidirectional on MOSI, MOSEI, bidirectional on both.
GOLDEN = {
    (128, 256, 1, 2): (997_892, 1_083_140, 1_527_812, 1_613_060),
    (128, 512, 2, 1): (1_656_708, 1_741_956, 2_053_252, 2_138_500),
    (256, 256, 2, 1): (3_323_652, 3_494_148, 4_115_204, 4_285_700),
    (256, 512, 3, 2): (7_009_796, 7_180_292, 9_118_212, 9_288_708),
}


def count(config, widths=MOSI, names=("text", "audio", "video"), length=20):
    spec = CorpusSpec(names, widths, (length,) * len(names))
    return sum(w.size for w in jax.tree.leaves(shapes_of(config, spec)[1]))


def sized(d, f, n_mod, n_fuse, **changes):
    return ModelConfig(
        model_dim=d, ff_dim=f, n_layers_mod=n_mod, n_layers_fuse=n_fuse, **changes
    )


def test_golden_parameter_counts():
    """All against the formula; two of the sixteen are counted in a model."""
    kinds = [
        {"bidirectional_fusion": both, "widths": w} for both in (False, True) for w in (MOSI, MOSEI)
    ]
    for sizes, golden in GOLDEN.items():
        assert tuple(formula(*sizes, **kind) for kind in kinds) == golden
    both, one = list(GOLDEN)[:2]
    assert count(sized(*both, bidirectional_fusion=True), MOSEI) == GOLDEN[both][3]
    assert count(sized(*one), MOSI) == GOLDEN[one][0]


def formula(
    d, f, n_mod, n_fuse, widths=MOSI, length=20, bidirectional_fusion=False, pooling_method="mean"
):
    m = len(widths)
    block_size = 4 * d**2 + 2 * d * f + 9 * d + f
    blocks = m * n_mod + (m - 1) * (1 + bidirectional_fusion) * n_fuse
    pool = m * (d**2 // 4 + d // 2 + 1) if pooling_method == "attention" else 0
    gate = d**2 // 2 + d // 2 + m * d // 2 + m
    return d * (sum(widths) + m + m * length) + blocks * block_size + pool + gate + d + 1


@pytest.mark.parametrize(
    ("names", "pooling", "bidirectional"),
    [("a", "mean", True), ("ba", "attention", False), ("dcba", "mean", True)],
    ids=str,
)
def test_parameter_count_follows_the_formula_for_other_numbers_of_modalities(
    names, pooling, bidirectional
):
    widths, sizes = (5, 4, 3, 2)[: len(names)], (16, 24, 1, 1)
    more = {"pooling_method": pooling, "bidirectional_fusion": bidirectional}
    assert count(sized(*sizes, **more), widths, (*names,), 7) == formula(*sizes, widths, 7, **more)


def test_every_stage_has_the_worked_shapes_and_nothing_is_pooled_before_the_head():
    config = sized(256, 512, 1, 1, bidirectional_fusion=True)
    spec = CorpusSpec(("text", "audio", "video"), MOSI, (20, 20, 20))
    model, params, features, masks = shapes_of(config, spec, batch=4, steps=20)
    apply = functools.partial(model.apply, capture_intermediates=True, mutable="intermediates")
    out, state = jax.eval_shape(apply, {"params": params}, features, masks)
    stages = {
        path.removesuffix("__call__").rstrip("/"): value[0]
        for path, value in flax.traverse_util.flatten_dict(
            state["intermediates"], sep="/"
        ).items()
    }
    sequence = (4, 20, 256)
    assert stages["text_encoder/projection"].shape == sequence
    assert stages["fusion/layers_0/text_from_audio/attention"].shape == sequence
    assert stages["fusion/layers_0/text_from_video/ffn/inner"].shape == (4, 20, 512)
    assert stages["fusion/layers_0/audio_from_text"].shape == sequence
    for m in spec.modalities:
        assert stages[f"{m}_encoder/blocks_0"].shape == stages[f"{m}_encoder"].shape == sequence
        assert stages["fusion/layers_0"][m].shape == stages["fusion"][m].shape == sequence
    ends = ("head", "regression", "")
    before_the_head = [path for path in stages if path.split("/")[0] not in ends]
    assert len(before_the_head) > 40
    for path in before_the_head:
        for value in jax.tree.leaves(stages[path]):
            assert value.shape[0] == 4 and 20 in value.shape[1:], path
    assert stages["head/gate/hidden"].shape == (4, 128)
    assert stages["head/gate"].shape == stages["head"][1].shape == (4, 3)
    assert stages["head"][0].shape == (4, 256)
    assert stages["regression"].shape == (4, 1)
    assert out.score.shape == (4, 1) and out.modality_weights.shape == (4, 3)
    assert out.score.dtype == out.modality_weights.dtype == jnp.float32


# --- masks, missing modalities and computation types: section 2 of the specification ---

SETTINGS = [("float32", "mean"), ("float32", "attention")]
SETTINGS += [("bfloat16", "attention"), ("float16", "mean")]
every_setting = pytest.mark.parametrize(("dtype", "pooling"), SETTINGS)
both_poolings = pytest.mark.parametrize("pooling", ["mean", "attention"])
TARGET = np.linspace(-1, 4, 6, dtype=np.float32)[:, None]
FEATURES = random_features(SPEC, STEPS, batch=6)
MASKS = awkward_masks(STEPS, "text")
PRESENT = np.stack([MASKS[m].any(1) for m in SPEC.modalities], axis=1)
NOTHING = {m: np.zeros_like(mask) for m, mask in MASKS.items()}


@functools.cache
def setup(dtype, pooling, **changes):
    """A model and its weights."""
    # All blocks are the same code: compiling one of an encoder in one setting is enough.
    settings = {
        "overrides": ("audio.n_layers_mod=0",),
        "n_layers_mod": int((dtype, pooling) == ("float32", "mean")),
        "bidirectional_fusion": pooling == "mean" and dtype != "float16",
    }
    config = dataclasses.replace(
        SMALL, dtype=dtype, pooling_method=pooling, **{**settings, **changes}
    )
    return build_model(config, SPEC), random_params(config, SPEC)


@functools.cache
def program(dtype, pooling):
    """One compiled program for most tests below: prediction and gradient of the absolute error."""
    model, params = setup(dtype, pooling)

    def loss(params, features, masks):
        prediction = model.apply({"params": params}, features, masks)
        return jnp.abs(prediction.score - TARGET).mean(), prediction

    return jax.jit(jax.value_and_grad(loss, has_aux=True)), params


def run(dtype, pooling, features, masks):
    """Prediction and gradient of the section 2 model."""
    compiled, params = program(dtype, pooling)
    (_, prediction), gradient = compiled(params, features, masks)
    return jax.device_get((prediction, gradient))


@functools.cache
def usual(dtype, pooling):
    return run(dtype, pooling, FEATURES, MASKS)


@every_setting
def test_outputs_and_gradients_are_finite_with_some_and_with_all_modalities_absent(dtype, pooling):
    prediction, gradient = usual(dtype, pooling)
    chex.assert_tree_all_finite((prediction, gradient))
    # What adds the same to every score of a softmax has no effect; everything else learns.
    for path, value in flax.traverse_util.flatten_dict(gradient, sep="/").items():
        assert path.endswith(("key/bias", "score/bias")) or np.abs(value).max() > 0, path
    chex.assert_tree_all_finite(run(dtype, pooling, FEATURES, NOTHING))


@every_setting
def test_padded_content_changes_neither_outputs_nor_gradients_by_a_bit(dtype, pooling):
    rng = np.random.default_rng(2)
    for filler in (None, 1e30, np.inf, -np.inf, np.nan):
        changed = {}
        for m, x in FEATURES.items():
            other = rng.normal(size=x.shape) if filler is None else np.full(x.shape, filler)
            changed[m] = np.where(MASKS[m][..., None], x, other.astype(np.float32))
        chex.assert_trees_all_equal(run(dtype, pooling, changed, MASKS), usual(dtype, pooling))


@every_setting
def test_a_sample_with_nothing_scores_the_bias_of_the_head_with_weights_0(dtype, pooling):
    bias = program(dtype, pooling)[1]["regression"]["bias"]
    assert bias[0] != 0
    for rows, masks in ((slice(5, 6), MASKS), (slice(None), NOTHING)):
        prediction, gradient = run(dtype, pooling, FEATURES, masks)
        np.testing.assert_array_equal(prediction.score[rows], bias[None].repeat(6, 0)[rows])
        np.testing.assert_array_equal(prediction.modality_weights[rows], 0)
    # Nothing but that bias learns from samples with nothing.
    assert gradient.pop("regression")["bias"] != 0
    chex.assert_trees_all_equal(gradient, jax.tree.map(np.zeros_like, gradient))


@every_setting
def test_weights_can_be_read_per_sample_absent_is_exactly_0_and_the_others_sum_to_1(dtype, pooling):
    weights = usual(dtype, pooling)[0].modality_weights
    chex.assert_shape(weights, (6, 2))
    np.testing.assert_array_equal(weights == 0, ~PRESENT)
    np.testing.assert_allclose(weights.sum(1), PRESENT.any(1), atol=1e-6)
    assert np.ptp(weights[:3], axis=0).min() > 1e-4  # they are the sample's own


@both_poolings
def test_appended_padding_and_another_batch_size_change_a_score_by_rounding_only(pooling):
    model, params = setup("float32", pooling)
    expected = usual("float32", pooling)[0]
    rows, rng = slice(1, 5), np.random.default_rng(3)
    features, masks = {}, {}
    for m, x in FEATURES.items():
        padding = rng.normal(size=(6, 3, x.shape[2])).astype(np.float32)
        features[m] = np.concatenate([x, padding], axis=1)[rows]
        masks[m] = np.pad(MASKS[m], ((0, 0), (0, 3)))[rows]
    got = jax.jit(model.apply)({"params": params}, features, masks)
    chex.assert_trees_all_close(got, jax.tree.map(lambda x: x[rows], expected), atol=1e-6, rtol=0)


# Measured with these weights: bfloat16 0.0065, float16 0.0006; the scores spread over 1 to 1.5.
@pytest.mark.parametrize(
    ("dtype", "pooling", "atol"), [("bfloat16", "attention", 0.015), ("float16", "mean", 0.0015)]
)
def test_16_bit_scores_are_close_and_outputs_and_gradients_are_float32(dtype, pooling, atol):
    prediction, gradient = usual(dtype, pooling)
    assert {x.dtype for x in jax.tree.leaves((prediction, gradient))} == {np.dtype("float32")}
    model, params = setup(dtype, pooling)
    score, weights = numpy_model(params, model.config, SPEC, FEATURES, MASKS)
    chex.assert_trees_all_close(prediction.score, score, atol=atol, rtol=0)
    chex.assert_trees_all_close(prediction.modality_weights, weights, atol=atol, rtol=0)


TOKENS = CorpusSpec(("text",), (0,), (9,), "next_token", ("nats", "tokens"), (11,))


# Lowering for a CPU keeps what a program asks of an accelerator.
@pytest.mark.parametrize(
    ("name", "changes", "spec"),
    [
        ("float32", {"guidance": "gradient_x_input"}, corpus("text")),
        (
            "tensorfloat32",
            {"pooling_method": "attention", "bidirectional_fusion": True, "n_layers_mod": 0},
            corpus("text", "audio"),
        ),
        ("bfloat16", {"name": "next_token", "causal": True}, TOKENS),
    ],
    ids=["guided", "sequence_level", "next_token"],
)
def test_products_of_both_passes_have_the_precision_that_was_set(name, changes, spec):
    config = dataclasses.replace(SMALL, matmul_precision=name, **changes)
    model, params, features, masks = shapes_of(config, spec)

    def loss(params, features, masks):
        return model.apply({"params": params}, features, masks).score.sum()

    text = jax.jit(jax.value_and_grad(loss)).lower(params, features, masks).as_text()
    found = re.findall(r"stablehlo.dot_general .*precision = \[(\w+), (\w+)\]", text)
    assert len(found) == text.count("stablehlo.dot_general ")
    jax_name = {"float32": "HIGHEST", "tensorfloat32": "HIGH", "bfloat16": "DEFAULT"}[name]
    assert set(found) == {(jax_name, jax_name)}


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_parameters_softmax_statistics_pooling_and_head_are_float32(dtype):
    model, params = setup(dtype, "attention")
    initialised = shapes_of(model.config, SPEC)[1]
    assert {w.dtype for w in jax.tree.leaves(initialised)} == {np.dtype("float32")}
    types, products = {}, []
    program = jax.make_jaxpr(model.apply)({"params": params}, FEATURES, MASKS)
    for equation in equations(program.jaxpr):
        name, result = equation.primitive.name, str(equation.outvars[0].aval.dtype)
        types.setdefault(name, set()).add(result)
        if name == "dot_general":
            products.append((str(equation.invars[0].aval.dtype), result))
    for name in ("exp", "rsqrt", "tanh", "reduce_max", "reduce_sum"):
        assert types[name] == {"float32"}, name
    assert types["erf" if "erf" in types else "erfc"] == {dtype}
    # Two projections; in the block query, key, value, mixing, output and the two of the
    # feed-forward network; its scores are summed in float32.
    assert products.count((dtype, dtype)) == 2 + 7
    assert products.count((dtype, "float32")) == 1
    apply = functools.partial(model.apply, capture_intermediates=True, mutable="intermediates")
    _, state = jax.eval_shape(apply, {"params": params}, FEATURES, MASKS)
    for stage in ("text_encoder", "audio_encoder", "fusion", "head", "regression"):
        expected = "float32" if stage in ("head", "regression") else dtype
        values = state["intermediates"][stage]["__call__"]
        assert {str(x.dtype) for x in jax.tree.leaves(values)} == {expected}, stage


# --- attention masks ---

SEEN = {m: np.random.default_rng(4).random((6, t, t)) < 0.6 for m, t in STEPS.items()}
for seen in SEEN.values():
    seen[0, 1] = False  # a valid step that sees nothing


@functools.cache
def masked_model(**changes):
    """A compiled function from attention masks to a prediction, the parameters, the model."""
    settings = {"n_layers_fuse": 0, **changes}  # quick to compile
    config = dataclasses.replace(SMALL, **settings)
    model, params = build_model(config, SPEC), random_params(config, SPEC)

    @jax.jit
    def predict(attention_masks, params):
        return model.apply({"params": params}, FEATURES, MASKS, attention_masks=attention_masks)

    return lambda masks: jax.device_get(predict(masks, params)), params, model


def test_encoders_read_attention_masks_before_fusion_and_after_it_and_nothing_else_does():
    predict, params, model = masked_model(
        n_layers_fuse=1, n_layers_post_fuse=1, bidirectional_fusion=True
    )
    added = {m: np.where(x, 0, -np.inf) for m, x in SEEN.items()}
    added["text"] = added["text"] + np.random.default_rng(5).normal(size=(6, 6, 6))
    added["audio"] = np.broadcast_to(added["audio"][1], (6, 5, 5))
    given = {"text": added["text"].astype(np.float32), "audio": SEEN["audio"][1]}
    got = predict(given)
    arguments = params, model.config, SPEC, FEATURES, MASKS
    score, weights = numpy_model(*arguments, added)
    chex.assert_trees_all_close(got.score, score, atol=3e-6, rtol=0)
    chex.assert_trees_all_close(got.modality_weights, weights, atol=1e-6, rtol=0)
    for m in SPEC.modalities:  # each mask counts
        assert np.abs(numpy_model(*arguments, {**added, m: 0 * SEEN[m]})[0] - score).max() > 1e-2
    # What it holds in the rows and columns of padding is not read, finite or not.
    mask = MASKS["text"]
    for filler in (np.nan, np.inf, 3e38):
        both = mask[:, :, None] & mask[:, None]
        filled = np.where(both, given["text"], np.float32(filler))
        chex.assert_trees_all_equal(predict({**given, "text": filled}), got)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_masks_that_mean_the_same_give_the_same_to_the_bit(dtype):
    predict, _, _ = masked_model(dtype=dtype)
    expected = predict(SEEN)
    everything = jax.tree.map(np.ones_like, SEEN)
    assert np.abs(expected.score - predict(everything).score).max() > 1e-2
    forms = [("float32", -np.inf), ("bfloat16", -1e9), ("float16", -65504)]
    for pair in (forms[:2], forms[1:]) if dtype == "float32" else (forms[1:],):
        given = {
            m: np.where(SEEN[m], 0, hidden).astype(jnp.dtype(form))
            for m, (form, hidden) in zip(SEEN, pair, strict=True)
        }
        chex.assert_trees_all_equal(predict(given), expected)


def test_a_causal_encoder_is_one_with_a_causal_attention_mask():
    causal, _, _ = masked_model(causal=True, n_layers_post_fuse=1)
    plain, _, _ = masked_model(n_layers_post_fuse=1)
    tri = {m: np.broadcast_to(np.tri(x.shape[1], dtype=bool), x.shape) for m, x in SEEN.items()}
    chex.assert_trees_all_equal(causal(None), plain(tri))
    both = {m: x & tri[m] for m, x in SEEN.items()}
    chex.assert_trees_all_equal(causal(SEEN), plain(both))
    assert np.abs(causal(SEEN).score - causal(None).score).max() > 1e-2


BAD_ATTENTION_MASKS = {
    "name": ({"smell": np.ones((6, 6), bool)}, "'smell'.*text, audio"),
    "type": ({"text": np.ones((6, 6), np.int32)}, "'text'.*int32.*bool or float"),
    "nothing": ({"text": None}, "'text' is no array: NoneType"),
    "a list": ({"text": [[True] * 6] * 6}, "'text' is no array: list"),
    "keys": ({"text": np.ones((6, 5), bool)}, "'text'.*(6, 5).*(6, 6) or (6, 6, 6)"),
    "steps": ({"audio": np.ones((6, 5), bool)}, "'audio'.*(6, 5).*(5, 5) or (6, 5, 5)"),
    "batch": ({"audio": np.zeros((1, 5, 5), "f4")}, "'audio'.*(1, 5, 5).*(5, 5) or (6, 5, 5)"),
    "heads": ({"audio": np.zeros((6, 2, 5, 5), "f4")}, "'audio'.*(6, 2, 5, 5)"),
}


@pytest.mark.parametrize(
    ("given", "message"), BAD_ATTENTION_MASKS.values(), ids=BAD_ATTENTION_MASKS
)
def test_attention_masks_that_do_not_fit_are_refused(given, message):
    _, params, model = masked_model()
    apply = functools.partial(model.apply, attention_masks=given)
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        jax.eval_shape(apply, {"params": params}, FEATURES, MASKS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixer": "gru"}, "is recurrent .gru."),
        ({"overrides": ("text.mixer=gru",)}, "is recurrent .gru."),
        ({"overrides": ("text.n_layers_mod=0",)}, "has no layer: it takes no attention mask"),
    ],
)
def test_an_encoder_without_attention_refuses_an_attention_mask(changes, message):
    model = build_model(dataclasses.replace(SMALL, **changes), SPEC)
    init = functools.partial(model.init, attention_masks=SEEN)
    with pytest.raises(ValueError, match=f"'text' {message}"):
        jax.eval_shape(init, jax.random.key(0), FEATURES, MASKS)


# --- dropout of the whole model ---


def test_dropout_of_a_sample_does_not_depend_on_the_rest_of_the_batch():
    model, params = setup("float32", "mean", n_layers_mod=0, bidirectional_fusion=False)
    batch = FEATURES, MASKS

    @jax.jit
    def train(features, masks, key):
        rngs = {"dropout": key}
        return model.apply({"params": params}, features, masks, train=True, rngs=rngs).score

    key, another = (dropout_key(np.uint32(seed), np.int32(0)) for seed in (0, 1))
    scores = train(*batch, key)
    first = train(*jax.tree.map(lambda x: x[:2], batch), key)
    chex.assert_trees_all_close(first, scores[:2], atol=1e-6, rtol=0)
    np.testing.assert_array_equal(train(*batch, key), scores)
    other = train(*batch, another)
    assert np.abs(other - scores)[:5].min() > 1e-4  # the last row has no modality to drop from


def test_dropout_sites_are_those_of_the_specification():
    model, params = setup("float32", "mean", input_dropout=0.5, overrides=())
    sites = []

    def record(call, args, kwargs, context):
        if isinstance(context.module, Dropout):
            sites.append(("/".join(context.module.path[:-1]), context.module.rate))
            return args[0]
        return call(*args, **kwargs)

    apply = functools.partial(model.apply, train=True)
    with nn.intercept_methods(record):
        jax.eval_shape(apply, {"params": params}, FEATURES, MASKS)
    blocks = [f"{m}_encoder/blocks_0" for m in SPEC.modalities]
    pairs = ("text_from_audio", "audio_from_text")
    blocks += [f"fusion/layers_0/{pair}" for pair in pairs]
    expected = [(f"{m}_encoder", rate) for m in SPEC.modalities for rate in (0.5, 0.25)]
    expected += [(f"{b}{inner}", 0.25) for b in blocks for inner in ("/attention", "", "/ffn", "")]
    expected += [("head/gate", 0.25)]  # between the layers of the gate; none before the regression
    assert sorted(sites) == sorted(expected)
    # With layers behind the pooled vector: in front of them, and behind each.
    model, params = setup("float32", "mean", n_layers_head=2, head_dropout=0.4, overrides=())
    apply, sites[:] = functools.partial(model.apply, train=True), []
    with nn.intercept_methods(record):
        jax.eval_shape(apply, {"params": params}, FEATURES, MASKS)
    assert [site for site in sites if site[0] == "hidden"] == [("hidden", 0.4)] * 3


# --- guards ---


def without(values, name):
    return {m: x for m, x in values.items() if m != name}


BAD_INPUTS = {
    "width": ({**FEATURES, "audio": np.zeros((6, 5, 7), "f4")}, MASKS, "'audio'.*(6, 5, 7).*, 4)"),
    "axes": ({**FEATURES, "audio": np.zeros((6, 5), "f4")}, MASKS, "'audio'.*(6, 5)"),
    "batch": ({**FEATURES, "audio": FEATURES["audio"][:2]}, MASKS, "'audio'.*(2, 5, 4).*(6, "),
    "no features": (without(FEATURES, "audio"), MASKS, "'audio' needs features"),
    "no mask": (FEATURES, without(MASKS, "audio"), "'audio' needs features and a mask"),
    "mask type": (FEATURES, {**MASKS, "text": np.ones((6, 6), "f4")}, "'text'.*float32 (6, 6)"),
    "mask length": (FEATURES, {**MASKS, "text": np.ones((6, 5), bool)}, "'text'.*(6, 5).*(6, 6)"),
    "too long": (
        {**FEATURES, "audio": np.zeros((6, 9, 4), "f4")},
        {**MASKS, "audio": np.ones((6, 9), bool)},
        "9 steps.*8 rows.*audio",
    ),
}


@pytest.mark.parametrize(("features", "masks", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_inputs_that_do_not_fit_are_refused_with_their_sizes(features, masks, message):
    model, params = setup("float32", "mean")
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=pattern):
        jax.eval_shape(model.apply, {"params": params}, features, masks)


def test_a_modality_that_the_model_does_not_know_is_ignored():
    model, params = setup("float32", "mean")
    extra = {"smell": np.zeros((1, 1), np.float32)}
    out = jax.eval_shape(model.apply, {"params": params}, FEATURES | extra, MASKS | extra)
    assert out.score.shape == (6, 1)


def test_an_impossible_anchor_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="'smell'.*text, audio"):
        build_model(ModelConfig(anchor="smell"), SPEC)


@pytest.mark.parametrize(
    ("names", "asked", "anchor"),
    [
        *((("audio", "text"), "", "text"), (("video", "audio"), "", "video")),
        (("text", "audio"), "audio", "audio"),
    ],
)
def test_anchor_is_the_one_asked_for_else_text_else_the_first(names, asked, anchor):
    spec = CorpusSpec(names, (3, 2), (4, 4))
    fusion = shapes_of(dataclasses.replace(SMALL, anchor=asked), spec)[1]["fusion"]
    assert [pair.split("_from_")[0] for pair in fusion["layers_0"]] == [anchor]


# --- check_reference.py ---


def reference_arrays():
    """A file of the reference layout, computed without the model: gradients by differences."""
    config = ModelConfig(
        model_dim=4,
        num_heads=2,
        ff_dim=3,
        n_layers_mod=0,
        n_layers_fuse=1,
        pooling_method="attention",
        anchor="voice",
    )
    spec = CorpusSpec(("voice", "face"), (3, 2), (4, 4))
    steps = {"voice": 4, "face": 4}
    params = flax.traverse_util.flatten_dict(random_params(config, spec), sep="/")
    features = random_features(spec, steps, batch=3)
    masks = {m: mask[:3] for m, mask in awkward_masks(steps, "voice").items()}
    target = np.float64([[1.5], [-2.0], [0.5]])
    weights = {k: np.float64(v) for k, v in params.items()}
    tree = flax.traverse_util.unflatten_dict(weights, sep="/")  # of the same arrays

    def score_and_loss():
        score, _ = numpy_model(tree, config, spec, features, masks)
        return score, np.abs(score - target).mean()

    score, loss = score_and_loss()
    squares, step = 0.0, 1e-5
    for array in weights.values():
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] = value + step
            above = score_and_loss()[1]
            array[index] = value - step
            below = score_and_loss()[1]
            array[index] = value
            squares += ((above - below) / (2 * step)) ** 2
    keys = {k: getattr(config, k) for k in check_reference.MODEL_KEYS}
    text = {"seq_len": 4, "dims": dict(zip(spec.modalities, spec.widths, strict=True)), **keys}
    return {
        "config": np.array(json.dumps(text)),
        **{f"input:{m}": x for m, x in features.items()},
        **{f"mask:{m}": x for m, x in masks.items()},
        **{f"param:{k}": v for k, v in params.items()},
        "output:score": score.astype(np.float32),
        "target": target.astype(np.float32),
        "loss_mae": np.float32(loss),
        "grad_global_norm": np.float32(np.sqrt(squares)),
    }


@pytest.fixture(scope="module")
def reference():
    return reference_arrays()


def check(capsys, *paths):
    """The exit code and the reports of `check_reference.py`."""
    code = check_reference.main([str(path) for path in paths])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_model_agrees_with_a_reference_file_made_without_it(reference, tmp_path, capsys):
    np.savez(tmp_path / "own.npz", **reference)
    code, [report] = check(capsys, tmp_path / "own.npz")
    assert code == 0, report
    assert report["parameters"] == sum(v.size for k, v in reference.items() if k[:6] == "param:")
    assert report["file"] == str(tmp_path / "own.npz")
    assert report["max_abs_error"] < 1e-6 and report["loss_abs_error"] < 1e-6
    assert report["grad_norm_rel_error"] < 1e-5


@pytest.mark.parametrize("name", ["uni_mean.npz", "bi_attention.npz"])
def test_model_agrees_with_the_shared_reference_file(name, capsys):
    if not (REFERENCE / name).is_file():
        pytest.skip("no ../shared/reference beside this checkout")
    code, [report] = check(capsys, REFERENCE / name)
    assert code == 0, report


@pytest.mark.parametrize(
    ("key", "factor"),
    [
        ("param:fusion/layers_0/voice_from_face/ffn/outer/kernel", 1.01),
        ("output:score", 1 + 1e-4),
        ("output:score", np.nan),
        ("loss_mae", 1 + 1e-4),
        ("grad_global_norm", 1 + 2e-4),
    ],
)
def test_a_reference_file_that_disagrees_exits_1(reference, tmp_path, capsys, key, factor):
    changed = (reference[key] * factor).astype(np.float32)
    np.savez(tmp_path / "wrong.npz", **{**reference, key: changed})
    assert check(capsys, tmp_path / "wrong.npz")[0] == 1


def test_an_unreadable_reference_file_exits_2_and_the_others_are_still_checked(
    reference, tmp_path, capsys
):
    np.savez(tmp_path / "good.npz", **reference)
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "lacks.npz", **without(reference, "target"))
    np.savez(tmp_path / "shape.npz", **reference | {"param:regression/bias": np.zeros(2, "f4")})
    np.savez(tmp_path / "pickle.npz", **reference | {"target": np.array([None])})
    bad = [tmp_path / f"{name}.npz" for name in ("cut", "lacks", "shape", "pickle", "gone")]
    code, reports = check(capsys, *bad, tmp_path / "good.npz")
    assert code == 2
    assert ["error" in report for report in reports] == [True] * 5 + [False]
    assert check(capsys)[0] == 2
