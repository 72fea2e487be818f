"""Reads pieces of text with a pretrained encoder, and pools them to words where that is asked."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.encoders.module import make_encoder
from msajax.layers.linear import batched_product
from msajax.spec import CorpusSpec


class PretrainedText(nn.Module):
    """Encodes pieces of text; fusion reads the pieces themselves, or one vector for each word.

    Attributes:
        config: of the text modality.
        spec: says what the encoder is, and how many words a sample has at most.
    """

    config: ModelConfig
    spec: CorpusSpec

    @nn.compact
    def __call__(
        self, pieces: jax.Array, mask: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Encodes a batch.

        Args:
            pieces: `[B, P, 3]` int32: token id, segment, and the step of the word that a piece
                belongs to; -1 for a special piece, which belongs to none.
            mask: `[B, P]`, True for every piece, special ones too.
            train: draw dropout masks.

        Returns:
            `[B, T, D]` of the encoder's width D, and the mask `[B, T]` of what fusion reads; T is P
            for pieces, else the most words of a sample, cut like the pieces.
        """
        c = self.config
        ids, segments, step = jnp.moveaxis(pieces, -1, 0)
        encoder = make_encoder(
            self.spec.text_encoder,
            jnp.dtype(c.dtype),
            remat=c.gradient_checkpointing,
            name="encoder",
        )
        x = encoder(ids, mask, segments=segments, train=train)  # [batch, pieces, width]
        of_word = mask & (step >= 0)  # [batch, pieces]
        if c.text_pool == "pieces":
            return x, mask if c.text_special else of_word
        words = self.spec.pooled_steps(pieces.shape[1])
        return pool_words(x, jnp.where(of_word, step, -1), words, c.text_pool)


def pool_words(
    x: jax.Array, step: jax.Array, words: int, pool: str
) -> tuple[jax.Array, jax.Array]:
    """Makes a vector of the pieces of each word.

    Args:
        x: `[B, P, D]`.
        step: `[B, P]`, the number of the word that a piece belongs to; -1 for none.
        words: W, how many there may be.
        pool: words, the mean of a word's pieces; or first, its first one.

    Returns:
        `[B, W, D]`, and the mask `[B, W]` of the words that have a piece.
    """
    belongs = step[:, None] == jnp.arange(words)[:, None]  # [batch, words, pieces]
    if pool == "first":
        belongs &= belongs.cumsum(-1) == 1
    count = belongs.sum(-1, keepdims=True)
    share = (belongs / jnp.maximum(count, 1)).astype(x.dtype)
    return batched_product(share, x, x.dtype), count[..., 0] > 0
