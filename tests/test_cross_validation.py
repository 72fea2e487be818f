"""Cross-validation: every sample is tested once, by models that never saw its video."""

import csv
import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import survivors
from tiny import SMALLEST, rows_of, snapshot, tiny_config

import msajax
from msajax.cli.corpora import convert
from msajax.cli.evaluate import evaluate_run
from msajax.cli.finished import report as write_report
from msajax.cli.inspect import inspect
from msajax.cli.predict import predict as predict_corpus
from msajax.config import Config, DataConfig, ModelConfig
from msajax.corpus.corpus import Corpus, Source, Split, pad_words
from msajax.corpus.folds import cut_fold, video_of
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_native
from msajax.corpus.in_memory import corpus_of
from msajax.corpus.labels import label_kind
from msajax.corpus.predictions import read_predictions
from msajax.corpus.steps import find_groups
from msajax.errors import NonFiniteError, UserError
from msajax.experiment import run
from msajax.files import write_json
from msajax.metrics.table import SENTIMENT, reported_by
from msajax.preparation.apply import prepare
from msajax.preparation.fit import fit
from msajax.report import figures
from msajax.runs import claim
from msajax.runs.folder import RunFolder
from msajax.studies import folds as cross_validation

SIZES = {"train": (4, 3, 1, 2), "valid": (3,), "test": (2, 5)}  # segments of each video
IDS = {
    name: [f"{name}_video{v}[{i}]" for v, size in enumerate(sizes) for i in range(size)]
    for name, sizes in SIZES.items()
}
ALL_IDS = sum(IDS.values(), [])


def split_of(name: str, shapes: dict, masked=(), labels=None, raw_text=False) -> Split:
    """Random content of the ids of a split; `shapes` are (steps, width), width 0 for token ids."""
    rng, n = np.random.default_rng(len(name)), len(IDS[name])
    features = {
        m: rng.normal(size=(n, t, d)).astype(np.float32) if d else rng.integers(1, 9, (n, t))
        for m, (t, d) in shapes.items()
    }
    masks = {m: rng.random((n, shapes[m][0])) < 0.7 for m in masked}
    labels = rng.uniform(-3, 3, (n, 1)) if labels is None else labels
    texts = np.array([f"words of {id_}" for id_ in IDS[name]]) if raw_text else None
    return Split(np.array(IDS[name]), features, masks, labels, texts)


def folds_of(corpus: Corpus, folds: int = 3, **data) -> list[Corpus]:
    settings = [DataConfig(folds=folds, fold=fold, **data) for fold in range(folds)]
    return [cut_fold(corpus, one) for one in settings]


# --- the splits of a fold ---


def test_every_sample_is_tested_once_with_its_own_content_and_whole_videos_move():
    shapes = {"text": (4, 3), "audio": (2, 5)}
    whole = {name: split_of(name, shapes, ["audio"], raw_text=True) for name in SIZES}
    corpus = corpus_of(whole, aligned=(), source=Source("c", "f", {"clipped_labels": 2}))
    cut = folds_of(corpus)
    tested = [cut[fold].split("test").ids.tolist() for fold in range(3)]
    assert sorted(sum(tested, [])) == sorted(ALL_IDS)
    for fold in range(3):
        found = {name: cut[fold].split(name) for name in SIZES}
        assert found["valid"].ids.tolist() == tested[(fold + 1) % 3]
        assert found["train"].ids.tolist() == [i for i in ALL_IDS if i in tested[(fold + 2) % 3]]
        videos = [{video_of(id_) for id_ in split.ids.tolist()} for split in found.values()]
        assert sum(map(len, videos)) == len(set.union(*videos)) == 7
        for name, split in found.items():
            assert cut[fold].headers[name].size == len(split)
            assert cut[fold].headers[name].masked == {"audio"}
            for i, id_ in enumerate(split.ids.tolist()):
                (source,) = {s for s in SIZES if id_ in IDS[s]}
                row = IDS[source].index(id_)
                for m in shapes:
                    assert np.array_equal(split.features[m][i], whole[source].features[m][row])
                assert np.array_equal(split.masks["audio"][i], whole[source].masks["audio"][row])
                assert split.labels[i] == whole[source].labels[row]
                assert split.raw_text[i] == f"words of {id_}"
        assert (cut[fold].path, cut[fold].aligned) == (corpus.path, ())
        assert cut[fold].repairs == corpus.repairs


