"""Computes attention over long sequences: a part of its maps at a time, and none is kept.

Rabe and Staats, 2021, and Dao et al., 2022: of a map the backward pass needs each query's highest
score and sum alone, and makes the rest again. Parts are some samples, or some queries of one
sample, so that they stay in a cache: a step on a CPU takes half as long, and beside the masks it is
given memory grows with the length of sequences, not with its square. What is computed at a time has
at most 2^20 numbers on a CPU, 2^26 on an accelerator: few samples may be one part.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from msajax.layers.basic import Drops
from msajax.layers.linear import materialised
from msajax.layers.platform import is_for_cpu

# Elements of the maps that are computed at a time: what a processor's cache holds, and what makes
# kernels of an accelerator long.
_ELEMENTS_CPU, _ELEMENTS = 2**20, 2**26


# Elements of one head's map from which on it is worth computing it in parts.
_LONG = 128 * 128
_FREE = 64  # queries at a time, of all samples, where an exported program's length is free


def is_long(queries: int, keys: int) -> bool:
    """Says whether so many queries and keys make attention long, as a free length may."""
    return not isinstance(queries * keys, int) or queries * keys >= _LONG


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    keeps: Sequence[jax.Array],
    bias: jax.Array | None = None,
    drops: Drops | None = None,
) -> jax.Array:
    """Weighs values by the softmax of `q k + bias`: `[B, H, Tq, dv]`, float32.

    Args:
        q: queries `[B, H, Tq, dh]`, scaled.
        k: keys `[B, H, Tk, dh]`.
        v: values `[B, H, Tk, dv]`.
        keeps: the keys that a query may see, as several masks say that all must allow it, each bool
            `[B or 1, Tq or 1, Tk]`; a query that sees none gets 0. They meet part by part, so that
            a mask of keys and a causal one make none of `[B, Tq, Tk]`.
        bias: what is added to the scores of all heads, `[B or 1, Tq or 1, Tk]`; anything where a
            key may not be seen, finite elsewhere.
        drops: of the weights, after the softmax.
    """
    with jax.named_scope("maps"):
        precision = jax.config.jax_default_matmul_precision
        return _attend(q, k, v, tuple(keeps), bias, drops, precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(q, k, v, keeps, bias, drops, precision):
    return _attend_forward(q, k, v, keeps, bias, drops, precision)[0]


def _attend_forward(q, k, v, keeps, bias, drops, precision):
    found, sums = _by_rows(functools.partial(_forward, precision), drops, q, k, v, keeps, bias)
    return found, (q, k, v, keeps, bias, drops, sums)


def _attend_backward(precision, kept, gradient):
    q, k, v, keeps, bias, drops, sums = kept
    backward = functools.partial(_backward, precision)
    *of_inputs, of_bias = _by_rows(backward, drops, q, k, v, keeps, bias, sums, gradient)
    of_q, of_k, of_v = (g.astype(x.dtype) for g, x in zip(of_inputs, (q, k, v), strict=True))
    if bias is not None:
        of_bias = of_bias if _has_rows(bias, q.shape[0]) else of_bias.sum(0, keepdims=True)
        of_bias = of_bias.astype(bias.dtype)
    return of_q, of_k, of_v, None, of_bias, None


_attend.defvjp(_attend_forward, _attend_backward)


def _has_rows(x: jax.Array, batch: Any) -> bool:
    """Says whether an array has a row for each sample, not one that serves all."""
    return not (isinstance(x.shape[0], int) and x.shape[0] == 1 != batch)


def _most() -> int:
    return _ELEMENTS_CPU if is_for_cpu() else _ELEMENTS


def _by_rows(function: Callable, drops: Drops | None, *given: Any) -> Any:
    """Applies a function of a part's size and one row's drops and arrays to every row.

    A few rows at a time. Arrays of `given`, a tree, have a row for each sample, or one for all.
    """
    q, k = given[:2]
    batch, (heads, queries, _), keys = q.shape[0], q.shape[1:], k.shape[2]
    leaves, tree = jax.tree.flatten(given)
    own = [_has_rows(x, batch) for x in leaves]
    is_static = isinstance(batch * heads * queries * keys, int)
    # An exported program has a free number of rows, or free lengths.
    if is_static:
        size = math.ceil(queries / math.ceil(heads * queries * keys / _most()))
    else:
        size = min(queries, _FREE) if isinstance(queries, int) else _FREE

    def apply(row: tuple) -> Any:
        key, of_row = row
        of_row = iter(of_row)
        arrays = [next(of_row) if has else x[0] for x, has in zip(leaves, own, strict=True)]
        return function(size, drops and drops._replace(keys=key), *tree.unflatten(arrays))

    rows = drops and drops.keys, [x for x, has in zip(leaves, own, strict=True) if has]
    if not isinstance(batch, int):
        return jax.vmap(apply)(rows)
    most = max(_most() // (heads * queries * keys), 1) if is_static else 1
    if batch <= most:
        return jax.vmap(apply)(rows)
    together = next(n for n in range(most, 0, -1) if batch % n == 0)
    return lax.map(apply, rows, batch_size=None if together == 1 else together)


def _cut(x: jax.Array, queries: int, size: int, axis: int) -> jax.Array:
    """Puts blocks of queries first, the last one filled by 0; an axis of one serves all blocks."""
    blocks = (queries + size - 1) // size
    if x.shape[axis] == 1 != queries:
        return jnp.broadcast_to(x, (blocks, *x.shape))
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, blocks * size - queries)
    x = jnp.pad(x, padding)
    return jnp.moveaxis(x.reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :]), axis, 0)


def _joined(x: jax.Array, queries: int, axis: int) -> jax.Array:
    """Undoes `_cut`."""
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return lax.slice_in_dim(x, 0, queries, axis=axis)


def _forward(
    precision: Any,
    size: int,
    drops: Drops | None,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    keeps: Sequence[jax.Array],
    bias: jax.Array | None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Returns what one row's queries `[H, Tq, dh]` find; their highest scores, 1 by their sums."""
    queries, whole = q.shape[1], (*q.shape[:2], k.shape[1])

    def of_part(given: tuple) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        start, q, keeps, bias = given
        keep = functools.reduce(jnp.logical_and, keeps)
        scores = _scores(q, k, keep, bias, precision)
        highest = scores.max(-1, keepdims=True)
        weights = materialised(jnp.exp(scores - highest))  # [heads, queries, keys]
        scale = share = 1 / weights.sum(-1, keepdims=True)
        if drops is not None:
            stays = drops.block_stays(whole, start, size)
            weights, scale = jnp.where(stays, weights, 0), scale * drops.factor
        # The softmax of a row without a key is uniform: what it gathers means nothing.
        scale = jnp.where(keep.any(-1)[:, None], scale, 0)
        return _product(weights, v, 2, 1, precision) * scale, (highest, share)

    if size == queries:
        return of_part((0, q, keeps, bias))
    masks = jax.tree.map(lambda x: _cut(x, queries, size, 0), (keeps, bias))
    found = lax.map(of_part, (jnp.arange(0, queries, size), _cut(q, queries, size, 1), *masks))
    return jax.tree.map(lambda x: _joined(x, queries, 1), found)


