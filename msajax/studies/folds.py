"""Cross-validates: trains a run for each fold, and measures the folds together.

WORKDIR holds

    fold_0, fold_1, …  the runs, each an ordinary one with `data.fold` set
    predictions.csv    their predictions of the test splits: every sample of the corpus once
    folds.json         their metrics, by fold and pooled
    report.html        all that as a page; written last
"""

import contextlib
import csv
import dataclasses
import io
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from msajax.config import Config, checked
from msajax.corpus.folds import cut_fold
from msajax.corpus.formats import open_own
from msajax.corpus.predictions import Predictions, read_predictions
from msajax.errors import UserError, writing
from msajax.experiment import artefacts
from msajax.experiment.run import open_encoders
from msajax.files import holds, json_text, name_inside, read_json, write_text
from msajax.report.write import make_of_folds
from msajax.results import measure
from msajax.runs.claim import FOLDS, FOLDS_PREDICTIONS
from msajax.runs.folder import RunFolder
from msajax.runs.manifest import REPORT
from msajax.runtime import processes
from msajax.runtime.signals import StopRequest
from msajax.studies import runner
from msajax.tasks import Task, make_task

logger = logging.getLogger(__name__)


def cross_validate(
    config: Config,
    workdir: str,
    stop_after_epochs: int | None = None,
    stop: StopRequest | None = None,
    profile: str | None = None,
) -> dict[str, Any] | None:
    """Trains every fold in a folder of its own, one after another, and measures them together.

    Folds that have ended, here or in another place, are only read; one that has paused goes on.

    Args:
        config: the experiment, with `data.folds` set and `data.fold` -1; the others are those of
            `runner.train_study`.

    Returns:
        The content of folds.json, or None if a run has paused.

    Raises:
        UserError: for whatever the user can set right, before anything is written.
        NonFiniteError: if no seed's numbers of some fold are finite any more.
    """
    config = checked(config)
    if not config.data.folds or config.data.fold >= 0:
        raise UserError("Training every fold needs data.folds = 3 or more, and data.fold = -1.")
    folds = config.data.folds
    configs = {
        f"fold_{i}": dataclasses.replace(config, data=dataclasses.replace(config.data, fold=i))
        for i in range(folds)
    }
    folders = [RunFolder(os.path.join(workdir, name)) for name in configs]

    def check() -> dict[str, tuple[Config, dict[str, str]]]:
        """Refuses what any fold cannot train on or measure; the corpus is opened once."""
        corpus, found = open_own(config.data.path, config.reading), {}
        encoders = open_encoders(config)
        for name, of_fold in configs.items():
            try:
                digests = runner.check_run(of_fold, cut_fold(corpus, of_fold.reading), encoders)
            except UserError as error:
                raise UserError(f"data.fold = {of_fold.data.fold}: {error}") from error
            found[name] = of_fold, digests
        return found

    def other(path: str) -> str:
        name = os.path.basename(path)
        more = f"{name}, of more than data.folds = {folds}: choose another --workdir, or that"
        return f"{more} number of folds" if re.fullmatch(r"fold_\d+", name) else ""

    study = runner.Study(
        runs="folds",
        single="the run of a single fold (data.fold = 0 and up)",
        kept="data.fold = -1 keeps a folder for each fold: choose another --workdir, or data.fold ="
        f" 0 to {folds - 1}",
        title=lambda name: name.replace("fold_", "Fold "),
        other=other,
    )
    runner.open_devices(config, folders[0])
    with processes.losses_noticed():
        if not runner.train_study(study, workdir, check, stop_after_epochs, stop, profile):
            return None
        results = processes.of_first(lambda: _measure_folds(config, workdir, folders))
        path = os.path.join(workdir, REPORT)
        if config.train.report and processes.is_first() and not os.path.exists(path):
            artefacts.attempt(path, lambda: write_report(workdir))
        return results


# --- the folds measured together ---


