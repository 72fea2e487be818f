"""Lays out pages of panels in one self-contained HTML file that opens offline.

Text reaches a page through templates that escape it, or as `Markup` that such a template has made.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from msajax.report.figures import Chart
from msajax.report.text import printable


@dataclasses.dataclass(frozen=True)
class Panel:
    """Holds one section of a page.

    Attributes:
        heading: in words; also the entry in the table of contents.
        body: HTML, as `fragment` makes it.
        charts: what is drawn of it in files of figures.
    """

    heading: str
    body: Markup
    charts: Sequence[Chart] = ()

    @classmethod
    def of(
        cls, heading: str, template: str, drawn: Sequence[Chart] = (), **values: Any
    ) -> "Panel":
        """Fills a template, whose value "charts" or "chart" is what it draws.

        Args:
            heading: of the panel.
            template: of this package.
            drawn: what the template shows without a drawing, and figures need one for.
            **values: of the template; all are escaped.
        """
        charts = [*values.get("charts", ()), values.get("chart"), *drawn]
        return cls(heading, fragment(template, **values), [chart for chart in charts if chart])


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("msajax.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["unbroken"] = _unbroken
    return templates


def _unbroken(text: str) -> str:
    """Keeps a line from ending between a number and its unit, or inside of an interval."""
    text = re.sub(r"(\d) %", "\\1\u00a0%", text)
    return re.sub(r"(\[[^\[\] ]+,) ", "\\1\u00a0", text)


def _finalized(value: Any) -> Any:
    """Makes text printable where it enters a template; markup stays markup."""
    if isinstance(value, str):
        clean = printable(value)
        return Markup(clean) if isinstance(value, Markup) else clean
    return value


def fragment(template: str, **values: Any) -> Markup:
    """Fills a template of this package, such as `samples.html`; all values are escaped."""
    return Markup(_templates().get_template(template).render(**values))


def render(
    title: str,
    panels: Sequence[Panel],
    *,
    eyebrow: str = "",
    facts: Sequence[str] = (),
) -> str:
    """Makes a page, in which no script can run: its content security policy forbids them.

    Args:
        title: its heading.
        panels: its sections, in their order.
        eyebrow: a few words above the heading.
        facts: short phrases below it.

    Returns:
        A whole HTML document; the same values give the same text.
    """
    names: list[str] = []
    for panel in panels:
        name = re.sub("[^a-z0-9]+", "-", panel.heading.lower()).strip("-")
        names.append(f"{name}-{len(names)}" if name in names else name)
    return _templates().get_template("page.html").render(
        title=title,
        eyebrow=eyebrow,
        facts=facts,
        panels=list(zip(names, panels, strict=True)),
    )
