"""Layers in float64, and random parameters for the modules that are compared with them."""

from collections.abc import Callable

import jax
import numpy as np
import scipy.special


def random_params(init: Callable, *arguments, **options):
    """Parameters as a module's `init` makes them; every weight, bias and scale is random."""
    shapes = jax.eval_shape(lambda key: init(key, *arguments, **options), jax.random.key(0))
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda w: rng.normal(scale=0.5, size=w.shape).astype(np.float32), shapes.get("params", {})
    )


def dense(params, x):
    return np.float64(x) @ params["kernel"] + params.get("bias", 0)


def layer_norm(params, x, eps):
    x = np.asarray(x, np.float64)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return normal * params["scale"] + params["bias"]


def gelu(x):
    return x * scipy.special.ndtr(x)


def attention(p, queries, keys, values, mask, of_weights=lambda weights: weights):
    """Multi-head attention of `[B, T, D]` to valid steps `[B, T]`; 0 where there is none."""
    found = np.zeros(queries.shape)
    for b, valid in enumerate(mask):
        for h in range(p["query"]["kernel"].shape[1] if valid.any() else 0):
            q, k, v = (
                x[b] @ p[name]["kernel"][:, h] + p[name]["bias"][h]
                for name, x in (("query", queries), ("key", keys), ("value", values))
            )
            scores = (q @ k.T / np.sqrt(q.shape[-1]))[:, valid]
            weights = of_weights(scipy.special.softmax(scores, axis=-1))
            found[b] += weights @ v[valid] @ p["out"]["kernel"][h]
        found[b] += p["out"]["bias"] * valid.any()
    return found
