"""Whole runs of every task: what they report, what their files hold, and how they begin."""

import dataclasses
import io
import json
import math
import pathlib
import shutil
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from rich.console import Console
from tiny import rows_of, tiny_config

import msajax
from msajax.cli.bundles import run_generate
from msajax.cli.evaluate import evaluate_predictions, evaluate_run
from msajax.cli.finished import measure_robustness
from msajax.cli.options import Options
from msajax.cli.predict import predict as predict_corpus
from msajax.config import Config
from msajax.corpus.corpus import Split
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_native
from msajax.corpus.in_memory import corpus_of
from msajax.errors import UserError
from msajax.experiment import run as experiment
from msajax.inference.bundle import load_bundle
from msajax.inference.generate import _draw_token
from msajax.metrics.calibration import calibration_error, reliability
from msajax.models.build import parameter_shapes
from msajax.preparation.words import PADDING, UNKNOWN
from msajax.results.tables import print_results, print_summary
from msajax.robustness import measure

SIZES = {"train": 48, "valid": 16, "test": 16}
SEEDS = (0, 1)
EMOTIONS = ("happy", "sad", "[/angry]", "fear", "disgust", "surprise: größer")
ONE_HOT = ("negative", "neutral", "positive")
STANDING = {"optim__learning_rate": 1e-12, "optim__schedule": "constant"}  # nothing moves
SETTINGS = {
    "model__n_layers_fuse": 0,
    "model__dropout_rate": 0.0,
    "model__head": "mean",
    "model__qkv_bias": False,
    "model__out_bias": False,
    "optim__learning_rate": 0.03,
    "train__batch_size": 16,
    "train__epochs": 3,
    "train__seeds": len(SEEDS),
}
DECODER = {
    "data__text": "words",
    "data__min_count": 1,
    "model__name": "next_token",
    **{"model__n_layers_fuse": 1, "model__head": "weighted_sum"},  # as usual: it reads neither
    "model__causal": True,
    "model__n_layers_mod": 1,
}
WORDS = {"data__text": "words", "data__min_count": 1, "model__n_layers_mod": 1}


class Run(NamedTuple):
    """A finished run."""

    folder: pathlib.Path
    corpus: pathlib.Path
    config: Config
    results: dict[str, Any]


class Case(NamedTuple):
    """A corpus, and what its labels are to be taken for."""

    splits: dict[str, Split]
    names: tuple[str, ...] = ()
    integers: bool = False
    settings: dict[str, Any] = {}


def split_of(name: str, labels=None, text=None, raw_text=None) -> Split:
    ids = np.array([f"{name}{i}" for i in range(SIZES[name])])
    return Split(ids, {} if text is None else {"text": text}, {}, labels, raw_text)


def separable(stored) -> dict[str, Split]:
    """Three classes, each with a feature of its own; `stored` [3, K] is how their labels look."""
    made = {}
    for i, (name, size) in enumerate(SIZES.items()):
        rng = np.random.default_rng(i)
        classes = rng.permutation(np.arange(size) % 3)
        text = 0.3 * rng.normal(size=(size, 2, 3)) + 2 * np.eye(3)[classes][:, None]
        made[name] = split_of(name, np.array(stored, float)[classes], text.astype(np.float32))
    return made


def rated(outputs: int, low: float, high: float, steps: int) -> dict[str, Split]:
    """Scores on a scale, one of steps; the first follows a feature."""
    made = {}
    for i, (name, size) in enumerate(SIZES.items()):
        rng = np.random.default_rng(10 + i)
        labels = low + (high - low) / steps * rng.integers(0, steps + 1, (size, outputs))
        text = rng.normal(size=(size, 2, 3))
        text[:, :, 0] = labels[:, :1]
        made[name] = split_of(name, labels, text.astype(np.float32))
    return made


def spoken(words: str, rating: bool = False) -> dict[str, Split]:
    """Transcripts in which each word is followed by the next one of the list."""
    listed, made = words.split(), {}
    for i, (name, size) in enumerate(SIZES.items()):
        rng = np.random.default_rng(20 + i)
        first = rng.integers(0, len(listed), size)
        texts = [" ".join(listed[(f + k) % len(listed)] for k in range(4)) for f in first]
        labels = rng.integers(1, 8, (size, 1)) + 0.5 if rating else None
        made[name] = split_of(name, labels, raw_text=np.array(texts))
    return made


