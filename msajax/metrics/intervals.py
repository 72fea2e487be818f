"""Computes bootstrap intervals of metrics (Efron, 1979)."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from msajax.metrics.measures import Metric

RESAMPLES = 1000

# Weights or sums of one block of resamples: 4 MiB of float64.
_BLOCK = 2**19


def bootstrap(
    p: NDArray,
    y: NDArray,
    chosen: Mapping[str, Metric],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Computes the 95 % percentile interval, over samples, of each metric's mean over random seeds.

    A resample draws N samples with replacement, the same for every row of p, by one
    `integers(0, N, N)` of `PCG64(seed)`: the intervals are a function of the arguments alone.

    Args:
      p: (S, ..., N) scores, a row per random seed of training.
      y: (..., N) labels.
      chosen: Metrics by name, which take p and y to (S, ...).

    Returns:
      {name: (2.5th, 97.5th percentile)}, over the resamples in which the metric is defined for
      every row; (nan, nan) where there is none. Nothing warns.

    Raises:
      ValueError: If resamples is below 1.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}; 1000 is usual")
    return intervals(
        lambda metric, weights: metric.weighted(p, y, weights).mean(axis=0),
        chosen,
        resampled(p.shape[-1], p.size // p.shape[-1], resamples, seed),
    )


def resampled(
    count: int, rows: int, resamples: int = RESAMPLES, seed: int = 0
) -> Iterator[NDArray]:
    """Draws samples, or groups of them, with replacement, as many as there are.

    Args:
        count: samples or groups, G.
        rows: rows of scores, which with G decide how large a block is.

    Yields:
        `[R, G]` float64, how often each one counts, for a block of R resamples.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    block = max(1, _BLOCK // max(count, rows))
    for start in range(0, resamples, block):
        drawn = generator.integers(0, count, (min(block, resamples - start), count))
        offsets = count * np.arange(len(drawn))[:, None]
        counts = np.bincount((drawn + offsets).ravel(), minlength=drawn.size)
        yield counts.reshape(drawn.shape).astype(np.float64)


def intervals(
    statistic: Callable[[Metric, NDArray], NDArray],
    chosen: Mapping[str, Metric],
    blocks: Iterator[NDArray],
) -> dict[str, tuple[float, float]]:
    """Computes the 95 % percentile interval of a statistic of each metric.

    Args:
        statistic: takes a metric and weights `[R, G]` to `[R]`.
        blocks: weights as `resampled` yields them.

    Returns:
        `{name: (2.5th, 97.5th percentile)}` of the resamples in which the statistic is defined;
        (nan, nan) where there is none.
    """
    found: dict[str, list[NDArray]] = {name: [] for name in chosen}
    with np.errstate(all="ignore"):
        for weights in blocks:
            for name, metric in chosen.items():
                found[name].append(statistic(metric, weights))
    ends = dict.fromkeys(chosen, (float("nan"), float("nan")))
    for name, values in found.items():
        defined = np.concatenate(values)
        defined = defined[~np.isnan(defined)]
        if defined.size:
            low, high = np.percentile(defined, (2.5, 97.5))
            ends[name] = float(low), float(high)
    return ends
