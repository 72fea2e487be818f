"""The Transformer block, learned positions and the encoder of one modality."""

import dataclasses
import functools

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from layer_formulas import dense, gelu, layer_norm, random_params

from msajax.config import ModelConfig
from msajax.layers.basic import Dropout
from msajax.layers.transformer import ModalityEncoder, TransformerBlock

B, D, WIDTH, TQ, TK, ROWS = 3, 8, 5, 4, 6, 7
CONFIG = ModelConfig(
    model_dim=D, num_heads=2, ff_dim=12, n_layers_mod=0, dropout_rate=0.25, norm_eps=1e-2
)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, TQ, D)).astype(np.float32)
CONTEXT = RNG.normal(size=(B, TK, D)).astype(np.float32)
CONTEXT_MASK = np.array([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], bool)
FEATURES = RNG.normal(size=(B, TK, WIDTH)).astype(np.float32)
BLOCK = TransformerBlock(CONFIG)


def encoder(**settings):
    return ModalityEncoder(dataclasses.replace(CONFIG, **settings), ROWS)


BLOCK_PARAMS = random_params(BLOCK.init, X, CONTEXT, (CONTEXT_MASK,), train=False)
ENCODER_PARAMS = random_params(encoder().init, FEATURES, CONTEXT_MASK, train=False)


@jax.jit
def run_block(x, context, mask):
    return BLOCK.apply({"params": BLOCK_PARAMS}, x, context, (mask,), train=False)


@jax.jit
def run_encoder(x, mask):
    return encoder().apply({"params": ENCODER_PARAMS}, x, mask, train=False)


# --- the block ---

SITES = ("probabilities", "attention output", "inner", "output")


def numpy_block(x, context, mask, dropped=None):
    """The block in float64; what one dropout site lets through can be replaced by zeros."""
    p = jax.tree.map(np.float64, BLOCK_PARAMS)

    def site(name, value):
        return 0 * value if name == dropped else value

    attended = np.zeros(x.shape)
    for b, valid in enumerate(mask):
        if valid.any():
            attended[b] = p["attention"]["out"]["bias"]
        for h in range(CONFIG.num_heads if valid.any() else 0):
            q, k, v = (
                source @ p["attention"][name]["kernel"][:, h] + p["attention"][name]["bias"][h]
                for name, source in (("query", x[b]), ("key", context[b]), ("value", context[b]))
            )
            scores = (q @ k.T / np.sqrt(D / CONFIG.num_heads))[:, valid]
            weights = site("probabilities", scipy.special.softmax(scores, axis=-1))
            attended[b] += weights @ v[valid] @ p["attention"]["out"]["kernel"][h]
    x = layer_norm(p["norm_attention"], x + site("attention output", attended), CONFIG.norm_eps)
    inner = site("inner", gelu(dense(p["ffn"]["inner"], x)))
    outer = site("output", dense(p["ffn"]["outer"], inner))
    return layer_norm(p["norm_ffn"], x + outer, CONFIG.norm_eps)


def test_block_is_post_norm_attention_then_post_norm_feed_forward():
    assert (got := run_block(X, CONTEXT, CONTEXT_MASK)).shape == (B, TQ, D)
    chex.assert_trees_all_close(got, numpy_block(X, CONTEXT, CONTEXT_MASK), atol=3e-6, rtol=0)


def dropout_calls(module, *arguments, replace=None):
    """Runs a module with train on; lists its dropout sites as (path, rate, shape).

    The site number `replace` gives zeros, the others are left out.
    """
    calls = []

    def record(call, args, kwargs, context):
        if not isinstance(context.module, Dropout) or context.method_name != "__call__":
            return call(*args, **kwargs)
        assert kwargs["train"]
        calls.append(("/".join(context.module.path), context.module.rate, args[0].shape))
        return jnp.zeros_like(args[0]) if len(calls) - 1 == replace else args[0]

    with nn.intercept_methods(record):
        out = jax.jit(functools.partial(module.apply, train=True))(*arguments)
    return calls, out


@pytest.mark.parametrize("site", range(4), ids=SITES)
def test_block_has_its_four_dropout_sites_where_the_specification_says(site):
    calls, out = dropout_calls(
        BLOCK, {"params": BLOCK_PARAMS}, X, CONTEXT, (CONTEXT_MASK,), replace=site
    )
    shapes = [(B, CONFIG.num_heads, TQ, TK), (B, TQ, D), (B, TQ, CONFIG.ff_dim), (B, TQ, D)]
    assert [call[1:] for call in calls] == [(CONFIG.dropout_rate, shape) for shape in shapes]
    expected = numpy_block(X, CONTEXT, CONTEXT_MASK, dropped=SITES[site])
    chex.assert_trees_all_close(out, expected, atol=3e-6, rtol=0)


# --- the encoder ---


def test_encoder_is_projection_plus_the_first_position_rows():
    x = np.where(CONTEXT_MASK[..., None], FEATURES, 0).astype(np.float64)
    p = jax.tree.map(np.float64, ENCODER_PARAMS)
    expected = dense(p["projection"], x) + p["positions"]["embedding"][:TK]
    chex.assert_shape(p["positions"]["embedding"], (ROWS, D))
    got = run_encoder(FEATURES, CONTEXT_MASK)
    chex.assert_trees_all_close(got, expected, atol=2e-6, rtol=0)


def test_padded_content_never_enters_the_encoder_and_a_longer_sequence_is_an_error():
    for filler in (1e30, np.inf, np.nan):
        changed = np.where(CONTEXT_MASK[..., None], FEATURES, np.float32(filler))
        np.testing.assert_array_equal(
            run_encoder(changed, CONTEXT_MASK), run_encoder(FEATURES, CONTEXT_MASK)
        )
    x, mask = np.zeros((B, ROWS + 1, WIDTH), np.float32), np.ones((B, ROWS + 1), bool)
    with pytest.raises(ValueError, match=rf"{ROWS + 1} steps .* {ROWS} rows"):
        run_encoder(x, mask)


def test_encoder_drops_raw_features_then_embeddings_then_inside_each_block():
    module = encoder(n_layers_mod=2, input_dropout=0.5)
    params = random_params(module.init, FEATURES, CONTEXT_MASK, train=False)
    calls, _ = dropout_calls(module, {"params": params}, FEATURES, CONTEXT_MASK)
    rates_and_shapes = [call[1:] for call in calls]
    assert rates_and_shapes[:2] == [(0.5, FEATURES.shape), (0.25, (B, TK, D))]
    blocks = [path.split("/")[0] for path, _, _ in calls[2:]]
    assert blocks == ["blocks_0"] * 4 + ["blocks_1"] * 4
    paths = flax.traverse_util.flatten_dict(params, sep="/")  # blocks share no weights
    first = {p.removeprefix("blocks_0/") for p in paths if p.startswith("blocks_0/")}
    assert first == {p.removeprefix("blocks_1/") for p in paths if p.startswith("blocks_1/")}
    assert len(paths) == 3 + 2 * len(first) and len(first) == 16
    # The second site comes after the positions: zeros there leave nothing of them.
    _, out = dropout_calls(
        encoder(), {"params": ENCODER_PARAMS}, FEATURES, CONTEXT_MASK, replace=1
    )
    np.testing.assert_array_equal(out, np.zeros((B, TK, D)))
