"""Trains the random seeds of a run: steps, validation, choice, checkpoints, epoch by epoch.

An epoch is a function of the state before it and of (seed, epoch), never of how it is cut into
dispatches or of where a run was interrupted. Whether to stop or to save is decided by all processes
together, from the same numbers.
"""

import dataclasses
import functools
import logging
import time
import warnings
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from msajax import announce
from msajax.errors import NonFiniteError
from msajax.files import as_strict
from msajax.inference.scoring import Predict, predict_batches
from msajax.preparation.batches import epoch_order, in_passes
from msajax.runs.checkpoints import Checkpoints
from msajax.runtime import processes
from msajax.runtime.compile import Compilers
from msajax.runtime.devices import Deal, deal
from msajax.runtime.profiler import Profiler
from msajax.training.compiling import INIT, VALIDATION, compile_ahead, put_on_devices
from msajax.training.failures import (
    describe_failures,
    failed_seeds,
    failure_message,
    nothing_left,
    tell_skipped,
)
from msajax.training.feed import Pace
from msajax.training.run import Run
from msajax.training.saving import Saving, first_state, next_epoch, restored, stopped_before
from msajax.training.state import EpochSoFar, RunState, learning_rate_scale, select

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """Holds what a run leaves in memory.

    Attributes:
        finished: whether every random seed has stopped; if not, the run was asked to pause.
        variables: each seed's parameters and collections at its best epoch, leading axis S; None if
            the run was asked to stop before there were any.
        best_epoch: one per seed, from 1; 0 if there is none.
        failed: seeds that do not count: each with "seed", "epoch" and "step".
    """

    finished: bool
    variables: Any
    best_epoch: list[int]
    failed: list[dict[str, Any]]
    predict: Predict


