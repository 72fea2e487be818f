"""The processed HDF5 files of older releases: a folder with one file per array and split."""

import logging
import os
import pathlib
import re

import h5py
import numpy as np
import pytest
from pickle_corpora import assert_converts, refusal

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.formats import open_corpus
from msajax.corpus.labels import label_kind
from msajax.errors import UserError
from msajax.preparation.fit import fit

SIZES = {"train": 4, "valid": 3, "test": 2}
FILES = {"text": "text_{}_emb.h5", "audio": "audio_{}.h5", "video": "video_{}.h5", "y": "y_{}.h5"}


def write(path: pathlib.Path, values, key: str = "d1", **options) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset(key, data=values, **options)


def good_arrays() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = {"text": (3, 5), "audio": (4, 2), "video": (2, 1), "y": ()}
    return {
        name: {part: rng.uniform(-3, 3, (size, *shape)) for part, shape in shapes.items()}
        for name, size in SIZES.items()
    }


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    path = tmp_path / "corpus"
    path.mkdir()
    for name, arrays in good_arrays().items():
        for part, values in arrays.items():
            write(path / FILES[part].format(name), values)
    return path


def test_arrays_are_those_of_the_files(folder):
    corpus, wanted = open_corpus(folder), good_arrays()
    assert corpus.source.format == "old processed HDF5 folder" and corpus.repairs == {}
    assert corpus.modalities == ("text", "audio", "video")
    for name, size in SIZES.items():
        split = corpus.split(name)
        for m in corpus.modalities:
            np.testing.assert_array_equal(split.features[m], wanted[name][m], strict=True)
        np.testing.assert_array_equal(split.labels, wanted[name]["y"][:, None], strict=True)
        assert split.ids.tolist() == [f"{name}_{i}" for i in range(size)]
        assert dict(split.masks) == {} and split.raw_text is None


@pytest.mark.parametrize("valid", ["val", "dev"])
@pytest.mark.parametrize("options", [{}, {"key": "data"}, {"compression": "gzip"}])
def test_other_names_are_the_same_corpus_and_one_changed_value_is_another(
    folder, valid, options, caplog
):
    caplog.set_level(logging.INFO)
    first = open_corpus(folder).digest
    assert "not read" not in caplog.text
    for part, values in good_arrays()["valid"].items():
        (folder / FILES[part].format("valid")).unlink()
        write(folder / FILES[part].format(valid).replace(".h5", ".hdf5"), values, **options)
    (folder / "notes.h5").write_text("not read")
    corpus = open_corpus(folder)
    assert corpus.digest == first and corpus.split("train")
    assert caplog.text.count(f"{folder}: not read: 'notes.h5'.") == 1
    values = good_arrays()["test"]["video"]
    values[-1, -1, -1] = 9
    write(folder / "video_test.h5", values)
    assert open_corpus(folder).digest != first


def test_one_joint_array_is_text_audio_and_video(folder):
    joint = np.random.default_rng(1).normal(size=(4, 3, 325))
    for name, size in SIZES.items():
        for part in ("text", "audio", "video"):
            (folder / FILES[part].format(name)).unlink()
        write(folder / f"X_{name}.h5", joint[:size])
    corpus = open_corpus(folder)
    assert [corpus.width(m) for m in corpus.modalities] == [300, 5, 20]
    features = corpus.split("train").features
    found = np.concatenate([features[m] for m in ("text", "audio", "video")], axis=2)
    np.testing.assert_array_equal(found, joint, strict=True)


def test_a_modality_that_train_lacks_is_none_of_the_model(folder):
    (folder / "text_train_emb.h5").unlink()
    corpus = open_corpus(folder)
    assert corpus.modalities == ("text", "audio", "video")
    assert corpus.headers["train"].shapes.keys() == {"audio", "video"} and corpus.aligned is None
    assert fit(corpus, DataConfig(), ModelConfig()).spec.modalities == ("audio", "video")


