"""Attention in parts: the same as with whole maps, at every size of a part."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from msajax.layers import attention, long_attention
from msajax.layers.basic import Drops
from msajax.layers.prng import COUNTER_HASH

BATCH, HEADS, QUERIES, KEYS = 6, 2, 5, 7


def with_maps(q, k, v, keeps, bias, drops):
    """The textbook's, of which a query without a key finds 0."""
    keep = functools.reduce(np.logical_and, keeps)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) + (0 if bias is None else bias[:, None])
    weights = jax.nn.softmax(jnp.where(keep[:, None], scores, -1e30), axis=-1)
    weights = weights if drops is None else drops(weights)
    found = jnp.einsum("bhqk,bhkd->bhqd", weights, v)
    return jnp.where(keep.any(-1)[:, None, :, None], found, 0)


@pytest.mark.parametrize("dropping", [None, "threefry2x32", COUNTER_HASH])
@pytest.mark.parametrize("shared", [False, True])  # a bias of all samples and queries
@pytest.mark.parametrize("elements", [4 * KEYS, HEADS * 2 * KEYS, 70, 140, 1000])
def test_values_and_gradients_are_those_of_attention_with_maps(
    dropping, shared, elements, monkeypatch
):
    monkeypatch.setattr(long_attention, "_ELEMENTS_CPU", elements)
    rng = np.random.default_rng(0)
    sizes = ((QUERIES, 3), (KEYS, 3), (KEYS, 4), (QUERIES, 4))
    *inputs, weight = (rng.normal(size=(BATCH, HEADS, *size)).astype("f4") for size in sizes)
    bias = rng.normal(size=(1, 1, KEYS) if shared else (BATCH, QUERIES, KEYS)).astype("f4")
    keep = rng.uniform(size=(BATCH, QUERIES, KEYS)) > 0.4
    keep[2, 1], keep[3] = False, False
    drops = None
    if dropping:
        key = jax.random.key(0, impl=dropping)
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(BATCH))
        drops = Drops(keys, jnp.uint32(2**30), jnp.float32(4 / 3))

    def outcome(attend):
        def loss(*inputs):
            *qkv, bias = inputs
            found = attend(*qkv, [keep], bias, drops)
            return (found * weight).sum(), found

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(*inputs, bias)

    (_, found), gradients = outcome(long_attention.attend)
    (_, expected), wanted = outcome(with_maps)
    for here, there in zip((found, *gradients), (expected, *wanted), strict=True):
        np.testing.assert_allclose(here, there, rtol=2e-6, atol=2e-6)
    assert not found[3].any() and not found[2, :, 1].any() and found[2, :, 0].any()


def test_one_mask_of_keys_serves_all_queries():
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(2, 1, length, 3)).astype("f4") for length in (4, 5, 5))
    keep = np.array([[True, False, True, True, False], [False] * 5])[:, None]
    found = long_attention.attend(q, k, v, [keep])
    np.testing.assert_allclose(found, with_maps(q, k, v, [keep], None, None), rtol=1e-5, atol=1e-6)


def test_an_exported_program_of_free_lengths_makes_no_whole_map():
    batch, queries, keys = jax.export.symbolic_shape("batch, queries, keys")
    shapes = [(batch, 2, n, 3) for n in (queries, keys, keys)]
    given = [jax.ShapeDtypeStruct(shape, "f4") for shape in shapes]
    given.append([jax.ShapeDtypeStruct((batch, 1, keys), bool)])
    assert long_attention.is_long(queries, keys)
    program = jax.export.export(jax.jit(long_attention.attend))(*given)
    assert "tensor<?x2x?x?xf32>" not in program.mlir_module()
    rng = np.random.default_rng(2)
    for batch, queries, keys in ((1, 1, 1), (3, 64, 20), (2, 150, 130)):
        q, k, v = (rng.normal(size=(batch, 2, n, 3)).astype("f4") for n in (queries, keys, keys))
        keep = rng.uniform(size=(batch, 1, keys)) > 0.3
        found = program.call(q, k, v, [keep])
        expected = with_maps(q, k, v, [keep], None, None)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_exported_program_of_free_rows_makes_no_whole_map():
    (batch,) = jax.export.symbolic_shape("batch")
    given = [jax.ShapeDtypeStruct((batch, 2, n, 3), "f4") for n in (150, 130, 130)]
    given.append([jax.ShapeDtypeStruct((batch, 1, 130), bool)])
    program = jax.export.export(jax.jit(long_attention.attend))(*given)
    assert "tensor<?x2x64x130xf32>" in program.mlir_module()
    assert "x150x130x" not in program.mlir_module()


