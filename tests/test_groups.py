"""Groups of parameters and the moving average against steps of Adam that are written down."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import lines_of, run, tiny_config
from toys import make_batch, make_recipe, steps

from msajax.config import OptimConfig
from msajax.config.grammar import read_group
from msajax.errors import UserError
from msajax.training.optimizers import StepInfo, settings_of

PATHS = ("embed/kernel", "embed/bias", "layer_0/kernel", "layer_1/kernel", "layer_1/bias")


def first_change(optim: OptimConfig):
    """What the first step changes, by path; Adam's first step is the rate times a sign."""
    (before, after), _ = steps(make_recipe(optim), [make_batch()])
    change = jax.tree.map(lambda new, old: np.array(new - old), after.params, before.params)
    return {f"{layer}/{kind}": x for layer, of in change.items() for kind, x in of.items()}


def test_a_group_has_its_own_rate_and_the_last_one_counts():
    optim = OptimConfig(
        learning_rate=0.01, groups=("layer_*:learning_rate=0.1", "layer_1/*:learning_rate=0.001")
    )
    for path, change in first_change(optim).items():
        expected = {"embed": 0.01, "layer_0": 0.1, "layer_1": 0.001}[path.split("/")[0]]
        np.testing.assert_allclose(np.abs(change), expected, rtol=1e-3)


def test_layers_decay_from_the_last_one_down():
    optim = OptimConfig(learning_rate=0.01, groups=("*:layer_decay=0.5",))
    for path, change in first_change(optim).items():
        expected = {"embed": 0.0025, "layer_0": 0.005, "layer_1": 0.01}[path.split("/")[0]]
        np.testing.assert_allclose(np.abs(change), expected, rtol=1e-3)


def test_a_group_decays_all_that_it_names():
    optim = {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.5}
    groups = ("embed/*:weight_decay=0.25", "layer_1/kernel:weight_decay=0")
    found = settings_of(OptimConfig(**optim, groups=groups), PATHS)
    assert {path: settings.weight_decay for path, settings in found.items()} == {
        "embed/kernel": 0.25,
        "embed/bias": 0.25,
        "layer_0/kernel": 0.5,
        "layer_1/kernel": 0.0,
        "layer_1/bias": 0.0,
    }
    (before, after), _ = steps(make_recipe(OptimConfig(**optim, groups=groups)), [make_batch()])
    (_, plain), _ = steps(make_recipe(OptimConfig(learning_rate=0.01)), [make_batch()])
    for layer, decay in (("embed", 0.25), ("layer_0", 0.5), ("layer_1", 0.0)):
        kernel = before.params[layer]["kernel"]
        np.testing.assert_allclose(
            plain.params[layer]["kernel"] - after.params[layer]["kernel"],
            0.01 * decay * kernel,
            atol=2e-7,  # of differences of float32 numbers near 1
        )


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


def test_the_plateau_factor_is_of_all_groups():
    recipe = make_recipe(OptimConfig(learning_rate=0.01, groups=("embed/*:learning_rate=0.1",)))
    (state, _), _ = steps(recipe, [make_batch()])
    when = StepInfo(jnp.int32(0), jnp.float32(0.5), True)
    updates, _ = recipe.optimizer.update(state.params, state.opt_state, state.params, when)
    np.testing.assert_allclose(np.abs(updates["embed"]["kernel"]), 0.05, rtol=1e-3)
    np.testing.assert_allclose(np.abs(updates["layer_0"]["kernel"]), 0.005, rtol=1e-3)


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

    gradient = jax.grad(loss)(states[0].params["embed"])
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(gradient)))
    assert float(log[0].grad_norm) == pytest.approx(norm, rel=1e-5)


def test_groups_refuse_what_they_cannot_name_or_would_leave_nothing():
    with pytest.raises(UserError, match=r"no parameter has such a path; there are embed/\*, layer"):
        settings_of(OptimConfig(groups=("encoder/*:frozen=true",)), PATHS)
    with pytest.raises(UserError, match="freezes every parameter"):
        settings_of(OptimConfig(groups=("*:frozen=true",)), PATHS)
    some = settings_of(OptimConfig(groups=("*:frozen=true", "embed/*:frozen=false")), PATHS)
    assert [path for path, settings in some.items() if not settings.frozen] == list(PATHS[:2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text_encoder/*", "must be PATTERN:setting=value, where setting is one of learning_rate"),
        (":frozen=true", "must be PATTERN:setting=value"),
        ("*:lr=1", "must be PATTERN:setting=value"),
        ("*:learning_rate=0", "learning_rate must be a finite number above 0"),
        ("*:learning_rate=nan", "learning_rate must be a finite number above 0"),
        ("*:learning_rate=inf", "learning_rate must be a finite number above 0"),
        ("*:layer_decay=1.5", r"layer_decay must lie in \(0, 1\]"),
        ("*:warmup_steps=1.5", "warmup_steps must be a whole number"),
        ("*:frozen=yes", "frozen must be true or false"),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        read_group(text)


def test_decay_of_a_group_needs_adamw():
    with pytest.raises(UserError, match="weight_decay works with optim.name = adamw only"):
        OptimConfig(groups=("*:weight_decay=0.1",))


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


def test_a_run_with_groups_and_an_average_goes_on_bit_by_bit(tmp_path):
    """It pauses after an epoch; best parameters are those of the average."""
    config = tiny_config(
        optim__average=0.9,
        optim__groups=("*encoder/*:frozen=true", "head/*:learning_rate=0.001"),
        train__transforms=("modality_dropout:*=0.3", "feature_noise:*=0.1"),
        model__n_layers_fuse=0,
        train__epochs=2,
    )
    whole = run(config, tmp_path / "whole")
    assert not run(config, tmp_path / "parts", stop_after_epochs=1).finished
    again = run(config, tmp_path / "parts")
    assert again.finished
    chex.assert_trees_all_equal(jax.device_get(again.variables), jax.device_get(whole.variables))
    assert lines_of(tmp_path / "parts") == lines_of(tmp_path / "whole")


def test_what_is_frozen_is_in_no_average_and_stays_to_the_last_bit():
    optim = OptimConfig(learning_rate=0.1, average=0.9, groups=("layer_*:frozen=true",))
    states, _ = steps(make_recipe(optim), [make_batch(seed=s) for s in range(3)])
    assert set(states[-1].average) == {"embed"}
    found = states[-1].variables["params"]
    chex.assert_trees_all_equal(found["embed"], states[-1].average["embed"])
    chex.assert_trees_all_equal(found["layer_0"], states[0].params["layer_0"])
