"""Trains a run: epochs, validation, selection, checkpoints."""

import dataclasses
import logging
import time
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np

from msajax.data.batches import epoch_order, in_passes
from msajax.files import as_strict
from msajax.inference.scoring import (
    EvaluationBatches,
    PredictFn,
    make_predict,
    predict_batches,
)
from msajax.runs.checkpoints import Checkpoints
from msajax.runtime import processes
from msajax.runtime.dealing import Deal, deal
from msajax.runtime.profiler import Profiler
from msajax.tasks import Task
from msajax.training.failures import (
    describe_failures,
    failed_seeds,
    nothing_left,
    require_a_seed,
    tell_skipped,
)
from msajax.training.feed import Dispatch, Feed, Pace
from msajax.training.initial import with_initial
from msajax.training.programs import Programs, make_programs
from msajax.training.progress import EpochProgress
from msajax.training.run import Run
from msajax.training.saving import Saving
from msajax.training.state import (
    EpochSoFar,
    RunState,
    StepMetrics,
    have_stopped,
    init_epoch,
    init_selection,
    learning_rate_scale,
    select,
)

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """Holds what a run leaves in memory.

    Attributes:
        finished: whether every random seed has stopped; if not, the run was asked to pause.
        variables: each seed's parameters and collections at its best epoch, leading axis S.
        best_epoch: one per seed, from 1; 0 if there is none.
        failed: seeds that do not count: each with "seed", "epoch" and "step".
        predict: the prediction program.
    """

    finished: bool
    variables: Any
    best_epoch: list[int]
    failed: list[dict[str, Any]]
    predict: PredictFn


class Equipment(NamedTuple):
    """Holds what a run works with on the devices.

    Attributes:
        programs: of training.
        feed: the training split.
        predict: the prediction program.
        valid: the validation split.
        pace: how many steps a dispatch takes.
    """

    programs: Programs
    feed: Feed
    predict: PredictFn
    valid: EvaluationBatches
    pace: Pace


class Watch(NamedTuple):
    """Holds what looks on while a run trains: who saves it, shows it and traces it."""

    saving: Saving
    progress: EpochProgress
    profiler: Profiler


def train_seeds(run: Run) -> Trained:
    """Trains every random seed of a run, continuing from the newest checkpoint if there is one.

    Raises:
        NonFiniteError: if the numbers of every seed are not finite any more; the last checkpoint is
            kept.
        UserError: if there are checkpoints and none can be used, or one cannot be written.
    """
    equipment = _equip(run)
    with (
        Checkpoints(run.folder.checkpoints) as checkpoints,
        Profiler(run.profile if processes.is_first() else None) as profiler,
        processes.losses_noticed(),
    ):
        state = _restored(run, checkpoints, _first_state(run, equipment.programs))
        done = int(state.selection.epoch)
        pause_at = run.config.train.epochs
        if run.stop_after_epochs is not None:  # of this start: repeating a command makes progress
            pause_at = done + run.stop_after_epochs
        saving = Saving(checkpoints, run, state)
        must_stop = saving.before_epoch()
        with EpochProgress(run.config.train.epochs, done, run.selection) as progress:
            watch = Watch(saving, progress, profiler)
            while not (must_stop or state.selection.stopped.all() or done >= pause_at):
                state, must_stop = _train_epoch(run, equipment, state, watch)
                if must_stop:
                    break
                state, lines = _validate(run, equipment, state, watch)
                done += 1
                checkpoints.require_folder()
                run.folder.append_metrics(lines)
                progress.epoch_done(lines, state.selection.best_score * _sign(run))
                if run.after_epoch is not None and processes.is_first():
                    run.after_epoch(as_strict(lines))
                require_a_seed(state, run.seeds, run.layout)
                is_last = state.selection.stopped.all() or done >= pause_at
                must_stop = saving.after_epoch(state, bool(is_last))
    return Trained(
        finished=bool(state.selection.stopped.all()),
        variables=state.best,
        best_epoch=state.selection.best_epoch.tolist(),
        failed=describe_failures(state, run.seeds, run.layout),
        predict=equipment.predict,
    )


