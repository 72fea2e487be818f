"""Pure Flax linen models: they know nothing of files, optimisers or devices."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.models.next_token import NextTokenModel
from msajax.models.parts.positions import DROFE_FEATURES
from msajax.models.sequence_level import SequenceLevelModel
from msajax.spec import CorpusSpec

MODELS = {"sequence_level": SequenceLevelModel, "next_token": NextTokenModel}


def blank_sample(spec: CorpusSpec) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Features and masks of one sample of zeros whose sequences fill their tables."""
    masks = {m: jnp.ones((1, spec.length(m)), bool) for m in spec.modalities}
    features = {
        m: jnp.zeros((1, spec.length(m)), jnp.int32)
        if spec.vocabulary(m)
        else jnp.zeros((1, spec.length(m), spec.width(m)))
        for m in spec.modalities
    }
    return features, masks


def build_model(config: ModelConfig, spec: CorpusSpec) -> nn.Module:
    """The model that a configuration names, for the modalities of a corpus.

    Called by its `apply`, with parameters of one random seed: `model.apply({"params": params},
    features, masks, attention_masks=…)` gives a `Prediction`.

    Raises:
        UserError: if the anchor, or a modality with settings of its own, is not among the
            modalities, if the next token is to be predicted of anything but one of token ids, or if
            dRoFE positions leave nothing of a modality to encode.
    """
    tokens = [m for m in spec.modalities if spec.vocabulary(m)]
    if config.name == "next_token" and not (len(tokens) == len(spec.modalities) == 1):
        raise UserError(
            "model.name = next_token needs one modality of token ids, not "
            f"{', '.join(spec.modalities)}: set model.modalities, and data.text = words to read "
            "transcripts."
        )
    if config.anchor and config.anchor not in spec.modalities:
        raise UserError(
            f"model.anchor = {config.anchor!r} is not among the run's modalities: "
            f"choose one of {', '.join(spec.modalities)}."
        )
    for m in config.overridden:
        if m not in spec.modalities:
            raise UserError(
                f"model.overrides names {m!r}, which is not among the run's modalities: "
                f"choose of {', '.join(spec.modalities)}."
            )
    for m in spec.modalities:
        if config.encoder_of(m).positions != "drofe":
            continue
        if spec.vocabulary(m):
            raise UserError(
                f"model.positions = 'drofe' reads features of every step; those of {m!r} are token "
                "ids: choose learned, sinusoidal or none."
            )
        if spec.width(m) <= DROFE_FEATURES:
            raise UserError(
                f"model.positions = 'drofe' takes the first {DROFE_FEATURES} features of every "
                f"step of {m!r}, which is {spec.width(m)} wide: nothing is left to encode."
            )
    return MODELS[config.name](config, spec)
