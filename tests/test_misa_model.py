"""MISA: its terms against NumPy, on rows and modalities that count, and the toolkit's lengths."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msajax.config import ModelConfig, TrainConfig
from msajax.errors import UserError
from msajax.models.build import build_model
from msajax.models.contract import Prediction
from msajax.models.peers.misa import terms
from msajax.models.peers.settings import MisaSettings
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.objective import loss_of

ALL = ("text", "audio", "video")
SPEC = CorpusSpec(ALL, (5, 3, 2), (6, 7, 4))
ROWS, D = 9, 4


def config_of(**settings) -> ModelConfig:
    own = MisaSettings(**{"hidden": D, "num_heads": 2, "ff_dim": 6, **settings})
    return ModelConfig(name="misa", own=own)


def batch_of(row_weight: np.ndarray) -> Batch:
    rows = len(row_weight)
    return Batch({}, {}, jnp.zeros((rows, 1)), jnp.asarray(row_weight), jnp.arange(rows))


def prediction_of(present: np.ndarray, **changes) -> Prediction:
    rng = np.random.default_rng(0)
    names = ("projected", "private", "shared", "rebuilt")
    vectors = {n: rng.uniform(size=(len(present), 3, D)) for n in names} | {"present": present}
    aux = {name: jnp.asarray(x) for name, x in {**vectors, **changes}.items()}
    return Prediction(jnp.zeros((len(present), 1)), jnp.zeros((len(present), 3)), aux)


def measured(prediction: Prediction, batch: Batch) -> dict[str, float]:
    loss = loss_of("regression", "mse", TrainConfig())
    found = {n: t.measure(prediction, batch) for n, t in terms(config_of(), "task", loss).items()}
    return {n: float(total / weight) for n, (total, weight) in found.items() if n != "task"}


def test_terms_are_their_formulas_over_the_rows_that_count_and_the_modalities_they_have():
    rng = np.random.default_rng(1)
    present = rng.random((ROWS, 3)) < 0.7
    row_weight = np.float32(rng.random(ROWS) < 0.8)
    prediction = prediction_of(present)
    aux = {name: np.float64(x) for name, x in prediction.aux.items()}
    there = present & (row_weight > 0)[:, None]

    def overlap(a, b):
        units = []
        for x in (a, b):
            x = x - x.mean(0)
            units.append(x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-6))
        return ((units[0].T @ units[1]) ** 2).mean()

    diff, sim = 0, []
    for i in range(3):
        rows = there[:, i]
        diff += overlap(aux["private"][rows, i], aux["shared"][rows, i])
    for i, j in itertools.combinations(range(3), 2):
        rows = there[:, i] & there[:, j]
        diff += overlap(aux["private"][rows, i], aux["private"][rows, j])
        a, b = aux["shared"][there[:, i], i], aux["shared"][there[:, j], j]
        apart = np.linalg.norm(a.mean(0) - b.mean(0))
        for k in range(2, 6):
            moments = (((x - x.mean(0)) ** k).mean(0) for x in (a, b))
            apart += np.linalg.norm(np.subtract(*moments))
        sim.append(apart)
    recon = np.square(aux["rebuilt"] - aux["projected"])[there].mean()
    expected = {"diff": diff, "sim": np.mean(sim), "recon": recon}
    assert measured(prediction, batch_of(row_weight)) == pytest.approx(expected, rel=1e-5)

    # What stands in the other rows and places is not read.
    spoilt = {n: np.where(there[..., None], x, 7) for n, x in aux.items() if n != "present"}
    again = measured(prediction_of(present, **spoilt), batch_of(row_weight))
    assert again == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rows", [0, 1])
def test_terms_and_gradients_are_finite_where_nothing_varies(rows):
    present = np.arange(3)[:, None] < np.array([rows, rows, 3])
    prediction = prediction_of(present, shared=np.full((3, 3, D), 0.5))
    batch, loss = batch_of(np.ones(3, np.float32)), loss_of("regression", "mse", TrainConfig())

    def total(aux):
        own = terms(config_of(), "task", loss)
        return sum(t.measure(prediction.replace(aux=aux), batch)[0] for t in own.values())

    floats = {n: x for n, x in prediction.aux.items() if n != "present"}
    slopes = jax.value_and_grad(lambda x: total({**x, "present": prediction.aux["present"]}))
    value, gradient = jax.jit(slopes)(floats)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert float(value) >= 0


def inputs() -> tuple[dict, dict]:
    rng = np.random.default_rng(0)
    sizes = zip(ALL, SPEC.lengths, SPEC.widths, strict=True)
    x = {m: np.float32(rng.normal(size=(4, steps, width))) for m, steps, width in sizes}
    lengths = {"text": [6, 2, 3, 1], "audio": [7, 7, 1, 4], "video": [1, 4, 2, 4]}
    return x, {m: np.arange(x[m].shape[1]) < np.array(lengths[m])[:, None] for m in ALL}


def test_the_toolkit_reads_every_modality_for_as_many_steps_as_text_has():
    features, masks = inputs()
    theirs = build_model(config_of(compat="reference"), SPEC)
    ours = jax.jit(build_model(config_of(), SPEC).apply)
    variables = jax.jit(theirs.init)(jax.random.key(0), features, masks)
    first = {m: np.arange(x.shape[1]) < masks["text"].sum(1)[:, None] for m, x in masks.items()}
    zeroed = {m: np.where(masks[m][..., None], x, 0) for m, x in features.items()}
    expected = ours(variables, zeroed, first).score
    score = jax.jit(theirs.apply)(variables, features, masks).score
    np.testing.assert_allclose(score, expected, rtol=1e-6)
    assert np.abs(score - ours(variables, features, masks).score).max() > 1e-3
    with pytest.raises(UserError, match="as many steps as text has"):
        build_model(config_of(compat="reference"), CorpusSpec(("audio",), (3,), (7,)))


def test_a_modality_that_a_sample_lacks_is_seen_by_nothing():
    features, masks = inputs()
    masks["audio"][2] = False
    module = build_model(config_of(), SPEC)
    variables = jax.jit(module.init)(jax.random.key(0), features, masks)
    other, apply = jax.tree.map(jnp.copy, variables), jax.jit(module.apply)
    for name in ("audio_projection", "audio_private", "audio_recurrent"):
        part = variables["params"][name]
        other["params"][name] = jax.tree.map(lambda x: x + 1, part)
    one, two = (apply(v, features, masks).score for v in (variables, other))
    np.testing.assert_array_equal(one[2], two[2])
    assert (np.abs(one - two)[[0, 1, 3]] > 1e-6).all()


def test_a_term_of_weight_zero_is_none():
    loss = loss_of("regression", "mse", TrainConfig())
    found = terms(config_of(sim_weight=0.0, diff_weight=0.5), "mse", loss)
    assert {name: term.weight for name, term in found.items()} == {
        "mse": 1.0, "diff": 0.5, "recon": 1.0,
    }  # fmt: skip
