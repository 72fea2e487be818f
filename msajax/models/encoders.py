"""Transformer blocks, stacks of layers, and the encoder of one modality."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.models.attention import MultiHeadAttention, causal_mask
from msajax.models.layers import NORMS, Dropout, FeedForward, TokenEmbedding, kernel_init
from msajax.models.positions import LearnedPositions, add_sinusoids
from msajax.models.recurrent import Recurrence


def make_norm(config: ModelConfig, name: str) -> nn.Module:
    """The normalisation that a configuration names."""
    return NORMS[config.norm](config.norm_eps, jnp.dtype(config.dtype), name=name)


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each with dropout, residual and norm.

    Post-norm: `x = N(x + Drop(MHA(x)))`, then `x = N(x + Drop(FFN(x)))`. Pre-norm: `x = x +
    Drop(MHA(N(x)))`, then `x = x + Drop(FFN(N(x)))`. With `context is x` this is self-attention;
    else cross-attention with the residual on `x`, and a norm of its own for a pre-norm context.

    Attributes:
        config: sizes, rates and choices.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, context: jax.Array, masks: tuple[jax.Array, ...], *, train: bool
    ) -> jax.Array:
        """Lets `x` `[B, Tq, D]` attend to `context` `[B, Tk, D]` under masks on the keys."""
        c = self.config
        dtype = jnp.dtype(c.dtype)
        attention = MultiHeadAttention(
            num_heads=c.num_heads,
            head_dim=c.head_dim or c.model_dim // c.num_heads,
            dropout_rate=c.rate("attention"),
            dtype=dtype,
            qkv_bias=c.qkv_bias,
            out_bias=c.out_bias,
            name="attention",
        )
        ffn = FeedForward(c.ff_dim, c.activation, c.rate("ffn"), dtype, name="ffn")
        norm_attention, norm_ffn = make_norm(c, "norm_attention"), make_norm(c, "norm_ffn")

        if c.norm_position == "pre":
            is_self = context is x
            query = norm_attention(x)
            context = query if is_self else make_norm(c, "norm_context")(context)
            attended = attention(query, context, masks, train=train)  # [batch, queries, model_dim]
            x = x + Dropout(c.dropout_rate)(attended, train=train)
            fed = ffn(norm_ffn(x), train=train)  # [batch, queries, model_dim]
            return x + Dropout(c.dropout_rate)(fed, train=train)
        attended = attention(x, context, masks, train=train)  # [batch, queries, model_dim]
        x = norm_attention(x + Dropout(c.dropout_rate)(attended, train=train))
        fed = ffn(x, train=train)  # [batch, queries, model_dim]
        return norm_ffn(x + Dropout(c.dropout_rate)(fed, train=train))


def stack(
    config: ModelConfig,
    mixer: str,
    depth: int,
    x: jax.Array,
    masks: tuple[jax.Array, ...],
    *,
    train: bool,
) -> jax.Array:
    """Layers one after another, and a final norm if the configuration has one.

    The layers belong to the module whose method calls this. A recurrent one is followed by dropout.

    Args:
        config: what the layers are.
        mixer: transformer, rnn, gru or lstm.
        depth: how many.
        x: `[B, T, D]`.
        masks: the valid steps `[B, T]`, then, for transformer blocks, any other masks of attention.
        train: draw dropout masks.

    Returns:
        `[B, T, D]`.
    """
    for i in range(depth):
        if mixer == "transformer":
            x = TransformerBlock(config, name=f"blocks_{i}")(x, x, masks, train=train)
        else:
            dtype = jnp.dtype(config.dtype)
            layer = Recurrence(mixer, config.both_directions, dtype, name=f"layers_{i}")
            dropout = Dropout(config.dropout_rate, name=f"dropout_{i}")
            x = dropout(layer(x, masks[0]), train=train)
    if config.final_norm and depth:
        x = make_norm(config, "final_norm")(x)
    return x


def self_masks(config: ModelConfig, mask: jax.Array) -> tuple[jax.Array, ...]:
    """The masks of self-attention over a sequence whose valid steps are `mask` `[B, T]`."""
    return (mask, causal_mask(mask.shape[1])) if config.causal else (mask,)


def make_embedding(config: ModelConfig, vocabulary: int, name: str) -> TokenEmbedding:
    """The embedding of a modality of token ids."""
    width = config.embedding_dim or config.model_dim
    return TokenEmbedding(vocabulary, width, jnp.dtype(config.dtype), name=name)


class ModalityEncoder(nn.Module):
    """Projection, positions, dropout, then `n_layers_mod` layers (source 002, R2).

    Attributes:
        config: of this modality's encoder.
        max_len: rows of a learned position table.
        project: whether the input is projected; off for embeddings that have the model's width.
    """

    config: ModelConfig
    max_len: int
    project: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool) -> jax.Array:
        """Encodes `x` `[B, T, d]` under `mask` `[B, T]` (True: a real step) to `[B, T, D]`."""
        c = self.config
        # Padding may hold anything, NaN included: multiplying by zero would let it through.
        x = jnp.where(mask[..., None], x, 0)  # [batch, length, width]
        x = Dropout(c.input_dropout)(x, train=train)
        if self.project:
            x = nn.Dense(
                c.model_dim, kernel_init=kernel_init, dtype=jnp.dtype(c.dtype), name="projection"
            )(x)  # [batch, length, model_dim]
        if c.positions == "learned":
            x = LearnedPositions(self.max_len, name="positions")(x)
        elif c.positions == "sinusoidal":
            x = add_sinusoids(x)
        x = Dropout(c.rate("projection"))(x, train=train)
        return stack(c, c.mixer, c.n_layers_mod, x, self_masks(c, mask), train=train)


class PostFusionEncoder(nn.Module):
    """`n_layers_post_fuse` self-attention blocks on a fused sequence (source 000, R16).

    Attributes:
        config: of this modality's encoder.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool) -> jax.Array:
        """Maps `x` `[B, T, D]` under `mask` `[B, T]` to `[B, T, D]`."""
        c = self.config
        masks = self_masks(c, mask)
        return stack(c, "transformer", c.n_layers_post_fuse, x, masks, train=train)
