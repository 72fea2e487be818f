"""What the labels of a run are: the metrics that suit them, what validation minimises, floors.

The kinds of `CorpusSpec.label_kind`, with scores `[N, K]` and labels `[N, L]`:

  regression      K real numbers for K labels
  classification  probabilities of K classes; one label, the class, counted from 0
  next_token      negative log-likelihood (nats) and number of a sequence's predicted steps (K = 2);
                  labels are the token to predict at each step, -1 where there is none
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from msajax import metrics
from msajax.metrics import Metric

KINDS = ("regression", "classification", "next_token")
_OF_AN_OUTPUT = ("mae", "corr")  # reported for each of several outputs, and their means


@dataclasses.dataclass(frozen=True)
class Task:
    """How scores are measured against labels.

    Attributes:
        kind: one of `KINDS`.
        names: of the outputs or classes.
        reported: metrics, in the order of reports.
        selection: the metric that validation minimises.
    """

    kind: str
    names: tuple[str, ...]
    reported: Mapping[str, Metric]
    selection: str

    def compute(self, scores: NDArray, labels: NDArray) -> dict[str, float]:
        """Every metric of scores `[N, K]` against labels `[N, L]`; NaN where undefined."""
        return metrics.measure(scores.T, self.targets(labels), self.reported)

    def intervals(self, scores: NDArray, labels: NDArray) -> dict[str, tuple[float, float]]:
        """95 % bootstrap intervals of each metric's mean over seeds, for scores `[S, N, K]`."""
        stacked = np.moveaxis(scores, 1, 2)  # [S, K, N]
        return metrics.bootstrap(stacked, self.targets(labels), self.reported)

    def floors(self, train_labels: NDArray, labels: NDArray) -> dict[str, dict[str, float]]:
        """What scores without a model reach: `{floor: {metric: value}}`, NaN where undefined.

        Args:
            train_labels: `[M, L]` of the training split.
            labels: `[N, L]` of the evaluated split.
        """
        if self.kind == "next_token":
            return _token_floors(train_labels, labels)
        if self.kind == "classification":
            return _class_floors(train_labels[:, 0], labels[:, 0], len(self.names))
        if len(self.names) == 1:
            return metrics.floors(train_labels[:, 0], labels[:, 0], tuple(self.reported))
        median = np.median(train_labels, axis=0)  # [K]
        errors = np.abs(labels - median).mean(axis=0)
        each = {f"mae_{name}": float(e) for name, e in zip(self.names, errors, strict=True)}
        return {"train_median": {"mae": float(errors.mean()), **each}}

    def targets(self, labels: NDArray) -> NDArray:
        """Labels `[N, L]` as metrics take them: `[L, N]`, of classes and tokens `[N]`."""
        return labels.T if self.kind == "regression" else labels[:, 0]


def make_task(kind: str, names: tuple[str, ...], train_labels: NDArray) -> Task:
    """The task of a run.

    Args:
        kind: one of `KINDS`.
        names: of the outputs or the classes.
        train_labels: `[M, L]`; a single score's range decides which metrics suit it.
    """
    if kind == "next_token":
        entropy = Metric(_token_entropy, _NO_STEPS)
        perplexity = Metric(lambda p, y: np.exp(_token_entropy(p, y)), _NO_STEPS)
        reported = {"cross_entropy": entropy, "perplexity": perplexity}
        return Task(kind, names, reported, "cross_entropy")
    if kind == "classification":
        return Task(kind, names, metrics.CLASSES, "cross_entropy")
    if len(names) == 1:
        suitable = metrics.names_for(train_labels[:, 0])
        return Task(kind, names, {m: _of_output(m, 0) for m in suitable}, "mae")
    reported = {m: _mean_over_outputs(m) for m in _OF_AN_OUTPUT}
    for m in _OF_AN_OUTPUT:
        reported |= {f"{m}_{name}": _of_output(m, k) for k, name in enumerate(names)}
    return Task(kind, names, reported, "mae")


def _of_output(name: str, k: int) -> Metric:
    """A metric of output k: of p (..., K, N) and y (..., K, N)."""
    of_one = metrics.METRICS[name]
    return of_one._replace(value=lambda p, y: of_one.value(p[..., k, :], y[..., k, :]))


def _mean_over_outputs(name: str) -> Metric:
    of_one = metrics.METRICS[name]
    return of_one._replace(value=lambda p, y: of_one.value(p, y).mean(axis=-1))


_NO_STEPS = "no sequence has two steps in a row"


def _token_entropy(p: NDArray, y: NDArray) -> NDArray:
    """Nats per predicted step: of p (..., 2, N), log-likelihoods and numbers of steps."""
    del y
    nats, steps = p.sum(axis=-1)[..., 0], p.sum(axis=-1)[..., 1]
    return np.where(steps > 0, nats / np.maximum(steps, 1), np.nan)


def _class_floors(train: NDArray, y: NDArray, classes: int) -> dict[str, dict[str, float]]:
    shares = np.bincount(train.astype(int), minlength=classes) / len(train)
    with np.errstate(divide="ignore"):
        of_label = -np.log(shares[y.astype(int)]).mean()
    majority = np.bincount(y.astype(int)).max() / len(y)
    return {
        "majority": {"accuracy": float(majority)},
        "train_shares": {"cross_entropy": float(of_label)},
    }


def _token_floors(train: NDArray, y: NDArray) -> dict[str, dict[str, float]]:
    """Token frequencies of train, each counted once more than it occurs."""
    targets = y[y >= 0].astype(int)
    counts = np.bincount(train[train >= 0].astype(int), minlength=targets.max(initial=0) + 1) + 1
    nats = -np.log(counts[targets] / counts.sum())
    entropy = float(nats.mean()) if nats.size else float("nan")
    return {"train_shares": {"cross_entropy": entropy, "perplexity": float(np.exp(entropy))}}
