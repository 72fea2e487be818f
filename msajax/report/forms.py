"""Checks the form of what a report reads, so that what draws it may rely on it.

A form is a type (`float` also stands for int, and no number is a bool), None, a tuple of forms of
which one fits, `[form]` for a list, `{str: form}` for an object of any keys, and else an object
with at least these keys; a key that ends in "?" may be missing.
"""

import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msajax.errors import UserError
from msajax.metrics.table import base_of
from msajax.report.page import shortened
from msajax.results import legend

_NUMBER = (float, None)  # undefined ones are null
_OVER_SEEDS = {"mean": _NUMBER, "sd": _NUMBER, "seeds": [_NUMBER]}
_RESULTS = {
    "model": {"name": str, "parameters": int},
    "corpus": {
        **{"path": str, "format": str, "digest": str, "modalities": [str]},
        "sizes": {"train": int, "valid": int, "test": int},
        "widths": {str: (int, None)},
        "embedding?": {str: (str, float, bool)},
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
    **{"folds": int, "split_seed": int, "model": {"name": str}},
    "corpus": [{"sizes": {"test": int}}],
    "seeds": [[int]],
    "best_epoch": [[int]],
    "metrics": {
        str: {"mean": _NUMBER, "sd_folds": _NUMBER, "sd_seeds": _NUMBER, "folds": [_NUMBER]},
    },
    "pooled": {"samples": int, "metrics": {str: {"value": _NUMBER, "ci95": [_NUMBER]}}},
    "floors": {str: {str: _NUMBER}},
}
_SETTINGS = {"data": {"clip": float}}
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "a bool", None: "null"}


def check_results(results: Any, path: str) -> None:
    """Raises `UserError` for the content of a results.json that no run has written."""
    found = next(_faults(results, _RESULTS), None) or next(_faults_of_run(results), None)
    if found:
        raise UserError(
            f"{path} is not of the form that this version reads: {found}. Delete it: the run's "
            "train command then writes it anew."
        )


def check_folds(results: Any, path: str) -> None:
    """Raises `UserError` for the content of a folds.json that no cross-validation has written."""
    found = next(_faults(results, _FOLDS), None) or next(_faults_of_folds(results), None)
    if found:
        raise UserError(
            f"{path} is not of the form that this version reads: {found}. Delete it: the train "
            "command of these folds then writes it anew."
        )


def check_settings(settings: Any, path: str) -> None:
    """Raises `UserError` for the content of a config.json that no run has written."""
    if found := next(_faults(settings, _SETTINGS), None):
        raise UserError(
            f"{path} is not of the form that this version reads: {found}. Restore it from a copy."
        )


def check_lines(lines: Sequence[Any], values: Sequence[str], path: str) -> None:
    """Raises `UserError` for a line of metrics.jsonl that no run has written.

    Args:
        lines: of the file.
        values: the keys whose values are numbers, or null where they are undefined.
        path: of the file.
    """
    form = {"seed": int, "epoch": int, "skipped": int, **dict.fromkeys(values, _NUMBER)}
    for number, line in enumerate(lines, 1):
        found = next(_faults(line, form), None)
        if not found and (line["epoch"] < 1 or line["skipped"] < 0):
            found = "an epoch is counted from 1, and skipped steps from 0"
        if found:
            raise UserError(
                f"{path}, line {number} is not of the form that this version reads: {found}. "
                "Restore the file from a copy, or delete that line."
            )


def _faults_of_run(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields what parts of a results.json, each of the right form, say against each other."""
    test, seeds = results["test"], len(results["seeds"])
    if not seeds:
        yield "seeds is empty"
    yield from _faults_of_metrics(test, results["floors"])
    for key in ("valid", "test_ensemble"):
        if results[key].keys() != test.keys():
            yield f"{key} has other metrics than test"
    if results.get("selection", next(iter(test), None)) not in test:
        yield "selection is no metric of test"
    lengths = [("best_epoch", results["best_epoch"], seeds)]
    for split in ("valid", "test"):
        lengths += [(f"{split}.{n}.seeds", of["seeds"], seeds) for n, of in results[split].items()]
    yield from _faults_of_lengths(lengths)


def _faults_of_folds(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields what parts of a folds.json, each of the right form, say against each other."""
    metrics, folds = results["metrics"], results["folds"]
    yield from _faults_of_metrics(results["pooled"]["metrics"], results["floors"])
    if metrics.keys() != results["pooled"]["metrics"].keys():
        yield "metrics has other ones than pooled.metrics"
    lengths = [(key, results[key], folds) for key in ("corpus", "seeds", "best_epoch")]
    lengths += [(f"metrics.{name}.folds", of["folds"], folds) for name, of in metrics.items()]
    yield from _faults_of_lengths(lengths)


def _faults_of_metrics(test: Mapping[str, Any], floors: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the metrics of test, their intervals and their floors."""
    if not test:
        yield "it has no metric of test"
    yield from (f"{name} is no metric" for name in test if not _is_metric(name))
    yield from _faults_of_lengths([(f"ci95 of {n}", of["ci95"], 2) for n, of in test.items()])
    for name, of in test.items():
        if (of["ci95"][0] is None) != (of["ci95"][1] is None):
            yield f"ci95 of {name} has one end"
    for floor, of in floors.items():
        if floor not in legend.FLOORS or not of.keys() <= test.keys():
            yield f"floors.{floor} is no floor of the metrics of test"


def _faults_of_lengths(wanted: Sequence[tuple[str, Sequence[Any], int]]) -> Iterator[str]:
    for where, values, length in wanted:
        if len(values) != length:
            yield f"{where} has {len(values)} values, not {length}"


def _is_metric(name: str) -> bool:
    try:
        return bool(base_of(name))
    except ValueError:
        return False


def _faults(value: Any, form: Any, where: str = "") -> Iterator[str]:
    """Yields where a value of JSON is not of a form, in words.

    Args:
        value: of JSON.
        form: as the module describes it.
        where: the value lies in its file.
    """
    if isinstance(form, list):
        if not isinstance(value, list):
            yield f"{where or 'it'} is {_shown(value)}, not a list"
            return
        for k, item in enumerate(value):
            yield from _faults(item, form[0], f"{where}[{k}]")
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            yield f"{where or 'it'} is {_shown(value)}, not an object"
            return
        of_keys = dict.fromkeys(value, form[str]) if str in form else form
        for key, of in of_keys.items():
            name = key if str in form else key.removesuffix("?")
            inside = f"{where}.{name}".removeprefix(".")
            if name in value:
                yield from _faults(value[name], of, inside)
            elif name == key:
                yield f"{inside} is missing"
    else:
        kinds = form if isinstance(form, tuple) else (form,)
        if not any(map(functools.partial(_is, value), kinds)):
            wanted = " or ".join(_NAMES[kind] for kind in kinds)
            yield f"{where or 'it'} is {_shown(value)}, not {wanted}"


def _is(value: Any, kind: type | None) -> bool:
    """Says whether a value is of one of the types that are no containers."""
    if kind is None or isinstance(value, bool):
        return value is None if kind is None else kind is bool
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def _shown(value: Any) -> str:
    return shortened(json.dumps(value), 60)