def train_seeds(run: Run, *, others: bool = False) -> Trained:
    """Trains the random seeds of a run in one program, from its newest checkpoint if it has one.

    If the experiment has `others`, seeds that are trained apart, it is no error if all of these
    fail.

    Raises:
        NonFiniteError: if the numbers of every seed are not finite any more; the last checkpoint is
            kept.
        UserError: if there are checkpoints and none can be used, or one cannot be written.
    """
    train, optim = run.config.train, run.config.optim
    sign = -1 if run.task.reported[run.selection].larger_is_better else 1  # best is smallest
    announce.now("Building the model")
    there = put_on_devices(run)
    programs, feed, predict, valid = there
    pace = Pace()
    with (
        Checkpoints(run.checkpoints) as checkpoints,
        Profiler(run.profile if processes.is_first() else None) as profiler,
        processes.losses_noticed(),
        Compilers() as compilers,
    ):
        # Go on from the newest checkpoint; compile what is needed from there on, in that order.
        state = restored(run, checkpoints, programs)
        done = 0 if state is None else int(state.selection.epoch)
        pause_at = train.epochs
        if run.stop_after_epochs is not None:  # of this start: repeating a command makes progress
            pause_at = done + run.stop_after_epochs
        if state is None or not (state.selection.stopped.all() or done >= pause_at):
            compile_ahead(run, compilers, there, state, pause_at)

        # Only now is a request to stop served at once: a state exists, or nothing has been done.
        run.stop.will_serve()
        announce.now("Compiling the first program")
        if state is None:
            if stopped_before(run.stop, functools.partial(compilers.is_ready, INIT)):
                return Trained(False, None, [], [], predict)
            state = first_state(run, programs)
        announce.now()
        saving = Saving(checkpoints, run, state)
        must_stop = saving.before_epoch()

        with run.progress(train.epochs, done, run.selection) as progress:

            def must_stop_before(name: Hashable, state: RunState, dealt: Deal) -> bool:
                """Waits for the programs of a name; says whether the run, now saved, stops here."""
                is_ready = functools.partial(compilers.is_ready, name)
                if not is_ready():
                    progress.compiling()
                return saving.before_program(state, dealt, is_ready)

            while not (must_stop or state.selection.stopped.all() or done >= pause_at):
                # The epoch's order is that of (seed, epoch): nothing of it is saved.
                number = int(state.selection.epoch)
                orders = [
                    in_passes(
                        epoch_order(
                            seed, number, quarters=run.quarters, batch_size=train.batch_size
                        ),
                        run.passes,
                    )
                    for seed in run.seeds
                ]
                # Until the epoch ends, the arrays of `state.train` lie as they are dealt.
                dealt = deal(state.selection.stopped, run.layout)
                state = state.replace(train=dealt.spread(state.train))
                step = int(state.epoch.step)
                dispatches = feed.epoch([orders[k] for k in dealt.seeds], dealt.stopped, step, pace)

                while step < run.steps:
                    # Wait for the program and the batches, in this order: a stop must not wait.
                    asked, quarter = time.monotonic(), int(orders[0].quarters[step])
                    is_compiled = quarter in pace.compiled
                    if must_stop := not is_compiled and must_stop_before(quarter, state, dealt):
                        break
                    _, batches, first, last, offset = next(dispatches)
                    # Validation is waited for before the epoch's last dispatch: after it there is
                    # no checkpoint until the epoch is validated, and a stop would lose its steps.
                    is_last = offset + last == run.steps
                    if must_stop := is_last and must_stop_before(VALIDATION, state, dealt):
                        break
                    waited = time.monotonic() - asked

                    # Take the steps of one dispatch, and note what each of them measured.
                    profiler.before_dispatch(is_compiled)
                    started = time.monotonic()
                    trained, log = programs.train_steps(
                        state.train, batches, dealt.stopped, first, last
                    )
                    log = jax.tree.map(
                        lambda x, of=(dealt.slots, slice(first, last)): x[of].astype(np.float64),
                        jax.device_get(log),
                    )
                    (seconds,) = processes.largest(time.monotonic() - started)
                    pace.update(quarter, last - first, seconds)
                    begun, step = step, offset + last
                    state = state.replace(
                        train=trained,
                        epoch=EpochSoFar(
                            step=np.int64(step),
                            log=jax.tree.map(
                                functools.partial(_with_steps, slice(begun, step)),
                                state.epoch.log,
                                log,
                            ),
                            seconds=state.epoch.seconds + waited + seconds,
                        ),
                    )
                    profiler.after_dispatch()
                    progress.steps_done(step, run.steps)

                    # A step that is not finite was skipped; an epoch of which nothing is left ends.
                    tell_skipped(log, begun, run.seeds, number + 1, orders, run.train.ids)
                    if log.skipped.any() and nothing_left(state, train.most_skipped_steps, dealt):
                        break
                    # After the epoch's last step only validation may save: it must not be repeated.
                    if must_stop := step < run.steps and saving.inside_epoch(state, dealt):
                        break
                state = state.replace(train=dealt.collect(state.train))
                if must_stop:
                    break

                # Validate: every seed, also those that have stopped, whose values nobody reads.
                started = time.monotonic()
                progress.validating()
                variables = run.layout.put_for_rows(state.train.variables)
                scores, _ = predict_batches(predict, variables, valid)
                with warnings.catch_warnings():  # untrained models give constant scores
                    warnings.simplefilter("ignore", RuntimeWarning)
                    measured = [run.task.compute(one, run.valid.labels) for one in scores]

                # Choose: best parameters, early stopping, the plateau's rate; a seed whose numbers
                # are not finite has failed before validation could choose it.
                failed = failed_seeds(state, scores, train.most_skipped_steps, run.layout)
                decisive = sign * np.array([values[run.selection] for values in measured])
                selection = select(state.selection, decisive, failed, train, optim)
                improved, scale = run.layout.put_state(
                    (
                        selection.best_epoch == selection.epoch,
                        learning_rate_scale(selection, optim),
                    )
                )
                before = state
                state = RunState(
                    train=state.train.replace(learning_rate_scale=scale),
                    best=programs.keep(state.best, state.train.variables, improved),
                    selection=selection,
                    epoch=next_epoch(run),
                )
                done += 1

                # Write the epoch's lines before its checkpoint: one that is resumed cuts off lines
                # that stand behind it, and cannot make those that would be missing.
                seconds = round(float(before.epoch.seconds) + time.monotonic() - started, 3)
                lines = _metrics_lines(run, before, state, measured, seconds)
                checkpoints.require_folder()
                run.folder.append_metrics(lines)
                progress.epoch_done(lines, selection.best_score * sign)
                if run.after_epoch is not None and processes.is_first():
                    run.after_epoch(as_strict(lines))
                if not others and (selection.failed_epoch > 0).all():
                    failures = failure_message(describe_failures(state, run.seeds, run.layout))
                    raise NonFiniteError(f"{failures} The last checkpoint is kept.")
                must_stop = saving.after_epoch(
                    state, bool(selection.stopped.all() or done >= pause_at)
                )
    selection, finished = state.selection, bool(state.selection.stopped.all())
    # A correlation may be undefined now and then; one that always was has chosen nothing.
    undefined = np.isinf(selection.best_score) & (selection.failed_epoch == 0)
    if finished and undefined.any():
        logger.warning(
            "%s was undefined on validation after every epoch of %d random seed(s), whose first "
            "epoch is kept: choose another train.select_by, or a validation split that has what it "
            "needs.",
            *(run.selection, undefined.sum()),
        )
    return Trained(
        finished=finished,
        variables=state.best,
        best_epoch=selection.best_epoch.tolist(),
        failed=describe_failures(state, run.seeds, run.layout),
        predict=predict,
    )


def train_groups(run: Run) -> Trained:
    """Trains the groups of seeds that fit on the devices in turn; raises as `train_seeds`."""
    groups = run.groups()
    if len(groups) == 1:
        return train_seeds(run)
    done = []
    for group in groups:
        logger.info("Random seeds %d to %d.", group.seeds[0], group.seeds[-1])
        trained = train_seeds(group, others=True)
        if not trained.finished:
            return trained
        # The next group needs the room on the devices.
        done.append(dataclasses.replace(trained, variables=run.layout.get(trained.variables)))
    failed = [failure for trained in done for failure in trained.failed]
    if len(failed) == len(run.seeds):
        raise NonFiniteError(f"{failure_message(failed)} The last checkpoint is kept.")
    return Trained(
        finished=True,
        variables=jax.tree.map(lambda *x: np.concatenate(x), *(one.variables for one in done)),
        best_epoch=[epoch for one in done for epoch in one.best_epoch],
        failed=failed,
        predict=done[-1].predict,
    )


def _with_steps(steps: slice, so_far: np.ndarray, values: np.ndarray) -> np.ndarray:
    so_far = so_far.copy()  # a checkpoint may still be reading it
    so_far[:, steps] = values
    return so_far


def _metrics_lines(
    run: Run,
    before: RunState,
    after: RunState,
    measured: list[dict[str, float]],
    seconds: float,
) -> list[dict[str, Any]]:
    """Makes a line of metrics.jsonl for each seed that ran, from the states around selection."""
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
