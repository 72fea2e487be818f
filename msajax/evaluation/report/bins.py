"""Sorts samples by their labels, for charts that show something against the label."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.evaluation.report.page import shortened

_MOST = 7  # bins of labels that are no classes
_MOST_CLASSES = 20


class Bins(NamedTuple):
    """Holds groups of samples in the order of their labels.

    Attributes:
        names: of each group.
        rows: of each group the numbers of its samples, at least one.
        sort: what the groups are made of, in words.
    """

    names: list[str]
    rows: list[NDArray]
    sort: str

    @property
    def are_long(self) -> bool:
        """Whether names need more room than there is side by side."""
        return sum(map(len, self.names)) + len(self.names) > 44

    @property
    def room(self) -> int:
        """Pixels below a chart that names its bins there."""
        return 22 + 4 * max(map(len, self.names)) if self.are_long else 0


def of_values(labels: NDArray, rounded: bool) -> Bins:
    """Sorts samples by real labels `[N]`: by the nearest whole number, or into parts of one size.

    Args:
        labels: of the samples.
        rounded: whether labels are of sentiment, in [-3, 3], whose whole numbers have a meaning.
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
    """Sorts samples by their class `[N]`, the most frequent ones if there are many."""
    counts = np.bincount(classes, minlength=len(names))
    kept = np.sort(np.argsort(-counts, kind="stable")[:_MOST_CLASSES])
    kept = [k for k in kept if counts[k]]
    rows = [np.flatnonzero(classes == k) for k in kept]
    return Bins([shortened(names[k], 14) for k in kept], rows, "class")


def _number(value: float) -> str:
    return f"{value:.2g}".replace("-", "−")
