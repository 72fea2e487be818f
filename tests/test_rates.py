"""Other rates need no other program, and do what the same numbers do as constants."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import SMALLEST, run, tiny_config
from tiny_text import architecture

import msajax
from msajax.config import Config, ModelConfig
from msajax.encoders.module import make_encoder
from msajax.layers.basic import RATES, Dropout, dropout_numbers
from msajax.models.build import build_model
from msajax.spec import CorpusSpec
from msajax.training import programs
from msajax.training.step import make_rates, structure_of

ON = {
    "optim__name": "adamw",
    "optim__learning_rate": 1e-3,
    "optim__warmup_steps": 2,
    "optim__weight_decay": 0.01,
    "optim__clip_norm": 1.0,
    "optim__groups": ("regression/*:learning_rate=0.002", "*:layer_decay=0.9"),
    "model__dropout_rate": 0.1,
    "model__input_dropout": 0.2,
    "model__overrides": ("text.ffn_dropout=0.3",),
    "train__transforms": ("step_dropout:*=0.1", "feature_noise:text=0.2"),
    "train__epochs": 1,
}
OTHERS = {
    "optim__learning_rate": 2e-3,
    "optim__min_learning_rate": 1e-5,
    "optim__warmup_steps": 0,
    "optim__weight_decay": 0.1,
    "optim__clip_norm": 0.5,
    "optim__groups": ("regression/*:learning_rate=0.1", "*:layer_decay=1"),
    "model__dropout_rate": 0.2,
    "model__input_dropout": 0.1,
    "model__overrides": ("text.ffn_dropout=0.5",),
    "train__transforms": ("step_dropout:*=0.3", "feature_noise:text=0.1"),
    "train__epochs": 2,
}


@pytest.mark.parametrize(("schedule", "mode"), [("cosine", "jit"), ("constant", "pmap")])
def test_a_second_trial_of_other_rates_compiles_nothing_but_from_0_it_does(
    schedule, mode, tmp_path
):
    compiled = []

    def note(event, _, **about):
        if "/core/compile/" in event:
            compiled.append(about["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(note)
    same = {**SMALLEST, "optim__schedule": schedule, "mesh__mode": mode}
    first = run(tiny_config(**same, **ON), tmp_path / "first")
    assert {"train_steps", "_fun"} & set(compiled)  # as pmap calls it
    compiled.clear()
    second = run(tiny_config(**same, **OTHERS | {"optim__name": "adamw"}), tmp_path / "second")
    assert compiled == []
    kernels = [x.variables["params"]["regression"]["kernel"] for x in (first, second)]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-2  # by another rate
    without = tiny_config(**same, **ON | {"model__input_dropout": 0.0})
    assert run(without, tmp_path / "without").finished
    jax.monitoring.unregister_event_duration_listener(note)
    assert {"train_steps", "_fun"} & set(compiled)


def test_trials_of_a_sweep_over_rates_and_its_winner_compile_one_program_of_steps(tmp_path):
    programs.jit_programs.cache_clear()  # another file may have had these
    compiled = []

    def note(event, _, **about):
        if "backend_compile" in event:
            compiled.append(about["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(note)
    config = tiny_config(**SMALLEST, train__seeds=1, train__epochs=2)
    other = {"optim.learning_rate": 1e-2, "model.dropout_rate": 0.3, "train.epochs": 3}
    result = msajax.sweep(config, [{}, other], tmp_path / "sweep", trial_seeds=1)
    jax.monitoring.unregister_event_duration_listener(note)
    assert [trial["ended"] for trial in result["trials"]] == ["epochs", "epochs"]
    assert compiled.count("jit(train_steps)") == 1


def test_what_is_0_and_what_is_frozen_is_structure_and_no_other_value_is():
    def structure(**settings):
        return structure_of(tiny_config(**{**ON, **settings}))

    assert structure() == structure(**OTHERS | {"train__epochs": 1}, optim__plateau_factor=0.1)
    for change in (
        {"model__dropout_rate": 0.0},
        {"model__attention_dropout": 0.0},
        {"model__overrides": ("text.ffn_dropout=0",)},
        {"optim__weight_decay": 0.0},
        {"optim__clip_norm": 0.0},
        {"optim__groups": (*ON["optim__groups"], "head/*:frozen=true")},
        {"train__transforms": ("step_dropout:*=0", "feature_noise:text=0.2")},
    ):
        assert structure(**change) != structure()


def dropout_rates(config):
    return make_rates(Config(model=config), None).dropout


def test_every_site_reads_its_own_rate_and_a_constant_stays_one():
    config = ModelConfig(
        dropout_rate=0.1, attention_dropout=0.2, overrides=("text.ffn_dropout=0.3",)
    )
    assert dropout_rates(config) == {
        "dropout_rate": dropout_numbers(0.1),
        "attention_dropout": dropout_numbers(0.2),
        "text.ffn_dropout": dropout_numbers(0.3),
    }
    text = config.encoder_of("text")
    sites = [text.rate(name).site for name in ("ffn_dropout", "attention_dropout", "input_dropout")]
    assert sites == ["text.ffn_dropout", "attention_dropout", "input_dropout"]
    assert config.rate("projection_dropout").site == "dropout_rate"

    class Two(nn.Module):
        @nn.compact
        def __call__(self, x):
            own = Dropout(config.rate("attention_dropout"))(x, train=True)
            return own, Dropout(0.3)(x, train=True)

    x, key = jnp.ones((4, 5000)), {"dropout": jax.random.key(0)}
    as_constants = Two().apply({}, x, rngs=key)
    for share, rates in ((0.2, {}), (0.7, {"attention_dropout": dropout_numbers(0.7)})):
        found = Two().apply({RATES: rates}, x, rngs=key)
        chex.assert_trees_all_equal(found[1], as_constants[1])
        assert (np.array(found[0]) == 0).mean() == pytest.approx(share, abs=0.02)
        np.testing.assert_allclose(found[0].max(), 1 / (1 - share), rtol=1e-6)
    found = Two().apply({RATES: {"attention_dropout": dropout_numbers(0.2)}}, x, rngs=key)
    chex.assert_trees_all_equal(found, as_constants)


def test_an_encoder_drops_by_the_rates_of_its_folder_whatever_the_model_s_are():
    a = architecture(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.1)
    encoder = make_encoder(a, "float32")
    ids, mask = jnp.array([[2, 5, 6, 3]]), jnp.ones((1, 4), bool)
    params = encoder.init(jax.random.key(0), ids, mask, train=False)
    rates = dict.fromkeys(("dropout_rate", "attention_dropout"), dropout_numbers(0.9))

    @jax.jit
    def both():
        rngs = {"dropout": jax.random.key(1)}
        one = encoder.apply(params, ids, mask, train=True, rngs=rngs)
        return one, encoder.apply({**params, RATES: rates}, ids, mask, train=True, rngs=rngs)

    chex.assert_trees_all_equal(*both())


@pytest.mark.parametrize(
    "settings",
    [
        {"guidance": "gradient_x_input", "overrides": ("text.ffn_dropout=0.3",)},
        {"mixer": "gru", "fusion": "pooled", "attention_dropout": 0.4, "input_dropout": 0.2},
    ],
)
def test_no_dropout_of_a_model_keeps_the_number_that_stands_for_its_rate(settings):
    small = {"model_dim": 4, "num_heads": 1, "ff_dim": 4, "n_layers_mod": 1, "dropout_rate": 0.1}
    config = ModelConfig(**small, **settings)
    spec = CorpusSpec(("text", "audio"), (3, 2), (2, 2))
    inputs = {m: jnp.ones((3, 2, spec.width(m))) for m in spec.modalities}
    masks = {m: jnp.ones((3, 2), bool) for m in spec.modalities}
    key = jax.random.key(0)
    params = jax.eval_shape(build_model(config, spec).init, key, inputs, masks)["params"]

    def traced(config: ModelConfig) -> str:
        """The program, in which a rate that is no argument would be a number."""

        def loss(params, rates):
            variables, rngs = {"params": params, RATES: rates}, {"dropout": key}
            model = build_model(config, spec)
            return model.apply(variables, inputs, masks, train=True, rngs=rngs).score.sum()

        return str(jax.make_jaxpr(jax.grad(loss))(params, dropout_rates(config)))

    program = traced(config)
    assert program == traced(config.structure)
    assert str(dropout_numbers(config.dropout_rate)[0]) not in program
