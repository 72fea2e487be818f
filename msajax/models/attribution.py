"""Attributes a function's result to the numbers of its input, against a baseline.

A function here maps `[B, …]` to `[B]`, no sample depending on another, so that the gradient of the
sum holds every sample's own. Attributions have the shape of the input. Nothing is compiled here:
call these inside a jitted function.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from msajax.layers.attention import keeping_maps

Function = Callable[[jax.Array], jax.Array]


def gradient_x_input(function: Function, x: jax.Array, baseline: jax.Array) -> jax.Array:
    """Multiplies the gradient at `x` by `x - baseline`."""
    return _gradient(function, x) * (x - baseline)


def integrated_gradients(
    function: Function, x: jax.Array, baseline: jax.Array, steps: int
) -> jax.Array:
    """Multiplies the mean gradient on the straight path from `baseline` to `x` by `x - baseline`.

    The mean is over the middles of `steps` equal parts of the path; as they become many, the
    attributions of a sample sum to `function(x) - function(baseline)` (Sundararajan et al. 2017).
    """
    shares = (jnp.arange(steps) + 0.5) / steps
    total = gradients_along(function, x, baseline, shares, jnp.ones(steps))
    return (total / steps * (x - baseline)).astype(x.dtype)


def gradients_along(
    function: Function, x: Any, baseline: Any, shares: jax.Array, weights: jax.Array
) -> Any:
    """Sums gradients at points of the straight path from `baseline` to `x`: float32, shaped as `x`.

    Args:
        function: may also take a tree of arrays `[B, …]`.
        x: the end of the path, as the function takes it.
        shares: `[P]`, the points' places on the path, from 0 to 1.
        weights: `[P]`, the factor of each point's gradient.
    """

    def add(total, point):
        share, weight = point
        there = jax.tree.map(lambda x, b: (b + share * (x - b)).astype(x.dtype), x, baseline)
        gradient = _gradient(function, there)
        return jax.tree.map(lambda t, g: t + weight * g, total, gradient), None

    total = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), x)
    total, _ = jax.lax.scan(add, total, (shares, weights))
    return total


def _gradient(function: Function, x: Any) -> Any:
    return jax.grad(lambda x: function(x).sum())(x)


def deeplift(function: Function, x: jax.Array, baseline: jax.Array) -> jax.Array:
    """Computes attributions that sum to the difference from a baseline, by DeepLIFT.

    The function's operations are run at `x` and at `baseline`. Backwards, every operation hands on
    multipliers m of its inputs whose products with the inputs' differences sum to that of its
    output: `sum(m * (x - baseline))` is `function(x) - function(baseline)` to rounding, for every
    sample. As the baseline approaches `x`, the multipliers approach the gradient. What does not
    depend on `x` is a constant, dropout masks among them (Shrikumar et al. 2017).

    Raises:
        NotImplementedError: naming an operation without a rule.
    """
    with keeping_maps():  # whose operations have rules here
        program = jax.make_jaxpr(function)(x)
    argument = _Value(x, baseline, varies=True)
    tape: list[_Operation] = []
    (result,) = _run(program.jaxpr, program.consts, [argument], tape)
    result.multiplier = jnp.ones_like(result.at_input)
    for operation in reversed(tape):
        if operation.output.multiplier is None:
            continue
        for value, multiplier in zip(operation.inputs, _backwards(operation), strict=True):
            if value.varies:
                first = value.multiplier is None
                value.multiplier = multiplier if first else value.multiplier + multiplier
    if argument.multiplier is None:
        return jnp.zeros_like(x)
    return argument.multiplier * (x - baseline)


@dataclasses.dataclass(eq=False)
class _Value:
    at_input: Any
    at_baseline: Any
    varies: bool = False
    multiplier: jax.Array | None = None

    @property
    def change(self) -> jax.Array:
        return self.at_input - self.at_baseline

    @property
    def middle(self) -> jax.Array:
        return self.at_baseline + self.change / 2  # half of the sum could overflow


@dataclasses.dataclass(eq=False)
class _Operation:
    """Holds a primitive operation that depends on the input."""

    primitive: Any
    params: dict[str, Any]
    inputs: list[_Value]
    output: _Value

    @property
    def varying(self) -> list[int]:
        return [i for i, value in enumerate(self.inputs) if value.varies]

    def apply(self, positions: list[int], *operands: jax.Array) -> jax.Array:
        """Applies the operation to some operands; the others are midway from baseline to input."""
        rest = [value.middle if value.varies else value.at_input for value in self.inputs]
        for i, operand in zip(positions, operands, strict=True):
            rest[i] = operand
        return self.primitive.bind(*rest, **self.params)


def _run(
    jaxpr: Any, constants: list[Any], arguments: list[_Value], tape: list[_Operation]
) -> list[_Value]:
    """Runs a program at the input and at the baseline; appends what varies to the tape."""
    values = dict(zip(jaxpr.invars, arguments, strict=True))
    values |= {v: _Value(c, c) for v, c in zip(jaxpr.constvars, constants, strict=True)}

    def read(atom: Any) -> _Value:
        is_literal = isinstance(atom, jax.extend.core.Literal)
        return _Value(atom.val, atom.val) if is_literal else values[atom]

    for equation in jaxpr.eqns:
        primitive, params = equation.primitive, equation.params
        inputs = [read(atom) for atom in equation.invars]
        if primitive.name in _CALLS:
            inner = params[_CALLS[primitive.name]]
            outputs = _run(inner.jaxpr, inner.consts, inputs, tape)
        else:
            found = primitive.bind(*(value.at_input for value in inputs), **params)
            found = found if primitive.multiple_results else [found]
            outputs = [_Value(result, result) for result in found]
            if any(value.varies for value in inputs):
                if primitive.name not in _RULES:
                    raise NotImplementedError(
                        f"DeepLIFT has no rule for the operation {primitive.name!r}"
                    )
                (output,) = outputs
                output.at_baseline = primitive.bind(*(v.at_baseline for v in inputs), **params)
                output.varies = True
                tape.append(_Operation(primitive, params, inputs, output))
        values |= zip(equation.outvars, outputs, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _backwards(operation: _Operation) -> list[jax.Array | None]:
    """Computes the multipliers of an operation's inputs from its output's; None for constants."""
    found: list[jax.Array | None] = [None] * len(operation.inputs)
    multipliers = _RULES[operation.primitive.name](operation, operation.output.multiplier)
    for i, multiplier in zip(operation.varying, multipliers, strict=True):
        shape = jnp.shape(operation.inputs[i].at_input)
        # Sizes that are free while a program is exported compare as equal or not, never by size.
        ones = [axis for axis, size in enumerate(shape) if size == 1]
        stretched = [axis for axis in ones if multiplier.shape[axis] != 1]
        found[i] = multiplier.sum(stretched, keepdims=True)  # of an axis of length 1 made longer
    return found


# A rule takes an operation and its output's multiplier, and returns one for each varying input.


def _linear(operation: _Operation, multiplier: jax.Array) -> list[jax.Array]:
    """Transposes an operation that is linear in all of its varying inputs together."""
    return _transpose(operation, operation.varying, multiplier)


def _transpose(
    operation: _Operation, positions: list[int], multiplier: jax.Array
) -> list[jax.Array]:
    operands = [operation.inputs[i].at_input for i in positions]
    transpose = jax.linear_transpose(
        lambda *operands: operation.apply(positions, *operands), *operands
    )
    return list(transpose(multiplier))


def _bilinear(operation: _Operation, multiplier: jax.Array) -> list[jax.Array]:
    """Transposes an operation that is linear in each input, with the others midway."""
    return [_transpose(operation, [i], multiplier)[0] for i in operation.varying]


def _product(operation: _Operation, multiplier: jax.Array) -> list[jax.Array]:
    """Splits the change of `a b` into `(s b + (1 - s) b0) da + ((1 - s) a + s a0) db`.

    This holds for any s; with s = 1/2 both factors lie midway. But a norm's `a / deviation` at a
    zero baseline has b0 = 1 / sqrt(eps), and the two terms would be large and cancel: after a few
    layers attributions would reach 1e12. So s leans to the side where the terms are small; it is
    1/2 where both sides are alike.
    """
    if len(operation.varying) == 1:
        return _linear(operation, multiplier)
    a, b = operation.inputs
    with_b = jnp.abs(b.at_input * a.change) + jnp.abs(a.at_baseline * b.change)
    with_b0 = jnp.abs(b.at_baseline * a.change) + jnp.abs(a.at_input * b.change)
    both = with_b + with_b0
    known = both > 0
    s, rest = (jnp.where(known, w / jnp.where(known, both, 1), 0.5) for w in (with_b0, with_b))
    return [  # not as b0 + s (b - b0), which would lose digits where s is nearly 1
        multiplier * (s * b.at_input + rest * b.at_baseline),
        multiplier * (rest * a.at_input + s * a.at_baseline),
    ]


def _quotient(operation: _Operation, multiplier: jax.Array) -> list[jax.Array]:
    """Solves `da = b dy + y db`, which holds for `y = a / b` with b and y midway."""
    if operation.varying == [0]:
        return _linear(operation, multiplier)
    multiplier = multiplier / operation.inputs[1].middle
    return [multiplier, -multiplier * operation.output.middle][-len(operation.varying) :]


def _square(operation: _Operation, multiplier: jax.Array) -> list[jax.Array]:
    return [multiplier * 2 * operation.inputs[0].middle]


def _secant(operation: _Operation, multiplier: jax.Array) -> list[jax.Array]:
    """Takes the slope of a function of one varying number between input and baseline.

    Where these nearly meet, it takes the derivative midway, which rounding does not spoil.
    """
    if len(operation.varying) > 1:
        raise NotImplementedError(
            f"DeepLIFT has no rule for the operation {operation.primitive.name!r} of two values "
            "that both depend on the input"
        )
    (i,) = operation.varying
    value, output = operation.inputs[i], operation.output
    _, slope = jax.jvp(
        lambda x: operation.apply([i], x), (value.middle,), (jnp.ones_like(value.middle),)
    )
    scale = jnp.ones_like(value.middle)
    if operation.primitive.name in _SCALE_FREE:
        scale = jnp.maximum(jnp.abs(value.at_input), jnp.abs(value.at_baseline))
    # The derivative is off by the square of the distance, the secant by rounding divided by it.
    meets = jnp.abs(value.change) <= jnp.finfo(scale.dtype).eps ** (1 / 3) * scale
    secant = output.change / jnp.where(meets, 1, value.change)
    return [multiplier * jnp.where(meets, slope, secant)]


def _maximum(operation: _Operation, multiplier: jax.Array) -> list[jax.Array]:
    """Shares a maximum's multiplier between its place at the input and that at the baseline.

    The number that is largest at the input has risen by the maximum's change or more, the one that
    is largest at the baseline by that or less: one share makes up the change exactly.
    """
    axes, value, output = operation.params["axes"], operation.inputs[0], operation.output

    def where_it_is(x, maximum):
        equal = (x == jnp.expand_dims(maximum, axes)).astype(x.dtype)
        return equal / equal.sum(axes, keepdims=True)

    at_input = where_it_is(value.at_input, output.at_input)
    at_baseline = where_it_is(value.at_baseline, output.at_baseline)
    rise, fall = ((w * value.change).sum(axes) for w in (at_input, at_baseline))
    apart = rise > fall
    share = (output.change - fall) / jnp.where(apart, rise - fall, 1)
    share = jnp.expand_dims(jnp.where(apart, share, 0.5), axes)
    weights = share * at_input + (1 - share) * at_baseline
    return [jnp.expand_dims(multiplier, axes) * weights]


def _identity(operation: _Operation, multiplier: jax.Array) -> list[jax.Array]:
    return [multiplier]


# Functions that look alike at every scale: whether two of their inputs nearly meet is judged
# relative to the inputs' size.
_SCALE_FREE = ("log", "sqrt", "rsqrt", "integer_pow", "max", "min")
_RULES = {
    **dict.fromkeys(("add", "add_any", "sub", "neg", "copy", "convert_element_type"), _linear),
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze", "transpose", "rev"), _linear),
    **dict.fromkeys(("concatenate", "stack", "slice", "dynamic_slice", "gather", "pad"), _linear),
    **dict.fromkeys(("reduce_sum", "cumsum", "select_n"), _linear),
    **dict.fromkeys(("exp", "tanh", "logistic", "erf", "erfc", "sin", "cos"), _secant),
    **dict.fromkeys(_SCALE_FREE, _secant),
    "dot_general": _bilinear,
    "mul": _product,
    "div": _quotient,
    "square": _square,
    "reduce_max": _maximum,
    # Softmax subtracts its maximum behind a `stop_gradient`. That maximum is taken at each end for
    # itself: with one for both, exp over- or underflows where scores differ by a hundred.
    "stop_gradient": _identity,
}
# Operations that run a program of their own, and the parameter that holds it.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
