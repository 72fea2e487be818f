"""Makes what a run's folder holds beside its results, when the run ends or later.

An artefact has a row in `runs/manifest.py` and its maker here. A run that had ended before this
program could make it gets it when its train command is repeated.
"""

from collections.abc import Callable

from msajax.runs.folder import RunFolder
from msajax.runtime import processes

# By name in the manifest: writes the file or folder of that name, whole or not at all, from what
# else the folder of a run that has ended holds.
MAKERS: dict[str, Callable[[RunFolder], None]] = {}


def missing(folder: RunFolder) -> list[str]:
    """Returns the names of the artefacts that a run which has ended lacks and that can be made."""
    return [name for name in folder.missing_artefacts() if name in MAKERS]


def make_missing(folder: RunFolder) -> list[str]:
    """Makes the artefacts that a run which has ended lacks, and returns their names."""
    names = missing(folder)
    processes.of_first(lambda: [MAKERS[name](folder) for name in names] and None)
    return names
