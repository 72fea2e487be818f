"""One training step of one random seed: a pure function."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from msajax.config import TrainConfig
from msajax.data.batches import Batch
from msajax.errors import UserError
from msajax.models.parts.layers import first_row
from msajax.training.optimizers import Optimizer
from msajax.training.prng import dropout_key
from msajax.training.state import StepMetrics, TrainState


class Loss(NamedTuple):
    """What training minimises: the mean of rows, each with its weight.

    Attributes:
        of_rows: (score `[B, K]`, label `[B, L]`) -> `[B]`.
        weights: label `[B, L]` -> `[B]`: what each row counts.
    """

    of_rows: Callable[[jax.Array, jax.Array], jax.Array]
    weights: Callable[[jax.Array], jax.Array]


def make_loss(config: TrainConfig, kind: str) -> Loss:
    """The loss of a task.

    Args:
        config: names it. Of real numbers it is the mean over the K outputs; of tokens, the mean
            over all of a batch.
        kind: regression, classification or next_token.

    Raises:
        UserError: for a loss that does not suit the task.
    """
    penalties = {
        "l1": jnp.abs,
        "mse": jnp.square,
        "huber": lambda error: optax.losses.huber_loss(error, delta=config.huber_delta),
    }
    suitable = tuple(penalties) if kind == "regression" else ("cross_entropy",)
    name = suitable[0] if config.loss == "auto" else config.loss
    if name not in suitable:
        raise UserError(
            f"train.loss = {name!r} does not suit {kind}: choose {' or '.join(suitable)}, or auto."
        )
    if kind == "classification":
        return Loss(_class_cross_entropy, _one_each)
    if kind == "next_token":
        return Loss(_nats_per_token, lambda label: (label >= 0).sum(-1).astype(jnp.float32))
    penalty = penalties[name]

    def loss(score: jax.Array, label: jax.Array) -> jax.Array:
        chex.assert_equal_shape([score, label])  # [B] against [B, 1] would broadcast to [B, B]
        return penalty(score - label).mean(axis=-1)

    return Loss(loss, _one_each)


def _one_each(label: jax.Array) -> jax.Array:
    return jnp.ones(label.shape[0])


def _nats_per_token(score: jax.Array, label: jax.Array) -> jax.Array:
    """Of `NextTokenModel`'s scores; its labels say only how many tokens a row has."""
    chex.assert_shape(score, (label.shape[0], 2))
    return score[:, 0] / jnp.maximum(score[:, 1], 1)


def _class_cross_entropy(score: jax.Array, label: jax.Array) -> jax.Array:
    """Of logits `[B, C]` and classes `[B, 1]` counted from 0."""
    chex.assert_shape(label, (score.shape[0], 1))
    classes = label[:, 0].astype(jnp.int32)
    return optax.losses.softmax_cross_entropy_with_integer_labels(score, classes)


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    loss: Loss,
    accumulation_steps: int = 1,
    axis_name: str | None = None,
    most_skipped_steps: int = TrainConfig.most_skipped_steps,
) -> tuple[TrainState, StepMetrics]:
    """Takes one optimiser step, unless its loss or its gradient is not finite.

    A skipped step counts as a step, with its random numbers and its learning rate, but leaves the
    parameters and the optimiser's state as they are. After too many in a row nothing changes any
    more.

    Args:
        state: one random seed's state, without the seed axis.
        batch: B rows, of which those with `row_weight` 0 do not count; under `axis_name`, this
            device's part of them.
        model: what to train.
        optimizer: how parameters move.
        loss: from `make_loss`.
        accumulation_steps: parts of the batch, B / parts rows each, whose gradients are summed.
        axis_name: the mapped axis over which the rows are spread, if there is one.
        most_skipped_steps: in a row, after which the seed has failed.

    Returns:
        The next state, and this step's metrics.
    """
    key = dropout_key(state.seed, state.step)
    rows = batch.row_weight.shape[0]
    part_rows = rows // accumulation_steps
    start = jax.lax.axis_index(axis_name) * rows if axis_name else 0
    weight = (batch.row_weight * loss.weights(batch.labels)).sum()
    if axis_name:
        weight = jax.lax.psum(weight, axis_name)

    def share_of_loss(params, part, first):
        prediction = model.apply(
            {"params": params, **first_row(first)},
            part.features,
            part.masks,
            train=True,
            rngs={"dropout": key},
        )
        row_loss = loss.of_rows(prediction.score, part.labels)
        if prediction.coarse_score is not None:  # of a guided model
            refined = model.config.guidance_weight
            coarse_loss = loss.of_rows(prediction.coarse_score, part.labels)
            row_loss = (1 - refined) * coarse_loss + refined * row_loss
        total = (row_loss * part.row_weight * loss.weights(part.labels)).sum()
        return total / jnp.maximum(weight, 1), total

    gradient_of = jax.grad(share_of_loss, has_aux=True)
    if accumulation_steps == 1:
        gradient, total = gradient_of(state.params, batch, start)
    else:

        def accumulate(sums, part_and_index):
            part, i = part_and_index
            sums = jax.tree.map(
                jnp.add, sums, gradient_of(state.params, part, start + i * part_rows)
            )
            return sums, None

        parts = jax.tree.map(
            lambda x: x.reshape(accumulation_steps, part_rows, *x.shape[1:]), batch
        )
        nothing = (jax.tree.map(jnp.zeros_like, state.params), jnp.float32(0))
        (gradient, total), _ = jax.lax.scan(
            accumulate, nothing, (parts, jnp.arange(accumulation_steps))
        )
    if axis_name:
        # As one vector: between processes every array would be a message, and a wait, of its own.
        flat, unflatten = ravel_pytree((gradient, total))
        gradient, total = unflatten(jax.lax.psum(flat, axis_name))

    updates, opt_state = optimizer.transformation.update(gradient, state.opt_state, state.params)
    rate = optimizer.learning_rate(state.step) * state.learning_rate_scale
    params = jax.tree.map(lambda p, u: p - rate * u, state.params, updates)

    grad_norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(total) & jnp.isfinite(grad_norm)
    failed = state.skipped_in_a_row >= most_skipped_steps
    taken, skipped = finite & ~failed, ~finite & ~failed

    def if_taken(new: optax.Params, old: optax.Params) -> optax.Params:
        return jax.tree.map(lambda n, o: jnp.where(taken, n, o), new, old)

    metrics = StepMetrics(
        loss=jnp.where(taken, total, 0),
        weight=jnp.where(taken, weight, 0),
        grad_norm=jnp.where(taken, grad_norm, 0),
        learning_rate=rate,
        skipped=skipped.astype(jnp.float32),
    )
    state = state.replace(
        step=state.step + ~failed,
        params=if_taken(params, state.params),
        opt_state=if_taken(opt_state, state.opt_state),
        skipped_in_a_row=jnp.where(taken, 0, state.skipped_in_a_row + skipped),
    )
    return state, metrics
