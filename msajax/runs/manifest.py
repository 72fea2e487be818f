"""Lists what a run's folder holds: the one table that the folder and its mirror in a bucket read.

One more row is all that it takes for an artefact to be kept, checked for its kind, uploaded, and
taken away with the results that it is about.
"""

import dataclasses
import enum
import os
import pathlib

from msajax.errors import UserError
from msajax.files import partial


class Upload(enum.Enum):
    """Says when an entry goes to the object store of a run that lives in one."""

    NEVER = enum.auto()  # it is about this machine
    ONE_BY_ONE = enum.auto()  # each checkpoint alone, when it is whole
    BEFORE_CHECKPOINTS = enum.auto()  # before each checkpoint: none is of use without it
    AT_END = enum.auto()  # when the process leaves the run


@dataclasses.dataclass(frozen=True)
class Entry:
    """Describes one name at the top of a run's folder, or a file in a folder that has such a name.

    Attributes:
        is_early: a start may leave it that ends before the folder is a run's, which it becomes with
            config.json.
        is_result: one of the results, which are all of the same trained model.
        is_derived: a result that says something about other results. It goes before those are
            replaced, so that it never stands beside others than its own.
    """

    name: str
    is_folder: bool = False
    upload: Upload = Upload.NEVER
    is_early: bool = False
    is_result: bool = False
    is_derived: bool = False


CONFIG, RUN, METRICS, LOCK = "config.json", "run.json", "metrics.jsonl", "lock"
FROZEN = "frozen.safetensors"
CHECKPOINTS, BUNDLE, PREDICTIONS, RESULTS = "checkpoints", "bundle", "predictions", "results.json"
CARD, REPORT = "bundle/README.md", "report.html"
EXPLANATION, EXPLANATION_PAGE = "explanation.json", "explanation.html"
DESCRIPTION = "bundle.json"  # by which a bundle's folder is known
ROBUSTNESS, COMPARISON = "robustness.json", "comparison.json"

# Uploads follow this order: an entry stands below what it needs. results.json is the last result,
# because a run counts as ended once it is there; for the same reason it is the first one to go.
ENTRIES = (
    Entry(RUN, upload=Upload.BEFORE_CHECKPOINTS, is_early=True),
    Entry(CONFIG, upload=Upload.BEFORE_CHECKPOINTS, is_early=True),
    Entry(FROZEN, upload=Upload.BEFORE_CHECKPOINTS),
    Entry(METRICS, upload=Upload.BEFORE_CHECKPOINTS),
    Entry(CHECKPOINTS, is_folder=True, upload=Upload.ONE_BY_ONE),
    Entry(BUNDLE, is_folder=True, upload=Upload.AT_END, is_result=True),
    Entry(PREDICTIONS, is_folder=True, upload=Upload.AT_END, is_result=True),
    # It is uploaded with its folder at the end of a run, and alone when it is made later.
    Entry(CARD, is_result=True, is_derived=True),
    Entry(EXPLANATION, upload=Upload.AT_END, is_result=True, is_derived=True),
    Entry(EXPLANATION_PAGE, upload=Upload.AT_END, is_result=True, is_derived=True),
    Entry(ROBUSTNESS, upload=Upload.AT_END, is_result=True, is_derived=True),
    Entry(COMPARISON, upload=Upload.AT_END, is_result=True, is_derived=True),
    Entry(REPORT, upload=Upload.AT_END, is_result=True, is_derived=True),
    Entry(RESULTS, upload=Upload.AT_END, is_result=True, is_derived=True),
    Entry(LOCK, is_early=True),
)


def find(name: str) -> Entry | None:
    """Returns the entry of this name, or None for a name that is none of a run's."""
    return next((entry for entry in ENTRIES if entry.name == name), None)


def refuse_in_run(output: str, flag: str = "output") -> None:
    """Raises `UserError` for an output that lies in the folder of any run, however deep."""
    inside = pathlib.Path(os.path.realpath(os.path.dirname(output)))
    for folder in (inside, *inside.parents):
        if (folder / CONFIG).is_file() and (folder / RUN).is_file():
            raise UserError(
                f"--{flag}={output} lies in the folder of a run, {folder}: choose another place."
            )


def uploaded(*times: Upload) -> list[Entry]:
    """Returns the entries that are uploaded at one of these times, in the order of uploads."""
    return [entry for entry in ENTRIES if entry.upload in times]


def derived() -> list[Entry]:
    """Returns the results that go before others are replaced, in the order in which they go."""
    return [entry for entry in reversed(ENTRIES) if entry.is_derived]


def early_names() -> set[str]:
    """Returns the names that a folder may hold before it is a run's, unfinished files included."""
    names = [entry.name for entry in ENTRIES if entry.is_early]
    return {*names, *map(partial, names)}
