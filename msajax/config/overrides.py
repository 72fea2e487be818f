"""Reads `model.overrides`: settings that one modality's encoder has otherwise than the rest.

They are text, `modality.setting=value`, because the names of modalities are the corpus's: no field
of a dataclass could carry them.
"""

from typing import Any

from msajax.errors import UserError

# Settings that one modality may have otherwise than the rest: those of its own encoder.
OF_AN_ENCODER = (
    "n_layers_mod",
    "n_layers_post_fuse",
    "mixer",
    "both_directions",
    "num_heads",
    "head_dim",
    "value_dim",
    "qkv_bias",
    "out_bias",
    "ff_dim",
    "ffn_inner_bias",
    "activation",
    "norm",
    "norm_eps",
    "norm_position",
    "final_norm",
    "input_projection",
    "positions",
    "position_init",
    "dropout_rate",
    "attention_dropout",
    "ffn_dropout",
    "projection_dropout",
    "input_dropout",
)


def split_override(text: str) -> tuple[str, str, str]:
    """Splits `text.input_dropout=0.3` into its three parts; raises `UserError` if it cannot."""
    key, equals, value = text.partition("=")
    name, dot, setting = key.rpartition(".")
    if not (equals and dot and name and setting in OF_AN_ENCODER):
        raise UserError(
            f"model.overrides = {text!r}: must be modality.setting=value, where setting is one of "
            f"{', '.join(OF_AN_ENCODER)}."
        )
    return name, setting, value


def read_value(setting: str, text: str, kind: type) -> Any:
    """Converts an override's text to the type of its setting; raises `UserError` if it cannot."""
    words = {"true": True, "false": False}
    try:
        return words[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"model.overrides: {setting} = {text!r} must be of type {kind.__name__}."
        ) from error
