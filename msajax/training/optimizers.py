"""Optimisers and learning-rate schedules, by configuration."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from msajax.config import OptimConfig


class Optimizer(NamedTuple):
    """A gradient transformation, and the rate that scales its updates.

    Attributes:
        transformation: clipping, Adam's moments and decoupled weight decay; no learning rate.
        learning_rate: step counted from 0 -> rate, before the plateau factor.
    """

    transformation: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]


def make_optimizer(config: OptimConfig, total_steps: int) -> Optimizer:
    """Builds the optimiser of a run of at most `total_steps` steps.

    Weight decay acts on kernels alone: not on biases, norms and position tables.
    """
    parts = []
    if config.clip_norm:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    parts.append(optax.scale_by_adam())
    if config.weight_decay:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=_is_kernel))
    return Optimizer(optax.chain(*parts), _schedule(config, total_steps))


def _is_kernel(params: optax.Params) -> optax.Params:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def _schedule(config: OptimConfig, total_steps: int) -> Callable[[jax.Array], jax.Array]:
    """Linear warm-up from 0, then constant (plateau too: its factor is per seed) or cosine."""
    peak, warmup = config.learning_rate, config.warmup_steps

    def rate(step: jax.Array) -> jax.Array:
        step = step.astype(jnp.float32)
        value = jnp.float32(peak)
        if config.schedule == "cosine":
            low = config.min_learning_rate
            done = jnp.clip((step - warmup) / max(total_steps - 1 - warmup, 1), 0, 1)
            value = low + 0.5 * (peak - low) * (1 + jnp.cos(jnp.pi * done))
        if warmup:
            value = value * jnp.minimum(step / warmup, 1)
        return value

    return rate
