"""Dropout, LayerNorm and the feed-forward network."""

import functools
import itertools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msajax.layers.basic import Dropout, LayerNorm
from msajax.layers.prng import COUNTER_HASH

KEY = jax.random.key(0, impl=COUNTER_HASH)


@functools.partial(jax.jit, static_argnames=("rate", "train"))
def drop(x, key, *, rate, train=True):
    return Dropout(rate).apply({}, x, train=train, rngs={"dropout": key})


def keep_mask(key, shape, rate):
    return np.asarray(drop(jnp.ones(shape), key, rate=rate)) != 0


def correlation_z(a, b):
    """The correlation of two masks in standard deviations of what independence gives."""
    return np.corrcoef(a.ravel(), b.ravel())[0, 1] * np.sqrt(a.size)


# --- dropout ---


def test_dropout_of_a_row_depends_on_its_position_only():
    mask = keep_mask(KEY, (4, 16, 16), 0.3)
    np.testing.assert_array_equal(mask[:2], keep_mask(KEY, (2, 16, 16), 0.3))
    x = np.random.default_rng(0).normal(size=(4, 16, 16)).astype(np.float32)
    np.testing.assert_array_equal(drop(x, KEY, rate=0.3) != 0, mask)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_dropout_keeps_its_rate_and_the_mean(rate):
    dropped = np.asarray(drop(jnp.ones((16, 64, 64)), KEY, rate=rate))
    values = np.unique(dropped)
    np.testing.assert_allclose(values, [0, 1 / (1 - rate)], rtol=1e-6)
    sigma = np.sqrt(rate * (1 - rate) / dropped.size)
    assert abs((dropped != 0).mean() - (1 - rate)) < 4 * sigma
    assert abs(dropped.mean() - 1) < 4 * sigma / (1 - rate)


def test_dropout_masks_of_rows_and_steps_are_uncorrelated():
    rows = keep_mask(KEY, (32, 32, 32), 0.3)
    assert max(abs(correlation_z(a, b)) for a, b in itertools.combinations(rows, 2)) < 5
    steps = [keep_mask(jax.random.fold_in(KEY, i), (32, 32, 32), 0.3) for i in range(4)]
    assert max(abs(correlation_z(a, b)) for a, b in itertools.combinations(steps, 2)) < 4


def test_dropout_masks_of_two_sites_are_uncorrelated():
    class Sites(nn.Module):
        @nn.compact
        def __call__(self, x):
            again = Dropout(0.3)
            return [Dropout(0.3)(x, train=True), again(x, train=True), again(x, train=True)]

    sites = jax.jit(Sites().apply)({}, jnp.ones((8, 32, 32)), rngs={"dropout": KEY})
    masks = [np.asarray(site) != 0 for site in sites]
    assert max(abs(correlation_z(a, b)) for a, b in itertools.combinations(masks, 2)) < 4


@pytest.mark.parametrize("setting", [{"rate": 0.0}, {"rate": 0.5, "train": False}])
def test_dropout_that_is_off_is_the_identity_and_needs_no_key(setting):
    x = jnp.arange(6.0).reshape(2, 3)
    dropped = Dropout(setting["rate"]).apply({}, x, train=setting.get("train", True))
    np.testing.assert_array_equal(dropped, x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dropout_keeps_a_16_bit_type_and_draws_the_same_mask(dtype):
    dropped = drop(jnp.ones((4, 16, 16), dtype), KEY, rate=0.3)
    assert dropped.dtype == dtype
    np.testing.assert_array_equal(np.asarray(dropped) != 0, keep_mask(KEY, (4, 16, 16), 0.3))


# --- LayerNorm ---


@functools.partial(jax.jit, static_argnames=("eps", "dtype"))
def layer_norm(params, x, *, eps, dtype="float32"):
    return LayerNorm(eps, jnp.dtype(dtype)).apply({"params": params}, x)


def test_layer_norm_of_a_constant_row_is_its_bias_with_finite_gradients():
    params = {"scale": np.full(4, 2.0, np.float32), "bias": np.arange(4, dtype=np.float32)}
    x = np.full((1, 4), 3.0, np.float32)
    np.testing.assert_array_equal(layer_norm(params, x, eps=1e-6)[0], params["bias"])
    gradients = jax.grad(lambda *a: layer_norm(*a, eps=1e-6).sum(), (0, 1))(params, x)
    chex.assert_tree_all_finite(gradients)
