"""Draws docs/results.svg, the picture of the README, from the tables of the README and docs.

    python bench/picture.py

No figure stands here: a row that is missing in its table, or has no number, is an error.
"""

import html
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "results.svg"

_BAR, _GAP, _NAMES, _BARS, _VALUES = 18, 8, 172, 210, 110  # in pixels
_OURS, _OTHERS = "#2a6f97", "#b9c2c9"


class Bar(NamedTuple):
    """A row of a panel: its name, a mean, its standard deviation or 0, and whether it is ours."""

    name: str
    mean: float
    sd: float
    ours: bool


def cells(page: str, beginning: str, column: str) -> str:
    """The cell of a column in the one table row of a page whose first cell begins so.

    Raises:
        LookupError: if the first table with that column and that row is not there.
    """
    header: list[str] = []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        row = [cell.strip(" *") for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if not row or column in row:
            header = row
        elif column in header and row[0].replace("*", "").startswith(beginning):
            return row[header.index(column)]
    raise LookupError(f"{page} has no row {beginning!r} with a column {column!r}")


def bar(name: str, page: str, beginning: str, column: str, ours: bool = False) -> Bar:
    """A bar of the number `mean ± sd`, or `mean`, in a table."""
    mean, sd = re.fullmatch(r"([\d.]+)(?: ± ([\d.]+))?", cells(page, beginning, column)).groups()
    return Bar(name, float(mean), float(sd or 0), ours)


def panels() -> list[tuple[str, str, list[Bar]]]:
    """The panels: what each shows, in two lines, and its bars."""
    comparison = "docs/comparison.md"
    text = (ROOT / comparison).read_text(encoding="utf-8")
    constant = re.search(r"`sign`, noise alone [\d.]+, constant ([\d.]+) on test", text)[1]
    return [
        (
            "All of CMU-MOSI: the first 20 words",
            "of a segment, and a vector of its voice",
            [
                bar("constant 0", "README.md", "constant 0", "MAE"),
                bar("MulT, its authors' recipe", "README.md", "MulT, its authors'", "MAE"),
                bar("msajax, text alone", "README.md", "msajax", "MAE", ours=True),
            ],
        ),
        (
            "An embedded corpus: the score needs",
            "words and voice of the same step",
            [
                Bar("constant", float(constant), 0, False),
                bar("without fusion", comparison, "without fusion", "test MAE"),
                bar("early pooling", comparison, "early pooling, clean heads", "test MAE"),
                bar("sequence-level fusion", comparison, "sequence-level", "test MAE", ours=True),
            ],
        ),
    ]


def draw(panels: list[tuple[str, str, list[Bar]]]) -> str:
    """The panels side by side, as SVG; bars of a panel share a scale that begins at 0."""
    width = _NAMES + _BARS + _VALUES
    height = 60 + max(len(bars) for _, _, bars in panels) * (_BAR + _GAP) + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * len(panels)}" height="{height}" '
        f'viewBox="0 0 {width * len(panels)} {height}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]

    def say(x: float, y: float, text: str, more: str = "") -> None:
        lines.append(f'<text x="{x:g}" y="{y:g}"{more}>{html.escape(text)}</text>')

    for number, (first, second, bars) in enumerate(panels):
        left = number * width + _NAMES
        say(left, 20, first, ' font-weight="bold"')
        say(left, 37, second, ' font-weight="bold"')
        scale = _BARS / max(each.mean + each.sd for each in bars)
        for i, each in enumerate(bars):
            top, color = 52 + i * (_BAR + _GAP), _OURS if each.ours else _OTHERS
            say(left - 8, top + 14, each.name, ' text-anchor="end"')
            lines.append(
                f'<rect x="{left}" y="{top}" width="{each.mean * scale:.1f}" height="{_BAR}" '
                f'fill="{color}"/>'
            )
            ends = [left + (each.mean + sign * each.sd) * scale for sign in (-1, 1)]
            middle = top + _BAR / 2
            if each.sd:
                lines.append(f'<path d="M{ends[0]:.1f} {middle:g}H{ends[1]:.1f}" stroke="black"/>')
            shown = f"{each.mean:.3f}" + (f" ± {each.sd:.3f}" if each.sd else "")
            say(round(ends[1] + 6, 1), top + 14, shown)
    note = "Mean absolute error on the test split, ± sd over random seeds: shorter is better"
    say(_NAMES, height - 10, note, ' font-size="11" fill="#555"')
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(draw(panels()), encoding="utf-8")
