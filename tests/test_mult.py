"""Pickles of MulT and MultiBench, and what all splits have in common that are dicts of arrays."""

import re

import numpy as np
import pytest
from pickle_corpora import SIZES, assert_converts, mult, mult_split, refusal, write_pickle

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.formats import open_corpus
from msajax.corpus.labels import label_kind
from msajax.preparation.apply import prepare
from msajax.preparation.fit import fit


@pytest.fixture
def path(tmp_path):
    return tmp_path / "corpus.pkl"


def changed(split: str = "train", **fields) -> dict:
    tree = mult()
    tree[split] |= fields
    return tree


def opened(path, **fields):
    return open_corpus(write_pickle(path, changed(**fields)))


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_arrays_and_labels_are_those_of_the_file(path, protocol):
    tree = mult()
    corpus = open_corpus(write_pickle(path, tree, protocol))
    assert corpus.source.format == "MulT or MultiBench pickle"
    assert list(corpus.headers) == ["train", "valid", "test"]
    for name, size in SIZES.items():
        split, wanted = corpus.split(name), tree[name]
        for m, key in (("text", "text"), ("audio", "audio"), ("video", "vision")):
            stored = wanted[key].astype(np.float32)
            np.testing.assert_array_equal(split.features[m], stored, strict=True)
        np.testing.assert_array_equal(split.labels, wanted["labels"][:, :, 0], strict=True)
        assert split.raw_text is None and dict(split.masks) == {}
        assert split.ids.tolist() == [f"{name}{i // 2}[{i}.5-9.25]" for i in range(size)]


def test_padding_in_front_is_told_by_zeros(path):
    corpus = open_corpus(write_pickle(path, mult()))
    assert corpus.aligned is None  # some of these files are, others not
    preparation = fit(corpus, DataConfig(truncate="last"), ModelConfig())
    prepared, _ = prepare(corpus.split("train"), preparation)
    stored = mult()["train"]["text"]
    for row, kept, mask in zip(stored, prepared.features["text"], prepared.masks["text"],
                               strict=True):
        valid = row[row.any(axis=1)].astype(np.float32)
        assert mask.tolist() == [k < len(valid) for k in range(len(mask))]
        np.testing.assert_array_equal(kept[mask], valid)


@pytest.mark.parametrize(
    ("video", "audio", "text", "label"),
    [
        ("vision", "audio", "text", "labels"),
        ("visual", "acoustic", "glove", "label"),
        ("facet", "covarep", "Text", "y"),
        ("VIDEO", "COVAREP", "GloVe", "regression_labels"),
    ],
)
@pytest.mark.parametrize("names", [("train", "valid", "test"), ("train", "dev", "test"),
                                   ("Train", "val", "TEST")])
def test_every_usual_name_is_understood(path, video, audio, text, label, names):
    usual = {"vision": video, "audio": audio, "text": text, "labels": label, "id": "ids"}
    tree = {
        called: {usual[key]: value for key, value in fields.items()}
        for called, fields in zip(names, mult().values(), strict=True)
    }
    corpus = open_corpus(write_pickle(path, tree))
    wanted = open_corpus(write_pickle(path, mult()))
    assert corpus.digest == wanted.digest
    assert corpus.headers == wanted.headers


def test_two_names_of_one_thing_are_refused(path):
    found = refusal(path, changed(visual=np.ones((5, 5, 4))))
    assert "train/vision and " in found and "train/visual are both the video." in found
    found = refusal(path, changed(y=np.ones(5)))
    assert "train/labels and " in found and "train/y are both the label." in found


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        (["a", "b$_$1", "c", "größer", "a"], ["a", "b$_$1", "c", "größer", "a"]),
        ([b"a", "größer".encode(), b"\xff", b"d", b"e"], ["a", "größer", "\\xff", "d", "e"]),
        (np.arange(5), ["0", "1", "2", "3", "4"]),
        (np.arange(5.0)[:, None], ["0", "1", "2", "3", "4"]),
        ([[["v", "0.5", "2"]]] * 5, ["v[0.5-2]"] * 5),
        (np.array([["v", "23.199", "30.325"]] * 5, object), ["v[23.199-30.325]"] * 5),
        ([("v", np.float32(23.199), 30)] * 5, ["v[23.199-30]"] * 5),
        (np.array([b"a", b"b", b"c", b"d", b"e"]), ["a", "b", "c", "d", "e"]),
        (None, [f"train_{i}" for i in range(5)]),
        ([np.str_("a"), np.bytes_(b"b"), np.int64(3), np.array(["d"]), ["e"]], list("ab3de")),
    ],
)
def test_ids_become_readable_text(path, ids, wanted):
    corpus = opened(path, id=ids)
    assert corpus.split("train").ids.tolist() == wanted
    assert corpus.repeated_ids == (len(set(wanted)) < 5)


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 1, 1)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, ">f4"])
def test_single_labels_of_any_shape_are_one_column(path, shape, dtype):
    values = np.array([-3, 2.5, 0, 0.25, 3], dtype)
    corpus = opened(path, labels=values.reshape(shape))
    np.testing.assert_array_equal(corpus.split("train").labels[:, 0], values.astype(np.float64))
    assert corpus.headers["train"].label_names == ("sentiment",)