def test_a_digest_names_the_corpus_the_folds_and_the_seed():
    corpus, other = (
        corpus_of({name: split_of(name, {"text": (2, width)}) for name in SIZES})
        for width in (3, 4)
    )
    settings = [(3, 0, 0), (3, 1, 0), (4, 0, 0), (4, 0, 1)]
    data = [DataConfig(folds=k, fold=i, split_seed=seed) for k, i, seed in settings]
    digests = [cut_fold(found, one).digest for found in (corpus, other) for one in data]
    assert len({*digests, corpus.digest, other.digest}) == 10
    assert digests[:4] == [cut_fold(corpus, one).digest for one in data]


@pytest.mark.parametrize("mask_from_zeros", [True, False])
def test_what_a_split_lacks_is_padding(mask_from_zeros):
    shapes = {"train": {"text": (4, 3), "ids": (2, 0)}, "valid": {"text": (6, 3), "audio": (5, 2)}}
    shapes["test"] = {"text": (4, 3), "audio": (5, 2), "ids": (2, 0)}
    made = {name: split_of(name, shapes[name], raw_text=name == "test") for name in SIZES}
    made["test"].features["text"][0, 2:] = 0  # which is padding, or is not
    made["valid"] = dataclasses.replace(
        made["valid"],
        features=made["valid"].features | {"text": made["valid"].features["text"].astype(float)},
    )
    data = DataConfig(mask_from_zeros=mask_from_zeros)
    for cut in folds_of(corpus_of(made), mask_from_zeros=mask_from_zeros):
        for name, header in cut.headers.items():
            split = cut.split(name)
            assert header.shapes == {"text": (6, 3), "audio": (5, 2), "ids": (2, 0)}
            assert header.dtypes == {"text": "float64", "audio": "float32", "ids": "int64"}
            assert {m: x.dtype.name for m, x in split.features.items()} == header.dtypes
            for m, x in split.features.items():
                assert x.shape == (len(split), *filter(None, header.shapes[m]))
            for i, id_ in enumerate(split.ids.tolist()):
                source = id_.split("_")[0]
                steps = {m: t for m, (t, _) in shapes[source].items()}
                if id_ == "test_video0[0]" and mask_from_zeros:
                    steps["text"] = 2
                valid = {m: split.masks[m][i].nonzero()[0].tolist() for m in header.masked}
                assert valid == {m: list(range(steps.get(m, 0))) for m in header.shapes}
                assert (split.raw_text[i] != "") == (source == "test")
        prepared, _ = prepare(cut.split("test"), fit(cut, data, ModelConfig(max_len=6)))
        assert len(prepared) == cut.headers["test"].size


def test_padding_aligns_nothing_that_was_not_and_all_that_was():
    steps = {"train": (4, 4, 6, 1, 1), "valid": (6, 6, 5, 1, 1), "test": (4, 4, 6, 1, 1)}
    made = {
        name: split_of(name, {m: (t, 2) for m, t in zip("abcde", steps[name], strict=True)})
        for name in SIZES
    }
    corpus, data = corpus_of(made), DataConfig()
    for cut in folds_of(corpus):
        assert find_groups(cut, "abcde", data) == find_groups(corpus, "abcde", data)
        assert find_groups(cut, "abcde", data)[0] == (("a", "b"),)
        assert [cut.headers["test"].shapes[m][0] for m in "abde"] == [6, 6, 1, 1]
    said = corpus_of(made | {"valid": split_of("valid", {"a": (9, 2)})}, aligned=("a", "b"))
    assert {folds.headers["train"].shapes["b"] for folds in folds_of(said)} == {(9, 2)}
    assert {folds.aligned for folds in folds_of(said)} == {("a", "b")}


