"""Words of transcripts as token ids: which words, which rows, and never a word of another split."""

import dataclasses
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Corpus, Split
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import save_native
from msajax.corpus.in_memory import corpus_of
from msajax.errors import UserError
from msajax.preparation.apply import check_split, prepare
from msajax.preparation.fit import fit
from msajax.preparation.words import PADDING, UNKNOWN, build_vocabulary, encode, tokenize

WORDS = DataConfig(text="words", min_count=1)
MODEL = ModelConfig()
QUICK = settings(max_examples=100, deadline=None)
words_of_letters = st.text("abcdefgäñ'你好", min_size=1, max_size=4).filter(
    lambda word: tokenize(word) == [word]
)


# --- words ---


def test_a_transcript_becomes_words():
    for text, words in {
        "": "", " \n\t ... ?! — ''' ’": "", "좋은 영화": "좋은 영화",
        "The movie, was GREAT!": "the movie was great",
        "I don't, y'all'd've": "i don't y'all'd've",
        "I don’t; O’Neil's": "i don't o'neil's",
        "'quoted' rock 'n' roll dogs'": "quoted rock n roll dogs",
        "10 of 10, 3.5 stars, 2nd": "10 of 10 3 5 stars 2nd",
        "well-made snake_case __ um_": "well made snake case um",
        "这部电影很好。": "这 部 电 影 很 好", "我喜欢iPhone手机": "我 喜 欢 iphone 手 机",
        "it's你好 don’t好": "it's 你 好 don't 好", "カメラで撮る": "カ メ ラ で 撮 る",
        "Größe ÉTÉ Ωmega": "größe été ωmega", "<padding> <unknown>": "padding unknown",
    }.items():
        assert tokenize(text) == words.split()
        assert tokenize(unicodedata.normalize("NFD", text)) == words.split()
        assert tokenize(text.upper()) == words.split() or "ß" in text


# --- vocabulary ---


def test_the_most_frequent_words_come_first_and_rare_ones_are_left_out():
    texts = ["b a c b", "B, c. d", "é z"]
    assert build_vocabulary(texts, 1) == (PADDING, UNKNOWN, *"bc", *"adzé")  # by the alphabet
    assert build_vocabulary(reversed(texts), 1) == build_vocabulary(texts, 1)
    texts = ["a a a", "b a b", "c"]
    for count, words in ((2, "ab"), (4, "a"), (5, "")):
        assert build_vocabulary(texts, count) == (PADDING, UNKNOWN, *words)
    assert build_vocabulary([], 1) == (PADDING, UNKNOWN)


def test_words_become_rows_and_unknown_ones_row_1():
    vocabulary = (PADDING, UNKNOWN, "good", "film")
    ids, mask = encode(["Good, good FILM", "a film", "", "?"], vocabulary)
    wanted = np.array([[2, 2, 3], [1, 3, 0], [0, 0, 0], [0, 0, 0]], np.int32)
    np.testing.assert_array_equal(ids, wanted, strict=True)
    np.testing.assert_array_equal(mask, wanted > 0, strict=True)
    for texts in (["", ""], ["!?", "..."], []):  # without a word there is one padded step
        ids, mask = encode(texts, (PADDING, UNKNOWN))
        assert ids.shape == mask.shape == (len(texts), 1)
        assert not ids.any() and not mask.any() and mask.dtype == bool and ids.dtype == np.int32


@QUICK
@given(st.lists(st.lists(words_of_letters, max_size=5), min_size=1, max_size=6))
def test_known_words_can_be_read_back_from_their_ids(sentences):
    vocabulary = build_vocabulary([" ".join(words) for words in sentences], 1)
    assert len(set(vocabulary)) == len(vocabulary)
    ids, mask = encode([", ".join(words) for words in sentences], vocabulary)
    decoded = [[vocabulary[i] for i in row[kept]] for row, kept in zip(ids, mask, strict=True)]
    assert decoded == sentences
    assert (ids[mask] > 1).all() and (ids[~mask] == 0).all()


# --- through preparation ---


def a_split(texts, labels=None, **features) -> Split:
    texts = None if texts is None else np.array(texts, np.str_)
    size = len(next(iter(features.values()))) if texts is None else len(texts)
    ids = np.array([f"s{i}" for i in range(size)])
    return Split(ids, features, {}, np.zeros((size, 1)) if labels is None else labels, texts)


AUDIO = np.ones((2, 2, 3))


