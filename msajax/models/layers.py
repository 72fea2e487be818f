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

    Row b of the whole batch draws from `fold_in(key, b)`.

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

        def bits_of(row):
            return jax.random.bits(jax.random.fold_in(key, row), x.shape[1:])

        bits = jax.vmap(bits_of)(rows)  # [batch, …]
        keep = bits >= jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        return jnp.where(keep, x / jnp.asarray(1.0 - self.rate, x.dtype), 0)


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
