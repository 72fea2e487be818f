"""DLF: scores and terms computed again with NumPy, a sample at a time without any padding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crossmodal_numpy import (
    built,
    check_learns,
    encoder,
    number,
    positioned,
    projected,
    refined,
    samples_of,
)
from layer_formulas import dense

from msajax.config import ModelConfig, TrainConfig
from msajax.models.peers.dlf import terms, triplets
from msajax.models.peers.settings import DlfSettings
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.objective import loss_of

KERNELS = {"text_kernel": 3, "audio_kernel": 1, "video_kernel": 2}
OWN = DlfSettings(d_model=6, num_heads=2, num_layers=1, **KERNELS)
SPEC = CorpusSpec(("audio", "text", "video"), (3, 4, 5), (6, 7, 8))
LENGTHS = {"text": (7, 3, 5, 0), "audio": (5, 6, 0, 4), "video": (8, 1, 6, 5)}
LABELS = np.float32([[1.5], [-0.5], [1.5], [3]])


def last(x):
    return x[-1] if len(x) else np.zeros(x.shape[1])


def squares(x):
    return np.square(x).mean() if x.size else 0.0


def outcome_of(sample, p, own):
    """Scores by name, what the terms of one sample are, and the vectors of what it has."""
    names, width = list(sample), own.d_model

    def encode(x, weights, context=None):
        if not len(x):
            return x
        read = None if context is None else positioned(context, own)
        return encoder(positioned(x, own), read, weights, own)

    private, shared, common, vectors, terms = {}, {}, [], {}, dict.fromkeys(TERMS, 0.0)
    for i, m in enumerate(names):
        size = getattr(own, f"{m}_kernel")
        x = projected(sample[m], p[f"{m}_projection"]["kernel"], size)
        private[m] = encode(x, number(p["private"], i))
        shared[m] = encode(x, number(p["shared"], 0))
        rebuilt = dense(p[f"{m}_decoder"], np.concatenate([private[m], shared[m]], axis=1))
        terms["rebuilt"] += squares(rebuilt - x)
        terms["again"] += squares(encode(rebuilt, number(p["private"], i)) - private[m])
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                   for a, b in zip(private[m], shared[m], strict=True)]  # fmt: skip
        terms["apart"] += np.maximum(cosines, 0).mean() if cosines else 0
        kernel = p[f"{m}_vector"]["kernel"][: len(x)].reshape(-1, width)
        if len(x):
            vectors[m] = shared[m].ravel() @ kernel + p[f"{m}_vector"]["bias"]
        common.append(last(encode(shared[m], number(p["common"], i))))
    common = np.concatenate(common)
    scores = {"shared": dense(p["shared_regression"], refined(common, p, "shared_post"))}
    found = {"text": encode(private["text"], number(p["text"], 0))}
    for i, m in enumerate(m for m in names if m != "text"):
        x = encode(private["text"], number(p["between"], i), private[m])
        found[m] = encode(x, number(p["memory"], i))
    parts = []
    for m, x in found.items():
        x = refined(last(x), p, f"{m}_post")
        scores[m] = dense(p[f"{m}_regression"], x)
        parts.append(dense(p[f"{m}_gate"], x))
    x = np.concatenate([*parts, dense(p["shared_gate"], common)])
    scores["all"] = dense(p["regression"], refined(1 / (1 + np.exp(-x)), p, "post"))
    return scores, terms, vectors


TERMS = ("rebuilt", "again", "apart")


def near_of(vectors, labels):
    """The loss of triplets, of lists."""
    units = [v / np.linalg.norm(v) for v in vectors]
    losses = []
    for i, anchor in enumerate(units):
        rows = [k for k in range(len(units)) if k != i]
        same = [k for k in rows if labels[k] == labels[i]]
        other = [k for k in rows if labels[k] != labels[i]]
        excess = [max(0, 0.15 * abs(labels[i] - labels[n]) - anchor @ units[p] + anchor @ units[n])
                  for p, n in itertools.product(same, other)]  # fmt: skip
        if excess:
            losses.append(np.mean(excess))
    return np.mean(losses)


def test_scores_and_terms_are_those_of_each_sample_alone():
    module, params, features, masks = built("dlf", OWN, SPEC, LENGTHS)
    prediction = jax.jit(module.apply)({"params": params}, features, masks)
    exact = jax.tree.map(np.float64, params)
    rows = range(len(LABELS))
    each = [outcome_of(sample, exact, OWN) for sample in samples_of(features, LENGTHS)]
    scores = {k: np.array([scores[k] for scores, _, _ in each]) for k in each[0][0]}
    np.testing.assert_allclose(prediction.score, scores["all"], rtol=2e-5, atol=2e-5)
    for key in ("text", "audio", "video", "shared"):
        score = prediction.aux[f"score_{key}"]
        np.testing.assert_allclose(score, scores[key], rtol=2e-5, atol=2e-5)

    weight = np.ones(len(rows), np.float32)
    batch = Batch(features, masks, jnp.asarray(LABELS), jnp.asarray(weight), jnp.arange(len(rows)))
    loss = loss_of("regression", "l1", TrainConfig())
    config = ModelConfig(name="dlf", own=OWN)
    found = {}
    for key, term in terms(config, "l1", loss).items():
        total, count = term.measure(prediction, batch)
        found[key] = float(total / count)
    vectors = [(v, float(LABELS[i, 0])) for i in rows for v in each[i][2].values()]
    of_scores = {k: np.abs(x - LABELS).mean() for k, x in scores.items()}
    expected = {
        "l1": of_scores["all"], "text": of_scores["text"],
        "others": sum(of_scores[k] for k in ("audio", "video", "shared")),
        "near": near_of(*zip(*vectors, strict=True)),
        **{key: np.mean([terms[key] for _, terms, _ in each]) for key in TERMS},
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=3e-5)


def test_triplets_without_a_pair_have_a_loss_and_slopes_of_zero():
    vectors, counts = jnp.zeros((4, 3)), jnp.array([True, True, False, False])

    def total(vectors):
        labels = jnp.arange(4.0)[:, None]
        return triplets(vectors, labels, counts, lambda one, other: jnp.abs(one - other).sum())[0]

    value, slope = jax.jit(jax.value_and_grad(total))(vectors)
    assert value == 0 and not slope.any()


def test_every_parameter_learns_and_absent_modalities_leave_gradients_finite():
    spec = CorpusSpec(("audio", "text"), (3, 4), (5, 7))  # which become as long
    lengths = {"text": (7, 3, 5, 0), "audio": (5, 4, 0, 4)}
    module, params, features, masks = built("dlf", OWN, spec, lengths)
    config, loss = ModelConfig(name="dlf", own=OWN), loss_of("regression", "l1", TrainConfig())
    weight, rows = jnp.float32([1, 1, 1, 1]), jnp.arange(4)
    batch = Batch(features, masks, jnp.asarray(LABELS), weight, rows)

    @jax.jit
    @jax.grad
    def slopes(params, key):
        rngs = {"dropout": key}
        prediction = module.apply({"params": params}, features, masks, train=True, rngs=rngs)
        found = terms(config, "l1", loss).values()
        return sum(t.weight * t.measure(prediction, batch)[0] for t in found)

    blocks = ("private", "shared", "common", "text", "between", "memory")
    check_learns(slopes(params, jax.random.key(0)), *blocks)