@pytest.fixture
def opened(tmp_path):
    def call(**splits: Split) -> Corpus:
        save_native(tmp_path / "c.npz", corpus_of(splits))
        return open_corpus(tmp_path / "c.npz")

    return call


def test_the_vocabulary_is_that_of_train_alone(opened):
    train = a_split(["good film", "bad film"], audio=AUDIO)
    valid = a_split(["splendid film film", "good"], audio=AUDIO)
    corpus = opened(train=train, valid=valid)
    preparation = fit(corpus, WORDS, MODEL)
    assert preparation.words == (PADDING, UNKNOWN, "film", "bad", "good")
    other = dataclasses.replace(valid, raw_text=np.array(["unheard of", "words"]))
    assert fit(opened(train=train, valid=other), WORDS, MODEL).words == preparation.words
    spec = preparation.spec
    assert (spec.modalities, spec.widths) == (("text", "audio"), (0, 3))
    assert (spec.lengths, spec.vocabularies) == ((2, 2), (5, 0))
    assert list(preparation.statistics) == ["audio"]
    found, repairs = prepare(corpus.split("train"), preparation)
    np.testing.assert_array_equal(found.features["text"], [[4, 2], [3, 2]])
    assert found.features["text"].dtype == np.int32 and repairs == {}
    # They replace the features of text.
    train = a_split(["a b", "b"], text=np.ones((2, 7, 300)), audio=AUDIO)
    spec = fit(opened(train=train), WORDS, MODEL).spec
    assert spec.lengths == (2, 2) and spec.vocabularies == (4, 0)
    features = fit(opened(train=train), DataConfig(), MODEL)
    assert features.spec.widths == (300, 3) and features.words == ()


def test_a_longer_transcript_is_refused_before_training_unless_it_is_cut(opened):
    texts = {"train": ["a b", "b"], "valid": ["a", "b"], "test": ["a", "b a b"]}
    corpus = opened(**{name: a_split(t) for name, t in texts.items()})
    with pytest.raises(UserError, match="'text' are longer than the model's 2 .*'s1' with 3"):
        check_split(corpus.split("test"), fit(corpus, WORDS, MODEL))
    for truncate, kept in (("first", [2, 3]), ("last", [3, 2]), ("uniform", [2, 2])):
        preparation = fit(corpus, dataclasses.replace(WORDS, truncate=truncate), MODEL)
        check_split(corpus.split("test"), preparation)
        found, _ = prepare(corpus.split("test"), preparation)
        assert preparation.words[2:] == ("b", "a")
        np.testing.assert_array_equal(found.features["text"], [[3, 0], kept])
    preparation = fit(corpus, WORDS, ModelConfig(max_len=3))
    check_split(corpus.split("test"), preparation)


def test_a_split_without_transcripts_lacks_text_with_a_warning_and_train_is_refused(opened, caplog):
    without = a_split(None, text=np.ones((2, 9, 4)), audio=AUDIO)
    corpus = opened(train=a_split(["a b", "b"], audio=AUDIO), test=without)
    preparation = fit(corpus, WORDS, MODEL)
    check_split(corpus.split("test"), preparation)
    assert caplog.text == ""
    found, _ = prepare(corpus.split("test"), preparation)
    assert found.features["text"].shape == (2, 2) and not found.masks["text"].any()
    assert found.masks["audio"].all()
    assert "The split of 's0' has no raw_text; text is absent in all 2 samples." in caplog.text
    with pytest.raises(UserError, match="data.text = words: .* has no raw_text in train"):
        fit(opened(train=without, test=a_split(["a"])), WORDS, MODEL)


def test_transcripts_without_a_word_leave_text_out_of_the_model(opened, caplog):
    train = a_split(["...", ""], audio=AUDIO)
    assert fit(opened(train=train), WORDS, MODEL).spec.modalities == ("audio",)
    assert "'text' has no valid training step" in caplog.text
    with pytest.raises(UserError, match="no modality has a valid training step"):
        fit(opened(train=a_split(["...", ""], text=np.ones((2, 1, 1)))), WORDS, MODEL)


def test_the_next_word_is_the_target_of_its_predecessor(opened):
    corpus = opened(train=a_split(["a b a c", "", "b"]))
    preparation = fit(corpus, WORDS, ModelConfig(name="next_token", causal=True))
    assert preparation.words[2:] == ("a", "b", "c")
    found, _ = prepare(corpus.split("train"), preparation)
    np.testing.assert_array_equal(found.labels, [[3, 2, 4, -1], [-1] * 4, [-1] * 4])