def test_words_stay_those_of_their_steps():
    steps = {"train": 4, "valid": 6, "test": 5}
    made = {name: split_of(name, {"audio": (t, 2), "text": (3, 0)}) for name, t in steps.items()}
    for name, split in made.items():
        words = [[f"{id_}{k}" for k in range(steps[name])] for id_ in split.ids.tolist()]
        segments = split.features["text"] % 2
        made[name] = dataclasses.replace(split, words=pad_words(words), segments=segments)
    data = DataConfig(text="pieces")
    for aligned, groups in (
        (None, (("text", "audio"),)),
        (("text", "audio"), (("text", "audio"),)),
        ((), ()),
    ):
        if aligned:
            for name, split in made.items():
                alone = {"audio": split.features["audio"]}
                made[name] = dataclasses.replace(split, features=alone, segments=None)
        corpus = corpus_of(made, aligned=aligned)
        for cut in folds_of(corpus):
            assert find_groups(cut, ("text", "audio"), data, ("text",))[0] == groups
            for name, header in cut.headers.items():
                split = cut.split(name)
                assert (header.words, header.shapes["audio"]) == (6, (6, 2))
                for i, id_ in enumerate(split.ids.tolist()):
                    (source,) = {s for s in SIZES if id_ in IDS[s]}
                    row = [f"{id_}{k}" for k in range(steps[source])]
                    assert split.words[i].tolist() == row + [""] * (6 - len(row))
                if not aligned and split.segments is not None:
                    np.testing.assert_array_equal(split.segments, split.features["text"] % 2)


def test_labels_are_of_the_kind_that_they_are_in_the_whole_corpus():
    def kind(integers: bool, names=(), task: str = "auto", **labels):
        made = {
            name: split_of(name, {"text": (2, 3)}, labels=np.array(labels[name])[:, None] * 1.0)
            for name in SIZES
        }
        corpus = corpus_of(made, integers=integers, label_names=names)
        model = ModelConfig(task=task)
        (found,) = {label_kind(cut, model) for cut in folds_of(corpus)}
        return found, label_kind(corpus, model)

    classes = {"train": [0, 1] * 5, "valid": [2] * 3, "test": [0, 3] * 3 + [1]}
    for names in ((), ("a", "b", "c", "d")):
        found, whole = kind(True, names, **classes)
        assert found == whole and found.classes == (0, 1, 2, 3)
    scores = classes | {"train": [-1, 1] * 5}  # whole numbers, of which no video may hide a part
    assert kind(True, **scores)[0].kind == "regression"
    assert kind(False, task="classification", **scores)[0].classes == (-1, 0, 1, 2, 3)


def test_a_split_without_labels_is_in_no_fold_unless_none_has_any(caplog):
    made = {name: split_of(name, {"text": (2, 3)}) for name in SIZES}
    unlabelled = {name: dataclasses.replace(split, labels=None) for name, split in made.items()}
    sizes = [sum(h.size for h in cut.headers.values()) for cut in folds_of(corpus_of(unlabelled))]
    assert sizes == [20] * 3 and caplog.text == ""
    cut, *_ = folds_of(corpus_of(made | {"test": unlabelled["test"]}))
    assert sum(header.size for header in cut.headers.values()) == 13
    assert "split(s) test have no labels, and are in no fold" in caplog.text


def test_a_corpus_whose_videos_are_unknown_or_too_few_is_refused():
    made = {name: split_of(name, {"text": (2, 3)}) for name in SIZES}
    with pytest.raises(UserError, match=r"data.folds = 8: memory has segments of 7 video\(s\)"):
        folds_of(corpus_of(made), folds=8)
    numbered = dataclasses.replace(made["test"], ids=np.arange(7).astype(str))
    with pytest.raises(UserError, match="data.folds = 3: memory: the id '0' does not tell which"):
        folds_of(corpus_of(made | {"test": numbered}))


# --- runs ---


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    path = tmp_path_factory.mktemp("corpus") / "corpus.npz"
    made = {name: split_of(name, {"text": (1, 6)}) for name in SIZES}
    save_native(path, corpus_of(made))
    settings = {"train__epochs": 2, "data__path": str(path), "data__folds": 3}
    return tiny_config(**SMALLEST, **settings)


def of_fold(config: Config, fold: int, folds: int = 3) -> Config:
    return dataclasses.replace(
        config, data=dataclasses.replace(config.data, folds=folds, fold=fold)
    )


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory) -> tuple[pathlib.Path, dict]:
    """All folds; the first start ends in the middle of the second."""
    folder = tmp_path_factory.mktemp("folds") / "run"
    assert cross_validation.cross_validate(config, str(folder), stop_after_epochs=3) is None
    lines = {path.name: survivors.lines_of(path) for path in folder.iterdir()}
    done = {name: len({line["epoch"] for line in of_fold}) for name, of_fold in lines.items()}
    assert done == {"fold_0": 2, "fold_1": 1} and (folder / "fold_0" / "results.json").exists()
    with pytest.raises(UserError, match="have not all ended: it has no folds.json"):
        cross_validation.evaluate_folds(str(folder), "test")
    return folder, msajax.cross_validate(config, str(folder))


