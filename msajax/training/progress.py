"""What a person sees of a run: a bar on a terminal or in a notebook, lines in a log."""

import contextlib
import logging
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from msajax.runtime import processes

logger = logging.getLogger(__name__)

_LOG_SECONDS = 60.0  # between lines of a log inside an epoch
_NOTEBOOK_SECONDS = 0.5  # between two pictures of the bar, which are messages to a browser


class EpochProgress(contextlib.AbstractContextManager):
    """Shows the epochs of a run on standard error, or in the notebook that runs it."""

    def __init__(
        self, epochs: int, done: int, selection: str, console: Console | None = None
    ) -> None:
        """Starts at `done` of at most `epochs`.

        Args:
            epochs: of the run.
            done: epochs behind it.
            selection: the metric that validation minimises.
            console: where the bar goes; standard error without it. What is neither a terminal nor a
                notebook gets lines in the log instead, and so do the processes behind the first.
        """
        self._epochs, self._done, self._selection = epochs, done, selection
        self._bar, self._has_compiled, self._told = None, False, time.monotonic()
        console = console or Console(stderr=True)
        # rich takes FORCE_COLOR for a terminal, which a log may have.
        is_terminal = (
            console.is_terminal and console.file.isatty() and not console.is_dumb_terminal
        )
        if processes.is_first() and (console.is_jupyter or is_terminal):
            bar = _NotebookBar if console.is_jupyter else _Bar
            self._bar = bar(console, epochs, done)
            self._bar.start()

    def __exit__(self, *exc_info) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.stop()

    def compiling(self) -> None:
        """Says that a program runs for the first time, so that the compiler works first."""
        if self._bar is not None:
            self._bar.show(doing="compiling")
        elif not self._has_compiled:
            logger.info("Compiling programs: the first epoch takes longer than those after it.")
        self._has_compiled = True

    def validating(self) -> None:
        """Says that an epoch's steps are behind it."""
        if self._bar is not None:
            self._bar.show(doing="validating")

    def steps_done(self, step: int, steps: int) -> None:
        """Shows that `step` of an epoch's `steps` are done."""
        if self._bar is not None:
            self._bar.show(self._done + step / steps, f"step {step} of {steps}")
        elif time.monotonic() - self._told >= _LOG_SECONDS:
            self._told = time.monotonic()
            logger.info("epoch %d/%d  step %d of %d", self._done + 1, self._epochs, step, steps)

    def epoch_done(self, lines: Sequence[Mapping[str, Any]], best: np.ndarray) -> None:
        """Shows one epoch; of seeds whose numbers are not finite it shows none.

        Args:
            lines: of metrics.jsonl, one per random seed that ran.
            best: `[S]`, every seed's smallest validation score so far.
        """
        valid = f"valid_{self._selection}"
        keys = ("train_loss", valid)
        known = {key: [x[key] for x in lines if x[key] is not None] for key in keys}
        mean = {key: _finite_mean(values) for key, values in known.items()}
        text = (
            f"train loss {mean['train_loss']:.4f}  "
            f"valid {self._selection} {mean[valid]:.4f} (best {_finite_mean(best):.4f})"
        )
        if len(best) > 1:
            text += f"  {len(lines)} of {len(best)} seeds still train"
        self._done = lines[0]["epoch"]
        self._told = time.monotonic()
        if self._bar is not None:
            self._bar.show(self._done, said=text)
        else:
            seconds = lines[0]["seconds"]
            logger.info("epoch %d/%d  %s  %.1f s", self._done, self._epochs, text, seconds)


class _Bar(Progress):
    """Two lines: counters, bar, time left and what is done now; and what the last epoch gave.

    A narrow terminal cuts the second line, and no counter.
    """

    def __init__(self, console: Console, epochs: int, done: int, **more: Any) -> None:
        self._said = ""
        super().__init__(
            MofNCompleteColumn(),
            TextColumn("epochs"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("left  {task.description}"),
            console=console,
            speed_estimate_period=600,  # seconds: validation and slow steps count too
            **more,
        )
        self.add_task("", total=epochs, completed=done)

    def start(self) -> None:
        """Shows the bar; what is logged meanwhile stands above it."""
        before = sys.stderr
        super().start()  # rich takes the place of standard error, not of what handlers hold
        _redirect_logs(before, sys.stderr)

    def stop(self) -> None:
        """Leaves the bar as it is."""
        during = sys.stderr
        super().stop()
        _redirect_logs(during, sys.stderr)

    def show(self, completed: float | None = None, doing: str = "", said: str = "") -> None:
        """Shows how many epochs are done, what is done now, and what the last one gave."""
        self._said = said or self._said
        (task,) = self.task_ids
        self.update(task, completed=completed, description=doing)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The lines, as rich asks for them."""
        yield from super().get_renderables()
        if self._said:
            yield Text(self._said, no_wrap=True, overflow="ellipsis")


class _NotebookBar(_Bar):
    """The same below a notebook's cell, for which rich alone would need ipywidgets."""

    def __init__(self, console: Console, epochs: int, done: int) -> None:
        super().__init__(console, epochs, done, auto_refresh=False, disable=True)
        self._drawn = -math.inf

    def start(self) -> None:
        from IPython.display import display  # there in whatever rich takes for a notebook

        self._handle = display(self, display_id=True)

    def stop(self) -> None:
        self._handle.update(self)

    def show(self, completed: float | None = None, doing: str = "", said: str = "") -> None:
        super().show(completed, doing, said)
        if time.monotonic() - self._drawn >= _NOTEBOOK_SECONDS:
            self._drawn = time.monotonic()
            self._handle.update(self)


def _redirect_logs(before: TextIO, after: TextIO) -> None:
    for name in ("msajax", None):
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(after)


def _finite_mean(values: Sequence[float]) -> float:
    values = np.asarray(values)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan
