"""Every subset of modalities is an ordinary run, paired with all; and a run loses its inputs."""

import dataclasses
import itertools
import json
import pathlib

import numpy as np
import pytest
import survivors
from rich.console import Console
from tiny import snapshot, tiny_config

from msajax.cli.finished import measure_robustness
from msajax.config import Config, ModelConfig
from msajax.corpus.predictions import Predictions
from msajax.errors import UserError
from msajax.experiment import run as experiment
from msajax.results.finished import open_finished
from msajax.robustness import disturbances
from msajax.robustness.measure import DRAWS, RATES, print_robustness
from msajax.runs.folder import RunFolder
from msajax.runs.lock import Lock
from msajax.spec import CorpusSpec
from msajax.studies import ablation
from msajax.studies.ablation import print_ablation, sentences, without_lost_steps
from msajax.tasks import make_task

NAMES = ["text+audio", "text", "audio"]
CONFIG = tiny_config(
    data__synthetic__lengths=(2, 1),
    model__anchor="text",
    model__n_layers_fuse=0,
    model__dropout_rate=0.0,
    model__overrides=("audio.ff_dim=8",),
    optim__groups=("audio_encoder/*:learning_rate=1e-3",),
    train__transforms=("modality_dropout:*=0.2", "feature_noise:audio=0.1"),
    train__epochs=2,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[pathlib.Path, dict]:
    """All subsets; the first start ends in the middle of the second."""
    folder = tmp_path_factory.mktemp("ablation") / "run"
    assert ablation.ablate(CONFIG, str(folder), stop_after_epochs=3) is None
    lines = {name: survivors.lines_of(folder / name) for name in NAMES[:2]}
    assert [len({line["epoch"] for line in of_run}) for of_run in lines.values()] == [2, 1]
    assert sorted(path.name for path in folder.iterdir()) == ["text", "text+audio"]
    return folder, ablation.ablate(CONFIG, str(folder))


def test_a_subset_is_an_ordinary_run_and_one_that_has_ended_is_only_read(whole, tmp_path):
    folder, report = whole
    alone = ablation._of_subset(CONFIG, ("text",))[0]
    experiment.train(alone, str(tmp_path / "alone"))
    assert survivors.differences(folder / "text", tmp_path / "alone") == []
    before = snapshot(folder)
    assert ablation.ablate(CONFIG, str(folder)) == report
    assert snapshot(folder) == before


def test_what_is_about_other_modalities_is_left_out_of_a_subset():
    text, audio = (ablation._of_subset(CONFIG, (m,))[0] for m in ("text", "audio"))
    assert (text.model.modalities, text.model.anchor) == (("text",), "text")
    assert (audio.model.modalities, audio.model.anchor) == (("audio",), "")
    assert (text.model.overrides, audio.model.overrides) == ((), CONFIG.model.overrides)
    assert (text.optim.groups, audio.optim.groups) == ((), CONFIG.optim.groups)
    assert text.train.transforms == ("modality_dropout:*=0.2",)
    assert audio.train.transforms == CONFIG.train.transforms
    model = dataclasses.replace(CONFIG.model, text_encoder="folder", text_pool="words")
    encoded = dataclasses.replace(CONFIG, model=model)
    encoded = dataclasses.replace(encoded, data=dataclasses.replace(encoded.data, text="pieces"))
    without = ablation.only(encoded, ["audio"])
    assert (without.model.text_encoder, without.reading.text) == ("", "features")
    assert ablation.only(encoded, ["text"]).model.text_encoder == "folder"


def test_early_fusion_is_off_in_a_subset_that_has_nothing_to_join():
    names = ("text", "audio", "video")
    spec = CorpusSpec(names, (6, 5, 7), (4, 4, 4), groups=(("text", "audio"),))
    config = Config(model=ModelConfig(early_fusion=True))
    for subset, joins in {names: True, names[:2]: True, ("text", "video"): False}.items():
        assert without_lost_steps(config, subset, spec).model.early_fusion == joins
    # Where nothing is aligned at all, the run of all modalities is to say so.
    assert without_lost_steps(config, names, dataclasses.replace(spec, groups=())) == config


def test_the_report_says_what_the_runs_say(whole):
    folder, report = whole
    assert json.loads((folder / "ablation.json").read_text()) == report
    assert [subset["folder"] for subset in report["subsets"]] == NAMES
    for subset in report["subsets"]:
        results = json.loads((folder / subset["folder"] / "results.json").read_text())
        assert subset["test"] == results["test"] and subset["valid"] == results["valid"]
        assert subset["modalities"] == results["corpus"]["modalities"]
    of_all, *others = report["subsets"]
    assert of_all["all_against_it"] is None
    for subset, left_out in zip(others, ("audio", "text"), strict=True):
        pair = subset["all_against_it"]
        difference = of_all["test"]["mae"]["mean"] - subset["test"]["mae"]["mean"]
        assert pair["difference"] == pytest.approx(difference, abs=1e-7)
        assert report["modality"][left_out] == pair
    smaller, larger = sorted(others, key=lambda subset: subset["all_against_it"]["p"])
    assert smaller["all_against_it"]["p_holm"] == min(2 * smaller["all_against_it"]["p"], 1)
    assert larger["all_against_it"]["p_holm"] >= larger["all_against_it"]["p"]
    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    print_ablation(report, console)
    said = " ".join(console.export_text().split())
    *of_modalities, last = sentences(report)
    for m, sentence in zip(report["modalities"], of_modalities, strict=True):
        assert sentence.startswith(f"Does {m} help at all? By test mae, ") and sentence in said
    assert last.startswith(f"Validation chooses {report['chosen']}: mae ") and last in said


# --- the comparison by hand ---


def ended(
    scores: np.ndarray, labels: np.ndarray, ids: list[str], seeds=(0, 1)
) -> ablation.EndedRun:
    """A run's results and predictions, as far as they are compared; scores `[S, N]`."""
    test = {"mae": {"mean": float(np.abs(scores - labels).mean())}}
    results = {
        **{"selection": "mae", "seeds": list(seeds), "best_epoch": [1], "valid": test},
        **{"test": test, "floors": {}, "model": {"name": "m", "parameters": 1}, "failed": []},
    }
    predictions = Predictions(
        "regression", ("label",), scores[..., None], labels[:, None], np.array(ids)
    )
    return ablation.EndedRun(results, predictions)


def test_a_modality_helps_harms_or_shows_no_difference():
    rng = np.random.default_rng(0)
    labels, ids = rng.uniform(-3, 3, 60), [str(i) for i in range(60)]
    task = make_task("regression", ("label",), np.array([[-3.0], [3.0]]))
    good, bad, alike = (labels + rng.normal(0, sd, (2, 60)) for sd in (0.5, 2.0, 0.5))
    runs = {"a+b": ended(good, labels, ids), "a": ended(bad, labels, ids)}
    runs["b"] = ended(alike, labels, ids)
    report = ablation.compare_subsets(("a", "b"), runs, task)
    of_b = report["modality"]["b"]
    assert of_b["verdict"] == "better" and of_b["ci95"][1] < 0 and of_b["p_holm"] < 0.001
    assert report["modality"]["a"]["verdict"] == "noise"
    assert report["unit"] == "sample"
    said = sentences(report)
    assert "Does b help at all? By test mae, yes: " in said[1]
    assert "no difference that these samples can show" in said[0]
    runs = {"a+b": runs["a"], "a": runs["a+b"], "b": runs["a"]}
    report = ablation.compare_subsets(("a", "b"), runs, task)
    assert report["modality"]["b"]["verdict"] == "worse"
    assert "By test mae, no, it harms: " in sentences(report)[1]
    same = report["modality"]["a"]
    assert (same["difference"], same["ci95"], same["p"]) == (0.0, [0.0, 0.0], 1.0)


def test_validation_chooses_a_subset_whatever_test_says():
    labels, ids = np.array([0.0, 1.0, 2.0]), ["x", "y", "z"]
    task = make_task("regression", ("label",), np.array([[-3.0], [3.0]]))
    runs = {"a+b": ended(labels + [[1.0], [1.0]], labels, ids)}
    runs["a"] = ended(labels + [[0.0], [0.0]], labels, ids)  # the best on test
    runs["b"] = ended(labels + [[2.0], [2.0]], labels, ids)

    def chosen(*valid: float | None) -> str | None:
        for run, mean in zip(runs.values(), valid, strict=True):
            run.results["valid"] = {"mae": {"mean": mean}}
        return ablation.compare_subsets(("a", "b"), runs, task)["chosen"]

    assert chosen(0.3, 0.2, 0.1) == "b"
    assert chosen(0.2, 0.2, 0.2) == "a+b"
    assert chosen(None, 0.2, None) == "a" and chosen(None, None, None) is None


def test_only_seeds_that_both_runs_have_are_paired():
    labels, ids = np.array([0.0, 1.0, 2.0]), ["x", "y", "z"]
    task = make_task("regression", ("label",), np.array([[-3.0], [3.0]]))
    runs = {
        "a+b": ended(labels + [[9.0], [0.5]], labels, ids, seeds=(3, 4)),
        "a": ended(labels + [[2.0], [7.0]], labels, ids, seeds=(4, 5)),
        "b": ended(labels + [[0.5], [1.0]], labels, ids, seeds=(4, 5)),
    }
    report = ablation.compare_subsets(("a", "b"), runs, task)
    assert report["modality"]["b"]["difference"] == pytest.approx(0.5 - 2.0)
    assert report["modality"]["a"]["difference"] == 0.0
    runs["b"] = ended(labels + [[0.5], [1.0]], labels, ids, seeds=(7, 8))
    with pytest.raises(UserError, match="no random seed in common"):
        ablation.compare_subsets(("a", "b"), runs, task)


# --- refusals ---


def changed(config: Config, **data) -> Config:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data))