def test_each_fold_is_an_ordinary_run_and_one_that_has_ended_is_only_read(
    whole, config, tmp_path
):
    folder, results = whole
    run.train(of_fold(config, 1), str(tmp_path / "alone"))
    assert survivors.differences(folder / "fold_1", tmp_path / "alone") == []
    assert evaluate_run(str(folder / "fold_1"), "test")["largest_difference"] < 1e-6
    before = snapshot(folder)
    assert cross_validation.cross_validate(config, str(folder)) == results
    assert snapshot(folder) == before


def test_folds_get_a_report_each_and_one_together(whole, config, tmp_path, monkeypatch):
    # test_report.py draws; here it would take most of the time.
    monkeypatch.setattr(figures.Chart, "svg", "")
    drawn = {"pdf": b"%PDF-", "svg": f"<svg>{figures.PROGRAM}</svg>".encode()}
    monkeypatch.setattr(
        figures.Chart, "files", lambda _, name: {f"{name}.{form}": x for form, x in drawn.items()}
    )
    folder = shutil.copytree(whole[0], tmp_path / "run")
    asked = dataclasses.replace(config, train=dataclasses.replace(config.train, report=True))
    assert cross_validation.cross_validate(asked, str(folder)) == whole[1]
    made = sorted(str(path.relative_to(folder)) for path in folder.rglob("report.html"))
    assert made == ["fold_0/report.html", "fold_1/report.html", "fold_2/report.html", "report.html"]
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert 'href="fold_2/report.html"' in text and "of all 20 samples, pooled over 3 folds" in text
    assert f"{whole[1]['pooled']['metrics']['mae']['value']:.3f}" in text
    before = snapshot(folder)
    cross_validation.cross_validate(asked, str(folder))
    assert snapshot(folder) == before
    (folder / "report.html").unlink()
    place = tmp_path / "figures"
    made = write_report(str(folder), figures=str(place))
    assert made == str(folder / "report.html")
    assert (place / "predicted-against-true.pdf").is_file()  # of all folds together
    assert (place / "fold_2" / "training-validation-mae.svg").is_file()
    assert (folder / "report.html").read_text(encoding="utf-8") == text
    (folder / "folds.json").unlink()
    with pytest.raises(UserError, match="have not all ended: it has no folds.json"):
        write_report(str(folder))


def test_what_the_folds_say_together_follows_from_their_files(whole):
    folder, results = whole
    assert json.loads((folder / "folds.json").read_text()) == results
    of_folds = [rows_of(folder / f"fold_{k}" / "predictions" / "test.csv") for k in range(3)]
    rows = rows_of(folder / "predictions.csv")
    # A fold whose validation split is too small for intervals has none, and the others theirs.
    assert len({"low" in table[0] for table in of_folds}) == 2
    blank = dict.fromkeys(("low", "high", "interval"), "")
    assert rows == [blank | row for row in sum(of_folds, [])]
    assert sorted(row["id"] for row in rows) == sorted(ALL_IDS)
    assert (results["folds"], results["pooled"]["samples"]) == (3, 20)
    assert list(results["metrics"]) == list(results["pooled"]["metrics"]) == list(SENTIMENT)

    def errors(table, column):
        return [abs(float(row[column]) - float(row["label"])) for row in table]

    of_seeds = np.array(
        [[np.mean(errors(table, f"score_seed{k}")) for k in (0, 1)] for table in of_folds]
    )
    expected = {
        "mean": of_seeds.mean(),
        "sd_folds": of_seeds.mean(axis=1).std(ddof=1),
        "sd_seeds": of_seeds.mean(axis=0).std(ddof=1),
        "folds": of_seeds.mean(axis=1).tolist(),
    }
    for key, value in expected.items():
        assert results["metrics"]["mae"][key] == pytest.approx(value, rel=1e-6), key
    pooled = results["pooled"]["metrics"]["mae"]
    assert pooled["value"] == pytest.approx(np.mean(errors(rows, "score")))
    assert pooled["ci95"][0] < pooled["value"] < pooled["ci95"][1]

    report = cross_validation.evaluate_folds(str(folder), "test")
    assert report["samples"] == 20
    for name, values in results["pooled"]["metrics"].items():
        assert report["metrics"][name]["mean"] == values["value"] == report["ensemble"][name]
        assert report["metrics"][name]["ci95"] == values["ci95"]

    one = cross_validation.as_one_run(str(folder))
    pooled = [np.mean(errors(rows, f"score_seed{k}")) for k in (0, 1)]
    assert one["test"]["mae"]["seeds"] == pytest.approx(pooled, rel=1e-6)
    of_valid = [run["valid"]["mae"]["seeds"] for run in one["runs"]]
    assert one["valid"]["mae"]["mean"] == pytest.approx(np.mean(of_valid))
    assert one["valid"]["mae"]["sd"] == pytest.approx(np.std(np.mean(of_valid, axis=0), ddof=1))


