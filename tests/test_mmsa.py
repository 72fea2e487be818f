"""Pickles of MMSA: arrays as they are, masks as the field's own code means them."""

import dataclasses
import logging
import re

import numpy as np
import pytest
from pickle_corpora import SIZES, TOKENS, assert_converts, mmsa, mmsa_split, refusal, write_pickle

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.formats import mmsa as reader
from msajax.corpus.formats import open_corpus
from msajax.errors import UserError
from msajax.preparation.apply import check_split, prepare
from msajax.preparation.fit import fit
from msajax.preparation.inspection import inspect_corpus

BERT = mmsa_split("train", 5)["text_bert"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "corpus.pkl"


def changed(split: str = "train", **fields) -> dict:
    """The good corpus with fields of one split replaced; None leaves one out."""
    tree = mmsa()
    tree[split] |= fields
    tree[split] = {name: value for name, value in tree[split].items() if value is not None}
    return tree


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_arrays_ids_labels_and_transcripts_are_those_of_the_file(path, protocol):
    tree = mmsa()
    corpus = open_corpus(write_pickle(path, tree, protocol))
    assert corpus.source.format == "MMSA pickle" and "names that only MMSA uses" in corpus.why
    assert corpus.modalities == ("text", "audio", "video")
    for name, size in SIZES.items():
        split, wanted = corpus.split(name), tree[name]
        assert len(split) == size and split.ids.tolist() == wanted["id"]
        assert split.raw_text.tolist() == wanted["raw_text"].tolist()
        for m, key in (("text", "text"), ("audio", "audio"), ("video", "vision")):
            stored = wanted[key].astype(np.float32)
            np.testing.assert_array_equal(split.features[m], stored, strict=True)
        labels = wanted["regression_labels"][:, None]
        np.testing.assert_array_equal(split.labels, labels, strict=True)


def test_without_padding_of_zeros_berts_mask_says_which_steps_of_text_are_real(path, caplog):
    """An encoder ran over the padding, so that features alone would not tell."""
    tree = mmsa()
    tree["train"]["text"][2] = 0  # not recorded, which says nothing of how the others are padded
    tree["valid"]["text"][0, 0, 0], tree["valid"]["text"][0, 0, 1:] = np.nan, 0  # is not zero
    with caplog.at_level(logging.INFO):
        corpus = open_corpus(write_pickle(path, tree))
    hidden = {}
    for name, wanted in tree.items():
        split = corpus.split(name)
        mask, stored = wanted["text_bert"][:, 1] == 1, wanted["text"].any(axis=2)
        np.testing.assert_array_equal(split.masks["text"], mask & stored.any(axis=1)[:, None])
        for m, key in (("audio", "audio"), ("video", "vision")):
            for row, length in zip(split.masks[m], wanted[f"{key}_lengths"], strict=True):
                assert row.tolist() == [True] * length + [False] * (len(row) - length)
        hidden[name] = int((stored & ~mask).sum())
    assert caplog.text.count("text_bert") == 1
    assert (
        f"{path}: no sample of train/text, valid/text, test/text is padded with steps of zeros, so "
        "the attention mask of text_bert says which of its steps are real: it hides "
        f"{sum(hidden.values())}, which are not zero."
    ) in caplog.text
    for split in tree.values():
        split["text_bert"][:, 1] = 1
    with caplog.at_level(logging.INFO):
        open_corpus(write_pickle(path, tree))
    assert "says which of its steps are real.\n" in caplog.text
    found = inspect_corpus(corpus, DataConfig())
    preparation = fit(corpus, DataConfig(), ModelConfig())
    for name, count in hidden.items():
        said = f"{name}/text: {count} stored step(s) that are not zero are left out, as its mask"
        assert any(warning.startswith(said) for warning in found["warnings"])
        assert prepare(corpus.split(name), preparation)[1]["text"]["hidden_steps"] == count


@pytest.mark.parametrize("bert", [BERT, BERT[:, :, :3], BERT + 0.5], ids=["4", "3", "no mask"])
@pytest.mark.parametrize("padded", ["one before", "one behind"])
@pytest.mark.parametrize("filler", [0, np.nan])
def test_features_of_text_that_are_padded_are_read_by_that_alone(path, padded, bert, filler):
    """text_bert's mask is one of ids, which may be padded on the other side, or cut elsewhere."""
    text = np.ones((5, TOKENS, 3), np.float16)
    text[:3, 2] = 0  # a step inside is valid
    text[3, 0 if padded == "one before" else -1] = filler
    text[4] = 0
    corpus = open_corpus(write_pickle(path, changed(text=text, text_bert=bert)))
    assert corpus.headers["train"].masked == {"audio", "video"}
    split = corpus.split("train")
    found, repairs = prepare(split, fit(corpus, DataConfig(), ModelConfig(modalities=("text",))))
    assert found.masks["text"].sum(axis=1).tolist() == [4, 4, 4, 3, 0] and repairs == {}
    assert corpus.repairs.get("nan_padding", 0) == (filler != 0)


def test_splits_that_are_padded_in_different_ways_are_warned_of(path, caplog):
    tree = mmsa()
    tree["train"]["text"][0, -1] = 0  # of one sample, and an encoder ran over the others' padding
    open_corpus(write_pickle(path, tree))
    mask, stored = tree["train"]["text_bert"][:, 1] == 1, tree["train"]["text"].any(axis=2)
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line.startswith(f"{path}: train/text has samples that are padded with zeros")
    assert f"attention mask hides {int((stored & ~mask).sum())} that are not zero" in line


def test_transcripts_alone_are_a_corpus(path):
    tree = {
        name: {key: split[key] for key in ("id", "raw_text", "regression_labels", "annotations")}
        for name, split in mmsa().items()
    }
    corpus = open_corpus(write_pickle(path, tree))
    assert (corpus.source.format, corpus.modalities) == ("MMSA pickle", ())
    words = DataConfig(text="words", min_count=1)
    assert fit(corpus, words, ModelConfig()).spec.modalities == ("text",)
    count = sum(map(len, (split["id"] for split in tree.values())))
    with pytest.raises(UserError, match=f"{count} transcripts found; not read: data.text=words"):
        fit(corpus, DataConfig(), ModelConfig())


def test_a_modality_of_zeros_is_absent_and_lengths_beyond_the_steps_count_as_all(path, caplog):
    tree = mmsa()
    for m in ("audio", "vision", "text"):
        tree["train"][m][1] = 0
    split = open_corpus(write_pickle(path, tree)).split("train")
    for m, mask in split.masks.items():
        assert mask.any(axis=1).tolist() == [True, False, True, True, True], m
    tree = changed(audio=np.ones((5, 6, 2)), audio_lengths=[7, 6, 500, 1, 6])
    tree["train"]["audio"][3, 1:] = 0
    corpus = open_corpus(write_pickle(path, tree))
    assert corpus.split("train").masks["audio"].sum(axis=1).tolist() == [6, 6, 6, 1, 6]
    assert corpus.repairs == {"cut_lengths": 2}
    said = "2 length(s) exceed the steps that are stored (2 of 5 in train/audio_lengths)"
    assert f"{path}: {said} and count as all of them." in caplog.text


def test_aligned_files_bring_no_lengths_and_padding_is_zeros(path):
    tree = mmsa(aligned=True)
    corpus = open_corpus(write_pickle(path, tree))
    assert corpus.headers["train"].masked == {"text"}
    prepared, _ = prepare(corpus.split("train"), fit(corpus, DataConfig(), ModelConfig()))
    valid = tree["train"]["text_bert"][:, 1] == 1
    for m in ("text", "audio", "video"):
        longest = valid.sum(axis=1).max()
        np.testing.assert_array_equal(prepared.masks[m], valid[:, :longest])


@pytest.mark.parametrize("text", ["features", "ids"])
def test_files_without_lengths_are_aligned_and_those_with_lengths_are_not(path, text):
    """Whatever their numbers of steps: unaligned CMU-MOSEI has 500 of audio and of vision."""
    data = DataConfig(text=text)
    aligned, unaligned = mmsa(aligned=True), mmsa(aligned=True)
    for fields in unaligned.values():
        fields["audio_lengths"] = fields["text_bert"][:, 1].sum(axis=1)
    everything = ("text", "audio", "video")
    assert open_corpus(write_pickle(path, aligned), data).aligned == everything
    assert fit(open_corpus(path, data), data, ModelConfig()).groups == (everything,)
    assert open_corpus(write_pickle(path, unaligned), data).aligned == ()
    assert fit(open_corpus(path, data), data, ModelConfig()).groups == ()
    unaligned["valid"] = aligned["valid"]  # one split that says so is enough
    assert open_corpus(write_pickle(path, unaligned), data).aligned == ()
    for fields in aligned.values():
        fields["vision"] = fields["vision"][:, :-1]
    corpus = open_corpus(write_pickle(path, aligned), data)
    assert corpus.aligned is None
    assert fit(corpus, data, ModelConfig()).groups == (("text", "audio"),)


def test_token_ids_take_the_place_of_features_if_they_are_asked_for(path, tmp_path):
    tree = mmsa()
    tree["train"]["text_bert"][0, 2, 1:] = 1
    bert, data = tree["train"]["text_bert"], DataConfig(text="ids")
    corpus = open_corpus(write_pickle(path, tree), data)
    assert corpus.headers["train"].shapes["text"] == (TOKENS, 0)
    split, ids = corpus.split("train"), bert[:, 0].astype(np.int32)
    np.testing.assert_array_equal(split.features["text"], ids, strict=True)
    np.testing.assert_array_equal(split.masks["text"], bert[:, 1] == 1, strict=True)
    spec = fit(corpus, data, ModelConfig()).spec
    assert spec.vocabulary("text") == ids[bert[:, 1] == 1].max() + 1
    assert open_corpus(path).digest != corpus.digest
    # A text encoder reads them with their segments.
    corpus = open_corpus(path, DataConfig(text="pieces"))
    split = corpus.split("train")
    np.testing.assert_array_equal(split.features["text"], bert[:, 0])
    np.testing.assert_array_equal(split.segments, bert[:, 2])
    assert split.raw_text is not None and corpus.split("test").segments is None
    assert_converts(corpus, tmp_path)


def test_what_is_not_read_is_named_once(path, caplog):
    tree = mmsa()
    for fields in tree.values():
        fields |= {f"regression_labels_{m}": fields["regression_labels"] for m in "TAV"}
        del fields["text"]
    with caplog.at_level(logging.INFO):
        corpus = open_corpus(write_pickle(path, tree))
    assert corpus.headers["train"].label_names == ("sentiment",)
    unread = "'annotations', 'classification_labels', 'regression_labels_A', "
    assert f"not read: {unread}'regression_labels_T', 'regression_labels_V'." in caplog.text
    assert caplog.text.count("not read") == 1
    assert corpus.modalities == ("audio", "video")
    assert "train/text_bert is there without text: data.text = ids reads" in caplog.text
    assert open_corpus(path, DataConfig(text="ids")).modalities == ("text", "audio", "video")


# Steps that are not zero, the length, and the steps that are valid then.
LENGTHS = [
    ("ab....", 2, "11...."),
    (".ab...", 3, "111..."),
    ("a.....", 4, "1111.."),
    ("....ab", 2, "....11"),  # padded in front
    ("....ab", 3, "...111"),
    ("..a.b.", 3, "..111."),  # so, but not up to the end
    ("a...b.", 2, "11111."),  # in no window of two steps: from the first to the last
    ("abcdef", 3, "111111"),
    ("..ab..", 0, "..11.."),
    ("..N...", 1, "..1..."),  # NaN is not zero
    ("......", 4, "......"),  # not recorded
    ("..abcd", 9, "111111"),  # cut
]


def test_a_length_is_a_number_of_steps_wherever_they_lie_and_nothing_is_lost(path, caplog):
    stored, lengths, wanted = zip(*LENGTHS, strict=True)
    size = len(LENGTHS)
    tree = mmsa() | {"train": mmsa_split("train", size)}
    values = {letter: ord(letter) for letter in "abcdef"} | {".": 0.0, "N": np.nan}
    audio = np.array([[values[letter] for letter in row] for row in stored])
    tree["train"] |= {"audio": np.stack([audio, 0 * audio], axis=2), "audio_lengths": lengths}
    corpus = open_corpus(write_pickle(path, tree))
    split = corpus.split("train")
    found = ["".join(".1"[step] for step in row) for row in split.masks["audio"].astype(int)]
    assert found == list(wanted)
    assert corpus.repairs == {"length_disagrees": 7, "cut_lengths": 1}
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        f"{path}: 7 length(s) end before a step that is not zero (7 of {size} in "
        "train/audio_lengths) and are read as numbers of steps, wherever these lie; 4 of these "
        "sequences are padded in front, and as many steps as the length says are read, up to the "
        "last that is not zero; 3 of them have more steps than their length, and all are read, "
        "from the first to the last that is not zero; 1 length(s) exceed the steps that are stored "
        f"(1 of {size} in train/audio_lengths) and count as all of them."
    ]
    preparation = fit(corpus, DataConfig(), ModelConfig())
    assert check_split(split, preparation)[0] == {}
    assert inspect_corpus(corpus, DataConfig())["splits"]["train"]["lost"] == {}


