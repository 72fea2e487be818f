"""Tests whether the difference between two runs is more than chance, and bounds its size."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.corpus.folds import video_of
from msajax.metrics.intervals import intervals, resampled
from msajax.metrics.measures import Metric
from msajax.tasks import Task

logger = logging.getLogger(__name__)

DRAWS = 10_000
LEVEL = 0.05  # of p after Holm, up to which a difference counts as more than chance
FEWEST_GROUPS = 3  # resamples of fewer groups than that hold nothing of what varies between them

_LOG_SECONDS = 10.0
_BLOCK = 2**19  # weights or sums of the draws that are looked at together


class PairedTest(NamedTuple):
    """Holds a difference between two runs, and how often chance gives one as large.

    Attributes:
        difference: the first run's metric less the second's, each the mean over random seeds.
        groups: the number of groups of samples that were exchanged as one.
        unit: video, or sample where ids name no videos.
    """

    difference: float
    p: float
    groups: int
    unit: str


class Pair(NamedTuple):
    """Holds the scores of two runs on the same samples.

    Attributes:
        first: `[S, (K,) N]`, a row for each random seed.
        second: `[R, (K,) N]`.
        targets: the labels, as the task's metrics take them.
        group_of: `[N]`, the number of each sample's group.
    """

    first: NDArray
    second: NDArray
    targets: NDArray
    group_of: NDArray
    unit: str

    @classmethod
    def of(
        cls, first: NDArray, second: NDArray, labels: NDArray, ids: Sequence[str], task: Task
    ) -> "Pair":
        """Arranges scores `[S, N, K]` and `[R, N, K]` and labels `[N, L]` of samples.

        Raises:
            ValueError: if shapes differ in anything but the number of seeds.
        """
        if first.shape[1:] != second.shape[1:] or not len(labels) == len(ids) == first.shape[1]:
            raise ValueError(
                f"scores {first.shape} and {second.shape}, {len(labels)} labels and {len(ids)} "
                "ids: a paired test needs the same samples and outputs"
            )
        group_of, unit = groups_of(ids)
        arranged = [np.moveaxis(scores, 1, 2) for scores in (first, second)]
        return cls(*arranged, task.targets(labels), group_of, unit)

    def values(self, metric: Metric) -> tuple[NDArray, NDArray]:
        """Computes a metric of every random seed of either run: `[S]` and `[R]`."""
        with np.errstate(all="ignore"):
            return metric.value(self.first, self.targets), metric.value(self.second, self.targets)


def paired_tests(pair: Pair, chosen: Mapping[str, Metric]) -> dict[str, PairedTest]:
    """Tests for each metric whether two runs on the same samples differ in it.

    The statistic is the difference of the metric's means over random seeds. Under the null the two
    runs' predictions of a video, those of all seeds together, might as well be exchanged (segments
    of a video share a speaker, seeds share the samples): p = (1 + count of |d*| >= |d|) /
    (1 + `DRAWS`), over draws of PCG64(0) that exchange each video with probability one half, the
    same draws for every metric.

    Where the runs have not as many seeds, those of either are repeated until there are as many as
    the least common multiple: the means stay what they are, and what is exchanged is still all of
    a run's predictions of a video.
    """
    rows = math.lcm(len(pair.first), len(pair.second))
    a, b = (np.repeat(p, rows // len(p), axis=0) for p in (pair.first, pair.second))
    # Exchanging chooses for either run one of two scores of each sample: every metric is computed
    # of all 2N, of which a draw counts one half for the first run and the other for the second.
    p = np.concatenate([a, b], axis=-1)
    y = np.concatenate([pair.targets, pair.targets], axis=-1)
    groups = int(pair.group_of.max()) + 1
    group_of = np.concatenate([pair.group_of, pair.group_of + groups])
    generator = np.random.Generator(np.random.PCG64(0))
    block = max(1, _BLOCK // max(2 * groups, p.size // p.shape[-1]))
    differences = {name: np.subtract(*map(np.mean, pair.values(m))) for name, m in chosen.items()}
    as_large = dict.fromkeys(chosen, 0)
    told = time.monotonic()
    with np.errstate(all="ignore"):
        for start in range(0, DRAWS, block):
            if time.monotonic() - told >= _LOG_SECONDS:
                told = time.monotonic()
                logger.info("comparing: %d of %d exchanges", start, DRAWS)
            swap = generator.integers(0, 2, (min(block, DRAWS - start), groups)).astype(np.float64)
            weights = np.concatenate([1 - swap, swap], axis=1)  # [draw, 2 groups]
            for name, metric in chosen.items():
                x = metric.weighted(p, y, weights, group_of).mean(axis=0)
                z = metric.weighted(p, y, 1 - weights, group_of).mean(axis=0)
                # A draw that gives the same difference adds up in another order and may differ by
                # rounding, which grows with what is subtracted.
                rounding = 1e-9 * abs(differences[name]) + 1e-13 * (np.abs(x) + np.abs(z))
                smaller = np.abs(x - z) < abs(differences[name]) - rounding - 1e-15
                as_large[name] += int((~smaller).sum())  # an undefined one too
    return {
        name: PairedTest(float(d), (1 + as_large[name]) / (1 + DRAWS), groups, pair.unit)
        for name, d in differences.items()
    }


def difference_intervals(
    pair: Pair, chosen: Mapping[str, Metric], group_of: NDArray | None = None
) -> dict[str, tuple[float, float]]:
    """Bootstraps the 95 % interval of each metric's difference between two runs.

    Args:
        group_of: `[N]`, which samples are drawn as one; one by one if it is not given.

    Returns:
        `{name: (2.5th, 97.5th percentile)}` of 1,000 resamples, the same for both runs; NaN for
        fewer than `FEWEST_GROUPS` groups.
    """
    groups = len(pair.group_of) if group_of is None else int(group_of.max()) + 1

    def difference(metric: Metric, weights: NDArray) -> NDArray:
        first, second = (
            metric.weighted(p, pair.targets, weights, group_of).mean(axis=0)
            for p in (pair.first, pair.second)
        )
        return first - second

    if groups < FEWEST_GROUPS:
        return dict.fromkeys(chosen, (math.nan, math.nan))
    rows = max(p.size // p.shape[-1] for p in (pair.first, pair.second))
    return intervals(difference, chosen, resampled(groups, rows))


def interval_over_seeds(first: NDArray, second: NDArray) -> tuple[float, float] | None:
    """Computes the 95 % interval of a difference of means over random seeds (Welch, 1947).

    It is about training again with other seeds, on the same samples.

    Args:
        first: `[S]`, the metric of every seed of a run.
        second: `[R]`, of the other.

    Returns:
        The interval; None where a run has one seed, or the metric is undefined for one.
    """
    if min(len(first), len(second)) < 2 or not np.isfinite([*first, *second]).all():
        return None
    from scipy.special import stdtrit  # the only function of scipy that is needed

    a, b = (values.var(ddof=1) / len(values) for values in (first, second))
    difference = float(first.mean() - second.mean())
    if a + b == 0:
        return difference, difference
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    half = float(stdtrit(freedom, 0.975) * math.sqrt(a + b))
    return difference - half, difference + half


def smallest_p(groups: int, tests: int) -> float:
    """Computes the least p that exchanging so many groups gives, after Holm for so many tests."""
    return min(1.0, 2 / 2**groups * tests)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values of several tests, so that one error among them stays rare (Holm, 1979)."""
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