CASES = {
    "classes": lambda: Case(separable([[1], [3], [7]]), (), True),
    "one_hot": lambda: Case(separable(np.eye(3)), ONE_HOT),
    "ratings": lambda: Case(rated(17, 1, 7, 12), (), False, {**STANDING, "train__epochs": 1}),
    "emotions": lambda: Case(rated(6, 0, 3, 9), EMOTIONS),
    "decoder": lambda: Case(spoken("the film was good but long"), (), False, DECODER),
}
CLASSES = {"classes": ("1", "3", "7"), "one_hot": ONE_HOT}
OUTPUTS = {"ratings": tuple(str(k) for k in range(17)), "emotions": EMOTIONS}


def train(folder: pathlib.Path, case: Case) -> Run:
    corpus = corpus_of(case.splits, label_names=case.names, integers=case.integers)
    save_native(folder / "corpus.npz", corpus)
    path = {"data__path": str(folder / "corpus.npz")}
    config = tiny_config(**{**SETTINGS, **path, **case.settings})
    optimized = jax.config.read("jax_disable_most_optimizations")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # nothing here is undefined
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            results = experiment.train(config, str(folder / "run"))
        finally:
            jax.config.update("jax_disable_most_optimizations", optimized)
    return Run(folder / "run", folder / "corpus.npz", config, results)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """The run of a case, trained when a test first asks for it."""
    done: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in done:
            done[name] = train(tmp_path_factory.mktemp(name), CASES[name]())
        return done[name]

    return get


def table(rows: list[dict[str, str]], *columns: str) -> np.ndarray:
    """`[N, columns]`."""
    return np.array([[float(row[column]) for column in columns] for row in rows])


def stored_rows(run: Run) -> list[dict[str, str]]:
    return rows_of(run.folder / "predictions" / "test.csv")


def params_of(run: Run) -> dict[str, Any]:
    return load_bundle(run.folder / "bundle").params


# --- every task ---


@pytest.mark.parametrize("name", CASES)
def test_evaluating_a_run_gives_its_results_again(name, run_of):
    run = run_of(name)
    for split in ("valid", "test"):
        report = evaluate_run(str(run.folder), split)
        assert report["largest_difference"] == 0
        assert list(report["metrics"]) == list(run.results[split])
        for metric, stored in run.results[split].items():
            for key, value in stored.items():
                assert report["metrics"][metric][key] == value, (metric, key)
    assert report["ensemble"] == run.results["test_ensemble"]


@pytest.mark.parametrize("name", [*CLASSES, *OUTPUTS])
def test_evaluating_the_predictions_gives_the_results(name, run_of):
    run = run_of(name)
    report = evaluate_predictions(str(run.folder / "predictions" / "test.csv"))
    assert list(report["metrics"]) == list(run.results["test"])
    for metric, stored in run.results["test"].items():
        for key, value in stored.items():
            assert report["metrics"][metric][key] == pytest.approx(value, abs=1e-6), (metric, key)
    assert report["ensemble"] == pytest.approx(run.results["test_ensemble"], abs=1e-6)


@pytest.mark.parametrize("name", ["classes", "emotions", "decoder"])
def test_a_model_of_labels_has_robustness_curves(name, run_of, monkeypatch):
    run = run_of(name)
    monkeypatch.setattr(measure, "RATES", (0.0, 0.5))
    if name == "decoder":
        with pytest.raises(UserError, match="holds a model of the next_token task"):
            measure_robustness(str(run.folder))
        return
    report = measure_robustness(str(run.folder))
    kinds = [curve["kind"] for curve in report["curves"]]
    assert kinds == ["drop_modality", "drop_steps", "noise"]
    assert report["metrics"] == list(run.results["test"])
    learned = "mae_happy" if name == "emotions" else report["metric"]  # other emotions are chance
    for curve in report["curves"]:
        rest, worse = (point["metrics"][learned] for point in curve["points"])
        assert rest["mean"] == run.results["test"][learned]["mean"] < worse["mean"]