@pytest.mark.parametrize(
    ("columns", "kind"), [(lambda n: np.eye(3)[np.arange(n) % 3], "classification"),
                          (lambda n: np.linspace(1, 7, 17 * n).reshape(n, 17), "regression")]
)  # fmt: skip
def test_several_columns_are_classes_or_ratings(folder, columns, kind):
    for name, size in SIZES.items():
        write(folder / f"y_{name}.h5", columns(size))
    corpus = open_corpus(folder)
    np.testing.assert_array_equal(corpus.split("train").labels, columns(4), strict=True)
    assert label_kind(corpus, ModelConfig()).kind == kind


BAD = (
    ("y_train", np.ones(3), r"y_train\.h5 has 3 rows, but .*audio_train\.h5 has 4"),
    ("audio_valid", np.ones((3, 4, 9)), r"valid/audio is 9 wide, but train/audio is 2"),
    ("audio_valid", np.ones((3, 5, 2)), r"valid/audio has 5 steps, but train/audio has 4\.$"),
    ("video_test", np.ones(2), r"float64 of shape \(2,\); expected numbers \(N, T"),
    ("video_test", np.ones((2, 1), int), r"int64 of .*; expected numbers \(N, T"),
    ("y_test", np.ones((2, 1, 1)), r"y_test\.h5 is .*; expected labels \(N,\) or"),
    ("y_test", np.ones(0), r"y_test\.h5 is float64 of shape \(0,\)"),
    ("y_test", np.array([b"a", b"b"]), r"y_test\.h5 is \|S1 .*; expected labels"),
    ("y_test", np.array([0, np.nan]), r"1 label\(s\) .* first that of 'test_1' \(row 1\)"),
    ("X_train", np.ones((4, 3, 325)), r"split 'train' has '\w+' twice, by itself and"),
    ("X_train", np.ones((4, 3, 300)), r"is 300 wide; expected 325: text 300, "),
)


@pytest.mark.parametrize(("stem", "values", "message"), BAD, ids=[bad[2][:40] for bad in BAD])
def test_arrays_that_do_not_fit_are_refused_by_file(folder, stem, values, message):
    write(folder / f"{stem}.h5", values)
    found = refusal(folder)
    assert re.search(message, found) and str(folder) in found, found


def test_files_that_are_no_such_arrays_are_refused(folder):
    corpus = open_corpus(folder)
    os.truncate(folder / "audio_test.h5", 100)  # while in use
    with pytest.raises(UserError, match=r"audio_test\.h5 is damaged or not an HDF5 file: .*\.$"):
        corpus.split("test")
    write(folder / "audio_test.h5", good_arrays()["test"]["audio"])
    write(folder / "audio_val.h5", np.ones((3, 4, 2)))
    assert re.search(r"audio_valid\.h5 and .*audio_val\.h5 are the same array", refusal(folder))
    (folder / "audio_val.h5").unlink()
    write(folder / "y_test.h5", np.ones(2), "label")
    assert "holds 'label'; expected one dataset named d1 or data" in refusal(folder)
    (folder / "y_test.h5").write_bytes(b"no HDF5")
    assert re.search(r"y_test\.h5 is damaged or not an HDF5 file", refusal(folder))


def test_real_numbers_of_two_axes_are_features_of_one_step(folder, tmp_path):
    wanted = good_arrays()
    for name in SIZES:
        write(folder / f"video_{name}.h5", wanted[name]["video"][:, 0])
    corpus = open_corpus(folder)
    assert corpus.headers["train"].shapes["video"] == (1, 1)
    found = corpus.split("train").features["video"]
    np.testing.assert_array_equal(found, wanted["train"]["video"][:, :1], strict=True)
    assert_converts(corpus, tmp_path)


def test_a_real_release_without_text_for_training_is_read(shared_data):
    corpus = open_corpus(shared_data / "ict_mmmo_h5")
    assert {name: header.size for name, header in corpus.headers.items()} == {
        "train": 220, "valid": 40, "test": 80
    }  # fmt: skip
    assert "text" not in corpus.headers["train"].shapes
    assert {"text", "audio", "video"} == set(corpus.headers["valid"].shapes)
