"""Calibration: intervals that hold what they promise, temperatures, and how sure a model is."""

import dataclasses
import json
import math
import pathlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tiny

from msajax.cli.evaluate import evaluate_run
from msajax.cli.predict import predict
from msajax.corpus.corpus import Split
from msajax.corpus.folds import deal_validation, video_of
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_native
from msajax.corpus.in_memory import corpus_of
from msajax.corpus.on_demand import streams, take_rows
from msajax.corpus.predictions import read_columns
from msajax.errors import UserError
from msajax.experiment import run as experiment
from msajax.inference.bundle import load_bundle
from msajax.metrics.calibration import (
    BINS,
    Basis,
    Intervals,
    Temperature,
    calibration_error,
    from_dict,
    reliability,
)
from msajax.preparation.apply import prepare
from msajax.preparation.fit import fit
from msajax.results import legend
from msajax.tasks import make_task

BASIS = Basis(0, "video", False)


def fitted(scores, labels) -> Intervals | None:
    return Intervals.fit(np.asarray(scores, float), np.asarray(labels, float), BASIS)


# --- intervals ---


def test_the_quantile_is_the_error_of_its_rank():
    """Errors 1, 2, ... n in any order: the quantile is the rank itself, ceil(0.9 (n + 1))."""
    rng = np.random.default_rng(0)
    for n, rank in ((9, 9), (10, 10), (18, 18), (19, 18), (29, 27), (99, 90), (1000, 901)):
        errors = rng.permutation(np.arange(1.0, n + 1)) * rng.choice((-1, 1), n)
        found = fitted(np.zeros((1, n, 1)), errors[:, None])
        assert (found.quantile, found.floor) == ((rank,), (None,))
    for n in range(9):
        assert fitted(np.zeros((1, n, 1)), np.zeros((n, 1))) is None


def test_the_spread_of_seeds_scales_the_intervals_but_not_below_its_median():
    """Two seeds at mean ∓ d have the deviation d sqrt(2): of d = 1 to 9 the median is that of 5."""
    d = np.arange(1.0, 10)
    scores = np.stack([10 - d, 10 + d])[..., None]
    found = fitted(scores, 10 + 2 * d[:, None])
    assert found.floor == pytest.approx((5 * math.sqrt(2),))
    # The ratios are 2 d / (max(d, 5) sqrt(2)); their largest, from d = 5 on, is sqrt(2).
    assert found.quantile == pytest.approx((math.sqrt(2),))
    low, high = found.bounds(np.array([[[1.0]], [[3.0]]]))  # d = 1 counts as 5
    assert (low.item(), high.item()) == pytest.approx((2 - 10, 2 + 10))
    low, high = found.bounds(np.array([[[-6.0]], [[10.0]]]))
    assert (low.item(), high.item()) == pytest.approx((2 - 16, 2 + 16))
    ends = dataclasses.replace(found, quantile=(1.0,)).measure(scores, 10 + 6 * d[:, None])
    # |error| 6 d against max(d, 5) sqrt(2): inside for d = 1 alone.
    assert ends["coverage"] == [pytest.approx(1 / 9)]
    assert ends["width"] == [pytest.approx(2 * math.sqrt(2) * (5 * 5 + 6 + 7 + 8 + 9) / 9)]


def test_every_output_has_its_own_and_one_without_spread_is_not_normalised():
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=(3, 50, 4)), rng.normal(size=(50, 4))
    scores[:, :26, 2] = scores[:1, :26, 2]  # most samples have no spread: the median is 0
    scores[:, :, 3] *= 100
    together = fitted(scores, labels)
    for k in range(4):
        alone = fitted(scores[..., [k]], labels[:, [k]])
        assert (together.quantile[k], together.floor[k]) == (alone.quantile[0], alone.floor[0])
    assert together.floor[2] is None and together.to_dict()["normalised"]
    errors = np.sort(np.abs(labels - scores.mean(axis=0))[:, 2])
    assert together.quantile[2] == errors[46 - 1]  # ceil(0.9 * 51)
    low, high = together.bounds(scores)
    np.testing.assert_allclose((high - low)[:, 2], 2 * together.quantile[2])


