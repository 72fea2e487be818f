"""A training run: epochs, validation, selection, checkpoints."""

import dataclasses
import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from msajax.config import Config
from msajax.data.batches import epoch_order, quarters_of, steps_per_epoch
from msajax.data.corpus import Split
from msajax.errors import NonFiniteError
from msajax.models import build_model
from msajax.spec import CorpusSpec
from msajax.tasks import Task, make_task
from msajax.training import feed
from msajax.training.checkpoints import Checkpoints
from msajax.training.initial import with_initial
from msajax.training.optimizers import make_optimizer
from msajax.training.parallel import (
    DeviceCorpus,
    Layout,
    Programs,
    make_layout,
    make_programs,
    put_orders,
)
from msajax.training.progress import EpochProgress
from msajax.training.run_folder import RunFolder
from msajax.training.scoring import (
    EvaluationBatches,
    PredictFn,
    make_predict,
    predict_batches,
)
from msajax.training.state import (
    RunState,
    TrainState,
    init_selection,
    learning_rate_scale,
    select,
)
from msajax.training.step import StepMetrics, make_loss

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run leaves in memory.

    Attributes:
        finished: whether every random seed has stopped; if not, the run was asked to pause.
        params: each seed's parameters at its best epoch, leading axis S.
        best_epoch: one per seed, from 1.
        predict: the prediction program.
        layout: where its arrays are.
    """

    finished: bool
    params: Any
    best_epoch: list[int]
    predict: PredictFn
    layout: Layout


def run_seeds(config: Config) -> list[int]:
    """The random seeds of a run."""
    return list(range(config.train.first_seed, config.train.first_seed + config.train.seeds))


def train_seeds(
    config: Config,
    spec: CorpusSpec,
    train_split: Split,
    valid_split: Split,
    folder: RunFolder,
    stop_after_epochs: int | None = None,
    initial: Mapping[str, np.ndarray] | None = None,
) -> Trained:
    """Trains every random seed of a run, continuing from the newest checkpoint if there is one.

    Args:
        config: the experiment.
        spec: of the prepared corpus.
        train_split: prepared training split, with labels.
        valid_split: prepared validation split, with labels: it decides each seed's best epoch.
        folder: where metrics and checkpoints go.
        stop_after_epochs: pause after so many more epochs.
        initial: parameters that do not begin at random (see `initial.py`).

    Raises:
        NonFiniteError: if a seed's numbers are not finite any more; the last checkpoint is kept.
        UserError: if there are checkpoints and none can be used.
    """
    seeds = run_seeds(config)
    layout = make_layout(config.mesh, config.train.seed_axis, len(seeds))
    quarters = quarters_of(train_split, spec)
    steps = steps_per_epoch(quarters, config.train.batch_size)
    optimizer = make_optimizer(config.optim, steps * config.train.epochs)
    model = build_model(config.model, spec)
    parts = config.train.accumulation_steps
    programs = make_programs(
        model=model,
        spec=spec,
        optimizer=optimizer,
        loss=make_loss(config.train, spec.label_kind),
        layout=layout,
        accumulation_steps=parts,
    )
    predict = make_predict(model, layout)
    corpus = None if feed.streams(train_split) else DeviceCorpus.put(train_split, layout)
    valid_batches = EvaluationBatches(valid_split, spec, layout)
    task = make_task(spec.label_kind, spec.label_names, train_split.labels)
    pace = feed.Pace()

    with Checkpoints(folder.checkpoints) as checkpoints:
        state = _initial_state(programs, seeds, layout, initial or {})
        if restored := checkpoints.restore(state):
            train, best_params = layout.put_state((restored.train, restored.best_params))
            state = RunState(train, best_params, restored.selection)
            logger.info("Continuing after epoch %d.", restored.selection.epoch)
        done = int(state.selection.epoch)
        folder.rewind_metrics(done)
        pause_at = config.train.epochs if stop_after_epochs is None else done + stop_after_epochs
        last_saved = time.monotonic()
        with EpochProgress(config.train.epochs, done, task.selection) as progress:
            while not state.selection.stopped.all() and done < pause_at:
                started = time.monotonic()
                orders = [
                    epoch_order(s, done, quarters=quarters, batch_size=config.train.batch_size)
                    for s in seeds
                ]
                stopped, buckets = state.selection.stopped, orders[0].quarters
                if corpus is None:
                    dispatches = feed.streamed(
                        train_split, spec, orders, stopped, layout, parts, pace
                    )
                else:
                    on_device = put_orders(orders, layout, parts)
                    dispatches = feed.resident(corpus, on_device, buckets, pace)
                done += 1
                train, log = _run_epoch(programs, state, dispatches, len(buckets), pace)
                scores, _ = predict_batches(predict, train.params, valid_batches, spec)
                running = ~state.selection.stopped
                _require_finite(log, scores, running, seeds, done)
                valid_metrics = [_quiet_metrics(task, s, valid_split.labels) for s in scores]
                decisive = np.array([values[task.selection] for values in valid_metrics])
                state = _select_epoch(config, programs, layout, state, train, decisive)

                seconds = round(time.monotonic() - started, 3)
                lines = _metrics_lines(seeds, running, state, log, valid_metrics, seconds)
                folder.append_metrics(lines)
                progress.epoch_done(lines, state.selection.best_score)
                is_last = state.selection.stopped.all() or done >= pause_at
                due = time.monotonic() - last_saved >= config.train.checkpoint_every_seconds
                if is_last or due:
                    checkpoints.save(done, state)
                    last_saved = time.monotonic()
    return Trained(
        finished=bool(state.selection.stopped.all()),
        params=state.best_params,
        best_epoch=state.selection.best_epoch.tolist(),
        predict=predict,
        layout=layout,
    )


def _initial_state(
    programs: Programs, seeds: list[int], layout: Layout, initial: Mapping[str, np.ndarray]
) -> RunState:
    train = programs.init(layout.put_state(np.array(seeds, np.uint32)))
    if initial:
        params = with_initial(jax.device_get(train.params), initial)
        train = train.replace(params=layout.put_state(params))
    # A copy: the training program may overwrite its own input.
    best_params = jax.tree.map(lambda x: x.copy(), train.params)
    return RunState(train=train, best_params=best_params, selection=init_selection(len(seeds)))


def _run_epoch(
    programs: Programs,
    state: RunState,
    dispatches: Iterator[feed.Dispatch],
    steps: int,
    pace: feed.Pace,
) -> tuple[TrainState, StepMetrics]:
    """Runs every step of an epoch; returns the new state and every step's metrics `[S, steps]`."""
    train, stopped = state.train, state.selection.stopped
    total = StepMetrics(*(np.zeros((len(stopped), steps)) for _ in range(4)))
    for bucket, corpus, orders, first, last, offset in dispatches:
        started = time.monotonic()
        train, log = programs.train_steps(bucket, train, corpus, orders, stopped, first, last)
        log = jax.device_get(log)
        pace.update(bucket, last - first, time.monotonic() - started)
        for sums, values in zip(jax.tree.leaves(total), jax.tree.leaves(log), strict=True):
            sums[:, offset + first : offset + last] = values[:, first:last]
    return train, total


