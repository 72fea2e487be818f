"""Lists the models of this package.

A model is a module with its `MODEL`, perhaps a file of settings without JAX beside it, and an entry
in `MODELS`. Nothing here imports JAX before a model is built: the configuration reads this table.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from msajax.checks import Settings


@dataclasses.dataclass(frozen=True)
class RegisteredModel:
    """Says what the configuration must know of a model.

    Attributes:
        load: returns its `Model`, or its linen module; of a model of this package that imports JAX.
        settings: the dataclass of `model.<name>.*`; None for a model that reads `model.*` alone.
        reads: names of the settings of `model.*` that it reads beside those that every model has;
            None for all of them.
        task: the only task that it is for; "" for whichever the labels ask for.
        origin: the file that registered it; "" for a model of this package.
        digest: the SHA-256 that this file had then.
    """

    load: Callable[[], Any]
    settings: type[Settings] | None = None
    reads: tuple[str, ...] | None = None
    task: str = ""
    origin: str = ""
    digest: str = ""


def _sequence_level() -> Any:
    from msajax.models.sequence_level import MODEL

    return MODEL


def _next_token() -> Any:
    from msajax.models.next_token import MODEL

    return MODEL


_NEXT_TOKEN = ("model_dim", "num_heads", "head_dim", "value_dim", "ff_dim", "n_layers_mod")
_NEXT_TOKEN += ("embedding_scale", "causal", "mixer", "both_directions", "activation", "norm")
_NEXT_TOKEN += ("norm_eps", "norm_position", "final_norm", "final_norm_type", "positions")
_NEXT_TOKEN += ("position_init", "qkv_bias", "out_bias", "ffn_inner_bias", "dropout_rate")
_NEXT_TOKEN += ("attention_dropout", "ffn_dropout", "projection_dropout", "max_len", "dtype")
_NEXT_TOKEN += ("matmul_precision", "overrides", "ranges")
MODELS = {
    "sequence_level": RegisteredModel(_sequence_level),
    "next_token": RegisteredModel(_next_token, reads=_NEXT_TOKEN, task="next_token"),
}
