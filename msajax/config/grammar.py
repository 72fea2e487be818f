"""Reads settings in settings: of one modality's encoder, and of groups of parameters.

They are text, as `modality.setting=value`, because the names of modalities and of parameters are a
corpus's and a model's: no field of a dataclass could carry them.
"""

from typing import Any, NamedTuple

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
    "final_norm_type",
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


class GroupSetting(NamedTuple):
    """Holds an entry of `optim.groups`.

    Attributes:
        pattern: which paths of parameters it is about, in the manner of fnmatch.
        setting: one of `GROUP_SETTINGS`.
        value: a number; of frozen 1.0 for true and 0.0 for false.
        text: the entry.
    """

    pattern: str
    setting: str
    value: float
    text: str


# The settings of a group, and the range of each.
GROUP_SETTINGS = {
    "learning_rate": ("must be a finite number above 0", lambda value: value > 0),
    "weight_decay": ("must be a finite number, 0 or more", lambda value: value >= 0),
    "layer_decay": ("must lie in (0, 1]", lambda value: 0 < value <= 1),
    "warmup_steps": ("must be a whole number, 0 or more", lambda v: v >= 0 and v == int(v)),
    "frozen": ("must be true or false", lambda value: value in (0, 1)),
}


def read_group(text: str) -> GroupSetting:
    """Reads `PATTERN:setting=value`; raises `UserError` if it cannot."""
    pattern, colon, rest = text.rpartition(":")
    setting, equals, value = rest.partition("=")
    if not (pattern and colon and equals and setting in GROUP_SETTINGS):
        raise UserError(
            f"optim.groups = {text!r}: must be PATTERN:setting=value, where setting is one of "
            f"{', '.join(GROUP_SETTINGS)}."
        )
    words = {"true": 1.0, "false": 0.0}
    requirement, suits = GROUP_SETTINGS[setting]
    try:
        number = words[value.lower()] if setting == "frozen" else float(value)
        ok = number - number == 0 and suits(number)  # neither infinite nor NaN
    except (KeyError, ValueError):
        ok = False
    if not ok:
        raise UserError(f"optim.groups = {text!r}: {setting} {requirement}.")
    return GroupSetting(pattern, setting, number, text)
