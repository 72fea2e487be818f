"""Transformer blocks, and the encoder that turns one modality into a sequence of width D."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.models.attention import MultiHeadAttention
from msajax.models.layers import Dropout, FeedForward, LayerNorm, kernel_init
from msajax.models.positions import LearnedPositions


class TransformerBlock(nn.Module):
    """A post-norm block: `x = LN(x + Drop(MHA(x)))`, then `x = LN(x + Drop(FFN(x)))`.

    With `context is x` this is self-attention; else cross-attention with the residual on `x`.

    Attributes:
        config: sizes and rates.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, context: jax.Array, masks: tuple[jax.Array, ...], *, train: bool
    ) -> jax.Array:
        """Lets `x` `[B, Tq, D]` attend to `context` `[B, Tk, D]` under masks on the keys."""
        c = self.config
        dtype = jnp.dtype(c.dtype)
        norm = functools.partial(LayerNorm, c.norm_eps, dtype)
        attention = MultiHeadAttention(
            num_heads=c.num_heads,
            head_dim=c.head_dim or c.model_dim // c.num_heads,
            dropout_rate=c.dropout_rate,
            dtype=dtype,
            name="attention",
        )
        ffn = FeedForward(c.ff_dim, c.dropout_rate, dtype, name="ffn")
        attended = attention(x, context, masks, train=train)  # [batch, queries, model_dim]
        x = norm(name="norm_attention")(x + Dropout(c.dropout_rate)(attended, train=train))
        fed = ffn(x, train=train)  # [batch, queries, model_dim]
        return norm(name="norm_ffn")(x + Dropout(c.dropout_rate)(fed, train=train))


class ModalityEncoder(nn.Module):
    """Projection, learned positions, dropout, then `n_layers_mod` self-attention blocks.

    Attributes:
        config: sizes and rates.
        max_len: rows of the position table.
    """

    config: ModelConfig
    max_len: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool) -> jax.Array:
        """Encodes `x` `[B, T, d]` under `mask` `[B, T]` (True: a real step) to `[B, T, D]`."""
        c = self.config
        # Padding may hold anything, NaN included: multiplying by zero would let it through.
        x = jnp.where(mask[..., None], x, 0)  # [batch, length, width]
        x = Dropout(c.input_dropout)(x, train=train)
        x = nn.Dense(
            c.model_dim, kernel_init=kernel_init, dtype=jnp.dtype(c.dtype), name="projection"
        )(x)  # [batch, length, model_dim]
        x = LearnedPositions(self.max_len, name="positions")(x)
        x = Dropout(c.dropout_rate)(x, train=train)
        for i in range(c.n_layers_mod):
            x = TransformerBlock(c, name=f"blocks_{i}")(x, x, (mask,), train=train)
        return x
