"""The encoder of each source document's preset against that document's formulas, in float64.

And where each of these models drops out in training.
"""

import collections
import dataclasses
import functools
import pathlib

import jax
import numpy as np
import pytest
import scipy.special
from launching import load_file
from layer_formulas import gelu, layer_norm, random_params

from msajax.config import from_config_dict, outside_ranges
from msajax.layers.transformer import ModalityEncoder, PostFusionEncoder
from msajax.models.build import build_model
from msajax.models.contract import blank_sample
from msajax.models.cost import _equations
from msajax.spec import CorpusSpec
from msajax.studies.sweep.space import plan, with_settings

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
B, T, D, V = 2, 5, 8, 11
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1]], bool)


def experiment(name: str):
    """An experiment file as a module."""
    return load_file(CONFIGS / f"{name}.py")


@functools.cache
def preset(name: str, most_layers: int = 2):
    """The model settings of an experiment file, at a width of 8 with two layers."""
    config = experiment(name).get_config()
    config.model.update(model_dim=D, num_heads=2, ff_dim=12)
    for depth in ("n_layers_mod", "n_layers_post_fuse"):
        config.model[depth] = min(config.model[depth], most_layers)
    return from_config_dict(config).model


def rms_norm(p, x, eps):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * p["scale"]


def relu(x):
    return np.maximum(x, 0)


def project(p, x):
    """`[B, T, D]` to `[B, H, T, size]`."""
    bias = p.get("bias", np.zeros(p["kernel"].shape[1:]))
    return np.einsum("btd,dhe->bhte", x, p["kernel"]) + bias[:, None]


def multi_head(p, x, keep):
    """`Concat(softmax(Q_i K_i^T / sqrt(d_h)) V_i) W_O`, with whatever biases there are."""
    q, k, v = (project(p[name], x) for name in ("query", "key", "value"))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    heads = scipy.special.softmax(np.where(keep, scores, -np.inf), -1) @ v
    return np.einsum("bhte,hed->btd", heads, p["out"]["kernel"]) + p["out"].get("bias", 0)


def feed_forward(p, x, activation):
    inner = activation(x @ p["inner"]["kernel"] + p["inner"].get("bias", 0))
    return inner @ p["outer"]["kernel"] + p["outer"]["bias"]


def post_norm_block(p, x, keep, norm, activation):
    """`x = N(x + MHA(x))`, `x = N(x + FFN(x))`."""
    x = norm(p["norm_attention"], x + multi_head(p["attention"], x, keep))
    return norm(p["norm_ffn"], x + feed_forward(p["ffn"], x, activation))


def names(tree) -> set[str]:
    """The last two names of every parameter's path."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{path[-2].key}/{path[-1].key}" for path, _ in paths}


# 000: an encoder per modality after the interaction; no bias but b_2.
# 003: LayerNorm or RMSNorm, GELU, a final norm. 004: ReLU. Both read tokens of the model's width.
POST_NORM = {
    "fuse_then_encode": (PostFusionEncoder, layer_norm, 1e-6, gelu, False),
    "connectome": (ModalityEncoder, layer_norm, 1e-5, gelu, True),
    "connectome_rmsnorm": (ModalityEncoder, rms_norm, 1e-5, gelu, True),
    "classic_encoder": (ModalityEncoder, layer_norm, 1e-5, relu, False),
}


@pytest.mark.parametrize(
    ("name", "final"),
    # The code of 003 ends in LayerNorm, its diagram has RMSNorm inside.
    [*((name, None) for name in POST_NORM), ("connectome_rmsnorm", layer_norm)],
)
def test_post_norm_encoders_are_those_of_their_documents(name, final):
    kind, norm, eps, activation, has_final_norm = POST_NORM[name]
    config = preset(name)
    if final:
        config = dataclasses.replace(config, final_norm_type="layernorm")
    module = kind(config) if kind is PostFusionEncoder else kind(config, T)
    params = random_params(module.init, X, MASK, train=False)
    apply = jax.jit(functools.partial(module.apply, train=False))
    got = apply({"params": params}, X, MASK)

    norm, last = functools.partial(norm, eps=eps), functools.partial(final or norm, eps=eps)
    p = jax.tree.map(np.float64, params)
    x = np.where(MASK[..., None], np.float64(X), 0) if kind is ModalityEncoder else np.float64(X)
    for i in range(2):
        x = post_norm_block(p[f"blocks_{i}"], x, MASK[:, None, None], norm, activation)
    if has_final_norm:
        x = last(p["final_norm"], x)
    np.testing.assert_allclose(got, x, atol=5e-6)
    blocks = {f"blocks_{i}" for i in range(2)}
    assert set(params) == blocks | ({"final_norm"} if has_final_norm else set())


def test_the_encoder_after_fusion_has_no_bias_but_that_of_the_second_layer():
    module = PostFusionEncoder(preset("fuse_then_encode"))
    params = random_params(module.init, X, MASK, train=False)
    biases = {name for name in names(params) if name.endswith("/bias")}
    assert biases == {"outer/bias", "norm_attention/bias", "norm_ffn/bias"}


def test_the_lectures_decoder_is_that_of_its_formulas():
    config = preset("decoder")
    spec = CorpusSpec(("text",), (0,), (T,), "next_token", ("nats", "tokens"), (V,))
    model = build_model(config, spec)
    ids = RNG.integers(0, V, (B, T))
    mask = np.ones((B, T), bool)
    params = random_params(model.init, {"text": ids}, {"text": mask}, train=False)
    apply = jax.jit(functools.partial(model.apply, mutable="intermediates"))
    _, kept = apply({"params": params}, {"text": ids}, {"text": mask})
    p = jax.tree.map(np.float64, params)
    table = p["text_embedding"]["embedding"]
    x = np.eye(V)[ids] @ table * {"none": 1, "sqrt_dim": D**0.5}[config.embedding_scale]
    angles = np.arange(T)[:, None] / 10000.0 ** (np.arange(D) // 2 * 2 / D)
    x = x + np.where(np.arange(D) % 2 == 0, np.sin(angles), np.cos(angles))
    causal = np.tril(np.ones((T, T), bool))
    for i in range(2):
        block = p["text_encoder"][f"blocks_{i}"]
        assert {n for n in names(block["attention"]) if n.endswith("bias")} == {"out/bias"}
        x = x + multi_head(block["attention"], layer_norm(block["norm_attention"], x, 1e-6), causal)
        x = x + feed_forward(block["ffn"], layer_norm(block["norm_ffn"], x, 1e-6), relu)
    np.testing.assert_allclose(kept["intermediates"]["logits"][0], x @ table.T, atol=2e-5)


def active_dropout(name: str) -> dict[str, int]:
    """How many sites of an experiment's model draw a mask in training, by module of the model."""
    config = preset(name, most_layers=100)
    names = ("text",) if config.own_task else ("text", "audio", "video")
    names = ("tokens",) if name.startswith(("connectome", "classic")) else names
    spec = CorpusSpec(names, (D,) * len(names), (T,) * len(names))
    if config.own_task:
        spec = CorpusSpec(names, (0,), (T,), config.own_task, ("nats", "tokens"), (V,))
    model, sample = build_model(config, spec), blank_sample(spec)
    rngs = dict.fromkeys(("params", "dropout"), jax.random.key(0))
    program = jax.make_jaxpr(functools.partial(model.init, train=True))(rngs, *sample)
    return collections.Counter(
        scope[1]
        for equation, scope, _ in _equations(program.jaxpr)
        # Parameters are drawn, too, but outside any module of dropout.
        if equation.primitive.name == "random_bits" and "dropout" in "/".join(scope).lower()
    )


