"""Reads what a run's folder holds that a report shows, and says which file of it is damaged."""

import contextlib
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.corpus.predictions import read_columns, read_predictions
from msajax.errors import UserError
from msajax.files import read_json
from msajax.metrics.table import base_of
from msajax.report.page import shortened
from msajax.results import findings
from msajax.runs import manifest
from msajax.runs.folder import RunFolder
from msajax.tasks import TASKS, Task
from msajax.tasks.views import ScoredSamples


@dataclasses.dataclass(frozen=True)
class LabelledScores:
    """Holds samples with labels and what a run says of them: N samples, K outputs or classes.

    Attributes:
        kind: names the task in `msajax.tasks.TASKS`.
        ids: `[N]`.
        labels: `[N, K]`; classes are `[N, 1]`, counted from 0.
        scores: `[N, K]`, means over random seeds.
        sd: `[N, K]`, their deviation over seeds; NaN for one seed.
        low: `[N, K]`, where a 90 % interval begins; None where there are no intervals.
        high: `[N, K]`, where it ends.
        weights: `{modality: [N]}`.
        texts: `[N]` transcripts; None where there are none.
    """

    kind: str
    names: tuple[str, ...]
    ids: NDArray
    labels: NDArray
    scores: NDArray
    sd: NDArray
    low: NDArray | None
    high: NDArray | None
    weights: Mapping[str, NDArray]
    texts: NDArray | None

    @property
    def task(self) -> type[Task]:
        """Returns the task, which says what is shown of its scores."""
        return TASKS[self.kind]

    @functools.cached_property
    def errors(self) -> NDArray:
        """Tells how wrong each score is, `[N]`, and NaN where that is unknown."""
        return self.task.errors(self.labels, self.scores)

    @property
    def scored(self) -> ScoredSamples:
        """Returns the same as tasks read it."""
        return ScoredSamples(self.names, self.labels, self.scores, self.sd, self.low, self.high)


def read_labelled(path: str, size: int, otherwise: str) -> LabelledScores:
    """Reads a file of predictions with labels.

    Args:
        size: the number of samples that it must hold.
        otherwise: the end of the message if it does not: who says so, and what to do.

    Raises:
        UserError: if it cannot be read, lacks a label or a score, or is not of that size.
    """
    read, columns = read_predictions(path, of_seeds=False), read_columns(path)
    if len(read.ids) != size:
        raise UserError(f"{path} has {len(read.ids)} samples, not {size} as {otherwise}")
    outputs = TASKS[read.kind].score_columns(read.names)

    def stacked(names: Sequence[str]) -> NDArray | None:
        """Stacks columns of numbers, `[N, K]`; None if one is not there."""
        if not all(name in columns and columns[name].dtype.kind == "f" for name in names):
            return None
        return np.stack([columns[name] for name in names], axis=1)

    sd = stacked([f"{column}_sd" for column in outputs])
    return LabelledScores(
        kind=read.kind,
        names=read.names,
        ids=read.ids,
        labels=read.labels,
        scores=read.scores[0],
        sd=np.full(read.scores[0].shape, np.nan) if sd is None else sd,
        low=stacked([f"low{column.removeprefix('score')}" for column in outputs]),
        high=stacked([f"high{column.removeprefix('score')}" for column in outputs]),
        weights={
            name.removeprefix("weight_"): np.nan_to_num(values)  # empty: a fold without it
            for name, values in columns.items()
            if name.startswith("weight_") and values.dtype.kind == "f"
        },
        texts=columns.get("raw_text"),
    )


@dataclasses.dataclass(frozen=True)
class Content:
    """Holds what a report of a run is made of: files of its folder; None for one that it lacks."""

    results: Mapping[str, Any]  # results.json
    run: Mapping[str, Any]  # run.json
    settings: Mapping[str, Any]  # config.json
    lines: Sequence[Mapping[str, Any]]  # metrics.jsonl, one per random seed and epoch
    test: LabelledScores  # predictions/test.csv
    robustness: Mapping[str, Any] | None
    explanation: Mapping[str, Any] | None
    explanation_page: str  # the name of the page where samples are stepped through; "" without
    comparison: Mapping[str, Any] | None