def _equip(run: Run) -> Equipment:
    """Builds the programs of a run, and puts its data on the devices."""
    memory = run.model.memory
    at_first = memory.begin(run.train.labels, run.spec) if memory else {}
    programs = make_programs(run.recipe, run.spec, run.layout, at_first)
    parts, for_rows = run.config.train.accumulation_steps, run.layout.for_rows
    return Equipment(
        programs=programs,
        feed=Feed(run.train, run.spec, programs, run.layout, parts),
        predict=make_predict(run.module, run.task, for_rows),
        valid=EvaluationBatches(run.valid, run.spec, for_rows),
        pace=Pace(),
    )


def _first_state(run: Run, programs: Programs) -> RunState:
    """Makes the state of a run before its first step."""
    train = programs.init(np.array(run.seeds, np.uint32))
    if run.initial:
        params = with_initial(run.layout.get(train.params), run.initial)
        train = train.replace(params=run.layout.put_state(params))
        if train.average:
            moving, _ = run.recipe.optimizer.split(params)
            train = train.replace(average=run.layout.put_state(moving))
    return RunState(
        train=train,
        # A copy: the training program overwrites the buffers of its input.
        best=jax.tree.map(lambda x: x.copy(), train.variables),
        selection=init_selection(len(run.seeds)),
        epoch=_next_epoch(run),
    )


def _next_epoch(run: Run) -> EpochSoFar:
    return init_epoch(len(run.seeds), run.steps, len(run.objective.terms))


def _restored(run: Run, checkpoints: Checkpoints, state: RunState) -> RunState:
    """Returns the state of the newest checkpoint; without one the given state."""
    if restored := checkpoints.restore(state):
        train, best = run.layout.put_state((restored.train, restored.best))
        selection = restored.selection  # `train.epochs` may have grown since
        selection = selection.replace(stopped=have_stopped(selection, run.config.train))
        state = RunState(train, best, selection, restored.epoch)
        begun = f" and {state.epoch.step} of {run.steps} steps" if state.epoch.step else ""
        logger.info("Continuing after epoch %d%s.", state.selection.epoch, begun)
    running = [run.seeds[k] for k in np.flatnonzero(~state.selection.stopped)]
    run.folder.rewind_metrics(int(state.selection.epoch), running)
    return state


def _train_epoch(
    run: Run, equipment: Equipment, state: RunState, watch: Watch
) -> tuple[RunState, bool]:
    """Takes the steps that an epoch has left; returns the state, and whether to stop the run."""
    number, steps = int(state.selection.epoch), run.steps
    orders = [
        epoch_order(s, number, quarters=run.quarters, batch_size=run.config.train.batch_size)
        for s in run.seeds
    ]
    orders = [in_passes(order, run.passes) for order in orders]
    begin, pace = int(state.epoch.step), equipment.pace
    dealt = deal(state.selection.stopped, run.layout)
    # Until the epoch ends, the arrays of `state.train` lie as they are dealt.
    state = state.replace(train=dealt.spread(state.train))
    of_slots = [orders[k] for k in dealt.seeds]
    must_stop = False
    for dispatch in equipment.feed.epoch(of_slots, dealt.stopped, begin, pace):
        is_compiled = dispatch.quarter in pace.compiled
        if not is_compiled:
            watch.progress.compiling()
        watch.profiler.before_dispatch(is_compiled)
        state, log = _take_steps(equipment, state, dispatch, dealt)
        watch.profiler.after_dispatch()
        watch.progress.steps_done(int(state.epoch.step), steps)
        tell_skipped(log, begin, run.seeds, number + 1, orders, run.train.ids)
        begin = int(state.epoch.step)
        most_skipped = run.config.train.most_skipped_steps
        if log.skipped.any() and nothing_left(state, most_skipped, dealt):
            break
        must_stop = begin < steps and watch.saving.inside_epoch(state, dealt)
        if must_stop:
            break
    return state.replace(train=dealt.collect(state.train)), must_stop


