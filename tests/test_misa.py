"""Pickles of MISA and MAG: samples of any length, and what their words become."""

import logging
import re

import numpy as np
import pytest
from pickle_corpora import WORDS, misa, refusal, write_glove, write_pickle

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.formats import open_corpus
from msajax.errors import UserError
from msajax.preparation.fit import fit

NAMES = {"train": "train", "valid": "dev", "test": "test"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "corpus.pkl"


@pytest.fixture
def glove(tmp_path):
    return tmp_path / "glove.txt"


def padded(rows: list[np.ndarray], width: tuple[int, ...], dtype=np.float32) -> np.ndarray:
    out = np.zeros((len(rows), max(map(len, rows)), *width), dtype)
    for k, row in enumerate(rows):
        out[k, : len(row)] = row
    return out


def check_masks(mask: np.ndarray, rows: list) -> None:
    longest = max(map(len, rows))
    assert mask.tolist() == [[t < len(row) for t in range(longest)] for row in rows]


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize(("ids", "words"), [(True, True), (True, False), (False, True)])
def test_samples_are_padded_after_their_steps(path, protocol, ids, words):
    tree = misa(ids=ids, words=words)
    corpus = open_corpus(write_pickle(path, tree, protocol))
    assert corpus.source.format == "MISA or MAG pickle" and "lists of samples" in corpus.why
    assert corpus.modalities == (("text",) if ids else ()) + ("audio", "video")
    for name, header in corpus.headers.items():
        samples, split = tree[NAMES[name]], corpus.split(name)
        assert split.ids.tolist() == [sample[2] for sample in samples]
        labels = np.array([sample[1][0] for sample in samples], np.float64)
        np.testing.assert_array_equal(split.labels, labels, strict=True)
        for m, part, width in (("video", 1, 4), ("audio", 2, 2)):
            rows = [sample[0][part] for sample in samples]
            np.testing.assert_array_equal(split.features[m], padded(rows, (width,)), strict=True)
            check_masks(split.masks[m], rows)
            assert header.shapes[m] == split.features[m].shape[1:]
        if ids:
            rows = [sample[0][0] for sample in samples]
            stored = padded(rows, (), np.int32)
            np.testing.assert_array_equal(split.features["text"], stored, strict=True)
            check_masks(split.masks["text"], rows)
            assert header.shapes["text"] == (stored.shape[1], 0)
        if words:
            texts = [" ".join(sample[0][3 if ids else 0]) for sample in samples]
            assert split.raw_text.tolist() == texts
        else:
            assert split.raw_text is None


@pytest.mark.parametrize("ids", [True, False])
def test_words_become_vectors_and_those_without_one_stay_valid(path, glove, caplog, ids):
    tree, vectors = misa(ids=ids), write_glove(glove)
    with caplog.at_level(logging.INFO):
        corpus = open_corpus(write_pickle(path, tree), DataConfig(glove_path=str(glove)))
    spoken = [w for samples in tree.values() for s in samples for w in s[0][3 if ids else 0]]
    unknown = spoken.count(WORDS[-1])
    assert unknown > 0
    share = f"{unknown} of {len(spoken)} words ({100 * unknown / len(spoken):.1f} %) have no vector"
    assert caplog.text.count(share) == 1
    for name in corpus.headers:
        split = corpus.split(name)
        rows = [
            [vectors.get(word, np.zeros(3)) for word in sample[0][3 if ids else 0]]
            for sample in tree[NAMES[name]]
        ]
        np.testing.assert_array_equal(split.features["text"], padded(rows, (3,)), strict=True)
        check_masks(split.masks["text"], rows)


def test_words_alone_are_transcripts_and_said_to_be(path, caplog):
    corpus = open_corpus(write_pickle(path, misa(ids=False)))
    assert corpus.modalities == ("audio", "video")
    assert caplog.text.count("words are transcripts alone; with data.glove_path") == 1
    data = DataConfig(text="words", min_count=1)
    caplog.clear()
    spec = fit(open_corpus(path, data), data, ModelConfig()).spec
    assert spec.modalities == ("text", "audio", "video") and spec.vocabulary("text") > 2
    assert caplog.text == ""


def test_words_are_the_steps_of_a_text_encoder(path, caplog):
    tree = misa(ids=False)
    tree["train"][0][0][0][0] = "sp"  # a pause
    data = DataConfig(text="pieces")
    corpus = open_corpus(write_pickle(path, tree), data)
    assert corpus.modalities == ("audio", "video")
    for name, header in corpus.headers.items():
        rows = [["" if w == "sp" else w for w in sample[0][0]] for sample in tree[NAMES[name]]]
        assert header.words == header.shapes["audio"][0] == max(map(len, rows))
        found = corpus.split(name).words.tolist()
        assert found == [row + [""] * (header.words - len(row)) for row in rows]
    again = open_corpus(write_pickle(path, misa()), data)
    assert again.modalities == ("audio", "video")  # word ids are those of no encoder
    assert caplog.text == ""


def test_words_that_are_not_the_steps_are_transcripts_alone(path, caplog):
    tree = misa(ids=False)
    tree["dev"][1][0][0].append("more")
    corpus = open_corpus(write_pickle(path, tree), DataConfig(text="pieces"))
    assert corpus.aligned == ("audio", "video") and corpus.split("train").words is None
    assert "of valid has" in caplog.text and "words are not read step by step" in caplog.text
    one = tree["train"][0][0]
    tree["train"][0] = ((one[0], one[1], one[2][:-1]), *tree["train"][0][1:])
    tree["train"][0][0][0].append("more")
    apart = open_corpus(write_pickle(path, tree), DataConfig(text="pieces"))
    assert apart.aligned == () and apart.split("train").words is not None


def test_word_ids_are_preferred_where_they_are_asked_for(path, glove):
    write_glove(glove)
    data = DataConfig(text="ids", glove_path=str(glove))
    assert open_corpus(write_pickle(path, misa()), data).width("text") == 0
    found = refusal(path, misa(ids=False), text="ids")
    assert re.search(r"data\.text = ids: .*corpus\.pkl has words and no word ids\.$", found)


def test_vectors_need_words_that_they_know(path, glove):
    write_glove(glove, ["other"])
    found = refusal(path, misa(), glove_path=str(glove))
    assert re.search(r"glove\.txt has none of the 5 words of .*corpus\.pkl\.$", found)
    found = refusal(path, misa(words=False), glove_path=str(glove))
    assert re.search(r"corpus\.pkl has no words that .*glove\.txt could have vectors of\.$", found)
    assert "cannot be read" in refusal(path, misa(), glove_path=str(glove) + ".gone")


def test_a_sample_without_steps_or_of_zeros_lacks_the_modality(path):
    tree = misa()
    (ids, visual, acoustic, words), label, id_ = tree["train"][1]
    tree["train"][1] = (ids, visual * 0, [], words), label, id_
    tree["train"][2] = ([], np.zeros((0, 4)), acoustic, []), *tree["train"][2][1:]
    split = open_corpus(write_pickle(path, tree)).split("train")
    assert split.masks["video"].any(axis=1).tolist() == [True, False, False, True, True]
    assert split.masks["audio"].any(axis=1).tolist() == [True, False, True, True, True]
    assert split.masks["text"].any(axis=1).tolist() == [True, True, False, True, True]
    assert split.raw_text[2] == ""


@pytest.mark.parametrize("kind", ["vectors", "ids", "words"])
def test_samples_are_aligned_by_their_words(path, glove, kind):
    write_glove(glove)
    data = DataConfig(glove_path=str(glove) if kind == "vectors" else "")
    corpus = open_corpus(write_pickle(path, misa(ids=kind != "words")), data)
    assert corpus.aligned == ("text", "audio", "video")  # by words, where there are no features
    wanted = ("audio", "video") if kind == "words" else ("text", "audio", "video")
    assert fit(corpus, data, ModelConfig()).groups == (wanted,)


def test_aligned_modalities_have_the_steps_of_the_longest_sample_whatever_it_lacks(path):
    tree = misa()
    longest = max(range(5), key=lambda i: len(tree["train"][i][0][0]))
    steps = len(tree["train"][longest][0][0])
    (ids, visual, _, words), label, id_ = tree["train"][longest]
    tree["train"][longest] = (ids, visual, [], words), label, id_
    assert max(len(x[2]) for x, _, _ in tree["train"]) < steps
    corpus = open_corpus(write_pickle(path, tree))
    assert {shape[0] for shape in corpus.headers["train"].shapes.values()} == {steps}
    split = corpus.split("train")
    for m, k in (("video", 1), ("audio", 2)):
        assert split.features[m].shape[1] == split.masks[m].shape[1] == steps
        lengths = [len(x[k]) for x, _, _ in tree["train"]]
        assert split.masks[m].tolist() == [[t < n for t in range(steps)] for n in lengths]
    assert corpus.aligned == ("text", "audio", "video")


def test_samples_whose_parts_differ_in_length_are_not_aligned(path, caplog):
    tree = misa()
    (ids, visual, acoustic, words), label, id_ = tree["dev"][1]
    tree["dev"][1] = (ids, visual, np.concatenate([acoustic, acoustic[:1]]), words), label, id_
    corpus = open_corpus(write_pickle(path, tree))
    assert corpus.aligned == ()
    assert f"text of {id_!r} has {len(ids)} steps, another modality {len(ids) + 1}" in caplog.text
    assert fit(corpus, DataConfig(), ModelConfig()).groups == ()


def test_labels_of_any_shape_are_one_column_and_there_may_be_several_or_none(path):
    def labels(make, split: str = "train"):
        tree = misa()
        for samples in tree.values():
            samples[:] = [(x, make(k - 2.0), d) for k, (x, _, d) in enumerate(samples)]
        return open_corpus(write_pickle(path, tree)).split(split).labels

    for make in (
        *(lambda y: np.array([[y]]), lambda y: np.array([y]), np.array, float),
        *(lambda y: [[y]], lambda y: [[int(y)]]),
    ):
        np.testing.assert_array_equal(labels(make), np.arange(-2.0, 3)[:, None], strict=True)
    assert labels(lambda y: np.array([[1.0, 5.0, y]]), "test").tolist() == [[1, 5, -2], [1, 5, -1]]
    tree = misa()
    tree["test"] = [(x, None, d) for x, _, d in tree["test"]]
    assert open_corpus(write_pickle(path, tree)).split("test").labels is None


def one(**changes) -> list:
    """The training split with the second sample changed."""
    samples = misa()["train"]
    (ids, visual, acoustic, words), label, id_ = samples[1]
    parts = {"ids": ids, "visual": visual, "acoustic": acoustic, "words": words}
    parts |= {"label": label, "id": id_} | changes
    text = tuple(parts[key] for key in ("ids", "visual", "acoustic", "words"))
    samples[1] = text, parts["label"], parts["id"]
    return samples


BAD = (
    ([*misa()["train"], 3], r"train\[5\] is an int; expected \(\(words, visual, ac"),
    ([*misa()["train"], (1, 2)], r"train\[5\] is a tuple of 2; expected \(\(words"),
    ([*misa()["train"], (1, 2, 3)], r"train\[5\] begins with an int; expected"),
    ([*misa()["train"], ((1,) * 5, 2, "a")], r"train\[5\] begins with a tuple of 5;"),
    (one(visual=np.ones(4)), r"train\[1\], visual, is .*\(4,\); expected numbers"),
    (one(visual=2.5), r"visual, is .* of shape \(\); expected"),
    (one(visual="x"), r"train\[1\], visual holds a str where numbers are expected"),
    (one(visual=np.ones((2, 4), bool)), r"visual, is .*bool.*; expected numbers"),
    (one(visual=np.ones((2, 5))), r"\[1\], visual, is 5 wide, but .*\[0\], vis"),
    (one(ids=[1.5]), r"train\[1\], word ids holds a number that is not a whole one"),
    (one(ids=[-1]), r"train\[1\], word ids holds a number that is not a whole one"),
    (one(ids=[[1]]), r"train\[1\] has .*\(1, 1\) as its words; expected word ids"),
    (one(ids={"a": 1}), r"train\[1\], word ids holds a dict where numbers are expected"),
    (one(words=[1, 2]), r"train\[1\] has a list of 2 as its words; expected"),
    (one(label="good"), r"train\[1\], label holds a str where numbers are expected"),
    (one(label=None), r"train\[1\], label holds a NoneType where numbers are"),
    (one(label=np.ones((1, 2))), r"train\[1\] has 2 label\(s\), but .*train\[0\] has 1"),
    (one(label=[]), r"train\[1\] has 0 label\(s\), but .*train\[0\] has 1; expected"),
    (one(label=[[np.nan]]), r"1 label\(s\) .* the first that of 'trainvideo0\[1\]' \(row 1"),
    (one(id=None), r"an id holds a NoneType where an id is expected"),
    ([], r"train is empty; expected a list of samples"),
)


def test_padding_that_would_take_all_memory_is_refused_before_it_is_made(path, monkeypatch):
    step, long, none = np.ones((1, 1)), np.zeros((2**20, 1), np.float32), []
    samples = [((["it"], step, step), [[0.5]], f"v[{i}]") for i in range(1000)]
    samples[7] = (["it"], long, step), [[0.5]], "v[7]"  # 4 MB, and a thousand times as much
    found = refusal(path, {"train": samples})
    assert "train/video takes 4194304000 bytes when its 1000 sequences are padded to the" in found
    assert "1048576 steps of the longest, number 7, over 64 times as much as without" in found
    samples[7] = (["it"], long[: 2**16], step), [[0.5]], "v[7]"
    assert open_corpus(write_pickle(path, {"train": samples})).headers["train"].size == 1000
    # To a sample that lacks the modality: its other ones are small, so that the file is.
    wide = np.ones((1, 2**12), np.float32)
    samples = [((["it"], wide, none), [[0.5]], f"v[{i}]") for i in range(20)]
    samples[3] = (["it"], none, long[: 2**14]), [[0.5]], "v[3]"
    found = refusal(path, {"train": samples})
    assert "train/video takes 5368709120 bytes when its 20 sequences are padded to" in found
    assert "the 16384 steps of the longest, number 3, over 64 times" in found
    monkeypatch.setattr("msajax.corpus.formats.misa._LARGEST", 4 * 5 * 5 * 4 - 1)
    found = refusal(path, {"train": one(visual=np.ones((5, 4)))})
    assert re.search(r"train/video takes more than 399 bytes when its 5 sequences are", found)


def test_samples_of_another_form_kind_or_width_are_refused_by_name(path):
    for samples, message in BAD:
        found = refusal(path, {"dev": misa()["dev"], "train": samples})
        assert re.search(message, found) and str(path) in found, found
    found = refusal(path, misa() | {"dev": {"a": 1}})
    assert "corpus.pkl: valid is a dict of 'a'; expected a list of samples." in found
    tree = misa()
    tree["test"] = [((i, v[:, :3], a, w), y, d) for (i, v, a, w), y, d in tree["test"]]
    assert "test/video is 3 wide, but train/video is 4 wide" in refusal(path, tree)


def test_words_and_word_ids_are_there_for_all_samples_or_for_none(path, glove):
    tree = misa(words=False)
    tree["dev"][1] = misa()["dev"][1]
    assert "train[0] has no words, but other samples have" in refusal(path, tree)
    tree = misa()
    tree["dev"][1] = misa(ids=False)["dev"][1]
    assert "valid[1] begins with words, but other samples with word ids" in refusal(path, tree)
    write_glove(glove)  # with it, they do not matter
    assert open_corpus(path, DataConfig(glove_path=str(glove))).width("text") == 3


def test_a_split_that_does_not_fit_into_memory_is_one_sentence(path, monkeypatch):
    corpus = open_corpus(write_pickle(path, misa()))

    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(np, "zeros", no_memory)
    with pytest.raises(UserError, match=r"split 'train', 5 samples of up to .* does not fit"):
        corpus.split("train")


def test_the_digest_depends_on_content_alone(tmp_path, glove):
    write_glove(glove)
    data = DataConfig(glove_path=str(glove))
    first = open_corpus(write_pickle(tmp_path / "a.pkl", misa(), 0), data).digest
    assert re.fullmatch("[0-9a-f]{64}", first)
    lines = glove.read_text("utf-8").splitlines()
    glove.write_text("\n".join(["more 1 2 3", *reversed(lines)]), "utf-8")
    tree = {
        name: [((i, np.asfortranarray(v.astype(">f8")), a, tuple(w)), y, np.str_(d))
               for (i, v, a, w), y, d in samples]
        for name, samples in reversed(misa().items())
    }
    for protocol in range(1, 6):
        assert open_corpus(write_pickle(tmp_path / "b.pkl", tree, protocol), data).digest == first


@pytest.mark.parametrize("change", ["ids", "visual", "acoustic", "words", "label", "id", "glove"])
def test_the_digest_sees_one_change(path, glove, change):
    write_glove(glove)
    data = DataConfig(glove_path=str(glove) if change in ("words", "glove") else "")
    first = open_corpus(write_pickle(path, {"train": one()}), data).digest
    (ids, visual, acoustic, words), label, id_ = one()[1]
    new = {
        "ids": ids + 1,
        "visual": visual + 1e-3,
        "acoustic": np.concatenate([acoustic, acoustic[:1]]),
        "words": [*words[:-1], "was" if words[-1] != "was" else "it"],
        "label": label / 2,
        "id": "other",
    }
    if change == "glove":
        glove.write_text("was 1 2 3\nit 1 2 3\n" + glove.read_text("utf-8"), "utf-8")
    tree = {"train": one(**({change: new[change]} if change in new else {}))}
    assert open_corpus(write_pickle(path, tree), data).digest != first


def test_the_digest_sees_where_a_sample_ends_and_how_labels_are_stored(path):
    def digest(first: int, label) -> str:
        parts = np.ones((first, 4)), np.ones((5 - first, 4))
        samples = [
            (([1], visual, np.ones((1, 2))), label, f"v[{k}]") for k, visual in enumerate(parts)
        ]
        return open_corpus(write_pickle(path, {"train": samples})).digest

    one = np.ones((1, 1))
    assert digest(2, one) == digest(2, one.astype(np.float32))
    assert len({digest(2, one), digest(3, one), digest(2, one.astype(int)), digest(2, None)}) == 4
