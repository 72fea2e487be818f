"""Knows the tasks: what a model is to predict, and everything that follows from it.

A run's task is named by `CorpusSpec.label_kind`. Another task is a module of this package with a
subclass of `Task`, and an entry here.
"""

from collections.abc import Iterable, Sequence

from numpy.typing import NDArray

from msajax.metrics.table import base_of
from msajax.tasks.base import Task
from msajax.tasks.classification import Classification
from msajax.tasks.multi_label import MultiLabel
from msajax.tasks.next_token import NextToken
from msajax.tasks.ordinal import Ordinal
from msajax.tasks.regression import Regression

TASKS: dict[str, type[Task]] = {
    task.kind: task for task in (Regression, Classification, Ordinal, MultiLabel, NextToken)
}


def make_task(kind: str, names: Sequence[str], train_labels: NDArray | None) -> Task:
    """Builds the task of a run.

    Args:
        train_labels: `[M, L]` of the training split, from which a single score's metrics follow;
            None for a task that reads no labels.
    """
    return TASKS[kind].of(tuple(names), train_labels)


def has_scale(loss: str) -> bool:
    """Says whether a loss, by its name, is of labels that are real numbers."""
    return any(loss in task.losses for task in TASKS.values() if task.has_scale)


def task_that_reports(metrics: Iterable[str]) -> type[Task]:
    """Finds the task whose metrics these are, as results name them."""
    names = {base_of(metric) for metric in metrics}
    found = (task for task in TASKS.values() if task.reports(names))
    return next(found, Regression)  # whose outputs may have any names


__all__ = ["TASKS", "Task", "has_scale", "make_task", "task_that_reports"]