@pytest.mark.parametrize("name", CASES)
def test_predicting_needs_no_labels(name, run_of, tmp_path):
    run = run_of(name)
    test = dataclasses.replace(open_corpus(run.corpus).split("test"), labels=None)
    save_native(tmp_path / "c.npz", corpus_of({"test": test}))
    output = tmp_path / "p.csv"
    bundle = str(run.folder / "bundle")
    assert predict_corpus(bundle, str(tmp_path / "c.npz"), str(output)) == 16
    rows, before = rows_of(output), stored_rows(run)
    assert list(rows[0]) == list(before[0])
    for row, known in zip(rows, before, strict=True):
        for column, cell in row.items():
            expected = "" if column.partition("_")[0] == "label" else known[column]
            assert cell == expected, column


@pytest.mark.parametrize("name", CASES)
def test_results_are_printed_whatever_labels_are_called(name, run_of):
    run = run_of(name)
    report = evaluate_run(str(run.folder), "test")
    for show in (
        lambda console: print_results(run.results, console),
        lambda console: print_summary(f"[/b]{report['input']}", report, console),
    ):
        text = io.StringIO()
        show(Console(file=text, width=200))
        for metric in run.results["test"]:
            assert f"\n{metric} " in text.getvalue().replace("\n ", "\n"), metric


@pytest.mark.parametrize(
    ("name", "loss", "right"),
    [
        ("classes", "l1", "cross_entropy or focal, or auto"),
        ("one_hot", "huber", "cross_entropy or focal, or auto"),
        ("ratings", "cross_entropy", "l1 or mse or huber or ccc, or auto"),
        ("decoder", "mse", "cross_entropy, or auto"),
    ],
)
def test_a_loss_of_another_task_is_refused_before_anything_is_written(
    name, loss, right, tmp_path
):
    case = CASES[name]()
    case = case._replace(settings=case.settings | {"train__loss": loss})
    with pytest.raises(UserError, match=f"train.loss = '{loss}' does not suit .*: choose {right}"):
        train(tmp_path, case)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.npz"]


def test_a_metric_that_no_stored_seed_has_makes_no_difference(run_of, tmp_path):
    run = run_of("decoder")
    shutil.copytree(run.folder, tmp_path / "run")
    path = tmp_path / "run" / "results.json"
    results = json.loads(path.read_text())
    for values in results["test"].values():
        values["seeds"] = [None] * len(SEEDS)
    path.write_text(json.dumps(results))
    assert evaluate_run(str(tmp_path / "run"), "test")["largest_difference"] == 0


# --- classes ---


@pytest.mark.parametrize("name", CLASSES)
def test_a_model_learns_classes_that_can_be_told_apart(name, run_of):
    results = run_of(name).results
    floor = results["floors"]
    assert floor["majority"]["accuracy"] <= 0.5
    for split in ("valid", "test"):
        assert min(results[split]["accuracy"]["seeds"]) >= floor["majority"]["accuracy"] + 0.4
        entropy = results[split]["cross_entropy"]["seeds"]
        assert max(entropy) < floor["train_shares"]["cross_entropy"] - 0.3


@pytest.mark.parametrize("name", CLASSES)
def test_class_predictions_have_their_columns_and_follow_from_each_other(name, run_of):
    run, names = run_of(name), CLASSES[name]
    rows, scores = stored_rows(run), [f"score_{c}" for c in names]
    of_seeds = [[f"{s}_sd", *(f"{s}_seed{k}" for k in SEEDS)] for s in scores]
    assert list(rows[0]) == [
        *("id", "label", "predicted", *scores, *sum(of_seeds, [])),
        *("weight_text", "present_text"),
    ]
    mean = table(rows, *scores)
    by_seed = np.stack([table(rows, *(f"{s}_seed{k}" for s in scores)) for k in SEEDS])
    for p in (mean, *by_seed):
        assert (p >= 0).all()
        # Each is rounded to float32 by the program that computes it.
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=len(scores) * 2**-24)
    np.testing.assert_allclose(mean, by_seed.mean(axis=0), atol=2e-9)
    deviation = by_seed.std(axis=0, ddof=1)
    np.testing.assert_allclose(table(rows, *(f"{s}_sd" for s in scores)), deviation, atol=2e-9)
    assert [row["predicted"] for row in rows] == [names[k] for k in mean.argmax(axis=1)]
    labels = open_corpus(run.corpus).split("test").labels
    true = labels.argmax(axis=1) if name == "one_hot" else np.searchsorted([1, 3, 7], labels[:, 0])
    assert [row["label"] for row in rows] == [names[k] for k in true]


