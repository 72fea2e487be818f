"""One training step and the optimisers against independent numpy computations in float64."""

import dataclasses

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import rates_of

from msajax.config import Config, OptimConfig, TrainConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout
from msajax.models.contract import Model, Prediction
from msajax.preparation.batches import Batch, row_numbers
from msajax.spec import CorpusSpec
from msajax.training.objective import make_objective
from msajax.training.optimizers import make_optimizer
from msajax.training.step import Recipe, begin, train_step

SPEC = CorpusSpec(("text",), (3,), (1,))
TRAIN = TrainConfig()


class Linear(nn.Module):
    """A linear model: its gradients can be written down."""

    rate: float = 0.0

    @nn.compact
    def __call__(self, features, masks, *, train=False):
        x = Dropout(self.rate)(features["text"][:, 0], train=train)
        return Prediction(nn.Dense(1, name="linear")(x), jnp.ones((len(x), 1)))


def make_batch(rows=5, weights=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 1, 3)).astype(np.float32)
    y = rng.normal(size=(rows, 1)).astype(np.float32)
    weights = np.ones(rows, np.float32) if weights is None else np.array(weights, np.float32)
    mask = np.ones((rows, 1), bool)
    numbers = row_numbers(np.arange(rows), weights, rows)
    return Batch({"text": jnp.array(x)}, {"text": jnp.array(mask)}, jnp.array(y), weights, numbers)


def recipe(optim: OptimConfig, train: TrainConfig = TRAIN, *, rate=0.0) -> Recipe:
    """Steps of a linear model on real numbers."""
    model = Model(module=Linear)
    return Recipe(
        module=Linear(rate),
        model=model,
        optimizer=make_optimizer(optim, ("linear/kernel", "linear/bias")),
        objective=make_objective(Config(optim=optim, train=train), model, "regression"),
    )


def steps(optim: OptimConfig, train: TrainConfig, batches, *, seed=0, rate=0.0, total=10):
    """Runs train_step over batches; returns the first state, the last, and the metrics."""
    of_steps = recipe(optim, train, rate=rate)
    state = begin(jnp.uint32(seed), {}, of_steps, SPEC)
    first, log = state, []
    for batch in batches:
        state, metrics = train_step(state, batch, of_steps, rates_of(of_steps, total))
        log.append(metrics)
    return first, state, log


def numpy_adam(params, gradient_of, rates, *, decay=0.0, clip=0.0):
    """Adam with decoupled decay of the kernel, in float64."""
    moments = {k: [np.zeros_like(v), np.zeros_like(v)] for k, v in params.items()}
    norms = []
    for t, rate in enumerate(rates, start=1):
        gradient = gradient_of(params)
        norms.append(np.sqrt(sum((g**2).sum() for g in gradient.values())))
        if clip and norms[-1] > clip:
            gradient = {k: g * clip / norms[-1] for k, g in gradient.items()}
        for k, g in gradient.items():
            m, v = moments[k]
            m[:], v[:] = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            update = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            if k == "kernel":
                update = update + decay * params[k]
            params[k] = params[k] - rate * update
    return params, norms


def l1_gradient(batch):
    x, y = np.float64(batch.features["text"][:, 0]), np.float64(batch.labels)
    weight = np.float64(batch.row_weight)[:, None]

    def gradient(params):
        sign = np.sign(x @ params["kernel"] + params["bias"] - y) * weight / weight.sum()
        return {"kernel": x.T @ sign, "bias": sign.sum(axis=0)}

    return gradient


@pytest.mark.parametrize(
    ("optim", "decay", "clip"),
    [
        (OptimConfig(learning_rate=0.01), 0.0, 0.0),
        (OptimConfig(name="adamw", learning_rate=0.01, weight_decay=0.1), 0.1, 0.0),
        (OptimConfig(learning_rate=0.01, clip_norm=0.2), 0.0, 0.2),
    ],
)
def test_steps_equal_adam_in_numpy(optim, decay, clip):
    batch = make_batch()
    first, last, log = steps(optim, TrainConfig(), [batch] * 6)
    start = {k: np.float64(v) for k, v in first.params["linear"].items()}
    expected, norms = numpy_adam(start, l1_gradient(batch), [0.01] * 6, decay=decay, clip=clip)
    for k in expected:
        np.testing.assert_allclose(last.params["linear"][k], expected[k], atol=2e-6)
    np.testing.assert_allclose([m.grad_norm for m in log], norms, rtol=1e-5)
    assert int(last.step) == 6


def test_decay_leaves_biases_alone():
    optim = OptimConfig(name="adamw", learning_rate=0.01, weight_decay=0.5)
    batch = make_batch()
    _, plain, _ = steps(OptimConfig(learning_rate=0.01), TrainConfig(), [batch])
    _, decayed, _ = steps(optim, TrainConfig(), [batch])
    np.testing.assert_array_equal(decayed.params["linear"]["bias"], plain.params["linear"]["bias"])
    assert np.abs(decayed.params["linear"]["kernel"] - plain.params["linear"]["kernel"]).max() > 0


