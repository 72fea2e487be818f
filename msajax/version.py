"""Holds the version of msajax, and that of its numbers; packaging reads it from the text."""

from collections.abc import Mapping
from typing import Any

from msajax.errors import UserError

__version__ = "0.1.0"

# Raised whenever preparation, masks, random bits or the arithmetic of models change. Nothing is
# migrated: a run that goes on, or a bundle that predicts, gives the numbers it gave before.
NUMERICS = 6


def require_numerics(content: Mapping[str, Any], what: str) -> None:
    """Refuses a run or a bundle whose numbers this program would not reproduce.

    Args:
        content: of the run.json or bundle.json; its entry `numerics` is compared.
        what: names the run or bundle in the message.

    Raises:
        UserError: if that number is another one, or missing.
    """
    found = content.get("numerics")
    if type(found) is not int or found != NUMERICS:
        theirs = "none" if found is None else repr(found)
        raise UserError(
            f"{what} was made with other arithmetic (numerics: {theirs} there, {NUMERICS} here), "
            "and would not go on to the same numbers: use the msajax that made it, or train anew."
        )
