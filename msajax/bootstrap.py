"""Computes bootstrap intervals of metrics (Efron, 1979)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from msajax.metrics import Metric

# Scores that one block of resamples gathers: 1 MiB of float64 stays in a core's cache.
_BLOCK = 2**17


def bootstrap(
    p: NDArray, y: NDArray, chosen: Mapping[str, "Metric"], resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Computes the 95 % percentile interval, over samples, of each metric's mean over random seeds.

    A resample draws N samples with replacement, the same for every row of p, by one
    `integers(0, N, N)` of `PCG64(seed)`: the intervals are a function of the arguments alone.

    Args:
      p: (S, ..., N) scores, a row per random seed of training.
      y: (..., N) labels.
      chosen: Metrics by name, which take p and y, with one more axis behind S, to (S, ...).
      resamples: How many resamples, at least 1.
      seed: Seed of the resampling.

    Returns:
      {name: (2.5th, 97.5th percentile)}, over the resamples in which the metric is defined for
      every row; (nan, nan) where there is none. Nothing warns.

    Raises:
      ValueError: If resamples is below 1.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}; 1000 is usual")
    size = p.shape[-1]
    generator = np.random.Generator(np.random.PCG64(seed))
    rows = max(1, _BLOCK // p.size)
    statistic = {name: np.empty(resamples) for name in chosen}
    with np.errstate(all="ignore"):
        for start in range(0, resamples, rows):
            stop = min(start + rows, resamples)
            drawn = generator.integers(0, size, (stop - start, size))  # [resample, N]
            # `take` keeps N the last and contiguous axis, as `metrics.compute` has it: the same
            # sums. Resamples stand beside the seeds, in front of any other axis.
            drawn_p = np.moveaxis(np.take(p, drawn, axis=-1), -2, 1)  # [S, resample, ..., N]
            drawn_y = np.moveaxis(np.take(y, drawn, axis=-1), -2, 0)  # [resample, ..., N]
            for name, values in statistic.items():
                values[start:stop] = chosen[name].value(drawn_p, drawn_y).mean(axis=0)
        return {name: _percentiles(values) for name, values in statistic.items()}


def _percentiles(values: NDArray) -> tuple[float, float]:
    values = values[~np.isnan(values)]
    if not values.size:
        return float("nan"), float("nan")
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)
