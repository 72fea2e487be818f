"""Attention whose maps are made again for their gradients: the same as with maps that are kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msajax.layers import long_attention
from msajax.layers.basic import Drops

BATCH, HEADS, QUERIES, KEYS = 6, 2, 5, 7


def with_maps(q, k, v, keep, drops):
    """The textbook's, of which a query without a key finds 0."""
    scores = jnp.where(keep[:, None], jnp.einsum("bhqd,bhkd->bhqk", q, k), -1e30)
    weights = jax.nn.softmax(scores, axis=-1)
    weights = weights if drops is None else drops(weights)
    found = jnp.einsum("bhqk,bhkd->bhqd", weights, v)
    return jnp.where(keep.any(-1)[:, None, :, None], found, 0)


@pytest.mark.parametrize("dropping", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 6])  # at a time
def test_values_and_gradients_are_those_of_attention_with_maps(dropping, rows, monkeypatch):
    monkeypatch.setattr(long_attention, "_ELEMENTS_CPU", rows * HEADS * QUERIES * KEYS)
    rng = np.random.default_rng(0)
    sizes = ((QUERIES, 3), (KEYS, 3), (KEYS, 4), (QUERIES, 4))
    *inputs, weight = (
        rng.normal(size=(BATCH, HEADS, *size)).astype("f4") for size in sizes
    )  # fmt: skip
    keep = rng.uniform(size=(BATCH, QUERIES, KEYS)) > 0.4
    keep[2, 1], keep[3] = False, False
    keys = jax.vmap(jax.random.key)(jnp.arange(BATCH))
    drops = Drops(keys, jnp.uint32(2**30), jnp.float32(4 / 3)) if dropping else None

    def outcome(attend):
        def loss(*inputs):
            found = attend(*inputs, keep, drops)
            return (found * weight).sum(), found

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)

    (_, found), gradients = outcome(long_attention.attend)
    (_, expected), wanted = outcome(with_maps)
    for here, there in zip((found, *gradients), (expected, *wanted), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=2e-6)
    assert not found[3].any() and not found[2, :, 1].any() and found[2, :, 0].any()


def test_one_mask_of_keys_serves_all_queries():
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(2, 1, length, 3)).astype("f4") for length in (4, 5, 5))
    keep = np.array([[True, False, True, True, False], [False] * 5])[:, None]
    found = long_attention.attend(q, k, v, keep)
    np.testing.assert_allclose(found, with_maps(q, k, v, keep, None), rtol=1e-5, atol=1e-6)
