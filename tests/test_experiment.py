"""A run from end to end: its folder, its honesty about the test split, and what its bundle does."""

import ast
import dataclasses
import hashlib
import json
import logging
import math
import os
import pathlib
import pickle
import shutil
import statistics
import types
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import survivors
import yaml
from sklearn.metrics import f1_score
from tiny import rows_of, tiny_config

import msajax
from msajax.cli.corpora import convert
from msajax.cli.evaluate import evaluate_run
from msajax.cli.inspect import inspect
from msajax.cli.predict import predict as predict_corpus
from msajax.config import Config, DataConfig, from_config_dict
from msajax.config.identity import NUMERICS
from msajax.corpus.corpus import Corpus, Split
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_native
from msajax.corpus.in_memory import corpus_of
from msajax.errors import UserError
from msajax.experiment import run as experiment
from msajax.files import write_json
from msajax.inference.bundle import load_bundle, save_bundle
from msajax.metrics.table import SENTIMENT
from msajax.results import measure
from msajax.runs import folder as run_folders
from msajax.runs.folder import RunFolder

SEEDS, MODALITIES = (0, 1), ("text", "audio")
# The two seeds stop at different epochs and choose different ones.
SETTINGS = {
    "train__epochs": 7,
    "train__patience": 2,
    "optim__plateau_patience": 1,
    "optim__learning_rate": 0.01,
    "train__report": True,
}


class Run(NamedTuple):
    """A finished run, and in which order the program did what matters."""

    folder: pathlib.Path
    corpus: pathlib.Path
    config: Config
    results: dict[str, Any]
    events: list[str]


def train(folder: pathlib.Path, corpus: pathlib.Path) -> Run:
    """Trains in this process and records what is read when."""
    config = tiny_config(data__path=str(corpus), **SETTINGS)
    events: list[str] = []

    def recorded(function, before: str = "", after: str = ""):
        def call(*args, **kwargs):
            events.extend([before.format(*args)] * bool(before))
            result = function(*args, **kwargs)
            events.extend([after] * bool(after))
            return result

        return call

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # constant labels, in one of the runs
        patch.setattr(Corpus, "split", recorded(Corpus.split, before="read {1}"))
        patch.setattr(
            RunFolder, "append_metrics", recorded(RunFolder.append_metrics, after="epoch")
        )
        patch.setattr(
            measure, "check_split", recorded(measure.check_split, after="test is checked")
        )
        patch.setattr(
            experiment, "train_groups", recorded(experiment.train_groups, "training", "selected")
        )
        results = experiment.train(config, str(folder))
    return Run(folder, corpus, config, results, events)


@pytest.fixture(scope="module")
def splits() -> dict[str, Split]:
    """The tiny corpus; ids and texts that a CSV must quote."""
    synthetic = open_corpus("synthetic", tiny_config().data)
    made = {name: synthetic.split(name) for name in synthetic.headers}
    texts = np.array([f'"{i}", größer\nor 更大' for i in range(20)])
    return made | {"test": dataclasses.replace(made["test"], raw_text=texts)}


@pytest.fixture(scope="module")
def run(splits, tmp_path_factory) -> Run:
    """The run that most tests look at. Nothing may change its folder."""
    folder = tmp_path_factory.mktemp("run")
    save_native(folder / "corpus.npz", corpus_of(splits))
    return train(folder / "run", folder / "corpus.npz")


@pytest.fixture(scope="module")
def other_test(splits, tmp_path_factory) -> Run:
    """The same run, but for a test split of other features, all labelled 0."""
    folder = tmp_path_factory.mktemp("other")
    rng = np.random.default_rng(5)
    test = splits["test"]
    changed = dataclasses.replace(
        test,
        features={m: rng.normal(size=x.shape) * 100 for m, x in test.features.items()},
        labels=np.zeros_like(test.labels),
    )
    save_native(folder / "corpus.npz", corpus_of(splits | {"test": changed}))
    return train(folder / "run", folder / "corpus.npz")


def strict(text: str) -> Any:
    """Parses JSON, refusing what the standard does not know."""

    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def lines_of(run: Run, clock: bool = False) -> list[dict[str, Any]]:
    lines = map(strict, (run.folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if clock or k != "seconds"} for line in lines]


