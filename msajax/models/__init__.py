"""Pure Flax linen models: they know nothing of files, optimisers or devices."""

import flax.linen as nn

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.models.sequence_level import SequenceLevelModel
from msajax.spec import CorpusSpec

MODELS = {"sequence_level": SequenceLevelModel}


def build_model(config: ModelConfig, spec: CorpusSpec) -> nn.Module:
    """The model that a configuration names, for the modalities of a corpus.

    Raises:
        UserError: if the anchor, or a modality with settings of its own, is not among the
            modalities.
    """
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
    return MODELS[config.name](config, spec)
