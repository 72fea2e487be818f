"""Draws charts, as SVG of a page and as files of PDF and SVG: the only importer of matplotlib.

On a page colours are names of its style sheet, so that one drawing serves light, dark and paper;
text stays text, in the page's font. Files have the colours of paper. Nothing is a formula, whatever
it holds.
"""

import contextlib
import dataclasses
import io
import logging
import re
import warnings
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

logger = logging.getLogger(__name__)

WIDTH = 380  # pixels of every chart: a phone shows one at its size, a screen two side by side

# Those of the style sheet on light ground and on paper.
INK, MUTED, GRID, PAPER = "#16202b", "#586674", "#e6eaee", "#ffffff"
_COLOURS = ("#0072b2", "#d55e00", "#00876b", "#b4578f", "#a87400", "#4d5a67")
PROGRAM = "msajax"  # by which files of figures name their maker
SERIES = len(_COLOURS)  # colours that are told apart, also by the colour-blind
NAMES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"}  # in the style sheet
NAMES |= {colour: f"s{k}" for k, colour in enumerate(_COLOURS, 1)}
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (3, 1)), (0, (9, 3)))
_THICK = 1.6  # pixels of a line, by which matplotlib scales dashes

_STYLE = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, as publishers ask: type 3 is refused by some
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
        series: the number of its colour, from 0.
        form: line, dot, cross or band.
    """

    label: str
    series: int
    form: str = "line"

    @property
    def colour(self) -> int:
        """Returns the number of the colour in the style sheet, from 1."""
        return self.series % SERIES + 1

    @property
    def dashes(self) -> str:
        """Returns the dashes of a line, as SVG has them."""
        style = dash(self.series)
        return "none" if style == "-" else " ".join(f"{_THICK * part:g}" for part in style[1])


def colour(series: int) -> str:
    """Returns the colour of a series, counted from 0; more than there are begin again."""
    return _COLOURS[series % SERIES]


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


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Describes what is drawn on one pair of axes.

    Attributes:
        description: words for those who do not see it.
        paint: draws on the axes that it is given.
        labels: words at the horizontal and at the vertical axis.
        left: pixels beside the axes, for the labels of ticks.
        below: pixels below them, and of height, beyond what numbers need.
    """

    description: str
    paint: Callable[[Any], None]
    _: dataclasses.KW_ONLY
    height: int = 250
    labels: tuple[str, str] = ("", "")
    left: int = 46
    below: int = 0

    @contextlib.contextmanager
    def figure(self) -> Iterator[Any]:
        """Draws a figure of matplotlib, which can be saved as long as this context lasts."""
        import matplotlib
        from matplotlib.figure import Figure

        height = self.height + self.below
        below, above = self.below + (40 if self.labels[0] else 26), 28 if self.labels[1] else 10
        usual = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
        with matplotlib.rc_context({**usual, **_STYLE}):
            figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor="none")
            size = (WIDTH - self.left - 14) / WIDTH, (height - below - above) / height
            axes = figure.add_axes((self.left / WIDTH, below / height, *size))
            self.paint(axes)
            figure.text(1 - 14 / WIDTH, 4 / height, self.labels[0], ha="right")
            figure.text(4 / WIDTH, 1 - 4 / height, self.labels[1], va="top")
            yield figure


@dataclasses.dataclass(frozen=True)
class Chart:
    """Holds a drawing and the words around it."""

    title: str
    drawing: Drawing
    keys: Sequence[Key] = ()
    note: str = ""

    @property
    def svg(self) -> Markup:
        """Draws an `svg` element without size, colours or font of its own, always the same."""
        file, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings(), self.drawing.figure() as figure:
            warnings.simplefilter("ignore")  # of letters that the measuring font lacks
            figure.savefig(file, format="svg", metadata=nothing)
        return _inline(file.getvalue(), self.drawing.description)

    def files(self, name: str) -> dict[str, bytes]:
        """Draws files of their own, in the colours of paper, with the title and the keys.

        Returns:
            The bytes of `name.pdf`, with its fonts, and of `name.svg`, whose text stays text; the
            same chart gives the same bytes.
        """
        from matplotlib.transforms import Bbox

        found, said = {}, {"Title": self.title or name, "Creator": PROGRAM}
        with warnings.catch_warnings(record=True) as caught, self.drawing.figure() as figure:
            warnings.simplefilter("always")
            figure.set_facecolor("white")
            figure.text(4 / WIDTH, 1, self.title, va="bottom", color=INK)
            self._add_keys(figure)
            whole = [figure.bbox_inches, figure.get_tightbbox().padded(4 / 72)]
            for form, unsaid in (("pdf", ("CreationDate", "Producer")), ("svg", ("Date",))):
                file, metadata = io.BytesIO(), said | dict.fromkeys(unsaid)
                figure.savefig(file, format=form, metadata=metadata, bbox_inches=Bbox.union(whole))
                found[f"{name}.{form}"] = file.getvalue()
        told = " ".join(str(warning.message) for warning in caught)
        if missing := sorted(set(re.findall(r"Glyph (\d+)", told))):
            letters = " ".join(chr(int(code)) for code in missing)
            logger.warning(
                "%s.pdf shows boxes for letters that its font lacks (%s); %s.svg holds them as "
                "text.", name, letters, name,
            )  # fmt: skip
        return found

    def _add_keys(self, figure: Any) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        if not self.keys:
            return
        handles = []
        for key in self.keys:
            if key.form == "band":
                handles.append(Patch(color=colour(key.series), alpha=0.3, linewidth=0))
                continue
            form = {"dot": {"marker": "o"}, "cross": {"marker": "X"}}.get(key.form, {})
            line = "none" if form else dash(key.series)
            handles.append(Line2D([], [], color=colour(key.series), linestyle=line, **form))
        longest = max(len(key.label) for key in self.keys)
        figure.legend(
            handles, [key.label for key in self.keys], ncols=max(1, 340 // (40 + 7 * longest)),
            loc="upper left", bbox_to_anchor=(0, 0), frameon=False, labelcolor=INK,
        )  # fmt: skip


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
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": description}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _attribute(key: str, value: str, prefix: str) -> str:
    """Rewrites an attribute: ids with a prefix, colours by name, no font, short numbers."""
    if key == "id":
        return prefix + value
    if key.endswith("href") or key == "clip-path":
        return value.replace("#", f"#{prefix}")
    if key == "style":
        value = re.sub("#[0-9a-f]{6}", lambda found: f"var(--{NAMES[found[0]]})", value)
        return re.sub(r"font-family: [^;]*;? ?", "", value)
    if key in ("d", "x", "y", "transform", "points"):
        value = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", value)
        return " ".join(value.split())
    return value
