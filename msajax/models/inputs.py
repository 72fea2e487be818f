"""Makes vectors of what models read: token ids, pieces of text, sound; features are vectors."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.encoders.bert import Adapt
from msajax.encoders.module import make_encoder
from msajax.layers.heads import pool_words
from msajax.layers.transformer import make_embedding
from msajax.spec import CorpusSpec

ENCODER = "{modality}_pretrained/encoder"  # the path of the encoder inside a `Pretrained`


class Pretrained(nn.Module):
    """Reads a modality by a pretrained encoder.

    Of text fusion reads the pieces themselves, or one vector for each word.
    """

    config: ModelConfig
    spec: CorpusSpec
    modality: str

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array, *, train: bool, adapt: Adapt | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Encodes a batch.

        Args:
            x: pieces `[B, P, 3]` int32: token id, segment, and the step of the word that a piece
                belongs to, -1 for a special piece, which belongs to none; or steps of sound
                `[B, T, hop + 1]`.
            mask: `[B, P]`, True for every piece, special ones too; or `[B, T]`.
            adapt: makes what the first layer of a text encoder reads of its embeddings.

        Returns:
            `[B, T, D]` of the encoder's width D, and the mask `[B, T]` of what is read on; T is P
            for pieces, else the most words of a sample, cut like the pieces.
        """
        c, architecture = self.config, self.spec.encoder(self.modality)
        remat, dtype = c.gradient_checkpointing, jnp.dtype(c.dtype)
        if architecture.reads == "waveform":
            encoder = make_encoder(
                *(architecture, dtype),
                remat=remat,
                name="encoder",
                layer_drop=c.encoder_layer_drop,
                time_masking=c.encoder_time_masking,
            )
            return encoder.read_steps(x, mask, train=train)
        encoder = make_encoder(architecture, dtype, remat=remat, name="encoder")
        ids, segments, step = jnp.moveaxis(x, -1, 0)
        # [batch, pieces, width]
        x = encoder(ids, mask, segments=segments, train=train, adapt=adapt)
        of_word = mask & (step >= 0)  # [batch, pieces]
        if c.text_pool == "pieces":
            return x, mask if c.text_special else of_word
        words = self.spec.pooled_steps(mask.shape[1])
        return pool_words(x, jnp.where(of_word, step, -1), words, c.text_pool)


def read_input(
    config: ModelConfig,
    spec: CorpusSpec,
    modality: str,
    x: jax.Array,
    mask: jax.Array,
    *,
    train: bool,
) -> tuple[jax.Array, jax.Array]:
    """Makes vectors of a modality; call it inside a module's compact method.

    Args:
        x: `[B, T, d]` features, which stay as they are, `[B, T]` token ids, or what a pretrained
            encoder reads (see `Pretrained`).
        mask: `[B, T]`.

    Returns:
        Vectors `[B, T', d']`, and the mask `[B, T']` of what is read on.
    """
    if spec.encoder(modality) is not None:
        reader = Pretrained(config, spec, modality, name=f"{modality}_pretrained")
        return reader(x, mask, train=train)
    if spec.vocabulary(modality):
        x = make_embedding(config, spec.vocabulary(modality), f"{modality}_embedding")(x)
    return x, mask
