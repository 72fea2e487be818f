"""Attributions against closed forms, numpy in float64, and the promise that they add up."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msajax.config import ModelConfig
from msajax.layers.prng import dropout_key
from msajax.models.attribution import deeplift, gradient_x_input, integrated_gradients
from msajax.models.build import build_model
from msajax.spec import CorpusSpec

RNG = np.random.default_rng(0)
B, N, HIDDEN = 4, 5, 7
X = RNG.normal(size=(B, N)).astype(np.float32)
BASELINE = RNG.normal(size=(B, N)).astype(np.float32)
W1 = RNG.normal(size=(N, HIDDEN)).astype(np.float32)
W2 = RNG.normal(size=HIDDEN).astype(np.float32)
METHODS = {
    "gradient_x_input": gradient_x_input,
    "integrated_gradients": functools.partial(integrated_gradients, steps=3),
    "deeplift": deeplift,
}


def attribute(method, function, x=X, baseline=BASELINE):
    """The attributions, as one program."""
    method = METHODS.get(method, method)
    return np.asarray(jax.jit(functools.partial(method, function))(x, baseline))


def difference(function, x=X, baseline=BASELINE):
    return np.float64(function(x)) - np.float64(function(baseline))


# --- closed forms ---


@pytest.mark.parametrize("method", METHODS)
def test_of_a_linear_function_every_method_gives_weight_times_difference(method):
    got = attribute(method, lambda x: x @ W2[:N] + 3)
    np.testing.assert_allclose(got, W2[:N] * (X - BASELINE), rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "share"),
    [("gradient_x_input", 1), ("integrated_gradients", 0.5), ("deeplift", 0.5)],
)
def test_a_product_is_shared_equally_from_zero_and_counted_twice_by_the_gradient(method, share):
    got = attribute(method, lambda x: x[:, 0] * x[:, 1], baseline=np.zeros_like(X))
    product = X[:, 0] * X[:, 1]
    expected = np.stack([share * product, share * product] + [0 * product] * (N - 2), 1)
    np.testing.assert_allclose(got, expected, rtol=2e-6)


def perceptron(x):
    return jnp.tanh(x @ W1) @ W2


def numpy_slope(x):
    """The gradient of the perceptron, float64."""
    return (1 - np.tanh(np.float64(x) @ W1) ** 2) * W2 @ W1.T


def test_gradient_x_input_of_a_perceptron_is_that_of_finite_differences():
    step, x = 1e-5, np.float64(X)
    slope = np.zeros_like(x)
    for i in range(N):
        shift = step * np.eye(N)[i]
        up, down = (np.tanh((x + s) @ W1) @ W2 for s in (shift, -shift))
        slope[:, i] = (up - down) / (2 * step)
    got = attribute("gradient_x_input", perceptron)
    np.testing.assert_allclose(got, slope * (x - BASELINE), atol=2e-6)


def test_integrated_gradients_of_a_perceptron_are_the_mean_over_the_middles_of_the_path():
    change = np.float64(X) - BASELINE
    slopes = [numpy_slope(BASELINE + share * change) for share in (1 / 6, 3 / 6, 5 / 6)]
    got = attribute("integrated_gradients", perceptron)
    np.testing.assert_allclose(got, np.mean(slopes, 0) * change, atol=3e-6)


def test_deeplift_of_a_perceptron_is_the_rescale_rule():
    z, z0 = np.float64(X) @ W1, np.float64(BASELINE) @ W1
    multiplier = (np.tanh(z) - np.tanh(z0)) / (z - z0)  # [B, hidden]
    expected = (multiplier * W2) @ W1.T * (X - np.float64(BASELINE))
    np.testing.assert_allclose(attribute("deeplift", perceptron), expected, atol=3e-6)


# --- DeepLIFT adds up, whatever the function is made of ---

FUNCTIONS = {
    "exp": jnp.exp,
    "log": lambda x: jnp.log(x + 4),
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc,
    "sine and cosine": lambda x: jnp.sin(x) + jnp.cos(3 * x),
    "square": jnp.square,
    "cube": lambda x: x**3,
    "inverse": lambda x: (x + 4) ** -2,
    "roots": lambda x: jnp.sqrt(x + 4) - jax.lax.rsqrt(x + 4),
    "relu": nn.relu,
    "clipped": lambda x: jnp.minimum(jnp.maximum(x, -0.5), 0.7),
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_tanh": nn.gelu,
    "swish": nn.swish,
    "quotient": lambda x: x[:, ::-1] / (x + 4),
    "reciprocal": lambda x: 1 / (x + 4),
    "softmax": jax.nn.softmax,
    "log of a sum": lambda x: jnp.log(jnp.exp(x).sum(1, keepdims=True)) + 0 * x,
    "largest": lambda x: x.max(1, keepdims=True) * x,
    "product with itself": lambda x: jnp.einsum("bi,bj->bij", x, x) @ W2[:N],
    "masked": lambda x: jnp.where(np.arange(N) < 3, x * x, 7.0),
    "pieces": lambda x: jnp.concatenate([x[:, :2] ** 2, jnp.stack([x[:, 2] * x[:, 3]] * 3, 1)], 1),
}
WEIGHTS = RNG.normal(size=N).astype(np.float32)


@pytest.fixture(scope="module")
def of_functions():
    """What DeepLIFT gives for every function, its values and its gradients, by one program.

    Rows of a batch: from a baseline to a point, one point, and two points that nearly meet.
    """
    near = X + np.float32(1e-2) * np.sign(X)
    x, baseline = np.concatenate([X, X, near]), np.concatenate([BASELINE, X, X])

    @jax.jit
    def every(x, baseline, middle):
        found = {}
        for name, part in FUNCTIONS.items():
            function = lambda x, part=part: part(x) @ WEIGHTS  # noqa: E731
            slope = gradient_x_input(function, middle, middle - 1)
            ends = function(x), function(baseline)
            found[name] = deeplift(function, x, baseline), slope, *ends
        return found

    return near - X, jax.device_get(every(x, baseline, (X + near) / 2))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_deeplift_adds_up_and_becomes_the_gradient(name, of_functions):
    change, found = of_functions
    every, middle, here, there = found[name]
    got, here, there = every[:B], np.float64(here[:B]), np.float64(there[:B])
    size = np.abs(got).sum(1) + np.abs(here) + np.abs(there)
    error = np.abs(np.float64(got).sum(1) - (here - there))
    assert (error <= 4e-7 * size).all()
    assert np.abs(got).sum() > 0.1
    # One point: no difference, and nothing that is not finite.
    np.testing.assert_array_equal(every[B : 2 * B], np.zeros_like(X))
    # Two points that nearly meet: the slope between them is that in their middle.
    nearly = every[2 * B :] / change
    np.testing.assert_allclose(nearly, middle, atol=3e-4 * max(1, np.abs(middle).max()))


def test_a_slope_is_exact_at_every_distance():
    distances = np.repeat([0.0, 1e-8, 1e-4, 1e-2, 1.0], 5)[:, None]
    x = np.float64(np.float32([[-3.0], [-0.2], [0.0], [0.3], [2.0]] * 5))
    baseline = np.float64(np.float32(x + distances))
    got = attribute("deeplift", lambda x: jnp.tanh(x)[:, 0], np.float32(x), np.float32(baseline))
    expected = np.tanh(x) - np.tanh(baseline)
    np.testing.assert_allclose(got, expected, rtol=4e-5, atol=2.4e-7)


def test_a_multiplier_is_right_where_rounding_hides_the_change_of_the_output():
    x = np.float32([[1e-9], [1e-7], [3e-5]])
    multiplier = attribute("deeplift", lambda x: jnp.exp(x)[:, 0], x, np.zeros_like(x)) / x
    np.testing.assert_allclose(multiplier, np.expm1(np.float64(x)) / x, rtol=1e-6)


# --- and stays of the size of what it explains ---


@pytest.mark.parametrize("apart", [0, 30, 300, 3000])
def test_a_softmax_may_change_by_any_amount(apart):
    values = RNG.normal(size=N).astype(np.float32)

    def mix(x):
        return jax.nn.softmax(x) @ values

    x = X + apart * np.arange(N, dtype=np.float32)
    got = attribute("deeplift", mix, x)
    # Scores that differ by thousands carry themselves an error of that size.
    np.testing.assert_allclose(got.sum(1), difference(mix, x), atol=4e-6 + 1e-7 * apart)
    assert np.abs(got).sum(1).max() < 10 * np.abs(values).max()


def test_what_a_softmax_does_not_see_gets_no_multiplier():
    values = RNG.normal(size=N).astype(np.float32)
    shift = np.float32([[0], [2], [50], [400]])  # of all scores of a sample

    def multiplier(x):
        return attribute("deeplift", lambda x: jax.nn.softmax(x) @ values, x) / (x - BASELINE)

    np.testing.assert_allclose(multiplier(X + shift), multiplier(X), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(multiplier(X).sum(1), 0, atol=1e-6)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_a_stack_of_norms_at_a_baseline_of_zeros_does_not_explode(norm):
    """There 1 / sqrt(variance + eps) is 1000, against 1 at the input."""

    def normal(x):
        x = x - x.mean(-1, keepdims=True) if norm == "layernorm" else x
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)

    def function(x):
        for _ in range(4):
            x = normal(x) + 0.1 * jnp.tanh(x)
        return x @ WEIGHTS

    got = attribute("deeplift", function, baseline=np.zeros_like(X))
    change = difference(function, X, np.zeros_like(X))
    np.testing.assert_allclose(got.sum(1), change, atol=1e-5)
    assert np.abs(got).max() < 10


# --- batches, constants, refusals ---


def test_a_sample_is_explained_alone_and_under_vmap_as_in_its_batch():
    def function(x):
        return (jax.nn.softmax(jnp.tanh(x @ W1)) * (x @ W1)).sum(1)

    together = attribute("deeplift", function)
    for i in range(B):
        alone = attribute("deeplift", function, X[i : i + 1], BASELINE[i : i + 1])
        np.testing.assert_allclose(alone[0], together[i], atol=1e-6)

    def scaled(scale):  # a parameter that is mapped over, inside the function
        return deeplift(lambda x: function(scale * x), X, BASELINE)

    for map_over in (jax.vmap, lambda f: functools.partial(jax.lax.map, f)):
        several = jax.jit(map_over(scaled))(jnp.float32([1, 2]))
        np.testing.assert_allclose(several[0], together, atol=1e-6)
        np.testing.assert_allclose(several[1], jax.jit(scaled)(2.0), atol=2e-6)


def test_what_does_not_depend_on_the_input_is_a_constant_of_any_kind():
    def function(x):
        keep = jax.random.bernoulli(jax.random.key(3), 0.5, x.shape)  # draws in a loop
        order = jnp.argsort(jnp.asarray(WEIGHTS))
        return jnp.where(keep, 2 * jnp.tanh(x), 0)[:, order] @ WEIGHTS

    got = attribute("deeplift", function)
    keep = np.asarray(jax.random.bernoulli(jax.random.key(3), 0.5, X.shape))
    change = np.tanh(np.float64(X)) - np.tanh(np.float64(BASELINE))
    weights = WEIGHTS[np.argsort(np.argsort(WEIGHTS))]
    np.testing.assert_allclose(got, np.where(keep, 2 * change, 0) * weights, atol=2e-6)
    alone = attribute("deeplift", lambda x: jnp.ones(B))
    np.testing.assert_array_equal(alone, np.zeros_like(X))


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (lambda x: jnp.sort(x), "sort"),
        (lambda x: jnp.where(x > 0, x, 0), "gt"),
        (lambda x: jnp.maximum(x, x[:, ::-1]), "max"),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x), x), "scan"),
        (lambda x: jnp.cumprod(x, axis=1), "cumprod"),
    ],
)
def test_an_operation_without_a_rule_is_refused_by_name(function, operation):
    with pytest.raises(NotImplementedError, match=f"no rule for the operation '{operation}'"):
        deeplift(lambda x: function(x).sum(1), X, BASELINE)


# --- a whole model: what its last layer read, to its score ---

WHOLE = [
    {"n_layers_fuse": 0, "norm": "rmsnorm", "activation": "geglu", "norm_position": "pre",
     "final_norm": True, "pooling_method": "attention", "dropout_rate": 0.2},
    {"activation": "relu", "head": "concat", "n_layers_post_fuse": 1},
    {"activation": "gelu_tanh", "fusion": "pooled", "overrides": ("text.positions=drofe",)},
]
SPEC = CorpusSpec(("text", "audio"), (6, 5), (4, 3))
FEATURES = {
    m: RNG.normal(size=(B, SPEC.length(m), SPEC.width(m))).astype(np.float32)
    for m in SPEC.modalities
}
MASKS = {m: RNG.random(x.shape[:2]) < 0.7 for m, x in FEATURES.items()}
MASKS["text"][:, 1] = True
MASKS["audio"][0] = False
MASKS["audio"][1:, 0] = True


def whole_model(**settings):
    """A model's score as a function of what a layer of the text encoder read, and that."""
    sizes = {"model_dim": 8, "num_heads": 2, "ff_dim": 12, "n_layers_mod": 1, "dropout_rate": 0.0}
    overrides = ("audio.n_layers_mod=0", *settings.pop("overrides", ()))
    config = ModelConfig(**sizes | settings, overrides=overrides)
    model = build_model(config, SPEC)
    shapes = jax.eval_shape(model.init, jax.random.key(0), FEATURES, MASKS)
    random = np.random.default_rng(1)
    variables = jax.tree.map(lambda s: random.normal(size=s.shape).astype(np.float32) / 2, shapes)

    def score(x):
        return model.apply(
            variables,
            FEATURES,
            MASKS,
            train=True,
            rngs={"dropout": dropout_key(jnp.uint32(0), jnp.int32(0))},
            begin={"text": (0, x)},
        ).score[:, 0]

    return score, random.normal(size=(B, 4, 8)).astype(np.float32)


@pytest.mark.parametrize("settings", WHOLE, ids=range(len(WHOLE)))
def test_deeplift_of_a_whole_model_adds_up_to_rounding(settings):
    score, x = whole_model(**settings)
    zeros, value = np.zeros_like(x), jax.jit(score)
    got, here, there = attribute("deeplift", score, x, zeros), value(x), value(zeros)
    got, change = np.float64(got), np.float64(here) - np.float64(there)
    size = np.abs(got).sum((1, 2)) + np.abs(here) + np.abs(there)
    assert (np.abs(got.sum((1, 2)) - change) <= 3e-6 * size).all()
    assert np.abs(change).max() > 1e-3
    np.testing.assert_array_equal(got[~MASKS["text"]], 0)  # padding explains nothing
