"""Draws what a report shows of training, results, labels and scores."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.report.figures import INK, MUTED, PAPER, SERIES, Chart, Drawing, Key, colour, dash, mark
from msajax.report.page import shortened

_MOST = 7  # bins of labels that are no classes
_MOST_CLASSES = 20  # groups of classes
_MOST_AT_30 = 11  # oblique names that do not touch
_MOST_POINTS = 1500  # of a scatter plot; more are counted in hexagons
_LINE_POINTS = 300  # of a line
_LETTERS = 45  # of names that stand beside each other below an axis
_DEEPEST = 0.8  # shade on which ink can be read

# A name, values, and an interval or None.
Row = tuple[str, Sequence[float], Sequence[float] | None]


class Bins(NamedTuple):
    """Holds groups of samples in the order of their labels.

    Attributes:
        rows: the numbers of the samples of each group, at least one.
        sort: a phrase for what the groups are made of.
    """

    names: list[str]
    rows: list[NDArray]
    sort: str

    @property
    def angle(self) -> int:
        """Returns the degrees by which names are turned: more where there is less room."""
        if sum(map(len, self.names)) + len(self.names) <= 44:
            return 0
        return 30 if len(self.names) <= _MOST_AT_30 else 60

    @property
    def room(self) -> int:
        """Returns the pixels below a chart that names its bins there."""
        longest = max(map(len, self.names))
        return {0: 0, 30: 22 + 4 * longest, 60: 16 + 5 * longest}[self.angle]


def of_values(labels: NDArray, rounded: bool) -> Bins:
    """Sorts samples by real labels `[N]`: into parts of one size, or by the nearest whole number.

    Whole numbers are for labels of sentiment, in [-3, 3], where they have a meaning.
    """
    if rounded:
        nearest = np.round(np.clip(labels, -3, 3)).astype(int)
        values = np.unique(nearest)
        names = [f"{value:+d}".replace("-", "−") if value else "0" for value in values]
        return Bins(names, [np.flatnonzero(nearest == v) for v in values], "rounded label")
    values = np.unique(labels)
    if len(values) <= _MOST:
        rows = [np.flatnonzero(labels == value) for value in values]
        return Bins([_number(value) for value in values], rows, "label")
    edges = np.unique(np.quantile(labels, np.linspace(0, 1, _MOST + 1)))
    part = np.clip(np.searchsorted(edges, labels, side="right") - 1, 0, len(edges) - 2)
    rows = [np.flatnonzero(part == k) for k in np.unique(part)]
    names = [_number(np.median(labels[of])) for of in rows]
    return Bins(names, rows, "label, in parts of about one size")


def of_classes(classes: NDArray, names: tuple[str, ...]) -> Bins:
    """Sorts samples by their class `[N]`, as `grouped` puts classes together."""
    group_of, shown = grouped(classes, names)
    sort = "class" if len(shown) == len(names) else f"class; all others: the rarest of {len(names)}"
    groups = group_of[classes]
    there = np.unique(groups)
    rows = [np.flatnonzero(groups == k) for k in there]
    length = 14 if len(there) <= _MOST_AT_30 else 20  # steep names reach less far to the left
    return Bins([shortened(shown[k], length) for k in there], rows, sort)


def grouped(classes: NDArray, names: tuple[str, ...]) -> tuple[NDArray, tuple[str, ...]]:
    """Puts the rarest of more classes than a page shows together, as "all others".

    Args:
        classes: `[N]`, the true class of each sample.

    Returns:
        The group of each class, `[K]`, and the groups' names; without need every class is its own.
    """
    if len(names) <= _MOST_CLASSES:
        return np.arange(len(names)), names
    counts = np.bincount(classes, minlength=len(names))
    kept = np.sort(np.argsort(-counts, kind="stable")[: _MOST_CLASSES - 1])
    group_of = np.full(len(names), len(kept))
    group_of[kept] = np.arange(len(kept))
    return group_of, (*(names[k] for k in kept), "all others")


def _number(value: float) -> str:
    return f"{value:.2g}".replace("-", "−")


def value_rows(rows: Sequence[Row], ours: int) -> Drawing:
    """Draws named values on one axis: points of each row, and an interval where it has one.

    The first `ours` of the rows, from the top, are a model's; the others are floors.
    """

    def paint(axes: Any) -> None:
        for k, (_, values, interval) in enumerate(rows):
            if interval is not None:
                axes.plot(interval, (-k, -k), color=colour(0), linewidth=7, alpha=0.3)
            series, mark = (0, "o") if k < ours else (1, "D")
            axes.plot(
                values, [-k] * len(values), mark, color=colour(series), markersize=8,
                markeredgecolor=PAPER, markeredgewidth=1,
            )  # fmt: skip
        axes.set_yticks(range(0, -len(rows), -1), [row[0] for row in rows])
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        axes.grid(axis="both")
        axes.spines["bottom"].set_visible(False)
        axes.margins(x=0.08)
        axes.locator_params(axis="x", nbins=5)

    told = "; ".join(f"{name}: {', '.join(f'{v:.3f}' for v in of)}" for name, of, _ in rows)
    return Drawing(told, paint, height=26 * len(rows) + 36, left=128)


def curves(
    lines: Sequence[Mapping[str, Any]], key: str, title: str, best: Mapping[int, int]
) -> Chart | None:
    """Draws a value of metrics.jsonl over epochs, a line per random seed.

    Args:
        key: the name of the value in a line.
        best: the chosen epoch of each seed, which is marked.

    Returns:
        None if no line has that value.
    """
    seeds: dict[int, list[tuple[int, float]]] = {}
    for line in lines:
        if line.get(key) is not None:
            seeds.setdefault(line["seed"], []).append((line["epoch"], line[key]))
    if not seeds:
        return None
    several = len(seeds) <= SERIES

    def paint(axes: Any) -> None:
        for k, (seed, points) in enumerate(seeds.items()):
            # Of a long line some points, with the first, the last and that of the best epoch.
            step, last = -(-len(points) // _LINE_POINTS), len(points) - 1
            shown = [
                point
                for at, point in enumerate(points)
                if at % step == 0 or at == last or point[0] == best.get(seed)
            ]
            x, y = np.array(shown).T
            series = k if several else 0
            style = {"linestyle": dash(k)} if several else {"alpha": 0.5, "linewidth": 1}
            axes.plot(x, y, color=colour(series), **style)
            if seed in best and best[seed] in x:
                at = np.flatnonzero(x == best[seed])[0]
                axes.plot([x[at]], [y[at]], **mark(series), zorder=5)
        axes.margins(x=0.03)
        axes.xaxis.get_major_locator().set_params(integer=True)

    chosen = ", ".join(f"seed {seed} epoch {epoch}" for seed, epoch in best.items())
    drawing = Drawing(f"{title} by epoch. Chosen: {chosen}.", paint, labels=("epoch", ""))
    keys = [Key(f"seed {seed}", k) for k, seed in enumerate(seeds)] if several else []
    return Chart(title, drawing, keys)


def predicted_true(title: str, labels: NDArray, scores: NDArray) -> Chart:
    """Draws scores against labels, `[N]` each: points, or hexagons of many."""
    both = np.concatenate([labels, scores])
    low, high = both.min(), both.max()
    room = 0.04 * (high - low or 1)
    limits = low - room, high + room
    is_many = len(labels) > _MOST_POINTS

    def paint(axes: Any) -> None:
        axes.plot(limits, limits, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        if is_many:  # hexagons of one colour, more or less opaque
            drawn = axes.hexbin(
                labels, scores, gridsize=34, extent=(*limits, *limits), mincnt=1, linewidths=0
            )
            counts = drawn.get_array()
            shades = [0.12 + 0.88 * float(np.sqrt(count / counts.max())) for count in counts]
            drawn.set_array(None)
            drawn.set_facecolor([(*_rgb(colour(0)), round(shade, 2)) for shade in shades])
            drawn.set_edgecolor("none")
        else:
            axes.plot(
                labels, scores, "o", color=colour(0), alpha=0.5, markersize=4.5, markeredgewidth=0
            )
        axes.set_xlim(limits)
        axes.set_ylim(limits)
        axes.grid(axis="x")

    correlation = np.corrcoef(labels, scores)[0, 1] if np.ptp(labels) and np.ptp(scores) else None
    told = "" if correlation is None else f", correlation {correlation:.3f}"
    drawing = Drawing(
        f"Scores against labels of {len(labels)} test samples{told}; the dashed line is a score "
        "that equals its label.",
        paint,
        height=320,
        labels=("label", "score"),
    )
    note = "Hexagons hold more samples the stronger they are." if is_many else ""
    return Chart(title, drawing, note=note)


def _rgb(name: str) -> tuple[float, float, float]:
    return tuple(int(name[k : k + 2], 16) / 255 for k in (1, 3, 5))


def spreads(title: str, bins: Bins, values: NDArray, what: str) -> Chart:
    """Draws how values `[N]`, called `what`, spread in a bin: median, half of them, nine in ten."""
    found = [np.quantile(values[rows], (0.05, 0.25, 0.5, 0.75, 0.95)) for rows in bins.rows]

    def paint(axes: Any) -> None:
        axes.axhline(0, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        for k, (lowest, low, median, high, highest) in enumerate(found):
            axes.plot((k, k), (lowest, highest), color=colour(0), linewidth=1.6, alpha=0.6)
            axes.plot(
                (k, k), (low, high), color=colour(0), linewidth=12, alpha=0.35,
                solid_capstyle="butt",
            )  # fmt: skip
            axes.plot([k - 0.22, k + 0.22], [median, median], color=INK, linewidth=2)
        _label_bins(axes, bins)

    told = "; ".join(
        f"{name}: median {of[2]:+.2f}" for name, of in zip(bins.names, found, strict=True)
    )
    drawing = Drawing(
        f"{what} by {bins.sort}. {told}.", paint, labels=(bins.sort, what), below=bins.room
    )
    note = "Line: the median; box: half of the samples; whisker: nine in ten."
    return Chart(title, drawing, note=note)


def _label_bins(axes: Any, bins: Bins) -> None:
    oblique = {"rotation": bins.angle, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(bins.names)), bins.names, **(oblique if bins.angle else {}))
    axes.set_xlim(-0.6, len(bins.names) - 0.4)


def means_by_bin(title: str, bins: Bins, values: Mapping[str, NDArray], what: str) -> Chart:
    """Draws the mean of several values in each bin, with half of the samples around it.

    Args:
        values: `{name: [N]}`.
        what: a word or two for the values.
    """
    at = np.arange(len(bins.names))

    def paint(axes: Any) -> None:
        for k, of in enumerate(values.values()):
            low, high = np.array([np.quantile(of[rows], (0.25, 0.75)) for rows in bins.rows]).T
            mean = [of[rows].mean() for rows in bins.rows]
            axes.fill_between(at, low, high, color=colour(k), alpha=0.15, linewidth=0)
            axes.plot(at, mean, linestyle=dash(k), **mark(k))
        _label_bins(axes, bins)
        axes.set_ylim(bottom=0)

    means = ", ".join(f"{name} {of.mean():.2f}" for name, of in values.items())
    drawing = Drawing(
        f"{what} by {bins.sort}. Over all: {means}.",
        paint,
        labels=(bins.sort, what),
        below=bins.room,
    )
    keys = [Key(name, k) for k, name in enumerate(values)]
    return Chart(title, drawing, keys, "Mean; the band holds half of the samples.")


def confusion(
    title: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, int, Sequence[tuple[int, float]]]],
    right: str,
    **_: Any,
) -> Chart:
    """Draws which class is taken for which: counts, shaded by their share of the row.

    Args:
        rows: a true class each: its name, its samples, a count and a share for each column.
        right: the share of right answers, in words.
    """
    at = np.arange(len(columns))
    longest = max(map(len, columns))
    is_oblique = len(columns) * longest > _LETTERS

    def paint(axes: Any) -> None:
        for k, (_, _, cells) in enumerate(rows):
            shades = [(*_rgb(colour(0)), _DEEPEST * share) for _, share in cells]
            axes.bar(at, 0.96, 0.96, k - 0.48, color=shades)
            for x, (count, _) in zip(at, cells, strict=True):
                small = 11 if len(columns) <= 8 else 7
                axes.text(x, k, f"{count}", ha="center", va="center", color=INK, fontsize=small)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        oblique = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(at, columns, **(oblique if is_oblique else {}))
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)

    drawing = Drawing(
        f"Counts of labels, in rows, by predictions, in columns; {right} are right.",
        paint,
        height=68 + len(rows) * min(44, max(15, 300 // len(rows))),
        labels=("prediction", "label"),
        left=min(20 + 7 * longest, 150),
        below=5 * longest if is_oblique else 0,
    )
    return Chart(title, drawing)


def contributions(bars: Sequence[tuple[str, str, float]]) -> Chart:
    """Draws the mean absolute contribution of modalities: a name, a value as text, its share."""
    rows = [(name, [float(value)], None) for name, value, _ in bars]
    return Chart("Mean absolute contribution by modality", value_rows(rows, len(rows)))
