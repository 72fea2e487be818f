"""Trains one trial of a sweep: on training and validation splits alone.

A trial is trained as a run is, through the same checkpoints, but it has no results: the corpus that
it is given has a test split that cannot be read.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from msajax.config import Config
from msajax.corpus.corpus import ClosedCorpus
from msajax.errors import NonFiniteError, UserError
from msajax.experiment.run import Sources, build
from msajax.results.measure import deviation
from msajax.runs.folder import RunFolder
from msajax.runtime.signals import StopRequest
from msajax.studies.sweep.verdicts import Ended, SelectionMetric, best_so_far, how_it_ended, mean
from msajax.training.loop import train_groups
from msajax.training.progress import EpochProgress


class _Stop(StopRequest):
    """Asks a trial to stop, for the sweep's sake or because it is hopeless."""

    def __init__(self, of_sweep: StopRequest) -> None:
        self._of_sweep = of_sweep
        self.is_hopeless = False

    @property
    def requested(self) -> bool:
        return self.is_hopeless or self._of_sweep.requested

    def will_serve(self) -> None:
        self._of_sweep.will_serve()

    def serve(self) -> None:
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
    number: int,
    settings: Mapping[str, Any],
    config: Config,
    folder: RunFolder,
    *,
    open_trial: Callable[[Config], Sources],
    before: Sequence[Sequence[float | None]] | None,
    validation: str,
    stop: StopRequest,
    progress: Callable[[int, int, str], EpochProgress],
) -> dict[str, Any] | None:
    """Trains a trial, or goes on with it, until it ends.

    The record is a function of the lines of metrics.jsonl up to the epoch in which the trial ended,
    so that it is the same after any interruption.

    Args:
        settings: changes of the experiment, by key.
        config: the experiment, with the random seeds of trials.
        before: the curves of the trials before it; None turns the median rule off.
        validation: the digest of the validation split that all trials share; "" if none has been
            trained.

    Returns:
        What is on record of it; None if it has paused.

    Raises:
        UserError: for what has nothing to do with the trial's settings, such as a full disk.
    """
    # Build the run on a corpus whose test split cannot be read; all trials validate on one split.
    try:
        sources = open_trial(config)
        sources = sources._replace(corpus=ClosedCorpus(sources.corpus))
        run = build(config, sources, folder)
    except UserError as error:
        return refused(number, settings, str(error))
    hashed = hashlib.sha256("\n".join(map(str, run.valid.ids.tolist())).encode())
    hashed.update(np.ascontiguousarray(run.valid.labels, np.float64).tobytes())
    if validation not in ("", hashed.hexdigest()):
        return refused(
            number,
            settings,
            "its validation split is not that of the trials before it: scores on other samples or "
            "labels cannot be compared",
        )
    folder.claim(config, sources.digests)
    metric = SelectionMetric(run.selection, run.task.reported[run.selection].larger_is_better)

    def ended() -> Ended | None:
        lines = folder.read_metrics()
        best = best_so_far(lines, run.seeds, metric.name)
        return how_it_ended(lines, best, metric, config.train.epochs, before)

    # Train it until it has ended, unless the lines say so already.
    found = ended()  # before a kill, perhaps, that came before the record
    if found is None:
        folder.make()
        stop_or_hopeless = _Stop(stop)

        def judge(lines: Sequence[Mapping[str, Any]]) -> None:
            del lines  # those of this epoch alone
            stop_or_hopeless.is_hopeless = ended() is not None

        run = dataclasses.replace(run, stop=stop_or_hopeless, after_epoch=judge, progress=progress)
        run.describe(run.repairs)
        run.folder.keep_frozen(run.shared)
        with contextlib.suppress(NonFiniteError):  # the lines say which seeds, and when
            train_groups(run)
        found = ended()
    if found is None:
        return None

    # Make the record of the lines up to the epoch in which the trial ended, and of no later ones.
    lines = [line for line in folder.read_metrics() if line["epoch"] <= found.epoch]
    best = best_so_far(lines, run.seeds, metric.name)[:, : found.epoch]
    scores = best[:, -1].tolist()
    best_epoch = {line["seed"]: line["epoch"] for line in lines if line["best"]}
    counts = found.how != "failed" and mean(best[:, -1]) is not None
    return {
        "trial": number,
        "settings": dict(settings),
        "ended": found.how,
        "why": found.why,
        "epochs": found.epoch,
        "score": mean(best[:, -1]) if counts else None,
        "sd": deviation(scores) if counts else None,
        "seeds": scores,
        "best_epoch": [best_epoch.get(seed, 0) for seed in run.seeds],
        "curve": [mean(values) for values in best.T] if counts else [],
        "seconds": round(sum(s for _, s in {(x["epoch"], x["seconds"]) for x in lines}), 3),
        "metric": metric.name,
        "larger_is_better": metric.larger_is_better,
        "validation": hashed.hexdigest(),
    }
