"""One training step of one random seed: a pure function."""

from collections.abc import Callable

import chex
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from msajax.config import TrainConfig
from msajax.data.batches import Batch
from msajax.training.optimizers import Optimizer
from msajax.training.state import DROPOUT_STREAM, TrainState

Loss = Callable[[jax.Array, jax.Array], jax.Array]  # (score [B, K], label [B, K]) -> [B]


@flax.struct.dataclass
class StepMetrics:
    """What a step measures; sums and weights, divided once at the end of an epoch.

    Attributes:
        loss: sum of weighted losses over the rows.
        weight: sum of row weights.
        grad_norm: global gradient norm before clipping.
        learning_rate: the rate of this step.
    """

    loss: jax.Array
    weight: jax.Array
    grad_norm: jax.Array
    learning_rate: jax.Array


def make_loss(config: TrainConfig) -> Loss:
    """The per-row loss that a configuration names: l1, mse or huber, mean over the K outputs."""
    losses = {
        "l1": lambda error: jnp.abs(error),
        "mse": jnp.square,
        "huber": lambda error: optax.losses.huber_loss(error, delta=config.huber_delta),
    }
    penalty = losses[config.loss]

    def loss(score: jax.Array, label: jax.Array) -> jax.Array:
        chex.assert_equal_shape([score, label])  # [B] against [B, 1] would broadcast to [B, B]
        return penalty(score - label).mean(axis=-1)

    return loss


def train_step(
    state: TrainState, batch: Batch, *, model: nn.Module, optimizer: Optimizer, loss: Loss
) -> tuple[TrainState, StepMetrics]:
    """Takes one optimiser step.

    Args:
        state: one random seed's state, without the seed axis.
        batch: B rows, of which those with `row_weight` 0 do not count.
        model: what to train.
        optimizer: how parameters move.
        loss: from `make_loss`.

    Returns:
        The next state, and this step's metrics.
    """
    key = jax.random.fold_in(jax.random.key(state.seed), DROPOUT_STREAM)
    key = jax.random.fold_in(key, state.step)

    def weighted_loss(params):
        prediction = model.apply(
            {"params": params}, batch.features, batch.masks, train=True, rngs={"dropout": key}
        )
        total = (loss(prediction.score, batch.labels) * batch.row_weight).sum()
        weight = batch.row_weight.sum()
        return total / jnp.maximum(weight, 1), (total, weight)

    gradient_of = jax.value_and_grad(weighted_loss, has_aux=True)
    (_, (total, weight)), gradient = gradient_of(state.params)
    updates, opt_state = optimizer.transformation.update(gradient, state.opt_state, state.params)
    rate = optimizer.learning_rate(state.step) * state.learning_rate_scale
    params = jax.tree.map(lambda p, u: p - rate * u, state.params, updates)
    metrics = StepMetrics(
        loss=total, weight=weight, grad_norm=optax.tree.norm(gradient), learning_rate=rate
    )
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state), metrics
