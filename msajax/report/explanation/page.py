"""Makes explanation.html: a page on which a person steps through samples, offline."""

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from msajax.files import as_strict
from msajax.report.explanation.integrate import EXACT
from msajax.report.page import clean

_FOLDER = importlib.resources.files("msajax.report.explanation")


def render(found: Mapping[str, Any]) -> str:
    """Makes the page of the content of explanation.json; it is one file and loads nothing.

    What the corpus says, such as ids and transcripts, enters as data that no browser reads as HTML
    or as a script, and without characters that would turn the reading direction of what follows.
    The browser runs only the script that this page brings.
    """
    style, body, *scripts = (
        _FOLDER.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.html", "page.js", "attention.js")
    )
    script = "\n".join(scripts)
    told = {
        **found,
        "completeness_in_words": completeness_in_words(found),
        "attention_in_words": " ".join(attention_in_words(found)).strip(),
    }
    data = clean(as_strict(told))
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


def completeness_in_words(found: Mapping[str, Any]) -> str:
    """Says how well the contributions of a sample sum to its score."""
    error = found["summary"]["completeness"]
    share, points = 100 * error["relative_median"], error["points"]
    said = (
        f"Contributions sum to the score minus that of the baseline with a median error of "
        f"{share:.2g} % of that difference (at most {error['max']:.2g}), by {points} points "
        "of the path."
    )
    if error["relative_median"] >= EXACT:
        said += " That is not exact: read single contributions with care."
    return said


def attention_in_words(found: Mapping[str, Any]) -> tuple[str, str]:
    """Says what the maps of attention are, and what of them is left out; "" and "" without maps."""
    maps = [one for sample in found["samples"] for one in sample["attention"]]
    if not maps:
        return "", ""
    detail, seeds, left_out = found["attention"], found["seeds"], []
    said = "Attention is the mean over heads" + (f" and {seeds} random seeds" if seeds > 1 else "")
    if detail["heads"] and seeds > 1:
        said += (
            f"; a single head is that of random seed {detail['heads_of_seed']}, for heads of "
            "different seeds do not correspond"
        )
    if not detail["heads"]:
        left_out.append(
            "Single heads of attention are left out, which would make the page too large: a "
            "smaller number of --samples shows them."
        )
    if any(max(one["steps_of_cells"]) > 1 for one in maps):
        left_out.append(
            f"Maps of attention have at most {detail['cells']} cells a side: a cell of several "
            "steps is the mean of those that attend, and the sum over those attended to."
        )
    return f"{said}.", " ".join(left_out)
