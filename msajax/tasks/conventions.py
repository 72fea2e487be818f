"""Defines the metrics that some papers print in another way, each convention by its name."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.errors import UserError
from msajax.metrics import measures, table
from msajax.metrics.measures import Metric, Rule, accuracy, f1_of
from msajax.tasks import Task
from msajax.tasks.regression import each_and_mean, mean_over_outputs, of_output

logger = logging.getLogger(__name__)

_TRAITS = 16
_POM_SENTIMENT = 14  # from 0, of the 17 ratings of POM; the others are its traits


def _sims_class(scores: NDArray, edges: Sequence[float]) -> NDArray:
    """Numbers the class of scores that are clipped to ±1: an edge belongs to the class below it."""
    return np.digitize(np.clip(scores, -1, 1), edges, right=True)


def _clipped(metric: Metric) -> Metric:
    terms = metric.terms
    return metric._replace(terms=lambda p, y: terms(np.clip(p, -1, 1), np.clip(y, -1, 1)))


def _away_from_zero(scores: NDArray) -> NDArray:
    """Rounds to ±3, halves away from zero."""
    clipped = np.clip(scores, -3, 3)
    whole = np.trunc(clipped)  # adding 0.5 first would round the number below 0.5 up
    return whole + np.sign(clipped) * (np.abs(clipped - whole) >= 0.5)


def _without_zero(metric: Metric) -> Metric:
    """Makes a metric of the samples whose label is not 0."""

    def terms(p: NDArray, y: NDArray) -> list[NDArray]:
        kept = y != 0
        return [kept, *(np.where(kept, term, 0) for term in metric.terms(p, y))]

    def of_sums(n: NDArray, kept: NDArray, *sums: NDArray) -> NDArray:
        return np.where(kept == 0, np.nan, metric.of_sums(kept, *sums))

    why = table.NO_SAMPLES
    if metric.undefined_when == measures.CONSTANT:
        why = f"of the labels that are not 0, {measures.CONSTANT}, or there is none"
    return metric._replace(terms=terms, of_sums=of_sums, undefined_when=why)


_SIMS = {
    2: Rule(partial(_sims_class, edges=(0.0,))),
    3: Rule(partial(_sims_class, edges=(-0.1, 0.1))),
    5: Rule(partial(_sims_class, edges=(-0.7, -0.1, 0.1, 0.7))),
}
_MMMO = Rule(lambda scores: scores > 3.5)
_AWAY = Rule(_away_from_zero)
_WHOLE = Rule(np.round)  # halves to the even number
_SIMS_METRICS = {
    "sims_mae": _clipped(measures.mae),
    "sims_corr": _clipped(measures.corr),
    "sims_acc2": accuracy(_SIMS[2]),
    "sims_f1": f1_of(_SIMS[2]),
    "sims_acc3": accuracy(_SIMS[3]),
    "sims_acc5": accuracy(_SIMS[5]),
}
_MMMO_METRICS = {"mmmo_acc2": accuracy(_MMMO), "mmmo_f1": f1_of(_MMMO)}
_POM_METRICS = {
    "pom_mae": measures.mae,
    "pom_corr": measures.corr,
    "pom_acc": accuracy(_WHOLE),
}
_NONZERO_METRICS = {
    "mae_nonzero": _without_zero(measures.mae),
    "corr_nonzero": _without_zero(measures.corr),
}
_AWAY_METRICS = {"acc7_away_from_zero": accuracy(_AWAY)}
_BY_PREDICTION_METRICS = {
    f"f1_{name}_by_prediction": f1_of(
        table.RULES[f"acc2_{name}"], table.NO_SAMPLES, by="predicted"
    )
    for name in ("nonzero", "has0")
}
_YOUTUBE_METRICS = {name: table.CLASSES[name] for name in ("accuracy", "f1_weighted")}
_YOUTUBE_OF_NUMBERS = {"accuracy": accuracy(_WHOLE), "f1_weighted": f1_of(_WHOLE)}

# Every metric that only a convention reports, for whoever explains it.
METRICS: Mapping[str, Metric] = {
    **_SIMS_METRICS,
    **_MMMO_METRICS,
    **_POM_METRICS,
    **_NONZERO_METRICS,
    **_AWAY_METRICS,
    **_BY_PREDICTION_METRICS,
}


def _of_one(chosen: Mapping[str, Metric]) -> Callable[..., dict[str, Metric]]:
    return lambda task, labels: {name: of_output(metric, 0) for name, metric in chosen.items()}


def _youtube(task: Task, labels: NDArray) -> dict[str, Metric]:
    if task.kind == "classification":
        return dict(_YOUTUBE_METRICS)
    return _of_one(_YOUTUBE_OF_NUMBERS)(task, labels)


def _pom(task: Task, labels: NDArray) -> dict[str, Metric]:
    reported = each_and_mean(_POM_METRICS, task.names)
    if len(task.names) == _TRAITS + 1:
        traits = [k for k in range(len(task.names)) if k != _POM_SENTIMENT]
        reported |= {n: mean_over_outputs(m, traits) for n, m in _POM_METRICS.items()}
    return reported


class Convention(NamedTuple):
    """Describes how some papers print their numbers.

    Attributes:
        needs: the labels and scores it is defined for, in words.
        takes: tells of a task and its labels `[N, L]` whether they are these.
        reported: makes the metrics of a task and its labels.
        usual: tells of labels that it takes whether papers print them so: `all` leaves out the
            conventions of other corpora.
    """

    needs: str
    takes: Callable[[Task, NDArray], bool]
    reported: Callable[[Task, NDArray], dict[str, Metric]]
    usual: Callable[[NDArray], bool]


def _is_score(task: Task, labels: NDArray) -> bool:
    return task.kind == "regression" and len(task.names) == 1


def _within(low: float, high: float) -> Callable[[NDArray], bool]:
    return lambda labels: bool(labels.min() >= low and labels.max() <= high)


def _is_of_three(task: Task, labels: NDArray) -> bool:
    if task.kind == "classification":
        return len(task.names) == 3
    return _is_score(task, labels) and bool(np.isin(labels, (0, 1, 2)).all())


def _has_traits(task: Task, labels: NDArray) -> bool:
    return task.kind == "regression" and len(task.names) in (_TRAITS, _TRAITS + 1)


_SCORE = "one score a sample"
_SENTIMENT_METRICS = {name: table.METRICS[name] for name in table.SENTIMENT}
_MMMO_ALL = {"mae": measures.mae, "corr": measures.corr, **_MMMO_METRICS}
_sentiment = _within(-3, 3)

CONVENTIONS: Mapping[str, Convention] = {
    "sentiment": Convention(_SCORE, _is_score, _of_one(_SENTIMENT_METRICS), _sentiment),
    "sims": Convention(_SCORE, _is_score, _of_one(_SIMS_METRICS), _within(-1, 1)),
    "mmmo": Convention(_SCORE, _is_score, _of_one(_MMMO_ALL), _within(1, 5)),
    "youtube": Convention(
        "three classes, or labels and scores that are class numbers 0, 1, 2",
        _is_of_three,
        _youtube,
        lambda labels: True,
    ),
    "pom": Convention("16 or 17 scores a sample", _has_traits, _pom, lambda labels: True),
    "nonzero_mae": Convention(_SCORE, _is_score, _of_one(_NONZERO_METRICS), _sentiment),
    "acc7_away_from_zero": Convention(_SCORE, _is_score, _of_one(_AWAY_METRICS), _sentiment),
    "f1_by_prediction": Convention(
        _SCORE, _is_score, _of_one(_BY_PREDICTION_METRICS), _sentiment
    ),
}
ALL = "all"


def by_convention(names: str, task: Task, labels: NDArray) -> Task:
    """Returns a task that reports the metrics of conventions, in the order of their names.

    Args:
        names: of `CONVENTIONS`, with commas between; or `all`: what the task reports anyway, and
            every convention that suits the labels; or "", for the task as it is.
        task: what was predicted.
        labels: `[N, L]`.

    Raises:
        UserError: for a name that is none, or a convention that is not defined for the task.
    """
    if not names:
        return task
    chosen = [name.strip() for name in names.split(",")]
    if chosen == [ALL]:
        reported = dict(task.reported)
        for convention in CONVENTIONS.values():
            if convention.takes(task, labels) and convention.usual(labels):
                reported |= convention.reported(task, labels)
        return dataclasses.replace(task, reported=reported)
    reported = {}
    for name in chosen:
        if name not in CONVENTIONS:
            raise UserError(
                f"--convention={names}: {name!r} is none of {', '.join(CONVENTIONS)}, or all."
            )
        if not CONVENTIONS[name].takes(task, labels):
            raise UserError(
                f"--convention={name} needs {CONVENTIONS[name].needs}; these are {_said(task)}."
            )
        if not CONVENTIONS[name].usual(labels):
            logger.warning(
                "--convention=%s is for labels of other corpora than these, which lie in [%g, %g].",
                name,
                labels.min(),
                labels.max(),
            )
        reported |= CONVENTIONS[name].reported(task, labels)
    return dataclasses.replace(task, reported=reported)


def _said(task: Task) -> str:
    if task.kind == "regression":
        return f"{len(task.names)} score(s) a sample"
    return f"{len(task.names)} classes" if task.kind == "classification" else "tokens"