@pytest.mark.parametrize("name", CLASSES)
def test_class_results_follow_from_the_predictions(name, run_of):
    run, names = run_of(name), CLASSES[name]
    rows = stored_rows(run)
    true = np.array([names.index(row["label"]) for row in rows])

    def naive(p: np.ndarray) -> dict[str, float]:
        predicted = p.argmax(axis=1)
        return {
            "accuracy": np.mean(predicted == true),
            "f1_weighted": sklearn.metrics.f1_score(true, predicted, average="weighted"),
            "f1_macro": sklearn.metrics.f1_score(true, predicted, average="macro"),
            "uar": sklearn.metrics.balanced_accuracy_score(true, predicted),
            "cross_entropy": -np.log(p[np.arange(16), true]).mean(),
        }

    by_seed = [naive(table(rows, *(f"score_{c}_seed{k}" for c in names))) for k in SEEDS]
    for split in ("valid", "test"):
        assert list(run.results[split]) == list(by_seed[0])
    for metric, stored in run.results["test"].items():
        expected = [values[metric] for values in by_seed]
        assert stored["seeds"] == pytest.approx(expected, abs=1e-7), metric
        assert stored["mean"] == pytest.approx(np.mean(expected), abs=1e-7)
    p = table(rows, *(f"score_{c}" for c in names))
    stored = run.results["calibration"]
    assert (stored["kind"], stored["samples"], stored["optimistic"]) == ("temperature", 16, True)
    error = calibration_error(reliability(p, true))
    assert stored["test"]["ece_before"] == pytest.approx(error, abs=1e-7)
    scores = load_bundle(run.folder / "bundle").predict(
        open_corpus(run.corpus).split("test").features
    )
    powers = p ** (1 / stored["temperature"])
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scores.calibrated, expected, rtol=1e-5, atol=1e-7)
    assert scores.low is None
    ensemble = naive(p)
    assert run.results["test_ensemble"] == pytest.approx(ensemble, abs=1e-7)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    for k in SEEDS:
        of_seed = [line for line in map(json.loads, lines) if line["seed"] == k]
        chosen = [line["valid_cross_entropy"] for line in of_seed]
        assert run.results["best_epoch"][k] == 1 + int(np.argmin(chosen))


def test_stored_numbers_stand_for_the_same_classes_however_they_are_stored(run_of):
    """1, 3, 7 and one-hot rows in that order: the same targets, so the same run."""
    one, other = run_of("classes"), run_of("one_hot")
    assert one.results["test"] == other.results["test"]
    jax.tree.map(np.testing.assert_array_equal, params_of(one), params_of(other))
    assert load_bundle(one.folder / "bundle").preparation.classes == (1, 3, 7)
    assert load_bundle(other.folder / "bundle").preparation.classes == ()


def test_predicting_a_corpus_with_another_class_leaves_labels_out(run_of, tmp_path, caplog):
    run = run_of("classes")
    test = open_corpus(run.corpus).split("test")
    labels = test.labels + (np.arange(16) == 3)[:, None]  # one is 2, 4 or 8 now
    other = corpus_of({"test": dataclasses.replace(test, labels=labels)}, integers=True)
    save_native(tmp_path / "c.npz", other)
    bundle, output = str(run.folder / "bundle"), str(tmp_path / "p.csv")
    predict_corpus(bundle, str(tmp_path / "c.npz"), output)
    assert {row["label"] for row in rows_of(tmp_path / "p.csv")} == {""}
    assert "Labels that do not suit the model's classification of 1, 3, 7" in caplog.text
    with pytest.raises(UserError, match="row 1: label is '', not one of the classes 1, 3, 7"):
        evaluate_predictions(str(tmp_path / "p.csv"))