def _measure_folds(config: Config, workdir: str, folders: Sequence[RunFolder]) -> dict[str, Any]:
    """Measures runs that have ended together; files that hold the same already stay as they are.

    Pooled metrics are computed from the CSV file, as `evaluate_folds` computes them.
    """
    runs = [folder.read_results() for folder in folders]
    text = _join_predictions([folder.file("predictions", "test.csv") for folder in folders])
    path, results_path = (os.path.join(workdir, name) for name in (FOLDS_PREDICTIONS, FOLDS))
    if not holds(path, text):
        _remove(workdir, REPORT, FOLDS)  # they are of other predictions
        write_text(path, text)
    pooled, task = _pooled(path)
    summary = measure.summarize_with_intervals(pooled.scores, pooled.labels, task)
    results = {
        "folds": len(runs),
        "task": task.kind,
        "split_seed": config.data.split_seed,
        "model": {
            "name": config.model.name,
            "parameters": [run["model"]["parameters"] for run in runs],
        },
        "corpus": [run["corpus"] for run in runs],
        "seeds": [run["seeds"] for run in runs],
        "best_epoch": [run["best_epoch"] for run in runs],
        "failed": [{"fold": i, **failed} for i, run in enumerate(runs) for failed in run["failed"]],
        "metrics": {name: _over_folds(runs, name) for name in task.reported},
        "pooled": {
            "samples": len(pooled.labels),
            "metrics": {n: {"value": v["mean"], "ci95": v["ci95"]} for n, v in summary.items()},
        },
        "floors": _floors(runs, pooled.labels, task),
        "timing": {"train_seconds": round(sum(r["timing"]["train_seconds"] for r in runs), 3)},
    }
    if not holds(results_path, json_text(results)):
        _remove(workdir, REPORT)
        write_text(results_path, json_text(results))
    return read_json(results_path)


def _remove(workdir: str, *names: str) -> None:
    for path in (os.path.join(workdir, name) for name in names):
        with writing(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _join_predictions(paths: Sequence[str]) -> str:
    """Joins files of predictions; the cells of a column that one of them lacks are empty.

    One lacks columns of a random seed that has failed, or of a modality that its train split lacks.
    """
    tables = []
    for path in paths:
        read_predictions(path)  # refuses one that is damaged
        with open(path, encoding="utf-8", newline="") as lines:
            tables.append(list(csv.DictReader(lines)))
    widest = max(tables, key=lambda rows: len(rows[0]))
    columns = dict.fromkeys(column for rows in (widest, *tables) for column in rows[0])
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(columns), restval="", extrasaction="ignore")
    writer.writeheader()
    for rows in tables:
        writer.writerows(rows)
    return file.getvalue()


def _pooled(path: str, of_seeds: bool = False) -> tuple[Predictions, Task]:
    """Reads every sample's score, by models that never saw its video, and the task."""
    pooled = read_predictions(path, of_seeds=of_seeds)
    return pooled, make_task(pooled.kind, pooled.names, pooled.labels)


def _over_folds(runs: Sequence[dict[str, Any]], metric: str) -> dict[str, Any]:
    """Summarises a metric of the test splits over folds and seeds.

    Returns:
        "folds", each a mean over its seeds; their "mean" and "sd_folds"; "sd_seeds" of the means
        over folds of the seeds that every fold has, None for one seed. Both sd have ddof 1.
    """
    found = [
        dict(zip(run["seeds"], np.array(run["test"][metric]["seeds"], float), strict=True))
        for run in runs
    ]
    of_folds = [float(np.mean(list(of_seeds.values()))) for of_seeds in found]
    shared = [seed for seed in found[0] if all(seed in of_seeds for of_seeds in found)]
    of_seeds = [np.mean([of_fold[seed] for of_fold in found]) for seed in shared]
    return {
        "mean": float(np.mean(of_folds)),
        "sd_folds": measure.deviation(of_folds),
        "sd_seeds": measure.deviation(of_seeds),
        "folds": of_folds,
    }


