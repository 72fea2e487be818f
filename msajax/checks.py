"""Checks settings; a failed check names the key, its value and what would be right."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from msajax.errors import UserError


class Settings:
    """Serves as the base of every section of the configuration, a dataclass with defaults."""

    def __repr__(self) -> str:
        """Shows only what differs from the defaults."""
        usual = type(self)()
        changed = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(usual, field.name)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


def require(section: Any, key: str, ok: bool, requirement: str) -> None:
    """Raises `UserError` with the key, its value in `section` and the requirement unless `ok`."""
    if not ok:
        value = getattr(section, key.rpartition(".")[2])
        raise UserError(f"{key} = {value!r}: {requirement}.")


def at_least(section: Any, prefix: str, minimum: int, *names: str) -> None:
    """Requires `prefix.name` of a section to be `minimum` or more, for each name."""
    for name in names:
        ok = getattr(section, name) >= minimum
        require(section, f"{prefix}.{name}", ok, f"must be {minimum} or more")


def are_rates(section: Any, prefix: str) -> None:
    """Requires every field of a section that is a dropout rate to lie in [0, 1)."""
    for field in dataclasses.fields(section):
        if field.name.endswith("dropout"):
            ok = 0 <= getattr(section, field.name) < 1
            require(section, f"{prefix}.{field.name}", ok, "must lie in [0, 1)")


def one_of(section: Any, key: str, *choices: str) -> None:
    """Requires a setting to be one of the choices."""
    value = getattr(section, key.rpartition(".")[2])
    require(section, key, value in choices, f"must be one of {', '.join(choices)}")


def differences(here: Mapping[str, Any], there: Mapping[str, Any], form: str) -> list[str]:
    """Says in what two flat mappings differ, key by key; a value that one lacks is nothing.

    Each difference has a form such as "{key}: {there} there, {here} here".
    """

    def said(values: Mapping[str, Any], key: str) -> str:
        return repr(values[key]) if key in values else "nothing"

    return [
        form.format(key=key, here=said(here, key), there=said(there, key))
        for key in {**here, **there}
        if key not in here or key not in there or here[key] != there[key]
    ]


def number_of(text: Any, otherwise: Any = math.nan) -> Any:
    """Returns the number that a text is, and what is given `otherwise` for all that is none."""
    try:
        return float(text)
    except (ValueError, TypeError, OverflowError):
        return otherwise


def is_finite_number(text: Any) -> bool:
    """Tells whether a setting that may also be a word, or anything else, is a finite number."""
    return math.isfinite(number_of(text))


def is_url(path: Any) -> bool:
    """Tells whether what stands for a path names something in a store, as gs://bucket/run does.

    So does gs:/bucket/run, though it names no bucket: as a path it would be a folder named gs:.
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)) is not None
