"""Every optimiser against optax's own, and what all of them promise."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toys import make_batch, make_recipe, steps

from msajax.config import Config, ModelConfig, OptimConfig
from msajax.errors import UserError
from msajax.spec import CorpusSpec
from msajax.training.optimizers import AVERAGE, OPTIMIZERS, StepInfo, make_optimizer
from msajax.training.plan import plan

RATE, DECAY, WARMUP, STEPS = 0.05, 0.1, 3, 6
PATHS = ("embed/kernel", "layer_0/kernel", "layer_1/kernel")
SMALL = {"model_dim": 4, "num_heads": 1, "ff_dim": 4}
WARM = optax.linear_schedule(0, RATE, WARMUP)
ALL = (
    ("adam", {}, optax.chain(optax.add_decayed_weights(DECAY), optax.adam(WARM))),
    ("adamw", {"b1": 0.8, "b2": 0.95}, optax.adamw(WARM, 0.8, 0.95, weight_decay=DECAY)),
    (
        "sgd",
        {"momentum": 0.7, "nesterov": True},
        optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(WARM, 0.7, nesterov=True)),
    ),
    ("lion", {}, optax.lion(WARM, weight_decay=DECAY)),
    (
        "schedule_free",
        {"b1": 0.95},
        optax.contrib.schedule_free(
            optax.chain(
                optax.scale_by_rms(0.999, 1e-8, eps_in_sqrt=False, bias_correction=True),
                optax.add_decayed_weights(DECAY),
                optax.scale_by_learning_rate(WARM),
            ),
            lambda count: WARM(count - 1),  # it counts from 1
            0.95,
        ),
    ),
)


def draw(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    names = {path.split("/")[0]: rng.normal(size=(3, 2)).astype(np.float32) for path in PATHS}
    return {name: {"kernel": jnp.asarray(x)} for name, x in names.items()}


def config_of(name: str, **settings) -> OptimConfig:
    return OptimConfig(
        name=name,
        learning_rate=RATE,
        weight_decay=DECAY,
        warmup_steps=WARMUP,
        schedule="constant",
        **settings,
    )


@pytest.mark.parametrize(("name", "settings", "reference"), ALL, ids=[name for name, *_ in ALL])
def test_each_is_optax_s_and_a_step_that_is_not_taken_leaves_its_state(name, settings, reference):
    config = config_of(name, **settings)
    optimizer = make_optimizer(config, PATHS)
    rates, update = optimizer.rates(config, STEPS), jax.jit(optimizer.update)
    params = expected = average = draw(0)
    state, expected_state = optimizer.init(params), reference.init(params)
    for step in range(STEPS):
        gradient = draw(1 + step)
        when = StepInfo(jnp.int32(step), jnp.float32(1), jnp.bool_(True))
        params, state, average = update(gradient, state, params, average, rates, when)
        change, expected_state = reference.update(gradient, expected_state, expected)
        expected = optax.apply_updates(expected, change)
        chex.assert_trees_all_close(params, expected, rtol=2e-6, atol=1e-7)
    if AVERAGE in OPTIMIZERS[name].keeps:
        expected = optax.contrib.schedule_free_eval_params(expected_state, expected)
        chex.assert_trees_all_close(average, expected, rtol=1e-5)
    bad = jax.tree.map(lambda x: x * jnp.nan, params)
    not_taken = when._replace(taken=jnp.bool_(False))
    _, after, kept = update(bad, state, params, average, rates, not_taken)
    chex.assert_trees_all_equal((after, kept), (state, average))


def test_every_optimiser_is_here():
    assert [name for name, *_ in ALL] == list(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_have_their_rates_and_what_is_frozen_stays(name):
    groups = ("layer_0/*:learning_rate=0.01", "layer_1/*:frozen=true", "embed/*:layer_decay=0.5")
    optim = OptimConfig(name=name, learning_rate=0.02, schedule="constant", groups=groups)
    (first, last), _ = steps(make_recipe(optim), [make_batch()])
    chex.assert_trees_all_equal(last.params["layer_1"], first.params["layer_1"])
    assert "layer_1" not in last.opt_state[next(iter(OPTIMIZERS[name].keeps))]
    alone = OptimConfig(name=name, learning_rate=0.01, schedule="constant")
    (_, expected), _ = steps(make_recipe(alone), [make_batch()])
    chex.assert_trees_all_close(last.params["layer_0"], expected.params["layer_0"], rtol=1e-6)
    assert "layer_1" not in last.average
    if AVERAGE in OPTIMIZERS[name].keeps:
        chex.assert_trees_all_equal(last.variables["params"]["embed"], last.average["embed"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adm"}, "optim.name = 'adm': must be one of adam, adamw, sgd, lion, sche"),
        ({"name": "sgd", "b1": 0.8}, "optim.b1 = 0.8: .*'sgd' does not read it, but optim.mom"),
        ({"nesterov": True}, "'adam' does not read it, but optim.b1, optim.b2, optim.eps"),
        ({"name": "schedule_free", "average": 0.9}, "has an average of its own; leave it 0"),
    ],
)
def test_what_an_optimiser_does_not_read_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make_optimizer(OptimConfig(**settings), PATHS)


@pytest.mark.parametrize(
    ("name", "moments", "average"),
    [("adam", 2, 0), ("adamw", 2, 0), ("sgd", 1, 0), ("lion", 1, 0), ("schedule_free", 2, 1)],
)
def test_the_plan_counts_what_each_keeps(name, moments, average):
    config = Config(model=ModelConfig(**SMALL), optim=OptimConfig(name=name))
    found = plan(config, CorpusSpec(("text",), (3,), (2,)))
    size = 4 * found["parameters"]["moving"]
    assert found["memory"]["moments"] == moments * size
    assert found["memory"]["average"] == average * size
