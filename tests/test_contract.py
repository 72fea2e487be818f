"""What a model declares: collections, memory, stages and what its parameters are bound to."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import rates_of
from toys import SPEC, Layers, make_batch, make_recipe, steps

from msajax.config import ModelConfig, OptimConfig, TrainConfig
from msajax.errors import UserError
from msajax.layers.basic import row_weight
from msajax.models.build import declared
from msajax.models.contract import (
    LABELS,
    MODALITIES,
    POSITIONS,
    VOCABULARY,
    Memory,
    Model,
    Prediction,
    Stage,
    Term,
    init_variables,
)
from msajax.training.model_check import check_stages
from msajax.training.step import begin, train_step


class Normed(nn.Module):
    """Batch normalisation over the rows that count, then a linear layer."""

    @nn.compact
    def __call__(self, features, masks, *, train=False):
        x = features["text"][:, 0]
        counts = row_weight(self, len(x)) > 0
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")
        x = norm(x, mask=counts[:, None])
        return Prediction(nn.Dense(1, name="out")(x), jnp.ones((len(x), 1)))


NORMED = Model(Normed, mutable=("batch_stats",))


def test_statistics_of_batches_are_carried_and_leave_out_fillers():
    full = make_batch(8)
    full = full.replace(row_weight=full.row_weight.at[5:].set(0))
    alone = jax.tree.map(lambda x: x[:5], full)
    recipe = make_recipe(module=Normed(), model=NORMED)
    filled, _ = steps(recipe, [full])
    short, _ = steps(recipe, [alone])
    found = filled[1].collections["batch_stats"]["norm"]
    x = np.float64(alone.features["text"][:, 0])
    np.testing.assert_allclose(found["mean"], 0.1 * x.mean(0), atol=1e-6)
    np.testing.assert_allclose(found["var"], 0.9 + 0.1 * x.var(0), rtol=1e-5)
    chex.assert_trees_all_close(filled[1].params, short[1].params, atol=1e-6)
    assert set(filled[1].variables) == {"params", "batch_stats"}


def test_a_skipped_step_leaves_the_statistics():
    good = make_batch()
    bad = good.replace(labels=good.labels.at[0].set(np.nan))
    states, _ = steps(make_recipe(module=Normed(), model=NORMED), [good, bad])
    chex.assert_trees_all_equal(states[2].collections, states[1].collections)
    with pytest.raises(UserError, match=r"Normed has the variable collections \['batch_stats'\]"):
        init_variables(Normed(), Model(Normed), SPEC, jax.random.key(0))  # does not declare them


def begin_memory(labels, spec):
    return {"seen": np.zeros(len(labels), np.float32), "label": np.float32(labels)}


def update_memory(memory, prediction, batch, epoch):
    chex.assert_shape(memory["seen"], (10,))
    return {
        "seen": batch.memory["seen"] + 1 + 100 * epoch,
        "label": (batch.memory["label"] + prediction.score) / 2,
    }


MEMORY = Memory(begin_memory, update_memory)


def test_memory_is_of_samples_and_a_filler_writes_nothing():
    batch = make_batch(4, first=3).replace(row=jnp.array([3, 7, 10, 10]))
    labels = np.arange(10.0)[:, None]
    recipe = make_recipe(model=Model(Layers, memory=MEMORY), passes=(2,))
    states, _ = steps(recipe, [batch] * 3, begin_memory(labels, SPEC))
    seen = np.zeros(10)
    seen[[3, 7]] = 1 + 1 + 101  # the third step is the first of epoch 1
    np.testing.assert_array_equal(states[3].memory["seen"], seen)
    first = Layers().apply({"params": states[0].params}, batch.features, batch.masks).score
    np.testing.assert_allclose(
        states[1].memory["label"][jnp.array([3, 7])], (labels[[3, 7]] + first[:2]) / 2, rtol=1e-6
    )
    others = [i for i in range(10) if i not in (3, 7)]
    np.testing.assert_array_equal(states[3].memory["label"][jnp.array(others)], labels[others])


def test_memory_is_the_same_in_parts_and_over_devices():
    batch = make_batch(8).replace(row=jnp.array([9, 1, 4, 10, 0, 2, 10, 6]))
    batch = batch.replace(row_weight=jnp.float32(batch.row < 10))
    model, memory = Model(Layers, memory=MEMORY), begin_memory(np.ones((10, 1)), SPEC)
    (_, whole), _ = steps(make_recipe(model=model), [batch], memory)
    (_, parts), _ = steps(make_recipe(model=model, accumulation_steps=4), [batch], memory)
    np.testing.assert_array_equal(parts.memory["seen"], whole.memory["seen"])
    expected = whole.memory, whole.params
    chex.assert_trees_all_close((parts.memory, parts.params), expected, atol=1e-6)

    recipe = make_recipe(model=model)
    state = begin(jnp.uint32(0), jax.tree.map(jnp.asarray, memory), recipe, SPEC)
    spread = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), batch)
    of_step = recipe, rates_of(recipe), "data"
    step = jax.vmap(lambda part: train_step(state, part, *of_step), axis_name="data")
    after, _ = jax.jit(step)(spread)
    for device in range(4):
        mine = jax.tree.map(lambda x, d=device: x[d], after)
        chex.assert_trees_all_close((mine.memory, mine.params), expected, atol=1e-6)


def test_a_stage_trains_its_parameters_on_its_terms_with_moments_of_its_own():
    def of_twice(prediction, batch):
        return jnp.abs(prediction.aux["twice"] - batch.labels).sum(), batch.row_weight.sum()

    model = Model(
        Layers,
        terms=lambda config, name, loss: {name: loss, "twice": Term(of_twice, 0.5)},
        stages=(
            Stage(trains=("embed/*",), terms=("twice",), share=0.5),
            Stage(trains=("layer_*", "embed/bias")),
        ),
    )
    recipe = make_recipe(OptimConfig(learning_rate=0.01), model=model, passes=(1, 2))
    batches = [make_batch(seed=s) for s in range(6)]
    states, log = steps(recipe, batches)
    for number, (old, new) in enumerate(zip(states[:-1], states[1:], strict=True)):
        first = number % 3 == 0
        moved = {
            f"{layer}/{kind}": bool((new.params[layer][kind] != x).any())
            for layer, of in old.params.items()
            for kind, x in of.items()
        }
        assert moved["embed/kernel"] == first
        assert moved["embed/bias"]
        assert moved["layer_0/kernel"] == moved["layer_1/bias"] == (not first)
        other = 1 if first else 0
        chex.assert_trees_all_equal(new.opt_state[other], old.opt_state[other])
        weights = np.array(log[number].weights)
        np.testing.assert_array_equal(weights, [0, 6] if first else [6, 6])
    counts = [x for x in jax.tree.leaves(states[-1].opt_state) if x.ndim == 0]
    assert sorted(map(int, counts)) == [2, 4]  # so Adam's bias is corrected by each stage's own


def test_stage_with_unknown_names_is_refused():
    objective = make_recipe().objective
    for stage, message in (
        (Stage(terms=("own",)), "names the term 'own', which there is not: choose of l1"),
        (Stage(trains=("head/*",)), "the parameter 'head/.*', which there is not: choose of"),
        (Stage(share=1.5), "share of an epoch is 1.5: must lie in"),
    ):
        with pytest.raises(UserError, match=message):
            check_stages(objective, [stage], ["embed/kernel"])


def test_what_a_stage_does_not_train_cannot_spoil_its_step():
    """The root of 0 has an infinite slope: in the first stage only where nothing moves."""

    class Rooted(nn.Module):
        @nn.compact
        def __call__(self, features, masks, *, train=False):
            zero = self.param("zero", nn.initializers.zeros, ())
            x = nn.Dense(1, name="out")(features["text"][:, 0]) + jnp.sqrt(zero)
            return Prediction(x, jnp.ones((len(x), 1)))

    model = Model(Rooted, stages=(Stage(trains=("out/*",)), Stage(trains=("zero",))))
    recipe = make_recipe(module=Rooted(), model=model, passes=(1, 1))
    _, log = steps(recipe, [make_batch()] * 2)
    assert [float(metrics.skipped) for metrics in log] == [0, 1]
    assert np.isfinite(log[0].grad_norm)


def test_guided_passes_are_two_terms_with_the_weights_of_the_configuration():
    config = ModelConfig(guidance="gradient_x_input", guidance_weight=0.7)
    loss = make_recipe(train=TrainConfig(loss="mse")).objective.terms["mse"]
    terms = declared(config).terms(config, "mse", loss)
    assert {name: term.weight for name, term in terms.items()} == {
        "coarse_mse": pytest.approx(0.3),
        "mse": 0.7,
    }
    batch = make_batch(4)
    prediction = Prediction(batch.labels, None, {"coarse_score": batch.labels + 2})
    assert float(terms["mse"].measure(prediction, batch)[0]) == 0
    assert float(terms["coarse_mse"].measure(prediction, batch)[0]) == pytest.approx(16)


def test_the_family_says_what_its_parameters_are_bound_to():
    model = declared(ModelConfig())
    assert model.bound_to("regression/kernel") == {LABELS, MODALITIES}
    assert model.bound_to("head/gate/hidden/bias") == {MODALITIES}
    assert model.bound_to("text_embedding/embedding") == {VOCABULARY}
    assert model.bound_to("audio_encoder/positions/embedding") == {POSITIONS}
    assert model.bound_to("text_encoder/projection/kernel") == set()


def test_a_term_is_annealed_by_the_step_the_epoch_or_the_share_of_the_run():
    def seen(what):
        return Term(lambda prediction, batch: (getattr(batch.progress, what) * 1.0, 1.0), 0.0)

    names = ("step", "epoch", "share")
    model = Model(
        Layers,
        terms=lambda config, name, loss: {name: loss, **{what: seen(what) for what in names}},
    )
    _, log = steps(make_recipe(model=model, passes=(2,)), [make_batch()] * 4)
    found = [[float(x) for x in metrics.sums[1:]] for metrics in log]
    np.testing.assert_allclose(found, [[t, t // 2, t / 9] for t in range(4)], rtol=1e-6)


def test_a_memory_holds_a_whole_array_that_changes_at_the_end_of_an_epoch():
    batch = make_batch(8).replace(row=jnp.array([7, 1, 4, 6, 0, 2, 3, 5]))
    nowhere = batch.replace(labels=batch.labels * jnp.nan)

    def begin_both(labels, spec):
        return {"seen": np.zeros(len(labels), np.float32), "centre": np.float32(0)}

    model = Model(
        Layers,
        memory=Memory(
            begin_both,
            lambda memory, prediction, batch, epoch: {"seen": batch.labels[:, 0]},
            whole=("centre",),
            after_epoch=lambda memory, epoch: {"centre": memory["seen"].mean() + epoch},
        ),
        terms=lambda config, name, loss: {
            name: loss,
            "own": Term(lambda p, b: (b.memory["centre"] * 1.0, 1.0), 0.0, scope="batch"),
        },
    )
    memory = begin_both(batch.labels, SPEC)
    recipe = make_recipe(model=model, passes=(2,))
    states, log = steps(recipe, [batch, nowhere, batch, batch], jax.tree.map(jnp.array, memory))
    mean = float(batch.labels.mean())
    centres = [float(state.memory["centre"]) for state in states]
    np.testing.assert_allclose(centres, [0, 0, mean, mean, mean + 1], rtol=1e-6)
    seen = [float(metrics.sums[1]) for metrics in log]
    np.testing.assert_allclose(seen, [0, 0, mean, mean], rtol=1e-6)  # the second was skipped


def test_memory_and_stages_may_depend_on_settings():
    def memory(config):
        return Memory(lambda labels, spec: {"x": np.zeros((len(labels), config.model_dim))}, dict)

    model = Model(Layers, memory=memory, stages=lambda config: (Stage(share=config.dropout_rate),))
    found = model.with_settings(ModelConfig(model_dim=6, num_heads=2, dropout_rate=0.5))
    assert found.memory.begin(np.ones((4, 1)), SPEC)["x"].shape == (4, 6)
    assert [stage.share for stage in found.stages] == [0.5]
    assert MEMORY is Model(Layers, memory=MEMORY).with_settings(ModelConfig()).memory
    with pytest.raises(UserError, match="stages = 3 must be a tuple of msajax.Stage"):
        Model(Layers, stages=lambda config: 3).with_settings(ModelConfig())