@pytest.mark.parametrize("truncate", ["error", "first"])
@pytest.mark.parametrize("in_front", [2, 3])
def test_a_mistake_in_masks_made_of_lengths_is_found(path, monkeypatch, truncate, in_front):
    """As if lengths were ends: what is read in the end is compared with what is stored."""
    tree = mmsa() | {"train": mmsa_split("train", 20)}
    audio = np.zeros((20, 6, 2))
    audio[:in_front, 3:], audio[in_front:, 1:4] = 1, 1
    tree["train"] |= {"audio": audio, "audio_lengths": np.full(20, 2)}

    def ends(lengths, nonzero):
        none = np.zeros(len(lengths), bool)
        return np.arange(nonzero.shape[1]) < lengths[:, None], none, none

    monkeypatch.setattr(reader, "_place_lengths", ends)
    corpus = open_corpus(write_pickle(path, tree))
    steps = in_front * 3 + (20 - in_front) * 2  # those in front keep two steps that are zeros
    report = inspect_corpus(corpus, DataConfig())
    lost = {"steps": steps, "samples": 20, "emptied": in_front, "of": 20}
    assert report["splits"]["train"]["lost"]["audio"] == lost
    said = f"train/audio: {steps} stored step(s) that are not zero would not be read, which would "
    said += f"leave {in_front} of 20 samples without it"
    data, model = DataConfig(truncate=truncate), ModelConfig(max_len=5)
    counts = {"lost_steps": steps, "emptied_samples": in_front}
    if in_front == 2:  # a tenth, and not more
        assert f"{said}." in report["warnings"]
        assert prepare(corpus.split("train"), fit(corpus, data, model))[1]["audio"] == counts
        return
    assert f"{said}: training needs data.allow_loss = true." in report["warnings"]
    for refuse in (check_split, prepare):
        with pytest.raises(UserError, match=r"train: 43 .* 'audio' .* 3 of 20 samples without it"):
            refuse(corpus.split("train"), fit(corpus, data, model))
    allowed = fit(corpus, dataclasses.replace(data, allow_loss=True), model)
    assert check_split(corpus.split("train"), allowed)[0] == {"audio": counts}
    # A modality of which a mistake hides every step is refused, and not left out.
    monkeypatch.setattr(reader, "_place_lengths", lambda lengths, nonzero: (
        np.zeros(nonzero.shape, bool), *[np.zeros(len(lengths), bool)] * 2
    ))
    corpus = open_corpus(write_pickle(path, mmsa()))
    with pytest.raises(UserError, match=r"corpus\.pkl: train: .* 'audio' .* 5 of 5 samples"):
        fit(corpus, DataConfig(), ModelConfig())
    allowed = fit(corpus, DataConfig(allow_loss=True), ModelConfig())
    assert allowed.spec.modalities == ("text",)