def test_a_new_sample_lies_in_its_interval_as_often_as_promised():
    """Errors as large as the seeds' spread: 0.9 <= coverage <= 0.9 + 1 / (n + 1), normalised."""
    rng = np.random.Generator(np.random.PCG64(1))
    n, draws, covered, narrow = 99, 300, 0.0, 0.0
    new = 200
    for _ in range(draws):
        spread = rng.uniform(0.1, 2, (n + new, 1))
        scores = rng.normal(size=(3, n + new, 1)) * spread
        labels = scores.mean(axis=0) + rng.normal(size=(n + new, 1)) * spread
        found = fitted(scores[:, :n], labels[:n])
        covered += found.measure(scores[:, n:], labels[n:])["coverage"][0] / draws
        widths = np.subtract(*found.bounds(scores[:, n:])[::-1])
        narrow += np.corrcoef(widths[:, 0], spread[n:, 0])[0, 1] / draws
    error = 4 * math.sqrt(0.1 * 0.9 * (1 / n + 1 / new) / draws)
    assert 0.9 - error < covered < 0.9 + 1 / (n + 1) + error
    assert narrow > 0.5  # wide where seeds differ


# --- temperatures ---


def classes(seed: int, n: int = 120, sharp: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities `[3, n, 4]` of three seeds, and classes that are drawn less surely."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 4))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(4, p=row) for row in p])[:, None].astype(float)
    noisy = np.exp(sharp * logits + 0.3 * rng.normal(size=(3, n, 4)))
    return noisy / noisy.sum(axis=-1, keepdims=True), labels


def loss(scores: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    powers = scores.mean(axis=0) ** (1 / temperature)
    p = powers / powers.sum(axis=1, keepdims=True)
    return -np.log(p[np.arange(len(p)), labels[:, 0].astype(int)]).mean()


@pytest.mark.parametrize("sharp", [0.5, 1.0, 3.0])
def test_the_temperature_is_the_minimum_that_scipy_finds(sharp):
    scores, labels = classes(int(10 * sharp), sharp=sharp)
    found = Temperature.fit(scores, labels, BASIS)
    best = scipy.optimize.minimize_scalar(
        lambda t: loss(scores, labels, t), bounds=(0.05, 20), method="bounded",
        options={"xatol": 1e-9},
    )
    assert found.temperature == pytest.approx(best.x, rel=1e-5)
    assert loss(scores, labels, found.temperature) <= best.fun * (1 + 1e-12)
    assert found == Temperature.fit(scores, labels, BASIS)
    scaled = found.scaled(scores)
    np.testing.assert_allclose(scaled.sum(axis=1), 1)
    np.testing.assert_array_equal(scaled.argmax(axis=1), scores.mean(axis=0).argmax(axis=1))


def test_temperatures_end_where_they_are_looked_for():
    p = np.tile([[0.7, 0.2, 0.1]], (9, 1))[None]
    right, wrong = np.zeros((9, 1)), np.full((9, 1), 2.0)
    assert Temperature.fit(p, right, BASIS).temperature == pytest.approx(0.05)
    assert Temperature.fit(p, wrong, BASIS).temperature == pytest.approx(20)
    assert Temperature.fit(p[:, 1:], right[1:], BASIS) is None
    # Two thirds right at 0.5 against 0.25: p = 2/3 needs 2^(1/T) = 4 with two classes left out.
    p = np.tile([[0.5, 0.25, 0.25]], (9, 1))[None]
    labels = np.array([0.0] * 6 + [1.0, 1.0, 2.0])[:, None]
    assert Temperature.fit(p, labels, BASIS).temperature == pytest.approx(0.5)


def test_the_expected_calibration_error_against_a_loop():
    scores, labels = classes(3, 500)
    p, y = scores.mean(axis=0), labels[:, 0]
    error = 0.0
    for m in range(BINS):
        rows = [i for i in range(500) if m / BINS < max(p[i]) <= (m + 1) / BINS]
        if rows:
            accuracy = sum(list(p[i]).index(max(p[i])) == y[i] for i in rows) / len(rows)
            error += len(rows) / 500 * abs(accuracy - sum(max(p[i]) for i in rows) / len(rows))
    measured = Temperature.fit(scores, labels, BASIS).measure(scores, labels)
    assert measured["ece_before"] == pytest.approx(error, rel=1e-12)
    assert measured["ece_after"] < 0.5 * error
    assert sum(each["count"] for each in measured["bins"]) == 500


def test_reliability_bins_hold_their_upper_end():
    p = np.array([[k / 15, 1 - k / 15] for k in range(8, 16)])
    assert [b["count"] for b in reliability(p, np.zeros(8))] == [1] * 8
    p = np.array([[0.75, 0.25]] * 4)  # three of four right: no error
    assert calibration_error(reliability(p, np.array([0, 0, 0, 1]))) == 0


def test_a_calibration_is_its_json_again():
    scores, labels = classes(0)
    rng = np.random.default_rng(0)
    basis = Basis(120, "sample", True)
    for made in (
        Temperature.fit(scores, labels, basis),
        Intervals.fit(rng.normal(size=(2, 30, 2)), rng.normal(size=(30, 2)), basis),
        Intervals.fit(rng.normal(size=(1, 30, 1)), rng.normal(size=(30, 1)), basis),
    ):
        text = json.dumps(made.to_dict(), allow_nan=False)
        assert from_dict(json.loads(text), type(made)) == made
        assert "optimistic: it chose the epoch" in made.describe()


# --- which samples ---


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.99])
def test_a_video_is_never_torn(share):
    rng = np.random.default_rng(0)
    ids = np.array([f"v{v}[{i}]" for v in range(12) for i in range(rng.integers(1, 9))])
    ids = rng.permutation(ids)
    dealt = deal_validation(ids, share, "valid")
    assert dealt.by == "video" and (dealt.chooses ^ dealt.calibrates).all()
    sides = [{video_of(id_) for id_ in ids[rows]} for rows in dealt[:2]]
    assert not sides[0] & sides[1] and all(sides)
    # Nearer than a video's 8 samples, but for the one that each side keeps.
    wanted = np.clip(share * len(ids), 1, len(ids) - 1)
    assert abs(dealt.calibrates.sum() - wanted) < 8
    order = rng.permutation(len(ids))
    again = deal_validation(ids[order], share, "valid")
    np.testing.assert_array_equal(again.calibrates, dealt.calibrates[order])


