"""Checkpoints of a run: the only importer of orbax.

A checkpoint is the run state as a flat dictionary of arrays, with a SHA-256 beside it: orbax does
not notice a flipped byte. The latest two are kept; restoring walks back to the newest that
verifies.
"""

import contextlib
import hashlib
import logging
import os
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from msajax.errors import UserError

logger = logging.getLogger(__name__)

KEPT = 2
State = TypeVar("State")


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of one run folder; a context manager that waits for the last save."""

    def __init__(self, folder: str) -> None:
        """Opens `folder`, creating it if needed."""
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(KEPT),
            enable_async_checkpointing=True,
        )
        self._folder = folder
        self._manager = ocp.CheckpointManager(os.path.abspath(folder), options=options)

    def __exit__(self, *exc_info) -> None:
        """Waits until the last save is on disk."""
        self._manager.close()

    def save(self, epoch: int, state: Any) -> None:
        """Saves the run state after `epoch`; returns once the state has been copied."""
        flat = _flatten(jax.device_get(state))
        self._manager.save(
            epoch,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(flat),
                digest=ocp.args.JsonSave({"sha256": _digest(flat)}),
            ),
        )

    def restore(self, template: State) -> State | None:
        """The newest state that verifies, or None if the folder holds no checkpoint.

        Newer ones that do not verify are deleted, but only once an older one does.

        Args:
            template: a state of the same structure, shapes and types.

        Raises:
            UserError: if there are checkpoints and none verifies.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
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
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                logger.warning(
                    "Checkpoint %s/%d cannot be used: %s", self._folder, step, reason
                )
                continue
            for unusable in steps[: steps.index(step)]:
                self._manager.delete(unusable)  # their epochs will be saved again
            leaves = [flat[key] for key in expected]
            return jax.tree.unflatten(jax.tree.structure(template), leaves)
        if steps:
            raise UserError(
                f"None of the checkpoints in {self._folder} can be used; nothing was deleted. "
                "Restore one from a copy, or train in an empty folder."
            )
        return None


def _flatten(state: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _digest(flat: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in sorted(flat):
        array = np.ascontiguousarray(flat[key])
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
