"""Batches, and the order of an epoch as a pure function of (seed, epoch)."""

from collections.abc import Mapping

import flax.struct
import jax
import numpy as np


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


def epoch_order(
    seed: int, epoch: int, *, size: int, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows each step of an epoch reads.

    Args:
        seed: the random seed of the run's member.
        epoch: counted from 0.
        size: rows of the split.
        batch_size: rows of a step.

    Returns:
        Row indices `[steps, B]` int32, every row once, and row weights `[steps, B]` float32: the
        last batch is filled with row 0 at weight 0.
    """
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    steps = -(-size // batch_size)
    indices = np.zeros(steps * batch_size, np.int32)
    indices[:size] = rng.permutation(size)
    weights = (np.arange(steps * batch_size) < size).astype(np.float32)
    return indices.reshape(steps, batch_size), weights.reshape(steps, batch_size)
