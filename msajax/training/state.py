"""Defines what a run remembers: device state of every seed, and what validation decided."""

import dataclasses
from typing import Any

import flax.struct
import jax
import numpy as np

from msajax.config import OptimConfig, TrainConfig
from msajax.models.contract import joined


@flax.struct.dataclass
class TrainState:
    """Holds what a step reads and writes. In a run every array has a leading axis of S seeds.

    Attributes:
        seed: `[]` uint32; with `step` it determines every random number.
        step: `[]` int32, steps taken.
        collections: the model's mutable collections by name.
        opt_state: the optimiser's state of the parameters that move; of a model with stages, one
            for each.
        average: the moving average of the parameters that move; {} if there is none.
        memory: `{name: [N, …]}`, what the model keeps of the N training samples.
        learning_rate_scale: `[]` float32, the plateau schedule's factor.
        skipped_in_a_row: `[]` int32, how many steps up to the last one were skipped.
    """

    seed: jax.Array
    step: jax.Array
    params: Any
    collections: Any
    opt_state: Any
    average: Any
    memory: Any
    learning_rate_scale: jax.Array
    skipped_in_a_row: jax.Array

    @property
    def variables(self) -> dict[str, Any]:
        """Returns what validation scores with: averages instead of parameters, and collections."""
        return {"params": joined(self.params, self.average), **self.collections}


@flax.struct.dataclass
class StepMetrics:
    """Holds what a step measures; sums and weights are divided once, at the end of an epoch.

    Attributes:
        sums: `[T]`, each term of the objective summed over the rows; 0 of a step that was skipped,
            like the next two, and of terms that do not count in the step's stage.
        weights: `[T]`, what the sums are divided by.
        grad_norm: global gradient norm before clipping, of the parameters that move.
        learning_rate: the rate of parameters that are in no group.
        skipped: 1 if the loss or the gradient was not finite, so that the step changed nothing.
    """

    sums: jax.Array
    weights: jax.Array
    grad_norm: jax.Array
    learning_rate: jax.Array
    skipped: jax.Array


@flax.struct.dataclass
class EpochSoFar:
    """Holds an epoch that has begun, on the host.

    Checkpoints hold it: a run that stops inside an epoch still writes the same metrics of it.

    Attributes:
        step: `[]` int64, steps taken of it.
        log: metrics of each step, `[S, steps, …]` float64; 0 from `step` on.
        seconds: `[]` float64, time spent on it.
    """

    step: np.ndarray
    log: StepMetrics
    seconds: np.ndarray


@flax.struct.dataclass
class Selection:
    """Holds what validation decided of each seed; in numpy, as JAX would round float64 scores.

    Attributes:
        epoch: `[]` int64, epochs finished by the run.
        best_score: `[S]` float64, the smallest validation score so far: the metric that is
            followed, its sign turned if larger is better; infinite if it was undefined.
        best_epoch: `[S]` int64, the epoch that gave it, from 1; 0 for none yet.
        stale_epochs: `[S]` int64, epochs since the best one.
        plateau_epochs: `[S]` int64, epochs since the best one or the last reduction of the rate.
        reductions: `[S]` int64, how often the plateau schedule reduced the rate.
        stopped: `[S]` bool, seeds that train no more.
        failed_epoch: `[S]` int64, the epoch in which the seed's numbers were no longer finite; 0
            for none. A failed seed has stopped.
    """

    epoch: np.ndarray
    best_score: np.ndarray
    best_epoch: np.ndarray
    stale_epochs: np.ndarray
    plateau_epochs: np.ndarray
    reductions: np.ndarray
    stopped: np.ndarray
    failed_epoch: np.ndarray


@flax.struct.dataclass
class RunState:
    """Holds everything that is in a checkpoint.

    Attributes:
        train: device state, leading axis S.
        best: each seed's `TrainState.variables` at its best epoch, leading axis S.
        epoch: the one that has begun.
    """

    train: TrainState
    best: Any
    selection: Selection
    epoch: EpochSoFar

    @property
    def steps_taken(self) -> int:
        """Counts the steps of the run so far, those of stopped seeds too."""
        steps = self.epoch.log.skipped.shape[1]
        return int(self.selection.epoch) * steps + int(self.epoch.step)


def init_selection(seeds: int) -> Selection:
    """Makes the selection before the first epoch."""
    zeros = np.zeros(seeds, np.int64)
    return Selection(
        epoch=np.int64(0),
        best_score=np.full(seeds, np.inf),
        best_epoch=zeros,
        stale_epochs=zeros,
        plateau_epochs=zeros,
        reductions=zeros,
        stopped=np.zeros(seeds, bool),
        failed_epoch=zeros,
    )


def select(
    selection: Selection,
    scores: np.ndarray,
    failed: np.ndarray,
    train: TrainConfig,
    optim: OptimConfig,
) -> Selection:
    """Applies the rules of selection, early stopping and plateau to one epoch's scores.

    An improvement is a strictly smaller score; the first epoch is one, even if its score is
    undefined (NaN). Stopped seeds do not change; one that fails stops, and does not improve.

    Args:
        scores: `[S]` float64, of validation; entries of stopped and failed seeds are ignored.
        failed: `[S]` bool, seeds whose numbers were not finite in this epoch.
    """
    running = ~selection.stopped
    scores = np.where(np.isnan(scores), np.inf, scores)
    first = selection.best_epoch == 0
    improved = running & ~failed & (first | (scores < selection.best_score))
    stale = np.where(improved, 0, selection.stale_epochs + running)
    plateau = np.where(improved, 0, selection.plateau_epochs + running)
    reduce = np.zeros_like(running)
    if optim.schedule == "plateau":
        reduce = running & (plateau >= optim.plateau_patience)
    epoch = selection.epoch + 1
    after = dataclasses.replace(
        selection,
        epoch=epoch,
        best_score=np.where(improved, scores, selection.best_score),
        best_epoch=np.where(improved, epoch, selection.best_epoch),
        stale_epochs=stale,
        plateau_epochs=np.where(reduce, 0, plateau),
        reductions=selection.reductions + reduce,
        failed_epoch=np.where(running & failed, epoch, selection.failed_epoch),
    )
    return dataclasses.replace(after, stopped=selection.stopped | have_stopped(after, train))


def have_stopped(selection: Selection, train: TrainConfig) -> np.ndarray:
    """Says which seeds `[S]` train no more: failed, out of patience, or at the last epoch."""
    out_of_patience = (train.patience > 0) & (selection.stale_epochs >= train.patience)
    return (selection.failed_epoch > 0) | out_of_patience | (selection.epoch >= train.epochs)


def learning_rate_scale(selection: Selection, optim: OptimConfig) -> np.ndarray:
    """Computes plateau factors `[S]` float32, none of which takes the rate below its minimum."""
    rate = optim.learning_rate * optim.plateau_factor**selection.reductions
    floor = optim.min_learning_rate if optim.schedule == "plateau" else 0.0
    return (np.maximum(rate, floor) / optim.learning_rate).astype(np.float32)
