"""The encoder of each source document's preset against that document's formulas, in float64."""

import functools
import importlib.util
import pathlib

import jax
import numpy as np
import pytest
import scipy.special

from msajax.config import from_config_dict
from msajax.models import build_model
from msajax.models.parts.encoders import ModalityEncoder, PostFusionEncoder
from msajax.spec import CorpusSpec

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
B, T, D, V = 2, 5, 8, 11
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1]], bool)


@functools.cache
def preset(name: str):
    """The model settings of an experiment file, at a width of 8 with two layers."""
    spec = importlib.util.spec_from_file_location(name, CONFIGS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    config.model.update(model_dim=D, num_heads=2, ff_dim=12)
    for depth in ("n_layers_mod", "n_layers_post_fuse"):
        config.model[depth] = min(config.model[depth], 2)
    return from_config_dict(config).model


def random_params(module, *arguments):
    """Every weight, biases and scales included, is a random number."""
    init = functools.partial(module.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), *arguments)["params"]
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda w: rng.normal(scale=0.5, size=w.shape).astype(np.float32), shapes)


def layer_norm(p, x, eps):
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return normal * p["scale"] + p["bias"]


def rms_norm(p, x, eps):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * p["scale"]


def gelu(x):
    return x * scipy.special.ndtr(x)


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


@pytest.mark.parametrize("name", POST_NORM)
def test_post_norm_encoders_are_those_of_their_documents(name):
    kind, norm, eps, activation, has_final_norm = POST_NORM[name]
    config = preset(name)
    module = kind(config) if kind is PostFusionEncoder else kind(config, T)
    params = random_params(module, X, MASK)
    got = module.apply({"params": params}, X, MASK, train=False)

    norm = functools.partial(norm, eps=eps)
    p = jax.tree.map(np.float64, params)
    x = np.where(MASK[..., None], np.float64(X), 0) if kind is ModalityEncoder else np.float64(X)
    if name == "classic_encoder":  # the document names no positions: sinusoids are our choice
        angles = np.arange(T)[:, None] / 10000.0 ** (np.arange(D) // 2 * 2 / D)
        x = x + np.where(np.arange(D) % 2 == 0, np.sin(angles), np.cos(angles))
    for i in range(2):
        x = post_norm_block(p[f"blocks_{i}"], x, MASK[:, None, None], norm, activation)
    if has_final_norm:
        x = norm(p["final_norm"], x)
    np.testing.assert_allclose(got, x, atol=5e-6)
    blocks = {f"blocks_{i}" for i in range(2)}
    assert set(params) == blocks | ({"final_norm"} if has_final_norm else set())


def test_the_encoder_after_fusion_has_no_bias_but_that_of_the_second_layer():
    params = random_params(PostFusionEncoder(preset("fuse_then_encode")), X, MASK)
    biases = {name for name in names(params) if name.endswith("/bias")}
    assert biases == {"outer/bias", "norm_attention/bias", "norm_ffn/bias"}


def test_the_lectures_decoder_is_that_of_its_formulas():
    config = preset("decoder")
    spec = CorpusSpec(("text",), (0,), (T,), "next_token", ("nats", "tokens"), (V,))
    model = build_model(config, spec)
    ids = RNG.integers(0, V, (B, T))
    mask = np.ones((B, T), bool)
    params = random_params(model, {"text": ids}, {"text": mask})
    _, kept = model.apply(
        {"params": params}, {"text": ids}, {"text": mask}, mutable="intermediates"
    )
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
