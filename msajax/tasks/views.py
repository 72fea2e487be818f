"""Describes as data what a page shows of a task's scores; `report` draws it."""

from collections.abc import Sequence
from typing import NamedTuple

from numpy.typing import NDArray


class Pairs(NamedTuple):
    """Sets the scores of an output beside its labels, `[N]` each."""

    name: str
    labels: NDArray
    scores: NDArray


class Counts(NamedTuple):
    """Counts which class, of these names, is taken for which: both are numbers from 0, `[N]`."""

    title: str
    true: NDArray
    predicted: NDArray
    names: tuple[str, ...]


class Shares(NamedTuple):
    """Spreads a value `[N]` of each sample over classes of these names, `[N]` from 0."""

    classes: NDArray
    names: tuple[str, ...]
    values: NDArray
    unit: str
    text: str


class Views(NamedTuple):
    """Holds what is shown of many samples; what a task has none of is empty or None.

    Attributes:
        shares: stand in place of pairs.
        counts: tables of confusion.
        by: what samples are sorted by where something else is shown: labels `[N]`, or classes.
        names: names of the classes; () for labels that are numbers.
        sort: a name for the labels.
    """

    pairs: Sequence[Pairs] = ()
    shares: Shares | None = None
    counts: Sequence[Counts] = ()
    by: NDArray | None = None
    names: tuple[str, ...] = ()
    sort: str = ""


class OutputRow(NamedTuple):
    """Shows an output of one sample: label and score on an axis, perhaps an interval."""

    name: str
    label: float
    score: float
    sd: float
    interval: tuple[float, float] | None


class ShareRow(NamedTuple):
    """Shows a share of one sample, such as the probability of a class, in [0, 1]."""

    name: str
    share: float
    is_true: bool


class SampleView(NamedTuple):
    """Holds what is shown of one sample.

    Attributes:
        value: says how wrong it is, or how right; words stand before and after it.
        as_share: it is shown in percent.
        rows: outputs or classes, the most telling ones first; a page shows the first of them, and
            always the true one.
        left: says in words what is left out.
    """

    before: str
    value: float
    as_share: bool = False
    after: str = ""
    rows: Sequence[OutputRow | ShareRow] = ()
    left: str = ""


class ScoredSamples(NamedTuple):
    """Holds samples with labels and scores: N samples, K outputs or classes.

    Attributes:
        labels: `[N, L]`.
        scores: `[N, K]`, means over random seeds.
        sd: `[N, K]`, their deviation over seeds; NaN for one seed.
        low: `[N, K]`, where intervals begin, and `high`, where they end; None without intervals.
    """

    names: tuple[str, ...]
    labels: NDArray
    scores: NDArray
    sd: NDArray
    low: NDArray | None = None
    high: NDArray | None = None
