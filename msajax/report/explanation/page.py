"""Makes explanation.html: a page on which a person steps through samples, offline."""

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from msajax.files import as_strict
from msajax.report.explanation.report import attention_in_words, completeness_in_words
from msajax.report.page import all_printable

_FOLDER = "msajax.report.explanation"


def render(found: Mapping[str, Any]) -> str:
    """Makes the page of the content of explanation.json; it is one file and loads nothing.

    What the corpus says, such as ids and transcripts, enters as data that no browser reads as HTML
    or as a script, and without characters that would turn the reading direction of what follows.
    The browser runs only the script that this page brings.
    """
    style, body = _read("page.css"), _read("page.html")
    script = "\n".join(map(_read, ("page.js", "attention.js")))
    told = {
        **found,
        "completeness_in_words": completeness_in_words(found),
        "attention_in_words": " ".join(attention_in_words(found)).strip(),
    }
    data = all_printable(as_strict(told))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {"STYLE": style, "SCRIPT": script, "DIGEST": digest, "DATA": json_for_script(data)}
    before, *rest = body.split("{{")
    for part in rest:
        name, after = part.split("}}", 1)
        before += parts[name] + after
    return before


def json_for_script(value: Any) -> str:
    """Formats JSON so that nothing in it can end the script element that it stands in."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _read(name: str) -> str:
    return importlib.resources.files(_FOLDER).joinpath(name).read_text(encoding="utf-8")
