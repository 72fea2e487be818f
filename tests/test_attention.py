"""Masks and multi-head attention."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from msajax.layers.attention import MultiHeadAttention, causal_mask, combine_masks

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
ONE_AHEAD = np.tri(T, S, 1, bool)


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


def numpy_attention(params, query, context, keep, added):
    """One query and head at a time in float64; `keep` and `added` are `[B, Tq, Tk]`."""
    p = jax.tree.map(np.float64, params)
    out = np.zeros((*query.shape[:2], D))
    for b, t in np.ndindex(*query.shape[:2]):
        seen = context[b, keep[b, t]].astype(np.float64)
        if not len(seen):
            continue
        out[b, t] = p["out"]["bias"]
        for h in range(H):
            q = query[b, t] @ p["query"]["kernel"][:, h] + p["query"]["bias"][h]
            k = seen @ p["key"]["kernel"][:, h] + p["key"]["bias"][h]
            v = seen @ p["value"]["kernel"][:, h] + p["value"]["bias"][h]
            weight = scipy.special.softmax(k @ q / np.sqrt(HEAD) + added[b, t, keep[b, t]])
            out[b, t] += weight @ v @ p["out"]["kernel"][h]
    return out


def assert_attends_as(masks, keep, added=0.0, context=CONTEXT):
    got = attend(PARAMS, QUERY, context, masks)
    keep, added = (np.broadcast_to(x, (B, T, context.shape[1])) for x in (keep, added))
    expected = numpy_attention(PARAMS, QUERY, context, keep, added)
    chex.assert_trees_all_close(got, expected, atol=5e-6, rtol=0)


# --- masks ---

PER_STEP = np.random.default_rng(1).random((B, T, S)) < 0.6
PER_STEP[0, 2] = False  # a query without a key


def additive(keep, dtype="float32", hidden=-np.inf):
    return jnp.asarray(np.where(keep, 0, hidden), dtype)


FORMS = {
    "no mask": ((), True),
    "keys": ((VALID,), VALID[:, None]),
    "steps": ((PER_STEP,), PER_STEP),
    "steps, shared": ((PER_STEP[:1],), PER_STEP[:1]),
    "additive": ((additive(PER_STEP),), PER_STEP),
    "additive, batch of one": ((additive(PER_STEP[:1]),), PER_STEP[:1]),
    "additive, (T, T)": ((additive(ONE_AHEAD),), ONE_AHEAD),
    "additive, finite": ((additive(PER_STEP, hidden=-1e9),), PER_STEP),
    "additive, bfloat16": ((additive(PER_STEP, "bfloat16"),), PER_STEP),
    "additive, bfloat16, finite": ((additive(PER_STEP, "bfloat16", -1e9),), PER_STEP),
    "additive, float16": ((additive(PER_STEP, "float16"),), PER_STEP),
    "additive, float16, finite": ((additive(PER_STEP, "float16", -65504),), PER_STEP),
    "causal": ((causal_mask(T),), np.tri(T, dtype=bool)),
    "all combined": (
        (VALID, causal_mask(T), PER_STEP, additive(PER_STEP[::-1]), additive(ONE_AHEAD)),
        VALID[:, None] & np.tri(T, dtype=bool) & PER_STEP & PER_STEP[::-1],
    ),
}


@pytest.mark.parametrize(("masks", "keep"), FORMS.values(), ids=FORMS)
def test_every_accepted_mask_attends_as_the_boolean_one_it_stands_for(masks, keep):
    assert_attends_as(masks, keep)
    plain = (np.broadcast_to(keep, (B, T, S)),)
    for dtype in ("float32", "bfloat16"):
        given, expected = (attend(PARAMS, QUERY, CONTEXT, m, dtype=dtype) for m in (masks, plain))
        np.testing.assert_array_equal(given, expected)


# The largest number that hides in each type, and the next one above it, which is added.
EDGES = {"float32": (-1e9, -999_999_936), "bfloat16": (-998_244_352, -994_050_048)}
EDGES["float16"] = (-65504, -65472)


@pytest.mark.parametrize("dtype", EDGES)
def test_a_number_hides_from_a_billion_below_zero_on_or_at_the_end_of_its_type(dtype):
    lowest, (hides, added) = float(jnp.finfo(dtype).min), EDGES[dtype]
    row = jnp.asarray([-np.inf, lowest, hides, added, -10_000, 0, 7], dtype)
    keep, bias = combine_masks((jnp.tile(row, (2, 1)),), batch=B, queries=2, keys=7)
    np.testing.assert_array_equal(keep[0, 0, 1], [False, False, False, True, True, True, True])
    np.testing.assert_array_equal(bias[0, 0, 1], [0, 0, 0, added, np.float32(row[4]), 0, 7])
    chex.assert_type(bias, jnp.float32)


@pytest.mark.parametrize("dtype", EDGES)
def test_other_numbers_are_added_to_the_scores(dtype):
    one, other = (jnp.asarray(2 * RNG.normal(size=(B, T, S)), dtype) for _ in range(2))
    other = other[0].at[1, 3].set(-10_000).at[2, 3].set(-np.inf)
    added = np.float64(one) + np.float64(other)
    assert_attends_as((VALID, one, other), VALID[:, None] & np.isfinite(added), added)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_in_a_mask_at_a_hidden_key_reaches_neither_outputs_nor_gradients(dtype):
    added = RNG.normal(size=(B, T, S)).astype(np.float32)

    @jax.jit
    def run(*arguments):
        def loss(mask, params, query, context):
            masks = VALID, mask
            out = module(dtype).apply({"params": params}, query, context, masks, train=False)
            return jnp.square(out.astype(jnp.float32)).sum(), out

        return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*arguments)

    usual = run(added, PARAMS, QUERY, CONTEXT)
    chex.assert_tree_all_finite(usual)
    assert np.abs(usual[1][0]).max() > 0  # a mask can be learned
    dirty = np.where(VALID[:, None], added, np.nan)
    chex.assert_trees_all_equal(run(dirty, PARAMS, QUERY, CONTEXT), usual)


def test_other_masks_are_refused_with_the_sizes():
    of_other_shapes = {
        bool: (S, (B, S + 1), (B + 1, S), (T + 1, S), (B, T + 1, S), (B, S, T + 1), (2, T, S),
               (B, 1, T, S)),
        # Additive per key is no form: it would pass for (T, T).
        np.float32: ((B, S), (T, S + 1), (2, T, S), (B, 1, T, S), ()),
        np.int32: ((B, S),),
        np.complex64: ((B, S),),
    }
    for dtype, shapes in of_other_shapes.items():
        for mask in (np.zeros(shape, dtype) for shape in shapes):
            with pytest.raises(ValueError) as error:
                combine_masks((mask,), batch=B, queries=T, keys=S)
            for part in (mask.dtype, mask.shape, f"batch {B}", f"{T} queries", f"{S} keys"):
                assert str(part) in str(error.value)


# --- attention ---


def test_attention_takes_a_context_of_another_length():
    context, valid = CONTEXT[:, :3], VALID[:, :3]
    assert_attends_as((valid,), valid[:, None], context=context)


@pytest.mark.parametrize(
    ("dtype", "hidden_by"),
    [("float32", "keys"), ("float32", "additive"), ("bfloat16", "keys"), ("float16", "additive")],
)
def test_a_query_without_a_valid_key_gets_exactly_zero_and_finite_gradients(dtype, hidden_by):
    def masks_of(valid):
        if hidden_by == "keys":
            return (valid,)
        return (additive(np.broadcast_to(valid[:, None], (B, T, S)), dtype),)

    valid = VALID.copy()
    valid[1] = False
    out = attend(PARAMS, QUERY, CONTEXT, masks_of(valid), dtype=dtype)
    assert out.dtype == dtype
    chex.assert_tree_all_finite(out)
    np.testing.assert_array_equal(out[1], np.zeros((T, D)))
    assert (np.asarray(out)[[0, 2]] != 0).all()
    d_params, d_query, d_context = gradients(PARAMS, QUERY, CONTEXT, masks_of(valid), dtype=dtype)
    chex.assert_tree_all_finite((d_params, d_query, d_context))
    np.testing.assert_array_equal(d_query[1], np.zeros((T, D)))
    np.testing.assert_array_equal(np.asarray(d_context)[~valid], 0)
    assert (np.asarray(d_context)[valid] != 0).any()
    # With no valid key anywhere nothing is learned, not even a bias.
    nothing = masks_of(np.zeros_like(valid))
    nothing = gradients(PARAMS, QUERY, CONTEXT, nothing, dtype=dtype)
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