def test_ids_without_videos_are_dealt_by_sample_and_one_video_is_refused():
    dealt = deal_validation([str(i) for i in range(20)], 0.25, "valid")
    assert dealt.by == "sample" and dealt.calibrates.sum() == 5
    for ids in (["7"] * 5, ["a[1]", "a[2]"]):
        everything = deal_validation(ids, 0, "valid")
        assert everything.chooses.all() and everything.calibrates.all()
        with pytest.raises(UserError, match="calibration_share = 0.5: c.npz: valid has samples of"):
            deal_validation(ids, 0.5, "c.npz: valid")


def test_rows_of_a_split_that_streams_are_those_of_one_that_does_not():
    rng = np.random.default_rng(0)
    features = {"text": rng.normal(size=(9, 4, 3)), "audio": rng.normal(size=(9, 2, 2))}
    split = Split(np.array([f"v[{i}]" for i in range(9)]), features, {}, rng.normal(size=(9, 1)))
    config = tiny.tiny_config(data__path="memory", model__modalities=("text", "audio"))
    preparation = fit(corpus_of({"train": split}), config.data, config.model)
    whole, streamed = (prepare(split, preparation, budget)[0] for budget in (math.inf, 0))
    chosen = np.arange(9) % 3 != 1
    cut, lazy = take_rows(whole, chosen), take_rows(streamed, chosen)
    twice = take_rows(lazy, np.arange(6) > 1)
    assert streams(lazy) and streams(twice) and not streams(cut) and len(lazy) == 6
    assert lazy.ids.tolist() == cut.ids.tolist() == split.ids[chosen].tolist()
    for m in features:
        np.testing.assert_array_equal(cut.features[m], whole.features[m][chosen])
        np.testing.assert_array_equal(lazy.features[m][:, :2], cut.features[m][:, :2])
        rows = np.array([4, 1])
        np.testing.assert_array_equal(lazy.features[m][rows, :1], cut.features[m][rows, :1])
        np.testing.assert_array_equal(twice.features[m][rows[1:], :], cut.features[m][[3]])
        np.testing.assert_array_equal(lazy.masks[m], cut.masks[m])
    assert take_rows(whole, np.ones(9, bool)) is whole


# --- runs ---

