"""Predicts real numbers: one sentiment score, or several scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.metrics import table
from msajax.metrics.calibration import Basis, Intervals
from msajax.metrics.measures import Metric
from msajax.tasks.base import Task

_OF_EACH_OUTPUT = ("mae", "corr", "ccc")  # reported for each of several outputs, and their means


class Regression(Task):
    """Predicts real numbers: scores and labels are `[N, K]`."""

    kind = "regression"

    @classmethod
    def of(cls, names: tuple[str, ...], train_labels: NDArray | None) -> "Regression":
        """Builds the task; the range of a single score's labels decides which metrics suit it."""
        if len(names) == 1:
            suitable = table.names_for(train_labels[:, 0])
            return cls(names, {m: of_output(table.METRICS[m], 0) for m in suitable}, "mae")
        chosen = {m: table.METRICS[m] for m in _OF_EACH_OUTPUT}
        return cls(names, each_and_mean(chosen, names), "mae")

    @staticmethod
    def label_columns(names: Sequence[str]) -> list[str]:
        """Names `label`, or `label_<name>` for each of several outputs."""
        return [f"label_{name}" for name in names] if len(names) > 1 else ["label"]

    @staticmethod
    def label_cells(
        label: NDArray | None, mean: NDArray, names: Sequence[str], number: Any
    ) -> list[str]:
        """Writes the labels; empty where they are not known."""
        return [""] * len(names) if label is None else [number(y) for y in label]

    @staticmethod
    def score_columns(names: Sequence[str]) -> list[str]:
        """Names `score`, or `score_<name>` for each of several outputs."""
        return ["score"] if len(names) == 1 else [f"score_{name}" for name in names]

    @classmethod
    def names_in(cls, columns: Sequence[str]) -> tuple[str, ...]:
        """Reads the names of several outputs from `label_<name>`; every CSV may be of scores."""
        several = [c for c in columns if c.startswith("label_")]
        if not several or "label" in columns:
            return ("label",)
        return tuple(c.removeprefix("label_") for c in several)

    @staticmethod
    def read_columns_of(names: Sequence[str]) -> list[str]:
        """Names the columns of labels; a single output's is `label`, as `names_in` returns it."""
        return ["label"] if tuple(names) == ("label",) else [f"label_{name}" for name in names]

    def calibrate(self, scores: NDArray, labels: NDArray, basis: Basis) -> Intervals | None:
        """Fits 90 % intervals; None of too few samples."""
        return Intervals.fit(scores, labels, basis)

    def floors(self, train_labels: NDArray, labels: NDArray) -> dict[str, dict[str, float]]:
        """Computes the errors of constants, and of one score also the largest classes' shares."""
        if len(self.names) == 1:
            return table.floors(train_labels[:, 0], labels[:, 0], tuple(self.reported))
        median = np.median(train_labels, axis=0)  # [K]
        errors = np.abs(labels - median).mean(axis=0)
        each = {f"mae_{name}": float(e) for name, e in zip(self.names, errors, strict=True)}
        return {"train_median": {"mae": float(errors.mean()), **each}}

    def targets(self, labels: NDArray) -> NDArray:
        """Arranges labels `[N, K]` as `[K, N]`."""
        return labels.T


def of_output(metric: Metric, k: int) -> Metric:
    """Applies a metric to output k of p (..., K, N) and y (..., K, N)."""
    return metric._replace(part=lambda x: x[..., k, :])


def mean_over_outputs(metric: Metric, outputs: Sequence[int]) -> Metric:
    """Averages a metric over some outputs of p (..., K, N) and y (..., K, N)."""
    chosen = list(outputs)
    return metric._replace(
        part=lambda x: x[..., chosen, :],
        of_sums=lambda n, *sums: metric.of_sums(n, *sums).mean(axis=-2),
    )


def each_and_mean(chosen: Mapping[str, Metric], names: Sequence[str]) -> dict[str, Metric]:
    """Makes each metric of K outputs: first the means over the outputs, then those of each."""
    every = range(len(names))
    reported = {name: mean_over_outputs(metric, every) for name, metric in chosen.items()}
    for name, metric in chosen.items():
        reported |= {f"{name}_{of}": of_output(metric, k) for k, of in enumerate(names)}
    return reported