def of_002(layers: int, fusion_layers: int) -> dict[str, int]:
    """After positions, then "in all components": four sites a block, and the gate's."""
    encoders = dict.fromkeys(("text_encoder", "audio_encoder", "video_encoder"), 1 + 4 * layers)
    return {**encoders, "fusion": fusion_layers * 2 * 4, "head": 1}


# 000: one after attention, one after the FFN. What comes before it is not the document's: dropout
# after each modality's projection, and two sites in each of the four cross-attention blocks.
# 001 names no dropout; the decoder has 002's. 003 and 004: four in each layer, none before it.
DROPOUT = {
    "fuse_then_encode": {
        **dict.fromkeys(("text_after_fusion", "audio_after_fusion", "video_after_fusion"), 2 * 2),
        **dict.fromkeys(("text_encoder", "audio_encoder", "video_encoder"), 1),
        "fusion": 4 * 2,
    },
    "decoder": {"text_encoder": 1 + 4 * 4},
    "sequence_small": of_002(1, 1),
    "sequence_base": of_002(2, 1),
    "sequence_large": of_002(3, 2),
    "mosi_trimodal": of_002(2, 1),
    "connectome": {"tokens_encoder": 16},
    "connectome_rmsnorm": {"tokens_encoder": 16},
    "connectome_guided": {"tokens_encoder": 16},
    "classic_encoder": {"tokens_encoder": 20},
}


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_sites_in_training_are_those_of_the_document(name):
    assert active_dropout(name) == DROPOUT[name]


OF_002 = ("sequence_small", "sequence_base", "sequence_large", "mosi_trimodal")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.stem)
def test_only_the_presets_of_002_are_held_to_the_ranges_of_its_table(path):
    model = from_config_dict(experiment(path.stem).get_config()).model
    assert (model.ranges == "002") == (path.stem in OF_002)
    assert outside_ranges(model) == []


@pytest.mark.parametrize("name", OF_002)
def test_the_space_of_a_preset_of_002_is_its_table_and_all_draws_can_be_built(name):
    module = experiment(name)
    config, space = from_config_dict(module.get_config()), module.get_space()
    ends = {}
    for key, values in space.items():
        numbers = [value for value in values if value not in ("log", "linear")]
        ends[key.removeprefix("model.")] = (min(numbers), max(numbers))
    assert ends == {
        **{"model_dim": (64, 256), "num_heads": (2, 8), "ff_dim": (128, 512)},
        **{"n_layers_mod": (1, 3), "n_layers_fuse": (1, 2), "dropout_rate": (0.0, 0.3)},
        **{"bidirectional_fusion": (False, True), "pooling_method": ("attention", "mean")},
    }
    for trial in plan(space, config, 50):
        assert outside_ranges(with_settings(config, trial).model) == []  # it can be made at all
