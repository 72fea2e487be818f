"""Defines the layers that every Transformer here is made of."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msajax.layers.linear import AffineLayer, gelu, layer_norm
from msajax.layers.prng import block_of_bits

ROWS = "rows"  # the variable collection of `rows_of_batch`
RATES = "rates"  # that of dropout rates: {site: `dropout_numbers`}


def rows_of_batch(
    first: jax.Array | int, weight: jax.Array
) -> dict[str, dict[str, jax.Array | int]]:
    """Makes the variables that tell a model of training which rows its batch has.

    Args:
        first: number of its first row in the batch that it is a part of: dropout masks then are
            those of the whole batch. Without it a batch begins at 0.
        weight: `[B]`, 0 for a row that only fills the shape; see `row_weight`.
    """
    return {ROWS: {"first": first, "weight": weight}}


def row_weight(module: nn.Module, rows: int) -> jax.Array:
    """Returns `[B]`: 0 for rows that only fill the shape of a training batch, else 1.

    Statistics over a batch, such as those of batch normalisation, must leave out such rows.
    """
    return module.scope.root.get_variable(ROWS, "weight", jnp.ones(rows))


def dropout_numbers(rate: float) -> tuple[np.uint32, np.float32]:
    """Computes what dropout does by a rate: below which of 2^32 draws it drops, and the factor."""
    return np.uint32(min(round(rate * 2**32), 2**32 - 1)), np.float32(1 / (1 - rate))


def keys_of_rows(module: nn.Module, rows: int) -> jax.Array:
    """Makes `[B]` keys of the "dropout" stream; row b of the whole batch has its own."""
    key = module.make_rng("dropout")
    # A batch that is a part of a larger one says so: see `rows_of_batch`.
    first = module.scope.root.get_variable(ROWS, "first", 0)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(first + jnp.arange(rows))


def bits_of_rows(module: nn.Module, shape: tuple[int, ...]) -> jax.Array:
    """Draws `[B, …]` uint32 of the "dropout" stream, each row by its own key."""
    return jax.vmap(lambda key: jax.random.bits(key, shape[1:]))(keys_of_rows(module, shape[0]))


class Drops(NamedTuple):
    """Drops elements as `Dropout` does, where there are no modules: inside loops and maps.

    Attributes:
        keys: `[B]`, of the batch's rows; or `[]`, of one row.
        threshold: `[]` uint32, below which of 2^32 draws it drops.
        factor: `[]` float32, of what stays.
    """

    keys: jax.Array
    threshold: jax.Array
    factor: jax.Array

    def at(self, number: jax.Array | int) -> "Drops":
        """Returns those of a layer, or another site, of the same rate."""
        return self._replace(keys=jax.vmap(jax.random.fold_in, (0, None))(self.keys, number))

    def stays(self, shape: tuple[int, ...]) -> jax.Array:
        """Says which elements of one row `[…]` stay."""
        return jax.random.bits(self.keys, shape) >= self.threshold

    def block_stays(
        self, shape: tuple[int, int, int], start: jax.Array | int, size: int
    ) -> jax.Array:
        """Says what `stays` says of `[H, Q, K]` for some of the places of its second axis."""
        if size == shape[1]:
            return self.stays(shape)
        return block_of_bits(self.keys, shape, start, size) >= self.threshold

    def __call__(self, x: jax.Array) -> jax.Array:
        """Drops elements of `x` `[B, …]` and scales the others by the factor."""
        stays = jax.vmap(lambda key: self._replace(keys=key).stays(x.shape[1:]))(self.keys)
        return jnp.where(stays, x * self.factor.astype(x.dtype), 0)


def numbers_of_site(module: nn.Module, rate: float) -> tuple[jax.Array, jax.Array]:
    """Returns `dropout_numbers`; of a rate that knows its site, those that `RATES` may hold."""
    numbers, site = dropout_numbers(rate), getattr(rate, "site", None)
    if site:
        numbers = module.scope.root.get_variable(RATES, site, numbers)
    threshold, factor = map(jnp.asarray, numbers)
    return threshold, factor


class Dropout(nn.Module):
    """Applies inverted dropout, whose mask depends on a row's position in the batch alone.

    Row b of the whole batch draws from `fold_in(key, b)`.

    Attributes:
        rate: probability of dropping an element, in [0, 1). Of one that knows its site
            (`ModelConfig.rate`) the `RATES` collection may hold the numbers, which then are data of
            the program; only whether it is 0 is not.
        per_row: off where the first axis is not that of the batch's rows; all parts of a batch then
            draw the same mask.
    """

    rate: float
    per_row: bool = True

    def drops(self, rows: int, *, train: bool) -> Drops | None:
        """Returns what drops elements of arrays of so many rows as this layer would; None if none.

        Call it in place of the layer.
        """
        if not train or self.rate == 0.0:
            return None
        return Drops(keys_of_rows(self, rows), *numbers_of_site(self, self.rate))

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Drops elements of `x` `[B, …]` when `train`, and scales the others by 1 / (1 - rate)."""
        if not train or self.rate == 0.0:
            return x
        if self.per_row:
            bits = bits_of_rows(self, x.shape)
        else:
            bits = jax.random.bits(self.make_rng("dropout"), x.shape)
        threshold, factor = numbers_of_site(self, self.rate)
        return jnp.where(bits >= threshold, x * factor.astype(x.dtype), 0)