def test_several_labels_and_classes_are_told_apart(path):
    tree = mult()
    sizes = SIZES.items()
    kinds = {
        "scores": {name: np.linspace(-1, 6, 3 * n).reshape(n, 3) for name, n in sizes},
        "one_hot": {name: np.eye(3)[np.arange(n) % 3] for name, n in sizes},
        "classes": {name: np.arange(n)[:, None, None] % 2 for name, n in sizes},
    }
    tasks = {}
    for kind, labels in kinds.items():
        for name in tree:
            tree[name]["labels"] = labels[name]
        corpus = open_corpus(write_pickle(path, tree))
        assert {header.label_kind for header in corpus.headers.values()} == {kind}
        np.testing.assert_array_equal(
            corpus.split("train").labels, labels["train"].reshape(5, -1).astype(np.float64)
        )
        tasks[kind] = label_kind(corpus, ModelConfig())
    assert (tasks["scores"].kind, tasks["scores"].names) == ("regression", ("0", "1", "2"))
    assert (tasks["one_hot"].kind, tasks["one_hot"].classes) == ("classification", ())
    assert (tasks["classes"].kind, tasks["classes"].classes) == ("classification", (0, 1))
    del tree["test"]["labels"]  # which are unknown, not scores
    assert label_kind(open_corpus(write_pickle(path, tree)), ModelConfig()) == tasks["classes"]


@pytest.mark.parametrize("integers", [False, True])
def test_stray_sentiment_is_clipped_and_counted_but_classes_are_not(path, caplog, integers):
    tree = {name: mult_split(name, 20) for name in SIZES}
    values = np.ones(20, int if integers else float)
    for fields in tree.values():
        fields["labels"] = values[:, None, None]
    tree["valid"]["labels"] = values.copy()
    tree["valid"]["labels"][[3, 7]] = 4, -3 if integers else -3.5
    tree["valid"]["labels"][7] = abs(tree["valid"]["labels"][7]) if integers else -3.5
    corpus = open_corpus(write_pickle(path, tree))
    found = corpus.split("valid").labels[:, 0]
    if integers:
        assert found[[3, 7]].tolist() == [4, 3] and corpus.repairs == {} and caplog.text == ""
    else:
        assert found[[3, 7]].tolist() == [3, -3] and corpus.repairs == {"clipped_labels": 2}
        assert caplog.text.count("2 of 60 sentiment labels lie outside [-3, 3] and were cl") == 1


def test_labels_a_split_or_a_modality_may_be_missing(path):
    corpus = opened(path, labels=None)
    assert corpus.headers["train"].label_names == ()
    assert corpus.split("train").labels is None and corpus.split("test").labels is not None
    tree = mult()
    del tree["valid"], tree["test"]["vision"]
    corpus = open_corpus(write_pickle(path, tree))
    assert list(corpus.headers) == ["train", "test"]
    assert corpus.split("test").features.keys() == {"text", "audio"}


def test_values_are_kept_as_float32_and_what_is_beyond_is_not_finite(path):
    audio = np.ones((5, 4, 2))
    audio[0, 0], audio[1, 1, 0] = (1e300, -np.inf), np.nan
    corpus = opened(path, audio=audio)
    found = corpus.split("train").features["audio"]
    assert found.dtype == np.float32 and found.flags.c_contiguous
    np.testing.assert_array_equal(found[0, 0], [np.inf, -np.inf])
    assert np.isnan(found[1, 1, 0])
    _, repairs = prepare(corpus.split("train"), fit(corpus, DataConfig(), ModelConfig()))
    assert repairs["audio"]["non_finite"] == 3


def test_features_may_be_lists_or_arrays_of_any_kind(path):
    x = np.arange(40.0).reshape(5, 4, 2)
    objects = np.empty(5, object)
    objects[:] = list(x)
    rows = [row.astype(">f8") for row in x]
    for audio in (x.tolist(), rows, np.asfortranarray(x), objects, x.astype(">f4")):
        found = opened(path, audio=audio).split("train").features["audio"]
        np.testing.assert_array_equal(found, x.astype(np.float32), strict=True)


def test_whole_numbers_without_features_are_token_ids(path):
    tree = mult()
    for name, size in SIZES.items():
        tree[name]["text"] = np.arange(3 * size, dtype=">i4").reshape(size, 3)
    corpus = open_corpus(write_pickle(path, tree))
    assert corpus.headers["train"].shapes["text"] == (3, 0)
    found = corpus.split("train").features["text"]
    np.testing.assert_array_equal(found, np.arange(15, dtype=np.int32).reshape(5, 3), strict=True)
    fit(corpus, DataConfig(text="ids"), ModelConfig())
    with pytest.raises(Exception, match="data.text = ids: .* has no token ids as text in train"):
        fit(opened(path), DataConfig(text="ids"), ModelConfig())


