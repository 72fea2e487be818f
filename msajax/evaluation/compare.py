"""Tests whether the difference between two runs is more than chance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.data.folds import video_of
from msajax.metrics import Metric
from msajax.tasks import Task

DRAWS = 10_000

_BLOCK = 2**19  # numbers that are exchanged at once


class PairedTest(NamedTuple):
    """Holds a difference between two runs, and how often chance gives one as large.

    Attributes:
        difference: the first run's metric less the second's, each the mean over random seeds.
        p: the two-sided p-value.
        groups: how many groups of samples were exchanged as one.
        unit: what such a group is: video, or sample where ids name no videos.
    """

    difference: float
    p: float
    groups: int
    unit: str


def paired_test(
    first: NDArray,
    second: NDArray,
    labels: NDArray,
    ids: Sequence[str],
    task: Task,
    metric: str,
) -> PairedTest:
    """Tests whether two runs on the same samples differ in a metric.

    The statistic is the difference of the metric's means over random seeds. Under the null the two
    runs' predictions of a video, those of all seeds together, might as well be exchanged (segments
    of a video share a speaker, seeds share the samples): p = (1 + count of |d*| >= |d|) /
    (1 + `DRAWS`), over draws of PCG64(0) that exchange each video with probability one half.

    Args:
        first: scores of a run, `[S, N, K]`.
        second: those of another, of the same shape.
        labels: `[N, L]`.
        ids: of the N samples.
        task: of both runs.
        metric: a name that the task reports.

    Raises:
        ValueError: if shapes differ, or the task does not report the metric.
    """
    if first.shape != second.shape or not len(labels) == len(ids) == first.shape[1]:
        raise ValueError(
            f"scores {first.shape} and {second.shape}, {len(labels)} labels and {len(ids)} ids: "
            "a paired test needs the same seeds and samples"
        )
    if metric not in task.reported:
        raise ValueError(f"{metric!r} is none of {', '.join(task.reported)}")
    group_of, unit = groups_of(ids)
    a, b = np.moveaxis(first, 1, 2), np.moveaxis(second, 1, 2)  # [S, K, N]
    targets, of_rows = task.targets(labels), task.reported[metric]
    difference = _difference(of_rows, a, b, targets)

    groups = int(group_of.max()) + 1
    generator = np.random.Generator(np.random.PCG64(0))
    block = max(1, _BLOCK // a.size)
    as_large = 0
    # A draw that gives the same difference adds up in another order and may differ by rounding.
    threshold = abs(difference) * (1 - 1e-9) - 1e-15
    for start in range(0, DRAWS, block):
        exchanged = generator.integers(0, 2, (min(block, DRAWS - start), groups)) == 1
        swap = exchanged[:, group_of][:, None]  # [draw, 1, N]
        x, y = a[:, None], b[:, None]  # [S, 1, K, N]
        drawn = _difference(of_rows, np.where(swap, y, x), np.where(swap, x, y), targets)
        as_large += int((~(np.abs(drawn) < threshold)).sum())  # an undefined one too
    return PairedTest(float(difference), (1 + as_large) / (1 + DRAWS), groups, unit)


def _difference(metric: Metric, a: NDArray, b: NDArray, targets: NDArray) -> NDArray:
    """Subtracts the metric of b from that of a, each the mean over seeds of `[S, ..., K, N]`."""
    with np.errstate(all="ignore"):
        return metric.value(a, targets).mean(axis=0) - metric.value(b, targets).mean(axis=0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts the p-values of several tests, so that one error among them stays rare (Holm, 1979).

    Returns:
        The adjusted values in the same order, at most 1.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def groups_of(ids: Sequence[str]) -> tuple[NDArray, str]:
    """Numbers the group of each sample `[N]`, and says what a group is."""
    videos = [video_of(str(id_)) or f"sample {i}" for i, id_ in enumerate(ids)]
    unique, group_of = np.unique(videos, return_inverse=True)
    return group_of, "video" if len(unique) < len(videos) else "sample"
