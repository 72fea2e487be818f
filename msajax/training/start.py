"""Makes the state that a run goes on from: before its first step, or of its newest checkpoint."""

import logging

import numpy as np

from msajax.runs.checkpoints import Checkpoints
from msajax.training.initial import with_initial
from msajax.training.programs import Programs
from msajax.training.run import Run
from msajax.training.state import (
    EpochSoFar,
    RunState,
    have_stopped,
    init_epoch,
    init_selection,
)

logger = logging.getLogger(__name__)


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
    return init_epoch(len(run.seeds), run.steps, len(run.objective.terms))


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