def _floors(runs: Sequence[dict[str, Any]], labels: np.ndarray, task: Task) -> dict[str, Any]:
    """Computes the floors on all samples; those made of train are each fold's own, averaged."""
    if not task.reads_labels:
        return {}
    floors = task.floors(labels, labels)
    sizes = [run["corpus"]["sizes"]["test"] for run in runs]
    for name in (name for name in floors if name.startswith("train_")):
        for metric in floors[name]:  # means over samples, all of them
            of_folds = np.array([run["floors"][name][metric] for run in runs], float)
            floors[name][metric] = float(np.average(of_folds, weights=sizes))
    return floors


def evaluate_folds(workdir: str, split: str, output: str | None = None) -> dict[str, Any]:
    """Measures the folds' predictions anew, every sample once.

    Args:
        split: test, for all samples are in the test split of a fold.
        output: the file where the report will be written.

    Returns:
        Metrics with intervals, summarised as those of one random seed.

    Raises:
        UserError: if a fold has not ended, for another split, and for an output that lies among
            the folds.
    """
    if output and name_inside(workdir, output) not in ("..", "."):
        raise UserError(f"--output={output} lies in the folder of the folds: choose another file.")
    if split != "test":
        raise UserError(
            f"{workdir} holds folds, which are measured together on their test splits: leave out "
            f"--split={split}, or name one fold, as in --workdir={os.path.join(workdir, 'fold_0')}."
        )
    ended_folds(workdir)
    pooled, task = _pooled(os.path.join(workdir, FOLDS_PREDICTIONS))
    return {
        "input": os.path.abspath(workdir),
        "split": split,
        "task": task.kind,
        "samples": len(pooled.labels),
        "metrics": measure.summarize_with_intervals(pooled.scores, pooled.labels, task),
        "ensemble": task.compute(pooled.scores[0], pooled.labels),
    }


def ended_folds(workdir: str) -> list[RunFolder]:
    """Returns the folders of folds that have all ended; raises `UserError` if one has not."""
    path, first = os.path.join(workdir, FOLDS), os.path.join(workdir, "fold_0")
    if not os.path.exists(path):
        raise UserError(
            f"{workdir} holds folds that have not all ended: it has no {FOLDS}. Their train "
            f"command goes on; one that has ended is --workdir={first}."
        )
    found = read_json(path)
    count = found.get("folds") if isinstance(found, dict) else None
    if type(count) is not int or count < 1:
        raise UserError(
            f"{path} does not say how many folds there are. Delete it: the folds' train command "
            "then writes it anew."
        )
    return [RunFolder(os.path.join(workdir, f"fold_{i}")) for i in range(count)]


def as_one_run(workdir: str) -> dict[str, Any]:
    """Reads folds that have all ended as the results of a run whose test split is every sample.

    Metrics of validation are means over folds.

    Returns:
        Of results.json "task", "model", "selection", "valid", "test" and "floors"; and "runs", the
        results of each fold.

    Raises:
        UserError: if a fold has not ended, or random seeds of one have failed.
    """
    runs = [folder.read_results() for folder in ended_folds(workdir)]
    pooled, task = _pooled(os.path.join(workdir, FOLDS_PREDICTIONS), of_seeds=True)
    return {key: runs[0][key] for key in ("task", "model", "selection") if key in runs[0]} | {
        "valid": {
            name: measure.summarize_seeds(
                np.mean([run["valid"][name]["seeds"] for run in runs], axis=0).tolist()
            )
            for name in task.reported
        },
        "test": measure.summarize_with_intervals(pooled.scores, pooled.labels, task),
        "floors": read_json(os.path.join(workdir, FOLDS))["floors"],
        "runs": runs,
    }


def write_report(workdir: str, figures: str = "") -> str:
    """Writes the report of folds that have all ended; returns its path.

    Args:
        figures: a folder for every chart as PDF and SVG; "" for none.

    Raises:
        UserError: if one has not, or a file is missing or damaged.
    """
    make_of_folds(workdir, ended_folds(workdir), figures)
    return os.path.join(workdir, REPORT)
