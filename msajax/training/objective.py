"""Defines what training minimises: named terms, each a sum over rows divided by a weight.

A task's loss is the task's own; a term beside it is a function here and an entry in `TERMS`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from msajax.checks import is_finite_number
from msajax.config import Config, TrainConfig
from msajax.config.grammar import parse
from msajax.errors import UserError, user_line
from msajax.models.contract import BATCH, ROW, Model, Prediction, Term
from msajax.preparation.batches import Batch
from msajax.tasks import TASKS

Measured = tuple[jax.Array, jax.Array]  # a sum and a weight, both []


def _gate_entropy(prediction: Prediction, batch: Batch) -> Measured:
    """Sums the entropy of the modality weights, in nats, over rows that have a modality."""
    weights = prediction.modality_weights
    # The logarithm of a weight of 0 would give its gradient a NaN.
    nats = -(weights * jnp.log(jnp.where(weights > 0, weights, 1))).sum(-1)
    present = jnp.stack([mask.any(-1) for mask in batch.masks.values()]).any(0)
    weight = batch.row_weight * present
    return (nats * weight).sum(), weight.sum()


TERMS: Mapping[str, Term] = {"gate_entropy": Term(_gate_entropy)}


@dataclasses.dataclass(frozen=True)
class Objective:
    """Holds the terms whose weighted sum a run minimises, by name in the order of the logs."""

    terms: Mapping[str, Term]


def loss_of(kind: str, name: str, train: TrainConfig) -> Term:
    """Makes the term of one of a task's losses."""
    loss = TASKS[kind].losses[name](train)
    return Term(loss.measure, scope=BATCH if loss.compares_rows else ROW)


def balanced_weights(labels: np.ndarray, classes: int) -> tuple[float, ...]:
    """Computes N / (C n) of each of C classes that n of N training labels `[N, 1]` are of."""
    counts = np.bincount(labels[:, 0].astype(int), minlength=classes)
    return tuple((len(labels) / (classes * np.maximum(counts, 1))).tolist())


def _weighted(loss: Term, class_weights: Sequence[float]) -> Term:
    """Makes the mean of a loss over rows that count by the weights of their classes."""
    weights = np.array(class_weights, np.float32)

    def measure(prediction: Prediction, batch: Batch) -> Measured:
        of_row = jnp.asarray(weights)[batch.labels[:, 0].astype(jnp.int32)]
        return loss.measure(prediction, batch.replace(row_weight=batch.row_weight * of_row))

    return loss._replace(measure=measure)


def make_objective(
    config: Config, model: Model, kind: str, class_weights: Sequence[float] = ()
) -> Objective:
    """Builds the objective of a run.

    Args:
        config: names the loss of the task (`train.loss`) and the terms beside it (`train.terms`).
        model: may declare terms of its own, made of that loss.
        class_weights: how much a sample of each class counts in the task's loss; () is once.

    Raises:
        UserError: for a loss or weights that do not suit the task, a term that is not known, and a
            term that compares rows with `train.accumulation_steps` above 1.
    """
    train, suitable = config.train, TASKS[kind].losses
    name = next(iter(suitable)) if train.loss == "auto" else train.loss
    if name not in suitable:
        raise UserError(
            f"train.loss = {name!r} does not suit {kind}: choose {' or '.join(suitable)}, or auto."
        )
    if train.class_weights != "none" and not TASKS[kind].has_classes:
        raise UserError(
            f"train.class_weights = {train.class_weights!r} is for classes: the labels are learned "
            f"as {kind}."
        )
    loss = loss_of(kind, name, train)
    loss = _weighted(loss, class_weights) if class_weights else loss
    terms = {name: loss}
    if model.terms is not None:
        here = user_line(model.terms)
        try:
            inspect.signature(model.terms).bind(config.model, name, loss)
        except TypeError as error:
            raise UserError(
                f"{here}terms must take three arguments, the model's settings, the name of the "
                f"task's loss and that loss; it does not ({error})."
            ) from error
        terms = model.terms(config.model, name, loss)
        if not isinstance(terms, Mapping) or not all(isinstance(own, str) for own in terms):
            raise UserError(
                f"{here}terms must return a dict of terms by name; it returns "
                f"{type(terms).__name__}."
            )
        if not terms:
            raise UserError(f"{here}terms returns no term: there is nothing to minimise.")
    terms = dict(terms)
    for own, term in terms.items():
        ok = isinstance(term, Term) and callable(term.measure) and term.scope in (ROW, BATCH)
        if not ok or isinstance(term.weight, str) or not is_finite_number(term.weight):
            said = type(term).__name__
            if isinstance(term, Term):
                said = f"a Term of weight {term.weight!r} and scope {term.scope!r}"
            raise UserError(
                f"{user_line(model.terms)}the term {own!r} is {said}: it must be a msajax.Term "
                f"with a function, a finite weight, and the scope {ROW!r} or {BATCH!r}."
            )
    if "loss" in terms:
        raise UserError("A term of the model is named 'loss', as the sum of all is: rename it.")
    for entry in train.terms:
        beside, weight = parse("train.terms", entry, "name=weight", TERMS, is_finite_number)
        if beside in terms:
            raise UserError(f"train.terms names {beside!r}, which the loss has already.")
        terms[beside] = TERMS[beside]._replace(weight=float(weight))
    if train.accumulation_steps > 1:
        if whole := [name for name, term in terms.items() if term.scope == BATCH]:
            compare = "compares" if len(whole) == 1 else "compare"
            raise UserError(
                f"train.accumulation_steps = {train.accumulation_steps} cuts batches into parts, "
                f"and {', '.join(whole)} {compare} the rows of a whole batch: use 1."
            )
    return Objective(terms)


