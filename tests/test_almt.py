"""ALMT: computed again with NumPy, a sample at a time without any padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crossmodal_numpy import built, check_learns, check_scores, norm
from layer_formulas import dense, gelu

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


def attention(query, sources, of, heads):
    """What one sample's query finds in all sources, each a suffix with keys and values."""
    found, q = 0, dense(of["query"], query)
    for suffix, (keys, values) in sources.items():
        k, v = dense(of[f"key{suffix}"], keys), dense(of[f"value{suffix}"], values)
        parts = []
        for part in np.split(np.arange(q.shape[1]), heads):
            weights = np.exp(q[:, part] @ k[:, part].T / np.sqrt(len(part)))
            parts.append(weights / weights.sum(1, keepdims=True) @ v[:, part])
        found = found + np.concatenate(parts, 1)
    return dense(of["out"], found + np.zeros_like(q)) if "out" in of else found


def block(x, source, of, heads):
    keys, values = norm(of["norm_key"], source), norm(of["norm_value"], source)
    x = x + attention(norm(of["norm_query"], x), {"": (keys, values)}, of["attention"], heads)
    hidden = dense(of["inner"], norm(of["norm_ffn"], x))
    return x + dense(of["outer"], gelu(hidden))


def score_of(sample, p, own):
    tokens = {}
    for m, x in sample.items():
        of = p[f"{m}_tokens"]
        x = np.concatenate([of["tokens"], dense(of["projection"], x)])
        x = x + of["positions"]["embedding"][: len(x)]
        for i in range(own.embed_depth):
            x = block(x, x, of[f"blocks_{i}"], own.embed_heads)
        tokens[m] = x[: own.num_tokens]
    text, hyper = tokens.pop("text") + p["text_positions"]["embedding"], p["hyper"]
    for i in range(own.hyper_depth):
        text = block(text, text, p[f"text_{i - 1}"], own.text_heads) if i else text
        of = p[f"hyper_{i}"]
        sources = {f"_{m}": (norm(of[f"norm_{m}"], x),) * 2
                   for m, x in tokens.items() if len(sample[m])}  # fmt: skip
        found = attention(norm(of["norm_query"], text), sources, of["attention"], own.hyper_heads)
        hyper = norm(of["norm_hyper"], hyper) + found
    of = p["fusion"]
    both = [np.concatenate([of["token"], x]) for x in (text, hyper)]
    x, source = (x + of[f"{name}_positions"]["embedding"]
                 for x, name in zip(both, ("text", "hyper"), strict=True))  # fmt: skip
    for i in range(own.fusion_depth):
        x = block(x, source, of[f"blocks_{i}"], own.fusion_heads)
    return dense(p["regression"], x[0])


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
    check_scores("almt", own, spec, lengths, score_of)


def test_every_parameter_learns_and_absent_modalities_leave_gradients_finite():
    spec = CorpusSpec(("text", "audio"), (4, 3), (5, 6))
    lengths = {"text": (5, 0, 0, 3), "audio": (6, 0, 4, 0)}
    module, params, features, masks = built("almt", OWN, spec, lengths)

    def loss(params):
        return jnp.square(module.apply({"params": params}, features, masks).score).sum()

    check_learns(jax.jit(jax.grad(loss))(params))


def test_it_needs_text_and_another_modality():
    for names in (("audio", "video"), ("text",)):
        with pytest.raises(UserError, match="it needs text and at least one other, not"):
            spec = CorpusSpec(names, (3,) * len(names), (4,) * len(names))
            build_model(ModelConfig(name="almt"), spec)
