"""Batches, length buckets, and the order of an epoch as a pure function of (seed, epoch)."""

import dataclasses
from collections.abc import Mapping

import flax.struct
import jax
import numpy as np

from msajax.data.corpus import Split
from msajax.data.steps import spans
from msajax.spec import CorpusSpec

QUARTERS = 4  # length buckets: sequences cut to 1/4, 1/2, 3/4 or all of their tables
RUN = 4  # batches of a bucket that follow one another: what one dispatch can take


@flax.struct.dataclass
class Batch:
    """What a training step reads.

    Attributes:
        features: `{modality: [B, T_m, d_m]}` float32.
        masks: `{modality: [B, T_m]}` bool.
        labels: `[B, K]` float32.
        row_weight: `[B]` float32; 0 for a row that only fills the shape.
    """

    features: Mapping[str, jax.Array]
    masks: Mapping[str, jax.Array]
    labels: jax.Array
    row_weight: jax.Array


def quarters_of(split: Split, spec: CorpusSpec) -> np.ndarray:
    """The length bucket of every row of a prepared split, `[N]` in 1 … 4.

    A row's bucket is its longest sequence relative to that modality's table, rounded up to a
    quarter; in bucket q all modalities are cut to q quarters of their tables.
    """
    quarters = np.ones(len(split), np.int64)
    for m in spec.modalities:
        first, lengths = spans(split.masks[m])
        needed = -(-QUARTERS * (first + lengths) // spec.length(m))
        quarters = np.maximum(quarters, needed)
    return quarters


def cut_lengths(spec: CorpusSpec, quarter: int) -> dict[str, int]:
    """Time steps of every modality in bucket `quarter`."""
    return {m: -(-spec.length(m) * quarter // QUARTERS) for m in spec.modalities}


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """Which rows each step of an epoch reads.

    Attributes:
        quarters: `[steps]` int32, the bucket of each step; the same for every seed.
        indices: `[steps, B]` int32, rows of that bucket.
        row_weight: `[steps, B]` float32, 0 for a row that only fills a bucket's last batch.
    """

    quarters: np.ndarray
    indices: np.ndarray
    row_weight: np.ndarray


def epoch_order(seed: int, epoch: int, *, quarters: np.ndarray, batch_size: int) -> EpochOrder:
    """The order of one random seed's epoch, a pure function of its arguments.

    The seed permutes rows inside their bucket, whose batches are cut into runs of `RUN`; the order
    of the runs depends on the epoch alone, so that seeds can share a program.

    Args:
        seed: the random seed of the run's member.
        epoch: counted from 0.
        quarters: `[N]`, every row's bucket.
        batch_size: rows of a step, B.
    """
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    runs = []  # of (bucket, rows of a batch)
    for quarter in range(1, QUARTERS + 1):
        rows = rng.permutation(np.flatnonzero(quarters == quarter))
        batches = [(quarter, rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
        runs += [batches[i : i + RUN] for i in range(0, len(batches), RUN)]
    order = np.random.Generator(np.random.PCG64([epoch])).permutation(len(runs))
    steps = [batch for i in order for batch in runs[i]]
    indices = np.zeros((len(steps), batch_size), np.int32)
    row_weight = np.zeros((len(steps), batch_size), np.float32)
    for step, (_, rows) in enumerate(steps):
        indices[step] = rows[0]
        indices[step, : len(rows)] = rows
        row_weight[step, : len(rows)] = 1
    buckets = np.array([quarter for quarter, _ in steps], np.int32)
    return EpochOrder(buckets, indices, row_weight)


def steps_per_epoch(quarters: np.ndarray, batch_size: int) -> int:
    """The number of steps of every epoch."""
    return sum(-(-int((quarters == q).sum()) // batch_size) for q in range(1, QUARTERS + 1))
