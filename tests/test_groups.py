"""Groups of parameters and the moving average against steps of Adam that are written down."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from toys import make_batch, make_recipe, steps

from msajax.config import OptimConfig
from msajax.config.grammar import read_group
from msajax.errors import UserError
from msajax.training.groups import settings_of
from msajax.training.optimizers import StepInfo, make_optimizer

PATHS = ("embed/kernel", "embed/bias", "layer_0/kernel", "layer_1/kernel", "layer_1/bias")


def first_change(optim: OptimConfig, scale: float = 1.0) -> dict[str, np.ndarray]:
    """What the first step subtracts, by path; Adam's first step is the rate times a sign."""
    optimizer, rng = make_optimizer(optim, PATHS), np.random.default_rng(0)
    params, gradient = (
        traverse_util.unflatten_dict(
            {path: rng.normal(size=3).astype(np.float32) for path in PATHS}, sep="/"
        )
        for _ in range(2)
    )
    when = StepInfo(jnp.int32(0), jnp.float32(scale), True)
    of_step = optimizer.rates(optim, 10), when
    moved, _, _ = jax.jit(optimizer.update)(
        gradient, optimizer.init(params), params, {}, *of_step
    )
    flat = traverse_util.flatten_dict(jax.device_get(moved), sep="/")
    kept = traverse_util.flatten_dict(params, sep="/")
    return {path: (flat[path] - kept[path], kept[path]) for path in PATHS}


@pytest.mark.parametrize(
    ("groups", "scale", "expected"),
    [
        # A group has its own rate, and the last one counts.
        (("layer_*:learning_rate=0.1", "layer_1/*:learning_rate=0.001"), 1, (0.01, 0.1, 0.001)),
        # Layers decay from the last one down.
        (("*:layer_decay=0.5",), 1, (0.0025, 0.005, 0.01)),
        # The plateau's factor is that of all groups.
        (("embed/*:learning_rate=0.1",), 0.5, (0.05, 0.005, 0.005)),
    ],
)
def test_learning_rates_of_groups(groups, scale, expected):
    optim = OptimConfig(learning_rate=0.01, groups=groups)
    rates = dict(zip(("embed", "layer_0", "layer_1"), expected, strict=True))
    for path, (change, _) in first_change(optim, scale).items():
        np.testing.assert_allclose(np.abs(change), rates[path.split("/")[0]], rtol=1e-3)


def test_a_group_decays_all_that_it_names():
    optim = {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.5}
    groups = ("embed/*:weight_decay=0.25", "layer_1/kernel:weight_decay=0")
    found = settings_of(OptimConfig(**optim, groups=groups), PATHS)
    decays = dict(zip(PATHS, (0.25, 0.25, 0.5, 0.0, 0.0), strict=True))
    assert {path: settings.weight_decay for path, settings in found.items()} == decays
    plain = first_change(OptimConfig(learning_rate=0.01))
    for path, (change, before) in first_change(OptimConfig(**optim, groups=groups)).items():
        np.testing.assert_allclose(
            plain[path][0] - change, 0.01 * decays[path] * before, atol=2e-7
        )  # of differences of float32 numbers near 1


def test_a_group_warms_up_by_itself_and_by_steps_that_were_skipped_too():
    optim = OptimConfig(learning_rate=0.01, schedule="constant", groups=("embed/*:warmup_steps=4",))
    good = make_batch()
    bad = good.replace(labels=good.labels.at[0].set(np.nan))
    states, log = steps(make_recipe(optim), [bad, bad, good])
    change = jax.tree.map(lambda new, old: np.abs(new - old), states[3].params, states[2].params)
    np.testing.assert_allclose(change["embed"]["kernel"], 0.01 * 2 / 4, rtol=1e-3)
    np.testing.assert_allclose(change["layer_0"]["kernel"], 0.01, rtol=1e-3)
    assert [float(metrics.skipped) for metrics in log] == [1, 1, 0]
    assert float(log[2].learning_rate) == pytest.approx(0.01)