def test_a_value_that_is_none_is_not_there(path):
    tree = mmsa() | {"test": mmsa_split("test", 2) | {"regression_labels": None}}
    for given in (tree, changed("test", regression_labels=None)):
        corpus = open_corpus(write_pickle(path, given))
        assert corpus.headers["test"].label_names == () and corpus.split("test").labels is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_bert": BERT[:4]}, r"text_bert is an array .*\(4, 3, 4\); expected numbers \(5, "),
        ({"text_bert": BERT[:, :2]}, r"text_bert is an array of float64 of shape \(5, 2, 4\)"),
        ({"text_bert": BERT[:, :, :3]}, r"train/text has 4 steps, no .*train/text_bert has 3"),
        ({"text_bert": BERT[:, :, :0]}, r"text_bert has no step"),
        ({"text_bert": BERT + 0.5}, r"train/text_bert holds a number that is not a whole one"),
        ({"text_bert": -BERT}, r"train/text_bert holds a number that is not a whole one"),
        ({"text_bert": BERT * np.nan}, r"train/text_bert holds a number that is not a whole one"),
        ({"text_bert": BERT * [[1], [2], [1]]}, r"an attention mask of more than 0 and 1"),
        ({"audio_lengths": [1, 2]}, r"audio_lengths is .*\(2,\); expected 5 numbers of steps"),
        ({"audio_lengths": [1, 2, -1, 2, 2]}, r"train/audio_lengths holds a number that is not a"),
        ({"audio_lengths": [1, 2, 1.5, 2, 2]}, r"train/audio_lengths holds a number that is not"),
        ({"audio_lengths": ["1"] * 5}, r"train/audio_lengths holds a str where numbers are"),
        ({"vision": np.ones((4, 3, 4))}, r"train/vision has 4 rows, but .*train/id has 5"),
        ({"raw_text": [1.5] * 5}, r"train/raw_text holds a float where text is expected"),
        ({"regression_labels": [np.nan] * 5}, r"5 label\(s\) of split 'train' are not finite"),
    ],
)
def test_fields_that_do_not_fit_are_refused_by_name(path, fields, message):
    found = refusal(path, changed(**fields))
    assert re.search(message, found) and str(path) in found, found
