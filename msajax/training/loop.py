"""Trains a run: epochs, validation, selection, checkpoints."""

import dataclasses
import functools
import logging
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from msajax import announce
from msajax.errors import NonFiniteError
from msajax.files import as_strict
from msajax.inference.scoring import Predict, predict_batches
from msajax.preparation.batches import EpochOrder, epoch_order, in_passes
from msajax.runs.checkpoints import Checkpoints
from msajax.runtime import processes
from msajax.runtime.devices import Deal, Layout, deal
from msajax.runtime.profiler import Profiler
from msajax.runtime.signals import StopRequest
from msajax.tasks import Task
from msajax.training.compiling import INIT, VALIDATION, Equipment, compile_ahead, equip
from msajax.training.feed import Dispatch
from msajax.training.initial import with_initial
from msajax.training.programs import Programs
from msajax.training.progress import EpochProgress
from msajax.training.run import Run
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

_MOST_TOLD = 20  # skipped steps of one dispatch that are named; metrics.jsonl counts all


def tell_skipped(
    log: StepMetrics,
    offset: int,
    seeds: Sequence[int],
    epoch: int,
    orders: Sequence[EpochOrder],
    ids: np.ndarray,
) -> None:
    """Warns of skipped steps, with the samples of their batch.

    Args:
        log: of some steps, `[S, n]`.
        offset: the epoch's step that the log begins with.
        seeds: the random seeds.
        epoch: from 1.
        orders: of every seed's epoch.
        ids: `[N]` of the training split.
    """
    skipped = np.argwhere(log.skipped > 0)
    for k, i in skipped[:_MOST_TOLD].tolist():
        step = offset + i
        rows = orders[k].indices[step][orders[k].row_weight[step] > 0]
        logger.warning(
            "Random seed %d, epoch %d, step %d of %d: the loss or its gradient is not finite; the "
            "step is skipped. Its batch: %s.",
            seeds[k],
            epoch,
            step + 1,
            len(orders[k].quarters),
            ", ".join(map(str, ids[rows])),
        )
    if len(skipped) > _MOST_TOLD:
        logger.warning("%d more steps were skipped.", len(skipped) - _MOST_TOLD)


def failed_seeds(
    state: RunState, scores: np.ndarray, most_skipped_steps: int, layout: Layout
) -> np.ndarray:
    """Says which seeds `[S]` have failed by the end of an epoch, before validation decides.

    Validation scores that are not finite fail a seed too: nothing could choose its best epoch.

    Args:
        state: after the last step.
        scores: `[S, N, K]` of validation.
        most_skipped_steps: after so many in a row a seed has failed.
        layout: of the state.
    """
    return _out_of_steps(state, most_skipped_steps, layout) | ~np.isfinite(scores).all(axis=(1, 2))


def nothing_left(state: RunState, most_skipped_steps: int, dealt: Deal) -> bool:
    """Says whether every seed that has not stopped has skipped too many steps in a row."""
    return bool((state.selection.stopped | _out_of_steps(state, most_skipped_steps, dealt)).all())


def _out_of_steps(
    state: RunState, most_skipped_steps: int, where: Layout | Deal
) -> np.ndarray:
    return where.get(state.train.skipped_in_a_row) >= most_skipped_steps


def describe_failures(
    state: RunState, seeds: Sequence[int], layout: Layout
) -> list[dict[str, Any]]:
    """Lists each failed seed with its epoch and the steps it had taken, for results.json."""
    steps = layout.get(state.train.step)
    epochs = state.selection.failed_epoch
    return [
        {"seed": seeds[k], "epoch": int(epochs[k]), "step": int(steps[k])}
        for k in np.flatnonzero(epochs)
    ]


def failure_message(failures: Sequence[dict[str, Any]]) -> str:
    """Makes one sentence of `describe_failures`; "fold" or "modalities" there name a seed's run."""
    told = "; ".join(
        f"seed {f['seed']} in epoch {f['epoch']}, step {f['step']}"
        + "".join(f" of {key} {f[key]}" for key in ("fold", "modalities") if key in f)
        for f in failures
    )
    return (
        f"The numbers of {len(failures)} random seed(s) are no longer finite ({told}): lower "
        "optim.learning_rate, or set optim.clip_norm."
    )


def require_a_seed(state: RunState, seeds: Sequence[int], layout: Layout) -> None:
    """Raises `NonFiniteError` if every seed has failed."""
    if (state.selection.failed_epoch > 0).all():
        failures = describe_failures(state, seeds, layout)
        raise NonFiniteError(f"{failure_message(failures)} The last checkpoint is kept.")


MOST_OF_TIME = 0.1  # the share of a run's time that saving may take
POLL_SECONDS = 0.1  # between two looks at whether to stop, while a program is compiled