class TokenEmbedding(nn.Module):
    """Looks up a learned vector per token id: one-hot times the table (source 001).

    Attributes:
        vocabulary: rows of the table, V.
        width: size of a vector, E.
        scale: what a looked-up vector is multiplied by.
    """

    vocabulary: int
    width: int
    dtype: Any
    scale: float = 1.0

    def setup(self) -> None:
        """Makes the table `[V, E]`; vectors begin with length 1."""
        init = nn.initializers.normal(self.width**-0.5)
        self.embedding = self.param("embedding", init, (self.vocabulary, self.width))

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Looks up `ids` `[B, T]`: `[B, T, E]`."""
        return (jnp.take(self.embedding, ids, axis=0) * self.scale).astype(self.dtype)

    def attend(self, x: jax.Array) -> jax.Array:
        """Projects `[B, T, E]` to float32 `[B, T, V]` by its table (Press and Wolf, 2017)."""
        return jnp.einsum("bte,ve->btv", x.astype(jnp.float32), self.embedding)


class LayerNorm(nn.Module):
    """Applies layer normalisation over the last axis, biased variance, statistics in float32."""

    eps: float
    dtype: Any
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises `[…, D]`."""
        shape = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, shape)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, shape)
        else:
            bias = jnp.zeros(shape)
        return layer_norm(x.astype(jnp.float32), scale, bias, self.eps).astype(self.dtype)


class RMSNorm(nn.Module):
    """Applies `x / sqrt(mean x^2 + eps) * scale` over the last axis, in float32.

    It is source 003's, whose formula writes no epsilon.
    """

    eps: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises `[…, D]`."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        x = x.astype(jnp.float32)
        mean_square = jnp.square(x).mean(-1, keepdims=True)
        return (x * jax.lax.rsqrt(mean_square + self.eps) * scale).astype(self.dtype)


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}

_gelu_tanh = functools.partial(nn.gelu, approximate=True)
_ACTIVATIONS = {"gelu": gelu, "gelu_tanh": _gelu_tanh, "relu": nn.relu}
_GATED = {"geglu": gelu, "geglu_tanh": _gelu_tanh, "reglu": nn.relu}


class FeedForward(nn.Module):
    """Applies Dense(F) -> activation -> Dropout -> Dense(D) to each time step.

    With geglu, `gelu(x W_g + b_g) * (x W + b)` stands for the first layer and its activation; so
    do geglu_tanh and reglu, by the other activations.

    Attributes:
        activation: gelu (erf), gelu_tanh, relu, geglu, geglu_tanh or reglu.
        dropout_rate: acts between the two layers.
    """

    ff_dim: int
    activation: str
    dropout_rate: float
    dtype: Any
    inner_bias: bool = True
    outer_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, T, D]` to `[B, T, D]`."""
        outer, inner = (x.shape[-1],), (self.ff_dim,)
        first = functools.partial(AffineLayer, outer, inner, self.dtype, self.inner_bias)
        hidden = first(name="inner")(x)  # [batch, length, ff_dim]
        if self.activation in _GATED:
            hidden = _GATED[self.activation](first(name="gate")(x)) * hidden
        else:
            hidden = _ACTIVATIONS[self.activation](hidden)
        hidden = Dropout(self.dropout_rate)(hidden, train=train)
        return AffineLayer(inner, outer, self.dtype, self.outer_bias, name="outer")(hidden)
