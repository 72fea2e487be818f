"""Saves and restores the state of a run: the only importer of orbax.

A checkpoint is the run state as a flat dictionary of arrays, with a SHA-256 beside it: orbax does
not notice a flipped byte. The latest two are kept; restoring walks back to the newest that
verifies. Of several processes the first one writes and reads; the others get what it has read.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from msajax.corpus.in_memory import update_digest
from msajax.errors import UserError, first_line
from msajax.runs.folder import KEPT
from msajax.runtime import processes


@contextlib.contextmanager
def _log_left_alone() -> Iterator[None]:
    """Keeps absl from setting up the root log, which it does when orbax first logs something.

    `logging.basicConfig`, called later by the user, would have no effect. Absl does nothing where
    the root log has a handler: here for a while the one that Python uses when there is none.
    """
    added = not logging.root.handlers
    if added:
        logging.root.addHandler(logging.lastResort)
    try:
        yield
    finally:
        if added:
            logging.root.removeHandler(logging.lastResort)


with _log_left_alone():
    import orbax.checkpoint as ocp

logger = logging.getLogger(__name__)

_ORBAX = os.path.join(os.path.dirname(ocp.__file__), "")
# Such as OUT_OF_RANGE: Error …
_TENSORSTORE_ERROR = re.compile("[A-Z_]+: (Error |.*tensorstore)", re.DOTALL)
State = TypeVar("State")


class Checkpoints(contextlib.AbstractContextManager):
    """Saves and restores the checkpoints of one run; leaving it waits for the last save."""

    def __init__(self, folder: str) -> None:
        """Opens `folder`, making it if needed; removes what a killed save has left there."""
        self._folder, self._manager = folder, None
        if not processes.is_first():
            return
        # What orbax and tensorstore log or print is dropped: their errors are raised to us as well.
        # This is done once in a process, for good, as nothing says when their last thread has
        # ended. Other records of the same logs stay, because they are the user's.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).addFilter(_may_be_heard)
        if not isinstance(sys.unraisablehook, _NoLateReaders):
            sys.unraisablehook = _NoLateReaders(sys.unraisablehook)
        alone = {"primary_host": 0, "active_processes": {0}} if jax.process_count() > 1 else {}
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(KEPT),
            enable_async_checkpointing=True,
            cleanup_tmp_directories=True,
            multiprocessing_options=ocp.options.MultiprocessingOptions(**alone),
            create=False,
        )
        with contextlib.ExitStack() as closes, self._storage_errors():
            closes.enter_context(_log_left_alone())
            os.makedirs(folder, exist_ok=True)
            # Held open: a file system may give the number of a deleted folder to a new one, and
            # the number alone tells them apart.
            self._opened = os.open(folder, os.O_RDONLY)
            closes.callback(os.close, self._opened)
            self._manager = ocp.CheckpointManager(os.path.abspath(folder), options=options)
            self._closes = closes.pop_all()

    def __exit__(self, kind: type[BaseException] | None, *exc_info) -> None:
        """Waits until the last save is on disk; raises its error, if no other is raised."""
        if self._manager is not None:
            unless_another = contextlib.suppress(UserError) if kind else contextlib.nullcontext()
            with self._closes, unless_another:
                with self._storage_errors():
                    self._manager.close()
                self.require_folder()

    def save(self, step: int, state: Any) -> None:
        """Begins to save the run state `[S, …]` on the host after `step`.

        The files are written beside the training; this returns once the arrays are copied.

        Raises:
            UserError: if this checkpoint, or the one before, cannot be written.
        """
        if self._manager is None:
            return
        flat = _flatten(state)
        # Orbax makes a folder anew that is missing: a workdir that was deleted would come back
        # without its config.json, or another run's get our checkpoint. A save that is under way
        # may still do so; `claim.py` then says what that folder may be.
        self.require_folder()
        with self._storage_errors():
            saved = self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(flat),
                    digest=ocp.args.JsonSave({"sha256": _state_digest(flat)}),
                ),
            )
            if not saved:
                raise ValueError(f"there is one of step {self._manager.latest_step()} already")

    def require_folder(self) -> None:
        """Raises `UserError` if the folder is gone, or another run's folder has taken its place."""
        if self._manager is None:
            return
        with self._storage_errors():
            if not os.path.samestat(os.stat(self._folder), os.fstat(self._opened)):
                raise FileNotFoundError("another folder stands there now")

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # orbax and tensorstore raise many kinds
            raise UserError(
                f"A checkpoint cannot be written to {self._folder}: {_why_not(error)}. The last "
                "whole one is kept; when there is room, and the right to write, the same command "
                "continues from it."
            ) from error

    def restore(self, template: State) -> State | None:
        """Returns the newest state that verifies, or None if the folder holds no checkpoint.

        Newer checkpoints that do not verify are deleted, but only once an older one does.

        Args:
            template: a state of the same structure, shapes and types.

        Raises:
            UserError: if there are checkpoints and none verifies.
        """
        found = processes.together(lambda: self._newest(template) if self._manager else None)
        if not processes.share(np.array(found is not None)):
            return None
        if found is None:
            found = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), template)
        return processes.share(found)

    def _newest(self, template: State) -> State | None:
        steps = sorted(self._manager.all_steps(), reverse=True)
        # Orbax ignores a file where a step's folder should be. Here it is a checkpoint that cannot
        # be used, because starting over must not be silent.
        numbers = {int(name) for name in os.listdir(self._folder) if name.isdecimal()}
        for step in sorted(numbers - set(steps), reverse=True):
            logger.warning("Checkpoint %s/%d cannot be used: it is no folder", self._folder, step)
        expected = _flatten(template)
        for step in steps:
            try:
                restored = self._manager.restore(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardRestore(
                            {k: np.empty(v.shape, v.dtype) for k, v in expected.items()}
                        ),
                        digest=ocp.args.JsonRestore(),
                    ),
                )
                flat = {key: np.asarray(value) for key, value in restored.state.items()}
                if _state_digest(flat) != restored.digest["sha256"]:
                    raise ValueError("its content does not match its digest")
                for key, x in expected.items():
                    if flat[key].shape != x.shape:
                        raise UserError(
                            f"Checkpoint {self._folder}/{step} is of another model: {key} is "
                            f"{flat[key].shape} there, {x.shape} here. Take the model's code as it "
                            "was, or choose another --workdir."
                        )
            except UserError:
                raise
            except Exception as error:  # orbax and tensorstore raise many kinds for a bad file
                logger.warning(
                    "Checkpoint %s/%d cannot be used: %s", self._folder, step, first_line(error)
                )
                continue
            for unusable in steps[: steps.index(step)]:
                self._manager.delete(unusable)  # their steps will be saved again
            leaves = [flat[key] for key in expected]
            return jax.tree.unflatten(jax.tree.structure(template), leaves)
        if numbers:
            raise UserError(
                f"None of the checkpoints in {self._folder} can be used; nothing was deleted. "
                "Restore one from a copy, or train in an empty folder."
            )
        return None


