"""Predicts each token of a sequence from those before it (source 001: the decoder)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.checks import require
from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.heads import Arrays
from msajax.layers.transformer import ModalityEncoder, make_embedding
from msajax.models.contract import POSITIONS, VOCABULARY, Model, Prediction
from msajax.models.sequence_level import check_family, check_inputs
from msajax.spec import CorpusSpec


class NextTokenModel(nn.Module):
    """Embeds tokens, encodes them causally, and projects by the embedding's own table (R22).

    It is a model of its own, as it needs no labels. Modules are named as in `SequenceLevelModel`,
    whose text encoder it can initialise. The first token of a sequence is not predicted. The logits
    `[B, T, V]` are kept as `logits` in the `intermediates` collection when that is mutable.
    """

    config: ModelConfig
    spec: CorpusSpec

    @nn.compact
    def __call__(
        self,
        features: Arrays,
        masks: Arrays,
        *,
        attention_masks: Arrays | None = None,
        train: bool = False,
    ) -> Prediction:
        """Measures how likely sequences are.

        Args:
            features: `{modality: [B, T]}` token ids.
            masks: `{modality: [B, T]}` bool, True for a real time step.
            attention_masks: `{modality: [T, T] or [B, T, T]}`, as of `SequenceLevelModel`.

        Returns:
            Scores `[B, 2]`: the negative log-likelihood in nats of every token that follows a valid
            step, summed, and their number. Modality weights `[B, 1]` are 1 where a step is valid.

        Raises:
            ValueError: if shapes do not fit each other or the specification, or if an attention
                mask is for no modality of the model, or for a recurrent encoder.
        """
        attention_masks = attention_masks or {}
        check_inputs(self.config, self.spec, features, masks, attention_masks)
        (m,) = self.spec.modalities
        ids, mask, config = features[m], masks[m], self.config.encoder_of(m)
        embedding = make_embedding(config, self.spec.vocabulary(m), f"{m}_embedding")
        encoder = ModalityEncoder(config, self.spec.length(m), project=False, name=f"{m}_encoder")
        # Left to JAX, accelerators would multiply float32 matrices in a shorter type.
        with jax.default_matmul_precision(self.config.matmul_precision):
            hidden = encoder(
                embedding(ids), mask, train=train, attention_mask=attention_masks.get(m)
            )  # [batch, length, model_dim]
            logits = embedding.attend(hidden)  # [batch, length, vocabulary]
        self.sow("intermediates", "logits", logits)
        predicted = mask[:, :-1] & mask[:, 1:]  # [batch, length - 1]
        log_likelihood = jnp.take_along_axis(
            jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], axis=-1
        )[..., 0]  # [batch, length - 1]
        nats = jnp.where(predicted, -log_likelihood, 0).sum(-1)
        score = jnp.stack([nats, predicted.sum(-1).astype(jnp.float32)], axis=-1)
        return Prediction(score=score, modality_weights=mask.any(-1, keepdims=True) * 1.0)


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for what cannot predict a next token, or would show it to the model."""
    check_family(config, spec)
    if not (len(spec.modalities) == 1 and spec.vocabulary(spec.modalities[0])):
        raise UserError(
            "model.name = next_token needs one modality of token ids, not "
            f"{', '.join(spec.modalities)}: set model.modalities, and data.text = words to read "
            "transcripts."
        )
    requirement = "must be on for model.name = next_token, or it sees what it is to predict"
    require(config, "model.causal", config.causal, requirement)


MODEL = Model(
    module=NextTokenModel,
    bound={"text_embedding/embedding": (VOCABULARY,), "*positions/embedding": (POSITIONS,)},
    check=check,
)