def stopped_before(stop: StopRequest, is_ready: Callable[[float], bool]) -> bool:
    """Waits for programs; returns whether the run must stop before all processes have them.

    Args:
        stop: of the run.
        is_ready: waits at most so many seconds; returns whether this process has its programs.
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

        Args:
            state: of the run, whose training state lies as it is dealt.
            dealt: says where that is.
            is_ready: waits at most so many seconds; returns whether this process has its programs.
        """
        if not stopped_before(self._stop, is_ready):
            return False
        self._stop.serve()
        if state.steps_taken > self._saved_step:
            self._save(state, dealt)
        return True

    def inside_epoch(self, state: RunState, dealt: Deal) -> bool:
        """Saves between two dispatches if that is due; returns whether the run must stop here.

        Args:
            state: of the run, whose training state lies as it is dealt.
            dealt: says where that is.
        """
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
        """Makes the interval so long that saving, which took so many seconds, is a small share.

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


@dataclasses.dataclass(frozen=True)
class Trained:
    """Holds what a run leaves in memory.

    Attributes:
        finished: whether every random seed has stopped; if not, the run was asked to pause.
        variables: each seed's parameters and collections at its best epoch, leading axis S; None if
            the run was asked to stop before there were any.
        best_epoch: one per seed, from 1; 0 if there is none.
        failed: seeds that do not count: each with "seed", "epoch" and "step".
        predict: the prediction program.
    """

    finished: bool
    variables: Any
    best_epoch: list[int]
    failed: list[dict[str, Any]]
    predict: Predict


class Watch(NamedTuple):
    """Holds what looks on while a run trains: who saves it, shows it and traces it."""

    saving: Saving
    progress: EpochProgress
    profiler: Profiler


def train_seeds(run: Run) -> Trained:
    """Trains every random seed of a run, continuing from the newest checkpoints if there are any.

    Raises:
        NonFiniteError: if the numbers of every seed are not finite any more; the last checkpoint is
            kept.
        UserError: if there are checkpoints and none can be used, or one cannot be written.
    """
    groups, done = run.groups(), []
    for group in groups:
        if len(groups) > 1:
            logger.info("Random seeds %d to %d.", group.seeds[0], group.seeds[-1])
        trained = _train_group(group, alone=len(groups) == 1)
        done.append(trained)
        if not trained.finished:
            return trained
        if len(groups) > 1:  # the next group needs the room on the devices
            host = run.layout.get(trained.variables)
            done[-1] = dataclasses.replace(trained, variables=host)
    failed = [failure for trained in done for failure in trained.failed]
    if len(failed) == len(run.seeds):
        raise NonFiniteError(f"{failure_message(failed)} The last checkpoint is kept.")
    if len(groups) == 1:
        return done[0]
    return Trained(
        finished=True,
        variables=jax.tree.map(lambda *x: np.concatenate(x), *(one.variables for one in done)),
        best_epoch=[epoch for one in done for epoch in one.best_epoch],
        failed=failed,
        predict=done[-1].predict,
    )


def _train_group(run: Run, *, alone: bool) -> Trained:
    """Trains the random seeds that are trained together; `alone` if there are no others.

    If all seeds of the run have failed, the last checkpoint before that stays the newest one.
    """
    announce.now("Building the model")
    equipment = equip(run)
    with (
        Checkpoints(run.checkpoints) as checkpoints,
        Profiler(run.profile if processes.is_first() else None) as profiler,
        processes.losses_noticed(),
        equipment.compilers as compilers,
    ):
        state = restored(run, checkpoints, equipment.programs)
        done = 0 if state is None else int(state.selection.epoch)
        pause_at = run.config.train.epochs
        if run.stop_after_epochs is not None:  # of this start: repeating a command makes progress
            pause_at = done + run.stop_after_epochs
        if state is None or not (state.selection.stopped.all() or done >= pause_at):
            compile_ahead(run, equipment, state, pause_at)
        run.stop.will_serve()
        announce.now()
        if state is None:
            if stopped_before(run.stop, functools.partial(compilers.is_ready, INIT)):
                return Trained(False, None, [], [], equipment.predict)
            state = first_state(run, equipment.programs)
        saving = Saving(checkpoints, run, state)
        must_stop = saving.before_epoch()
        with run.progress(run.config.train.epochs, done, run.selection) as progress:
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
                if alone:
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
    dispatches = equipment.feed.epoch(of_slots, dealt.stopped, begin, pace)
    must_stop_before = functools.partial(_must_stop_before, equipment, watch, dealt)
    must_stop = False
    while begin < steps:
        asked, quarter = time.monotonic(), int(orders[0].quarters[begin])
        is_compiled = quarter in pace.compiled
        must_stop = not is_compiled and must_stop_before(state, quarter)
        if must_stop:
            break
        dispatch = next(dispatches)
        # Validation is waited for before the epoch's last dispatch: after it there is no checkpoint
        # until the epoch is validated, and a stop would lose these steps.
        is_last = dispatch.offset + dispatch.last == steps
        must_stop = is_last and must_stop_before(state, VALIDATION)
        if must_stop:
            break
        waited = time.monotonic() - asked
        watch.profiler.before_dispatch(is_compiled)
        state, log = _take_steps(equipment, state, dispatch, dealt, waited)
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


def _must_stop_before(
    equipment: Equipment, watch: Watch, dealt: Deal, state: RunState, name: Hashable
) -> bool:
    """Waits for the programs of a name; returns whether the run, now saved, must stop first."""
    is_ready = functools.partial(equipment.compilers.is_ready, name)
    if not is_ready():
        watch.progress.compiling()
    return watch.saving.before_program(state, dealt, is_ready)


def _take_steps(
    equipment: Equipment, state: RunState, dispatch: Dispatch, dealt: Deal, waited: float
) -> tuple[RunState, StepMetrics]:
    """Runs one dispatch; returns the state after it, and what its steps `[S, n]` measured.

    Args:
        equipment: of the run.
        state: before the dispatch.
        dispatch: the steps to take.
        dealt: says where the arrays of `state.train` lie.
        waited: seconds that the epoch has waited for this dispatch's program and batches.
    """
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
        seconds=state.epoch.seconds + waited + seconds,
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
        epoch=next_epoch(run),
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
