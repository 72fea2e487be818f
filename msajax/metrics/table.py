"""Names every metric, and computes their values, intervals and trivial floors.

Everything is numpy in float64 over a whole split at once: a correlation or a weighted F1 averaged
over batches is another number. `measures.py` defines what the metrics compute, `conventions.py`
those that some papers print in another way.

`compute`, `bootstrap_interval` and `floors` serve one score per sample; `msajax.tasks` chooses the
metrics of labels of another kind.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msajax.metrics import measures
from msajax.metrics.intervals import bootstrap
from msajax.metrics.measures import Metric, Rule, accuracy, f1_of, ratio

SENTIMENT = ("mae", "corr", "acc7", "acc5", "acc3", "acc2_nonzero", "f1_nonzero", "acc2_has0",
             "f1_has0", "mse", "rmse", "r2", "spearman", "ccc")
CONTINUOUS = ("mae", "corr", "mse", "rmse", "r2", "spearman", "ccc")


def _rounded(scores: NDArray, limit: int) -> NDArray:
    # np.round rounds half to even. Integers, so that -0.0 and 0.0 are one class.
    return np.round(np.clip(scores, -limit, limit)).astype(np.int8)


# The accuracies' own classes; `floors` takes the majority class from here too.
RULES = {
    "acc7": Rule(partial(_rounded, limit=3)),
    "acc5": Rule(partial(_rounded, limit=2)),
    "acc3": Rule(partial(_rounded, limit=1)),
    "acc2_nonzero": Rule(lambda scores: scores > 0, with_zero=False),
    "acc2_has0": Rule(lambda scores: scores >= 0),
}
NO_SAMPLES = "no sample is left: every label is 0"

METRICS = {
    "mae": measures.mae,
    "corr": measures.corr,
    **{name: accuracy(rule, NO_SAMPLES) for name, rule in RULES.items()},
    "f1_nonzero": f1_of(RULES["acc2_nonzero"], NO_SAMPLES),
    "f1_has0": f1_of(RULES["acc2_has0"], NO_SAMPLES),
    "mse": measures.mse,
    "rmse": measures.rmse,
    "r2": measures.r2,
    "spearman": measures.spearman,
    "ccc": measures.ccc,
}

# Of probabilities p (..., C, N) and true classes y (..., N), counted from 0.
CLASSES = {
    "accuracy": measures.class_accuracy,
    "f1_weighted": measures.class_f1_weighted,
    "f1_macro": measures.class_f1_macro,
    "cross_entropy": measures.cross_entropy,
}


def _known(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise ValueError(f"unknown metric {unknown[0]!r}; the known ones are {', '.join(METRICS)}")


def _checked(ndim: int = 1, **given: ArrayLike) -> list[NDArray]:
    """Returns the arrays in float64; refuses what is not finite, or not (..., N) with one N > 0."""
    arrays = {what: np.asarray(values, np.float64) for what, values in given.items()}
    shapes = ", ".join(f"{what} {array.shape}" for what, array in arrays.items())
    first, *rest = arrays.values()
    # (N,) against (N, 1) would broadcast to (N, N) and be scored without an error.
    same_n = all(array.shape == first.shape[-1:] for array in rest)
    if first.ndim != ndim or not same_n or not first.size:
        wanted = "(S, N) and (N,)" if ndim == 2 else "(N,)"
        raise ValueError(f"expected {wanted} with one N > 0, got {shapes}; reshape or align them")
    for what, array in arrays.items():
        bad = np.argwhere(~np.isfinite(array)).tolist()
        if bad:
            raise ValueError(
                f"{what} has {len(bad)} non-finite values, the first {array[tuple(bad[0])]} at "
                f"{bad[0]} ({shapes}); drop unlabelled samples, and score no diverged model"
            )
    return list(arrays.values())


def _warn(what: str, reason: str) -> None:
    message = f"{what} is undefined (NaN) because {reason}"
    warnings.warn(message, RuntimeWarning, stacklevel=4)


def names_for(labels: ArrayLike) -> tuple[str, ...]:
    """Names the metrics that suit labels: `SENTIMENT` if all lie in [-3, 3], else `CONTINUOUS`.

    Args:
      labels: (N,) labels.

    Raises:
      ValueError: If labels are not (N,) with N > 0, or not finite.
    """
    (y,) = _checked(labels=labels)
    return SENTIMENT if np.abs(y).max() <= 3 else CONTINUOUS


def compute(
    prediction: ArrayLike, label: ArrayLike, names: Sequence[str] = SENTIMENT
) -> dict[str, float]:
    """Scores one split.

    `mae`, `mse`, `rmse`, `r2`, `corr` (Pearson), `spearman` (average ranks) and `ccc` take the
    prediction as it is. `acc7`, `acc5`, `acc3` clip both sides to +-3, +-2, +-1 and round half to
    even. `acc2_has0` compares p >= 0 with y >= 0; `acc2_nonzero` drops y == 0 and compares p > 0
    with y > 0. `f1_*` has the classes of `acc2_*`, per-class F1 weighted by true class counts.

    Args:
      prediction: (N,) finite scores, on the scale of the labels.
      label: (N,) finite labels.
      names: The metrics wanted.

    Returns:
      {name: value} in the order of names. Accuracies and F1 lie in [0, 1]. An undefined value
      (`corr` of a constant, no non-zero label, a zero denominator) is NaN, with one RuntimeWarning
      that says why. Constant means exactly so: scores that differ in the last bit do have a `corr`.

    Raises:
      ValueError: If prediction or label is not (N,) with one N > 0, either is not finite, or a
        name is unknown.
    """
    _known(names)
    p, y = _checked(prediction=prediction, label=label)
    return measure(p, y, {name: METRICS[name] for name in names})


def measure(p: NDArray, y: NDArray, chosen: Mapping[str, Metric]) -> dict[str, float]:
    """Computes the value of each metric; NaN comes with one RuntimeWarning that says why."""
    result = {name: float(metric.value(p, y)) for name, metric in chosen.items()}
    for name, value in result.items():
        if np.isnan(value):
            ranges = f"prediction in [{p.min()}, {p.max()}], label in [{y.min()}, {y.max()}]"
            _warn(name, f"{chosen[name].undefined_when}; N = {p.shape[-1]}, {ranges}")
    return result


def bootstrap_interval(
    scores: ArrayLike, label: ArrayLike, names: Sequence[str], resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Computes the 95 % bootstrap interval, over samples, of each metric's mean over random seeds.

    Args:
      scores: (S, N) finite predictions, a row per random seed of training.
      label: (N,) finite labels.
      names: The metrics wanted.
      resamples: How many resamples, at least 1.
      seed: Seed of the resampling, which follows `PCG64(seed)`.

    Returns:
      {name: (2.5th, 97.5th percentile)} in the order of names, over the resamples in which the
      metric is defined for every row; (nan, nan) where there is none. Nothing warns.

    Raises:
      ValueError: If scores is not (S, N) or label not (N,) with one N > 0 and S > 0, either is not
        finite, a name is unknown, or resamples is below 1.
    """
    _known(names)
    p, y = _checked(2, scores=scores, label=label)
    return bootstrap(p, y, {name: METRICS[name] for name in names}, resamples, seed)


