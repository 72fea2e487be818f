"""Refuses a folder that is not a run's own: that of another run, or of something else."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from msajax.checks import differences, is_url
from msajax.config import SYNTHETIC, Config, from_config_dict, identity
from msajax.config.identity import require_numerics
from msajax.errors import UserError
from msajax.files import meant, name_inside, partial, read_json, require_writable
from msajax.runs import manifest

# What a cross-validation leaves; its runs are in fold_0, fold_1, …
FOLDS, FOLDS_PREDICTIONS = "folds.json", "predictions.csv"


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
    """Returns where a run's corpus is; raises `UserError` if run.json is missing or damaged."""
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


def require_place(workdir: str) -> None:
    """Raises `UserError` unless a folder can be made and written at `workdir`; makes nothing."""
    refuse_file(workdir)
    try:
        require_writable(workdir)
    except UserError as error:
        why = str(error.__cause__.strerror)
        raise UserError(f"The workdir {workdir} cannot be written: {why}.") from error


def goes_on(workdir: str, name: str, why: str = "") -> bool:
    """Says whether a study may go on in a folder, as it holds the file of that name.

    Args:
        why: more words for the message about a folder that holds other files alone.

    Raises:
        UserError: for a file, and for a folder that holds something else.
    """
    refuse_file(workdir)
    there = set(os.listdir(workdir)) if os.path.isdir(workdir) else set()
    if name in there:
        return True
    if others := there - {manifest.LOCK, partial(name)}:
        raise UserError(
            f"The workdir {workdir} holds {min(others)!r} but no {name}{why}: choose an empty one "
            "or a new one."
        )
    return False


def refuse_file(workdir: str) -> None:
    """Raises `UserError` for a file in the place of a folder."""
    if os.path.exists(workdir) and not os.path.isdir(workdir):
        raise UserError(f"The workdir {workdir} is a file; it must be a folder.")


def require_no_difference(workdir: str, what: str, found: Sequence[str]) -> None:
    """Raises `UserError` if settings differ from those of the `what` that a folder holds."""
    if found:
        raise UserError(
            f"The workdir {workdir} holds another {what} ({'; '.join(found)}): choose another "
            f"--workdir, or the settings of that {what}."
        )


def refuse_other_run(
    folder: str, config: Config, digests: Mapping[str, str] | None, beside: str | None
) -> None:
    """Refuses a folder that belongs to another run than this one, or than its first epochs.

    Args:
        digests: digests of its corpus and its encoders, by name; None before they are known.
        beside: a path that may lie in the folder before the run does, such as that of a trace.

    Raises:
        UserError: if the folder holds something else than a run, a folder where a run has a file
            or a file where it has a folder, or a run of another identity; both sides of every
            difference are named.
    """
    if not os.path.isdir(folder):
        return  # nobody's yet; `RunFolder.make` says what else is wrong
    try:
        there = set(os.listdir(folder))
    except OSError as error:
        raise UserError(f"The workdir {folder} cannot be read: {error.strerror}.") from error
    if manifest.CONFIG not in there:
        others = there - manifest.early_names()
        if beside:
            others.discard(name_inside(folder, beside))
        if manifest.DESCRIPTION in others:
            raise UserError(
                f"The workdir {folder} is a bundle, the model that a run has left: name the run's "
                f"folder, or a new one{run_of_bundle(folder)}"
            )
        if others:
            # A write that is under way while somebody deletes a run's folder makes it anew.
            remains = others <= {manifest.CHECKPOINTS, manifest.METRICS}
            advice = ", or delete it if it is the rest of a deleted run" if remains else ""
            raise UserError(
                f"The workdir {folder} holds {min(others)!r} but no config.json, so it is no run's "
                f"folder: choose an empty one or a new one{advice}."
            )
        return
    for entry in manifest.ENTRIES:
        path = os.path.join(folder, entry.name)
        if entry.name in there and os.path.isdir(path) != entry.is_folder:
            found, kept = ("file", "folder") if entry.is_folder else ("folder", "file")
            raise UserError(f"{path} is a {found}; a run keeps a {kept} there: move it.")
    stored, wanted = _stored_identity(folder), identity(config)
    if digests is None:
        digests = {key: value for key, value in stored.items() if key not in wanted}
    wanted |= digests
    found = differences(wanted, stored, "{key}: {there} there, {here} here")
    # A run may go on with more epochs than it had.
    if wanted["train.epochs"] > stored["train.epochs"] and len(found) == 1:
        if config.optim.schedule not in ("cosine", "linear"):
            return
        raise UserError(
            f"The workdir {folder} holds a run of fewer epochs ({found[0]}), which cannot go on: "
            f"the rates of optim.schedule = {config.optim.schedule} depend on the last planned "
            "step. Choose another --workdir, or that number of epochs."
        )
    require_no_difference(folder, "run", found)


def run_of_bundle(folder: str) -> str:
    """Returns `; did you mean …?` if the folder above a bundle is that of a run, else a dot."""
    above = os.path.dirname(os.path.abspath(folder))
    above = above if os.path.isabs(folder) else os.path.relpath(above)
    is_run = os.path.isfile(os.path.join(above, manifest.CONFIG))
    return f"; did you mean {above}?" if is_run else "."


def read_run(folder: str) -> dict[str, Any]:
    """Reads run.json; raises `UserError` if damaged, or if its numbers would come out otherwise."""
    run = read_json(os.path.join(folder, manifest.RUN))
    require_numerics(run, f"The run in the workdir {folder}")
    return run


def _stored_identity(folder: str) -> dict[str, Any]:
    try:
        run = read_run(folder)
        try:
            config = from_config_dict(read_json(os.path.join(folder, manifest.CONFIG)))
        except UserError as error:
            raise UserError(
                f"The workdir {folder} cannot be continued, and nothing was changed: config.json: "
                f"{error}"
            ) from error
        found = identity(config) | {"corpus digest": run["corpus"]["digest"]}
        for name, begins_with in run["initial"].items():
            if name.endswith(" encoder"):
                found[f"{name} digest"] = begins_with["digest"]
        return found
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"config.json and run.json in {folder} are not those of a run: choose another "
            "--workdir."
        ) from error