def test_real_numbers_of_two_axes_are_features_of_one_step(path, tmp_path):
    tree = mult()
    for name in SIZES:
        tree[name]["vision"] = tree[name]["vision"][:, -1]
    corpus = open_corpus(write_pickle(path, tree))
    assert corpus.headers["train"].shapes["video"] == (1, 4)
    found, wanted = corpus.split("train").features["video"], tree["train"]["vision"]
    np.testing.assert_array_equal(found, wanted[:, None].astype(np.float32), strict=True)
    assert_converts(corpus, tmp_path)


RAGGED = [np.ones((3, 2)), np.ones((4, 2)), np.ones((4, 2)), np.ones((4, 2)), np.ones((4, 2))]

BAD = (
    ({"vision": np.ones((5, 5, 9))}, r"valid/video is 4 wide, but train/video is 9 wide"),
    ({"vision": np.ones((5, 7, 4))}, r"valid/video has 5 steps, but train/video has 7"),
    ({"vision": np.ones((4, 5, 4))}, r"train/vision has 4 rows, but .*train/id has 5"),
    ({"labels": np.ones(4)}, r"train/labels has 4 rows, but .*train/id has 5"),
    ({"audio": np.ones((5, 0, 2))}, r"audio is .*\(5, 0, 2\); steps and features must"),
    ({"audio": np.ones((5, 4, 0))}, r"audio is .*; steps and features must be 1 or"),
    ({"audio": np.ones(5)}, r"audio is an array of float64 of shape \(5,\); expec"),
    ({"audio": np.ones((5, 4, 2, 1))}, r"numbers \(N, T, d\) or \(N, d\), or token ids"),
    ({"audio": 3.0}, r"train/audio is an array of float64 of shape \(\)"),
    ({"audio": "loud"}, r"train/audio holds a str where numbers are expected"),
    ({"audio": np.full((5, 4, 2), "1")}, r"audio holds a ndarray where numbers are"),
    ({"audio": np.ones((5, 4, 2), bool)}, r"audio is an array of bool of shape"),
    ({"audio": RAGGED}, r"train/audio holds arrays of the shapes \(3, 2\) and \(4, 2\)"),
    ({"labels": np.ones((5, 2, 2))}, r"labels is .*\(5, 2, 2\); expected numbers"),
    ({"labels": np.ones((5, 0))}, r"train/labels is an array .* \(5, 0\); expected"),
    ({"labels": ["good"] * 5}, r"train/labels holds a str where numbers are"),
    ({"labels": [0, 1, 2, np.nan, 0]}, r"1 label\(s\) .* first that of 'train1\[3.5-"),
    ({"labels": np.ones((5, 3))}, r"labels per sample differs: 3 in train, 1 in"),
    ({"id": "abcde"}, r"train/id is a str; expected a list with an entry for each sample"),
    ({"id": [{"a": 1}] * 5}, r"train/id holds a dict of 'a' where an id is expected"),
    ({"id": [None] * 5}, r"train/id holds a NoneType where an id is expected"),
    ({"id": [2**2000] * 5}, r"train/id holds an int where an id is expected"),
    ({"id": [list("abcdefghi")] * 5}, r"id holds a list of 9 where an id is"),
    ({"id": np.ones((5, 4, 9))}, r"id is an array of float64 .*\(5, 4, 9\); expected"),
)


def test_fields_that_do_not_fit_are_refused_by_name(path):
    for fields, message in BAD:
        found = refusal(path, changed(**fields))
        assert re.search(message, found) and str(path) in found, found


def test_text_that_would_take_all_memory_is_refused(path, monkeypatch):
    monkeypatch.setattr("msajax.corpus.formats.pickled._LARGEST_TEXT", 4 * 5 * 100)
    tree = changed(raw_text=["x" * 100] + ["y"] * 4)
    assert open_corpus(write_pickle(path, tree)).split("train").raw_text[0] == "x" * 100
    tree["train"]["raw_text"][0] += "x"
    assert "train/raw_text holds 5 texts of up to 101 characters" in refusal(path, tree)


def test_transcripts_may_be_text_bytes_or_words(path):
    texts = ["größer", "größer".encode(), ["two", b"words"], np.array(["a"]), np.array("b")]
    found = opened(path, raw_text=texts).split("train").raw_text.tolist()
    assert found == ["größer", "größer", "two words", "a", "b"]


def test_a_split_that_is_empty_or_of_another_kind_is_refused(path):
    empty = {"text": np.zeros((0, 3, 6)), "labels": np.zeros((0, 1, 1)), "id": []}
    assert "split 'valid' is empty" in refusal(path, mult() | {"valid": empty})
    assert "valid has neither ids nor features" in refusal(path, mult() | {"valid": {}})
    found = refusal(path, mult() | {"test": [1]})
    assert re.search(r"corpus\.pkl: test is a list of 1; expected a dict", found)
