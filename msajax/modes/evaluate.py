"""Runs --mode=evaluate: measures a finished run, folds, or a file of predictions."""

import os
from typing import Any

import numpy as np
from rich.console import Console

from msajax import cross_validation
from msajax.checks import is_url
from msajax.data import predictions
from msajax.errors import OK, UserError
from msajax.evaluation import protocol
from msajax.evaluation.finished import largest_difference, open_finished
from msajax.evaluation.tables import print_summary
from msajax.modes.options import Options
from msajax.runs.folder import RunFolder
from msajax.runs.remote.mirror import Mirror
from msajax.runtime import devices
from msajax.tasks import Task, make_task


def run(options: Options, console: Console) -> int:
    """Measures and prints; returns the exit code."""
    workdir, split = options["workdir"], options["split"] or "test"
    if bool(workdir) == bool(options["input"]):
        raise UserError(
            "--mode=evaluate needs one of --workdir=RUN and --input=predictions.csv, not both."
        )
    if options["input"]:
        report = evaluate_predictions(options["input"])
    elif cross_validation.holds_folds(workdir):
        report = cross_validation.evaluate_folds(workdir, split, options["output"])
    else:
        if options["output"]:
            RunFolder(workdir).refuse_output(options["output"])
        report = evaluate_run(workdir, split)
    options.write_output(report)
    print_summary(f"{report['input']}, {report['samples']} samples", report, console)
    if "largest_difference" in report:
        print(f"Largest difference from results.json: {report['largest_difference']:.3g}")
    return OK


def evaluate_run(workdir: str, split_name: str) -> dict[str, Any]:
    """Measures a finished run anew, from its bundle and its corpus.

    Returns:
        Metrics over seeds with intervals, those of the ensemble, and for valid and test the largest
        difference from results.json.

    Raises:
        UserError: if the run has not ended, or its corpus is gone or another one.
    """
    if split_name == "all":
        raise UserError("--mode=evaluate takes one split: train, valid or test.")
    devices.require_devices()
    with Mirror(workdir) as mirror:
        report = _evaluate_in(RunFolder(mirror.path), split_name)
    return {"input": workdir if is_url(workdir) else os.path.abspath(workdir), **report}


def _evaluate_in(folder: RunFolder, split_name: str) -> dict[str, Any]:
    """Measures the finished run of a folder."""
    run = open_finished(folder, split_name)
    split, scores, _, _ = run.score(split_name)
    report = {"split": split_name, **_report(scores, split.labels, run.task)}
    if split_name in ("valid", "test"):
        difference = largest_difference(run, report["metrics"], split_name)
        report["largest_difference"] = difference
    return report


def evaluate_predictions(path: str) -> dict[str, Any]:
    """Measures a CSV of predictions with labels.

    Raises:
        UserError: if the file cannot be read, or lacks a label or a score.
    """
    read = predictions.read_predictions(path)
    task = make_task(read.kind, read.names, read.labels)
    return {"input": path, **_report(read.scores, read.labels, task)}


def _report(scores: np.ndarray, labels: np.ndarray, task: Task) -> dict[str, Any]:
    return {
        "samples": len(labels),
        "metrics": protocol.summarize_with_intervals(scores, labels, task),
        "ensemble": task.compute(scores.mean(axis=0), labels),
    }
