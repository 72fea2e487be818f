"""Lists the models of this package.

A model is an entry here, its module in this folder, which has its `MODEL`, and perhaps settings of
its own. The configuration reads this table, so neither this nor `peers/settings.py` imports JAX.
"""

import dataclasses
from typing import Any

from msajax.checks import Settings
from msajax.models.peers.settings import (
    AlmtSettings,
    DlfSettings,
    EfLstmSettings,
    LfDnnSettings,
    LmfSettings,
    MagSettings,
    MisaSettings,
    MmimSettings,
    MultSettings,
    SelfMmSettings,
    TextOnlySettings,
    TfnSettings,
)


@dataclasses.dataclass(frozen=True)
class RegisteredModel:
    """Says what the configuration must know of a model.

    Attributes:
        module: the one of this folder that has its `MODEL`, as `peers.tfn`; "" for a model that a
            user has registered.
        settings: the dataclass of `model.<name>.*`; None for a model that reads `model.*` alone.
        reads: names of the settings of `model.*` that it reads beside those that every model has;
            None for all of them.
        task: the only task that it is for; "" for whichever the labels ask for.
        modalities: those that it reads, if it reads these alone; () for whichever a corpus has.
        declared: its `Model` or linen module; None for a model of this package.
        origin: the file that registered it; "" for a model of this package.
        digest: the SHA-256 that this file had then.
    """

    module: str = ""
    settings: type[Settings] | None = None
    reads: tuple[str, ...] | None = None
    task: str = ""
    modalities: tuple[str, ...] = ()
    declared: Any = None
    origin: str = ""
    digest: str = ""


_NEXT_TOKEN = ("model_dim", "num_heads", "head_dim", "value_dim", "ff_dim", "n_layers_mod")
_NEXT_TOKEN += ("embedding_scale", "causal", "mixer", "both_directions", "activation", "norm")
_NEXT_TOKEN += ("norm_eps", "norm_position", "final_norm", "final_norm_type", "positions")
_NEXT_TOKEN += ("position_init", "qkv_bias", "out_bias", "ffn_inner_bias", "dropout_rate")
_NEXT_TOKEN += ("attention_dropout", "ffn_dropout", "projection_dropout", "max_len", "dtype")
_NEXT_TOKEN += ("matmul_precision", "overrides", "ranges")
# What every peer reads beside its own settings: how modalities become vectors.
_PEER = ("text_encoder", "encoders", "encoder_layer_drop", "encoder_time_masking", "text_pool")
_PEER += ("text_special", "gradient_checkpointing", "embedding_dim", "embedding_scale", "max_len")
_PEER += ("matmul_precision",)
# It reads the first piece, whatever is made of the others for fusion.
_MAG = tuple(key for key in _PEER if key not in ("text_pool", "text_special"))
MODELS = {
    "sequence_level": RegisteredModel("sequence_level"),
    "next_token": RegisteredModel("next_token", reads=_NEXT_TOKEN, task="next_token"),
    "ef_lstm": RegisteredModel("peers.ef_lstm", EfLstmSettings, _PEER),
    "lf_dnn": RegisteredModel("peers.lf_dnn", LfDnnSettings, _PEER),
    "text_only": RegisteredModel("peers.text_only", TextOnlySettings, _PEER, modalities=("text",)),
    "tfn": RegisteredModel("peers.tfn", TfnSettings, _PEER),
    "lmf": RegisteredModel("peers.lmf", LmfSettings, _PEER),
    "mag": RegisteredModel("peers.mag", MagSettings, _MAG),
    "misa": RegisteredModel("peers.misa", MisaSettings, _PEER),
    "self_mm": RegisteredModel("peers.self_mm", SelfMmSettings, _PEER),
    "mmim": RegisteredModel("peers.mmim", MmimSettings, _PEER),
    "almt": RegisteredModel("peers.almt", AlmtSettings, _PEER),
    "mult": RegisteredModel("peers.mult", MultSettings, _PEER),
    "dlf": RegisteredModel("peers.dlf", DlfSettings, _PEER),
}
