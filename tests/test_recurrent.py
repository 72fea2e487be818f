"""RNN, GRU and LSTM against NumPy, and their treatment of padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from msajax.layers.recurrent import Recurrence

D, T, B = 6, 7, 3
KINDS = ("rnn", "gru", "lstm")
rng = np.random.default_rng(0)
X = rng.normal(size=(B, T, D)).astype(np.float32)
# Padding behind, inside, and in front; the middle row is whole.
MASK = np.array([[1, 1, 0, 1, 1, 0, 0], [1] * 7, [0, 0, 1, 1, 1, 0, 1]], bool)


@functools.cache
def build(kind: str, both: bool = False):
    module = Recurrence(kind, both, jnp.float32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), X, MASK)["params"]
    random = np.random.default_rng(1)
    params = jax.tree.map(lambda s: random.normal(size=s.shape).astype(np.float32) / 2, shapes)
    return jax.jit(module.apply), params


def run(kind, x=X, mask=MASK, both=False):
    apply, params = build(kind, both)
    return np.asarray(apply({"params": params}, x, mask))


def numpy_states(kind, cell, x, mask):
    """Outputs `[T, units]` of one row, in float64, by the textbook's formulas."""
    p = {
        name: (np.float64(d["kernel"]), np.float64(d.get("bias", np.zeros(1))))
        for name, d in cell.items()
    }

    def affine(name, value):
        kernel, bias = p[name]
        return value @ kernel + bias

    h = c = np.zeros(next(iter(p.values()))[0].shape[1])
    outputs = []
    for step, valid in zip(np.float64(x), mask, strict=True):
        if valid and kind == "rnn":
            h = np.tanh(affine("i", step) + affine("h", h))
        elif valid and kind == "gru":
            r = expit(affine("ir", step) + affine("hr", h))
            z = expit(affine("iz", step) + affine("hz", h))
            n = np.tanh(affine("in", step) + r * affine("hn", h))
            h = (1 - z) * n + z * h
        elif valid:
            i, f, o = (expit(affine(f"i{g}", step) + affine(f"h{g}", h)) for g in "ifo")
            g = np.tanh(affine("ig", step) + affine("hg", h))
            c = f * c + i * g
            h = o * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_formulas_and_states_pass_through_padding(kind):
    cell = build(kind)[1]["forward"]["cell"]
    expected = np.stack([numpy_states(kind, cell, x, m) for x, m in zip(X, MASK, strict=True)])
    np.testing.assert_allclose(run(kind), expected, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_half_of_the_units_reads_backwards(kind):
    outputs, params = run(kind, both=True), build(kind, True)[1]
    for name, part, order in (("forward", slice(0, 3), 1), ("backward", slice(3, 6), -1)):
        cell = params[name]["cell"]
        expected = [
            numpy_states(kind, cell, x[::order], m[::order])[::order]
            for x, m in zip(X, MASK, strict=True)
        ]
        np.testing.assert_allclose(outputs[..., part], expected, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_step_may_hold_anything(kind):
    x = np.where(MASK[..., None], X, np.nan)
    np.testing.assert_array_equal(run(kind, x, both=True), run(kind, both=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_step_cannot_be_seen(kind):
    changed = X.copy()
    changed[:, 4:] += 1
    np.testing.assert_array_equal(run(kind, changed)[:, :4], run(kind)[:, :4])
    assert (run(kind, changed)[:, 4] != run(kind)[:, 4]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_and_nothing_where_a_step_is_padded(kind):
    apply, params = build(kind, True)
    x = np.where(MASK[..., None], X, 0)
    gradient = jax.grad(lambda x: jnp.sin(apply({"params": params}, x, MASK)).sum())(x)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[~MASK], 0)
    assert (np.abs(np.asarray(gradient)[MASK]).sum(-1) > 0).all()