def read_content(folder: RunFolder) -> Content:
    """Reads what a report shows of a run; raises `UserError` for a damaged or foreign file."""
    page, path = manifest.EXPLANATION_PAGE, folder.file(manifest.RESULTS)
    results, settings = folder.read_results(), read_json(folder.file(manifest.CONFIG))
    with reading(path, "Delete it: the run's train command then writes it anew."):
        _require_form(results, _RESULTS)
        _require_consistent(results)
    with reading(folder.file(manifest.CONFIG), "Restore it from a copy."):
        _require_form(settings, {"data": {"clip": float}})
    return Content(
        results=results,
        run=read_json(folder.file(manifest.RUN)),
        settings=settings,
        lines=_read_lines(folder, f"valid_{selection(results)}"),
        test=read_labelled(
            folder.file(manifest.PREDICTIONS, "test.csv"),
            results["corpus"]["sizes"]["test"],
            f"{path} says. Delete results.json: the run's train command then writes both anew.",
        ),
        robustness=_read_optional(folder.file(manifest.ROBUSTNESS)),
        explanation=_read_optional(folder.file(manifest.EXPLANATION)),
        explanation_page=page if os.path.exists(folder.file(page)) else "",
        comparison=_read_optional(folder.file(manifest.COMPARISON)),
    )


def _read_lines(folder: RunFolder, curve: str) -> list[dict[str, Any]]:
    path = folder.file(manifest.METRICS)
    try:
        lines = folder.read_metrics()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    form = {"seed": int, "epoch": int, "skipped": int, "train_loss": _NUMBER, curve: _NUMBER}
    for number, line in enumerate(lines, 1):
        advice = "Restore the file from a copy, or delete that line."
        with reading(f"{path}, line {number}", advice):
            _require_form(line, form)
            if line["epoch"] < 1 or line["skipped"] < 0:
                raise _WrongForm("an epoch is counted from 1, and skipped steps from 0")
    return lines


def selection(results: Mapping[str, Any]) -> str:
    """Names the metric of validation that chose epochs; runs of older versions do not say it."""
    return results.get("selection") or findings.headline(results)


def _read_optional(path: str) -> Any:
    if not os.path.exists(path):
        return None
    if (found := read_json(path)) is None:
        raise UserError(f"{path} holds nothing but null: make it anew, or move it away.")
    return found


def read_folds(path: str) -> dict[str, Any]:
    """Reads folds.json; raises `UserError` for content that no cross-validation has written."""
    results = read_json(path)
    with reading(path, "Delete it: the train command of these folds then writes it anew."):
        _require_form(results, _FOLDS)
        _require_consistent_folds(results)
    return results


# --- the form of JSON ---


class _WrongForm(ValueError):
    """Says in words where a value of JSON is not of its form."""


