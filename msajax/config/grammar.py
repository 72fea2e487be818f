"""Reads settings in settings: of one modality's encoder, of groups of parameters, of terms.

They are text, as `PATTERN:setting=value`, because the names of modalities and of parameters are a
corpus's and a model's: no field of a dataclass could carry them.
"""

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from msajax.errors import UserError

_ENCODER_RATES = (
    "dropout_rate",
    "attention_dropout",
    "ffn_dropout",
    "projection_dropout",
    "input_dropout",
)
DROPOUT_RATES = (*_ENCODER_RATES, "head_dropout")
# Settings that one modality may have otherwise than the rest: those of its own encoder.
ENCODER_SETTINGS = (
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
    *_ENCODER_RATES,
)


# The settings of a group, and the range of each.
GROUP_SETTINGS = {
    "learning_rate": ("must be a finite number above 0", lambda value: value > 0),
    "weight_decay": ("must be a finite number, 0 or more", lambda value: value >= 0),
    "layer_decay": ("must lie in (0, 1]", lambda value: 0 < value <= 1),
    "warmup_steps": ("must be a whole number, 0 or more", lambda v: v >= 0 and v == int(v)),
    "frozen": ("must be true or false", lambda value: value in (0, 1)),
}


def parse(
    key: str,
    text: str,
    form: str,
    words: Collection[str],
    suits: Callable[[str], bool] = lambda value: True,
) -> list[str]:
    """Splits one entry of a setting of several entries into its parts.

    Args:
        key: the setting, such as `optim.groups`.
        form: names the parts, as `PATTERN:setting=value`; one of them is `setting` or `name`.
        words: what the part `setting` or `name` may be.
        suits: says whether the last part can be read.

    Raises:
        UserError: for an entry of another form, or another word.
    """
    chosen = "setting" if "setting" in form else "name"
    kinds = {chosen: "|".join(map(re.escape, words)), form.rpartition("=")[2]: ".*"}
    parts = [
        f"({kinds.get(part, '.+')})" if part.isalpha() else re.escape(part)
        for part in re.findall(r"[A-Za-z]+|[^A-Za-z]", form)
    ]
    found = re.fullmatch("".join(parts), text, re.DOTALL)
    if found is None or not suits(found.groups()[-1]):
        raise UserError(
            f"{key} = {text!r}: must be {form}, where {chosen} is one of {', '.join(words)}."
        )
    return list(found.groups())


def parse_override(text: str) -> list[str]:
    """Splits `text.input_dropout=0.3` into modality, setting and value, all text."""
    return parse("model.overrides", text, "modality.setting=value", ENCODER_SETTINGS)


def read_value(setting: str, text: str, kind: type) -> Any:
    """Converts an override's text to the type of its setting; raises `UserError` if it cannot."""
    words = {"true": True, "false": False}
    try:
        return words[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"model.overrides: {setting} = {text!r} must be of type {kind.__name__}."
        ) from error


def as_on(rate: float) -> float:
    """Returns one number for every rate that is on; 0, and what stands for another rate, stay."""
    return 0.5 if rate > 0 else rate


class GroupSetting(NamedTuple):
    """Holds an entry of `optim.groups`: for which paths of parameters, and what of them it sets.

    `frozen` has the value 1.0 for true and 0.0 for false. The pattern is one of fnmatch.
    """

    pattern: str
    setting: str
    value: float
    text: str


def read_group(text: str) -> GroupSetting:
    """Reads `PATTERN:setting=value`; raises `UserError` if it cannot."""
    pattern, setting, value = parse("optim.groups", text, "PATTERN:setting=value", GROUP_SETTINGS)
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