def _take_steps(
    equipment: Equipment, state: RunState, dispatch: Dispatch, dealt: Deal
) -> tuple[RunState, StepMetrics]:
    """Runs one dispatch; returns the state after it, and what its steps `[S, n]` measured."""
    quarter, batches, first, last, offset = dispatch
    started = time.monotonic()
    train, log = equipment.programs.train_steps(
        state.train, batches, dealt.stopped, first, last
    )
    log = jax.tree.map(
        lambda x: x[dealt.slots, first:last].astype(np.float64), jax.device_get(log)
    )
    (seconds,) = processes.largest(time.monotonic() - started)
    equipment.pace.update(quarter, last - first, seconds)

    def with_steps(so_far: np.ndarray, values: np.ndarray) -> np.ndarray:
        so_far = so_far.copy()  # a checkpoint may still be reading it
        so_far[:, offset + first : offset + last] = values
        return so_far

    epoch = EpochSoFar(
        step=np.int64(offset + last),
        log=jax.tree.map(with_steps, state.epoch.log, log),
        seconds=state.epoch.seconds + seconds,
    )
    return state.replace(train=train, epoch=epoch), log


def _validate(
    run: Run, equipment: Equipment, state: RunState, watch: Watch
) -> tuple[RunState, list[dict[str, Any]]]:
    """Validates and selects after an epoch; returns the state and the lines of metrics.jsonl."""
    started = time.monotonic()
    watch.progress.validating()
    variables = run.layout.put_for_rows(state.train.variables)
    scores, _ = predict_batches(equipment.predict, variables, equipment.valid)
    failed = failed_seeds(state, scores, run.config.train.most_skipped_steps, run.layout)
    measured = [_quiet_metrics(run.task, s, run.valid.labels) for s in scores]
    decisive = _sign(run) * np.array([values[run.selection] for values in measured])
    after = _select(run, equipment.programs, state, decisive, failed)
    seconds = round(float(state.epoch.seconds) + time.monotonic() - started, 3)
    return after, _metrics_lines(run, state, after, measured, seconds)


def _sign(run: Run) -> int:
    """Returns -1 if the metric that validation follows is better when it is larger, else 1."""
    return -1 if run.task.reported[run.selection].larger_is_better else 1


def _select(
    run: Run, programs: Programs, state: RunState, scores: np.ndarray, failed: np.ndarray
) -> RunState:
    """Applies the validation scores `[S]`: best parameters, early stopping, plateau."""
    optim = run.config.optim
    selection = select(state.selection, scores, failed, run.config.train, optim)
    improved = selection.best_epoch == selection.epoch
    scale = learning_rate_scale(selection, optim)
    improved, scale = run.layout.put_state((improved, scale))
    return RunState(
        train=state.train.replace(learning_rate_scale=scale),
        best=programs.keep(state.best, state.train.variables, improved),
        selection=selection,
        epoch=_next_epoch(run),
    )


def _metrics_lines(
    run: Run,
    before: RunState,
    after: RunState,
    measured: list[dict[str, float]],
    seconds: float,
) -> list[dict[str, Any]]:
    """Makes one line of metrics.jsonl for every seed that ran this epoch.

    Args:
        run: says the seeds, and the terms of the objective.
        before: the state before selection.
        after: the state after it.
        measured: each seed's metrics on validation.
        seconds: that the epoch took.
    """
    selection, log = after.selection, before.epoch.log
    steps = run.layout.get(after.train.step)
    lines = []
    for k in np.flatnonzero(~before.selection.stopped):
        taken = log.weights[k].any(axis=-1)
        any_taken = bool(taken.any())
        weights = log.weights[k].sum(axis=0)
        means = log.sums[k].sum(axis=0) / np.where(weights > 0, weights, np.nan)
        terms = dict(zip(run.objective.terms, means.tolist(), strict=True))
        known = {name: value for name, value in terms.items() if not np.isnan(value)}
        total = sum(run.objective.terms[name].weight * value for name, value in known.items())
        lines.append(
            {
                "seed": run.seeds[k],
                "epoch": int(selection.epoch),
                "step": int(steps[k]),
                "train_loss": total if any_taken else None,
                **{f"train_{name}": value if any_taken else None for name, value in terms.items()},
                **{f"valid_{name}": value for name, value in measured[k].items()},
                "learning_rate": log.learning_rate[k, int(before.epoch.step) - 1],
                "grad_norm": log.grad_norm[k, taken].mean() if any_taken else None,
                "skipped": int(log.skipped[k].sum()),
                "best": bool(selection.best_epoch[k] == selection.epoch),
                "stopped": bool(selection.stopped[k]),
                "failed": bool(selection.failed_epoch[k]),
                "seconds": seconds,
            }
        )
    return lines


def _quiet_metrics(task: Task, scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Measures one epoch without numpy's warnings of the constant scores of untrained models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return task.compute(scores, labels)