class Sums(NamedTuple):
    """Holds a sum and a weight of each of the objective's T terms, in their order: `[T]` both."""

    sums: jax.Array
    weights: jax.Array


def measure_terms(
    objective: Objective,
    prediction: Prediction,
    batch: Batch,
    axis_name: str | None = None,
    complete: Callable[[Batch], Batch] = lambda batch: batch,
) -> Sums:
    """Measures every term of a batch, or under `axis_name` of this device's rows of it.

    A term that compares rows is given those of all devices; every device then has an equal share of
    its sum and weight, so that the shares of all devices add up to the term. `complete` adds to a
    batch what has no rows.
    """
    sums, weights = [], []
    whole = None
    for term in objective.terms.values():
        if axis_name and term.scope == BATCH:
            if whole is None:
                everything, rows = jax.tree.map(
                    lambda x: jax.lax.all_gather(x, axis_name, tiled=True), (prediction, batch)
                )
                whole = everything, complete(rows)
            devices = jax.lax.axis_size(axis_name)
            found = [x / devices for x in term.measure(*whole)]
        else:
            found = term.measure(prediction, complete(batch))
        sums.append(found[0])
        weights.append(jax.lax.stop_gradient(found[1]))
    return Sums(jnp.stack(sums), jnp.stack(weights).astype(jnp.float32))


def weights_before(
    objective: Objective, predict: Callable[[Batch], Prediction], batch: Batch
) -> jax.Array:
    """Computes the weights `[T]` of ROW terms; raises `UserError` if one needs predictions."""
    shapes = jax.eval_shape(predict, batch)
    found = []
    for name, term in objective.terms.items():
        if _reads_prediction(term, shapes, batch):
            raise UserError(
                "train.accumulation_steps cuts batches into parts, and the weight of the term "
                f"{name!r} depends on the prediction: use 1, and declare scope {BATCH!r}, not "
                f"{ROW!r}."
            )
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        found.append(jnp.float32(term.measure(blank, batch)[1]))
    return jnp.stack(found)


def _reads_prediction(term: Term, shapes: Any, batch: Batch) -> bool:
    """Says whether a term's weight may depend on the prediction, by its traced operations."""
    jaxpr = jax.make_jaxpr(term.measure)(shapes, batch).jaxpr
    literal = jax.extend.core.Literal
    needed = {v for v in jaxpr.outvars[1:2] if not isinstance(v, literal)}
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, literal)}
    return bool(needed & set(jaxpr.invars[: len(jax.tree.leaves(shapes))]))
