"""Draws charts as SVG that becomes part of a page: the only importer of matplotlib.

Colours are names of the page's style sheet, so that one drawing serves light, dark and paper; text
stays text, in the page's font. Nothing of it is a formula, whatever it holds.
"""

import dataclasses
import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

WIDTH = 380  # pixels of every chart: a phone shows one at its size, a screen two side by side
SERIES = 6  # colours that are told apart, also by the colour-blind

# Colours that matplotlib is given, and that stand for those of the style sheet.
INK, MUTED, GRID, PAPER = "#100001", "#100002", "#100003", "#100004"
_NAMES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"}
_NAMES |= {f"#1001{k:02d}": f"s{k}" for k in range(1, SERIES + 1)}
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (3, 1)), (0, (9, 3)))
_THICK = 1.6  # pixels of a line, by which matplotlib scales dashes

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "msajax",  # ids follow from what is drawn, and not from chance
    "text.parse_math": False,  # a $ is a $
    "axes.unicode_minus": True,
    "font.size": 11,
    "text.color": MUTED,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 1,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
    "lines.linewidth": _THICK,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
}


@dataclasses.dataclass(frozen=True)
class Key:
    """Says what a line or a mark of a chart stands for.

    Attributes:
        label: in words.
        series: the number of its colour, from 0.
        form: line, dot, cross or band.
    """

    label: str
    series: int
    form: str = "line"

    @property
    def colour(self) -> int:
        """The number of the colour in the style sheet, from 1."""
        return self.series % SERIES + 1

    @property
    def dashes(self) -> str:
        """The dashes of a line, as SVG has them."""
        style = dash(self.series)
        return "none" if style == "-" else " ".join(f"{_THICK * part:g}" for part in style[1])


@dataclasses.dataclass(frozen=True)
class Chart:
    """Holds a drawing and the words around it.

    Attributes:
        title: what it shows.
        svg: as `draw` makes it.
        keys: what its lines and marks stand for; () where nothing needs a key.
        note: how to read it.
    """

    title: str
    svg: Markup
    keys: Sequence[Key] = ()
    note: str = ""


def colour(series: int) -> str:
    """Returns the colour of a series, counted from 0; more than there are begin again."""
    return f"#1001{series % SERIES + 1:02d}"


def dash(series: int) -> Any:
    """Returns the line style of a series, which tells lines apart where colours do not."""
    return _DASHES[series % len(_DASHES)]


def mark(series: int) -> dict[str, Any]:
    """Returns how points of a series are marked, which tells them apart where colours do not."""
    return {
        "marker": "osD^vP"[series % SERIES],
        "markersize": 7.5 if series % SERIES < 3 else 9.5,  # of those with corners less is filled
        "markeredgecolor": PAPER,
        "markeredgewidth": 1.2,
        "color": colour(series),
    }


def draw(
    description: str,
    paint: Callable[[Any], None],
    *,
    height: int = 250,
    labels: tuple[str, str] = ("", ""),
    left: int = 46,
    below: int = 0,
) -> Markup:
    """Draws a chart on one pair of axes.

    Args:
        description: what it shows, for those who do not see it.
        paint: draws on the axes that it is given.
        height: in pixels.
        labels: of the horizontal and the vertical axis.
        left: pixels beside the axes, for the labels of ticks.
        below: pixels below them, and of height, beyond what numbers need.

    Returns:
        An `svg` element without size, colours or font of its own; the same calls give the same.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    height += below
    below, above = below + (40 if labels[0] else 26), (28 if labels[1] else 10)
    file = io.StringIO()
    usual = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    with warnings.catch_warnings(), matplotlib.rc_context({**usual, **_STYLE}):
        warnings.simplefilter("ignore")  # of letters that the measuring font lacks; browsers draw
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor="none")
        FigureCanvasSVG(figure)
        size = (WIDTH - left - 14) / WIDTH, (height - below - above) / height
        axes = figure.add_axes((left / WIDTH, below / height, *size))
        paint(axes)
        figure.text(1 - 14 / WIDTH, 4 / height, labels[0], ha="right")
        figure.text(4 / WIDTH, 1 - 4 / height, labels[1], va="top")
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    return _inline(file.getvalue(), description)


def _inline(text: str, description: str) -> Markup:
    """Makes a file of SVG an element of a page: one whose ids and styles stay its own."""
    root = ElementTree.fromstring(text)
    used = set(re.findall(r"#([\w.-]+)[)\"]", text))
    prefix = f"f{zlib.crc32((text + description).encode()):x}-"
    for parent in root.iter():
        for child in list(parent):
            name = child.tag.partition("}")[2]
            if name in ("metadata", "style"):  # a style sheet would be the whole page's
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
        element.attrib = {
            key.partition("}")[2] or key: _attribute(key, value, prefix)
            for key, value in element.attrib.items()
            if key != "id" or value in used
        }
        if element.tag != "text":
            element.text = None
        element.tail = None
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": description,
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _attribute(key: str, value: str, prefix: str) -> str:
    """Rewrites an attribute: ids with a prefix, colours by name, no font, short numbers."""
    if key == "id":
        return prefix + value
    if key.endswith("href") or key == "clip-path":
        return value.replace("#", f"#{prefix}")
    if key == "style":
        value = re.sub("#1[0-9a-f]{5}", lambda found: f"var(--{_NAMES[found[0]]})", value)
        return re.sub(r"font-family: [^;]*;? ?", "", value)
    if key in ("d", "x", "y", "transform", "points"):
        value = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", value)
        return " ".join(value.split())
    return value
