"""Terms of the objective against closed forms, and one by one in every layout of a batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import tiny_config

from msajax.config import Config, TrainConfig
from msajax.errors import UserError
from msajax.models.contract import BATCH, Model, Prediction, Term
from msajax.preparation.batches import Batch
from msajax.training.objective import (
    TERMS,
    Objective,
    balanced_weights,
    loss_of,
    make_objective,
    measure_terms,
    weights_before,
)


def batch_of(labels, weight=None, masks=None):
    labels = jnp.asarray(labels, jnp.float32)
    rows = len(labels)
    weight = jnp.ones(rows) if weight is None else jnp.asarray(weight, jnp.float32)
    masks = masks or {"text": jnp.ones((rows, 1), bool)}
    return Batch({}, masks, labels, weight, jnp.arange(rows))


def prediction_of(score, weights=None):
    score = jnp.asarray(score, jnp.float32)
    weights = jnp.ones((len(score), 1)) if weights is None else jnp.asarray(weights, jnp.float32)
    return Prediction(score, weights)


def test_concordance_is_that_of_the_metric_over_the_rows_that_count():
    rng = np.random.default_rng(0)
    score, label = rng.normal(size=(6, 2)), rng.normal(size=(6, 2))
    weight = [1, 1, 0, 1, 1, 0]
    total, count = loss_of("regression", "ccc", TrainConfig()).measure(
        prediction_of(score), batch_of(label, weight)
    )
    p, y = score[np.array(weight) > 0], label[np.array(weight) > 0]
    covariance = ((p - p.mean(0)) * (y - y.mean(0))).mean(0)
    each = 2 * covariance / (p.var(0) + y.var(0) + (p.mean(0) - y.mean(0)) ** 2)
    assert float(count) == 4
    np.testing.assert_allclose(total / count, 1 - each.mean(), rtol=1e-6)


def test_concordance_of_equal_constants_has_no_gradient_and_no_nan():
    def loss(score):
        found = loss_of("regression", "ccc", TrainConfig()).measure(
            prediction_of(score), batch_of(jnp.full((3, 1), 2.0))
        )
        return found[0] / found[1]

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.full((3, 1), 2.0))
    assert float(value) == 1
    np.testing.assert_array_equal(gradient, np.zeros((3, 1)))


def test_the_focal_loss_favours_what_is_wrong():
    logits, label = np.array([[0.5, -1.0, 2.0], [3.0, 0.0, -3.0]]), np.array([[1.0], [0.0]])
    p = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[[0, 1], [1, 0]]
    for gamma in (0.0, 2.0):
        found = loss_of("classification", "focal", TrainConfig(focal_gamma=gamma)).measure(
            prediction_of(logits), batch_of(label)
        )
        np.testing.assert_allclose(found[0], ((1 - p) ** gamma * -np.log(p)).sum(), rtol=1e-5)


def test_the_focal_loss_of_a_certain_class_has_a_finite_gradient():
    def loss(logits):
        term = loss_of("classification", "focal", TrainConfig(focal_gamma=0.5))
        return term.measure(prediction_of(logits), batch_of([[0.0]]))[0]

    assert np.isfinite(jax.jit(jax.grad(loss))(jnp.array([[200.0, -200.0]]))).all()


def test_the_entropy_of_the_gate_is_over_rows_that_have_a_modality():
    weights = [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0], [0.25, 0.75]]
    here = {"a": jnp.array([[1], [1], [0], [0]], bool), "b": jnp.array([[1], [0], [0], [1]], bool)}
    batch = batch_of(np.zeros((4, 1)), [1, 1, 1, 0], here)
    total, count = TERMS["gate_entropy"].measure(prediction_of(np.zeros((4, 1)), weights), batch)
    np.testing.assert_allclose([total, count], [np.log(2), 2], rtol=1e-6)

    def entropy(weights):
        return TERMS["gate_entropy"].measure(prediction_of(np.zeros((4, 1)), weights), batch)[0]

    assert np.isfinite(jax.jit(jax.grad(entropy))(jnp.array(weights))).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train__terms": ("gate=1",)}, "must be name=weight, where name is one of gate_entropy"),
        ({"train__terms": ("gate_entropy=much",)}, "must be name=weight"),
        ({"train__terms": ("gate_entropy=nan",)}, "must be name=weight"),
        ({"train__terms": ("gate_entropy=1", "gate_entropy=2")}, "which the loss has already"),
        ({"train__loss": "focal"}, "does not suit regression: choose l1 or mse or huber or ccc"),
        ({"train__loss": "ccc", "train__accumulation_steps": 2},
         "cuts batches into parts, and ccc compares the rows"),
    ],
)
def test_an_objective_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make_objective(tiny_config(**settings), Model(module=nn.Module), "regression")


def test_weights_that_need_the_prediction_cannot_be_known_before():
    def of_prediction(prediction, batch):
        return prediction.score.sum(), (prediction.score > 0).sum()

    batch = batch_of(np.ones((4, 1)), [1, 1, 0, 1])
    objective = Objective({"l1": loss_of("regression", "l1", TrainConfig())})

    def predict(batch):
        return prediction_of(batch.labels)

    np.testing.assert_array_equal(weights_before(objective, predict, batch), [3])
    with pytest.raises(UserError, match="'own' depends on the prediction: use 1"):
        weights_before(Objective({"own": Term(of_prediction)}), predict, batch)
    constant = Objective({"own": Term(lambda prediction, batch: (prediction.score.sum(), 1.0))})
    np.testing.assert_array_equal(weights_before(constant, predict, batch), [1])


def test_a_row_of_tokens_weighs_as_many_as_are_seen_to_follow_another():
    """A transform may have hidden steps, of which the labels know nothing."""
    mask = jnp.array([[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 1, 0], [1, 1, 1, 1]], bool)
    labels = [[4, 0, 2, -1], [1, 2, 3, -1], [1, 2, 3, -1], [0, 0, 0, -1]]
    batch = batch_of(labels, [1, 1, 1, 0], {"text": mask})
    total, count = loss_of("next_token", "cross_entropy", TrainConfig()).measure(
        prediction_of([[6.0, 3.0], [5.0, 1.0], [0.0, 0.0], [9.0, 3.0]]), batch
    )
    assert (float(total), float(count)) == (11, 4)


def test_a_term_of_rows_and_one_of_batches_are_the_same_over_devices():
    """Rows over a mapped axis: the sums over it are those of the whole batch."""
    rng = np.random.default_rng(1)
    score, label = (jnp.asarray(rng.normal(size=(8, 1)), jnp.float32) for _ in range(2))
    weight = jnp.array([1, 1, 1, 0, 1, 1, 1, 1.0])
    objective = Objective(
        {
            "l1": loss_of("regression", "l1", TrainConfig()),
            "ccc": loss_of("regression", "ccc", TrainConfig())._replace(weight=0.5),
        }
    )
    assert objective.terms["ccc"].scope == BATCH

    def loss(score, batch, axis=None):
        found = measure_terms(objective, prediction_of(score), batch, axis)
        weights = jax.lax.psum(found.weights, axis) if axis else found.weights
        return (found.sums / weights * jnp.array([1, 0.5])).sum()

    whole = batch_of(label, weight)
    value, gradient = jax.jit(jax.value_and_grad(loss))(score, whole)
    parts = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), (score, whole))
    over_data = jax.vmap(lambda s, b: jax.value_and_grad(loss)(s, b, "data"), axis_name="data")
    values, gradients = jax.jit(over_data)(*parts)
    np.testing.assert_allclose(values.sum(), value, rtol=1e-6)
    np.testing.assert_allclose(gradients.reshape(8, 1), gradient, atol=1e-7)


def test_balanced_classes_count_alike_and_the_mean_is_over_their_weights():
    labels = np.array([[0], [0], [0], [1], [1], [2]])
    weights = balanced_weights(labels, 4)
    np.testing.assert_allclose(weights, (6 / 12, 6 / 8, 6 / 4, 6 / 4))  # nobody is of the last
    config = Config(train=TrainConfig(class_weights="balanced"))
    objective = make_objective(config, Model(nn.Module), "classification", weights)
    score, weight = np.random.default_rng(0).normal(size=(6, 4)), [1, 1, 1, 1, 0, 1]
    found = measure_terms(objective, prediction_of(score), batch_of(labels, weight))
    nats = np.log(np.exp(score).sum(1)) - score[np.arange(6), labels[:, 0]]
    of_row = np.array(weights)[labels[:, 0]] * weight
    np.testing.assert_allclose(found.sums[0], (nats * of_row).sum(), rtol=1e-6)
    np.testing.assert_allclose(found.weights[0], of_row.sum(), rtol=1e-6)
    with pytest.raises(UserError, match="class_weights = 'balanced' is for classes"):
        make_objective(config, Model(nn.Module), "regression")
