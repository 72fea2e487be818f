"""Tells of steps that are skipped because they are not finite, and of random seeds that fail."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from msajax.preparation.batches import EpochOrder
from msajax.runtime.devices import Deal, Layout
from msajax.training.state import RunState, StepMetrics

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
        log: measured by some steps, `[S, n]`.
        offset: the epoch's step that the log begins with.
        epoch: counted from 1.
        orders: the epoch's order, one per seed.
        ids: the training samples', `[N]`.
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

    A seed that skips `most_skipped_steps` in a row has failed; scores are `[S, N, K]`.
    """
    return _out_of_steps(state, most_skipped_steps, layout) | ~np.isfinite(scores).all(axis=(1, 2))


def nothing_left(state: RunState, most_skipped_steps: int, dealt: Deal) -> bool:
    """Says whether every seed that has not stopped has skipped too many steps in a row."""
    return bool((state.selection.stopped | _out_of_steps(state, most_skipped_steps, dealt)).all())


def _out_of_steps(state: RunState, most_skipped_steps: int, where: Layout | Deal) -> np.ndarray:
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
