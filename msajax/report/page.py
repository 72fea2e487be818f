"""Lays out pages of panels in one self-contained HTML file that opens offline.

Text reaches a page through templates that escape it, or as `Markup` that such a template has made.
"""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from msajax.errors import UserError, writing
from msajax.files import write_bytes
from msajax.report.figures import PROGRAM, Chart

# What HTML or XML cannot hold, and what would turn the reading direction of its surroundings.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def clean(value: Any) -> Any:
    """Replaces characters, also in JSON, that a page cannot hold or that reverse what follows."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def shortened(text: str, length: int) -> str:
    """Cleans a text, and cuts it to so many characters; a cut one ends in an ellipsis."""
    text = clean(text)
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def with_sign(value: float) -> str:
    """Formats a label or a score with its sign and two decimals."""
    return f"{value:+.2f}".replace("-", "−")


@dataclasses.dataclass(frozen=True)
class Panel:
    """Holds one section of a page."""

    heading: str
    body: Markup
    charts: Sequence[Chart] = ()

    @classmethod
    def of(cls, heading: str, template: str, drawn: Sequence[Chart] = (), **values: Any) -> "Panel":
        """Fills a template, whose value "charts" or "chart" is what it draws.

        Args:
            drawn: charts of what the template shows without a drawing, for files of figures.
            **values: values that the template names; all are escaped.
        """
        charts = [*values.get("charts", ()), values.get("chart"), *drawn]
        body = Markup(fill(template, **values))  # which has escaped the values
        return cls(heading, body, [chart for chart in charts if chart])


@functools.cache
def _templates() -> jinja2.Environment:
    def unbroken(text: str) -> str:
        """Keeps a line from ending between a number and its unit, or inside of an interval."""
        text = re.sub(r"(\d) %", "\\1\u00a0%", text)
        return re.sub(r"(\[[^\[\] ]+,) ", "\\1\u00a0", text)

    def finalize(value: Any) -> Any:
        """Cleans text where it enters a template; markup stays markup."""
        if isinstance(value, Markup):
            return Markup(clean(value))
        return clean(value) if isinstance(value, str) else value

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("msajax.report"),
        autoescape=lambda name: not name.endswith(".md"),
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["unbroken"] = unbroken
    return templates


def fill(template: str, **values: Any) -> str:
    """Fills a template of this package; values are escaped, but for those of a template.md."""
    return _templates().get_template(template).render(**values)


def render(
    title: str, panels: Sequence[Panel], *, eyebrow: str = "", facts: Sequence[str] = ()
) -> str:
    """Makes an HTML page whose security policy forbids scripts; equal values give equal text."""
    names: list[str] = []
    for panel in panels:
        name = re.sub("[^a-z0-9]+", "-", panel.heading.lower()).strip("-")
        names.append(f"{name}-{len(names)}" if name in names else name)
    named = list(zip(names, panels, strict=True))
    return fill("page.html", title=title, eyebrow=eyebrow, facts=facts, panels=named)


# --- files of figures ---

_LONGEST = 80  # characters of a name


def draw_figures(panels: Sequence[Panel]) -> dict[str, bytes]:
    """Draws every chart of a page as PDF and SVG; returns the bytes of the files by their names.

    A name is made of the heading of the panel and the title of the chart. The same page gives the
    same files.
    """
    found: dict[str, bytes] = {}
    for panel in panels:
        for chart in panel.charts:
            words = re.sub("[^a-z0-9]+", "-", f"{panel.heading} {chart.title}".lower())
            plain = name = words[:_LONGEST].strip("-")
            for count in itertools.count(2):
                if f"{name}.pdf" not in found:
                    break
                name = f"{plain}-{count}"
            found |= chart.files(name)
    return found


def write_figures(folder: str, figures: Mapping[str, bytes]) -> None:
    """Writes files of figures into a folder, which is made if needed, each whole or not at all.

    Files of these names that msajax has written before are replaced.

    Raises:
        UserError: before anything is written, if one is there that it has not; or if they cannot
            be written.
    """
    for name in figures:
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            continue
        content = b""
        if os.path.isfile(path):
            with open(path, "rb") as file:
                content = file.read()
        # A figure names this program as its maker, in the way of PDF or of SVG.
        if f"/Creator ({PROGRAM})".encode() in content or f">{PROGRAM}<".encode() in content:
            continue
        raise UserError(f"{path} is there already and is no figure of msajax: move it away.")
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    for name, content in figures.items():
        write_bytes(os.path.join(folder, name), content)
