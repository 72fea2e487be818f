"""dRoFE (XAIguiFormer, R31): the formula, what a rotation keeps, where it stands in a model."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from msajax.config import DataConfig, ModelConfig, SyntheticConfig
from msajax.corpus.synthetic import generate
from msajax.errors import UserError
from msajax.layers.attention import MultiHeadAttention
from msajax.layers.basic import Dropout
from msajax.layers.positions import drofe
from msajax.layers.transformer import ModalityEncoder, TransformerBlock
from msajax.models.build import build_model
from msajax.preparation.fit import fit
from msajax.spec import CorpusSpec

B, T, D, WIDTH = 3, 4, 16, 7
RNG = np.random.default_rng(0)
CONFIG = ModelConfig(
    model_dim=D, num_heads=2, ff_dim=12, n_layers_mod=1, dropout_rate=0.25, positions="drofe"
)


def people(*, age=None, gender=None):
    """Band edges, age and gender of every step, float32 `[B, T, 4]`."""
    lo = RNG.uniform(0.5, 45, (B, T))
    ages = RNG.uniform(18, 80, (B, T)) if age is None else np.full((B, T), age)
    genders = RNG.integers(0, 2, (B, T)) if gender is None else np.full((B, T), gender)
    return np.stack([lo, lo + RNG.uniform(1, 15, (B, T)), ages, genders], -1).astype(np.float32)


DEMOGRAPHICS = people()
FEATURES = np.concatenate(
    [DEMOGRAPHICS, RNG.normal(size=(B, T, WIDTH - 4)).astype(np.float32)], -1
)
MASK = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], bool)


def numpy_factors(demographics, head_dim):
    """C and S in float64, one token and one angle at a time."""
    theta = np.pi * np.linspace(1, 5, head_dim // 4)
    factors = np.zeros((2, B, T, head_dim))
    for b, t in np.ndindex(B, T):
        lo, hi, age, gender = np.float64(demographics[b, t])
        angles = []
        for j in range(head_dim // 4):
            angles += [lo * theta[j], lo * theta[j], hi * theta[j], hi * theta[j]]
        factors[:, b, t] = age * np.cos(angles) + gender, age * np.sin(angles) + gender
    return factors


def numpy_rotate(x, factors):
    """`x C + rot(x) S` of `[B, T, H, dh]`, one pair after another."""
    turned = np.zeros(x.shape)
    for i in range(0, x.shape[-1], 2):
        turned[..., i], turned[..., i + 1] = -x[..., i + 1], x[..., i]
    return x * factors[0][:, :, None] + turned * factors[1][:, :, None]


# --- the formula ---


@pytest.mark.parametrize("head_dim", [4, 8, 12, 32])
def test_factors_are_those_of_the_formula_to_the_precision_of_float32(head_dim):
    got = drofe(DEMOGRAPHICS, head_dim, 1)
    expected = numpy_factors(DEMOGRAPHICS, head_dim)
    # Up to 900 radians: in floats alone an angle would be off by 3e-5, times an age of 80.
    error = np.abs(np.array(got) - expected) / DEMOGRAPHICS[..., 2:3]
    assert error.max() < 1.5e-6


def test_a_unit_of_100_years_is_an_age_a_hundred_times_smaller():
    younger = DEMOGRAPHICS.copy()
    younger[..., 2] /= 100
    for got, expected in zip(drofe(DEMOGRAPHICS, 8, 100), drofe(younger, 8, 1), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


# --- in a model ---


def test_attention_rotates_queries_and_keys_of_every_head_but_not_values():
    module = MultiHeadAttention(2, 8, 0.0, jnp.float32)
    x = RNG.normal(size=(B, T, 6)).astype(np.float32)
    young = people(age=1.5)
    shapes = jax.eval_shape(
        functools.partial(module.init, train=False), jax.random.key(0), x, x, (MASK,)
    )["params"]
    params = jax.tree.map(lambda w: RNG.normal(size=w.shape).astype(np.float32) / 3, shapes)
    apply = jax.jit(functools.partial(module.apply, train=False))
    got = apply({"params": params}, x, x, (MASK,), rotation=drofe(young, 8, 1))

    p = jax.tree.map(np.float64, params)
    q, k, v = (
        np.einsum("btd,dhe->bthe", x, p[name]["kernel"]) + p[name]["bias"]
        for name in ("query", "key", "value")
    )
    q, k = (numpy_rotate(y, numpy_factors(young, 8)) for y in (q, k))
    scores = np.einsum("bqhe,bkhe->bhqk", q, k) / np.sqrt(8)
    weights = scipy.special.softmax(np.where(MASK[:, None, None], scores, -1e30), -1)
    expected = np.einsum("bhqk,bkhe,hed->bqd", weights, v, p["out"]["kernel"]) + p["out"]["bias"]
    expected = np.where(MASK.any(1)[:, None, None], expected, 0)
    np.testing.assert_allclose(got, expected, atol=2e-5)


ENCODER = ModalityEncoder(CONFIG, T)
run_encoder = jax.jit(functools.partial(ENCODER.apply, train=False))


@functools.cache
def encoder_params():
    init = jax.jit(functools.partial(ENCODER.init, train=False))
    return init(jax.random.key(0), FEATURES, MASK)["params"]


def test_the_first_four_features_rotate_and_the_others_are_projected():
    params = encoder_params()
    assert set(params) == {"projection", "blocks_0"}
    assert params["projection"]["kernel"].shape == (WIDTH - 4, D)
    kept = np.where(MASK[..., None], FEATURES, 0)
    x = np.float32(kept[..., 4:] @ np.float64(params["projection"]["kernel"]))  # no bias yet
    expected = jax.jit(functools.partial(TransformerBlock(CONFIG).apply, train=False))(
        {"params": params["blocks_0"]}, x, x, (MASK,), rotation=drofe(kept[..., :4], D // 2, 100)
    )
    got = run_encoder({"params": params}, FEATURES, MASK)
    np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize(("unit", "least", "most"), [(1.0, 0.98, 1.0), (100.0, 0.0, 0.005)])
def test_ages_in_years_saturate_attention_and_ages_in_centuries_do_not(unit, least, most):
    sizes = SyntheticConfig(
        *(100, 2, 2), ("brain",), (36,), (9,), absent_share=0.0, task="connectome"
    )
    split = generate(sizes).corpus.split("train")
    # The sizes of `configs/connectome_guided.py`, but for two of its four layers.
    config = ModelConfig(
        n_layers_mod=2,
        ff_dim=512,
        norm="rmsnorm",
        norm_eps=1e-5,
        positions="drofe",
        drofe_age_unit=unit,
    )
    module, inputs = ModalityEncoder(config, 9), (split.features["brain"], split.masks["brain"])
    init = jax.jit(functools.partial(module.init, train=False))
    apply = jax.jit(functools.partial(module.apply, train=False, mutable="intermediates"))
    _, kept = apply(init(jax.random.key(0), *inputs), *inputs)
    for i in range(2):
        (maps,) = kept["intermediates"][f"blocks_{i}"]["attention"]["attention"]
        saturated = (np.asarray(maps).max(axis=-1) > 0.99).mean()  # of the rows of all heads
        assert least <= saturated <= most


def test_padded_demographics_never_enter():
    outputs = [
        run_encoder(
            {"params": encoder_params()}, np.where(MASK[..., None], FEATURES, filler), MASK
        )
        for filler in np.float32([0, 1e30, np.nan])
    ]
    np.testing.assert_array_equal(outputs[1], outputs[0])
    np.testing.assert_array_equal(outputs[2], outputs[0])


def test_input_dropout_leaves_the_demographics_alone():
    shapes = []

    def record(call, args, kwargs, context):
        if isinstance(context.module, Dropout) and context.method_name == "__call__":
            shapes.append(args[0].shape)
            return args[0]
        return call(*args, **kwargs)

    config = dataclasses.replace(CONFIG, input_dropout=0.5)
    run = functools.partial(ModalityEncoder(config, T).apply, train=True)
    with nn.intercept_methods(record):
        jax.eval_shape(run, {"params": encoder_params()}, FEATURES, MASK)
    assert shapes[0] == (B, T, WIDTH - 4)


# --- refusals ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 8}, "needs heads whose size is a multiple of 4, not 2"),
        ({"head_dim": 6}, "needs heads whose size is a multiple of 4, not 6"),
        ({"mixer": "gru"}, "a recurrent model.mixer has none"),
        ({"n_layers_mod": 0}, "set model.n_layers_mod to 1 or more"),
    ],
)
def test_drofe_without_anything_to_rotate_is_refused(settings, message):
    with pytest.raises(UserError, match=f"^model.positions = 'drofe': .*{message}"):
        dataclasses.replace(CONFIG, **settings)
    own = [f"brain.{key}={value}" for key, value in settings.items()]
    with pytest.raises(UserError, match=message):
        ModelConfig(model_dim=D, overrides=("brain.positions=drofe", *own))


@pytest.mark.parametrize("width", [3, 4])
def test_a_modality_with_nothing_left_to_project_is_refused(width):
    with pytest.raises(UserError, match=f"'brain', which is {width} wide: nothing is left"):
        build_model(CONFIG, CorpusSpec(("brain",), (width,), (T,)))
    build_model(CONFIG, CorpusSpec(("brain",), (5,), (T,)))


@pytest.mark.parametrize("standardize", [("auto",), ("brain",), ("text", "brain")])
def test_a_standardised_modality_is_refused(standardize):
    sizes = {"train": 4, "valid": 4, "test": 4, "widths": (6, 6), "lengths": (3, 3)}
    corpus = generate(SyntheticConfig(modalities=("text", "brain"), **sizes)).corpus
    model = ModelConfig(model_dim=D, overrides=("brain.positions=drofe",))
    with pytest.raises(UserError, match=r"^data.standardize = .* covers 'brain', .* in Hz"):
        fit(corpus, DataConfig(standardize=standardize), model)
    for fine in ((), ("text",)):
        assert set(fit(corpus, DataConfig(standardize=fine), model).statistics) == set(fine)


def test_drofe_of_token_ids_is_refused():
    spec = CorpusSpec(("text",), (0,), (4,), vocabularies=(9,))
    with pytest.raises(UserError, match="those of 'text' are token ids: choose learned"):
        build_model(ModelConfig(positions="drofe"), spec)
