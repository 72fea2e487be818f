"""The version of msajax, and that of its numbers: readable without importing the package."""

from collections.abc import Mapping
from typing import Any

from msajax.errors import UserError

__version__ = "0.1.0"

NUMERICS = 3
"""Raised whenever preparation, masks, random bits or the arithmetic of models change."""


def require_numerics(content: Mapping[str, Any], what: str) -> None:
    """Refuses a run or a bundle whose numbers this program would not give again.

    Args:
        content: of its run.json or bundle.json, with `numerics` if it has one.
        what: it is, for the message.

    Raises:
        UserError: if its number is another one, or missing.
    """
    found = content.get("numerics")
    if type(found) is not int or found != NUMERICS:
        theirs = "none" if found is None else repr(found)
        raise UserError(
            f"{what} was made with other arithmetic (numerics: {theirs} there, {NUMERICS} here), "
            "and would not go on to the same numbers: use the msajax that made it, or train anew."
        )
