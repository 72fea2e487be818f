"""Trains a family of runs: ordinary ones, each in a folder of its own inside of one folder.

Each has its own lock, goes on where it stopped, and is only read once it has ended. All of them are
checked before the first one trains, so that none fails hours later for what can be known now.
"""

import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msajax.checks import is_url
from msajax.config import Config
from msajax.corpus.corpus import Corpus
from msajax.encoders.folder import Folder
from msajax.errors import NonFiniteError, UserError
from msajax.experiment import run
from msajax.experiment.build import check
from msajax.files import name_inside
from msajax.preparation.fit import check_split
from msajax.results import measure
from msajax.runs.folder import RunFolder
from msajax.runtime import devices, processes
from msajax.runtime.signals import StopRequest

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """Says how one start of a family may end early.

    Attributes:
        stop_after_epochs: save and return after so many more epochs, of all runs together.
        stop: asks to save and to return before the next step.
        profile: folder for a trace of some steps, of the first run that trains.
    """

    stop_after_epochs: int | None = None
    stop: StopRequest | None = None
    profile: str | None = None


def open_devices(config: Config, first: str) -> None:
    """Starts JAX once for all runs, as it was for the one in the folder `first`."""
    devices.configure_jax(config.train)
    devices.choose(config, RunFolder(first).cpu_devices())
    devices.require_devices()


def check_run(config: Config, corpus: Corpus, encoder: Folder | None) -> dict[str, str]:
    """Refuses what a run cannot train on or measure; returns the digests of what it reads.

    Raises:
        UserError: for whatever would be refused later.
    """
    sources = check(config, corpus, encoder)
    check_split(corpus.split("train"), sources.preparation)
    check_split(corpus.split("valid"), sources.preparation)
    measure.check_test(corpus, sources.preparation, tell=False)  # the run itself will
    return sources.digests


def require_path(workdir: str, instead: str) -> None:
    """Raises `UserError` for a bucket, which holds single runs; `instead` says which of these."""
    if is_url(workdir):
        raise UserError(
            f"The workdir {workdir} is in a bucket, which can hold {instead}, but not what all of "
            "them say together: name a folder."
        )


def require_no_run(workdir: str, kept: str) -> None:
    """Raises `UserError` for the folder of a single run; `kept` says what belongs there."""
    if os.path.exists(os.path.join(workdir, "config.json")):
        raise UserError(f"The workdir {workdir} holds a single run, where {kept}.")


def require_no_others(
    workdir: str, own: Collection[str], what: str, profile: str | None
) -> None:
    """Raises `UserError` for a folder that holds something, but no run of the family.

    Args:
        workdir: which may not exist yet.
        own: the names of the family's folders.
        what: its runs are, in the plural.
        profile: a path that may lie in the folder.
    """
    there = set(os.listdir(workdir)) if os.path.isdir(workdir) else set()
    if profile:
        there.discard(name_inside(workdir, profile))
    if there and not there & set(own):
        raise UserError(
            f"The workdir {workdir} holds {min(there)!r} but no {what}: choose an empty one or a "
            "new one."
        )


def train_each(
    configs: Mapping[str, Config], workdir: str, start: Start, title: Callable[[str], str]
) -> bool:
    """Trains runs one after another; those that have ended are only read.

    Args:
        configs: by the names of their folders, in the order in which they train.
        workdir: the folder of the folders.
        start: how this start may end early.
        title: what a folder of that name holds, for people.

    Returns:
        Whether all have ended; else one has paused.

    Raises:
        UserError: for whatever the user can set right.
        NonFiniteError: naming the run none of whose seeds has finite numbers any more.
    """
    done = 0  # epochs of this start
    for k, (name, config) in enumerate(configs.items()):
        folder = RunFolder(os.path.join(workdir, name))
        left = None if start.stop_after_epochs is None else start.stop_after_epochs - done
        if left == 0:
            return False
        logger.info("%s (%d of %d): %s.", title(name), k + 1, len(configs), folder.path)
        before = _epochs(folder)
        try:
            profile = None if done else start.profile
            results = run.train(config, folder.path, left, start.stop, profile)
        except NonFiniteError as error:
            raise NonFiniteError(f"{title(name)}: {error}") from error
        if results is None:
            return False
        done += _epochs(folder) - before
    return True


def _epochs(folder: RunFolder) -> int:
    """Counts the epochs that a run has finished."""
    return processes.of_first(
        lambda: max((line["epoch"] for line in folder.read_metrics()), default=0)
    )
