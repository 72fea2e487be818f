"""Pooling, the gate over modalities and the weighted sum."""

import functools

import chex
import jax
import numpy as np
import pytest
import scipy.special
from layer_formulas import dense, random_params

from msajax.config import ModelConfig
from msajax.layers.heads import AdaptiveHead, AttentionPool, ModalityGate, mean_pool

NAMES = ("text", "audio", "video")
B, T, D, M = 5, 4, 8, len(NAMES)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, D)).astype(np.float32)
# Everything, leading padding, a hole, one step, nothing.
MASK = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
POOLED = RNG.normal(size=(B, M, D)).astype(np.float32)
PRESENT = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]], bool)
SEQUENCES = {m: RNG.normal(size=(B, T, D)).astype(np.float32) for m in NAMES}
ALL_PRESENT = {m: (RNG.random((B, T)) < 0.6) | (np.arange(T) == 1) for m in NAMES}
MASKS = {m: ALL_PRESENT[m] & PRESENT[:, [i]] for i, m in enumerate(NAMES)}


def numpy_mean_pool(x, mask):
    pooled = np.zeros((len(x), D))
    for b, keep in enumerate(mask):
        if keep.any():
            pooled[b] = x[b, keep].mean(0, dtype=np.float64)
    return pooled


def numpy_attention_pool(params, x, mask):
    pooled = np.zeros((len(x), D))
    for b, keep in enumerate(mask):
        if keep.any():
            scores = dense(params["score"], np.tanh(dense(params["hidden"], x[b, keep])))
            pooled[b] = scipy.special.softmax(scores[:, 0]) @ x[b, keep]
    return pooled


def numpy_gate(params, pooled, present):
    weights = np.zeros(present.shape)
    for b, keep in enumerate(present):
        if keep.any():
            hidden = np.maximum(dense(params["hidden"], pooled[b, keep].mean(0)), 0)
            logits = dense(params["weights"], hidden)
            weights[b, keep] = scipy.special.softmax(logits[keep])
    return weights


# --- pooling ---

POOL_PARAMS = random_params(AttentionPool().init, X, MASK)
POOLS = {
    "mean": jax.jit(mean_pool),
    "attention": jax.jit(lambda x, mask: AttentionPool().apply({"params": POOL_PARAMS}, x, mask)),
}
NUMPY_POOLS = {
    "mean": numpy_mean_pool,
    "attention": functools.partial(numpy_attention_pool, POOL_PARAMS),
}


@pytest.mark.parametrize("method", POOLS)
def test_pool_equals_float64_over_the_valid_steps(method):
    got = POOLS[method](X, MASK)
    assert got.dtype == np.float32
    chex.assert_trees_all_close(got, NUMPY_POOLS[method](X, MASK), atol=1e-6, rtol=0)
    np.testing.assert_array_equal(got[-1], np.zeros(D))


