"""A training run: epochs, validation, selection, checkpoints."""

import dataclasses
import logging
import time
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from msajax.config import Config
from msajax.data.batches import epoch_order, quarters_of, steps_per_epoch
from msajax.inference.scoring import (
    EvaluationBatches,
    PredictFn,
    make_predict,
    predict_batches,
)
from msajax.models import build_model
from msajax.runs.checkpoints import Checkpoints
from msajax.runtime import processes
from msajax.runtime.devices import Layout, make_layout
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
from msajax.training.optimizers import make_optimizer
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
from msajax.training.step import make_loss

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run leaves in memory.

    Attributes:
        finished: whether every random seed has stopped; if not, the run was asked to pause.
        params: each seed's parameters at its best epoch, leading axis S.
        best_epoch: one per seed, from 1; 0 if there is none.
        failed: seeds that do not count: each with "seed", "epoch" and "step".
        predict: the prediction program.
        layout: where its arrays are.
    """

    finished: bool
    params: Any
    best_epoch: list[int]
    failed: list[dict[str, Any]]
    predict: PredictFn
    layout: Layout


def train_seeds(run: Run) -> Trained:
    """Trains every random seed of a run, continuing from the newest checkpoint if there is one.

    Raises:
        NonFiniteError: if the numbers of every seed are not finite any more; the last checkpoint is
            kept.
        UserError: if there are checkpoints and none can be used, or one cannot be written.
    """
    config, spec, folder, seeds = run.config, run.spec, run.folder, run.seeds
    layout = make_layout(config.mesh, config.train.seed_axis, len(seeds), config.model.model_dim)
    quarters = quarters_of(run.train, spec)
    steps = steps_per_epoch(quarters, config.train.batch_size)
    optimizer = make_optimizer(config.optim, steps * config.train.epochs)
    model = build_model(config.model, spec)
    parts, most_skipped = config.train.accumulation_steps, config.train.most_skipped_steps
    programs = make_programs(
        model=model,
        spec=spec,
        optimizer=optimizer,
        loss=make_loss(config.train, spec.label_kind),
        layout=layout,
        accumulation_steps=parts,
        most_skipped_steps=most_skipped,
    )
    predict = make_predict(model, layout)
    feed = Feed(run.train, spec, programs, layout, parts)
    valid_batches = EvaluationBatches(run.valid, spec, layout)
    task = run.task
    pace = Pace()

    with (
        Checkpoints(folder.checkpoints) as checkpoints,
        Profiler(run.profile if processes.is_first() else None) as profiler,
        processes.losses_noticed(),
    ):
        state = _initial_state(programs, seeds, steps, layout, run.initial)
        if restored := checkpoints.restore(state):
            train, best_params = layout.put_state((restored.train, restored.best_params))
            selection = restored.selection  # its run may have had fewer epochs to go
            selection = selection.replace(stopped=have_stopped(selection, config.train))
            state = RunState(train, best_params, selection, restored.epoch)
            begun = f" and {state.epoch.step} of {steps} steps" if state.epoch.step else ""
            logger.info("Continuing after epoch %d%s.", state.selection.epoch, begun)
        done = int(state.selection.epoch)
        folder.rewind_metrics(done, [seeds[k] for k in np.flatnonzero(~state.selection.stopped)])
        pause_at = config.train.epochs
        if run.stop_after_epochs is not None:
            pause_at = done + run.stop_after_epochs
        saving = Saving(checkpoints, folder, layout, config.train, run.stop, state)
        must_stop = saving.before_epoch()
        with EpochProgress(config.train.epochs, done, task.selection) as progress:
            while not (must_stop or state.selection.stopped.all() or done >= pause_at):
                orders = [
                    epoch_order(s, done, quarters=quarters, batch_size=config.train.batch_size)
                    for s in seeds
                ]
                begin = int(state.epoch.step)
                for dispatch in feed.epoch(orders, state.selection.stopped, begin, pace):
                    is_compiled = dispatch.bucket in pace.compiled
                    if not is_compiled:
                        progress.compiling()
                    profiler.before_dispatch(is_compiled)
                    state, log = _take_steps(programs, state, dispatch, pace)
                    profiler.after_dispatch()
                    progress.steps_done(int(state.epoch.step), steps)
                    tell_skipped(log, begin, seeds, done + 1, orders, run.train.ids)
                    begin = int(state.epoch.step)
                    if log.skipped.any() and nothing_left(state, most_skipped, layout):
                        break
                    if begin < steps and (must_stop := saving.inside_epoch(state)):
                        break
                if must_stop:
                    break

                started = time.monotonic()
                progress.validating()
                scores, _ = predict_batches(predict, state.train.params, valid_batches, spec)
                failed = failed_seeds(state, scores, most_skipped, layout)
                valid_metrics = [_quiet_metrics(task, s, run.valid.labels) for s in scores]
                decisive = np.array([values[task.selection] for values in valid_metrics])
                before = state
                state = _select_epoch(config, programs, layout, state, decisive, failed)
                done += 1

                seconds = round(float(before.epoch.seconds) + time.monotonic() - started, 3)
                lines = _metrics_lines(seeds, layout, before, state, valid_metrics, seconds)
                checkpoints.require_folder()
                folder.append_metrics(lines)
                progress.epoch_done(lines, state.selection.best_score)
                require_a_seed(state, seeds, layout)
                is_last = state.selection.stopped.all() or done >= pause_at
                must_stop = saving.after_epoch(state, bool(is_last))
    return Trained(
        finished=bool(state.selection.stopped.all()),
        params=state.best_params,
        best_epoch=state.selection.best_epoch.tolist(),
        failed=describe_failures(state, seeds, layout),
        predict=predict,
        layout=layout,
    )


def _initial_state(
    programs: Programs,
    seeds: list[int],
    steps: int,
    layout: Layout,
    initial: Mapping[str, np.ndarray],
) -> RunState:
    train = programs.init(layout.put_state(np.array(seeds, np.uint32)))
    if initial:
        params = with_initial(layout.get(train.params), initial)
        train = train.replace(params=layout.put_state(params))
    return RunState(
        train=train,
        # A copy: the training program may overwrite its own input.
        best_params=jax.tree.map(lambda x: x.copy(), train.params),
        selection=init_selection(len(seeds)),
        epoch=init_epoch(len(seeds), steps),
    )


def _take_steps(
    programs: Programs, state: RunState, dispatch: Dispatch, pace: Pace
) -> tuple[RunState, StepMetrics]:
    """Runs one dispatch; returns the state after it, and what its steps `[S, n]` measured."""
    bucket, batches, first, last, offset = dispatch
    started = time.monotonic()
    stopped = state.selection.stopped
    train, log = programs.train_steps(state.train, batches, stopped, first, last)
    log = jax.tree.map(lambda x: x[:, first:last].astype(np.float64), jax.device_get(log))
    (seconds,) = processes.largest(time.monotonic() - started)
    pace.update(bucket, last - first, seconds)

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


def _select_epoch(
    config: Config,
    programs: Programs,
    layout: Layout,
    state: RunState,
    scores: np.ndarray,
    failed: np.ndarray,
) -> RunState:
    """Lets validation scores `[S]` decide: best parameters, early stopping, plateau."""
    selection = select(state.selection, scores, failed, config.train, config.optim)
    improved = selection.best_epoch == selection.epoch
    scale = learning_rate_scale(selection, config.optim)
    improved, scale = layout.put_state((improved, scale))
    return RunState(
        train=state.train.replace(learning_rate_scale=scale),
        best_params=programs.keep(state.best_params, state.train.params, improved),
        selection=selection,
        epoch=init_epoch(*state.epoch.log.loss.shape),
    )


def _metrics_lines(
    seeds: list[int],
    layout: Layout,
    before: RunState,
    after: RunState,
    valid_metrics: list[dict[str, float]],
    seconds: float,
) -> list[dict[str, Any]]:
    """One line of metrics.jsonl for every seed that ran this epoch, before and after selection."""
    selection, log, steps = after.selection, before.epoch.log, layout.get(after.train.step)
    taken = log.weight > 0
    return [
        {
            "seed": seeds[k],
            "epoch": int(selection.epoch),
            "step": int(steps[k]),
            "train_loss": log.loss[k].sum() / log.weight[k].sum() if taken[k].any() else None,
            **{f"valid_{name}": value for name, value in valid_metrics[k].items()},
            "learning_rate": log.learning_rate[k, int(before.epoch.step) - 1],
            "grad_norm": log.grad_norm[k, taken[k]].mean() if taken[k].any() else None,
            "skipped": int(log.skipped[k].sum()),
            "best": bool(selection.best_epoch[k] == selection.epoch),
            "stopped": bool(selection.stopped[k]),
            "failed": bool(selection.failed_epoch[k]),
            "seconds": seconds,
        }
        for k in np.flatnonzero(~before.selection.stopped)
    ]


def _quiet_metrics(task: Task, scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Metrics of one epoch; an untrained model's constant scores are no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return task.compute(scores, labels)
