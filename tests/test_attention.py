"""Masks and multi-head attention."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msajax.models.attention import MultiHeadAttention, as_keep_mask, causal_mask

B, H, HEAD, D, WIDTH, T, S = 3, 2, 5, 8, 6, 4, 4  # D != H * HEAD, so that no axis is mistaken
RNG = np.random.default_rng(0)
PARAMS = {
    name: {"kernel": RNG.normal(size=(width, H, HEAD)) / 2, "bias": RNG.normal(size=(H, HEAD))}
    for name, width in (("query", D), ("key", WIDTH), ("value", WIDTH))
}
PARAMS["out"] = {"kernel": RNG.normal(size=(H, HEAD, D)) / 2, "bias": RNG.normal(size=D)}
PARAMS = jax.tree.map(np.float32, PARAMS)
QUERY = RNG.normal(size=(B, T, D)).astype(np.float32)
CONTEXT = RNG.normal(size=(B, S, WIDTH)).astype(np.float32)
# Leading padding, a hole, everything valid.
VALID = np.array([[0, 0, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1]], bool)
ADDITIVE = np.where(np.tri(T, S, 1), 0, -np.inf).astype(np.float32)  # one step ahead is seen


def module(dtype="float32", rate=0.0):
    return MultiHeadAttention(H, HEAD, rate, jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnames="dtype")
def attend(params, query, context, masks, dtype="float32"):
    return module(dtype).apply({"params": params}, query, context, masks, train=False)


@functools.partial(jax.jit, static_argnames="dtype")
def gradients(params, query, context, masks, dtype="float32"):
    def loss(*arguments):
        out = module(dtype).apply({"params": arguments[0]}, *arguments[1:], masks, train=False)
        return jnp.square(out.astype(jnp.float32)).sum()

    return jax.grad(loss, (0, 1, 2))(params, query, context)


def numpy_attention(params, query, context, keep):
    """One query, head and key at a time in float64; `keep` is `[B, H, Tq, Tk]`."""
    p = jax.tree.map(np.float64, params)
    out = np.zeros((*query.shape[:2], D))
    for b, t in np.ndindex(*query.shape[:2]):
        if not keep[b, :, t].any():
            continue
        out[b, t] = p["out"]["bias"]
        for h in range(H):
            seen = context[b, keep[b, h, t]].astype(np.float64)
            if not len(seen):
                continue
            q = query[b, t] @ p["query"]["kernel"][:, h] + p["query"]["bias"][h]
            k = seen @ p["key"]["kernel"][:, h] + p["key"]["bias"][h]
            v = seen @ p["value"]["kernel"][:, h] + p["value"]["bias"][h]
            weight = np.exp(k @ q / np.sqrt(HEAD))
            out[b, t] += (weight / weight.sum()) @ v @ p["out"]["kernel"][h]
    return out


def full(keep):
    return np.broadcast_to(keep, (B, H, T, S))


def assert_attends_as(masks, keep):
    got = attend(PARAMS, QUERY, CONTEXT, masks)
    expected = numpy_attention(PARAMS, QUERY, CONTEXT, full(keep))
    chex.assert_trees_all_close(got, expected, atol=5e-6, rtol=0)


# --- masks ---

PER_STEP = np.random.default_rng(1).random((B, T, S)) < 0.6
PER_HEAD = np.random.default_rng(2).random((B, H, T, S)) < 0.6
INFINITE = np.where(PER_STEP, 0, -np.inf).astype(np.float32)
FORMS = {
    "no mask": ((), True),
    "keys": ((VALID,), VALID[:, None, None]),
    "steps": ((PER_STEP,), PER_STEP[:, None]),
    "steps, shared": ((PER_STEP[:1],), PER_STEP[:1, None]),
    "heads": ((PER_HEAD,), PER_HEAD),
    "heads, shared": ((PER_HEAD[:1],), PER_HEAD[:1]),
    "four axes": ((PER_HEAD[:, :1],), PER_HEAD[:, :1]),
    "additive": ((INFINITE,), PER_STEP[:, None]),
    "additive, batch of one": ((INFINITE[:1],), PER_STEP[:1, None]),
    "additive, (T, T)": ((ADDITIVE,), ADDITIVE == 0),
    "additive, finite": ((np.where(PER_STEP, 0, -1e9).astype(np.float32),), PER_STEP[:, None]),
    "additive, bfloat16": ((jnp.asarray(INFINITE, jnp.bfloat16),), PER_STEP[:, None]),
    "additive, float16": ((jnp.asarray(INFINITE, jnp.float16),), PER_STEP[:, None]),
    "causal": ((causal_mask(T),), np.tri(T, dtype=bool)),
    "all combined": (
        (VALID, causal_mask(T), INFINITE, ADDITIVE, PER_HEAD),
        VALID[:, None, None] & np.tri(T, dtype=bool) & PER_STEP[:, None] & PER_HEAD,
    ),
}


@pytest.mark.parametrize(("masks", "keep"), FORMS.values(), ids=FORMS)
def test_every_accepted_mask_attends_as_the_boolean_one_it_stands_for(masks, keep):
    for mask in masks:
        chex.assert_type(as_keep_mask(mask, batch=B, queries=T, keys=S), bool)
    assert_attends_as(masks, keep)
    # The equivalent boolean mask, given as such.
    given, plain = attend(PARAMS, QUERY, CONTEXT, masks), full(keep)
    chex.assert_trees_all_close(
        given, attend(PARAMS, QUERY, CONTEXT, (plain,)), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(
    "mask",
    [
        np.ones((B, S), np.int32),
        np.ones((B, S), np.complex64),
        np.ones(S, bool),
        np.ones((B, S + 1), bool),
        np.ones((B + 1, S), bool),
        np.ones((T + 1, S), bool),
        np.ones((B, T + 1, S), bool),
        np.ones((B, S, T + 1), bool),
        np.ones((2, T, S), bool),
        np.ones((2, H, T, S), bool),
        np.ones((B, H, T, 1), bool),
        np.ones((1, B, H, T, S), bool),
        np.zeros((B, S), np.float32),  # additive per key is no form: it would pass for (T, T)
        np.zeros((T, S + 1), np.float32),
        np.zeros((2, T, S), np.float32),
        np.zeros((B, H, T, S), np.float32),
        np.zeros((), np.float32),
    ],
    ids=lambda mask: f"{mask.dtype}{list(mask.shape)}",
)
def test_other_masks_are_refused_with_the_sizes(mask):
    with pytest.raises(ValueError) as error:
        as_keep_mask(mask, batch=B, queries=T, keys=S)
    for part in (mask.dtype, mask.shape, f"batch {B}", f"{T} queries", f"{S} keys"):
        assert str(part) in str(error.value)


def test_a_mask_of_another_number_of_heads_is_refused():
    with pytest.raises(ValueError):
        attend(PARAMS, QUERY, CONTEXT, (np.ones((B, H + 1, T, S), bool),))


def test_under_a_causal_mask_a_step_does_not_move_the_ones_before_it():
    before = np.asarray(attend(PARAMS, QUERY, CONTEXT, FORMS["causal"][0]))
    changed = CONTEXT.copy()
    changed[:, 2] += 1
    after = np.asarray(attend(PARAMS, QUERY, changed, FORMS["causal"][0]))
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    assert np.abs(after[:, 2:] - before[:, 2:]).max(-1).min() > 1e-3


# --- attention ---


def test_masked_keys_do_not_reach_a_head_that_sees_nothing():
    keep = np.ones((B, H, T, S), bool)
    keep[:, 0] = False  # the other head makes these queries count
    assert_attends_as((keep,), keep)
    keep[:, 1, :, 1:] = False
    changed = CONTEXT.copy()
    changed[:, 1:] += 1
    np.testing.assert_array_equal(
        attend(PARAMS, QUERY, changed, (keep,)), attend(PARAMS, QUERY, CONTEXT, (keep,))
    )


def test_attention_takes_a_context_of_another_length():
    context, valid = CONTEXT[:, :3], VALID[:, :3]
    got = attend(PARAMS, QUERY, context, (valid,))
    keep = np.broadcast_to(valid[:, None, None], (B, H, T, 3))
    expected = numpy_attention(PARAMS, QUERY, context, keep)
    chex.assert_trees_all_close(got, expected, atol=5e-6, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_query_without_a_valid_key_gets_exactly_zero_and_finite_gradients(dtype):
    valid = VALID.copy()
    valid[1] = False
    out = attend(PARAMS, QUERY, CONTEXT, (valid,), dtype=dtype)
    assert out.dtype == dtype
    chex.assert_tree_all_finite(out)
    np.testing.assert_array_equal(out[1], np.zeros((T, D)))
    assert (np.asarray(out)[[0, 2]] != 0).all()
    d_params, d_query, d_context = gradients(PARAMS, QUERY, CONTEXT, (valid,), dtype=dtype)
    chex.assert_tree_all_finite((d_params, d_query, d_context))
    np.testing.assert_array_equal(d_query[1], np.zeros((T, D)))
    np.testing.assert_array_equal(np.asarray(d_context)[~valid], 0)
    assert (np.asarray(d_context)[valid] != 0).any()
    # With no valid key anywhere nothing is learned, not even a bias.
    nothing = gradients(PARAMS, QUERY, CONTEXT, (np.zeros_like(valid),), dtype=dtype)
    chex.assert_trees_all_equal(nothing, jax.tree.map(np.zeros_like, nothing))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_extreme_scores_stay_finite(dtype):
    query, context = 60 * QUERY, 8 * CONTEXT
    q = np.einsum("btd,dhe->bthe", query, PARAMS["query"]["kernel"])
    k = np.einsum("bsd,dhe->bshe", context, PARAMS["key"]["kernel"])
    assert np.abs(np.einsum("bthe,bshe->bhts", q, k)).max() > 500  # exp overflows from 89 on
    chex.assert_tree_all_finite(attend(PARAMS, query, context, (VALID,), dtype=dtype))
    chex.assert_tree_all_finite(gradients(PARAMS, query, context, (VALID,), dtype=dtype))


def test_dropout_is_on_the_probabilities():
    # A single key has probability 1: dropped, only the output bias is left; kept, it counts twice.
    context, keys = CONTEXT[:, :1], (VALID[:, 2:3],)
    value = np.einsum("bsd,dhe->bhe", context, PARAMS["value"]["kernel"])
    value += PARAMS["value"]["bias"]
    head = np.einsum("bhe,hed->bhd", value, PARAMS["out"]["kernel"])
    apply = jax.jit(functools.partial(module(rate=0.5).apply, train=True))
    rngs = {"dropout": jax.random.key(0)}
    out = apply({"params": PARAMS}, QUERY, context, keys, rngs=rngs)
    choices = np.stack(
        [2 * a * head[:, 0] + 2 * b * head[:, 1] for a in (0, 1) for b in (0, 1)]
    )  # [choice, batch, model_dim]
    distance = np.abs(out[None] - choices[:, :, None] - PARAMS["out"]["bias"]).max(-1)
    assert distance.min(0).max() < 5e-6
    assert len(np.unique(distance.argmin(0))) == 4  # every head and query draws its own