# --- several outputs ---


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_have_their_columns_and_results_follow_from_them(name, run_of):
    run, names = run_of(name), OUTPUTS[name]
    rows, scores = stored_rows(run), [f"score_{n}" for n in OUTPUTS[name]]
    y = table(rows, *(f"label_{n}" for n in names))
    of_seeds = [[f"{s}_sd", *(f"{s}_seed{k}" for k in SEEDS)] for s in scores]
    assert list(rows[0]) == [
        *("id", *(f"label_{n}" for n in names), *scores),
        *(f"{end}_{n}" for n in names for end in ("low", "high")),
        *("interval", *sum(of_seeds, []), "weight_text", "present_text"),
    ]
    ends = {end: table(rows, *(f"{end}_{n}" for n in names)) for end in ("low", "high")}
    inside = (ends["low"] <= y) & (y <= ends["high"])
    measured = run.results["calibration"]["test"]
    assert measured["coverage"] == pytest.approx(inside.mean(axis=0))
    assert measured["width"] == pytest.approx((ends["high"] - ends["low"]).mean(axis=0))
    np.testing.assert_allclose(y, open_corpus(run.corpus).split("test").labels, rtol=1e-8)
    mean, results = table(rows, *scores), run.results
    for k in SEEDS:
        p = table(rows, *(f"score_{n}_seed{k}" for n in names))
        mae = np.abs(p - y).mean(axis=0)
        corr = [np.corrcoef(p[:, i], y[:, i])[0, 1] for i in range(len(names))]
        assert results["test"]["mae"]["seeds"][k] == pytest.approx(mae.mean(), abs=1e-7)
        assert results["test"]["corr"]["seeds"][k] == pytest.approx(np.mean(corr), abs=1e-6)
        for i, output in enumerate(names):
            assert results["test"][f"mae_{output}"]["seeds"][k] == pytest.approx(mae[i], abs=1e-7)
            stored = results["test"][f"corr_{output}"]["seeds"][k]
            assert stored == pytest.approx(corr[i], abs=1e-6)
    assert results["test_ensemble"]["mae"] == pytest.approx(np.abs(mean - y).mean(), abs=1e-7)
    train_labels = open_corpus(run.corpus).split("train").labels
    floor = np.abs(y - np.median(train_labels, axis=0)).mean(axis=0)
    assert results["floors"]["train_median"] == pytest.approx(
        {"mae": floor.mean(), **{f"mae_{n}": e for n, e in zip(names, floor, strict=True)}}
    )


def test_the_output_that_follows_a_feature_is_learned(run_of):
    results = run_of("emotions").results
    assert results["test_ensemble"][f"corr_{EMOTIONS[0]}"] > 0.7
    floor = results["floors"]["train_median"][f"mae_{EMOTIONS[0]}"]
    assert results["test_ensemble"][f"mae_{EMOTIONS[0]}"] < 0.75 * floor


# --- tokens ---


def test_a_decoder_reports_what_its_predictions_hold(run_of):
    run = run_of("decoder")
    rows = stored_rows(run)
    scores = ["score_negative_log_likelihood", "score_tokens"]
    of_seeds = [[f"{s}_sd", *(f"{s}_seed{k}" for k in SEEDS)] for s in scores]
    assert list(rows[0]) == [
        *("id", *scores, *sum(of_seeds, []), "weight_text", "present_text", "raw_text")
    ]
    assert {row["score_tokens"] for row in rows} == {"3"}  # of four words
    assert list(run.results["test"]) == ["cross_entropy", "perplexity"]
    for k in SEEDS:
        nats = table(rows, f"score_negative_log_likelihood_seed{k}").sum() / (3 * 16)
        stored = {m: values["seeds"][k] for m, values in run.results["test"].items()}
        assert stored == pytest.approx(
            {"cross_entropy": nats, "perplexity": math.exp(nats)}, rel=1e-7
        )
    report = evaluate_predictions(str(run.folder / "predictions" / "test.csv"))
    for metric, values in run.results["test"].items():
        assert report["metrics"][metric]["seeds"] == pytest.approx(values["seeds"], rel=1e-7)