def test_what_cannot_be_ablated_is_refused_before_anything_is_written(whole, tmp_path):
    def refused(match: str, config: Config = CONFIG, workdir=tmp_path / "run") -> None:
        before = snapshot(tmp_path)
        with pytest.raises(UserError, match=match):
            ablation.ablate(config, str(workdir))
        assert snapshot(tmp_path) == before

    text = dataclasses.replace(
        ablation.only(CONFIG, ["text"]), optim=dataclasses.replace(CONFIG.optim, groups=())
    )
    refused("the model reads text alone, of which nothing can be left out", text)
    refused("data.folds = 3 needs data.fold = 0 to 2", changed(CONFIG, folds=3))
    refused("is in a bucket, which can hold the run of one subset", workdir="gs://bucket/run")
    refused("holds a single run, where --mode=ablate keeps a folder", workdir=whole[0] / "text")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    refused("holds 'notes' but no runs of subsets", workdir=tmp_path / "mine")
    (tmp_path / "mine" / "video").mkdir()
    (tmp_path / "mine" / "video" / "config.json").write_text("{}")
    refused("holds the run video, which is no subset of text, audio", workdir=tmp_path / "mine")
    other = dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, batch_size=9))
    refused("text\\+audio holds another run .*train.batch_size", other, workdir=whole[0])
    late = dataclasses.replace(CONFIG.optim, groups=("nothing/*:frozen=true",))
    refused("no parameter has such a path", dataclasses.replace(CONFIG, optim=late))