def column(rows: list[dict[str, str]], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def arrays_of(run: Run) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(run.folder / "bundle" / "parameters.safetensors")


# --- the folder ---


@pytest.mark.parametrize("name", ["run", "other_test"])
def test_a_run_folder_holds_what_is_documented_and_nothing_else(name, request):
    folder = request.getfixturevalue(name).folder
    expected = {
        *("config.json", "run.json", "metrics.jsonl", "checkpoints", "results.json", "lock"),
        *("predictions", "predictions/valid.csv", "predictions/test.csv"),
        *("bundle", "bundle/bundle.json", "bundle/parameters.safetensors", "bundle/README.md"),
        "report.html",
    }
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert {path for path in found if not path.startswith("checkpoints/")} == expected
    steps = [path.name for path in (folder / "checkpoints").iterdir()]
    assert steps and all(step.isdecimal() for step in steps)


@pytest.mark.parametrize("name", ["run", "other_test"])
def test_every_json_file_is_strict(name, request):
    folder = request.getfixturevalue(name).folder
    files = [*folder.glob("*.json"), *(folder / "bundle").glob("*.json")]
    assert len(files) == 4
    for path in files:
        strict(path.read_text(encoding="utf-8"))
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        strict(line)


def test_config_json_is_the_configuration(run):
    assert from_config_dict(strict((run.folder / "config.json").read_text())) == run.config


def test_run_json_says_what_bits_depend_on(run):
    described = strict((run.folder / "run.json").read_text())
    assert described["msajax"] == msajax.__version__
    assert {"jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"} <= set(
        described["packages"]
    )
    assert described["packages"]["numpy"] == np.__version__
    assert (described["backend"], described["devices"], described["processes"]) == ("cpu", 1, 1)
    assert described["device_kind"]
    if hasattr(os, "sched_getaffinity"):
        assert described["cpus"] == len(os.sched_getaffinity(0))
    assert described["corpus"]["digest"] == open_corpus(run.corpus).digest
    assert described["corpus"]["path"] == str(run.corpus)
    assert set(described["repairs"]) == {"train", "valid", "test"}
    assert isinstance(described["command"], list)


def test_repairs_are_counted_by_split_modality_and_kind(other_test, run, splits):
    described = strict((other_test.folder / "run.json").read_text())["repairs"]
    # Audio is standardised, so its noise of size 100 is clipped; text is not.
    assert {m for m, counts in described["test"].items() if counts["clipped"]} == {"audio"}
    for m, mask in splits["test"].masks.items():  # there is noise under masks, too
        counts = {k: n for k, n in described["test"][m].items() if k != "clipped"}
        assert counts == {"non_finite": 0, "hidden_steps": (~mask).sum()}
    before = strict((run.folder / "run.json").read_text())["repairs"]
    assert (described["train"], described["valid"]) == (before["train"], before["valid"])


def test_what_reading_repaired_stands_beside_what_preparation_repaired(
    splits, tmp_path, monkeypatch, caplog
):
    def fields(split: Split) -> dict[str, Any]:
        return {**split.features, "labels": split.labels.copy(), "id": split.ids.tolist()}

    tree = {name: fields(split) for name, split in splits.items()}
    tree["test"]["labels"][:2] = [[4.0], [-3.5]]
    tree["train"]["audio"] = tree["train"]["audio"].copy()
    row, step = np.argwhere(tree["train"]["audio"].any(axis=2))[0]
    tree["train"]["audio"][row, step, :2] = np.nan, -np.inf
    (tmp_path / "corpus.pkl").write_bytes(pickle.dumps(tree))
    # What run.json says of the data is written before training.
    paused = types.SimpleNamespace(finished=False)
    monkeypatch.setattr(experiment, "train_groups", lambda *_: paused)
    config = tiny_config(data__path=str(tmp_path / "corpus.pkl"))
    assert experiment.train(config, str(tmp_path / "run")) is None
    described = strict((tmp_path / "run" / "run.json").read_text())
    assert described["repairs"]["corpus"] == {"clipped_labels": 2}
    made = {"audio": {"non_finite": 2, "clipped": 0}}
    assert described["repairs"]["train"] == made
    assert caplog.text.count("2 of 84 sentiment labels lie outside [-3, 3]") == 1
    assert caplog.text.count("Repaired in") == 1
    told = "Repaired in train: audio: 2 value(s) that were not finite, or beyond 1e6, are 0."
    assert told in caplog.text
    assert described["repairs"].keys() == {"train", "valid", "corpus"}


def test_what_a_split_loses_or_shares_is_refused_or_said_before_training(
    tmp_path, monkeypatch, caplog
):
    def split(first: int, ids: list[list[int]]) -> Split:
        names = np.array([f"id{first + i}" for i in range(len(ids))])
        return Split(names, {"text": np.array(ids)}, {}, np.arange(float(len(ids)))[:, None])

    train, test = split(0, [[1, 2, 3]] * 3), split(2, [[1, 2, 9], [0, 0, 0], [8, 9, 0], [0, 3, 0]])
    save_native(tmp_path / "c.npz", corpus_of({"train": train, "valid": train, "test": test}))
    paused = types.SimpleNamespace(finished=False)
    monkeypatch.setattr(experiment, "train_groups", lambda *_: paused)
    settings = {"data__path": str(tmp_path / "c.npz"), "model__modalities": ("text",)}
    with pytest.raises(UserError, match=r"c\.npz: test: 3 .* leave 1 of 3 .*data\.allow_loss=true"):
        experiment.train(tiny_config(**settings), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    caplog.clear()
    allowing = tiny_config(**settings, data__allow_loss=True)
    assert experiment.train(allowing, str(tmp_path / "run")) is None
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    last = "1 sample(s) of test have the id of one of valid: samples may leak."
    assert told[: told.index(last)] == [
        "Lost in test: text: 3 stored step(s) that are not zero are not read, which leaves 1 "
        "sample(s) without it.",
        "test: 2 of 4 have no valid step in any modality: their score is that of an "
        "empty input.",
        "3 sample(s) of valid have the id of one of train: samples may leak.",
        "1 sample(s) of test have the id of one of train: samples may leak.",
    ]


def test_training_says_what_is_aligned_in_one_line(tmp_path, monkeypatch, caplog):
    paused = types.SimpleNamespace(finished=False)
    monkeypatch.setattr(experiment, "train_groups", lambda *_: paused)
    caplog.set_level(logging.INFO)
    for alignment, lengths, said in (
        ("auto", (4, 4), ["none (as the corpus says)"]),
        ("aligned", (4, 4), ["text + audio (data.alignment = aligned)"]),
        ("auto", (4,), []),  # a single modality
    ):
        caplog.clear()
        sizes = {"lengths": lengths, "widths": lengths, "modalities": ("text", "audio")}
        sizes = {f"data__synthetic__{key}": v[: len(lengths)] for key, v in sizes.items()}
        config = tiny_config(data__alignment=alignment, **sizes)
        run = tmp_path / f"{alignment}{len(lengths)}"
        assert experiment.train(config, str(run)) is None
        told = [r.getMessage() for r in caplog.records if "Aligned" in r.getMessage()]
        assert told == [f"Aligned modalities: {groups}." for groups in said]


def test_the_folder_is_claimed_only_once_it_is_described(run, tmp_path, monkeypatch):
    """A run that is killed while it describes itself can start again."""
    summary = open_corpus(run.corpus).summary()
    with monkeypatch.context() as patch:

        def killed(path: str, value: Any) -> None:
            write_json(path, value)
            raise KeyboardInterrupt

        patch.setattr(run_folders, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            RunFolder(str(tmp_path)).describe(run.config, summary, {}, {})
    RunFolder(str(tmp_path)).claim(run.config, {"corpus digest": "another corpus"})
    RunFolder(str(tmp_path)).describe(run.config, summary, {}, {})
    RunFolder(str(tmp_path)).claim(run.config, {"corpus digest": summary["digest"]})
    with pytest.raises(UserError, match="corpus digest: .* there, 'another corpus' here"):
        RunFolder(str(tmp_path)).claim(run.config, {"corpus digest": "another corpus"})


# --- metrics.jsonl ---


def test_metrics_hold_a_line_per_seed_and_epoch(run):
    lines = lines_of(run, clock=True)
    for line in lines:
        assert list(line) == [
            *("seed", "epoch", "step", "train_loss", "train_l1"),
            *(f"valid_{name}" for name in SENTIMENT),
            *("learning_rate", "grad_norm", "skipped", "best", "stopped", "failed", "seconds"),
        ]
        # 44 rows in batches of 8; the last batch of either length quarter is not full.
        assert line["step"] == 7 * line["epoch"]
        assert line["train_loss"] == line["train_l1"]
        assert line["train_loss"] > 0 and line["grad_norm"] > 0 and line["seconds"] >= 0
        assert type(line["best"]) is type(line["stopped"]) is bool
        assert (line["skipped"], line["failed"]) == (0, False)
    for k, seed in enumerate(SEEDS):
        own = [line for line in lines if line["seed"] == seed]
        assert [line["epoch"] for line in own] == [*range(1, len(own) + 1)]
        assert [line["stopped"] for line in own] == [False] * (len(own) - 1) + [True]
        scores = [line["valid_mae"] for line in own]
        assert [line["best"] for line in own] == [
            score < min(scores[:i], default=math.inf) for i, score in enumerate(scores)
        ]
        assert run.results["best_epoch"][k] == 1 + scores.index(min(scores))
    assert {line["seed"] for line in lines} == set(SEEDS)
    assert len(set(run.results["best_epoch"])) == 2, "these tests need seeds that differ"


def test_the_numbers_of_valid_are_those_of_each_seeds_best_epoch(run):
    for k, seed in enumerate(SEEDS):
        (line,) = [
            line
            for line in lines_of(run)
            if (line["seed"], line["epoch"]) == (seed, run.results["best_epoch"][k])
        ]
        for name in SENTIMENT:
            stored = run.results["valid"][name]["seeds"][k]
            assert stored == pytest.approx(line[f"valid_{name}"], abs=1e-6), name


# --- results.json ---


def naive(score: np.ndarray, label: np.ndarray, name: str) -> float:
    """Metrics by their definitions, without `msajax.metrics.table`."""
    kept = label != 0
    return {
        "mae": lambda: np.mean(np.abs(score - label)),
        "corr": lambda: np.corrcoef(score, label)[0, 1],
        "acc7": lambda: np.mean(np.round(score.clip(-3, 3)) == np.round(label.clip(-3, 3))),
        "acc5": lambda: np.mean(np.round(score.clip(-2, 2)) == np.round(label.clip(-2, 2))),
        "acc2_nonzero": lambda: np.mean((score > 0)[kept] == (label > 0)[kept]),
        "acc2_has0": lambda: np.mean((score >= 0) == (label >= 0)),
        "f1_nonzero": lambda: f1_score((label > 0)[kept], (score > 0)[kept], average="weighted"),
        "rmse": lambda: np.sqrt(np.mean((score - label) ** 2)),
    }[name]()


NAIVE = ("mae", "corr", "acc7", "acc5", "acc2_nonzero", "acc2_has0", "f1_nonzero", "rmse")


def test_results_have_the_documented_keys(run):
    results = strict((run.folder / "results.json").read_text())
    assert results == run.results
    assert list(results) == [
        *("task", "model", "corpus", "seeds", "epochs", "selection", "best_epoch", "failed"),
        *("valid", "test", "test_ensemble", "floors", "calibration", "timing"),
    ]
    assert results["selection"] == "mae"
    assert results["model"].keys() == {"name", "parameters"}
    assert results["seeds"] == list(SEEDS)
    assert results["corpus"]["sizes"] == {"train": 44, "valid": 20, "test": 20}
    assert results["corpus"]["widths"] == {"text": 6, "audio": 5}
    assert results["corpus"]["modalities"] == list(MODALITIES)
    for part, keys in (
        ("valid", {"mean", "sd", "seeds"}),
        ("test", {"mean", "sd", "ci95", "seeds"}),
    ):
        assert list(results[part]) == list(SENTIMENT)
        assert all(values.keys() == keys for values in results[part].values())
        assert all(len(values["seeds"]) == len(SEEDS) for values in results[part].values())
    assert list(results["test_ensemble"]) == list(SENTIMENT)
    assert results["floors"].keys() == {"constant_0", "train_median", "majority"}
    assert results["timing"]["epochs"] == max(line["epoch"] for line in lines_of(run))


def test_the_number_of_parameters_is_that_of_one_seed(run):
    sizes = [x.size for name, x in arrays_of(run).items() if name.startswith("params/")]
    assert run.results["model"] == {"name": "sequence_level", "parameters": sum(sizes) // 2}


@pytest.mark.parametrize("split", ["valid", "test"])
def test_results_follow_from_the_predictions_beside_them(split, run):
    rows = rows_of(run.folder / "predictions" / f"{split}.csv")
    label = column(rows, "label")
    scores = [column(rows, f"score_seed{seed}") for seed in SEEDS]
    for name in NAIVE:
        expected = [naive(score, label, name) for score in scores]
        stored = run.results[split][name]
        assert stored["seeds"] == pytest.approx(expected, abs=1e-7), name
        assert stored["mean"] == pytest.approx(statistics.fmean(expected), abs=1e-7), name
        assert stored["sd"] == pytest.approx(statistics.stdev(expected), abs=1e-7), name


def test_the_ensemble_is_the_metric_of_the_score_column(run):
    rows = rows_of(run.folder / "predictions" / "test.csv")
    score, label = column(rows, "score"), column(rows, "label")
    for name in NAIVE:
        assert run.results["test_ensemble"][name] == pytest.approx(naive(score, label, name))
    assert run.results["test_ensemble"]["mae"] < run.results["test"]["mae"]["mean"]


def test_the_interval_is_the_bootstrap_of_the_predictions(run):
    rows = rows_of(run.folder / "predictions" / "test.csv")
    label = column(rows, "label")
    scores = [column(rows, f"score_seed{seed}") for seed in SEEDS]
    names = ("mae", "corr", "acc7", "rmse")
    generator = np.random.Generator(np.random.PCG64(0))
    drawn = [generator.integers(0, len(label), len(label)) for _ in range(1000)]
    for name in names:
        means = [np.mean([naive(s[i], label[i], name) for s in scores]) for i in drawn]
        expected = np.percentile(means, [2.5, 97.5])
        assert run.results["test"][name]["ci95"] == pytest.approx(expected, abs=1e-7), name


def test_the_floors_are_those_of_constants(run, splits):
    test, median = splits["test"].labels[:, 0], np.median(splits["train"].labels)
    floors = run.results["floors"]
    assert floors["constant_0"]["mae"] == pytest.approx(np.abs(test).mean())
    assert floors["train_median"]["mae"] == pytest.approx(np.abs(test - median).mean())
    positive = (test > 0)[test != 0].mean()
    assert floors["majority"]["acc2_nonzero"] == pytest.approx(max(positive, 1 - positive))


def test_what_is_undefined_is_null(other_test):
    # Every test label of this run is 0.
    results = strict((other_test.folder / "results.json").read_text())
    for name in ("corr", "spearman", "acc2_nonzero", "f1_nonzero", "r2"):
        assert results["test"][name] == {
            "mean": None,
            "sd": None,
            "seeds": [None, None],
            "ci95": [None, None],
        }
        assert results["test_ensemble"][name] is None
        assert results["valid"][name]["mean"] is not None
    assert results["floors"]["majority"]["acc2_nonzero"] is None
    assert results["floors"]["constant_0"]["mae"] == 0


# --- predictions ---


@pytest.mark.parametrize("split", ["valid", "test"])
def test_predictions_hold_the_samples_in_file_order(split, run, splits):
    rows = rows_of(run.folder / "predictions" / f"{split}.csv")
    assert list(rows[0]) == [
        *("id", "label", "score", "low", "high", "interval"),
        *("score_sd", "score_seed0", "score_seed1"),
        *("weight_text", "weight_audio", "present_text", "present_audio", "raw_text"),
    ]
    wanted = splits[split]
    assert [row["id"] for row in rows] == wanted.ids.tolist()
    assert [row["raw_text"] for row in rows] == wanted.raw_text.tolist()
    np.testing.assert_allclose(column(rows, "label"), wanted.labels[:, 0], rtol=1e-8)
    for m in MODALITIES:
        np.testing.assert_array_equal(column(rows, f"present_{m}"), wanted.masks[m].any(axis=1))
        absent = column(rows, f"present_{m}") == 0
        assert absent.any() and (column(rows, f"weight_{m}")[absent] == 0).all()
    total = column(rows, "weight_text") + column(rows, "weight_audio")
    np.testing.assert_allclose(total, 1, atol=1e-6)
    scores = np.stack([column(rows, f"score_seed{seed}") for seed in SEEDS])
    np.testing.assert_allclose(column(rows, "score"), scores.mean(axis=0), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(column(rows, "score_sd"), scores.std(axis=0, ddof=1), atol=1e-7)


# --- the test split ---


@pytest.mark.parametrize("name", ["run", "other_test"])
def test_the_test_split_is_checked_and_then_read_once_after_selection_has_ended(name, request):
    finished = request.getfixturevalue(name)
    events = list(finished.events)
    checked = events.index("test is checked")
    assert checked < events.index("training") and events[checked - 1] == "read test"
    events[checked - 1 : checked + 1] = []
    assert events.count("read test") == 1
    epochs = max(line["epoch"] for line in lines_of(finished))
    assert events.count("epoch") == epochs
    first_read = events.index("read test")
    assert events[:first_read].count("epoch") == epochs
    assert "selected" in events[:first_read]
    assert events.index("read train") < events.index("training")


def test_another_test_split_changes_no_parameter_and_no_number_of_valid(run, other_test):
    assert run.results["corpus"]["digest"] != other_test.results["corpus"]["digest"]
    ours, others = arrays_of(run), arrays_of(other_test)
    assert ours.keys() == others.keys() and any(n.startswith("statistics/") for n in ours)
    for name, array in ours.items():
        assert (array.dtype, array.shape) == (others[name].dtype, others[name].shape)
        assert array.tobytes() == others[name].tobytes(), name
    assert lines_of(run) == lines_of(other_test)
    assert run.results["valid"] == other_test.results["valid"]
    assert run.results["best_epoch"] == other_test.results["best_epoch"]
    valid = [r.folder / "predictions" / "valid.csv" for r in (run, other_test)]
    assert valid[0].read_bytes() == valid[1].read_bytes()
    assert run.results["test"] != other_test.results["test"]


def test_a_run_is_refused_the_folder_of_one_with_another_test_split(run, other_test):
    with pytest.raises(UserError, match="corpus digest"):
        experiment.train(run.config, str(other_test.folder))


def test_only_corpus_inference_and_measuring_can_name_the_test_split():
    """Everywhere else a split is asked for by the literal name of train or valid."""
    package = pathlib.Path(msajax.__file__).parent
    allowed = [package / "corpus", package / "inference", package / "results" / "measure.py"]
    allowed += [package / "preparation" / "inspection.py"]
    seen, wrong = set(), []
    for path in sorted(package.rglob("*.py")):
        if any(path.is_relative_to(place) for place in allowed):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Attribute) and node.attr == "_read":
                wrong.append(f"{where} reads a corpus behind its back")
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not is_call or node.func.attr != "split":
                continue
            values = [a.value if isinstance(a, ast.Constant) else a for a in node.args]
            is_text = not values or (isinstance(values[0], str | bytes) and not values[0].isalpha())
            # Keys of random numbers are split, and parameters into those that move and the rest.
            is_another = ast.unparse(node.func.value).endswith(("random", "optimizer", "inside"))
            if values and values[0] in ("train", "valid"):
                seen.add(values[0])
            elif not (is_text or is_another):
                wrong.append(f"{where} {ast.unparse(node)}")
    assert wrong == []
    assert seen == {"train", "valid"}  # the search does find such calls


# --- evaluate ---


@pytest.mark.parametrize("split", ["valid", "test"])
def test_evaluating_a_run_reproduces_its_results(split, run):
    report = evaluate_run(str(run.folder), split)
    assert report.keys() == {
        *("input", "split", "task", "samples", "metrics", "ensemble", "largest_difference"),
        *(["calibration"] if split == "test" else []),
    }
    assert (report["split"], report["samples"]) == (split, 20)
    assert 0 <= report["largest_difference"] <= 1e-6
    for name, stored in run.results[split].items():
        for key, value in stored.items():
            assert report["metrics"][name][key] == pytest.approx(value, abs=1e-6), (name, key)
    if split == "test":
        assert report["ensemble"] == pytest.approx(run.results["test_ensemble"], abs=1e-6)
        assert report["calibration"]["optimistic"] and report["calibration"]["samples"] == 20
        assert report["calibration"]["quantile"] == run.results["calibration"]["quantile"]


def test_evaluating_a_run_reports_a_difference_that_there_is(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    results = strict((run.folder / "results.json").read_text())
    results["test"]["mae"]["seeds"][1] += 0.25
    write_json(str(tmp_path / "run" / "results.json"), results)
    report = evaluate_run(str(tmp_path / "run"), "test")
    assert report["largest_difference"] == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("stored", [[0.5], [0.5, "0.5"], {}])
def test_results_of_another_run_are_refused_by_evaluate(stored, run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    results = strict((run.folder / "results.json").read_text())
    results["test"]["mae"]["seeds"] = stored
    write_json(str(tmp_path / "run" / "results.json"), results)
    with pytest.raises(UserError, match=r"results\.json is not of the bundle beside it"):
        evaluate_run(str(tmp_path / "run"), "test")


@pytest.mark.parametrize("text", ["[]", "{}", "", '{"seeds": [0, 1'])
def test_damaged_results_are_refused_with_the_way_out(text, run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run" / "results.json").write_text(text)
    for read in (
        lambda: evaluate_run(str(tmp_path / "run"), "test"),
        lambda: experiment.train(run.config, str(tmp_path / "run")),
    ):
        with pytest.raises(UserError, match=r"results\.json .*Delete it: the run's train command"):
            read()


@pytest.mark.parametrize("text", ["[]", "{}", '{"corpus": null}', '{"corpus": {"path": null}}'])
def test_evaluating_a_run_whose_run_json_is_damaged_is_refused(text, run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json does not say where the corpus"):
        evaluate_run(str(tmp_path / "run"), "test")


def test_evaluating_the_training_split_compares_with_nothing(run):
    report = evaluate_run(str(run.folder), "train")
    assert report["samples"] == 44 and "largest_difference" not in report
    assert report["metrics"]["mae"]["mean"] < run.results["valid"]["mae"]["mean"]


def test_evaluating_a_run_whose_corpus_is_gone_or_another_is_refused(run, other_test, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    for path, expected in (
        (other_test.corpus, "is not the corpus that this run was trained on"),
        (tmp_path / "absent.npz", "corpus of this run is no longer at .* --config.data.path"),
    ):
        described = strict((run.folder / "run.json").read_text())
        described["corpus"]["path"] = str(path)
        write_json(str(tmp_path / "run" / "run.json"), described)
        with pytest.raises(UserError, match=expected):
            evaluate_run(str(tmp_path / "run"), "test")


# --- predict ---


@pytest.fixture
def predict(run, tmp_path):
    """Writes splits to a file and predicts it; returns the rows, or None if it was refused."""

    def call(made: dict[str, Split], split: str = "all") -> list[dict[str, str]]:
        save_native(tmp_path / "new.npz", corpus_of(made))
        output = tmp_path / "predictions.csv"
        count = predict_corpus(
            str(run.folder / "bundle"), str(tmp_path / "new.npz"), str(output), split
        )
        rows = rows_of(output)
        assert len(rows) == count
        return rows

    return call


def stored_rows(run: Run) -> list[dict[str, str]]:
    return rows_of(run.folder / "predictions" / "test.csv")


def without(values, *names):
    return {k: v for k, v in values.items() if k not in names}


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_bundle_alone_predicts_the_runs_own_file_of_its_corpus(split, run, tmp_path):
    output = tmp_path / "p.csv"
    alone = shutil.copytree(run.folder / "bundle", tmp_path / "alone")  # it needs no run beside it
    count = predict_corpus(str(alone), str(run.corpus), str(output), split)
    assert count == 20
    assert output.read_bytes() == (run.folder / "predictions" / f"{split}.csv").read_bytes()


def test_transcripts_that_a_model_cannot_read_are_told_of_and_alone_are_refused(
    run, splits, predict, caplog
):
    words = np.array(["good film"] * 20)
    known = dataclasses.replace(splits["test"], raw_text=words)
    alone = dataclasses.replace(known, features={}, masks={})
    with pytest.raises(UserError, match="nothing that the model reads, which is text, audio; 20 t"):
        predict({"test": alone})
    without_text = dataclasses.replace(
        known, features=without(known.features, "text"), masks=without(known.masks, "text")
    )
    predict({"test": without_text})
    told = "20 transcripts found; not read: --config.data.glove_path=FILE reads them"
    assert told in caplog.text


def test_a_modality_that_the_corpus_lacks_is_absent_in_every_sample(run, splits, predict, caplog):
    test = splits["test"]
    fewer = dataclasses.replace(
        test, features=without(test.features, "audio"), masks=without(test.masks, "audio")
    )
    rows = predict({"test": fewer})
    assert "lacks modality 'audio'" in caplog.text
    empty = sum(row["present_text"] == "0" for row in rows)
    assert f"test: {empty} of 20 have no valid step in any modality" in caplog.text
    assert {row["present_audio"] for row in rows} == {row["weight_audio"] for row in rows} == {"0"}
    np.testing.assert_array_equal(column(rows, "weight_text"), column(rows, "present_text"))
    # A sample that never had audio is scored as before, if in another length quarter perhaps.
    for row, before in zip(rows, stored_rows(run), strict=True):
        if before["present_audio"] == "0":
            assert float(row["score"]) == pytest.approx(float(before["score"]), abs=1e-5)
    assert any(
        row["score"] != before["score"] for row, before in zip(rows, stored_rows(run), strict=True)
    )


def test_a_modality_that_the_model_does_not_know_is_ignored_with_a_warning(
    run, splits, predict, caplog
):
    test = splits["test"]
    more = dataclasses.replace(test, features={**test.features, "gaze": np.ones((20, 3, 2))})
    assert predict({"test": more}) == stored_rows(run)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert ["'gaze'" in record.getMessage() for record in warned] == [True]


# --- the bundle ---


def test_a_bundle_loads_without_pickle_and_holds_every_seed(run, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    bundle = msajax.load(run.folder / "bundle")
    assert bundle.config == run.config
    assert bundle.seeds == list(SEEDS)
    assert bundle.best_epoch == run.results["best_epoch"]
    assert bundle.parameters == run.results["model"]["parameters"]
    assert bundle.corpus_digest == run.results["corpus"]["digest"]
    assert bundle.preparation.spec.modalities == MODALITIES
    assert list(bundle.preparation.statistics) == ["audio"]
    kernel = bundle.params["text_encoder"]["projection"]["kernel"]
    assert kernel.shape == (2, 6, 8) and kernel.dtype == np.float32
    assert np.abs(kernel[0] - kernel[1]).max() > 0.01


def test_the_model_card_says_what_the_results_say_and_the_same_each_time(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    card = tmp_path / "run" / "bundle" / "README.md"
    text = card.read_text(encoding="utf-8")
    metadata = yaml.safe_load(text.split("---\n")[1])
    (result,) = metadata["model-index"][0]["results"]
    found = {metric["name"]: metric["value"] for metric in result["metrics"]}
    for name, values in run.results["test"].items():
        np.testing.assert_allclose(found[f"{name}, mean of 2 seed(s)"], values["mean"], atol=1e-6)
        ensemble = run.results["test_ensemble"][name]
        np.testing.assert_allclose(found[f"{name} of the ensemble"], ensemble, atol=1e-6)
    assert result["dataset"]["name"] == "corpus.npz" and str(run.corpus.parent) not in text
    card.unlink()
    load_bundle(card.parent)
    experiment.train(run.config, str(tmp_path / "run"))
    assert card.read_text(encoding="utf-8") == text


def test_a_bundle_that_is_loaded_and_saved_is_the_same_to_the_byte(run, tmp_path):
    loaded = load_bundle(run.folder / "bundle")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "old").write_text("what stood there before")
    save_bundle(str(tmp_path / "copy"), loaded)
    names = ["bundle.json", "parameters.safetensors"]
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == names
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    for name in names:
        content = (tmp_path / "copy" / name).read_bytes()
        assert content == (run.folder / "bundle" / name).read_bytes()


@pytest.mark.parametrize("name", ["bundle.json", "parameters.safetensors"])
def test_no_flipped_bit_of_a_bundle_goes_unnoticed(name, run, tmp_path):
    bundle = tmp_path / "bundle"
    shutil.copytree(run.folder / "bundle", bundle)
    content = (bundle / name).read_bytes()
    for position in np.linspace(0, len(content) - 1, 100).astype(int):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 5)  # bit 5 would turn 1e-06 into the same 1E-06
        (bundle / name).write_bytes(damaged)
        with pytest.raises(UserError, match="damaged|newer|older"):
            load_bundle(bundle)


def test_a_bundle_of_a_later_or_earlier_format_is_not_called_damaged(run, tmp_path):
    bundle = tmp_path / "bundle"
    shutil.copytree(run.folder / "bundle", bundle)
    content = strict((bundle / "bundle.json").read_text())
    before = content | {"format_version": content["format_version"] - 1, "msajax": "0.0.7"}
    content |= {"format_version": content["format_version"] + 1, "msajax": "9.8.7"}
    (bundle / "bundle.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="newer than .*install msajax 9.8.7"):
        load_bundle(bundle)
    del before["preparation"]["words"]  # as it was then
    (bundle / "bundle.json").write_text(json.dumps(before))
    with pytest.raises(UserError, match=r"written by an older msajax, 0\.0\.7, .*: train anew\.$"):
        load_bundle(bundle)


@pytest.mark.parametrize(
    "numerics", [None, 0, NUMERICS - 1, NUMERICS + 1, str(NUMERICS), True]
)
def test_a_bundle_or_run_of_other_numerics_is_refused(numerics, run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    for name in ("bundle/bundle.json", "run.json"):
        path = tmp_path / "run" / name
        content = strict(path.read_text())
        del content["numerics"]
        if numerics is not None:
            content["numerics"] = numerics
        if content.pop("sha256", None):  # as the program of that time would have written it
            encoded = json.dumps(content, sort_keys=True).encode()
            content["sha256"] = hashlib.sha256(encoded).hexdigest()
        path.write_text(json.dumps(content))
    theirs = "none" if numerics is None else repr(numerics)
    message = rf"other arithmetic \(numerics: {theirs} there, {NUMERICS} here\), .*train anew\.$"
    with pytest.raises(UserError, match=message):
        load_bundle(tmp_path / "run" / "bundle")
    shutil.copytree(run.folder / "bundle", tmp_path / "run" / "bundle", dirs_exist_ok=True)
    with pytest.raises(UserError, match=message):
        evaluate_run(str(tmp_path / "run"), "test")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    before = [path.read_bytes() for path in files]
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", run.corpus)
    assert [path.read_bytes() for path in files] == before


# --- training longer ---


def with_epochs(config: Config, epochs: int, **optim) -> Config:
    changed = dataclasses.replace(config.optim, **optim)
    more = dataclasses.replace(config.train, epochs=epochs)
    return dataclasses.replace(config, train=more, optim=changed)


def test_a_run_that_gets_more_epochs_comes_to_the_bits_of_one_that_had_them(run, tmp_path):
    folder, kept = tmp_path / "run", ("results.json", *survivors.BUNDLE, *survivors.KEPT[:2])
    experiment.train(with_epochs(run.config, 3), str(folder))
    # Seed 1 has lost its patience; seed 0 stopped because the epochs were over.
    last = [line for line in survivors.lines_of(folder) if line["stopped"]]
    stopped = {line["seed"]: line["epoch"] for line in last}
    assert stopped == {0: 3, 1: 3} and max(line["epoch"] for line in lines_of(run)) == 5
    shutil.copytree(folder, tmp_path / "before")

    assert experiment.train(run.config, str(folder), stop_after_epochs=1) is None
    lines = survivors.lines_of(folder)
    assert [line["epoch"] for line in lines if line["seed"] == 0] == [1, 2, 3, 4]
    # What the shorter run left stays, as one whole, and yet this run has not ended.
    for name in kept:
        before = tmp_path / "before" / name
        assert (folder / name).read_bytes() == before.read_bytes(), name
    assert evaluate_run(str(folder), "test")["largest_difference"] < 1e-6
    with pytest.raises(UserError, match="train.epochs: 7 there, 3 here"):
        experiment.train(with_epochs(run.config, 3), str(folder))

    with pytest.MonkeyPatch.context() as patch:  # killed while it replaces the results
        patch.setattr(experiment, "write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            experiment.train(run.config, str(folder))
    assert not (folder / "results.json").exists()  # it would be of another bundle
    assert experiment.train(run.config, str(folder))["epochs"] == 7
    assert survivors.differences(folder, run.folder) == []


def test_more_epochs_train_no_seed_that_has_lost_its_patience(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    ended = experiment.train(with_epochs(run.config, 8), str(tmp_path / "run"))
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    longer = experiment.train(with_epochs(run.config, 30), str(tmp_path / "run"))
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == lines
    assert longer == ended | {"epochs": 30} and ended["epochs"] == 8


def test_only_epochs_may_grow_and_not_those_of_a_cosine(run, tmp_path):
    def claim(epochs: int, **optim) -> None:
        folder.claim(with_epochs(run.config, epochs, **optim), {"corpus digest": digest})

    folder, digest = RunFolder(str(run.folder)), run.results["corpus"]["digest"]
    claim(8)
    with pytest.raises(UserError, match="train.epochs: 7 there, 6 here"):
        claim(6)
    with pytest.raises(UserError, match="another run .*learning_rate: .*train.epochs: 7 there, 8"):
        claim(8, learning_rate=0.5)
    folder = RunFolder(str(tmp_path))
    summary = run.results["corpus"]
    folder.describe(with_epochs(run.config, 7, schedule="cosine"), summary, {}, {})
    claim(7, schedule="cosine")
    with pytest.raises(UserError, match="7 there, 8 here.* rates of .*cosine depend on the last"):
        claim(8, schedule="cosine")


# --- what the package offers ---


def test_the_package_offers_what_a_notebook_needs(run):
    assert msajax.open_corpus(run.corpus).digest == run.results["corpus"]["digest"]
    assert msajax.train(run.config, str(run.folder)) == run.results  # finished: nothing is trained
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = msajax.no_such_name


def test_scores_that_are_not_finite_are_refused_with_the_sample_and_nothing_is_written(
    run, splits, tmp_path
):
    bundle = load_bundle(run.folder / "bundle")
    params = dict(
        bundle.params, regression={k: v * np.nan for k, v in bundle.params["regression"].items()}
    )
    save_bundle(str(tmp_path / "bundle"), dataclasses.replace(bundle, params=params))
    with pytest.raises(UserError, match="20 sample.* of split 'test' are not finite, the first"):
        predict_corpus(
            str(tmp_path / "bundle"), str(run.corpus), str(tmp_path / "p.csv"), "test"
        )
    assert not list(tmp_path.glob("p.csv*"))


def test_a_finished_run_learns_where_its_corpus_has_gone(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    moved = shutil.copy(run.corpus, tmp_path / "moved.npz")
    data = dataclasses.replace(run.config.data, path=str(moved))
    results = experiment.train(dataclasses.replace(run.config, data=data), str(tmp_path / "run"))
    assert results == run.results
    assert strict((tmp_path / "run" / "run.json").read_text())["corpus"]["path"] == str(moved)


def test_a_finished_run_whose_bundle_is_empty_gets_it_back_to_the_bit(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "bundle")
    (tmp_path / "run" / "bundle").mkdir()
    experiment.train(run.config, str(tmp_path / "run"))
    for name in ("bundle.json", "parameters.safetensors"):
        before, after = (folder / "bundle" / name for folder in (run.folder, tmp_path / "run"))
        assert before.read_bytes() == after.read_bytes()


def test_a_config_of_wrong_types_is_refused_by_name(run, tmp_path):
    data = dataclasses.replace(run.config.data, path=pathlib.Path(run.corpus))
    with pytest.raises(UserError, match="data.path = .* must be of type str"):
        experiment.train(dataclasses.replace(run.config, data=data), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_transcripts_without_features_get_the_vectors_of_their_words(run, tmp_path, caplog):
    rng = np.random.default_rng(8)
    vectors = {word: rng.normal(size=6).round(3) for word in ("good", "movie", "really")}
    lines = [" ".join([word, *map(str, numbers)]) for word, numbers in vectors.items()]
    (tmp_path / "glove.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = np.array(["Really GOOD, movie", "good unheard-of movie", ""])
    audio = rng.normal(size=(3, 3, 5))
    spoken = Split(np.array(["a", "b", "c"]), {"audio": audio}, {}, raw_text=texts)
    # By hand: a row per word, zeros and valid for "unheard" and "of", nothing for no words.
    words = [["really", "good", "movie"], ["good", "unheard", "of", "movie"], []]
    text, mask = np.zeros((3, 4, 6), np.float32), np.zeros((3, 4), bool)
    for i, row in enumerate(words):
        for t, word in enumerate(row):
            text[i, t], mask[i, t] = vectors.get(word, 0), True
    written = dataclasses.replace(
        spoken, features={"text": text, "audio": audio}, masks={"text": mask}
    )
    outputs = {}
    for name, split in (("spoken", spoken), ("written", written)):
        save_native(tmp_path / f"{name}.npz", corpus_of({"test": split}))
        with caplog.at_level(logging.INFO):
            predict_corpus(
                str(run.folder / "bundle"),
                str(tmp_path / f"{name}.npz"),
                str(tmp_path / f"{name}.csv"),
                glove_path=str(tmp_path / "glove.txt"),
            )
        outputs[name] = (tmp_path / f"{name}.csv").read_text()
    assert outputs["spoken"] == outputs["written"]
    assert caplog.text.count("28.6 % of the words have no vector") == 1  # two of seven
    assert "lacks modality 'text'" not in caplog.text

    # A model that joins audio to text step by step has nothing to join to such words.
    bundle, groups = load_bundle(run.folder / "bundle"), (("text", "audio"),)
    spec = dataclasses.replace(bundle.preparation.spec, lengths=(4, 4), groups=groups)
    preparation = dataclasses.replace(bundle.preparation, spec=spec, groups=groups)
    data = dataclasses.replace(bundle.config.data, glove_path=str(tmp_path / "glove.txt"))
    model = dataclasses.replace(bundle.config.model, early_fusion=True)
    config = dataclasses.replace(bundle.config, data=data, model=model)
    joined = dataclasses.replace(bundle, config=config, preparation=preparation)
    with pytest.raises(UserError, match="words of transcripts have steps of their own: give it te"):
        joined.prepare_split(spoken, "test")


def test_settings_that_nothing_reads_are_said_once(run, tmp_path, caplog):
    (tmp_path / "glove.txt").write_text("good 1 2 3 4 5 6\n")
    vectors, output = str(tmp_path / "glove.txt"), str(tmp_path / "p.csv")
    data = DataConfig(glove_path=vectors)
    for call in (
        lambda: predict_corpus(
            str(run.folder / "bundle"), str(run.corpus), output, glove_path=vectors
        ),
        lambda: inspect(str(run.corpus), data),
        lambda: convert(str(run.corpus), data, str(tmp_path / "again.npz")),
    ):
        caplog.clear()
        call()
        said = f"Nothing reads data.glove_path = {vectors} (needs words without features)."
        assert caplog.text.count("Nothing reads") == caplog.text.count(said) == 1
