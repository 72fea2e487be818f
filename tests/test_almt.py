"""ALMT: computed again with NumPy, a sample at a time without any padding."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crossmodal_numpy import built

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.models.build import build_model
from msajax.models.peers.settings import AlmtSettings
from msajax.spec import CorpusSpec

OWN = AlmtSettings(
    d_model=6, num_tokens=3, embed_depth=2, embed_heads=2, embed_ff=5, text_heads=1, text_ff=4,
    hyper_depth=3, hyper_heads=2, hyper_head_dim=4, fusion_depth=2, fusion_heads=3, fusion_ff=7,
    head_dim=4,
)  # fmt: skip


def norm(x, of):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5)
    return x * of["scale"] + of["bias"]


def dense(x, of):
    return x @ of["kernel"] + of.get("bias", 0)


def attention(query, sources, of, heads):
    """What one sample's query finds in all sources, each a suffix with keys and values."""
    found, q = 0, dense(query, of["query"])
    for suffix, (keys, values) in sources.items():
        k, v = dense(keys, of[f"key{suffix}"]), dense(values, of[f"value{suffix}"])
        parts = []
        for part in np.split(np.arange(q.shape[1]), heads):
            weights = np.exp(q[:, part] @ k[:, part].T / np.sqrt(len(part)))
            parts.append(weights / weights.sum(1, keepdims=True) @ v[:, part])
        found = found + np.concatenate(parts, 1)
    return dense(found + np.zeros_like(q), of["out"]) if "out" in of else found


def block(x, source, of, heads):
    keys, values = norm(source, of["norm_key"]), norm(source, of["norm_value"])
    x = x + attention(norm(x, of["norm_query"]), {"": (keys, values)}, of["attention"], heads)
    hidden = dense(norm(x, of["norm_ffn"]), of["inner"])
    hidden = hidden * np.vectorize(lambda one: 0.5 + 0.5 * math.erf(one / math.sqrt(2)))(hidden)
    return x + dense(hidden, of["outer"])


def score_of(sample, p, own):
    tokens = {}
    for m, x in sample.items():
        of = p[f"{m}_tokens"]
        x = np.concatenate([of["tokens"], dense(x, of["projection"])])
        x = x + of["positions"]["embedding"][: len(x)]
        for i in range(own.embed_depth):
            x = block(x, x, of[f"blocks_{i}"], own.embed_heads)
        tokens[m] = x[: own.num_tokens]
    text, hyper = tokens.pop("text") + p["text_positions"]["embedding"], p["hyper"]
    for i in range(own.hyper_depth):
        text = block(text, text, p[f"text_{i - 1}"], own.text_heads) if i else text
        of = p[f"hyper_{i}"]
        sources = {f"_{m}": (norm(x, of[f"norm_{m}"]),) * 2
                   for m, x in tokens.items() if len(sample[m])}  # fmt: skip
        found = attention(norm(text, of["norm_query"]), sources, of["attention"], own.hyper_heads)
        hyper = norm(hyper, of["norm_hyper"]) + found
    of = p["fusion"]
    both = [np.concatenate([of["token"], x]) for x in (text, hyper)]
    x, source = (x + of[f"{name}_positions"]["embedding"]
                 for x, name in zip(both, ("text", "hyper"), strict=True))  # fmt: skip
    for i in range(own.fusion_depth):
        x = block(x, source, of[f"blocks_{i}"], own.fusion_heads)
    return dense(x[0], p["regression"])


@pytest.mark.parametrize(
    ("own", "lengths"),
    [
        (OWN, {"text": (5, 2, 0, 4), "audio": (6, 3, 4, 0), "video": (4, 1, 2, 0)}),
        # A single head of the model's width, which is not projected again.
        (
            AlmtSettings(d_model=4, num_tokens=2, embed_heads=1, embed_ff=3, text_heads=1,
                         text_ff=3, hyper_depth=1, hyper_heads=1, hyper_head_dim=4,
                         fusion_depth=1, fusion_heads=1, fusion_ff=3, head_dim=3),
            {"text": (3, 1), "face": (4, 2)},
        ),
    ],
)  # fmt: skip
def test_a_padded_batch_scores_as_each_sample_alone_does(own, lengths):
    longest = tuple(max(of) for of in lengths.values())
    spec = CorpusSpec(tuple(lengths), (4, 3, 6)[: len(lengths)], longest)
    module, params, features, masks = built("almt", own, spec, lengths)
    found = jax.jit(module.apply)({"params": params}, features, masks).score
    exact = jax.tree.map(np.float64, params)
    samples = [{m: np.float64(x[i, : lengths[m][i]]) for m, x in features.items()}
               for i in range(len(found))]  # fmt: skip
    expected = [score_of(sample, exact, own) for sample in samples]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_every_parameter_learns_and_absent_modalities_leave_gradients_finite():
    spec = CorpusSpec(("text", "audio"), (4, 3), (5, 6))
    lengths = {"text": (5, 0, 0, 3), "audio": (6, 0, 4, 0)}
    module, params, features, masks = built("almt", OWN, spec, lengths)

    def loss(params):
        return jnp.square(module.apply({"params": params}, features, masks).score).sum()

    gradients = jax.jit(jax.grad(loss))(params)
    for path, x in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(x).all() and np.any(x), path


def test_it_needs_text_and_another_modality():
    for names in (("audio", "video"), ("text",)):
        with pytest.raises(UserError, match="it needs text and at least one other, not"):
            spec = CorpusSpec(names, (3,) * len(names), (4,) * len(names))
            build_model(ModelConfig(name="almt"), spec)
