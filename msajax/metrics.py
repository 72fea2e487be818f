"""Defines every metric, and computes their values, intervals and trivial floors.

Everything is numpy in float64 over a whole split at once: a correlation or a weighted F1 averaged
over batches is another number. Every metric works along the last axis, so one function scores a
split and a block of bootstrap resamples. Another convention (other clipping, other class edges) is
more entries in `_RULES` and `METRICS` and one more tuple of names.

`compute`, `bootstrap_interval` and `floors` serve one score per sample; `msajax.tasks` chooses the
metrics of labels of another kind.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msajax.bootstrap import bootstrap

SENTIMENT = ("mae", "corr", "acc7", "acc5", "acc3", "acc2_nonzero", "f1_nonzero", "acc2_has0",
             "f1_has0", "mse", "rmse", "r2", "spearman", "ccc")
CONTINUOUS = ("mae", "corr", "mse", "rmse", "r2", "spearman", "ccc")


class _Rule(NamedTuple):
    """Says how a score becomes a class, and whether samples labelled exactly 0 take part."""

    classes: Callable[[NDArray], NDArray]
    with_zero: bool = True

    def kept(self, y: NDArray) -> NDArray:
        return np.ones(y.shape, bool) if self.with_zero else y != 0


class Metric(NamedTuple):
    """Holds a function of p (..., N) and y (..., N), and what is known of its values.

    Attributes:
      value: The function, NaN where undefined.
      undefined_when: Why a value is undefined.
      larger_is_better: Whether values rise as scores improve; a loss falls.
    """

    value: Callable[[NDArray, NDArray], NDArray]
    undefined_when: str = "the scores overflow"
    larger_is_better: bool = False


def _rounded(scores: NDArray, limit: int) -> NDArray:
    # np.round rounds half to even. Integers, so that -0.0 and 0.0 are one class.
    return np.round(np.clip(scores, -limit, limit)).astype(np.int8)


def _ratio(numerator: NDArray, denominator: NDArray) -> NDArray:
    zero = denominator == 0
    return np.where(zero, np.nan, numerator / np.where(zero, 1, denominator))


def _centred(x: NDArray) -> NDArray:
    # The first value goes before the mean: the mean of n times 0.1 need not be 0.1, but a constant
    # must come out as exact zeros, or its correlation is rounding noise instead of NaN.
    x = x - x[..., :1]
    return x - x.mean(axis=-1, keepdims=True)


def _mae(p: NDArray, y: NDArray) -> NDArray:
    return np.abs(p - y).mean(axis=-1)


def _mse(p: NDArray, y: NDArray) -> NDArray:
    return np.square(p - y).mean(axis=-1)


def _rmse(p: NDArray, y: NDArray) -> NDArray:
    return np.sqrt(_mse(p, y))


def _r2(p: NDArray, y: NDArray) -> NDArray:
    return 1 - _ratio(_mse(p, y), np.square(_centred(y)).mean(axis=-1))


@np.errstate(invalid="ignore")
def _corr(p: NDArray, y: NDArray) -> NDArray:
    p, y = _centred(p), _centred(y)
    # A largest size of 1 keeps squares from vanishing or overflowing; a constant gives 0/0 = NaN.
    p = p / np.abs(p).max(axis=-1, keepdims=True)
    y = y / np.abs(y).max(axis=-1, keepdims=True)
    spread = np.sqrt(np.square(p).sum(axis=-1) * np.square(y).sum(axis=-1))
    return np.clip((p * y).sum(axis=-1) / spread, -1, 1)


def _average_ranks(x: NDArray) -> NDArray:
    """Ranks from 0 along the last axis; equal values share the mean of the ranks they span."""
    n = x.shape[-1]
    order = np.argsort(x, axis=-1)
    ordered = np.take_along_axis(x, order, axis=-1)
    edge = np.ones((*x.shape[:-1], n + 1), bool)
    edge[..., 1:-1] = ordered[..., 1:] != ordered[..., :-1]
    position = np.arange(n)
    first = np.maximum.accumulate(np.where(edge[..., :-1], position, 0), axis=-1)
    last = np.where(edge[..., 1:], position, n)
    last = np.minimum.accumulate(last[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(x.shape)
    np.put_along_axis(ranks, order, (first + last) / 2, axis=-1)
    return ranks


def _spearman(p: NDArray, y: NDArray) -> NDArray:
    return _corr(_average_ranks(p), _average_ranks(y))


def _ccc(p: NDArray, y: NDArray) -> NDArray:
    """Computes the concordance correlation (Lin, 1989), moments with ddof 0."""
    difference = (p - y).mean(axis=-1)
    p, y = _centred(p), _centred(y)
    spread = np.square(p).mean(axis=-1) + np.square(y).mean(axis=-1) + np.square(difference)
    return _ratio(2 * (p * y).mean(axis=-1), spread)


def _accuracy(p: NDArray, y: NDArray, rule: _Rule) -> NDArray:
    kept = rule.kept(y)
    right = (rule.classes(p) == rule.classes(y)) & kept
    return _ratio(right.sum(axis=-1), kept.sum(axis=-1))


def _weighted_f1(p: NDArray, y: NDArray, rule: _Rule) -> NDArray:
    return _mean_f1(rule.classes(p), rule.classes(y), rule.kept(y), weighted=True)


def _mean_f1(p: NDArray, y: NDArray, kept: NDArray, *, weighted: bool) -> NDArray:
    """Averages F1 over classes, weighted by true counts, or plainly over the classes that occur.

    F1 = 2 tp / (true count + predicted count), of the samples in `kept`. A class that neither
    labels nor predictions have weighs nothing, so its 0/0 is never needed.
    """
    total, weights = 0, 0
    for one_class in np.unique(y) if weighted else np.union1d(p, y):
        predicted, true = (p == one_class) & kept, (y == one_class) & kept
        hits, count = (predicted & true).sum(axis=-1), true.sum(axis=-1)
        both = count + predicted.sum(axis=-1)
        weight = count if weighted else (both > 0) * 1
        total = total + weight * 2 * hits / np.maximum(both, 1)
        weights = weights + weight
    return _ratio(total, weights)


def predicted_classes(p: NDArray) -> NDArray:
    """Finds the most probable class of p (..., C, N), the first of equals: (..., N)."""
    return p.argmax(axis=-2)


def _class_accuracy(p: NDArray, y: NDArray) -> NDArray:
    return (predicted_classes(p) == y).mean(axis=-1)


def _class_f1(p: NDArray, y: NDArray, *, weighted: bool) -> NDArray:
    of_p = predicted_classes(p)
    return _mean_f1(of_p, np.broadcast_to(y, of_p.shape), np.True_, weighted=weighted)


def _cross_entropy(p: NDArray, y: NDArray) -> NDArray:
    classes = np.arange(p.shape[-2])[:, None]
    of_label = np.where(classes == y[..., None, :], p, 0).sum(axis=-2)
    return -np.log(np.maximum(of_label, np.finfo(np.float64).tiny)).mean(axis=-1)


# The accuracies' own classes; `floors` takes the majority class from here too.
_RULES = {
    "acc7": _Rule(partial(_rounded, limit=3)),
    "acc5": _Rule(partial(_rounded, limit=2)),
    "acc3": _Rule(partial(_rounded, limit=1)),
    "acc2_nonzero": _Rule(lambda scores: scores > 0, with_zero=False),
    "acc2_has0": _Rule(lambda scores: scores >= 0),
}
_NO_SAMPLES = "no sample is left: every label is 0"
_CONSTANT = "the prediction or the label is constant"


def _share(value: Callable, rule: _Rule) -> Metric:
    return Metric(partial(value, rule=rule), _NO_SAMPLES, larger_is_better=True)


METRICS = {
    "mae": Metric(_mae),
    "corr": Metric(_corr, _CONSTANT, larger_is_better=True),
    **{name: _share(_accuracy, rule) for name, rule in _RULES.items()},
    "f1_nonzero": _share(_weighted_f1, _RULES["acc2_nonzero"]),
    "f1_has0": _share(_weighted_f1, _RULES["acc2_has0"]),
    "mse": Metric(_mse),
    "rmse": Metric(_rmse),
    "r2": Metric(_r2, "the label is constant", larger_is_better=True),
    "spearman": Metric(_spearman, _CONSTANT, larger_is_better=True),
    "ccc": Metric(_ccc, "prediction and label are the same constant", larger_is_better=True),
}

# Of probabilities p (..., C, N) and true classes y (..., N), counted from 0.
CLASSES = {
    "accuracy": Metric(_class_accuracy, larger_is_better=True),
    "f1_weighted": Metric(partial(_class_f1, weighted=True), larger_is_better=True),
    "f1_macro": Metric(partial(_class_f1, weighted=False), larger_is_better=True),
    "cross_entropy": Metric(_cross_entropy),
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
    for name in (name for name in names if name in _RULES):
        rule = _RULES[name]
        kept = rule.kept(y)
        _, counts = np.unique(rule.classes(y[kept]), return_counts=True)
        majority[name] = float(_ratio(counts.max(initial=0), kept.sum()))
        if np.isnan(majority[name]):
            _warn(f"the majority share of {name}", _NO_SAMPLES)
    return {
        "constant_0": {"mae": float(_mae(np.zeros_like(y), y))},
        "train_median": {"mae": float(_mae(np.median(train), y))},
        "majority": majority,
    }
