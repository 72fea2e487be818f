"""Computes affine maps, batched products, layer norm and GELU.

The values are the textbook's. On CPUs they have derivatives of their own, which say what a backward
pass keeps and what it computes again: XLA there computes a chain of element-wise operations once
for everything that reads it, and transposes operands that its products could read as they are; a
training step took a third longer. Accelerators take JAX's own derivatives, and a TPU products over
the axes as they are: with ours its step moved half as many bytes again.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from msajax.layers.platform import is_for_cpu, platform

# The documents say nothing of initial values; these are usual for Transformers.
kernel_init = nn.initializers.xavier_uniform()

# With fewer rows a product costs less than joining two kernels, which is done at every call.
_FEWEST_JOINED = 128


def materialised(tree: Any) -> Any:
    """Returns arrays that XLA computes once and stores, whatever reads them; CPUs alone.

    Accelerators have fast memory and slow launches: there a longer fused kernel is better.
    """
    return lax.optimization_barrier(tree) if is_for_cpu() else tree


def derived_on_cpus(own: jax.custom_vjp) -> Callable:
    """Returns a function that has its own derivative on CPUs, and JAX's on accelerators."""

    @functools.wraps(own)
    def choose(*args: Any) -> Any:
        return own(*args) if is_for_cpu() else own.fun(*args)

    return choose


class Affine(NamedTuple):
    """Holds an affine map from I to O numbers: its kernel `[I, O]`, and its bias `[O]` or None."""

    kernel: jax.Array
    bias: jax.Array | None


class AffineLayer(nn.Module):
    """Applies an affine map; its kernel may have several axes for what it reads and writes.

    Attributes:
        inputs: sizes of the axes that are read.
        outputs: sizes of the axes that are written.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: Any
    use_bias: bool = True

    def setup(self) -> None:
        """Makes the kernel `[*inputs, *outputs]` and the bias `[*outputs]`."""
        flat = math.prod(self.inputs), math.prod(self.outputs)

        def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return kernel_init(key, flat, jnp.float32).reshape(shape)

        self.kernel = self.param("kernel", init, (*self.inputs, *self.outputs))
        if self.use_bias:
            self.bias = self.param("bias", nn.initializers.zeros, self.outputs)

    def flat(self) -> Affine:
        """Returns the map, the axes of its kernel and bias flattened."""
        read, written = math.prod(self.inputs), math.prod(self.outputs)
        bias = self.bias.reshape(written).astype(self.dtype) if self.use_bias else None
        return Affine(self.kernel.reshape(read, written).astype(self.dtype), bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[…, *inputs]` to `[…, *outputs]`."""
        before = x.ndim - len(self.inputs)
        if platform() != "tpu":
            y = affine(x.reshape(*x.shape[:before], -1), self.flat())
            return y.reshape(*x.shape[:before], *self.outputs)
        read = tuple(range(before, x.ndim)), tuple(range(len(self.inputs)))
        y = lax.dot_general(x.astype(self.dtype), self.kernel.astype(self.dtype), (read, ((), ())))
        return _add_bias(y, self.bias.astype(self.dtype)) if self.use_bias else y


def project_each(xs: Sequence[jax.Array], layers: Sequence[AffineLayer]) -> list[jax.Array]:
    """Applies one layer to each of several arrays `[B, T, *inputs]`: each `[B, T, *outputs]`.

    Neighbours of one array are one product: a larger one, which is what a second core needs, and
    fewer kernels; their inputs' gradients are summed inside it. A TPU would move more.
    """
    if platform() == "tpu":
        return [layer(x) for x, layer in zip(xs, layers, strict=True)]
    found = affine_each(xs, [layer.flat() for layer in layers])
    return [
        y.reshape(*x.shape[: x.ndim - len(layer.inputs)], *layer.outputs)
        for x, y, layer in zip(xs, found, layers, strict=True)
    ]


def affine(x: jax.Array, weights: Affine) -> jax.Array:
    """Maps `[…, I]` to `[…, O]`, in the type of the weights."""
    rows = x.reshape(-1, x.shape[-1]).astype(weights.kernel.dtype)
    y = _affine(rows, weights.kernel, weights.bias, jax.config.jax_default_matmul_precision)
    return y.reshape(*x.shape[:-1], -1)


def affine_each(xs: Sequence[jax.Array], maps: Sequence[Affine]) -> list[jax.Array]:
    """Applies one map to each of several arrays `[…, I]`; neighbours of one are one product."""
    results: list[jax.Array] = []
    first = 0
    while first < len(xs):
        x, last = xs[first], first + 1
        rows = math.prod(x.shape[:-1])
        # An exported program has a free number of rows, often those of one sample.
        if isinstance(rows, int) and rows >= _FEWEST_JOINED:
            while last < len(xs) and xs[last] is x:
                last += 1
        y, end = affine(x, _joined(maps[first:last])), 0
        for one in maps[first:last]:
            begin, end = end, end + one.kernel.shape[1]
            results.append(y[..., begin:end])
        first = last
    return results


