"""MMIM: its scores and every term of its objective, computed anew with NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from layer_formulas import dense
from scipy.special import expit
from toys import recipe_of, steps

from msajax.config import Config, ModelConfig, OptimConfig, TrainConfig
from msajax.errors import UserError
from msajax.models.build import build_model, declared
from msajax.models.contract import Prediction
from msajax.models.peers.settings import MmimSettings
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.training.objective import make_objective

NO_DROPOUT = {"audio_dropout": 0.0, "video_dropout": 0.0, "fusion_dropout": 0.0}


def lstm(params, steps):
    """The state after steps `[T, d]` of one sample, 0 after none."""
    state = cell = np.zeros(len(params["state_kernel"]))
    for x in steps:
        gates = x @ params["input_kernel"] + params["input_bias"] + params["state_bias"]
        i, f, g, o = np.split(gates + state @ params["state_kernel"], 4)
        cell = expit(f) * cell + expit(i) * np.tanh(g)
        state = expit(o) * np.tanh(cell)
    return state


def rendered(params, spec, batch, compat, by_sign=True):
    """The scores, and the terms as means."""
    names, rows = spec.modalities, np.flatnonzero(batch.row_weight)
    masks = {m: np.asarray(batch.masks[m]) for m in names}
    there = {m: masks[m].any(1) for m in names}
    vectors = {}
    for m in names:
        found = []
        for x, mask in zip(np.float64(batch.features[m]), masks[m], strict=True):
            if m == "text":
                found.append(x[mask].mean(0) if compat == "clean" else x[mask][0])
                continue
            of = params[f"{m}_subnet"]
            both = [lstm(of["forward"], x[mask]), lstm(of["backward"], x[mask][::-1])]
            found.append(dense(of["linear"], np.concatenate(both)) * mask.any())
        vectors[m] = np.array(found)
    anchor = "text" if "text" in names else names[0]
    log_q, entropy = np.zeros(len(batch.labels)), 0.0
    label = np.asarray(batch.labels[:, 0])
    groups = [label > 0, label < 0] if by_sign else [np.isfinite(label)]
    for m in names:
        if m == anchor:
            continue
        of, x, y = params[f"{m}_estimator"], vectors[anchor], vectors[m]
        mean, log_variance = (
            dense(of[f"{name}_1"], np.maximum(dense(of[f"{name}_0"], x), 0))
            for name in ("mean", "log_variance")
        )
        if compat == "clean":
            variance = np.exp(np.tanh(log_variance))
            each = -((y - mean) ** 2) / (2 * variance) - np.log(variance) / 2
        else:
            each = -((y - mean) ** 2) / (2 * np.exp(log_variance))
        log_q += each.sum(1) * there[m] * there[anchor]
        z = np.tanh(dense(params[f"{m}_projection"], y))
        for group in groups:
            chosen = z[group & there[m] & (batch.row_weight > 0)]
            if len(chosen) > z.shape[1]:
                spread = np.atleast_2d(np.cov(chosen.T, bias=True)) + 1e-6 * np.eye(z.shape[1])
                entropy += np.log(np.linalg.det(spread)) / (2 * len(groups))
    fused = np.concatenate([vectors[m] for m in names], axis=1)
    for number in range(2):
        fused = np.tanh(dense(params[f"fusion_{number}"], fused))
    nce = 0.0
    for m in names:
        kept = [i for i in rows if there[m][i]]
        x, told = vectors[m][kept], dense(params[f"{m}_predictor"], fused[kept])
        x, told = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, told))
        alike = x @ told.T
        nce += (np.log(np.exp(alike).sum(1)) - np.diag(alike)).mean()
    return dense(params["regression"], fused), {
        "nce": nce, "log_likelihood": log_q[rows].mean(), "entropy": entropy
    }  # fmt: skip


def batch_of(spec, size, labels, rng):
    """Padding anywhere, which is not finite; a row that only fills; a modality that one lacks."""
    features, masks = {}, {}
    for m in spec.modalities:
        masks[m] = rng.random((size, spec.length(m))) < 0.7
        masks[m][:, rng.integers(spec.length(m))] = True
        masks[m][2] &= m != spec.modalities[-1]
        x = rng.normal(size=(size, spec.length(m), spec.width(m)))
        features[m] = np.where(masks[m][..., None], x, np.nan).astype("f4")
    weight = np.ones(size, "f4")
    weight[-2] = 0
    return Batch(features, masks, np.float32(labels), weight, np.arange(size))


CASES = {
    "clean": (("text", "audio", "video"), (6, 3, 5), (5, 4, 3), {}),
    "reference": (("text", "audio", "video"), (7, 3, 4), (2, 4, 3), {"compat": "reference"}),
    "without text": (("audio", "pose"), (3, 5), (4, 3), {"audio_out": 4, "video_out": 9}),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_and_terms_are_those_of_the_formulas(case):
    modalities, widths, lengths, own = CASES[case]
    spec, rng = CorpusSpec(modalities, widths, lengths), np.random.default_rng(1)
    sizes = {"audio_lstm": 3, "video_lstm": 4, "audio_out": 8, "video_out": 6, "fusion": 7}
    config = ModelConfig(name="mmim", own=MmimSettings(**sizes | NO_DROPOUT | own))
    batch = batch_of(spec, 13, rng.normal(size=(13, 1)), rng)
    module, model = build_model(config, spec), declared(config)
    params = jax.jit(module.init)(jax.random.key(0), batch.features, batch.masks)["params"]
    objective = make_objective(Config(model=config), model, "regression")

    @jax.jit
    def loss(params):
        prediction = module.apply({"params": params}, batch.features, batch.masks, train=True)
        terms = {name: t.measure(prediction, batch) for name, t in objective.terms.items()}
        total = sum(objective.terms[k].weight * x / w for k, (x, w) in terms.items())
        return total, ({k: x / w for k, (x, w) in terms.items()}, prediction)

    gradient, (terms, prediction) = jax.grad(loss, has_aux=True)(params)
    params = jax.tree.map(np.float64, params)
    score, expected = rendered(params, spec, batch, config.own.compat)
    np.testing.assert_allclose(prediction.score, score, atol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    flat = {path: np.abs(x).max() for path, x in flatten_dict(gradient, sep="/").items()}
    assert np.isfinite(list(flat.values())).all()
    assert min(flat.values()) > 0
    # Of classes and of several scores the entropy is that of all rows.
    _, expected = rendered(params, spec, batch, config.own.compat, by_sign=False)
    for loss_name, labels in (("cross_entropy", batch.labels), ("l1", np.tile(batch.labels, 2))):
        term = model.terms(config, loss_name, None)["entropy"]
        value, weight = term.measure(prediction, batch.replace(labels=labels))
        np.testing.assert_allclose(value / weight, expected["entropy"], rtol=1e-5)


def test_a_batch_without_enough_of_a_sign_has_no_entropy_nor_slope():
    batch = Batch({}, {"audio": np.ones((4, 1), bool)}, np.ones((4, 1)), np.ones(4), np.arange(4))
    term = declared(ModelConfig(name="mmim")).terms(ModelConfig(name="mmim"), "l1", None)["entropy"]

    def entropy(x):
        return term.measure(Prediction(None, None, {"projected_audio": x}), batch)[0]

    value, slope = jax.jit(jax.value_and_grad(entropy))(jnp.ones((4, 4)))
    assert value == 0 and not slope.any()


def test_the_first_stage_moves_the_estimators_alone():
    spec, rng = CorpusSpec(("text", "audio"), (6, 3), (5, 4)), np.random.default_rng(1)
    own = MmimSettings(audio_lstm=3, audio_out=4, fusion=5, first_share=0.5)
    config = Config(
        model=ModelConfig(name="mmim", own=own), train=TrainConfig(),
        optim=OptimConfig(learning_rate=0.01, schedule="constant"),
    )  # fmt: skip
    batch = jax.tree.map(jnp.asarray, batch_of(spec, 10, rng.normal(size=(10, 1)), rng))
    recipe = recipe_of(config, spec, passes=(1, 1))
    assert [stage.share for stage in recipe.stages] == [0.5, 1]
    states, log = steps(recipe, [batch, batch], spec=spec)
    assert [float(metrics.skipped) for metrics in log] == [0, 0]
    before, first, second = (flatten_dict(state.params, sep="/") for state in states)
    for path in before:
        assert bool((first[path] != before[path]).any()) == ("_estimator/" in path), path
        assert (second[path] != first[path]).any(), path


def test_a_single_modality_is_refused():
    with pytest.raises(UserError, match="needs two or more, not audio alone"):
        build_model(ModelConfig(name="mmim"), CorpusSpec(("audio",), (3,), (4,)))