def test_the_plateau_factor_scales_the_step():
    of_steps = recipe(OptimConfig(learning_rate=0.01))
    state = begin(jnp.uint32(0), {}, of_steps, SPEC)
    once = make_batch(), of_steps, rates_of(of_steps)
    whole, _ = train_step(state, *once)
    half, log = train_step(state.replace(learning_rate_scale=0.5), *once)
    change = jax.tree.map(lambda new, old: new - old, whole.params, state.params)
    half_change = jax.tree.map(lambda new, old: 2 * (new - old), half.params, state.params)
    chex.assert_trees_all_close(change, half_change, rtol=1e-5)
    assert float(log.learning_rate) == pytest.approx(0.005)


def test_rows_of_weight_0_change_nothing():
    full = make_batch(rows=8, weights=[1, 1, 1, 1, 1, 0, 0, 0])
    short = Batch(
        {"text": full.features["text"][:5]},
        {"text": full.masks["text"][:5]},
        full.labels[:5],
        full.row_weight[:5],
        full.row[:5],
    )
    _, filled, filled_log = steps(OptimConfig(), TrainConfig(), [full])
    _, alone, alone_log = steps(OptimConfig(), TrainConfig(), [short])
    chex.assert_trees_all_close(filled.params, alone.params, rtol=1e-6)
    assert float(filled_log[0].sums[0]) == pytest.approx(float(alone_log[0].sums[0]), rel=1e-6)
    assert filled_log[0].weights.tolist() == [5.0]


def test_a_batch_of_weight_0_alone_gives_finite_numbers():
    _, state, log = steps(OptimConfig(), TrainConfig(), [make_batch(weights=[0] * 5)])
    chex.assert_tree_all_finite((state, log))
    assert log[0].sums.tolist() == [0.0]


def test_dropout_depends_on_seed_and_step_and_nothing_else():
    batch, train = make_batch(), TrainConfig()
    _, a, _ = steps(OptimConfig(), train, [batch, batch], rate=0.5)
    _, again, _ = steps(OptimConfig(), train, [batch, batch], rate=0.5)
    chex.assert_trees_all_equal(a, again)
    of_steps = recipe(OptimConfig(), rate=0.5)
    state = begin(jnp.uint32(0), {}, of_steps, SPEC)
    losses = {}
    for seed in (0, 1):
        for step in (0, 1):
            here = state.replace(seed=jnp.uint32(seed), step=jnp.int32(step))
            _, log = train_step(here, batch, of_steps, rates_of(of_steps))
            losses[seed, step] = float(log.sums[0])
    assert len(set(losses.values())) == 4


def loss_of(train: TrainConfig, kind: str):
    """The term that is a task's loss."""
    (term,) = make_objective(Config(train=train), Model(module=Linear), kind).terms.values()
    return term


def by_row(loss, score, label) -> tuple[np.ndarray, np.ndarray]:
    """Sums and weights `[B]` of a loss, each of a batch in which one row alone counts."""
    rows = len(score)
    of_none = Batch({}, {}, jnp.asarray(label), np.zeros(rows), np.arange(rows))
    prediction = Prediction(jnp.asarray(score), jnp.ones((rows, 1)))
    each = (of_none.replace(row_weight=weight) for weight in np.eye(rows, dtype=np.float32))
    sums, weights = zip(*(loss.measure(prediction, batch) for batch in each), strict=True)
    return np.array(sums), np.array(weights)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TrainConfig(loss="l1"), [0.5, 3.0]),
        (TrainConfig(loss="mse"), [0.25, 9.0]),
        (TrainConfig(loss="huber", huber_delta=1.0), [0.125, 2.5]),
        (TrainConfig(loss="huber", huber_delta=2.0), [0.125, 4.0]),
    ],
)
def test_losses_have_their_closed_forms(config, expected):
    score, label = jnp.array([[1.0], [-1.0]]), jnp.array([[0.5], [2.0]])
    found, weights = by_row(loss_of(config, "regression"), score, label)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(weights, [1, 1])


def test_the_loss_of_several_outputs_is_their_mean():
    score, label = jnp.array([[1.0, 3.0], [0.0, 0.0]]), jnp.array([[0.5, -1.0], [2.0, 2.0]])
    for name, expected in (("auto", [2.25, 2.0]), ("mse", [8.125, 4.0]), ("huber", [1.8125, 1.5])):
        found, weights = by_row(loss_of(TrainConfig(loss=name), "regression"), score, label)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        np.testing.assert_array_equal(weights, [1, 1])