def _select_epoch(
    config: Config,
    programs: Programs,
    layout: Layout,
    state: RunState,
    train: TrainState,
    scores: np.ndarray,
) -> RunState:
    """Lets validation scores `[S]` decide: best parameters, early stopping, plateau."""
    selection = select(state.selection, scores, config.train, config.optim)
    improved = selection.best_epoch == selection.epoch
    scale = learning_rate_scale(selection, config.optim)
    improved, scale = layout.put_state((improved, scale))
    return RunState(
        train=train.replace(learning_rate_scale=scale),
        best_params=programs.keep(state.best_params, train.params, improved),
        selection=selection,
    )


def _metrics_lines(
    seeds: list[int],
    running: np.ndarray,
    state: RunState,
    log: StepMetrics,
    valid_metrics: list[dict[str, float]],
    seconds: float,
) -> list[dict[str, Any]]:
    """One line of metrics.jsonl for every seed that ran this epoch."""
    selection, steps = state.selection, jax.device_get(state.train.step)
    return [
        {
            "seed": seeds[k],
            "epoch": int(selection.epoch),
            "step": int(steps[k]),
            "train_loss": log.loss[k].sum() / log.weight[k].sum(),
            **{f"valid_{name}": value for name, value in valid_metrics[k].items()},
            "learning_rate": log.learning_rate[k, -1],
            "grad_norm": log.grad_norm[k].mean(),
            "best": bool(selection.best_epoch[k] == selection.epoch),
            "stopped": bool(selection.stopped[k]),
            "seconds": seconds,
        }
        for k in np.flatnonzero(running)
    ]


def _require_finite(
    log: StepMetrics, scores: np.ndarray, running: np.ndarray, seeds: list[int], epoch: int
) -> None:
    for k in np.flatnonzero(running):
        if not (np.isfinite(log.loss[k]).all() and np.isfinite(scores[k]).all()):
            raise NonFiniteError(
                f"The numbers of random seed {seeds[k]} are no longer finite in epoch {epoch}: "
                "lower optim.learning_rate, or set optim.clip_norm. The last checkpoint is kept."
            )


def _quiet_metrics(task: Task, scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Metrics of one epoch; an untrained model's constant scores are no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return task.compute(scores, labels)