def _joined(maps: Sequence[Affine]) -> Affine:
    """Joins maps of the same input to one; all of them have a bias, or none."""
    if len(maps) == 1:
        return maps[0]
    biases = [one.bias for one in maps]
    bias = None if biases[0] is None else jnp.concatenate(biases)
    return Affine(jnp.concatenate([one.kernel for one in maps], axis=1), bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _own_affine(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, precision: Any
) -> jax.Array:
    """Maps `[N, I]` to `[N, O]`."""
    y = _contract(x, kernel, 1, 0, precision)
    return y if bias is None else _add_bias(y, bias)


@jax.custom_vjp
def _add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Adds a bias to the last axes; its gradient is summed in float32, as JAX's would not be."""
    return y + bias


def _add_bias_forward(y, bias):
    return _add_bias(y, bias), bias


def _add_bias_backward(bias, gradient):
    return gradient, gradient.sum(tuple(range(gradient.ndim - bias.ndim)))


_add_bias.defvjp(_add_bias_forward, _add_bias_backward)


def _affine_forward(x, kernel, bias, precision):
    x = materialised(x)
    return _own_affine(x, kernel, bias, precision), (x, kernel, bias is not None)


def _affine_backward(precision, kept, gradient):
    x, kernel, has_bias = kept
    gradient = materialised(gradient)
    of_x = _contract(gradient, kernel, 1, 1, precision)
    if x.shape[1] > gradient.shape[1]:  # of the two orders the one with the longer rows is faster
        of_kernel = materialised(_contract(gradient, x, 0, 0, precision)).T
    else:
        of_kernel = _contract(x, gradient, 0, 0, precision)
    return of_x, of_kernel, gradient.sum(0) if has_bias else None


_own_affine.defvjp(_affine_forward, _affine_backward)
_affine = derived_on_cpus(_own_affine)


def _contract(a: jax.Array, b: jax.Array, axis: int, other: int, precision: Any) -> jax.Array:
    return lax.dot_general(a, b, (((axis,), (other,)), ((), ())), precision=precision)


def batched_product(a: jax.Array, b: jax.Array, dtype: Any) -> jax.Array:
    """Multiplies `[…, M, K]` by `[…, K, N]`: `[…, M, N]` of type `dtype`."""
    return _batched_product(a, b, (jax.config.jax_default_matmul_precision, jnp.dtype(dtype)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _own_batched_product(a: jax.Array, b: jax.Array, how: tuple[Any, Any]) -> jax.Array:
    precision, dtype = how
    batch = tuple(range(a.ndim - 2))
    numbers = (((a.ndim - 1,), (a.ndim - 2,)), (batch, batch))
    return lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=dtype)


def _batched_product_forward(a, b, how):
    return _own_batched_product(a, b, how), (a, b)


def _batched_product_backward(how, kept, gradient):
    a, b = kept
    how = (how[0], a.dtype)
    a_turned, b_turned = materialised((jnp.swapaxes(a, -1, -2), jnp.swapaxes(b, -1, -2)))
    gradient = gradient.astype(a.dtype)
    product = _own_batched_product
    return product(gradient, b_turned, how), product(a_turned, gradient, how)


_own_batched_product.defvjp(_batched_product_forward, _batched_product_backward)
_batched_product = derived_on_cpus(_own_batched_product)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _own_layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    """Normalises `[…, D]` over the last axis, biased variance."""
    return _normalised(x, eps)[0] * scale + bias


def _normalised(x: jax.Array, eps: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns `(x - mean) / deviation`, the mean and 1 / deviation."""
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    inverse = lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
    return centred * inverse, mean, inverse


def _layer_norm_forward(x, scale, bias, eps):
    x = materialised(x)
    normal, mean, inverse = _normalised(x, eps)
    return normal * scale + bias, (x, scale, mean, inverse)


def _layer_norm_backward(eps, kept, gradient):
    x, scale, mean, inverse = kept
    gradient = materialised(gradient)
    normal = (x - mean) * inverse
    scaled = gradient * scale
    # What moves all numbers of a row alike, or stretches them, does not change the result.
    moves = scaled.mean(-1, keepdims=True)
    stretches = (scaled * normal).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    of_x = inverse * (scaled - moves - normal * stretches)
    return of_x, (gradient * normal).sum(rows), gradient.sum(rows)


_own_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)
layer_norm = derived_on_cpus(_own_layer_norm)


@jax.custom_vjp
def _own_gelu(x: jax.Array) -> jax.Array:
    return x * _normal_distribution(x)


def _normal_distribution(x: jax.Array) -> jax.Array:
    return 0.5 + 0.5 * lax.erf(x * math.sqrt(0.5))


def _gelu_forward(x):
    return _own_gelu(x), x


def _gelu_backward(x, gradient):
    x = materialised(x)  # else XLA keeps the forward pass's erf, as large as x, for this one
    density = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (gradient * (_normal_distribution(x) + x * density),)


_own_gelu.defvjp(_gelu_forward, _gelu_backward)
gelu = derived_on_cpus(_own_gelu)
