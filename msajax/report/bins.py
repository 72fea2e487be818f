"""Sorts samples by their labels, for charts that show something against the label."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.report.text import shortened

_MOST = 7  # bins of labels that are no classes
_MOST_CLASSES = 20  # groups of classes
_MOST_AT_30 = 11  # oblique names that do not touch


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
    def angle(self) -> int:
        """How far names are turned, in degrees: more where there is less room between them."""
        if sum(map(len, self.names)) + len(self.names) <= 44:
            return 0
        return 30 if len(self.names) <= _MOST_AT_30 else 60

    @property
    def room(self) -> int:
        """Pixels below a chart that names its bins there."""
        longest = max(map(len, self.names))
        return {0: 0, 30: 22 + 4 * longest, 60: 16 + 5 * longest}[self.angle]


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
        names: of the K classes.

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
