"""Shows a person how a run goes: a bar on a terminal or in a notebook, lines in a log."""

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
            selection: the metric that validation follows.
            console: takes the bar; standard error without it. Where that is neither a terminal nor
                a notebook, and in all processes but the first, the log gets lines instead.
        """
        self._epochs, self._done, self._selection = epochs, done, selection
        self._has_compiled, self._told = False, time.monotonic()
        self._bar = _begin_bar(console or Console(stderr=True), epochs, done, "epochs")

    def __exit__(self, *exc_info) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.stop()

    def compiling(self) -> None:
        """Says that a program is being compiled, because it runs for the first time."""
        if self._bar is not None:
            self._bar.show(doing="compiling")
        elif not self._has_compiled:
            logger.info("Compiling programs: the first epoch takes longer than those after it.")
        self._has_compiled = True

    def validating(self) -> None:
        """Says that an epoch's steps are done and validation begins."""
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
        """Shows one epoch's means over the seeds whose numbers are finite.

        Args:
            lines: a line of metrics.jsonl per random seed that ran.
            best: `[S]`, every seed's best value so far of the metric that validation follows.
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


class TrialsProgress(contextlib.AbstractContextManager):
    """Shows the trials of a sweep: one bar for all of them, and a line in the log for each."""

    def __init__(self, trials: int, done: int, console: Console | None = None) -> None:
        """Starts at `done` of the trials; `console` says where the bar goes."""
        self._trials, self._done = trials, done
        self._bar = _begin_bar(console or Console(stderr=True), trials, done, "trials")

    def __exit__(self, *exc_info) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.stop()

    def of_trial(self, epochs: int, done: int, selection: str) -> EpochProgress:
        """Makes what shows the epochs of the trial that is trained now."""
        part = None if self._bar is None else _TrialPart(self._bar, self._done, epochs)
        return _TrialProgress(part, epochs, done, selection)

    def trial_done(self, text: str) -> None:
        """Shows that a trial has ended, and how."""
        self._done += 1
        if self._bar is not None:
            self._bar.show(self._done)
        logger.info("%d of %d: %s", self._done, self._trials, text)


class _TrialProgress(EpochProgress):
    """Shows the epochs of a trial: in the bar of the sweep, or in a line of the log a minute."""

    def __init__(self, part: "_TrialPart | None", epochs: int, done: int, selection: str) -> None:
        self._epochs, self._done, self._selection = epochs, done, selection
        self._bar, self._has_compiled, self._told = part, True, time.monotonic()

    def __exit__(self, *exc_info) -> None:
        """Does nothing: the bar is that of the sweep."""

    def epoch_done(self, lines: Sequence[Mapping[str, Any]], best: np.ndarray) -> None:
        self._done = lines[0]["epoch"]
        if self._bar is not None or time.monotonic() - self._told >= _LOG_SECONDS:
            super().epoch_done(lines, best)


def _begin_bar(console: Console, total: int, done: int, unit: str) -> "_Bar | None":
    """Begins a bar, unless the console is neither a terminal nor a notebook."""
    # With FORCE_COLOR set, rich takes anything for a terminal, also a log.
    is_terminal = console.is_terminal and console.file.isatty() and not console.is_dumb_terminal
    if not processes.is_first() or not (console.is_jupyter or is_terminal):
        return None
    bar = (_NotebookBar if console.is_jupyter else _Bar)(console, total, done, unit)
    bar.start()
    return bar


class _TrialPart:
    """Draws the epochs of one trial as a part of the bar of all trials."""

    def __init__(self, bar: "_Bar", begin: int, epochs: int) -> None:
        self._bar, self._begin, self._epochs = bar, begin, epochs

    def show(self, completed: float | None = None, doing: str = "", said: str = "") -> None:
        whole = None if completed is None else self._begin + completed / self._epochs
        self._bar.show(whole, doing, said)


class _Bar(Progress):
    """Draws two lines: counters, bar, time left and what is done now; and the last epoch's means.

    A narrow terminal cuts the second line, but no counter; 80 columns hold both.
    """

    def __init__(self, console: Console, total: int, done: int, unit: str, **more: Any) -> None:
        self._said = ""
        super().__init__(
            MofNCompleteColumn(),
            TextColumn(unit),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("left  {task.description}"),
            console=console,
            speed_estimate_period=600,  # seconds: validation and slow steps count too
            **more,
        )
        self.add_task("", total=total, completed=done)

    def start(self) -> None:
        """Shows the bar; what is logged meanwhile stands above it."""
        before = sys.stderr
        super().start()  # replaces sys.stderr; handlers of logs still hold the former one
        _redirect_logs(before, sys.stderr)

    def stop(self) -> None:
        """Leaves the bar as it is."""
        during = sys.stderr
        super().stop()
        _redirect_logs(during, sys.stderr)

    def show(self, completed: float | None = None, doing: str = "", said: str = "") -> None:
        self._said = said or self._said
        (task,) = self.task_ids
        self.update(task, completed=completed, description=doing)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self._said:
            yield Text(self._said, no_wrap=True, overflow="ellipsis")


class _NotebookBar(_Bar):
    """Draws the same below a notebook's cell; rich's own needs ipywidgets, which may be missing."""

    def __init__(self, console: Console, total: int, done: int, unit: str) -> None:
        super().__init__(console, total, done, unit, auto_refresh=False, disable=True)
        self._drawn = -math.inf

    def start(self) -> None:
        from IPython.display import display  # installed in whatever rich takes for a notebook

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
