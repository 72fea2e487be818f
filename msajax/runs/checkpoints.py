"""Checkpoints of a run: the only importer of orbax.

A checkpoint is the run state as a flat dictionary of arrays, with a SHA-256 beside it: orbax does
not notice a flipped byte. The latest two are kept; restoring walks back to the newest that
verifies. Of several processes the first one writes and reads; the others get what it has read.
"""

import contextlib
import hashlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from msajax.data.in_memory import update_digest
from msajax.errors import UserError, first_line
from msajax.runs.folder import KEPT
from msajax.runtime import processes


@contextlib.contextmanager
def _log_left_alone() -> Iterator[None]:
    """Keeps absl from setting up the root log, as it does with the first record of orbax.

    What the user sets up later would have no effect. Meanwhile the handler is there that Python
    falls back on where there is none.
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
_OF_TENSORSTORE = re.compile("[A-Z_]+: (Error |.*tensorstore)", re.DOTALL)  # OUT_OF_RANGE: Error …
State = TypeVar("State")


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of one run folder; a context manager that waits for the last save."""

    def __init__(self, folder: str) -> None:
        """Opens `folder`, creating it if needed; what a killed save left there is removed."""
        self._folder, self._manager = folder, None
        if not processes.is_first():
            return
        _silence_libraries()
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
            self._opened = os.open(folder, os.O_RDONLY)  # nothing else gets its number meanwhile
            closes.callback(os.close, self._opened)
            self._manager = ocp.CheckpointManager(os.path.abspath(folder), options=options)
            self._closes = closes.pop_all()

    def __exit__(self, kind: type[BaseException] | None, *exc_info) -> None:
        """Waits until the last save is on disk; its error surfaces here, if there is no other."""
        if self._manager is not None:
            unless_another = contextlib.suppress(UserError) if kind else contextlib.nullcontext()
            with self._closes, unless_another:
                with self._storage_errors():
                    self._manager.close()
                self.require_folder()

    def save(self, step: int, state: Any) -> None:
        """Saves the run state `[S, …]` on the host after `step`; returns once it is copied.

        Raises:
            UserError: if it, or the one before, cannot be written.
        """
        if self._manager is None:
            return
        flat = _flatten(state)
        self.require_folder()  # orbax would make it anew, in what is nobody's or somebody else's
        with self._storage_errors():
            saved = self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(flat),
                    digest=ocp.args.JsonSave({"sha256": _digest(flat)}),
                ),
            )
            if not saved:
                raise ValueError(f"there is one of step {self._manager.latest_step()} already")

    def require_folder(self) -> None:
        """Raises `UserError` if another folder stands there now: somebody else's run, perhaps."""
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
                f"A checkpoint cannot be written to {self._folder}: {first_line(error)}. The last "
                "whole one is kept; when there is room, and the right to write, the same command "
                "continues from it."
            ) from error

    def restore(self, template: State) -> State | None:
        """The newest state that verifies, or None if the folder holds no checkpoint.

        Newer ones that do not verify are deleted, but only once an older one does.

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
                if _digest(flat) != restored.digest["sha256"]:
                    raise ValueError("its content does not match its digest")
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


def _silence_libraries() -> None:
    """Keeps from the user what orbax and tensorstore say beside the errors that they raise to us.

    Once in a process, for good: nothing says when the last of their threads and readers has ended.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_may_be_heard)
    if not isinstance(sys.unraisablehook, _NoLateReaders):
        sys.unraisablehook = _NoLateReaders(sys.unraisablehook)


def _may_be_heard(record: logging.LogRecord) -> bool:
    """Whether a record of absl or asyncio is neither orbax's nor about an error of tensorstore.

    Orbax writes its whole day into absl's log; asyncio tells each error of tensorstore that came
    behind the first one, with a traceback.
    """
    error = str(record.exc_info[1]) if record.exc_info else ""
    return not (record.pathname.startswith(_ORBAX) or _OF_TENSORSTORE.match(error))


class _NoLateReaders:
    """A hook for errors in nobody's hands, without those of tensorstore.

    When one of its readers or writers has failed, each of the others that comes later would print a
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


def _digest(flat: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in sorted(flat):
        update_digest(digest, key, np.atleast_1d(flat[key]))
    return digest.hexdigest()
