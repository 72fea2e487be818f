"""Begins and resumes runs, decides when a run saves its state and whether it goes on."""

import logging
import time
from collections.abc import Callable

import numpy as np

from msajax.runs.checkpoints import Checkpoints
from msajax.runtime import processes
from msajax.runtime.devices import Deal, Layout
from msajax.runtime.signals import StopRequest
from msajax.training.initial import with_initial
from msajax.training.programs import Programs
from msajax.training.run import Run
from msajax.training.state import EpochSoFar, RunState, StepMetrics, have_stopped, init_selection

logger = logging.getLogger(__name__)

MOST_OF_TIME = 0.1  # the share of a run's time that saving may take
POLL_SECONDS = 0.1  # between two looks at whether to stop, while a program is compiled


def restored(run: Run, checkpoints: Checkpoints, programs: Programs) -> RunState | None:
    """Returns the state of the newest checkpoint, None without one; metrics.jsonl ends there."""
    train, selection = programs.state(len(run.seeds)), init_selection(len(run.seeds))
    found = checkpoints.restore(RunState(train, train.variables, selection, next_epoch(run)))
    if found is not None:
        train, best = run.layout.put_state((found.train, found.best))
        selection = found.selection  # `train.epochs` may have grown since
        selection = selection.replace(stopped=have_stopped(selection, run.config.train))
        found = RunState(train, best, selection, found.epoch)
        step = found.epoch.step
        begun = f" and {step} of {run.steps} steps" if step else ""
        logger.info("Continuing after epoch %d%s.", selection.epoch, begun)
    running = [run.seeds[k] for k in np.flatnonzero(~selection.stopped)]
    run.folder.rewind_metrics(int(selection.epoch), run.seeds, running)
    return found


def first_state(run: Run, programs: Programs) -> RunState:
    """Makes the state of a run before its first step."""
    train = programs.init(np.array(run.seeds, np.uint32))
    own = {path: x for path, x in run.initial.items() if path not in run.recipe.shared}
    if own:
        params = with_initial(run.layout.get(train.params), own)
        train = train.replace(params=run.layout.put_state(params))
        if train.average:
            moving, _ = run.recipe.optimizer.split(params)
            train = train.replace(average=run.layout.put_state(moving))
    all_seeds = np.ones(len(run.seeds), bool)
    return RunState(
        train=train,
        # A copy: the training program overwrites the buffers of its input.
        best=programs.keep(train.variables, train.variables, run.layout.put_state(all_seeds)),
        selection=init_selection(len(run.seeds)),
        epoch=next_epoch(run),
    )


def next_epoch(run: Run) -> EpochSoFar:
    """Makes the record of an epoch before its first step."""
    shape = len(run.seeds), run.steps
    each, of_terms = np.zeros(shape), np.zeros((*shape, len(run.objective.terms)))
    log = StepMetrics(of_terms, of_terms, each, each, each)
    return EpochSoFar(step=np.int64(0), log=log, seconds=np.float64(0))


def stopped_before(stop: StopRequest, is_ready: Callable[[float], bool]) -> bool:
    """Waits for programs; returns whether the run must stop before all processes have them.

    `is_ready` waits at most so many seconds, and returns whether this process has its programs.
    """
    while processes.largest(not is_ready(POLL_SECONDS))[0]:
        if processes.largest(stop.requested)[0]:
            return True
    return False


class Saving:
    """Saves when a checkpoint is due and when the run must stop.

    All processes decide together, by the largest of what each wants: if they disagreed they would
    wait for each other for ever.
    """

    def __init__(self, checkpoints: Checkpoints, run: Run, state: RunState) -> None:
        """Counts from `state`, which is saved already or can be made again."""
        self._checkpoints, self._run = checkpoints, run
        self._config, self._stop = run.config.train, run.stop
        self._saved_at, self._saved_step = time.monotonic(), state.steps_taken
        # Seconds between two checkpoints: more than asked for where saving one takes long.
        self._interval = self._config.checkpoint_every_seconds

    def before_epoch(self) -> bool:
        """Says whether the run must stop before its first epoch, where nothing is unsaved."""
        return bool(processes.largest(self._stop.requested)[0])

    def before_program(
        self, state: RunState, dealt: Deal, is_ready: Callable[[float], bool]
    ) -> bool:
        """Waits for programs; saves and returns True if the run must stop before they are there.

        The training state of `state` lies as it is `dealt`; for `is_ready` see `stopped_before`.
        """
        if not stopped_before(self._stop, is_ready):
            return False
        self._stop.serve()
        if state.steps_taken > self._saved_step:
            self._save(state, dealt)
        return True

    def inside_epoch(self, state: RunState, dealt: Deal) -> bool:
        """Saves between two dispatches if that is due; returns whether the run must stop here."""
        return self._save_if(state, 0 < self._interval <= self._seconds(), dealt)

    def after_epoch(self, state: RunState, is_last: bool) -> bool:
        """Saves after validation if that is due; returns whether the run must stop here."""
        due = self._seconds() >= self._interval
        return self._save_if(state, is_last or due, self._run.layout)

    def _seconds(self) -> float:
        return time.monotonic() - self._saved_at

    def _save_if(self, state: RunState, due: bool, where: Layout | Deal) -> bool:
        steps = self._config.checkpoint_every_steps
        due = due or (steps > 0 and state.steps_taken - self._saved_step >= steps)
        stop, due = processes.largest(self._stop.requested, due)
        if stop:
            self._stop.serve()
        if stop or due:
            self._save(state, where)
        return bool(stop)

    def _save(self, state: RunState, where: Layout | Deal) -> None:
        began = time.monotonic()
        rest = self._run.layout.get(state.replace(train=None))
        self._checkpoints.save(state.steps_taken, rest.replace(train=where.get(state.train)))
        self._run.folder.saved(state.steps_taken)
        self._saved_at, self._saved_step = time.monotonic(), state.steps_taken
        self._stretch(self._saved_at - began)

    def _stretch(self, seconds: float) -> None:
        """Lengthens the interval until saving, which took so many seconds, is a small share.

        Where a checkpoint is asked for after every epoch, it stays so.
        """
        least = seconds * (1 - MOST_OF_TIME) / MOST_OF_TIME
        if least > self._interval > 0:
            self._interval = least
            logger.info(
                "Saving a checkpoint takes %.1f s: from now on there is one every %.0f s, which is "
                "what a kill may cost.",
                seconds,
                least,
            )
