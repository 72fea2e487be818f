"""Trains one trial of a sweep: on training and validation splits alone.

A trial is trained as a run is, through the same checkpoints, but it has no results: the corpus that
it is given has a test split that cannot be read.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from msajax.config import Config
from msajax.corpus.corpus import ClosedCorpus
from msajax.errors import NonFiniteError, UserError
from msajax.experiment.build import Sources, build
from msajax.runs.folder import RunFolder
from msajax.runtime.signals import StopRequest
from msajax.studies.sweep.verdicts import Ended, Metric, best_so_far, how_it_ended, mean
from msajax.training.loop import train_seeds
from msajax.training.progress import EpochProgress
from msajax.training.run import Run


@dataclasses.dataclass(frozen=True)
class Trial:
    """Describes one trial.

    Attributes:
        number: from 0.
        settings: what it changes of the experiment, by key.
        config: its experiment, with the random seeds of trials.
        folder: of its run.
        before: the curves of the trials before it; None turns the median rule off.
        validation: the digest of the validation split that all trials share; "" if none has been
            trained.
    """

    number: int
    settings: Mapping[str, Any]
    config: Config
    folder: RunFolder
    before: Sequence[Sequence[float | None]] | None
    validation: str


@dataclasses.dataclass(frozen=True)
class Watch:
    """Holds who stops a trial and who shows it.

    Attributes:
        stop: asks the sweep to save and to stop.
        progress: makes what shows the trial's epochs.
    """

    stop: StopRequest
    progress: Callable[[int, int, str], EpochProgress]


class _Stop(StopRequest):
    """Asks a trial to stop, for the sweep's sake or because it is hopeless."""

    def __init__(self, of_sweep: StopRequest) -> None:
        self._of_sweep = of_sweep
        self.is_hopeless = False

    @property
    def requested(self) -> bool:
        """Whether the trial is to stop."""
        return self.is_hopeless or self._of_sweep.requested

    def will_serve(self) -> None:
        """Notes that signals are served from now on."""
        self._of_sweep.will_serve()

    def serve(self) -> None:
        """Notes that the trial saves and ends."""
        if self._of_sweep.requested:
            self._of_sweep.serve()


def refused(number: int, settings: Mapping[str, Any], sentence: str) -> dict[str, Any]:
    """Makes the record of a trial that cannot be trained."""
    return {
        "trial": number,
        "settings": dict(settings),
        "ended": "refused",
        "why": sentence,
        "epochs": 0,
        "score": None,
        "sd": None,
        "seeds": [],
        "best_epoch": [],
        "curve": [],
        "seconds": 0.0,
    }


def train_trial(
    trial: Trial, open_sources: Callable[[Config], Sources], watch: Watch
) -> dict[str, Any] | None:
    """Trains a trial, or goes on with it, until it ends.

    The record is a function of the lines of metrics.jsonl up to the epoch in which the trial ended,
    so that it is the same after any interruption.

    Args:
        trial: which one.
        open_sources: opens what its configuration reads.
        watch: who stops and shows it.

    Returns:
        What is on record of it; None if it has paused.

    Raises:
        UserError: for what has nothing to do with the trial's settings, such as a full disk.
    """
    folder = trial.folder
    try:
        sources = open_sources(trial.config)
        sources = sources._replace(corpus=ClosedCorpus(sources.corpus))
        run = build(trial.config, sources, folder)
    except UserError as error:
        return refused(trial.number, trial.settings, str(error))
    validation = _digest(run)
    if trial.validation not in ("", validation):
        return refused(
            trial.number,
            trial.settings,
            "its validation split is not that of the trials before it: scores on other samples or "
            "labels cannot be compared",
        )
    folder.claim(trial.config, sources.digests)
    metric = Metric(run.selection, run.task.reported[run.selection].larger_is_better)
    ended = _ended(trial, metric)  # before a kill, perhaps, that came before the record
    if ended is None:
        folder.make()
        ended = _train(trial, run, metric, watch)
    return None if ended is None else _record(trial, metric, ended) | {"validation": validation}


def _digest(run: Run) -> str:
    """Computes the SHA-256 of the ids and labels that validation scores are made of."""
    hashed = hashlib.sha256("\n".join(map(str, run.valid.ids.tolist())).encode())
    hashed.update(np.ascontiguousarray(run.valid.labels, np.float64).tobytes())
    return hashed.hexdigest()


def _ended(trial: Trial, metric: Metric) -> Ended | None:
    lines, train = trial.folder.read_metrics(), trial.config.train
    best = best_so_far(lines, _seeds(trial.config), metric.name)
    return how_it_ended(lines, best, metric, train.epochs, trial.before)


def _seeds(config: Config) -> range:
    return range(config.train.first_seed, config.train.first_seed + config.train.seeds)


def _train(trial: Trial, run: Run, metric: Metric, watch: Watch) -> Ended | None:
    """Trains until the trial has ended or is to pause; returns how it ended."""
    stop = _Stop(watch.stop)

    def judge(lines: Sequence[Mapping[str, Any]]) -> None:
        del lines  # those of this epoch alone
        stop.is_hopeless = _ended(trial, metric) is not None

    run = dataclasses.replace(run, stop=stop, after_epoch=judge, progress=watch.progress)
    run.describe(run.repairs)
    run.folder.keep_frozen(run.shared)
    try:
        train_seeds(run)
    except NonFiniteError:
        pass  # the lines say which seeds, and when
    return _ended(trial, metric)


def _record(trial: Trial, metric: Metric, ended: Ended) -> dict[str, Any]:
    """Makes the record of a trial from its lines up to the epoch in which it ended."""
    lines = [line for line in trial.folder.read_metrics() if line["epoch"] <= ended.epoch]
    seeds = _seeds(trial.config)
    best = best_so_far(lines, seeds, metric.name)[:, : ended.epoch]
    scores = best[:, -1].tolist()
    best_epoch = {line["seed"]: line["epoch"] for line in lines if line["best"]}
    counts = ended.how != "failed" and mean(best[:, -1]) is not None
    return {
        "trial": trial.number,
        "settings": dict(trial.settings),
        "ended": ended.how,
        "why": ended.why,
        "epochs": ended.epoch,
        "score": mean(best[:, -1]) if counts else None,
        "sd": float(np.std(scores, ddof=1)) if counts and len(scores) > 1 else None,
        "seeds": scores,
        "best_epoch": [best_epoch.get(seed, 0) for seed in seeds],
        "curve": [mean(values) for values in best.T] if counts else [],
        "seconds": round(sum(s for _, s in {(x["epoch"], x["seconds"]) for x in lines}), 3),
        "metric": metric.name,
        "larger_is_better": metric.larger_is_better,
    }
