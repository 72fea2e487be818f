"""Encoders of MulT with NumPy, a sample at a time without any padding."""

import functools
import itertools

import jax
import numpy as np
from layer_formulas import dense, layer_norm

from msajax.config import ModelConfig
from msajax.models.build import build_model

norm = functools.partial(layer_norm, eps=1e-5)


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


def samples_of(features, lengths):
    """The steps of each sample in float64, without padding."""
    rows = range(len(next(iter(features.values()))))
    return [{m: np.float64(x[i, : lengths[m][i]]) for m, x in features.items()} for i in rows]


def check_scores(name, own, spec, lengths, score_of):
    """A padded batch scores as each sample alone does; returns what `built` does, and scores."""
    module, params, features, masks = built(name, own, spec, lengths)
    found = jax.jit(module.apply)({"params": params}, features, masks).score
    exact = jax.tree.map(np.float64, params)
    expected = [score_of(sample, exact, own) for sample in samples_of(features, lengths)]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    return module, params, features, masks, found


def check_learns(gradients, *names):
    """Every parameter moves; but biases of keys in these blocks, which a softmax does not see."""
    for name in names:
        of = gradients[name]["attention"]
        width = of["bias"].shape[-1] // 3
        of["bias"] = np.delete(of["bias"], np.s_[width : 2 * width], axis=-1)
    for path, x in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(x).all() and np.any(x), path


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
    return dense(weights["out"], np.concatenate(found, 1))


def encoder(x, context, weights, own):
    """One encoder of one sample, whose context is None for itself."""
    for i in range(len(weights["out"]["kernel"])):
        w = number({name: of for name, of in weights.items() if name != "last_norm"}, i)
        first = w["norm_attention"]
        query = norm(first, x)
        read = query if context is None else norm(first, context)
        if len(read):
            x = x + attention(query, read, w, own.num_heads, own.causal_mask)
        hidden = np.maximum(dense(w["inner"], norm(w["norm_ffn"], x)), 0)
        x = x + dense(w["outer"], hidden)
    return norm(weights["last_norm"], x)


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
    return x + dense(params[f"{name}_1"], np.maximum(dense(params[f"{name}_0"], x), 0))


def number(params, i):
    """Parameters of the i-th of several encoders."""
    return jax.tree.map(lambda leaf: leaf[i], params)
