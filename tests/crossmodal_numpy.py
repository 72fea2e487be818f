"""Encoders of MulT with NumPy, a sample at a time without any padding."""

import itertools

import jax
import numpy as np

from msajax.config import ModelConfig
from msajax.models.build import build_model


def built(name, own, spec, lengths, seed=0):
    """A model, random parameters, and a batch whose sample i has lengths[m][i] steps."""
    rng, rows = np.random.default_rng(seed), len(next(iter(lengths.values())))
    module = build_model(ModelConfig(name=name, own=own), spec)
    features, masks = {}, {}
    for m, longest, width in zip(spec.modalities, spec.lengths, spec.widths, strict=True):
        features[m] = rng.normal(size=(rows, longest, width)).astype("f4")
        masks[m] = np.arange(longest) < np.array(lengths[m])[:, None]
    shapes = jax.eval_shape(module.init, jax.random.key(0), features, masks)["params"]
    params = jax.tree.map(lambda x: rng.normal(0, 0.4, x.shape).astype("f4"), shapes)
    return module, params, features, masks


def norm(x, scale, bias):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * scale + bias


def attention(query, context, weights, heads, causal):
    """Multi-head attention of one sample; None for a context of no step."""
    d = query.shape[1]
    kernel, bias = weights["attention"]["kernel"], weights["attention"]["bias"]
    maps = [(kernel[:, i * d : (i + 1) * d], bias[i * d : (i + 1) * d]) for i in range(3)]
    q, k, v = (x @ w + b for x, (w, b) in zip((query, context, context), maps, strict=True))
    ahead = abs(len(k) - len(q))
    found = []
    for part in np.split(np.arange(d), heads):
        scores = q[:, part] @ k[:, part].T / np.sqrt(d / heads)
        if causal:
            scores[np.triu_indices(len(q), 1 + ahead, len(k))] = -np.inf
        scores = np.exp(scores - scores.max(1, keepdims=True))
        found.append(scores / scores.sum(1, keepdims=True) @ v[:, part])
    return np.concatenate(found, 1) @ weights["out"]["kernel"] + weights["out"]["bias"]


def encoder(x, context, weights, own):
    """One encoder of one sample, whose context is None for itself."""
    for i in range(len(weights["out"]["kernel"])):
        w = number({name: of for name, of in weights.items() if name != "last_norm"}, i)
        first = w["norm_attention"]
        query = norm(x, **first)
        read = query if context is None else norm(context, **first)
        if len(read):
            x = x + attention(query, read, w, own.num_heads, own.causal_mask)
        hidden = norm(x, **w["norm_ffn"]) @ w["inner"]["kernel"] + w["inner"]["bias"]
        x = x + np.maximum(hidden, 0) @ w["outer"]["kernel"] + w["outer"]["bias"]
    return norm(x, **weights["last_norm"])


def positioned(x, own):
    length, d = x.shape
    half = d // 2
    table = np.zeros((length, d))
    for step, i in itertools.product(range(length), range(half)):
        angle = (step + 1) * np.exp(-i * np.log(10000) / (half - 1))
        table[step, i], table[step, half + i] = np.sin(angle), np.cos(angle)
    return x * np.sqrt(d) + own.positions * table


def projected(x, kernel, size):
    """One sample's steps `[T, d]`, every `size` of them as one."""
    if 0 < len(x) < size:
        x = np.concatenate([x, np.zeros((size - len(x), x.shape[1]))])
    parts = [x[i : i + size].ravel() for i in range(len(x) - size + 1)]
    return np.reshape(parts, (-1, len(kernel))) @ kernel


def refined(x, params, name):
    hidden = np.maximum(x @ params[f"{name}_0"]["kernel"] + params[f"{name}_0"]["bias"], 0)
    return x + hidden @ params[f"{name}_1"]["kernel"] + params[f"{name}_1"]["bias"]


def number(params, i):
    """Parameters of the i-th of several encoders."""
    return jax.tree.map(lambda leaf: leaf[i], params)
