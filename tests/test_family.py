"""The family's settings: any two together, and each against an independent computation."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.attention import MultiHeadAttention
from msajax.layers.basic import FeedForward, RMSNorm
from msajax.layers.heads import AdaptiveHead
from msajax.layers.positions import sinusoids
from msajax.layers.prng import dropout_key
from msajax.layers.transformer import AnchoredFusion, TransformerBlock
from msajax.models.build import build_model
from msajax.models.contract import blank_sample
from msajax.spec import CorpusSpec

AXES = {
    "n_layers_mod": (1, 0),
    "n_layers_fuse": (1, 0),
    "n_layers_post_fuse": (0, 1),
    "mixer": ("transformer", "rnn", "gru", "lstm"),
    "both_directions": (False, True),
    "fusion": ("sequential", "parallel", "pooled"),
    "bidirectional_fusion": (False, True),
    "early_fusion": (False, True),
    "activation": ("gelu", "gelu_tanh", "relu", "geglu"),
    "norm": ("layernorm", "rmsnorm"),
    "norm_position": ("post", "pre"),
    "final_norm": (False, True),
    "final_norm_type": ("same", "layernorm", "rmsnorm"),
    "positions": ("learned", "sinusoidal", "none", "drofe"),
    "qkv_bias": (True, False),
    "out_bias": (True, False),
    "ffn_inner_bias": (True, False),
    "head_dim": (0, 3),
    "value_dim": (0, 5),
    "input_projection": ("always", "where_needed"),
    "attention_dropout": (-1.0, 0.0),
    "ffn_dropout": (-1.0, 0.0),
    "projection_dropout": (-1.0, 0.0),
    "input_dropout": (0.0, 0.3),
    "pooling_method": ("mean", "attention"),
    "gate_input": ("mean", "concat"),
    "gate_hidden": (True, False),
    "gate_activation": ("relu", "none"),
    "gate_start": ("even", "anchor"),
    "head": ("weighted_sum", "mean", "concat"),
    "n_layers_head": (0, 2),
    "head_dropout": (0.0, 0.3),
    "missing_modality": ("mask", "reference"),
    "dtype": ("float32", "bfloat16"),
    "causal": (False, True),
    "modalities": (("text", "audio"), ("brain",), ("video", "eye.left")),
    "overrides": ((), ("text.mixer=gru", "audio.n_layers_mod=2", "text.norm=rmsnorm")),
}
SMALL = {"model_dim": 8, "num_heads": 2, "ff_dim": 12, "dropout_rate": 0.2}
WIDTHS = {"text": 6, "audio": 5, "video": 7, "brain": 8, "eye.left": 5}
B, T = 4, 5
rng = np.random.default_rng(0)


def make(settings: dict) -> ModelConfig | None:
    """The configuration, or None where it is refused."""
    names = settings["modalities"]
    overrides = tuple(o for o in settings["overrides"] if o.split(".")[0] in names)
    try:
        return ModelConfig(**SMALL, **{**settings, "overrides": overrides})
    except UserError:
        return None


@functools.cache
def pairwise() -> list[dict]:
    """Settings among which any two values of two axes meet, wherever the two may meet at all."""
    default = {axis: values[0] for axis, values in AXES.items()}
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(AXES, 2)
        for x in AXES[a]
        for y in AXES[b]
    }
    random, chosen = np.random.default_rng(0), []
    sizes = [len(values) for values in AXES.values()]

    def gained(settings):
        return len(missing.intersection(itertools.combinations(settings.items(), 2)))

    while missing:
        best, gain = None, 0
        first = min(missing, key=str)
        drawn = [
            {a: AXES[a][k] for a, k in zip(AXES, ks, strict=True)} | dict(first)
            for ks in random.integers(sizes, size=(150, len(AXES))).tolist()
        ]
        for settings in sorted(drawn, key=gained)[-30:]:
            for axis in random.permutation(list(AXES)):  # give up what is refused
                if make(settings) is not None:
                    break
                settings[axis] = default[axis]
            if make(settings) is None:
                continue
            if gained(settings) > gain:
                best, gain = settings, gained(settings)
        if best is None or gain == 0:
            missing.discard(first)
            continue
        missing -= set(itertools.combinations(best.items(), 2))
        chosen.append(best)
    return chosen


@functools.cache
def inputs(names: tuple[str, ...]):
    """Features with NaN in the padding, which is anywhere, and one absent modality."""
    random = np.random.default_rng(1)
    masks = {m: random.random((B, T)) < 0.7 for m in names}
    for m in names:
        masks[m][:, 2] = True
    if len(names) > 1:
        masks[names[1]][0] = False
    features = {m: random.normal(size=(B, T, WIDTHS[m])).astype(np.float32) for m in names}
    return {m: np.where(masks[m][..., None], x, np.nan) for m, x in features.items()}, masks


@functools.cache
def with_every_value() -> list[dict]:
    """Cases, chosen one by one, among which every value of every axis comes."""
    missing, chosen = {(a, x) for a, values in AXES.items() for x in values}, []
    while missing:
        chosen.append(max(pairwise(), key=lambda case: len(missing & case.items())))
        missing -= chosen[-1].items()
    return chosen


def test_any_two_values_that_may_meet_do_meet():
    default = {axis: values[0] for axis, values in AXES.items()}
    met = {pair for s in pairwise() for pair in itertools.combinations(s.items(), 2)}
    for a, b in itertools.combinations(AXES, 2):
        for x, y in itertools.product(AXES[a], AXES[b]):
            assert ((a, x), (b, y)) in met or make(default | {a: x, b: y}) is None


@pytest.mark.parametrize("part", range(6))
def test_any_two_settings_work_together(part):
    for case in pairwise()[part::6]:
        works(case)


def works(case: dict) -> None:
    """All are traced, and some computed with their gradient."""
    config = make(case)
    names = config.modalities
    groups = (names,) if config.early_fusion else ()
    spec = CorpusSpec(names, tuple(WIDTHS[m] for m in names), (T,) * len(names), groups=groups)
    model = build_model(config, spec)
    features, masks = inputs(names)
    key = dropout_key(jnp.uint32(1), jnp.int32(0))  # of training, and quicker than JAX's own
    begin = functools.partial(model.init_with_output, train=True)
    rngs = {"params": jax.random.key(0), "dropout": key}
    prediction, variables = jax.eval_shape(begin, rngs, features, masks)
    shapes = variables["params"]
    assert prediction.score.shape == (B, 1) and prediction.score.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {np.dtype("float32")}
    if case not in with_every_value():
        return
    random = np.random.default_rng(3)
    params = jax.tree.map(lambda s: random.normal(size=s.shape).astype(s.dtype) / 3, shapes)

    @jax.jit
    def score_and_gradient(params, features, key):
        def total(params):
            prediction = model.apply(
                {"params": params}, features, masks, train=True, rngs={"dropout": key}
            )
            return jnp.square(prediction.score - 1).sum(), prediction

        return jax.grad(total, has_aux=True)(params)

    gradient, prediction = score_and_gradient(params, features, key)
    assert np.isfinite(prediction.score).all()
    weights = np.asarray(prediction.modality_weights)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
    if len(names) > 1 and config.missing_modality == "mask":
        assert weights[0, 1] == 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all() and leaf.dtype == np.float32, path
    # What is in the padding, finite or not, changes nothing.
    other = {m: np.where(np.isnan(x), 7.0, x) for m, x in features.items()}
    again = score_and_gradient(params, other, key)[1].score
    np.testing.assert_array_equal(again, prediction.score)


def test_settings_of_a_modality_that_the_run_does_not_have_are_refused():
    spec = CorpusSpec(("text",), (6,), (T,))
    with pytest.raises(UserError, match="names 'audio', which is not among .* choose of text"):
        build_model(ModelConfig(**SMALL, overrides=("audio.mixer=gru",)), spec)


def test_modality_names_do_not_collide_with_the_modules_names():
    names = ("text", "text_after_fusion", "fusion", "head", "text_post")
    config = ModelConfig(**SMALL, n_layers_mod=1, n_layers_post_fuse=1)
    model = build_model(config, CorpusSpec(names, (2,) * 5, (T,) * 5))
    params = jax.eval_shape(model.init, jax.random.key(0), *blank_sample(model.spec))["params"]
    expected = {f"{m}_{stage}" for m in names for stage in ("encoder", "after_fusion")}
    assert set(params) == expected | {"fusion", "head", "regression"}


def test_modality_names_may_look_like_those_of_cross_attention():
    names = ("a", "b_from_a", "a_from_b")
    config = ModelConfig(**SMALL, n_layers_mod=0, bidirectional_fusion=True, anchor="a")
    model = build_model(config, CorpusSpec(names, (2,) * 3, (T,) * 3))
    params = jax.eval_shape(model.init, jax.random.key(0), *blank_sample(model.spec))["params"]
    assert len(params["fusion"]["layers_0"]) == 4  # each of the two others, both ways


# --- layers ---


def begin(module, *inputs):
    """Variables of a module: random kernels and biases, norms that change nothing."""
    init = functools.partial(module.init, train=False)
    random = np.random.default_rng(2)

    def draw(path, shape):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        x = random.normal(size=shape.shape) / 3
        return (x if "norm" not in name else np.full_like(x, name.endswith("scale"))).astype("f4")

    shapes = jax.eval_shape(init, jax.random.key(0), *inputs)
    return jax.tree_util.tree_map_with_path(draw, shapes)


def test_rms_norm_is_that_of_the_formula():
    x = rng.normal(size=(2, 3, 9)).astype(np.float32) * 5 + 1
    scale = rng.normal(size=9).astype(np.float32)
    y = RMSNorm(1e-5, jnp.float32).apply({"params": {"scale": scale}}, x)
    x = np.float64(x)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


ACTIVATIONS = {
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "geglu"])
def test_feed_forward_activations(activation):
    module = FeedForward(7, activation, 0.0, jnp.float32)
    x = rng.normal(size=(2, 3, 5)).astype(np.float32) * 2
    params = jax.tree.map(lambda w: 3 * w, begin(module, x)["params"])
    y = jax.jit(lambda params, x: module.apply({"params": params}, x, train=False))(params, x)

    def dense(name, value):
        return value @ np.float64(params[name]["kernel"]) + params[name]["bias"]

    x = np.float64(x)
    if activation == "geglu":
        inner = ACTIVATIONS["gelu"](dense("gate", x)) * dense("inner", x)
    else:
        inner = ACTIVATIONS[activation](dense("inner", x))
    np.testing.assert_allclose(y, dense("outer", inner), atol=2e-5)


def test_erf_and_tanh_gelu_differ_by_what_is_known():
    x = np.linspace(-6, 6, 10_001)
    largest = np.abs(ACTIVATIONS["gelu"](x) - ACTIVATIONS["gelu_tanh"](x)).max()
    assert 4.5e-4 < largest < 5e-4
    ours = [np.float64(jax.nn.gelu(jnp.float32(x), approximate=a)) for a in (False, True)]
    assert np.abs(ours[0] - ours[1]).max() == pytest.approx(largest, rel=1e-2)


@pytest.mark.parametrize("width", [1, 2, 7, 128])
def test_sinusoids_are_those_of_the_formula_at_odd_widths_too(width):
    table = sinusoids(50, width)
    assert table.shape == (50, width)
    for p, j in itertools.product((0, 1, 17, 49), range(width)):
        angle = p / 10000 ** (2 * (j // 2) / width)
        expected = np.sin(angle) if j % 2 == 0 else np.cos(angle)
        assert table[p, j] == pytest.approx(expected, abs=1e-6)


# --- attention ---


def test_values_may_have_another_size_than_keys_and_maps_are_returned():
    module = MultiHeadAttention(2, 3, 0.0, jnp.float32, value_dim=5, qkv_bias=False)
    x = rng.normal(size=(B, T, 6)).astype(np.float32)
    mask = np.arange(T)[None] < np.array([5, 3, 1, 0])[:, None]
    additive = np.where(np.tril(np.ones((T, T))), 0, -np.inf).astype(np.float32)
    variables = begin(module, x, x, (mask,))
    params = variables["params"]
    assert params["value"]["kernel"].shape == (6, 2, 5)
    assert params["out"]["kernel"].shape == (2, 5, 6)
    assert set(params["query"]) == {"kernel"} and set(params["out"]) == {"kernel", "bias"}
    apply = functools.partial(module.apply, train=False, mutable="intermediates")
    y, state = jax.jit(apply)({"params": params}, x, x, (mask, additive))
    (maps,) = state["intermediates"]["attention"]
    keep = mask[:, None, :] & np.tril(np.ones((T, T), bool))  # [batch, queries, keys]
    p = jax.tree.map(np.float64, params)
    q, k, v = (np.einsum("btd,dhe->bhte", x, p[n]["kernel"]) for n in ("query", "key", "value"))
    scores = np.where(keep[:, None], q @ k.swapaxes(2, 3) / np.sqrt(3), -1e30)
    expected = scipy.special.softmax(scores, -1)
    seen = keep.any(-1)
    np.testing.assert_allclose(np.asarray(maps)[:3], expected[:3], atol=1e-6)
    visible = np.where(keep[:, None], maps, 0).sum(-1)
    np.testing.assert_allclose(visible.swapaxes(1, 2)[seen], 1, atol=1e-6)
    mixed = np.einsum("bhqk,bhke,hed->bqd", expected, v, p["out"]["kernel"]) + p["out"]["bias"]
    np.testing.assert_allclose(y, np.where(seen[..., None], mixed, 0), atol=1e-5)


def test_blocks_without_positions_are_equivariant_to_permutations():
    block = TransformerBlock(ModelConfig(**SMALL, norm_position="pre", activation="geglu"))
    x = rng.normal(size=(B, T, 8)).astype(np.float32)
    mask = rng.random((B, T)) < 0.7
    params = begin(block, x, x, (mask,))
    order = rng.permutation(T)
    apply = jax.jit(lambda x, mask: block.apply(params, x, x, (mask,), train=False))
    y, z = apply(x, mask), apply(x[:, order], mask[:, order])
    np.testing.assert_allclose(z, np.asarray(y)[:, order], atol=2e-6)


@pytest.mark.parametrize(("norm", "position"), [("layernorm", "post"), ("rmsnorm", "pre")])
def test_a_later_step_cannot_be_seen_through_a_causal_block(norm, position):
    block = TransformerBlock(ModelConfig(**SMALL, norm=norm, norm_position=position))
    x = rng.normal(size=(B, T, 8)).astype(np.float32)
    mask = np.ones((B, T), bool)
    mask[:, 0] = mask[1, 2] = False
    masks = (mask, np.tril(np.ones((1, T, T), bool)))
    params = begin(block, x, x, masks)
    apply = jax.jit(lambda x: block.apply(params, x, x, masks, train=False))
    changed = x.copy()
    changed[:, 3:] += 1
    np.testing.assert_array_equal(apply(changed)[:, :3], apply(x)[:, :3])
    assert (apply(changed)[:, 3:] != apply(x)[:, 3:]).any()


def test_pre_norm_normalises_what_goes_into_a_sub_layer():
    config = ModelConfig(**{**SMALL, "dropout_rate": 0.0}, norm_position="pre")
    block = TransformerBlock(config)
    x = rng.normal(size=(B, T, 8)).astype(np.float32)
    context = rng.normal(size=(B, 3, 8)).astype(np.float32)
    mask = np.ones((B, 3), bool)
    params = begin(block, x, context, (mask,))["params"]
    assert set(params) == {"attention", "ffn", "norm_attention", "norm_context", "norm_ffn"}

    def norm(x):  # every scale 1, every offset 0
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)

    @jax.jit
    def both_ways(params, x, context):
        attention = MultiHeadAttention(2, 4, 0.0, jnp.float32).bind({"params": params["attention"]})
        ffn = FeedForward(12, "gelu", 0.0, jnp.float32).bind({"params": params["ffn"]})
        middle = x + attention(norm(x), norm(context), (mask,), train=False)
        expected = middle + ffn(norm(middle), train=False)
        return block.apply({"params": params}, x, context, (mask,), train=False), expected

    np.testing.assert_allclose(*both_ways(params, x, context), atol=1e-5)


# --- fusion and head ---


def test_parallel_fusion_reads_what_came_into_the_layer():
    config = ModelConfig(**SMALL, fusion="parallel", bidirectional_fusion=True)
    names = ("text", "audio", "video")
    x = {m: rng.normal(size=(B, T, 8)).astype(np.float32) for m in names}
    masks = {m: np.ones((B, T), bool) for m in names}
    module = AnchoredFusion(config, names, "text")
    params = begin(module, x, masks)["params"]
    fused = jax.jit(lambda params: module.apply({"params": params}, x, masks, train=False))(params)
    apply = jax.jit(functools.partial(TransformerBlock(config).apply, train=False))

    def cross(query, context, name):
        return apply({"params": params["layers_0"][name]}, query, context, (masks["text"],))

    text = cross(x["text"], x["audio"], "text_from_audio")
    np.testing.assert_allclose(fused["text"], cross(text, x["video"], "text_from_video"), atol=2e-6)
    for m in ("audio", "video"):  # from the text that came in, not from the fused one
        expected = cross(x[m], x["text"], f"{m}_from_text")
        np.testing.assert_allclose(fused[m], expected, atol=2e-6)


def test_early_fusion_projects_features_of_a_step_side_by_side():
    names = ("text", "audio", "video")
    features, masks = inputs(names)
    spec = CorpusSpec(names, (6, 5, 7), (T,) * 3, groups=(("text", "audio"),))
    early = build_model(ModelConfig(**SMALL, n_layers_fuse=0, early_fusion=True), spec)
    params = begin(early, features, masks)["params"]
    assert {m for m in params if m.endswith("_joined")} == {"audio_to_text_joined"}  # video is not
    score = jax.jit(early.apply)({"params": params}, features, masks).score

    valid = {m: np.where(masks[m][..., None], features[m], 0) for m in ("text", "audio")}
    beside = features | {"text": np.concatenate(list(valid.values()), -1)}
    spec = CorpusSpec(names, (11, 5, 7), (T,) * 3)
    model = build_model(ModelConfig(**SMALL, n_layers_fuse=0), spec)
    of_audio = params.pop("audio_to_text_joined")["projection"]["kernel"]
    projection = params["text_encoder"]["projection"]
    projection["kernel"] = np.concatenate([projection["kernel"], of_audio])
    expected = jax.jit(model.apply)({"params": params}, beside, masks).score
    np.testing.assert_allclose(score, expected, atol=1e-6)

    shorter = {m: x[:, :1] if m == "audio" else x for m, x in features.items()}
    with pytest.raises(ValueError, match="'audio' has 1 steps; early fusion expected 5, the anch"):
        early.apply(
            {"params": params}, shorter, {m: x[:, : shorter[m].shape[1]] for m, x in masks.items()}
        )


def test_early_fusion_of_modalities_that_share_no_steps_is_refused():
    spec = CorpusSpec(("text", "audio"), (6, 5), (T, T))
    message = r"model.early_fusion joins to 'text' .* none is known to share them: text \(6 wide"
    with pytest.raises(UserError, match=message):
        build_model(ModelConfig(**SMALL, early_fusion=True), spec)
    alone = CorpusSpec(("text",), (6,), (T,))  # there is nothing to join
    build_model(ModelConfig(**SMALL, early_fusion=True), alone)


def test_pooled_fusion_without_layers_is_pooling_in_the_head():
    names = ("text", "audio")
    features, masks = inputs(names)
    spec = CorpusSpec(names, (6, 5), (T, T))
    scores = []
    for fusion in ("sequential", "pooled"):
        config = ModelConfig(**SMALL, n_layers_mod=0, n_layers_fuse=0, fusion=fusion)
        model = build_model(config, spec)
        scores.append(jax.jit(model.apply)(begin(model, features, masks), features, masks))
    np.testing.assert_allclose(scores[0].score, scores[1].score, atol=1e-6)
    np.testing.assert_allclose(scores[0].modality_weights, scores[1].modality_weights, atol=1e-6)


HEAD_X = {m: rng.normal(size=(B, 1, 8)).astype(np.float32) for m in ("a", "b", "c")}
PRESENT = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]], bool)


def apply_head(**settings):
    module = AdaptiveHead(ModelConfig(**SMALL, **settings), ("a", "b", "c"))
    masks = {m: PRESENT[:, i : i + 1] for i, m in enumerate("abc")}
    variables = begin(module, HEAD_X, masks)
    vector, weights = jax.jit(lambda v: module.apply(v, HEAD_X, masks, train=False))(variables)
    return np.asarray(vector), np.asarray(weights), variables.get("params", {})


POOLED = np.stack([HEAD_X[m][:, 0] for m in "abc"], 1) * PRESENT[..., None]


def test_mean_head_is_the_mean_of_the_modalities_that_count():
    vector, weights, params = apply_head(head="mean")
    assert params == {}
    count = np.maximum(PRESENT.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(vector, POOLED.sum(1) / count, atol=1e-6)
    np.testing.assert_allclose(weights, PRESENT / count, atol=1e-7)


def test_concat_head_has_zeros_for_an_absent_modality():
    vector, weights, params = apply_head(head="concat")
    assert params == {}
    np.testing.assert_array_equal(vector, POOLED.reshape(B, -1))
    np.testing.assert_allclose(weights, PRESENT / np.maximum(PRESENT.sum(1, keepdims=True), 1))


def test_a_hidden_layer_of_the_gate_without_an_activation_is_linear():
    _, weights, params = apply_head(gate_activation="none")
    hidden, last = params["gate"]["hidden"], params["gate"]["weights"]
    mean = np.where(PRESENT[..., None], POOLED, 0).sum(1) / np.maximum(PRESENT.sum(1)[:, None], 1)
    inner = mean @ np.float64(hidden["kernel"]) + hidden["bias"]
    assert (inner < 0).any()  # which relu would cut off
    logits = inner @ np.float64(last["kernel"]) + last["bias"]
    expected = scipy.special.softmax(np.where(PRESENT, logits, -1e30), 1) * PRESENT
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_a_gate_that_begins_at_the_anchor_differs_in_its_first_biases_alone():
    masks, found = {m: PRESENT[:, i : i + 1] for i, m in enumerate("abc")}, {}
    for start in ("even", "anchor"):
        config = ModelConfig(**SMALL, gate_start=start)
        module = AdaptiveHead(config, ("a", "b", "c"), anchor="b")
        run = jax.jit(functools.partial(module.init_with_output, train=False))
        (_, weights), variables = run(jax.random.key(0), HEAD_X, masks)
        found[start] = np.asarray(weights), variables["params"]["gate"]
    (even, drawn), (weights, params) = found["even"], found["anchor"]
    np.testing.assert_array_equal(drawn["weights"].pop("bias"), [0, 0, 0])
    np.testing.assert_array_equal(params["weights"].pop("bias"), [0, 4, 0])
    chex.assert_trees_all_equal(params, drawn)
    expected = even * np.exp([0.0, 4.0, 0.0])  # where the anchor is absent, the others as before
    expected /= np.maximum(expected.sum(1, keepdims=True), 1e-30)
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_a_linear_gate_over_all_modalities_side_by_side():
    vector, weights, params = apply_head(gate_input="concat", gate_hidden=False)
    assert set(params["gate"]) == {"weights"}
    dense = params["gate"]["weights"]
    logits = POOLED.reshape(B, -1) @ np.float64(dense["kernel"]) + dense["bias"]
    expected = scipy.special.softmax(np.where(PRESENT, logits, -1e30), 1) * PRESENT
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_allclose(vector, np.einsum("bm,bmd->bd", expected, POOLED), atol=1e-6)
