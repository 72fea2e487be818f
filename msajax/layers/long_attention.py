"""Computes attention over long sequences: a part of its maps at a time, and none is kept.

Rabe and Staats, 2021, and Dao et al., 2022: of a map the backward pass needs the logarithm of each
query's sum alone, and makes the rest again. Parts are some samples, or some queries of one sample,
so that they stay in a cache: a step on a CPU takes half as long, and memory grows with the length
of sequences, not with its square.
"""

import functools
import math
from collections.abc import Callable
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
    keep: jax.Array,
    bias: jax.Array | None = None,
    drops: Drops | None = None,
) -> jax.Array:
    """Weighs values by the softmax of `q k + bias`: `[B, H, Tq, dv]`, float32.

    Args:
        q: queries `[B, H, Tq, dh]`, scaled.
        k: keys `[B, H, Tk, dh]`.
        v: values `[B, H, Tk, dv]`.
        keep: the keys that a query may see, bool `[B or 1, Tq or 1, Tk]`; a query that sees none
            gets 0.
        bias: what is added to the scores of all heads, `[B or 1, Tq or 1, Tk]`.
        drops: of the weights, after the softmax.
    """
    batch = q.shape[0]
    seen = keep.any(-1)[:, None, :, None]
    given = [x if x is None else jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in (keep, bias)]
    with jax.named_scope("maps"):
        found = _attend(q, k, v, *given, drops, jax.config.jax_default_matmul_precision)
    # The softmax of a row without a key is uniform: what it gathers means nothing.
    return jnp.where(seen, found, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(q, k, v, keep, bias, drops, precision):
    return _attend_forward(q, k, v, keep, bias, drops, precision)[0]


def _attend_forward(q, k, v, keep, bias, drops, precision):
    found, log_sums = _by_rows(functools.partial(_forward, precision), drops, q, k, v, keep, bias)
    return found, (q, k, v, keep, bias, drops, found, log_sums)


def _attend_backward(precision, kept, gradient):
    q, k, v, keep, bias, drops, found, log_sums = kept
    backward = functools.partial(_backward, precision)
    *of_inputs, of_bias = _by_rows(backward, drops, q, k, v, keep, bias, found, log_sums, gradient)
    of_q, of_k, of_v = (g.astype(x.dtype) for g, x in zip(of_inputs, (q, k, v), strict=True))
    return of_q, of_k, of_v, None, of_bias, None


_attend.defvjp(_attend_forward, _attend_backward)


def _most() -> int:
    return _ELEMENTS_CPU if is_for_cpu() else _ELEMENTS


def _by_rows(function: Callable, drops: Drops | None, *arrays: jax.Array | None) -> Any:
    """Applies a function of one row's drops and arrays to every row, a few at a time."""
    q, k = arrays[:2]
    batch, of_row = q.shape[0], q.shape[1] * q.shape[2] * k.shape[2]

    def apply(row: tuple) -> Any:
        key, of_arrays = row
        return function(drops and drops._replace(keys=key), *of_arrays)

    given = drops and drops.keys, arrays
    if not isinstance(batch, int):  # an exported program has a free number of rows
        return jax.vmap(apply)(given)
    most = max(_most() // of_row, 1) if isinstance(of_row, int) else 1
    if batch <= most:
        return jax.vmap(apply)(given)
    rows = next(n for n in range(most, 0, -1) if batch % n == 0)
    if rows == 1:
        return lax.map(apply, given)
    return lax.map(apply, given, batch_size=rows)


def _block_size(q: jax.Array, k: jax.Array) -> int:
    """Returns how many queries of one row are computed at a time."""
    (heads, queries, _), keys = q.shape, k.shape[1]
    if not isinstance(heads * queries * keys, int):
        return _FREE
    return math.ceil(queries / math.ceil(heads * queries * keys / _most()))


def _cut(x: jax.Array | None, queries: int, size: int, axis: int) -> jax.Array | None:
    """Puts blocks of queries first, the last one filled by 0; an axis of one serves all blocks."""
    if x is None:
        return None
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
    drops: Drops | None,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    keep: jax.Array,
    bias: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Returns what one row's queries `[H, Tq, dh]` find, and the logarithms of their sums."""
    queries, size, whole = q.shape[1], _block_size(q, k), (*q.shape[:2], k.shape[1])

    def of_block(given: tuple) -> tuple[jax.Array, jax.Array]:
        start, q, keep, bias = given
        scores = _scores(q, k, keep, bias, precision)
        highest = scores.max(-1, keepdims=True)
        weights = materialised(jnp.exp(scores - highest))  # [heads, queries, keys]
        total = weights.sum(-1, keepdims=True)
        scale = 1 / total
        if drops is not None:
            stays = drops.block_stays(whole, start, size)
            weights, scale = jnp.where(stays, weights, 0), scale * drops.factor
        return _product(weights, v, 2, 1, precision) * scale, highest + jnp.log(total)

    if size == queries:
        return of_block((0, q, keep, bias))
    masks = [_cut(x, queries, size, 0) for x in (keep, bias)]
    found, log_sums = lax.map(
        of_block, (jnp.arange(0, queries, size), _cut(q, queries, size, 1), *masks)
    )
    return _joined(found, queries, 1), _joined(log_sums, queries, 1)


def _scores(
    q: jax.Array, k: jax.Array, keep: jax.Array, bias: jax.Array | None, precision: Any
) -> jax.Array:
    scores = _product(q, k, 2, 2, precision)
    scores = scores if bias is None else scores + bias
    return materialised(jnp.where(keep, scores, jnp.finfo(jnp.float32).min))


def _backward(
    precision: Any,
    drops: Drops | None,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    keep: jax.Array,
    bias: jax.Array | None,
    found: jax.Array,
    log_sums: jax.Array,
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Returns the gradients of one row's queries, keys, values and bias."""
    queries, size, whole = q.shape[1], _block_size(q, k), (*q.shape[:2], k.shape[1])

    def of_block(given: tuple) -> tuple[jax.Array, ...]:
        start, q, keep, bias, found, log_sums, gradient = given
        of_weights = materialised(_product(gradient, v, 2, 2, precision))
        scores = _scores(q, k, keep, bias, precision)
        weights = materialised(jnp.where(keep, jnp.exp(scores - log_sums), 0))
        used = weights
        if drops is not None:
            stays = drops.block_stays(whole, start, size)
            used = materialised(jnp.where(stays, weights * drops.factor, 0))
        # The mean of the weights' gradients, by the weights, is that of what they found.
        mean = (gradient * found).sum(-1, keepdims=True)
        of_scores = materialised(used * of_weights - weights * mean)
        # Of the two orders of a product the one with the longer rows is faster.
        of_k = _product(q, of_scores, 1, 1, precision)
        of_v = _product(gradient, used, 1, 1, precision)
        of_bias = None
        if bias is not None:
            of_bias = of_scores.sum(0)
            of_bias = of_bias.sum(0, keepdims=True) if bias.shape[0] == 1 else of_bias
        return _product(of_scores, k, 2, 1, precision), of_k, of_v, of_bias

    if size == queries:
        of_q, of_k, of_v, of_bias = of_block((0, q, keep, bias, found, log_sums, gradient))
    else:
        masks = [_cut(x, queries, size, 0) for x in (keep, bias)]
        first, *others = (_cut(x, queries, size, 1) for x in (q, found, log_sums, gradient))

        def add(sums: tuple, given: tuple) -> tuple[tuple, tuple]:
            of_q, *of_others, of_bias = of_block(given)
            return tuple(map(jnp.add, sums, of_others)), (of_q, of_bias)

        zeros = tuple(jnp.zeros((x.shape[0], x.shape[2], x.shape[1])) for x in (k, v))
        given = jnp.arange(0, queries, size), first, *masks, *others
        (of_k, of_v), (of_q, of_bias) = lax.scan(add, zeros, given)
        of_q = _joined(of_q, queries, 1)
        if bias is not None:
            is_shared = bias.shape[0] == 1
            of_bias = of_bias.sum(0) if is_shared else _joined(of_bias, queries, 0)
    of_k, of_v = (jnp.swapaxes(x, 1, 2) for x in materialised((of_k, of_v)))
    return of_q, of_k, of_v, of_bias


def _product(a: jax.Array, b: jax.Array, axis: int, other: int, precision: Any) -> jax.Array:
    """Sums the products of two arrays `[H, …]` over one axis of each."""
    return lax.dot_general(
        a.astype(b.dtype),
        b,
        (((axis,), (other,)), ((0,), (0,))),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
