"""Makes what a run's folder holds beside its results, when the run ends or later.

A run that ended before there was an artefact gets it when its train command is repeated.
"""

import logging
from collections.abc import Callable

from msajax import announce
from msajax.config import Config
from msajax.errors import first_line
from msajax.runs import manifest
from msajax.runs.folder import RunFolder
from msajax.runtime import processes

logger = logging.getLogger(__name__)


def _make_card(folder: RunFolder) -> None:
    from msajax.report import model_card

    model_card.make(folder)


def _make_report(folder: RunFolder) -> None:
    from msajax.report import write

    write.make(folder)


# What writes an artefact, whole or not at all, from what else the folder of a run that has ended
# holds. It imports what draws when it is called: a library that is missing is a warning, too.
MAKERS: dict[str, Callable[[RunFolder], None]] = {
    manifest.CARD: _make_card,
    manifest.REPORT: _make_report,
}


def missing(folder: RunFolder, config: Config) -> list[str]:
    """Returns the names of the artefacts that a run which has ended lacks and is to have."""
    made = [name for name in folder.missing_artefacts() if name in MAKERS]
    return [name for name in made if name != manifest.REPORT or config.train.report]


def make_missing(folder: RunFolder, config: Config) -> list[str]:
    """Makes the artefacts that a run which has ended lacks, and returns their names."""
    names = missing(folder, config)
    processes.of_first(lambda: _make(folder, names))
    return names


def _make(folder: RunFolder, names: list[str]) -> None:
    for name in names:
        attempt(folder.file(name), lambda make=MAKERS[name]: make(folder))


def attempt(path: str, make: Callable[[], None]) -> None:
    """Makes a file, or warns that it cannot be made: the results are there, and must be shown."""
    announce.now(f"Writing {path}")
    try:
        make()
    except Exception as error:
        logger.warning("%s cannot be made: %s.", path, first_line(error))