def test_a_decoder_learns_which_word_comes_next(run_of):
    results = run_of("decoder").results
    floor = results["floors"]["train_shares"]
    assert floor["perplexity"] == pytest.approx(6, rel=0.1)  # six words, each as likely
    assert max(results["test"]["perplexity"]["seeds"]) < 0.7 * floor["perplexity"]


# --- text that a decoder continues ---


@pytest.fixture(scope="module")
def decoder(run_of):
    return load_bundle(run_of("decoder").folder / "bundle")


def what_follows(bundle, words: list[str]) -> np.ndarray:
    """The probability of each word of the vocabulary behind a text, by what `predict` scores."""
    texts = [" ".join([*words, word]) for word in bundle.preparation.words[2:]]
    nats = bundle.predict(raw_text=[" ".join(words), *texts]).seeds[:, :, 0]
    p = np.exp(nats[:, :1] - nats[:, 1:]).mean(axis=0)  # of padding and unknown words, too
    return p / p.sum()


def test_the_likeliest_word_follows_at_temperature_0(decoder):
    for words in (["film", "was", "good"], ["long", "the", "was"]):
        likeliest = decoder.preparation.words[2 + what_follows(decoder, words).argmax()]
        assert msajax.generate(decoder, words, 1, 0) == [likeliest]
        assert (
            msajax.generate(decoder, f"{words[0].upper()}, {words[1]} {words[2]}?", 1, 0)
            == likeliest
        )


def test_words_are_drawn_as_often_as_their_probability_at_a_temperature_says(decoder):
    words, draws = ["film", "was", "good"], 500
    p = what_follows(decoder, words)
    vocabulary = decoder.preparation.words[2:]
    for temperature in (1.0, 3.0):
        expected = p ** (1 / temperature) / (p ** (1 / temperature)).sum() * draws
        drawn = [msajax.generate(decoder, words, 1, temperature, k)[0] for k in range(draws)]
        found = np.array([drawn.count(word) for word in vocabulary])
        often = expected > 5
        found, expected = (np.append(x[often], x[~often].sum()) for x in (found, expected))
        kept = expected > 0
        deviation = (np.square(found - expected)[kept] / expected[kept]).sum()
        assert deviation < scipy.stats.chi2.ppf(0.999, kept.sum() - 1)
    assert often.sum() >= 3


def test_a_text_goes_on_behind_its_last_words_by_one_program(decoder):
    """The longest text of training has four words."""
    words = ["the", "film", "was", "good", "but", "long"]
    for temperature in (0, 2.0):
        one_by_one = list(words)
        found = msajax.generate(decoder, words, 9, temperature, 3)
        assert found == msajax.generate(decoder, words[-4:], 9, temperature, 3) and len(found) == 9
        assert found[:4] == msajax.generate(decoder, words, 4, temperature, 3)
        if temperature == 0:
            for _ in range(9):
                one_by_one += msajax.generate(decoder, one_by_one[-4:], 1, 0)
            assert one_by_one[6:] == found
    others = {tuple(msajax.generate(decoder, words, 9, 2.0, seed)) for seed in range(5)}
    assert len(others) > 1
    assert decoder.next_token.func._cache_size() == 1


def test_a_decoder_of_token_ids_continues_token_ids(decoder):
    preparation = dataclasses.replace(decoder.preparation, words=())
    of_ids = dataclasses.replace(decoder, preparation=preparation)
    ids = [decoder.preparation.words.index(word) for word in ("film", "was")]
    found = msajax.generate(of_ids, ids, 3, 0)
    named = [decoder.preparation.words[id_] for id_ in found]
    assert named == msajax.generate(decoder, ["film", "was"], 3, 0)
    assert msajax.generate(of_ids, " ".join(map(str, ids)), 3, 0) == " ".join(map(str, found))
    for wrong in ([2, 8], [0], [-1], [True], "2 x", ["a"], [2.5]):
        with pytest.raises(UserError, match="is no token of this decoder, .* ids from 1 to 7"):
            msajax.generate(of_ids, wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("the movie",), "'movie' is not among the 6 words that this decoder was trained on"),
        ((["the", "<padding>"],), "'<padding>' is not among"),
        ((["the", 3],), "'3' is not among"),
        (("?!",), "nothing to continue"),
        (([],), "nothing to continue"),
        ((None,), r"words is of type NoneType: it must be a text \(str\), or a list of tokens"),
        ((5,), "words is of type int"),
        ((b"the",), "words is of type bytes"),
        (("the", 0), "steps = 0 must be a whole number of 1 or more"),
        (("the", 2.0), "steps = 2.0 must be"),
        (("the", 1, -1), "temperature = -1 must be a number of 0 or more"),
        (("the", 1, float("nan")), "temperature = nan must be"),
        (("the", 1, 1, -1), "seed = -1 must be a whole number of 0 or more"),
    ],
)
def test_what_cannot_be_continued_is_refused_by_name(decoder, given, message):
    with pytest.raises(UserError, match=message):
        msajax.generate(decoder, *given)