def test_frozen_parameters_stay_have_no_moments_and_count_in_no_norm():
    optim = OptimConfig(learning_rate=0.01, clip_norm=1e-3, groups=("layer_*:frozen=true",))
    batches = [make_batch(), make_batch(seed=1)]
    states, log = steps(make_recipe(optim), batches)
    for layer in ("layer_0", "layer_1"):
        chex.assert_trees_all_equal(states[-1].params[layer], states[0].params[layer])
    assert np.abs(states[-1].params["embed"]["kernel"] - states[0].params["embed"]["kernel"]).max()
    moments = [x.shape for x in jax.tree.leaves(states[-1].opt_state) if x.ndim]
    assert sorted(moments) == [(3,), (3,), (3, 3), (3, 3)]  # of embed alone

    def loss(embed):
        x = batches[0].features["text"][:, 0] @ embed["kernel"] + embed["bias"]
        for layer in ("layer_0", "layer_1"):
            x = x @ states[0].params[layer]["kernel"] + states[0].params[layer]["bias"]
        return jnp.abs(x - batches[0].labels).mean()

    gradient = jax.jit(jax.grad(loss))(states[0].params["embed"])
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(gradient)))
    assert float(log[0].grad_norm) == pytest.approx(norm, rel=1e-5)


def test_groups_refuse_what_they_cannot_name_or_would_leave_nothing():
    with pytest.raises(UserError, match=r"no parameter has such a path; there are embed/\*, layer"):
        settings_of(OptimConfig(groups=("encoder/*:frozen=true",)), PATHS)
    with pytest.raises(UserError, match="freezes every parameter"):
        settings_of(OptimConfig(groups=("*:frozen=true",)), PATHS)
    some = settings_of(OptimConfig(groups=("*:frozen=true", "embed/*:frozen=false")), PATHS)
    assert [path for path, settings in some.items() if not settings.frozen] == list(PATHS[:2])


def test_an_entry_that_cannot_be_read_is_refused():
    for text, message in (
        ("text_encoder/*", "must be PATTERN:setting=value, where setting is one of learning_rate"),
        (":frozen=true", "must be PATTERN:setting=value"),
        ("*:lr=1", "must be PATTERN:setting=value"),
        ("*:learning_rate=0", "learning_rate must be a finite number above 0"),
        ("*:learning_rate=nan", "learning_rate must be a finite number above 0"),
        ("*:layer_decay=1.5", r"layer_decay must lie in \(0, 1\]"),
        ("*:warmup_steps=1.5", "warmup_steps must be a whole number"),
        ("*:frozen=yes", "frozen must be true or false"),
    ):
        with pytest.raises(UserError, match=message):
            read_group(text)


def test_the_average_follows_its_recurrence_and_leaves_out_skipped_steps():
    good = make_batch()
    bad = good.replace(labels=good.labels.at[0].set(np.nan))
    optim = OptimConfig(learning_rate=0.1, average=0.5)
    states, _ = steps(make_recipe(optim), [good, bad, make_batch(seed=1), good])
    average = states[0].params
    for step, (state, taken) in enumerate(zip(states[1:], (1, 0, 1, 1), strict=True)):
        decay = min(0.5, (1 + step) / (10 + step))
        if taken:
            average = jax.tree.map(
                lambda a, p, d=decay: d * a + (1 - d) * p, average, state.params
            )
        chex.assert_trees_all_close(state.average, average, rtol=1e-6)
        chex.assert_trees_all_equal(state.variables, {"params": state.average})


def test_what_is_frozen_is_in_no_average_and_stays_to_the_last_bit():
    optim = OptimConfig(learning_rate=0.1, average=0.9, groups=("layer_*:frozen=true",))
    states, _ = steps(make_recipe(optim), [make_batch(seed=s) for s in range(3)])
    assert set(states[-1].average) == {"embed"}
    found = states[-1].variables["params"]
    chex.assert_trees_all_equal(found["embed"], states[-1].average["embed"])
    chex.assert_trees_all_equal(found["layer_0"], states[0].params["layer_0"])


def test_what_a_model_leaves_untrained_is_frozen_whatever_groups_say():
    groups = ("*:frozen=false", "embed/*:learning_rate=0.5")
    found = settings_of(OptimConfig(groups=groups), PATHS, ("embed/*",))
    assert [path for path, settings in found.items() if settings.frozen] == list(PATHS[:2])
    usual = settings_of(OptimConfig(groups=groups), PATHS)
    assert [one.group for one in found.values()] == [one.group for one in usual.values()]
    with pytest.raises(UserError, match="untrained 'other/\\*' names no parameter: choose of"):
        settings_of(OptimConfig(), PATHS, ("other/*",))