# --- robustness of the run of all modalities ---


@pytest.fixture(scope="module")
def robust(whole) -> tuple[pathlib.Path, dict]:
    folder = whole[0] / "text+audio"
    (folder / "report.html").touch()
    return folder, measure_robustness(str(folder))


def test_curves_begin_at_the_results_and_lose_what_they_say(robust):
    folder, report = robust
    assert json.loads((folder / "robustness.json").read_text()) == report
    assert "A modality is removed" in (folder / "report.html").read_text()  # made anew
    results = json.loads((folder / "results.json").read_text())
    assert report["rates"] == list(RATES) and report["seeds"] == results["seeds"] == [0, 1]
    assert (report["metric"], report["draws"]) == ("mae", DRAWS)
    curves = {(curve["kind"], *curve["modalities"]): curve for curve in report["curves"]}
    assert list(curves) == [
        *(("drop_modality", "text"), ("drop_modality", "audio"), ("drop_pair", "text", "audio")),
        *(("drop_steps", "text"), ("noise", "text"), ("noise", "audio")),  # audio has one step
    ]
    for curve in curves.values():
        assert [point["rate"] for point in curve["points"]] == list(RATES)
        for name, values in curve["points"][0]["metrics"].items():
            assert values == {key: results["test"][name][key] for key in ("mean", "sd", "ci95")}
        maes = [point["metrics"]["mae"]["mean"] for point in curve["points"]]
        area = sum((a + b) / 2 for a, b in itertools.pairwise(maes)) * 0.1 / 0.9
        assert curve["area"]["mae"] == pytest.approx(area)


def test_a_point_is_the_metric_of_a_split_that_was_really_disturbed(robust):
    folder, report = robust
    run = open_finished(RunFolder(str(folder)), "test")
    split, spec = run.score("test").split, run.bundle.preparation.spec
    programs = run.bundle.scorer.predict.program._cache_size()

    def mae(disturb) -> float:
        scores = [run.bundle.scorer.score(disturb(k), "test", like=split)[0] for k in range(DRAWS)]
        return float(np.abs(np.stack(scores) - split.labels).mean())

    def lost(draw: int):
        rows = disturbances.drawn_rows(len(split), 0.6, draw, [0])
        return disturbances.hide_modalities(split, ["text"], rows)

    expected = {
        "drop_modality": mae(lost),
        "drop_steps": mae(lambda k: disturbances.drop_steps(split, spec, "text", 0.6, k)),
    }
    for curve in report["curves"]:
        if curve["kind"] in expected and curve["modalities"] == ["text"]:
            found = curve["points"][6]["metrics"]["mae"]["mean"]
            assert found == pytest.approx(expected[curve["kind"]], abs=1e-6)
    assert run.bundle.scorer.predict.program._cache_size() == programs  # no rate compiles anew


def test_robustness_is_printed_and_refuses_what_it_cannot_measure(robust, whole, tmp_path):
    folder, report = robust
    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    print_robustness(report, console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("text and audio lost") for line in lines)
    with pytest.raises(UserError, match="holds no run that has ended: it has no results.json"):
        measure_robustness(str(whole[0]))
    (tmp_path / "fold_0").mkdir()
    with pytest.raises(UserError, match="takes one of them, as in --workdir=.*/fold_0"):
        measure_robustness(str(tmp_path))
    with Lock(str(folder)), pytest.raises(UserError, match="is in use by process"):
        measure_robustness(str(folder))
    results = folder / "results.json"
    kept = results.read_text()
    wrong = json.loads(kept)
    wrong["test"]["mae"]["mean"] += 0.1
    before = (folder / "robustness.json").read_bytes()
    results.write_text(json.dumps(wrong))
    try:
        with pytest.raises(UserError, match="they are not of one run. Delete results.json"):
            measure_robustness(str(folder))
    finally:
        results.write_text(kept)
    assert (folder / "robustness.json").read_bytes() == before
