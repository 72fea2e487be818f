"""--mode explain: what was planted is found again; what it writes, and what it refuses."""

import json
import pathlib

import numpy as np
import pytest
import scipy.stats
from tiny import tiny_config_dict

import msajax
from msajax.cli import corpora, explain, modes
from msajax.cli.explain import explain_corpus, explain_run
from msajax.cli.options import Options
from msajax.config import SYNTHETIC, Config, from_config_dict
from msajax.corpus.on_demand import take_rows
from msajax.corpus.synthetic import generate
from msajax.errors import UserError
from msajax.report.explanation.integrate import Explained, integrate
from msajax.results.finished import open_finished
from msajax.runs.folder import RunFolder

MODALITIES = ("text", "audio")
SAMPLES = 64  # whose contributions are compared with what was planted


def train(folder: pathlib.Path, **settings) -> str:
    """Trains a run of one seed, large enough to learn what is planted."""
    usual = {
        "data__synthetic__valid": 100,
        "data__synthetic__test": SAMPLES,
        "data__standardize": (),
        "model__model_dim": 16,
        "model__ff_dim": 32,
        "model__dropout_rate": 0.0,
        "train__batch_size": 32,
        "train__seeds": 1,
        "train__patience": 0,
    }
    msajax.train(from_config_dict(tiny_config_dict(**usual | settings)), folder)
    return str(folder)


def contributions_of(workdir: str) -> tuple[Explained, np.ndarray]:
    """Explains all test samples of a run; also their modality weights."""
    run = open_finished(RunFolder(workdir), "test")
    scored = run.score("test")
    few = take_rows(scored.split, np.arange(SAMPLES))
    return integrate(run.bundle, few, np.zeros(SAMPLES, int), lambda _: None), scored


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return float(scipy.stats.spearmanr(np.ravel(a), np.ravel(b))[0])


def test_planted_signs_and_stresses_are_found_again(tmp_path, capsys):
    """Of a sign score every step's product counts; of a stress score one valence alone."""
    said = {}
    for task in ("sign", "stress"):  # of the same shapes: one set of compiled programs
        workdir = train(
            tmp_path / task,
            data__synthetic__task=task,
            data__synthetic__train=3000,
            data__synthetic__widths=(2, 2),
            data__synthetic__lengths=(3, 3),
            optim__learning_rate=1e-2,
            train__epochs=18,
        )
        found, scored = contributions_of(workdir)
        v, a = (scored.split.features[m][..., 0].astype(float) for m in ("text", "audio"))
        both = found.contributions["text"] + found.contributions["audio"]
        if task == "sign":
            said["sign, both modalities"] = spearman(both, v * a)
        else:  # all but one step of a sample are ties: 1 is out of reach
            said["stress, text"] = spearman(found.contributions["text"], v * (a == 3))
            said["stressed step first"] = np.mean(np.abs(both).argmax(1) == (a == 3).argmax(1))
    with capsys.disabled():
        print("", *(f"{name}: {value:.3f}" for name, value in said.items()), sep="\n")
    assert said["sign, both modalities"] > 0.6
    assert said["stress, text"] > 0.6
    assert said["stressed step first"] > 0.85  # chance is a third


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> str:
    """A run on the default corpus, small, which two tests explain and the others read."""
    return train(
        tmp_path_factory.mktemp("whole") / "run",
        data__synthetic__train=800,
        data__synthetic__widths=(48, 48),
        data__synthetic__lengths=(2, 2),
        data__standardize=("auto",),
        train__epochs=8,
        train__seeds=2,
        optim__learning_rate=3e-3,
    )


def test_reliabilities_of_modalities_are_found_again(whole, capsys):
    """A step carries the score times its modality's reliability: shares follow that."""
    found, scored = contributions_of(whole)
    config = msajax.load(f"{whole}/bundle").config.data.synthetic
    reliability = generate(config).reliability["test"]
    planted = np.stack([reliability[m] for m in found.contributions], 1)
    of_modality = np.stack([x.sum(1) for x in found.contributions.values()], 1)
    size = np.abs(of_modality)
    of_score = scored.split.labels - found.baseline[:, None]
    said = {
        "shares": spearman(
            size / size.sum(1, keepdims=True), planted / planted.sum(1, keepdims=True)
        ),
        "reliability x (label - baseline)": spearman(of_modality, planted * of_score),
    }
    with capsys.disabled():
        print("", *(f"{name}: {value:.3f}" for name, value in said.items()), sep="\n")
    assert said["shares"] > 0.6  # of the evidence of a sample, so that labels decide nothing


# --- the mode ---


@pytest.fixture(scope="module")
def explained(whole) -> dict:
    """What the mode writes of that run."""
    return explain_run(whole, "test", samples=6)