def test_a_bundle_of_a_fold_predicts_a_corpus_as_it_is(whole, config, tmp_path):
    bundle = str(whole[0] / "fold_0" / "bundle")
    assert predict_corpus(bundle, config.data.path, str(tmp_path / "p.csv")) == 20
    assert [row["id"] for row in rows_of(tmp_path / "p.csv")] == ALL_IDS


def test_inspect_and_convert_take_a_fold_that_is_chosen(config, tmp_path, caplog):
    path, data = config.data.path, of_fold(config, 2).data
    cut = open_corpus(path, data)
    sizes = {name: header.size for name, header in cut.headers.items()}
    assert inspect(path, data)["sizes"] == sizes
    convert(path, data, str(tmp_path / "fold.npz"))
    again = open_corpus(tmp_path / "fold.npz")
    for name in SIZES:
        assert np.array_equal(again.split(name).ids, cut.split(name).ids)
    assert "Nothing reads" not in caplog.text
    own = {"train": 10, "valid": 3, "test": 7}
    assert inspect(path, config.data)["sizes"] == own
    assert "Nothing reads data.folds = 3 (needs data.fold, to choose one)." in caplog.text


def test_a_fold_all_of_whose_seeds_fail_is_named(config, tmp_path, monkeypatch):
    def fail(*_):
        raise NonFiniteError("The numbers of 2 random seed(s) are no longer finite.")

    monkeypatch.setattr(run, "train", fail)
    with pytest.raises(NonFiniteError, match="^Fold 0: The numbers of 2 random"):
        cross_validation.cross_validate(config, str(tmp_path / "run"))


# --- refusals ---


def test_a_folder_of_anything_else_is_refused_and_kept(whole, config, tmp_path):
    def refused(match: str, config: Config = config, workdir=tmp_path / "run") -> None:
        before = snapshot(tmp_path)
        with pytest.raises(UserError, match=match):
            cross_validation.cross_validate(config, str(workdir))
        assert snapshot(tmp_path) == before

    shutil.copytree(whole[0], tmp_path / "run")
    refused("fold_0 holds another run .*data.folds: 3 there, 4 here", of_fold(config, -1, 4))
    shutil.rmtree(tmp_path / "run" / "fold_0")
    refused("fold_1 holds another run .*data.folds: 3 there, 4 here", of_fold(config, -1, 4))
    (tmp_path / "run" / "fold_3").mkdir()
    refused("holds fold_3, of more than data.folds = 3")
    refused("holds a single run", workdir=whole[0] / "fold_1")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    refused("holds 'notes' but no folds", workdir=tmp_path / "mine")
    refused("is in a bucket, which can hold the run of a single fold", workdir="gs://bucket/run")
    refused("needs data.folds = 3 or more, and data.fold = -1", of_fold(config, 1))
    with pytest.raises(UserError, match="holds 'fold_0' but no config.json"):
        run.train(of_fold(config, 0), str(whole[0]))
    for name in ("train", "bucket"):
        workdir = str(tmp_path / "new") if name == "train" else "gs://bucket/run"
        with pytest.raises(UserError, match="data.fold = 0 to 2, .*msajax.cross_validate in Py"):
            run.train(config, workdir)
    assert not (tmp_path / "new").exists()


def test_what_any_fold_cannot_train_on_is_refused_before_the_first_one_trains(config, tmp_path):
    made = {name: split_of(name, {"text": (3, 6)}) for name in SIZES}
    made["test"].features["text"][0, 2] = 0
    for name in ("train", "valid", "test"):
        long = np.array([id_ == "train_video0[0]" for id_ in IDS[name]])
        made[name].features["text"][~long, 2] = 0
    save_native(tmp_path / "corpus.npz", corpus_of(made))
    data = dataclasses.replace(config.data, path=str(tmp_path / "corpus.npz"))
    with pytest.raises(UserError, match=r"^data.fold = \d: 1 sequence\(s\) of modality 'text' are"):
        cross_validation.cross_validate(
            dataclasses.replace(config, data=data), str(tmp_path / "run")
        )
    assert not (tmp_path / "run").exists()


