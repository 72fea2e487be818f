"""The layers that every Transformer here is made of."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

kernel_init = nn.initializers.xavier_uniform()

ROWS = "rows"  # the variable collection of `first_row`


def first_row(position: jax.Array | int) -> dict[str, dict[str, jax.Array | int]]:
    """Variables that tell a model where its batch begins in the batch that it is a part of.

    Dropout masks then are those of the whole batch. Without them a batch begins at 0.
    """
    return {ROWS: {"first": position}}


class Dropout(nn.Module):
    """Inverted dropout whose mask depends on a row's position in the batch, not on its neighbours.

    Row b of the whole batch draws from `fold_in(key, b)`; inside a row the bits come from a
    counter-based integer hash of (row key, position), which XLA fuses into the multiplication:
    threefry bits would cost more than a quarter of a training step on a CPU.

    Attributes:
        rate: probability of dropping an element, in [0, 1).
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Drops elements of `x` `[B, …]` when `train`, and scales the others by 1 / (1 - rate)."""
        if not train or self.rate == 0.0:
            return x
        key = self.make_rng("dropout")
        # A batch that is a part of a larger one says so: see `first_row`.
        first = self.scope.root.get_variable(ROWS, "first", 0)
        rows = first + jnp.arange(x.shape[0])
        row_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
        bits = random_bits(jax.random.key_data(row_keys), x.shape[1:])
        keep = bits >= jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        return jnp.where(keep, x / jnp.asarray(1.0 - self.rate, x.dtype), 0)


def random_bits(row_keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform 32-bit integers from a keyed hash of a counter.

    Two rounds of a 32-bit finaliser with full avalanche (multiplications and xor-shifts, as in
    murmur3), one key word before each.

    Args:
        row_keys: `[B, 2]` uint32, one key per row.
        shape: shape of one row.

    Returns:
        `[B, *shape]` uint32.
    """
    counter = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        counter += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
        stride *= shape[axis]
    first, second = (
        row_keys[:, i].reshape((-1,) + (1,) * len(shape)) for i in range(2)
    )  # [batch, 1, …]
    return _mix(_mix(counter[None] ^ first) + second)


def _mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, biased variance, statistics in float32.

    Attributes:
        eps: added to the variance.
        dtype: type of the result.
    """

    eps: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises `[…, D]`."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        x = x.astype(jnp.float32)
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(variance + self.eps)
        return (normal * scale + bias).astype(self.dtype)


class FeedForward(nn.Module):
    """Dense(F) -> GELU (erf) -> Dropout -> Dense(D), per time step.

    Attributes:
        ff_dim: F.
        dropout_rate: dropout between the two layers.
        dtype: computation type.
    """

    ff_dim: int
    dropout_rate: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, T, D]` to `[B, T, D]`."""
        inner = nn.Dense(self.ff_dim, kernel_init=kernel_init, dtype=self.dtype, name="inner")(x)
        inner = nn.gelu(inner, approximate=False)  # [batch, length, ff_dim]
        inner = Dropout(self.dropout_rate)(inner, train=train)
        return nn.Dense(x.shape[-1], kernel_init=kernel_init, dtype=self.dtype, name="outer")(inner)
