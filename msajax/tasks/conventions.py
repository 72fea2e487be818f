"""Defines how some papers print their numbers, each convention by its name.

Which metrics a convention reports, its rows in `metrics/table.py` say.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.errors import UserError
from msajax.metrics.measures import Metric
from msajax.metrics.table import reported_by
from msajax.tasks import Task
from msajax.tasks.regression import each_and_mean, mean_over_outputs, of_one_output

logger = logging.getLogger(__name__)

ALL = "all"

_TRAITS = 16
_POM_SENTIMENT = 14  # from 0, of the 17 ratings of POM; the others are its traits


class Convention(NamedTuple):
    """Describes how some papers print their numbers.

    Attributes:
        needs: the labels and scores it is defined for, in words.
        takes: tells of a task and its labels `[N, L]` whether they are these.
        usual: tells of labels that it takes whether papers print them so: `all` leaves out the
            conventions of other corpora.
    """

    needs: str
    takes: Callable[[Task, NDArray], bool]
    usual: Callable[[NDArray], bool]
    reported: Callable[[str, Task], dict[str, Metric]] = lambda name, task: of_one_output(name)


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


def _youtube(name: str, task: Task) -> dict[str, Metric]:
    if task.kind == "classification":
        return reported_by(name)
    return of_one_output("class_numbers")


def _pom(name: str, task: Task) -> dict[str, Metric]:
    chosen = reported_by(name)
    reported = each_and_mean(chosen, task.names)
    if len(task.names) == _TRAITS + 1:
        traits = [k for k in range(len(task.names)) if k != _POM_SENTIMENT]
        reported |= {n: mean_over_outputs(metric, traits) for n, metric in chosen.items()}
    return reported


_SCORE = "one score a sample"
_sentiment = _within(-3, 3)

CONVENTIONS: Mapping[str, Convention] = {
    "sentiment": Convention(_SCORE, _is_score, _sentiment),
    "sims": Convention(_SCORE, _is_score, _within(-1, 1)),
    "mmmo": Convention(_SCORE, _is_score, _within(1, 5)),
    "youtube": Convention(
        "three classes, or labels and scores that are class numbers 0, 1, 2",
        _is_of_three,
        lambda labels: True,
        _youtube,
    ),
    "pom": Convention("16 or 17 scores a sample", _has_traits, lambda labels: True, _pom),
    "nonzero_mae": Convention(_SCORE, _is_score, _sentiment),
    "acc7_away_from_zero": Convention(_SCORE, _is_score, _sentiment),
    "f1_by_prediction": Convention(_SCORE, _is_score, _sentiment),
}


def by_convention(names: str, task: Task, labels: NDArray) -> Task:
    """Returns a task that reports the metrics of conventions, in the order of their names.

    Args:
        names: those in `CONVENTIONS`, with commas between; or `all`: what the task reports anyway,
            and every convention that suits the labels; or "", for the task as it is.

    Raises:
        UserError: for a name that is none, or a convention that is not defined for the task.
    """
    if not names:
        return task
    chosen = [name.strip() for name in names.split(",")]
    if chosen == [ALL]:
        reported = dict(task.reported)
        for name, convention in CONVENTIONS.items():
            if convention.takes(task, labels) and convention.usual(labels):
                reported |= convention.reported(name, task)
        return dataclasses.replace(task, reported=reported)
    reported = {}
    for name in chosen:
        if name not in CONVENTIONS:
            raise UserError(
                f"--convention={names}: {name!r} is none of {', '.join(CONVENTIONS)}, or all."
            )
        if not CONVENTIONS[name].takes(task, labels):
            raise UserError(
                f"--convention={name} needs {CONVENTIONS[name].needs}; these are {task.describe()}."
            )
        if not CONVENTIONS[name].usual(labels):
            logger.warning(
                "--convention=%s is for labels of other corpora than these, which lie in [%g, %g].",
                name,
                labels.min(),
                labels.max(),
            )
        reported |= CONVENTIONS[name].reported(name, task)
    return dataclasses.replace(task, reported=reported)
