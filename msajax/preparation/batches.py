"""Makes batches by length quarter, in an order that is a pure function of (seed, epoch)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import numpy as np

from msajax.corpus.corpus import Split
from msajax.corpus.steps import spans
from msajax.spec import CorpusSpec

QUARTERS = 4  # length quarters: sequences cut to 1/4, 1/2, 3/4 or all of the longest length
# Batches of a quarter that follow one another, so that one dispatch can take them: single batches
# in random order would need three times as many. Longer blocks would order an epoch by length.
BLOCK = 4


class Progress(NamedTuple):
    """Says where in a run a step is."""

    step: jax.Array  # `[]` int32, from 0
    epoch: jax.Array  # `[]` int32, from 0
    # `[]` float32, of the steps that are planned, from 0 at the first to 1 at the last
    share: jax.Array


@flax.struct.dataclass
class Batch:
    """Holds what a training step reads.

    Attributes:
        features: `{modality: [B, T_m, d_m]}` float32, `[B, T_m]` token ids, or `[B, T_m, 3]` pieces
            of a pretrained encoder's text (see `preparation/pieces.py`).
        masks: `{modality: [B, T_m]}` bool.
        labels: `[B, L]` float32, the task's targets.
        row_weight: `[B]` float32; 0 for a row that only fills the shape.
        row: `[B]` int32, the row's number in its split; N for one that only fills the shape, so
            that scatters to `[N, …]` drop it.
        memory: `{name: [B, …]}`, what the model's memory holds of these samples; what it holds
            once for all of them is as it is.
        progress: tells a step of training its place in the run; None elsewhere.
    """

    features: Mapping[str, jax.Array]
    masks: Mapping[str, jax.Array]
    labels: jax.Array
    row_weight: jax.Array
    row: jax.Array
    memory: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)
    progress: Progress | None = None


def quarters_of(split: Split, spec: CorpusSpec) -> np.ndarray:
    """Returns the length quarter of every row of a prepared split, `[N]` in 1 … 4.

    It is the row's longest sequence, relative to the longest length of that modality, rounded up to
    a quarter; in quarter q all modalities are cut to q quarters of their longest lengths. The steps
    that pieces are pooled to count as the length of a sequence, too.
    """
    quarters = np.ones(len(split), np.int64)
    for length in set(spec.lengths):
        masks = (split.masks[m] for m in spec.modalities if spec.length(m) == length)
        first, lengths = spans(functools.reduce(np.logical_or, masks))  # the longest of them
        quarters = np.maximum(quarters, -(-QUARTERS * (first + lengths) // length))
    if spec.text_steps:
        ends = split.features["text"][..., 2].max(axis=1) + 1
        quarters = np.maximum(quarters, -(-QUARTERS * ends // spec.text_steps))
    return quarters


def cut_lengths(spec: CorpusSpec, quarter: int) -> dict[str, int]:
    """Returns the time steps of every modality in a length quarter."""
    return {m: -(-spec.length(m) * quarter // QUARTERS) for m in spec.modalities}


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """Says which rows each step of an epoch reads."""

    # `[steps]` int32, the length quarter of each step; the same for every seed
    quarters: np.ndarray
    indices: np.ndarray  # `[steps, B]` int32, rows of that quarter
    # `[steps, B]` float32, 0 for a row that only fills a quarter's last batch
    row_weight: np.ndarray


def epoch_order(seed: int, epoch: int, *, quarters: np.ndarray, batch_size: int) -> EpochOrder:
    """Orders one random seed's epoch, counted from 0: a pure function of its arguments.

    The seed permutes rows inside their length quarter, `[N]`, whose batches of `batch_size` rows
    are cut into blocks of `BLOCK`; the order of the blocks depends on the epoch alone, so that
    seeds can share a program.
    """
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    blocks = []  # of (quarter, rows of a batch)
    for quarter in range(1, QUARTERS + 1):
        rows = rng.permutation(np.flatnonzero(quarters == quarter))
        batches = [(quarter, rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
        blocks += [batches[i : i + BLOCK] for i in range(0, len(batches), BLOCK)]
    order = np.random.Generator(np.random.PCG64([epoch])).permutation(len(blocks))
    steps = [batch for i in order for batch in blocks[i]]
    indices = np.zeros((len(steps), batch_size), np.int32)
    row_weight = np.zeros((len(steps), batch_size), np.float32)
    for step, (_, rows) in enumerate(steps):
        indices[step] = rows[0]
        indices[step, : len(rows)] = rows
        row_weight[step, : len(rows)] = 1
    return EpochOrder(np.array([quarter for quarter, _ in steps], np.int32), indices, row_weight)


def row_numbers(indices: Any, row_weight: Any, size: int) -> Any:
    """Returns `Batch.row` of rows `[…]` of these weights, in a split of `size` samples."""
    return (indices * (row_weight > 0) + size * (row_weight == 0)).astype(np.int32)


def in_passes(order: EpochOrder, passes: Sequence[int]) -> EpochOrder:
    """Joins the passes of an epoch, each of which takes so many first steps of the order."""
    taken = np.concatenate([np.arange(steps) for steps in passes])
    return EpochOrder(order.quarters[taken], order.indices[taken], order.row_weight[taken])


def steps_per_epoch(quarters: np.ndarray, batch_size: int) -> int:
    """Returns the number of steps of a pass over the split."""
    return sum(-(-int((quarters == q).sum()) // batch_size) for q in range(1, QUARTERS + 1))
