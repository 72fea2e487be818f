"""Reads what a bundle says of itself, bundle.json, before anything slow: JAX is not needed."""

import hashlib
import json
import os
from typing import Any

from msajax.config import is_registered
from msajax.config.identity import require_numerics
from msajax.errors import UserError
from msajax.files import meant
from msajax.runs.manifest import BUNDLE, DESCRIPTION

FORMAT_VERSION = 6
# What reading a damaged file may raise.
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError)
DAMAGE += (RecursionError, OverflowError)


def read_description(path: str) -> dict[str, Any]:
    """Reads and verifies a folder's bundle.json; raises `UserError` for one that cannot be used."""
    if not os.path.isfile(os.path.join(path, DESCRIPTION)):
        inside = os.path.join(path, BUNDLE)
        is_run = os.path.isfile(os.path.join(inside, DESCRIPTION))
        advice = f"; did you mean {inside}?" if is_run else meant(path)
        raise UserError(
            f"There is no bundle at {path}: it would hold a file {DESCRIPTION}{advice or '.'}"
        )
    try:
        with open(os.path.join(path, DESCRIPTION), encoding="utf-8") as file:
            content = json.load(file)
        if int(content["format_version"]) > FORMAT_VERSION:
            raise UserError(
                f"The bundle {path} has format {content['format_version']}, newer than this "
                f"program's {FORMAT_VERSION}: install msajax {content['msajax']} or newer."
            )
        if int(content["format_version"]) < FORMAT_VERSION:
            raise UserError(
                f"The bundle {path} was written by an older msajax, {content['msajax']}, in format "
                f"{content['format_version']}; this program reads {FORMAT_VERSION}: train anew."
            )
        if content.pop("sha256") != content_digest(content):
            raise ValueError(f"{DESCRIPTION} does not match its digest")
        require_numerics(content, f"The bundle {path}")
        model = content["model"]
        if not is_registered(model["name"]):
            raise UserError(
                f"The bundle {path} has the model {model['name']!r}, which is no model of msajax: "
                f"it was {model['module']} in {model['file']}. Add --models=FILE.py with that "
                "file, or in Python import it first."
            )
        return content
    except UserError:
        raise
    except DAMAGE as error:
        raise UserError(f"The bundle {path} is damaged: {error}.") from error


def content_digest(content: dict[str, Any]) -> str:
    """Returns the digest of what bundle.json holds."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
