"""Affine maps, products, norms and GELU: values and derivatives against plain formulas."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msajax.layers.linear import (
    Affine,
    AffineLayer,
    affine,
    affine_each,
    batched_product,
    gelu,
    layer_norm,
)
from msajax.layers.platform import made_for

RNG = np.random.default_rng(0)


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def plain_norm(x, scale, bias):
    deviation = jnp.sqrt(jnp.square(x - x.mean(-1, keepdims=True)).mean(-1, keepdims=True) + 1e-6)
    return (x - x.mean(-1, keepdims=True)) / deviation * scale + bias


def plain_gelu(x):
    return x * jax.scipy.stats.norm.cdf(x)


X, WIDE, NARROW = draw(2, 3, 5), draw(5, 7), draw(5, 3)
CASES = {
    "affine": (lambda x, k, b: affine(x, Affine(k, b)), lambda x, k, b: x @ k + b),
    "affine to fewer": (lambda x, k, b: affine(x, Affine(k, b)), lambda x, k, b: x @ k + b),
    "affine without bias": (lambda x, k: affine(x, Affine(k, None)), lambda x, k: x @ k),
    "batched product": (lambda a, b: batched_product(a, b, jnp.float32), jnp.matmul),
    "layer norm": (lambda x, s, b: layer_norm(x, s, b, 1e-6), plain_norm),
    "gelu": (gelu, plain_gelu),
}
ARGUMENTS = {
    "affine": (X, WIDE, draw(7)),
    "affine to fewer": (X, NARROW, draw(3)),
    "affine without bias": (X, WIDE),
    "batched product": (draw(2, 4, 3, 5), draw(2, 4, 5, 6)),
    "layer norm": (X, draw(5), draw(5)),
    "gelu": (3 * X,),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_two_derivatives_are_those_of_the_plain_formula(name):
    arguments = ARGUMENTS[name]
    weights = draw(*jax.eval_shape(CASES[name][0], *arguments).shape)

    def measures(function):
        def value(*arguments):
            return (jnp.sin(function(*arguments)) * weights).sum()

        def slope(*arguments):  # of the gradient, which guidance differentiates
            gradients = jax.grad(value, range(len(arguments)))(*arguments)
            return sum(jnp.sin(g).sum() for g in gradients)

        everything = range(len(arguments))
        return (
            function(*arguments),
            jax.grad(value, everything)(*arguments),
            jax.grad(slope, everything)(*arguments),
        )

    ours, plain = (jax.jit(lambda f=f: measures(f))() for f in CASES[name])
    chex.assert_trees_all_close(ours, plain, rtol=2e-5, atol=2e-5)
    # Seeds that share a program are mapped.
    of_two = jax.jit(jax.vmap(CASES[name][0]))(*(jnp.stack([x, 2 * x]) for x in arguments))
    chex.assert_trees_all_close(of_two[0], ours[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [3, 200], ids=["apart", "joined"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_maps_of_one_input_give_what_they_give_alone(rows, has_bias):
    maps = [Affine(draw(4, n), draw(n) if has_bias else None) for n in (3, 5, 2)]
    x, other = draw(1, rows, 4), draw(1, 2, 4)
    found = affine_each([x, x, other], maps)
    for y, source, one in zip(found, (x, x, other), maps, strict=True):
        np.testing.assert_allclose(y, affine(source, one), rtol=1e-6, atol=1e-6)
    text = jax.jit(lambda: affine_each([x, x, other], maps)).lower().as_text()
    assert text.count("dot_general") == (2 if rows == 200 else 3)


def test_in_16_bits_results_and_gradients_have_the_types_of_their_arrays():
    half = Affine(draw(4, 3).astype(jnp.bfloat16), draw(3).astype(jnp.bfloat16))
    y, back = jax.vjp(affine, draw(2, 4), half)
    of_x, of_map = back(y)
    assert (y.dtype, of_x.dtype) == (jnp.bfloat16, jnp.float32)
    assert {x.dtype for x in of_map} == {jnp.dtype(jnp.bfloat16)}
    a = draw(1, 3, 4).astype(jnp.bfloat16)
    product, back = jax.vjp(
        lambda a, b: batched_product(a, b, jnp.float32), a, half.kernel[None]
    )
    assert product.dtype == jnp.float32  # sums of 16-bit numbers
    assert {x.dtype for x in back(product)} == {jnp.dtype(jnp.bfloat16)}


def test_gelu_has_the_rounding_of_a_number_near_one_in_both_tails():
    x = np.linspace(-6, 6, 49)
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    error = np.abs(gelu(jnp.asarray(x, jnp.float32)) - np.array(exact))
    assert (error <= 2.0**-22 * np.abs(x)).all()  # two roundings of 1 + erf, which is 0 to 2


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_the_gradient_of_a_bias_in_16_bits_is_summed_in_32(platform):
    layer = AffineLayer((3,), (2, 2), jnp.bfloat16)
    x = jnp.ones((40, 300, 3), jnp.bfloat16)
    with made_for(platform):
        params = layer.init(jax.random.key(0), x)
        found = jax.grad(lambda params: layer.apply(params, x).astype(jnp.float32).sum())(params)
    np.testing.assert_array_equal(found["params"]["bias"], np.full((2, 2), 12032))  # of 12000