def test_the_loss_of_classes_is_the_negative_logarithm_of_their_probability():
    logits = np.array([[0.5, -1.0, 2.0], [30.0, 0.0, -30.0]])
    label = np.array([[1.0], [0.0]])
    loss = loss_of(TrainConfig(), "classification")
    found, weights = by_row(loss, np.float32(logits), np.float32(label))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, [-np.log(p[0, 1]), -np.log(p[1, 0])], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(weights, [1, 1])


@pytest.mark.parametrize(
    ("kind", "suitable"),
    [
        ("regression", {"auto", "l1", "mse", "huber", "ccc"}),
        ("classification", {"auto", "cross_entropy", "focal"}),
        ("next_token", {"auto", "cross_entropy"}),
    ],
)
def test_a_task_has_losses_that_suit_it_and_refuses_the_others(kind, suitable):
    for name in ("auto", "l1", "mse", "huber", "ccc", "cross_entropy", "focal", "no loss at all"):
        if name in suitable:
            loss_of(TrainConfig(loss=name), kind)
        else:
            with pytest.raises(UserError, match=f"train.loss = '{name}' does not suit {kind}"):
                loss_of(TrainConfig(loss=name), kind)


def test_a_loss_refuses_to_broadcast_a_column_against_a_row():
    with pytest.raises(AssertionError):
        by_row(loss_of(TrainConfig(), "regression"), jnp.zeros((4, 1)), jnp.zeros(4))


def rates(optim: OptimConfig, total: int) -> np.ndarray:
    optimizer = recipe(optim).optimizer
    numbers = optimizer.rates(optim, total)
    return np.array([optimizer.learning_rates(numbers, jnp.int32(t))[0] for t in range(total)])


def test_warm_up_is_linear_from_0_to_the_peak():
    optim = OptimConfig(learning_rate=1e-3, warmup_steps=4)
    np.testing.assert_allclose(
        rates(optim, 6), [0, 0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3], rtol=1e-6
    )


def test_cosine_falls_from_the_peak_to_the_minimum_at_the_last_step():
    optim = OptimConfig(learning_rate=1e-3, schedule="cosine", min_learning_rate=1e-5)
    t = np.arange(11)
    expected = 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + np.cos(np.pi * t / 10))
    np.testing.assert_allclose(rates(optim, 11), expected, rtol=1e-5)


def test_warm_up_then_cosine_or_linear():
    optim = OptimConfig(learning_rate=1.0, schedule="cosine", warmup_steps=2, min_learning_rate=0)
    expected = [0, 0.5, 1, 0.5 * (1 + np.cos(np.pi / 4)), 0.5, 0.5 * (1 - np.cos(np.pi / 4)), 0]
    np.testing.assert_allclose(rates(optim, 7), expected, atol=1e-6)
    linear = dataclasses.replace(optim, schedule="linear", min_learning_rate=0.2)
    np.testing.assert_allclose(rates(linear, 7), [0, 0.5, 1, 0.8, 0.6, 0.4, 0.2], atol=1e-6)


def test_plateau_and_constant_keep_the_rate():
    for schedule in ("plateau", "constant"):
        np.testing.assert_array_equal(
            rates(OptimConfig(schedule=schedule), 5), np.full(5, np.float32(1e-4))
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_a_step_that_is_not_finite_changes_neither_parameters_nor_moments(bad):
    optim = OptimConfig(name="adamw", weight_decay=0.1, schedule="constant")
    good = make_batch()
    spoiled = good.replace(labels=good.labels.at[2].set(bad))
    train = TrainConfig(loss="mse")
    _, before, _ = steps(optim, train, [good])
    _, after, log = steps(optim, train, [good, spoiled])
    chex.assert_trees_all_equal(
        (after.params, after.opt_state), (before.params, before.opt_state)
    )
    assert (int(after.step), int(after.skipped_in_a_row)) == (2, 1)
    assert [float(x) for x in (*log[1].sums, *log[1].weights, log[1].grad_norm)] == [0, 0, 0]
    assert [float(metrics.skipped) for metrics in log] == [0, 1]


def test_a_good_step_ends_the_count_and_too_many_bad_ones_freeze_the_seed():
    optim, train = OptimConfig(schedule="constant"), TrainConfig()
    good = make_batch()
    bad = good.replace(labels=good.labels.at[0].set(np.nan))
    _, state, _ = steps(optim, train, [bad] * 4 + [good])
    assert (int(state.step), int(state.skipped_in_a_row)) == (5, 0)
    _, frozen, log = steps(optim, train, [good] + [bad] * 5 + [good] * 3)
    _, once, _ = steps(optim, train, [good])
    chex.assert_trees_all_equal((frozen.params, frozen.opt_state), (once.params, once.opt_state))
    assert (int(frozen.step), int(frozen.skipped_in_a_row)) == (6, 5)
    assert [float(metrics.skipped) for metrics in log] == [0] + [1] * 5 + [0] * 3
