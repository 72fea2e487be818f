"""Says of folders, before anything slow, whether they hold a run that has ended, or folds."""

import os
import pathlib

from msajax.checks import is_url
from msajax.config import SYNTHETIC
from msajax.errors import UserError
from msajax.files import meant, read_json
from msajax.runs import manifest
from msajax.runs.claim import run_of_bundle

FOLDS = "folds.json"  # what a cross-validation leaves; its runs are in fold_0, fold_1, …


def require_ended(path: str) -> None:
    """Raises `UserError` for a folder without the results of a run."""
    if os.path.exists(os.path.join(path, manifest.RESULTS)):
        return
    inside = sorted(pathlib.Path(path).glob(f"*/{manifest.RESULTS}"))
    other = f" Name one of those inside it, as {inside[0].parent}." if inside else ""
    if os.path.isfile(os.path.join(path, manifest.DESCRIPTION)):
        other = f" It is a bundle{run_of_bundle(path)}"
    why = f"it has no {manifest.RESULTS}" if os.path.isdir(path) else "there is no such folder"
    near = meant(path) or "."
    raise UserError(f"{path} holds no run that has ended: {why}{near}{other}")


def corpus_path(path: str) -> str:
    """Returns where the corpus of the run in a folder is, as its run.json says.

    Raises:
        UserError: if run.json is missing or damaged.
    """
    path = os.path.join(path, manifest.RUN)
    try:
        return os.fspath(read_json(path)["corpus"]["path"])
    except (LookupError, TypeError) as error:
        raise UserError(f"{path} does not say where the corpus of a run is.") from error


def require_corpus(path: str) -> None:
    """Raises `UserError` if the corpus of the run in a folder is no longer where it was."""
    corpus = corpus_path(path)
    if corpus != SYNTHETIC and not os.path.exists(corpus):
        raise UserError(
            f"The corpus of this run is no longer at {corpus}: run its train command with the new "
            "--config.data.path, which only notes where it is."
        )


def has_begun(workdir: str) -> bool:
    """Says whether a folder holds a run, or several, that can go on; yes for one in a bucket."""
    if is_url(workdir):
        return True
    folders = (pathlib.Path(workdir), *pathlib.Path(workdir).glob("*/"))
    trials = pathlib.Path(workdir).glob("trials/*/")
    return any((folder / manifest.CONFIG).exists() for folder in (*folders, *trials))


def holds_folds(workdir: str) -> bool:
    """Says whether a folder is that of a cross-validation, whether or not its folds have ended."""
    if is_url(workdir) or os.path.exists(os.path.join(workdir, manifest.CONFIG)):
        return False
    return any(os.path.exists(os.path.join(workdir, name)) for name in (FOLDS, "fold_0"))


def refuse_folds(workdir: str, mode: str) -> None:
    """Raises `UserError` for a folder of folds, of which a mode takes one."""
    if holds_folds(workdir):
        raise UserError(
            f"{workdir} holds folds: {mode} takes one of them, as in --workdir={workdir}/fold_0."
        )
