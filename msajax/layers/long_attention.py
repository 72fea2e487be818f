"""Computes attention over long sequences: its maps are made again for their gradients, not kept.

Rabe and Staats, 2021, and Dao et al., 2022: of a map the backward pass needs the logarithm of each
query's sum alone. A few samples are computed at a time, so that their maps stay in a cache: a step
on a CPU takes half as long, and memory grows with the length of sequences, not with its square.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from msajax.layers.basic import Drops
from msajax.layers.linear import materialised

# Elements of the maps that are computed at a time: what a processor's cache holds, and what makes
# kernels of an accelerator long.
_ELEMENTS_CPU, _ELEMENTS = 2**21, 2**26


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, keep: jax.Array, drops: Drops | None = None
) -> jax.Array:
    """Weighs values by the softmax of `q k`: `[B, H, Tq, dv]`, float32.

    Args:
        q: queries `[B, H, Tq, dh]`, scaled.
        k: keys `[B, H, Tk, dh]`.
        v: values `[B, H, Tk, dv]`.
        keep: the keys that a query may see, bool `[B, Tq, Tk]`, or `[B, 1, Tk]` for all queries; a
            query that sees none gets 0.
        drops: of the weights, after the softmax.
    """
    with jax.named_scope("maps"):
        found = _attend(q, k, v, keep, drops, jax.config.jax_default_matmul_precision)
    # The softmax of a row without a key is uniform: what it gathers means nothing.
    return jnp.where(keep.any(-1)[:, None, :, None], found, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q, k, v, keep, drops, precision):
    return _attend_forward(q, k, v, keep, drops, precision)[0]


def _attend_forward(q, k, v, keep, drops, precision):
    found, log_sums = _by_rows(functools.partial(_forward, precision), drops, q, k, v, keep)
    return found, (q, k, v, keep, drops, found, log_sums)


def _attend_backward(precision, kept, gradient):
    q, k, v, keep, drops, found, log_sums = kept
    backward = functools.partial(_backward, precision)
    of_inputs = _by_rows(backward, drops, q, k, v, keep, found, log_sums, gradient)
    return *of_inputs, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _by_rows(function: Callable, drops: Drops | None, *arrays: jax.Array) -> Any:
    """Applies a function of one row's drops and arrays to every row, a few at a time."""
    q, k = arrays[:2]
    batch = q.shape[0]

    def of_row(row: tuple) -> Any:
        key, of_arrays = row
        return function(drops and drops._replace(keys=key), *of_arrays)

    given = drops and drops.keys, arrays
    if not isinstance(batch, int):  # an exported program has a free number of rows
        return jax.vmap(of_row)(given)
    most = _ELEMENTS_CPU if jax.default_backend() == "cpu" else _ELEMENTS
    most = max(most // (q.shape[1] * q.shape[2] * k.shape[2]), 1)
    if batch <= most:
        return jax.vmap(of_row)(given)
    rows = next(n for n in range(most, 0, -1) if batch % n == 0)
    return lax.map(of_row, given, batch_size=rows)


def _forward(
    precision: Any, drops: Drops | None, q: jax.Array, k: jax.Array, v: jax.Array, keep: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns what one row's queries `[H, Tq, dh]` find, and the logarithms of their sums."""
    scores = jnp.where(keep, _product(q, k, 2, 2, precision), jnp.finfo(jnp.float32).min)
    scores = materialised(scores)
    highest = scores.max(-1, keepdims=True)
    weights = materialised(jnp.exp(scores - highest))  # [heads, queries, keys]
    total = weights.sum(-1, keepdims=True)
    scale = 1 / total
    if drops is not None:
        weights, scale = jnp.where(drops.stays(weights.shape), weights, 0), scale * drops.factor
    return _product(weights, v, 2, 1, precision) * scale, highest + jnp.log(total)


def _backward(
    precision: Any,
    drops: Drops | None,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    keep: jax.Array,
    found: jax.Array,
    log_sums: jax.Array,
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the gradients of one row's queries, keys and values."""
    scores = _product(q, k, 2, 2, precision)
    of_weights = _product(gradient, v, 2, 2, precision)
    scores, of_weights = materialised((scores, of_weights))
    weights = materialised(jnp.where(keep, jnp.exp(scores - log_sums), 0))
    used = weights
    if drops is not None:
        used = materialised(jnp.where(drops.stays(weights.shape), weights * drops.factor, 0))
    # The mean of the weights' gradients, by the weights, is that of what they found.
    mean = (gradient * found).sum(-1, keepdims=True)
    of_scores = materialised(used * of_weights - weights * mean)
    # Of the two orders of a product the one with the longer rows is faster.
    of_k, of_v = _product(q, of_scores, 1, 1, precision), _product(gradient, used, 1, 1, precision)
    of_k, of_v = (jnp.swapaxes(x, 1, 2) for x in materialised((of_k, of_v)))
    return _product(of_scores, k, 2, 1, precision), of_k, of_v


def _product(a: jax.Array, b: jax.Array, axis: int, other: int, precision: Any) -> jax.Array:
    """Sums the products of two arrays `[H, …]` over one axis of each."""
    return lax.dot_general(a, b, (((axis,), (other,)), ((0,), (0,))), precision=precision)