def test_attention_pool_scores_with_a_quarter_of_the_width():
    shapes = jax.tree.map(np.shape, POOL_PARAMS)
    assert shapes["hidden"] == {"kernel": (D, D // 4), "bias": (D // 4,)}
    assert shapes["score"] == {"kernel": (D // 4, 1), "bias": (1,)}


@pytest.mark.parametrize("method", POOLS)
def test_padded_steps_do_not_enter_the_pool(method):
    for filler in (1e30, np.inf, np.nan):
        changed = np.where(MASK[..., None], X, np.float32(filler))
        np.testing.assert_array_equal(POOLS[method](changed, MASK), POOLS[method](X, MASK))


def test_attention_pool_without_a_valid_step_has_finite_gradients():
    def total(params, x):
        return AttentionPool().apply({"params": params}, x, MASK).sum()

    gradient = jax.jit(jax.grad(total, (0, 1)))(POOL_PARAMS, X)
    chex.assert_tree_all_finite(gradient)
    np.testing.assert_array_equal(np.asarray(gradient[1])[~MASK], 0)


@pytest.mark.parametrize("method", POOLS)
def test_pooling_of_16_bit_sequences_is_float32(method):
    x = X.astype(np.float16)
    pooled = POOLS[method](x, MASK)
    assert pooled.dtype == np.float32
    chex.assert_trees_all_close(pooled, NUMPY_POOLS[method](x, MASK), atol=1e-6, rtol=0)


# --- the gate ---

NO_DROPOUT = ModelConfig(dropout_rate=0.0)
GATE_PARAMS = random_params(ModalityGate(NO_DROPOUT).init, POOLED, PRESENT, train=False)


@jax.jit
def gate(pooled, present):
    return ModalityGate(NO_DROPOUT).apply({"params": GATE_PARAMS}, pooled, present, train=False)


def test_gate_input_is_the_mean_over_the_present_modalities():
    weights = gate(POOLED, PRESENT)
    chex.assert_trees_all_close(
        weights, numpy_gate(GATE_PARAMS, POOLED, PRESENT), atol=1e-6, rtol=0
    )
    # What stands at an absent modality's place, zero or not, has no part in it.
    changed = np.where(PRESENT[..., None], POOLED, 7)
    np.testing.assert_array_equal(gate(changed, PRESENT), weights)
    # A mean that counted the absent ones as zeros would give other weights.
    zeros_counted = numpy_gate(
        GATE_PARAMS, np.where(PRESENT[..., None], POOLED, 0), np.ones_like(PRESENT)
    )[1, [0, 2]]
    assert np.abs(zeros_counted / zeros_counted.sum() - weights[1, [0, 2]]).max() > 1e-2


def test_an_absent_modality_weighs_exactly_0_and_the_others_sum_to_1():
    weights = np.asarray(gate(POOLED, PRESENT))
    chex.assert_shape(weights, (B, M))
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights == 0, ~PRESENT)
    np.testing.assert_allclose(weights.sum(1), [1, 1, 1, 1, 0], atol=1e-6)
    np.testing.assert_array_equal(weights[3], [0, 0, 1])


def test_gate_has_one_dropout_between_its_layers():
    # With a rate near 1 and biases of 0 nothing passes: every modality weighs the same.
    params = {
        "hidden": GATE_PARAMS["hidden"],
        "weights": {**GATE_PARAMS["weights"], "bias": np.zeros(M, np.float32)},
    }
    closed = ModalityGate(ModelConfig(dropout_rate=1 - 2**-20))
    shut = jax.jit(functools.partial(closed.apply, train=True))
    weights = shut({"params": params}, POOLED, PRESENT, rngs={"dropout": jax.random.key(0)})
    shares = PRESENT / np.maximum(PRESENT.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(weights, shares, atol=1e-6)


# --- the head ---


@functools.cache
def head(method="mean", missing="mask"):
    config = ModelConfig(model_dim=D, pooling_method=method, missing_modality=missing)
    module = AdaptiveHead(config, NAMES)
    params = random_params(module.init, SEQUENCES, MASKS, train=False)
    return jax.jit(functools.partial(module.apply, {"params": params}, train=False)), params


def numpy_head(params, masks, method, present):
    pool = {
        "mean": lambda m: numpy_mean_pool(SEQUENCES[m], masks[m]),
        "attention": lambda m: numpy_attention_pool(params[f"{m}_pool"], SEQUENCES[m], masks[m]),
    }[method]
    pooled = np.stack([pool(m) for m in NAMES], axis=1)
    weights = numpy_gate(params["gate"], pooled, present)
    return np.einsum("bm,bmd->bd", weights, pooled), weights


@pytest.mark.parametrize("missing", ["mask", "reference"])
@pytest.mark.parametrize("method", ["mean", "attention"])
def test_head_is_the_weighted_sum_of_the_pooled_modalities(method, missing):
    apply, params = head(method, missing)
    got = apply(SEQUENCES, MASKS)
    # The literal formula counts every modality; a zero vector takes part in mean and softmax.
    present = PRESENT if missing == "mask" else np.ones_like(PRESENT)
    chex.assert_trees_all_close(got, numpy_head(params, MASKS, method, present), atol=2e-6, rtol=0)
    np.testing.assert_array_equal(np.asarray(got[1]) == 0, ~present)
    np.testing.assert_array_equal(got[0][-1], np.zeros(D))