def test_evaluate_refuses_what_it_cannot_measure_or_would_replace(whole):
    folder = whole[0]
    assert claim.holds_folds(str(folder))
    assert not claim.holds_folds(str(folder / "fold_0"))
    with pytest.raises(UserError, match="leave out --split=valid, or name one .*fold_0"):
        cross_validation.evaluate_folds(str(folder), "valid")
    with pytest.raises(UserError, match="lies in the folder of the folds"):
        cross_validation.evaluate_folds(str(folder), "test", str(folder / "folds.json"))


# --- seeds that fail, modalities that are missing ---


def write_fold(folder: pathlib.Path, rows: list[dict], seeds: dict[int, float], **results) -> None:
    """The files of a run that has ended, as far as they are measured together."""
    (folder / "predictions").mkdir(parents=True)
    with open(folder / "predictions" / "test.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    metrics = {name: {"seeds": list(seeds.values())} for name in reported_by("scores")}
    write_json(
        str(folder / "results.json"),
        {
            "model": {"name": "m", "parameters": 5},
            "corpus": {"sizes": {"test": len(rows)}},
            "seeds": list(seeds),
            "best_epoch": [1] * len(seeds),
            "failed": [],
            "valid": metrics,
            "test": metrics,
            "test_ensemble": {},
            "floors": {"train_median": {"mae": 1.0 + len(rows)}},
            "timing": {"train_seconds": 1.5},
        }
        | results,
    )


def test_a_seed_that_failed_and_a_modality_that_is_missing_leave_empty_cells(tmp_path):
    def row(id_: str, label: float, **scores) -> dict:
        return {"id": id_, "label": label, "score": np.mean(list(scores.values())), **scores}

    failed = [{"seed": 1, "epoch": 3, "step": 8}]
    tables = (
        [row("a[0]", 9, score_seed0=5)],
        [row(f"b[{i}]", i, score_seed0=1 + i, score_seed1=2) for i in range(2)],
        [row("c[0]", -2, score_seed0=-4, score_seed1=-4) | {"weight_audio": 0.5}] * 3,
    )
    write_fold(tmp_path / "fold_0", tables[0], {0: 4.0}, failed=failed)
    write_fold(tmp_path / "fold_1", tables[1], {0: 1.0, 1: 1.5})
    write_fold(tmp_path / "fold_2", tables[2], {0: 2.0, 1: 2.5})
    folders = [RunFolder(str(tmp_path / f"fold_{k}")) for k in range(3)]
    results = cross_validation._measure_folds(tiny_config(), str(tmp_path), folders)
    mae = results["metrics"]["mae"]
    assert mae["folds"] == [4.0, 1.25, 2.25] and mae["mean"] == 2.5
    assert mae["sd_folds"] == pytest.approx(np.std([4, 1.25, 2.25], ddof=1))
    assert mae["sd_seeds"] is None  # one seed alone is in every fold
    assert results["failed"] == [{"fold": 0, **failed[0]}]
    # |5-9|, |1.5-0|, |2-1| and three times |-4+2|, over six samples.
    assert results["pooled"]["metrics"]["mae"]["value"] == pytest.approx(12.5 / 6)
    assert results["floors"]["constant_0"]["mae"] == pytest.approx((9 + 0 + 1 + 6) / 6)
    assert results["floors"]["train_median"]["mae"] == pytest.approx((2 * 1 + 3 * 2 + 4 * 3) / 6)
    assert results["timing"] == {"train_seconds": 4.5}
    rows = rows_of(tmp_path / "predictions.csv")
    assert list(rows[0]) == ["id", "label", "score", "score_seed0", "score_seed1", "weight_audio"]
    assert [row["score_seed1"] for row in rows] == ["", "2", "2", "-4", "-4", "-4"]
    assert [row["weight_audio"] for row in rows] == [""] * 3 + ["0.5"] * 3
    assert read_predictions(str(tmp_path / "predictions.csv"), of_seeds=False).scores.shape[0] == 1
