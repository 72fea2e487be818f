"""Draws random bits by a keyed counter hash, as an implementation of JAX's typed keys.

JAX's own bits cost a quarter of a training step on a CPU, and its keys, a loop at every site, up to
a fifth of a short one; XLA fuses these into what uses them. Not for cryptography.
"""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

# Folded into the keys of other streams, which dropout's must not equal.
_TRANSFORMS, _PARAMETERS = 0x7472616E, 0x70617261


def parameters_key(seed: jax.Array) -> jax.Array:
    """Makes the key that the first parameters of one random seed are drawn by.

    It is of type `COUNTER_HASH`: with JAX's own a program that draws a hundred parameters takes
    four times as long to compile.
    """
    return jax.random.fold_in(jax.random.key(seed, impl=COUNTER_HASH), _PARAMETERS)


def dropout_key(seed: jax.Array, step: jax.Array) -> jax.Array:
    """Makes the dropout key of one step of one random seed, of type `COUNTER_HASH`."""
    return jax.random.fold_in(jax.random.key(seed, impl=COUNTER_HASH), step)


def transform_key(seed: jax.Array, step: jax.Array) -> jax.Array:
    """Makes the key from which a step's batch is changed at random, of type `COUNTER_HASH`."""
    stream = jax.random.fold_in(jax.random.key(seed, impl=COUNTER_HASH), _TRANSFORMS)
    return jax.random.fold_in(stream, step)


def _mix(x: jax.Array) -> jax.Array:
    """Maps 32-bit integers one to one, mixing all bits, as murmur3's finaliser does."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _hash(key: jax.Array, counter: jax.Array) -> jax.Array:
    """Mixes a counter twice, each time with one word of the key `[2]`."""
    return _mix(_mix(counter ^ key[0]) + key[1])


def _seed(seed: jax.Array) -> jax.Array:
    # Folded into a fixed key (digits of pi), as data is folded into any other.
    return _fold_in(jnp.array([0x243F6A88, 0x85A308D3], jnp.uint32), seed)


def _fold_in(key: jax.Array, data: jax.Array | int) -> jax.Array:
    # The second word is hashed by another key: random bits of `key` can equal the first alone.
    data = jnp.asarray(data).astype(jnp.uint32)
    other = jnp.stack([key[1], ~key[0]])
    return jnp.stack([_hash(key, data), _hash(other, data)])


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    counter = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return jax.vmap(_fold_in, (None, 0))(key, counter).reshape(*shape, 2)


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    if bit_width != 32:
        raise NotImplementedError(f"counter_hash gives 32-bit integers, not {bit_width}-bit ones")
    counter = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        counter += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
        stride *= shape[axis]
    return _hash(key, counter)


def block_of_bits(
    key: jax.Array, shape: tuple[int, int, int], start: jax.Array | int, size: int
) -> jax.Array:
    """Draws the bits that `jax.random.bits(key, shape)` has in the rows of a block.

    Of another implementation's key, which cannot draw a part of them, all are drawn for each block:
    for long sequences dropout's key should be of COUNTER_HASH.

    Args:
        key: `[]`, typed.
        shape: `[H, Q, K]`.
        start: the block's first place on the second axis.
        size: how many places it has; what lies behind the shape means nothing.

    Returns:
        `[H, size, K]` uint32.
    """
    heads, queries, keys = shape
    if key.dtype != jax.random.key(0, impl=COUNTER_HASH).dtype:
        bits = jnp.pad(jax.random.bits(key, shape), ((0, 0), (0, size), (0, 0)))
        return jax.lax.dynamic_slice_in_dim(bits, start, size, axis=1)
    place = [jax.lax.broadcasted_iota(jnp.uint32, (heads, size, keys), axis) for axis in range(3)]
    row = place[0] * jnp.uint32(queries) + place[1] + jnp.asarray(start).astype(jnp.uint32)
    return _hash(jax.random.key_data(key), row * jnp.uint32(keys) + place[2])


COUNTER_HASH = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="counter_hash",
    tag="chx",
)