def _may_be_heard(record: logging.LogRecord) -> bool:
    """Returns whether a record in absl's or asyncio's log comes from neither of the two libraries.

    Orbax logs each of its steps through absl. Of several errors of tensorstore the first one is
    raised to us; asyncio logs the others, each with a traceback.
    """
    error = str(record.exc_info[1]) if record.exc_info else ""
    return not (record.pathname.startswith(_ORBAX) or _TENSORSTORE_ERROR.match(error))


class _NoLateReaders:
    """Stands for `sys.unraisablehook`, but drops the late errors of tensorstore.

    When one of its readers or writers has failed, each of the others that ends later would print a
    traceback, even after the error has been told.
    """

    def __init__(self, before: Callable[[Any], Any]) -> None:
        self._before = before

    def __call__(self, problem: Any) -> None:
        if str(problem.exc_value) != "Event loop is closed":
            self._before(problem)


def _flatten(state: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _state_digest(flat: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in sorted(flat):
        update_digest(digest, key, np.atleast_1d(flat[key]))
    return digest.hexdigest()


def _why_not(error: Exception) -> str:
    """Returns the system's word for what storage lacks, without the libraries' own paths."""
    said = str(error)
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
    return next((os.strerror(n) for n in numbers if os.strerror(n) in said), first_line(error))
