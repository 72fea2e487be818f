"""Trains a study: several ordinary runs, each in a folder of its own inside of one folder.

Each has its own lock, goes on where it stopped, and is only read once it has ended. All of them are
checked before the first one trains, so that none fails hours later for what can be known now.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from msajax.checks import is_url
from msajax.config import Config
from msajax.corpus.corpus import Corpus
from msajax.encoders.folder import Folder
from msajax.errors import NonFiniteError, UserError
from msajax.experiment import run
from msajax.files import name_inside
from msajax.preparation.apply import check_split
from msajax.results import measure
from msajax.runs.folder import RunFolder
from msajax.runtime import devices, processes
from msajax.runtime.signals import StopRequest

logger = logging.getLogger(__name__)


class Study(NamedTuple):
    """Says what the runs of a study are, in the words of its messages.

    Attributes:
        runs: names them in the plural.
        single: says which single runs a bucket can hold, where it cannot hold the study.
        kept: says what belongs where the folder of a single run lies.
        title: names a run for people, by the name of its folder.
        other: says why a folder that lies among the runs belongs to another study of this kind, by
            its path; "" if it does not.
    """

    runs: str
    single: str
    kept: str
    title: Callable[[str], str]
    other: Callable[[str], str]


def train_study(
    study: Study,
    workdir: str,
    check: Callable[[], Mapping[str, tuple[Config, dict[str, str]]]],
    stop_after_epochs: int | None,
    stop: StopRequest | None,
    profile: str | None,
) -> bool:
    """Checks every run of a study, then trains one after another; those that have ended are read.

    Args:
        workdir: the folder of their folders; made if needed.
        check: refuses what one of them cannot train on; returns the configuration of each, and the
            digests of what it reads, by the names of their folders, in the order of training.
        stop_after_epochs: save and return after so many more epochs, of all runs together.
        stop: asks to save and to return before the next step.
        profile: folder for a trace of some steps, of the first run that trains.

    Returns:
        Whether all have ended; else one has paused.

    Raises:
        UserError: for whatever the user can set right, before anything is written.
        NonFiniteError: naming the run none of whose seeds has finite numbers any more.
    """
    processes.of_first(lambda: _refuse_place(workdir, study))
    checked = processes.together(check)
    folders = {name: RunFolder(os.path.join(workdir, name)) for name in checked}
    for name, (config, digests) in checked.items():
        folders[name].claim(config, digests, profile)
    processes.of_first(lambda: _refuse_others(study, workdir, set(checked), profile))

    done = 0  # epochs of this start
    for k, (name, (config, _)) in enumerate(checked.items()):
        folder = folders[name]
        left = None if stop_after_epochs is None else stop_after_epochs - done
        if left == 0:
            return False
        logger.info("%s (%d of %d): %s.", study.title(name), k + 1, len(checked), folder.path)
        before = _epochs(folder)
        try:
            results = run.train(config, folder.path, left, stop, None if done else profile)
        except NonFiniteError as error:
            raise NonFiniteError(f"{study.title(name)}: {error}") from error
        if results is None:
            return False
        done += _epochs(folder) - before
    return True


def open_devices(config: Config, first: RunFolder) -> None:
    """Starts JAX once for all runs, as it was for the first one that has begun."""
    devices.configure_jax(config.train)
    devices.choose(config, first.cpu_devices())
    devices.require_devices()


def first_begun(folders: list[RunFolder]) -> RunFolder:
    """Returns the first folder that holds a run; the first of all if none does."""
    begun = (folder for folder in folders if os.path.exists(folder.file("run.json")))
    return next(begun, folders[0])


def check_run(config: Config, corpus: Corpus, encoders: Mapping[str, Folder]) -> dict[str, str]:
    """Refuses what a run cannot train on or measure; returns the digests of what it reads."""
    sources = run.open_sources(config, corpus, encoders)
    check_split(corpus.split("train"), sources.preparation)
    check_split(corpus.split("valid"), sources.preparation)
    measure.check_test(corpus, sources.preparation, tell=False)  # the run itself will
    return sources.digests


def _refuse_place(workdir: str, study: Study) -> None:
    if is_url(workdir):
        raise UserError(
            f"The workdir {workdir} is in a bucket, which can hold {study.single}, but not what "
            "all of them say together: name a folder."
        )
    if os.path.exists(os.path.join(workdir, "config.json")):
        raise UserError(f"The workdir {workdir} holds a single run, where {study.kept}.")


def _refuse_others(study: Study, workdir: str, own: set[str], profile: str | None) -> None:
    there = set(os.listdir(workdir)) if os.path.isdir(workdir) else set()
    for name in sorted(there - own):
        if why := study.other(os.path.join(workdir, name)):
            raise UserError(f"The workdir {workdir} holds {why}.")
    if profile:
        there.discard(name_inside(workdir, profile))
    if there and not there & own:
        raise UserError(
            f"The workdir {workdir} holds {min(there)!r} but no {study.runs}: choose an empty one "
            "or a new one."
        )


def _epochs(folder: RunFolder) -> int:
    return processes.of_first(
        lambda: max((line["epoch"] for line in folder.read_metrics()), default=0)
    )