def _scores(
    q: jax.Array, k: jax.Array, keep: jax.Array, bias: jax.Array | None, precision: Any
) -> jax.Array:
    scores = _product(q, k, 2, 2, precision)
    scores = scores if bias is None else scores + bias
    return materialised(jnp.where(keep, scores, jnp.finfo(jnp.float32).min))


def _backward(
    precision: Any,
    size: int,
    drops: Drops | None,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    keeps: Sequence[jax.Array],
    bias: jax.Array | None,
    sums: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Returns the gradients of one row's queries, keys, values and bias."""
    queries, whole = q.shape[1], (*q.shape[:2], k.shape[1])

    def of_part(given: tuple) -> tuple[jax.Array, ...]:
        start, q, (highest, share), gradient, keeps, bias = given
        keep = functools.reduce(jnp.logical_and, keeps)
        of_weights = materialised(_product(gradient, v, 2, 2, precision))
        scores = _scores(q, k, keep, bias, precision)
        # Not exp(scores - log(sum)): of large scores the logarithm's rounding would be the error.
        weights = jnp.exp(scores - highest) * share  # 0 of what fills the last part
        weights = materialised(jnp.where(keep, weights, 0))
        used = weights
        if drops is not None:
            stays = drops.block_stays(whole, start, size)
            used = materialised(jnp.where(stays, weights * drops.factor, 0))
        # A mean of the same products, so that a weight of 1 leaves a gradient of exactly 0.
        of_scores = used * of_weights
        mean = of_scores.sum(-1, keepdims=True)
        of_scores = materialised(of_scores - weights * mean)
        # Of the two orders of a product the one with the longer rows is faster.
        of_k = _product(q, of_scores, 1, 1, precision)
        of_v = _product(gradient, used, 1, 1, precision)
        of_bias = None
        if bias is not None:
            of_bias = of_scores.sum(0)
            of_bias = of_bias.sum(0, keepdims=True) if bias.shape[0] == 1 else of_bias
        return _product(of_scores, k, 2, 1, precision), of_k, of_v, of_bias

    if size == queries:
        of_q, of_k, of_v, of_bias = of_part((0, q, sums, gradient, keeps, bias))
    else:
        of_queries = jax.tree.map(lambda x: _cut(x, queries, size, 1), (q, sums, gradient))
        masks = jax.tree.map(lambda x: _cut(x, queries, size, 0), (keeps, bias))

        def add(so_far: tuple, given: tuple) -> tuple[tuple, tuple]:
            of_q, *of_others, of_bias = of_part(given)
            return tuple(map(jnp.add, so_far, of_others)), (of_q, of_bias)

        zeros = tuple(jnp.zeros((x.shape[0], x.shape[2], x.shape[1])) for x in (k, v))
        given = jnp.arange(0, queries, size), *of_queries, *masks
        (of_k, of_v), (of_q, of_bias) = lax.scan(add, zeros, given)
        of_q = _joined(of_q, queries, 1)
        if bias is not None:
            is_shared = bias.shape[0] == 1
            of_bias = of_bias.sum(0) if is_shared else _joined(of_bias, queries, 0)
    of_k, of_v = (jnp.swapaxes(x, 1, 2) for x in materialised((of_k, of_v)))
    return of_q, of_k, of_v, of_bias


def _product(a: jax.Array, b: jax.Array, axis: int, other: int, precision: Any) -> jax.Array:
    return lax.dot_general(
        a.astype(b.dtype),
        b,
        (((axis,), (other,)), ((0,), (0,))),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