def floors(
    train_label: ArrayLike, label: ArrayLike, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Computes what a score without a model reaches on a split, to print beside every result.

    Args:
      train_label: (M,) finite labels of the training split.
      label: (N,) finite labels of the evaluated split.
      names: The metrics reported.

    Returns:
      `constant_0` and `train_median`: the `mae` of that constant. `majority`: for each accuracy in
      names, the largest share of one class among the evaluated labels, by the accuracy's own
      classes and samples; NaN with a RuntimeWarning if it has no samples.

    Raises:
      ValueError: If labels are not (N,) with N > 0, or not finite, or a name is unknown.
    """
    _known(names)
    (train,), (y,) = _checked(train_label=train_label), _checked(label=label)
    majority = {}
    for name in (name for name in names if name in RULES):
        rule = RULES[name]
        kept = rule.kept(y)
        _, counts = np.unique(rule.classes(y[kept]), return_counts=True)
        majority[name] = float(ratio(counts.max(initial=0), kept.sum()))
        if np.isnan(majority[name]):
            _warn(f"the majority share of {name}", NO_SAMPLES)
    return {
        "constant_0": {"mae": float(measures.mae.value(np.zeros_like(y), y))},
        "train_median": {"mae": float(measures.mae.value(np.full_like(y, np.median(train)), y))},
        "majority": majority,
    }
