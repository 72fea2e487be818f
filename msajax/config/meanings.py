"""Says in one line what each setting means: the first sentence of its docstring."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from msajax.config.registry import registered
from msajax.config.sections import Config


class Meaning(NamedTuple):
    """Explains a setting.

    Attributes:
        key: as in `--config.<key>=value`.
        default: its value unless it is set.
        text: what it means, one sentence.
    """

    key: str
    default: Any
    text: str


def meanings() -> list[Meaning]:
    """Explains every key that can be set, section by section; models' own settings come last."""
    own = [
        meaning
        for name, entry in registered().items()
        if entry.settings is not None
        for meaning in _explain(entry.settings, f"model.{name}.")
    ]
    return [*_explain(Config, ""), *own]


def _explain(section: type, prefix: str) -> Iterator[Meaning]:
    """Explains the fields of a dataclass and of those inside of it."""
    types, texts = typing.get_type_hints(section), attributes(section)
    for field in dataclasses.fields(section):
        if dataclasses.is_dataclass(types[field.name]):
            yield from _explain(types[field.name], f"{prefix}{field.name}.")
        elif field.default is not None:  # but for the place of the chosen model's own settings
            yield Meaning(prefix + field.name, field.default, _first(texts.get(field.name, "")))


def _first(text: str) -> str:
    """Cuts a text to its first sentence or clause, without what a long one explains in a list."""
    clause = re.split(r"[.;]\s", text + " ")[0].strip()
    head = clause.partition(": ")[0]
    return head if len(head) > 40 else clause


def attributes(section: type) -> dict[str, str]:
    """Returns what the docstring of a dataclass says of each field, under `Attributes:`."""
    _, _, listed = (inspect.getdoc(section) or "").partition("\nAttributes:\n")
    found = re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed)
    return {name: " ".join(text.split()) for name, text in found}