def test_large_scores_have_the_gradients_of_whole_maps(monkeypatch):
    monkeypatch.setattr(long_attention, "_ELEMENTS_CPU", 2 * 3 * KEYS)
    rng = np.random.default_rng(3)
    sizes = ((QUERIES, 3), (KEYS, 3), (KEYS, 20), (QUERIES, 20))
    q, k, v, weight = (rng.normal(size=(BATCH, HEADS, *size)).astype("f4") for size in sizes)
    keep = rng.uniform(size=(BATCH, 1, KEYS)) > 0.3
    low = np.full((1, QUERIES, KEYS), -1e4, np.float32)

    def gradients(attend, *given):
        def loss(*given):
            *qkv, bias = given
            return (attend(*qkv, [keep], bias, None) * weight).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*given)

    for scale, bias in ((1, low), (10, 0 * low), (100, 0 * low)):
        given = np.float32(scale) * q, np.float32(scale) * k, v, bias
        here, there = (gradients(f, *given) for f in (long_attention.attend, with_maps))
        for found, expected in zip(here, there, strict=True):
            most = max(1, np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale * most)
    # A softmax that is all at one key has no gradient, and none that rounding left.
    assert all((np.asarray(here[i])[np.asarray(there[i]) == 0] == 0).all() for i in range(4))


def test_masks_of_keys_and_causality_meet_part_by_part(monkeypatch):
    monkeypatch.setattr(long_attention, "_ELEMENTS_CPU", HEADS * 2 * KEYS)
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(BATCH, HEADS, KEYS, 3)).astype("f4") for _ in range(3))
    keeps = [rng.uniform(size=(BATCH, 1, KEYS)) > 0.4, np.tril(np.ones((1, KEYS, KEYS), bool))]
    found = long_attention.attend(q, k, v, keeps)
    np.testing.assert_allclose(found, with_maps(q, k, v, keeps, None, None), rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda q: long_attention.attend(q, k, v, keeps).sum())
    assert f"{BATCH},{KEYS},{KEYS}]" not in str(jax.make_jaxpr(gradient)(q))


@pytest.mark.parametrize("train", [False, True])
def test_a_layer_is_the_same_in_parts_with_the_same_dropout(train, monkeypatch):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 9, 8)).astype("f4")
    layer = attention.MultiHeadAttention(2, 4, 0.4, jnp.float32, value_dim=3)
    masks = (
        jnp.asarray(rng.uniform(size=(3, 9)) > 0.3), attention.causal_mask(9),
        jnp.asarray(rng.normal(size=(9, 9)).astype("f4")),
    )  # fmt: skip
    rngs = {"dropout": jax.random.key(1, impl=COUNTER_HASH)}
    params = layer.init(jax.random.key(0), x, x, masks, train=False)

    def outcome():
        def loss(params, x):
            return jnp.square(layer.apply(params, x, x, masks, train=train, rngs=rngs)).sum()

        return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, x)

    whole = outcome()
    monkeypatch.setattr(long_attention, "_LONG", 1)
    monkeypatch.setattr(long_attention, "_ELEMENTS_CPU", 40)
    for here, there in zip(*map(jax.tree.leaves, (outcome(), whole)), strict=True):
        np.testing.assert_allclose(here, there, rtol=5e-6, atol=5e-6)
    # Whoever asks for maps gets whole ones, at any length.
    _, kept = layer.apply(params, x, x, masks, train=False, mutable="intermediates")
    assert kept["intermediates"]["attention"][0].shape == (3, 2, 9, 9)
    text = str(jax.make_jaxpr(lambda x: layer.apply(params, x, x, masks, train=False))(x))
    assert "scan" in text and "f32[3,2,9,9]" not in text
    with attention.keeping_maps():
        text = str(jax.make_jaxpr(lambda x: layer.apply(params, x, x, masks, train=False))(x))
    assert "f32[3,2,9,9]" in text