@pytest.mark.filterwarnings("error")
def test_the_least_temperature_above_0_takes_the_likeliest():
    rng = np.random.default_rng(0)
    assert {_draw_token(np.array([0.2, 0.5, 0.0, 0.3]), 5e-324, rng) for _ in range(20)} == {1}


def test_a_bundle_of_another_task_continues_nothing(run_of):
    with pytest.raises(UserError, match="a model of the regression task, which continues no text"):
        msajax.generate(run_of("emotions").folder / "bundle", "the")


def test_the_command_line_continues_each_line_of_a_text(run_of, decoder, tmp_path, capsys):
    lines = ["The film was", "good, but", "long"]
    source, output = tmp_path / "lines.txt", tmp_path / "more.txt"
    source.write_text("\r\n".join(lines) + "\n")
    bundle = run_of("decoder").folder / "bundle"

    def run(**more) -> int:
        given = {"bundle": str(bundle), "input": str(source), "output": str(output), "steps": 3}
        given |= {"temperature": 1.5, "sample_seed": 7, **more}
        options = Options("generate", Config(), {}, given, (), lambda: None, print)
        return run_generate(options, Console())

    expected = [msajax.generate(decoder, line, 3, 1.5, 7) for line in lines]
    assert run() == 0
    assert output.read_text().splitlines() == expected
    capsys.readouterr()
    assert run(output=None) == 0 and capsys.readouterr().out.splitlines() == expected
    source.write_text("the film\nthe movie\n")
    blank = tmp_path / "blank.txt"
    blank.write_text("the film\n\n")
    for wrong, message in (
        ({}, "more.txt is there already"),
        ({"output": str(tmp_path / "x")}, "lines.txt, line 2: 'movie' is not among the 6 words"),
        ({"input": str(blank), "output": None}, "blank.txt, line 2 is blank, .*: remove it, or"),
        ({"output": str(bundle / "x")}, "lies inside the bundle"),
        ({"output": None, "input": str(tmp_path / "no")}, "no cannot be read as text in UTF-8"),
    ):
        with pytest.raises(UserError, match=message):
            run(**wrong)
    assert not (tmp_path / "x").exists()


def test_a_decoder_needs_no_label_and_a_run_of_labels_does(run_of, tmp_path):
    assert open_corpus(run_of("decoder").corpus).headers["train"].label_names == ()
    case = CASES["decoder"]()._replace(settings=WORDS)
    with pytest.raises(UserError, match="split 'train' has no labels"):
        train(tmp_path, case)


@pytest.mark.parametrize("name", ["train", "valid"])
def test_a_split_without_a_next_token_is_refused_before_training(name, tmp_path):
    case = CASES["decoder"]()
    single = np.array(["film"] * SIZES[name])
    case.splits[name] = dataclasses.replace(case.splits[name], raw_text=single)
    settings = {"data__truncate": "first"}  # of train alone, whose table may have one row
    with pytest.raises(UserError, match=f"split '{name}': no sequence has two steps in a row"):
        train(tmp_path, case._replace(settings=case.settings | settings))
    assert not (tmp_path / "run").exists()


# --- from a bundle ---


@pytest.fixture(scope="module")
def begun(run_of, tmp_path_factory) -> tuple[Run, Run]:
    """A decoder, and a run of three seeds that begins from its two and stays there."""
    source = run_of("decoder")
    settings = {
        **WORDS,
        **STANDING,
        "train__epochs": 1,
        "train__seeds": 3,
        "model__init_from": str(source.folder / "bundle"),
    }
    case = Case(spoken("some film was dull but long", rating=True), (), False, settings)
    return source, train(tmp_path_factory.mktemp("begun"), case)


