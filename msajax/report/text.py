"""Prepares text for pages: what comes from a corpus and its files becomes printable and short."""

import re
from collections.abc import Mapping
from typing import Any

# What HTML or XML cannot hold, and what would turn the reading direction of its surroundings.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """Replaces characters that a page cannot hold, or that would reverse what follows them."""
    return _UNPRINTABLE.sub("\ufffd", text)


def all_printable(value: Any) -> Any:
    """Applies `printable` to every text in a value of JSON, names of its objects included."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(key): all_printable(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [all_printable(of) for of in value]
    return value


def shortened(text: str, length: int) -> str:
    """Makes a text printable, and cuts it to so many characters; a cut one ends in an ellipsis."""
    text = printable(text)
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def signed(value: float) -> str:
    """Formats a label or a score with its sign and two decimals."""
    return f"{value:+.2f}".replace("-", "−")
