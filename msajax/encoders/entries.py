"""Reads checked values out of the config.json of a pretrained encoder."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msajax.errors import UserError

# The names of config.json, and their names in `layers/basic.py`.
_ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_python": "gelu", "relu": "relu"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
}


class Entries:
    """Reads checked values out of a config.json; the keys of nulls are in `nulls` alone.

    Attributes:
        keys: the file's names of keys that are read here by other ones, by those.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        where: str,
        keys: Mapping[str, str] = MappingProxyType({}),
        usual: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Keeps what a file holds, and what is `usual` where it lacks that."""
        here = {theirs: ours for ours, theirs in keys.items()}
        renamed = {here.get(key, key): x for key, x in content.items() if key not in keys}
        self.nulls = {key for key, value in renamed.items() if value is None}
        given = {key: value for key, value in renamed.items() if value is not None}
        self.content = {**usual, **given}
        self.where = where
        self.keys = keys

    def key(self, name: str) -> str:
        """Returns what the file calls a key."""
        return self.keys.get(name, name)

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """Reads a whole number from `least` to `most`; without a default it must be there."""
        value = self.content.get(key, default)
        if value is None:
            raise UserError(
                f"{self.where} lacks {self.key(key)}: a whole number from {least} to {most}."
            )
        ok = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        self.require(key, ok, f"must be a whole number from {least} to {most}")
        return value

    def number(self, key: str, least: float, below: float, default: float) -> float:
        """Reads a finite number, `least` or more and smaller than `below`."""
        value = self.content.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        ok = is_number and least <= value < below and math.isfinite(value)
        self.require(key, ok, f"must be a number from {least:g} to below {below:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Reads true or false."""
        value = self.content.get(key, default)
        self.require(key, isinstance(value, bool), "must be true or false")
        return value

    def activation(self, key: str) -> str:
        """Reads the name of an activation, and returns our name of it."""
        value = self.content.get(key, "gelu")
        ok = isinstance(value, str) and value in _ACTIVATIONS
        self.require(key, ok, f"is not computed here; {', '.join(_ACTIVATIONS)} are")
        return _ACTIVATIONS[value]

    def refuse(self, key: str, *computed: Any) -> Any:
        """Returns the value of a key, which is the first one where it is missing.

        Refuses every value but those that are computed here.
        """
        value = self.content.get(key, computed[0])
        same = any(type(value) is type(one) and value == one for one in computed)
        names = " or ".join(str(one).lower() for one in computed)
        self.require(key, same, f"is not computed here, only {names} is")
        return value

    def require(self, key: str, ok: bool, requirement: str) -> None:
        """Raises `UserError` with a key, its value, shortened, and the requirement unless `ok`."""
        if not ok:
            said = shown(self.content.get(key))
            raise UserError(f"{self.where}: {self.key(key)} = {said}: {requirement}.")


def shown(value: Any) -> str:
    """Writes a value as Python does, shortened."""
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:60]}…"