@contextlib.contextmanager
def reading(name: str, advice: str = "Make it anew, or move it away.") -> Iterator[None]:
    """Raises `UserError` where a file of the run turns out not to be what it should be.

    Args:
        name: the file, or a part of it.
        advice: a sentence on how it is set right.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        said = str(error) if isinstance(error, _WrongForm) else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{name} is not of the form that this version reads: {said}. {advice}"
        ) from error


# A form is a type (`float` also stands for int, and no number is a bool), None, a tuple of forms of
# which one fits, `[form]` for a list, `{str: form}` for an object of any keys, and else an object
# with at least these keys; a key that ends in "?" may be missing.
_NUMBER = (float, None)  # undefined ones are null
_OVER_SEEDS = {"mean": _NUMBER, "sd": _NUMBER, "seeds": [_NUMBER]}
_RESULTS = {
    "task?": str,
    "model": {"name": str, "parameters": int},
    "corpus": {
        **{"path": str, "format": str, "digest": str, "modalities": [str]},
        "sizes": {"train": int, "valid": int, "test": int},
        "widths": {str: (int, None)},
        "embeddings?": [{str: (str, float, bool)}],
        "manifest?": {"tools": {str: str}, "settings": {str: str}},
    },
    "seeds": [int],
    "epochs?": int,
    "selection?": str,
    "best_epoch": [int],
    "failed": [{"seed": int, "epoch": int, "step": int}],
    "valid": {str: _OVER_SEEDS},
    "test": {str: {**_OVER_SEEDS, "ci95": [_NUMBER]}},
    "test_ensemble": {str: _NUMBER},
    "floors": {str: {str: _NUMBER}},
    "timing?": {"train_seconds?": float},
}
_FOLDS = {
    "task?": str,
    **{"folds": int, "split_seed": int, "model": {"name": str}},
    "corpus": [{"sizes": {"test": int}}],
    "seeds": [[int]],
    "best_epoch": [[int]],
    "metrics": {
        str: {"mean": _NUMBER, "sd_folds": _NUMBER, "sd_seeds": _NUMBER, "folds": [_NUMBER]}
    },
    "pooled": {"samples": int, "metrics": {str: {"value": _NUMBER, "ci95": [_NUMBER]}}},
    "floors": {str: {str: _NUMBER}},
}
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "a bool", None: "null"}


def _require_form(value: Any, form: Any, where: str = "") -> None:
    if isinstance(form, list | dict):
        kind = type(form)
        fits, wanted = isinstance(value, kind), {list: "a list", dict: "an object"}[kind]
    else:
        kinds = form if isinstance(form, tuple) else (form,)
        fits = any(_is(value, kind) for kind in kinds)
        wanted = " or ".join(_NAMES[kind] for kind in kinds)
    if not fits:
        shown = shortened(json.dumps(value), 60)
        raise _WrongForm(f"{where or 'it'} is {shown}, not {wanted}")
    if isinstance(form, list):
        for k, item in enumerate(value):
            _require_form(item, form[0], f"{where}[{k}]")
    elif isinstance(form, dict):
        of_keys = dict.fromkeys(value, form[str]) if str in form else form
        for key, of_key in of_keys.items():
            name = key if str in form else key.removesuffix("?")
            inside = f"{where}.{name}".removeprefix(".")
            if name in value:
                _require_form(value[name], of_key, inside)
            elif name == key:
                raise _WrongForm(f"{inside} is missing")


def _is(value: Any, kind: type | None) -> bool:
    if kind is None or isinstance(value, bool):
        return value is None if kind is None else kind is bool
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def _require_consistent(results: Mapping[str, Any]) -> None:
    test, seeds = results["test"], len(results["seeds"])
    if not seeds:
        raise _WrongForm("seeds is empty")
    _require_metrics(test, results["floors"])
    for key in ("valid", "test_ensemble"):
        if results[key].keys() != test.keys():
            raise _WrongForm(f"{key} has other metrics than test")
    if results.get("selection", next(iter(test), None)) not in test:
        raise _WrongForm("selection is no metric of test")
    _require_length("best_epoch", results["best_epoch"], seeds)
    for split in ("valid", "test"):
        for name, values in results[split].items():
            _require_length(f"{split}.{name}.seeds", values["seeds"], seeds)


def _require_consistent_folds(results: Mapping[str, Any]) -> None:
    metrics, folds = results["metrics"], results["folds"]
    _require_metrics(results["pooled"]["metrics"], results["floors"])
    if metrics.keys() != results["pooled"]["metrics"].keys():
        raise _WrongForm("metrics has other ones than pooled.metrics")
    for key in ("corpus", "seeds", "best_epoch"):
        _require_length(key, results[key], folds)
    for name, values in metrics.items():
        _require_length(f"metrics.{name}.folds", values["folds"], folds)


def _require_metrics(test: Mapping[str, Any], floors: Mapping[str, Any]) -> None:
    if not test:
        raise _WrongForm("it has no metric of test")
    for name, values in test.items():
        try:
            base_of(name)
        except ValueError as error:
            raise _WrongForm(f"{name} is no metric") from error
        _require_length(f"ci95 of {name}", values["ci95"], 2)
        if (values["ci95"][0] is None) != (values["ci95"][1] is None):
            raise _WrongForm(f"ci95 of {name} has one end")
    for floor, values in floors.items():
        if floor not in Task.floor_words or not values.keys() <= test.keys():
            raise _WrongForm(f"floors.{floor} is no floor of the metrics of test")


def _require_length(where: str, values: Sequence[Any], length: int) -> None:
    if len(values) != length:
        raise _WrongForm(f"{where} has {len(values)} values, not {length}")
