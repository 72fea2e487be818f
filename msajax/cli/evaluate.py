"""Runs --mode=evaluate: measures a finished run, folds, or a file of predictions.

What needs a model is imported where a run is measured: a file of predictions is read without JAX.
"""

import logging
import os
from typing import Any

import numpy as np
from rich.console import Console

from msajax.checks import is_url
from msajax.cli.early_checks import check_run, load_jax
from msajax.cli.options import Options
from msajax.corpus import predictions
from msajax.errors import OK, UserError, printable
from msajax.results import measure
from msajax.results.tables import print_summary
from msajax.runs.claim import holds_folds
from msajax.tasks import Task, make_task
from msajax.tasks.conventions import by_convention

logger = logging.getLogger(__name__)


def run(options: Options, console: Console) -> int:
    """Measures and prints; returns the exit code."""
    workdir, split = options["workdir"], options["split"] or "test"
    if bool(workdir) == bool(options["input"]):
        raise UserError(
            "--mode=evaluate needs one of --workdir=RUN and --input=predictions.csv"
            f"{', not both' * bool(workdir)}."
        )
    options.check_output(("input", "samples", "metrics", "ensemble"))
    if options["input"] and options["split"]:
        raise UserError("--input is one file of predictions: leave out --split.")
    convention = options["convention"] or ""
    if options["input"]:
        report = evaluate_predictions(options["input"], convention)
    elif not holds_folds(workdir):
        report = evaluate_run(workdir, split, convention)
    elif convention:
        raise UserError(
            f"--convention is not read with folds: measure --input={workdir}/predictions.csv."
        )
    else:
        load_jax()
        from msajax.studies.folds import evaluate_folds

        report = evaluate_folds(workdir, split, options["output"])
    options.write_output(report)
    print_summary(f"{report['input']}, {report['samples']} samples", report, console)
    if "largest_difference" in report:
        print(f"Largest difference from results.json: {report['largest_difference']:.3g}")
    return OK


def evaluate_run(workdir: str, split_name: str, convention: str = "") -> dict[str, Any]:
    """Measures a finished run anew, from its bundle and its corpus.

    Args:
        workdir: the run's folder, also in a bucket.
        split_name: train, valid or test.
        convention: names of `conventions.CONVENTIONS`; "" for the metrics of the run.

    Returns:
        Metrics over seeds with intervals, those of the ensemble, and for valid and test the largest
        difference from results.json.

    Raises:
        UserError: if the run has not ended, or its corpus is gone or another one.
    """
    if split_name == "all":
        raise UserError("--mode=evaluate takes one split: train, valid or test.")
    check_run(workdir, "evaluate", writes=False)
    from msajax.corpus.folds import deal_validation
    from msajax.results.finished import largest_difference, open_finished
    from msajax.runs.folder import RunFolder
    from msajax.runs.mirror import Mirror
    from msajax.runtime import devices

    devices.require_devices()
    report: dict[str, Any] = {"input": workdir if is_url(workdir) else os.path.abspath(workdir)}
    report["split"] = split_name
    with Mirror(workdir) as mirror:
        run = open_finished(RunFolder(mirror.path), split_name)
        split, scores, _, _ = run.score(split_name)
        labels = split.labels
        if split_name == "valid":  # as in results.json, those samples that chose the epochs
            share = run.bundle.config.train.calibration_share
            chooses = deal_validation(split.ids, share, split.where).chooses
            scores, labels = scores[:, chooses], labels[chooses]
        report |= _measure(scores, labels, by_convention(convention, run.task, labels))
        if split_name == "test" and not convention:
            calibration = run.bundle.calibration
            report["calibration"] = measure.describe_calibration(calibration, scores, labels)
        if split_name in ("valid", "test") and not convention:
            difference = largest_difference(run, report["metrics"], split_name)
            report["largest_difference"] = difference
    return report


def evaluate_predictions(path: str, convention: str = "") -> dict[str, Any]:
    """Measures a file of predictions with labels, also one of another tool.

    `convention` is as in `evaluate_run`, "" for the metrics that suit the labels. Raises
    `UserError` if the file cannot be read, or lacks a label or a score.
    """
    read = predictions.read_predictions(path)
    ids, counts = np.unique(read.ids[read.ids != ""], return_counts=True)
    if (counts > 1).any():
        named = printable(str(ids[counts > 1][0]))
        logger.warning("%s: some ids, as %s, stand in several rows; each counts.", path, named)
    task = make_task(read.kind, read.names, read.labels)
    task = by_convention(convention, task, read.labels)
    return {"input": path, **_measure(read.scores, read.labels, task)}


def _measure(scores: np.ndarray, labels: np.ndarray, task: Task) -> dict[str, Any]:
    return {
        "task": task.kind,
        "samples": len(labels),
        "metrics": measure.summarize_with_intervals(scores, labels, task),
        "ensemble": task.compute(scores.mean(axis=0), labels),
    }