def test_explanations_hold_what_is_promised(whole, explained):
    written = json.loads((pathlib.Path(whole) / "explanation.json").read_text())
    assert written == json.loads(json.dumps(explained))
    assert "</script>" in (pathlib.Path(whole) / "explanation.html").read_text()
    rules = ("best predicted", "worst predicted", *(f"most moved by {m}" for m in MODALITIES))
    assert [sample["why"] for sample in written["samples"]] == [
        *[rules[0]] * 2, *[rules[1]] * 2, *rules[2:],
    ]  # fmt: skip
    assert len({sample["id"] for sample in written["samples"]}) == 6
    predictions = msajax.api.Result(whole, {}).predictions("test")
    row_of = {name: k for k, name in enumerate(predictions["id"])}
    worst = np.abs(predictions["score"] - predictions["label"]).argmax()
    assert row_of[written["samples"][2]["id"]] == worst
    for sample in written["samples"]:
        row = row_of[sample["id"]]
        assert sample["score"] == pytest.approx(predictions["score"][row], abs=1e-6)
        assert sample["label"] == pytest.approx(predictions["label"][row], abs=1e-6)
        for m in MODALITIES:
            assert sample["weights"][m] == pytest.approx(predictions[f"weight_{m}"][row], abs=1e-6)
        total = sum(map(sum, sample["contributions"].values()))
        error = abs(total - (sample["score"] - sample["baseline"]))
        assert error == pytest.approx(sample["completeness_error"], abs=1e-4)
        for one in sample["attention"]:
            steps = [len(sample["contributions"][one[side]]) for side in ("from", "to")]
            maps = np.array([one["thousandths"], *one["heads"]]) / 1000
            assert maps.shape == (1 + 2, *steps)
            np.testing.assert_allclose(maps.sum(2), 1, atol=0.01)
        there = [m for m in MODALITIES if sample["contributions"][m]]
        assert [(one["part"], one["from"], one["to"]) for one in sample["attention"]] == [
            ("fusion", "text", m) for m in there if m != "text" and "text" in there
        ]
    assert written["attention"] == {"cells": 64, "heads": True, "heads_of_seed": 0}
    assert written["summary"]["completeness"]["relative_median"] < 0.01
    assert list(written["summary"]["mean_absolute_contribution"]) == list(MODALITIES)


def test_a_bundle_explains_a_corpus_as_its_run_does(whole, explained, tmp_path):
    config = msajax.load(f"{whole}/bundle").config.data
    corpus, page = str(tmp_path / "corpus.npz"), str(tmp_path / "why.html")
    corpora.convert(SYNTHETIC, config, corpus)
    found = explain_corpus(f"{whole}/bundle", corpus, page, "test", samples=6)
    assert [s["id"] for s in found["samples"]] == [s["id"] for s in explained["samples"]]
    for one, other in zip(found["samples"], explained["samples"], strict=True):
        for m, x in one["contributions"].items():
            np.testing.assert_allclose(x, other["contributions"][m], 1e-3, 1e-5)
    assert json.loads((tmp_path / "why.json").read_text())["samples"][0]["id"]
    with pytest.raises(UserError, match="must end in .html"):
        explain_corpus(f"{whole}/bundle", corpus, str(tmp_path / "why.json"), "test")
    with pytest.raises(UserError, match="why.html is there already"):
        explain_corpus(f"{whole}/bundle", corpus, page, "test")
    with pytest.raises(UserError, match="lies inside the bundle"):
        explain_corpus(f"{whole}/bundle", corpus, f"{whole}/bundle/why.html", "test")


def test_what_cannot_be_explained_is_one_sentence(whole, tmp_path):
    with pytest.raises(UserError, match="no run that has ended"):
        explain_run(str(tmp_path), "test")
    with pytest.raises(UserError, match="--target=joy is no output of this model; it has"):
        explain_run(whole, "test", target="joy")
    for given, message in (
        ({}, "needs --workdir=RUN, or --bundle with --input"),
        ({"workdir": whole, "bundle": "b"}, "not both: leave out --bundle"),
        ({"bundle": "b", "input": "i"}, "needs --output"),
        ({"workdir": whole, "split": "all"}, "takes one split"),
        ({"workdir": whole, "samples": 1001}, "--samples=1001: a page holds at most 1000"),
    ):
        given = dict.fromkeys(modes.MODES["explain"].flags) | given
        options = Options("explain", Config(), {}, given, (), join=None, complain=None)
        with pytest.raises(UserError, match=message):
            explain.run(options, None)
    (tmp_path / "fold_0").mkdir()
    with pytest.raises(UserError, match="holds folds: --mode=explain takes one of them"):
        explain_run(str(tmp_path), "test")