SETTINGS = {
    **tiny.SMALLEST, "data__synthetic__valid": 60, "data__synthetic__test": 30, "train__epochs": 3,
    "train__seeds": 3, "optim__learning_rate": 0.03,
}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory) -> SimpleNamespace:
    """A run that holds out a share of validation, and one whose validation is the rest alone."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {**SETTINGS, "train__calibration_share": 0.4}
    corpus = open_corpus("synthetic", tiny.tiny_config(**settings).data)
    splits = {name: corpus.split(name) for name in ("train", "valid", "test")}
    ids = [f"v{i % 11}[{i}]" for i in range(60)]
    splits["valid"] = dataclasses.replace(splits["valid"], ids=np.array(ids))
    save_native(folder / "all.npz", corpus_of(splits))
    dealt = deal_validation(ids, 0.4, "valid")
    cut = take_rows(splits["valid"], dealt.chooses)
    save_native(folder / "cut.npz", corpus_of(splits | {"valid": cut}))
    config = tiny.tiny_config(**settings, data__path=str(folder / "all.npz"))
    results = experiment.train(config, str(folder / "run"))
    alone = tiny.tiny_config(**SETTINGS, data__path=str(folder / "cut.npz"))
    rest = tiny.run(alone, folder / "rest")
    return SimpleNamespace(folder=folder, dealt=dealt, config=config, results=results, rest=rest)


def columns_of(run: SimpleNamespace, split: str) -> dict[str, np.ndarray]:
    return read_columns(str(run.folder / "run" / "predictions" / f"{split}.csv"))


def test_samples_that_calibrate_do_not_choose_the_epoch(held_out):
    """Parameters, epochs and every metric of validation are those of a run without it."""
    bundle = load_bundle(held_out.folder / "run" / "bundle")
    jax.tree.map(
        np.testing.assert_array_equal,
        bundle.variables,
        jax.device_get(held_out.rest.variables),
    )
    assert bundle.best_epoch == held_out.rest.best_epoch
    lines = [tiny.lines_of(held_out.folder / name) for name in ("run", "rest")]
    assert lines[0] == lines[1]
    maes = [
        line["valid_mae"]
        for k, epoch in enumerate(bundle.best_epoch)
        for line in lines[1]
        if (line["seed"], line["epoch"]) == (k, epoch)
    ]
    assert held_out.results["valid"]["mae"]["seeds"] == pytest.approx(maes, abs=1e-6)


def test_the_intervals_of_a_run_are_those_of_its_predictions(held_out):
    of, rows = columns_of(held_out, "calibration"), held_out.dealt.calibrates
    assert len(of["id"]) == rows.sum() and 15 < rows.sum() < 33
    chose = columns_of(held_out, "valid")
    assert len(chose["id"]) == 60 - rows.sum() and not {*chose["id"]} & {*of["id"]}
    mae = held_out.results["valid"]["mae"]["seeds"][0]
    assert np.abs(chose["score_seed0"] - chose["label"]).mean() == pytest.approx(mae, abs=1e-7)
    deviation = np.std([of[f"score_seed{k}"] for k in range(3)], axis=0, ddof=1)
    floor = np.median(deviation)
    ratio = np.abs(of["label"] - of["score"]) / np.maximum(deviation, floor)
    quantile = np.sort(ratio)[math.ceil(0.9 * (rows.sum() + 1)) - 1]
    stored = held_out.results["calibration"]
    test = columns_of(held_out, "test")
    inside = (test["low"] <= test["label"]) & (test["label"] <= test["high"])
    assert stored == {
        "kind": "interval",
        "level": 0.9,
        "normalised": True,
        "samples": rows.sum(),
        "by": "video",
        "optimistic": False,
        "quantile": [pytest.approx(quantile, rel=1e-6)],
        "floor": [pytest.approx(floor, rel=1e-6)],
        "test": {
            "coverage": [inside.mean()],
            "width": [pytest.approx((test["high"] - test["low"]).mean())],
        },
    }
    half = quantile * np.maximum(deviation, floor)
    np.testing.assert_allclose(of["low"], of["score"] - half, atol=1e-6)
    np.testing.assert_allclose(of["high"], of["score"] + half, atol=1e-6)
    said = f"calibrated on {rows.sum()} validation samples that chose nothing"
    assert set(of["interval"]) == set(test["interval"]) == {said}
    sentence = legend.calibration(held_out.results, held_out.results["test"])
    assert f"hold {100 * inside.mean():.1f} % of the test labels" in sentence and said in sentence


def test_bundle_and_evaluation_give_the_intervals_of_the_file_again(held_out, tmp_path):
    bundle = load_bundle(held_out.folder / "run" / "bundle")
    stored = open_corpus(str(held_out.folder / "all.npz")).split("test")
    scores, test = bundle.predict(stored.features), columns_of(held_out, "test")
    np.testing.assert_allclose(scores.low[:, 0], test["low"], rtol=1e-6)
    np.testing.assert_allclose(scores.high[:, 0], test["high"], rtol=1e-6)
    assert scores.low.shape == (30, 1) and scores.calibrated is None
    nothing = bundle.predict({"text": np.zeros((0, 1, 6))})
    assert nothing.low.shape == nothing.high.shape == (0, 1)
    predict(
        str(held_out.folder / "run" / "bundle"), str(held_out.folder / "all.npz"),
        str(tmp_path / "p.csv"), "test",
    )
    written = held_out.folder / "run" / "predictions" / "test.csv"
    assert (tmp_path / "p.csv").read_bytes() == written.read_bytes()
    workdir = str(held_out.folder / "run")
    valid, test = (evaluate_run(workdir, name) for name in ("valid", "test"))
    assert valid["samples"] == held_out.dealt.chooses.sum()  # what chose
    assert valid["largest_difference"] < 1e-6 and "calibration" not in valid
    assert test["calibration"] == held_out.results["calibration"]


def test_the_share_is_of_a_runs_identity_and_refused_before_anything_is_written(
    held_out, tmp_path: pathlib.Path
):
    other = dataclasses.replace(held_out.config.train, calibration_share=0.3)
    with pytest.raises(UserError, match=r"train.calibration_share: 0\.4 there, 0\.3 here"):
        experiment.train(
            dataclasses.replace(held_out.config, train=other), str(held_out.folder / "run")
        )
    one_video = tiny.tiny_config(
        **SETTINGS | {"data__synthetic__valid": 10, "train__calibration_share": 0.5}
    )
    with pytest.raises(UserError, match="valid has samples of one video only"):
        experiment.train(one_video, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_too_few_samples_give_no_interval_and_say_so(tmp_path, caplog):
    config = tiny.tiny_config(
        **SETTINGS | {"data__synthetic__valid": 8, "train__epochs": 1, "train__seeds": 1}
    )
    results = experiment.train(config, str(tmp_path / "run"))
    assert results["calibration"] is None
    assert load_bundle(tmp_path / "run" / "bundle").calibration is None
    assert "low" not in read_columns(str(tmp_path / "run" / "predictions" / "test.csv"))
    assert "8 validation sample(s) are too few, of which 9 would do" in caplog.text
    sentence = legend.calibration(results, results["test"])
    assert sentence == "The scores have no 90 % interval: fewer than 9 validation samples."


def test_calibrations_in_words():
    task = make_task("regression", ("a", "b"), None)
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(1, 19, 2)), rng.normal(size=(19, 2))
    found = task.calibrate(scores, labels, Basis(19, "video", True)).to_dict()
    found["test"] = {"coverage": [0.85, 0.912], "width": [1.5, 2.25]}
    assert legend.calibration({"calibration": found}, task.reported) == (
        "The 90 % intervals of the ensemble's score of each output hold 85.0 to 91.2 % of the test "
        "labels, and are 1.500 to 2.250 wide in the mean (calibrated on validation, 19 samples; "
        "optimistic: it chose the epoch)."
    )
    singly = Basis(9, "sample", False).describe()
    assert singly.endswith("that chose nothing, dealt one by one as ids name no videos")
    task = make_task("classification", tuple("abcd"), None)
    found = task.calibrate(*classes(0), BASIS).to_dict()
    found["test"] = {"ece_before": 0.08, "ece_after": 0.0312, "bins": []}
    said = legend.calibration({"calibration": found}, task.reported)
    assert "calibration error of 8.0 % on test, 3.1 % at temperature" in said
    assert "no temperature" in legend.calibration({"calibration": None}, task.reported)
    tokens = make_task("next_token", (), None)
    assert legend.calibration({"calibration": None}, tokens.reported) == ""
    assert legend.calibration({}, task.reported) == ""  # results of an older version
