"""Traces a few dispatches, for the profiler of TensorBoard or Perfetto."""

import contextlib
import logging
import os

import jax

from msajax.errors import UserError, first_line, writing

logger = logging.getLogger(__name__)

DISPATCHES = 10  # so many are traced, which takes some seconds


def make_folder(folder: str) -> None:
    """Makes the folder of a trace if needed; raises `UserError` if it cannot be."""
    with writing(folder):
        os.makedirs(folder, exist_ok=True)


class Profiler(contextlib.AbstractContextManager):
    """Traces the first dispatches of compiled programs; does nothing without a folder."""

    def __init__(self, folder: str | None = None) -> None:
        """Prepares to write below `folder`, which exists."""
        self._folder, self._traced = folder, 0

    def __exit__(self, *exc_info) -> None:
        """Ends a trace that has begun."""
        if self._folder is None:
            return
        if self._traced:
            self._write()
        else:
            logger.warning("No profile: every program ran only once, to be compiled.")

    def before_dispatch(self, is_compiled: bool) -> None:
        """Begins the trace before the first dispatch that compiles nothing."""
        if self._folder is not None and is_compiled:
            if not self._traced:
                jax.profiler.start_trace(self._folder)
            self._traced += 1

    def after_dispatch(self) -> None:
        """Ends the trace after `DISPATCHES` dispatches."""
        if self._folder is not None and self._traced >= DISPATCHES:
            self._write()

    def _write(self) -> None:
        try:
            jax.profiler.stop_trace()
        except RuntimeError as error:  # of XLA, for a disk that is full or read-only
            raise UserError(
                f"No profile can be written to {self._folder}: {first_line(error)}."
            ) from error
        logger.info("Profile of %d dispatches: %s.", self._traced, self._folder)
        self._folder = None