def test_a_run_begins_from_what_a_bundle_has_in_common_with_it(begun):
    source, run = begun
    there, here = params_of(source), params_of(run)

    def equal(mine, given):
        np.testing.assert_allclose(mine, np.asarray(given)[[0, 1, 0]], rtol=0, atol=1e-9)

    jax.tree.map(equal, here["text_encoder"]["blocks_0"], there["text_encoder"]["blocks_0"])
    equal(
        here["text_encoder"]["positions"]["embedding"],
        there["text_encoder"]["positions"]["embedding"],
    )
    words = load_bundle(run.folder / "bundle").preparation.words
    known = load_bundle(source.folder / "bundle").preparation.words
    assert set(words) - set(known) == {"some", "dull"} and known[:2] == (PADDING, UNKNOWN)
    mine, given = here["text_embedding"]["embedding"], there["text_embedding"]["embedding"]
    for row, word in enumerate(words):
        if word in known:
            equal(mine[:, row], given[:, known.index(word)])
        else:  # random, another for each seed
            assert min(np.abs(mine[a, row] - mine[b, row]).max() for a, b in ((0, 1), (0, 2))) > 0.1
    kernels = here["regression"]["kernel"]
    assert np.abs(kernels[0] - kernels[2]).max() > 0.1
    median = np.median(open_corpus(run.corpus).split("train").labels)
    np.testing.assert_allclose(here["regression"]["bias"], median, rtol=1e-7)


def test_the_parameters_to_be_loaded_are_those_that_a_model_has(begun):
    for run in begun:
        bundle = load_bundle(run.folder / "bundle")
        leaves = jax.tree_util.tree_leaves_with_path(bundle.params)
        assert parameter_shapes(run.config.model, bundle.preparation.spec) == {
            jax.tree_util.keystr(path, simple=True, separator="/"): x.shape[1:]
            for path, x in leaves
        }


def test_a_run_notes_what_it_began_from(begun):
    _, run = begun
    report = json.loads((run.folder / "run.json").read_text())["initial"]["bundle"]
    of_text = report["modules"]["text_encoder"]
    assert of_text[0] == of_text[1]
    assert report["modules"]["text_embedding"] == [6 * 8, 8 * 8]
    assert report["modules"]["regression"] == [0, 9]
    assert report["loaded"] == of_text[0] + 48
    assert report["of"] == run.results["model"]["parameters"]
    assert report["notes"]["text_embedding/embedding"] == "6 of 8 words"


def test_a_run_that_begins_from_all_of_a_bundle_and_stays_there_has_its_results(run_of, tmp_path):
    source = run_of("emotions")
    settings = STANDING | {"train__epochs": 1, "model__init_from": str(source.folder / "bundle")}
    run = train(tmp_path, CASES["emotions"]()._replace(settings=settings))

    def equal(mine, given):
        np.testing.assert_allclose(mine, given, rtol=0, atol=1e-9)

    jax.tree.map(equal, params_of(run), params_of(source))
    for metric, values in source.results["test"].items():
        assert run.results["test"][metric]["seeds"] == pytest.approx(values["seeds"], abs=1e-6)
    report = json.loads((run.folder / "run.json").read_text())["initial"]["bundle"]
    assert report["loaded"] == report["of"] == source.results["model"]["parameters"]


def test_a_run_that_finds_nothing_in_a_bundle_is_refused_before_anything_is_written(
    run_of, tmp_path
):
    source = run_of("decoder")
    case = CASES["classes"]()
    settings = {"model__init_from": str(source.folder / "bundle")}
    settings["model__positions"] = "sinusoidal"  # or the rows of its table would be in common
    with pytest.raises(UserError, match="model.init_from: no parameter of that bundle fits"):
        train(tmp_path, case._replace(settings=settings))
    settings = {"model__init_from": str(tmp_path / "nowhere")}
    with pytest.raises(UserError, match="There is no bundle at .*nowhere"):
        train(tmp_path, case._replace(settings=settings))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.npz"]
