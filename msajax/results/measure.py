"""Keeps the protocol honest: only this file reads the test split, after selection has ended.

Before that, it asks only whether the split can be prepared.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from msajax.corpus.corpus import Corpus, Split
from msajax.corpus.on_demand import take_rows
from msajax.corpus.predictions import Scored
from msajax.metrics.calibration import Calibration
from msajax.preparation.apply import check_split, prepare
from msajax.preparation.fit import Preparation
from msajax.preparation.lost import say_lost
from msajax.tasks import Task

if TYPE_CHECKING:  # what measures a file of predictions needs no model, and no JAX
    from msajax.inference.scoring import Scorer


def check_test(corpus: Corpus, preparation: Preparation, *, tell: bool = True) -> None:
    """Refuses a test split that could not be prepared after training; tells what it would lose.

    A run must not fail after its last epoch. Only which of its steps a model reads is looked at,
    and nothing is kept.
    """
    lost, without_any = check_split(corpus.split("test"), preparation)
    if tell:
        say_lost("test", lost, without_any, corpus.headers["test"].size)


def score_split(
    corpus: Corpus, name: str, preparation: Preparation, budget: float, scorer: "Scorer"
) -> Scored:
    """Reads, prepares and scores one split with parameters that are no longer chosen.

    Args:
        budget: bytes above which the split streams.

    Raises:
        UserError: if a score is not finite.
    """
    split, repairs = prepare(corpus.split(name), preparation, budget)
    return Scored(split, *scorer.score(split, name), repairs)


def stored_rows(corpus: Corpus, name: str, rows: np.ndarray) -> Split:
    """Reads some samples `[n]` of a split as they are stored, to say what their steps are."""
    return take_rows(corpus.split(name), rows)


def summarize(scores: np.ndarray, labels: np.ndarray, task: Task) -> dict[str, Any]:
    """Computes `{metric: {"mean", "sd", "seeds"}}` of scores `[S, N, K]` and labels `[N, L]`."""
    per_seed = [task.compute(score, labels) for score in scores]
    return {name: summarize_seeds([m[name] for m in per_seed]) for name in task.reported}


def summarize_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Summarises a metric of every random seed: "mean", "sd" (as `deviation`) and "seeds"."""
    return {"mean": float(np.mean(values)), "sd": deviation(values), "seeds": list(values)}


def deviation(values: Sequence[float]) -> float | None:
    """Returns the standard deviation of values (ddof 1); None for a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def summarize_with_intervals(scores: np.ndarray, labels: np.ndarray, task: Task) -> dict[str, Any]:
    """Adds to `summarize` a "ci95": the 95 % interval of each mean, by bootstrap over samples."""
    intervals = task.intervals(scores, labels)
    return {
        name: {**values, "ci95": list(intervals[name])}
        for name, values in summarize(scores, labels, task).items()
    }


def report(
    scores: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    train_labels: np.ndarray,
    task: Task,
    calibration: Calibration | None,
) -> dict[str, Any]:
    """Makes the part of results.json that is measured.

    Args:
        scores: `{"valid": [S, N, K], "test": [S, N, K]}`; validation has the samples that chose.
        labels: `[N, L]` by the same splits, the same samples.
        train_labels: `[M, L]`, for the floors.

    Returns:
        The entries valid, test, test_ensemble, floors and calibration.
    """
    test = scores["test"]
    return {
        "valid": summarize(scores["valid"], labels["valid"], task),
        "test": summarize_with_intervals(test, labels["test"], task),
        "test_ensemble": task.compute(test.mean(axis=0), labels["test"]),
        "floors": task.floors(train_labels, labels["test"]),
        "calibration": describe_calibration(calibration, test, labels["test"]),
    }


def describe_calibration(
    calibration: Calibration | None, scores: np.ndarray, labels: np.ndarray
) -> dict[str, Any] | None:
    """Returns a calibration, and what it is worth on test: scores `[S, N, K]`, labels `[N, L]`."""
    if calibration is None:
        return None
    return calibration.to_dict() | {"test": calibration.measure(scores, labels)}
