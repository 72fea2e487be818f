"""Text of a pretrained encoder: its pieces, and what shares steps with its words.

Audio is 100 * sample + step + 1 at every stored step, so a row tells where it was stored.
"""

import dataclasses
import json

import numpy as np
import pytest
import tiny_text
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from refusals import refusal

from msajax.config import Config, DataConfig, ModelConfig
from msajax.corpus.corpus import Corpus, Split, pad_words
from msajax.corpus.in_memory import corpus_of
from msajax.errors import UserError
from msajax.inference.bundle import Bundle
from msajax.models.contract import blank_sample
from msajax.preparation.apply import check_split, prepare
from msajax.preparation.batches import cut_lengths, quarters_of
from msajax.preparation.fit import Preparation, fit
from msajax.preparation.lost import REPAIRS, describe
from msajax.spec import CorpusSpec

QUICK = settings(max_examples=40, deadline=None)
PLAIN = tokenizers.Tokenizer.from_str(tiny_text.WORDPIECE)
CLS, SEP = 2, 3
DATA = DataConfig(text="pieces", standardize=())
WORDS = ("", " ", "a", "good", "films", "ungoods", "b!", "you")


def audio_of(samples: int, steps: int) -> np.ndarray:
    return (100 * np.arange(samples)[:, None] + np.arange(steps) + 1.0)[..., None]


def split_of(words=None, raw_text=None, audio=None, ids=None, **more) -> Split:
    """A split of text in the forms that are given, with audio at the words' steps."""
    size = len(next(x for x in (words, raw_text, ids) if x is not None))
    features, masks = {}, {}
    if words is not None:
        more["words"] = pad_words(words)
        features["audio"] = audio_of(*more["words"].shape)
    if audio is not None:
        masks["audio"] = audio
    if ids is not None:
        features["text"] = np.array(ids)
    texts = None if raw_text is None else np.array(raw_text, np.str_)
    names = np.array([f"v[{i}]" for i in range(size)])
    return Split(names, features, masks, np.zeros((size, 1)), texts, **more)


def corpus(split: Split, aligned=("text", "audio")) -> Corpus:
    return corpus_of({"train": split, "valid": split, "test": split}, aligned=aligned)


def fitted(split: Split, pool="pieces", encoder=None, model=None, **data) -> Preparation:
    shared = ("text", *split.features) if split.words is not None else ()
    of_corpus = corpus(split, shared)
    model = {"text_encoder": "FOLDER", "text_pool": pool} | (model or {})
    settings = dataclasses.replace(DATA, **data)
    return fit(of_corpus, settings, ModelConfig(**model), {"text": encoder or tiny_text.Encoder()})


def ids_of(text: str) -> list[int]:
    return PLAIN.encode(text, add_special_tokens=False).ids


# --- transcripts ---


def test_transcripts_become_pieces_with_special_ones_around_them():
    split = split_of(raw_text=["a films", "", "good"])
    preparation = fitted(split)
    spec = preparation.spec
    assert (spec.modalities, spec.widths, spec.lengths) == (("text",), (0,), (5,))
    assert spec.vocabularies == (len(tiny_text.PIECES),) and spec.text_steps == 0
    assert spec.describe() == "text (pieces, 5 steps)"
    found, repairs = prepare(split, preparation)
    wanted = [
        [[2, 0, -1], [4, 0, 1], [7, 0, 2], [8, 0, 3], [3, 0, -1]],
        [[0, 0, -1]] * 5,  # nothing to read: not even special pieces
        [[2, 0, -1], [6, 0, 1], [3, 0, -1], [0, 0, -1], [0, 0, -1]],
    ]
    np.testing.assert_array_equal(found.features["text"], np.array(wanted, np.int32), strict=True)
    np.testing.assert_array_equal(found.masks["text"].sum(axis=1), [5, 0, 3])
    assert repairs == {"text": {"empty_transcripts": 1}}
    assert "1 transcript(s) are empty, where text is absent" in describe(repairs, REPAIRS)
    assert check_split(split, preparation) == (repairs, 1)
    assert (preparation.text_from, preparation.tokenizer) == ("raw_text", tiny_text.WORDPIECE)


@pytest.mark.parametrize(
    ("truncate", "kept"), [("first", [4, 5]), ("last", [6, 7]), ("uniform", [4, 7])]
)
def test_special_pieces_stay_whatever_is_cut(truncate, kept):
    split = split_of(raw_text=["a b good film", "a b"])
    preparation = fitted(split, truncate=truncate, model={"max_len": 4})
    found, repairs = prepare(split, preparation)
    assert found.features["text"][0, :, 0].tolist() == [CLS, *kept, SEP]
    assert found.features["text"][0, :, 2].tolist() == [-1, 1, 2, -1]
    assert found.features["text"][1, :, 0].tolist() == [CLS, 4, 5, SEP]
    assert repairs == {"text": {"cut_pieces": 2}}
    assert "2 piece(s) of transcripts that are too long are cut" in describe(repairs, REPAIRS)


def test_a_transcript_that_is_too_long_is_one_sentence():
    split = split_of(raw_text=["a " * 20, "a"])
    assert refusal(prepare, split, fitted(split)) == (
        "1 transcript(s) are longer than the model's 16 pieces, special ones included, the first "
        "that of 'v[0]' with 22: --config.data.truncate=first, last or uniform keeps as many of "
        "each, at prediction too (in Python bundle.with_data(truncate='last')); the text encoder "
        "takes no more."
    )
    with pytest.raises(UserError, match="a larger model.max_len reads more"):
        prepare(split, fitted(split, model={"max_len": 8}))
    with pytest.raises(UserError, match="^model.max_len = 2: .* adds 2 special pieces"):
        fitted(split, model={"max_len": 2})
    assert fitted(split, model={"max_len": 40}).spec.lengths == (16,)


# --- token ids ---


def test_token_ids_are_read_as_they_are():
    ids = [[2, 4, 3, 5, 3, 0], [0, 2, 6, 7, 3, 0], [0] * 6, [2, 3, 0, 0, 0, 0]]
    segments = np.array([[0, 0, 0, 1, 1, 0]] + [[0] * 6] * 3)
    split = split_of(ids=ids, segments=segments)
    preparation = fitted(split, text="ids")
    found, repairs = prepare(split, preparation)
    wanted = [
        [[2, 0, -1], [4, 0, 1], [3, 0, -1], [5, 1, 3], [3, 1, -1]],
        [[2, 0, -1], [6, 0, 1], [7, 0, 2], [3, 0, -1], [0, 0, -1]],
    ]
    np.testing.assert_array_equal(found.features["text"][:2], wanted)
    assert not found.masks["text"][2:].any()  # the last has special pieces alone
    assert repairs == {"text": {"empty_transcripts": 2}}
    for kind in (np.uint8, np.int16, np.uint64):
        stored = dataclasses.replace(split, features={"text": np.array(ids, kind)})
        same, _ = prepare(stored, preparation)
        np.testing.assert_array_equal(same.features["text"], found.features["text"])
    alone = fitted(split, text="ids", encoder=tiny_text.Encoder(tokenizer=""))
    found, _ = prepare(split, alone)
    assert found.features["text"][0, :, 2].tolist() == [0, 1, 2, 3, 4]  # none is known as special
    assert found.masks["text"].sum(axis=1).tolist() == [5, 4, 0, 2]


def test_padding_of_token_ids_is_the_encoders_and_a_mask_goes_before_it():
    encoder = tiny_text.Encoder(tiny_text.architecture(pad_token_id=1), "")
    ids = [[0, 5, 1, 6, 1, 1], [0, 7, -1, -1, -1, -1]]
    split = split_of(ids=ids)
    found, _ = prepare(split, fitted(split, text="ids", encoder=encoder))
    assert found.features["text"][..., 0].tolist() == [[0, 5, 1, 6], [0, 7, 0, 0]]
    mask = np.array([[0, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0]], bool)
    split = dataclasses.replace(split, masks={"text": mask})
    found, _ = prepare(split, fitted(split, text="ids", encoder=encoder))
    assert found.features["text"][..., 0].tolist() == [[5, 0, 6, 1], [0, 7, 0, 0]]
    np.testing.assert_array_equal(found.masks["text"], [[1, 0, 1, 1], [1, 1, 0, 0]])
    # Of different lengths they are padded with what is no piece, as 0 is one of a RoBERTa.
    model = bundle(fitted(split_of(ids=[[0, 5, 6, 2]]), text="ids", encoder=encoder))
    found, mask = model.prepare({"text": [[0, 5, 6, 2], [0, 2]]})
    assert mask["text"].tolist() == [[True] * 4, [True, True, False, False]]


# --- words step by step ---

samples = st.integers(1, 5).flatmap(
    lambda steps: st.lists(
        st.lists(st.sampled_from(WORDS), min_size=steps, max_size=steps), min_size=1, max_size=4
    )
)


def pieces_of(words: list[str]) -> list[tuple[int, int]]:
    """The pieces of a sample, each with the step of its word, special ones at step -1."""
    found = [(id_, k) for k, word in enumerate(words) for id_ in ids_of(word)]
    return [(CLS, -1), *found, (SEP, -1)] if found else []


def cut(pieces: list[tuple[int, int]], room: int, truncate: str) -> list[tuple[int, int]]:
    """The pieces that are left of a sample where `room` fit."""
    if len(pieces) <= room:
        return pieces
    inner, room = pieces[1:-1], room - 2
    if truncate == "uniform":
        inner = [inner[round(k * (len(inner) - 1) / max(room - 1, 1))] for k in range(room)]
    inner = inner[:room] if truncate != "last" else inner[-room:]
    return [pieces[0], *inner, pieces[-1]]


@QUICK
@given(samples, st.data(), st.sampled_from(["first", "last", "uniform"]), st.integers(0, 1))
def test_audio_of_a_word_reaches_each_of_its_pieces(words, data, truncate, limited):
    shape = (len(words), len(words[0]))
    said = data.draw(npst.arrays(bool, shape, elements=st.booleans()))
    split = split_of(words, audio=said)
    pieces = [pieces_of(row) for row in words]
    if not any(pieces) or not said.any():
        return
    preparation = fitted(split, truncate=truncate, model={"max_len": 5 * limited}, allow_loss=True)
    found, repairs = prepare(split, preparation)
    length = preparation.spec.length("text")
    assert length == preparation.spec.length("audio")
    text, audio = found.features["text"], found.features["audio"][..., 0]
    pauses = 0
    for n, row in enumerate(pieces):
        left = cut(row, length, truncate)
        assert text[n, : len(left), 0].tolist() == [id_ for id_, _ in left]
        steps = [-1 if step < 0 else k for k, (_, step) in enumerate(left)]
        assert text[n, : len(left), 2].tolist() == steps
        np.testing.assert_array_equal(found.masks["text"][n], np.arange(length) < len(left))
        there = [step >= 0 and said[n, step] for _, step in left] + [False] * (length - len(left))
        if not row:  # without a word its audio keeps its own steps
            own = np.flatnonzero(said[n])
            kept = audio[n][found.masks["audio"][n]].tolist()
            if own.size and own[-1] - own[0] < length:
                assert kept == [100 * n + k + 1 for k in own]
            continue
        assert found.masks["audio"][n].tolist() == there
        at = [100 * n + left[k][1] + 1 if there[k] else 0 for k in range(len(left))]
        assert audio[n, : len(left)].tolist() == at and not audio[n, len(left) :].any()
        spoken = {step for _, step in row}
        pauses += sum(said[n, k] for k in range(shape[1]) if k not in spoken)
    assert repairs.get("audio", {}).get("wordless_steps", 0) == pauses
    assert repairs.get("audio", {}).get("lost_steps", 0) == 0
    cut_off = sum(len(row) - len(cut(row, length, truncate)) for row in pieces)
    assert repairs.get("text", {}).get("cut_pieces", 0) == cut_off


@QUICK
@given(samples, st.data(), st.sampled_from(["first", "last", "uniform"]), st.integers(0, 4))
def test_pieces_know_the_step_of_their_word(words, data, truncate, most):
    """In an embedding of the pieces, the mean of a step is that of its word's pieces."""
    shape = (len(words), len(words[0]))
    said = data.draw(npst.arrays(bool, shape, elements=st.booleans()))
    split = split_of(words, audio=said)
    if not any(map(pieces_of, words)) or not said.any():
        return
    most = most and most + 2
    preparation = fitted(split, "words", truncate=truncate, model={"max_len": most})
    spec = preparation.spec
    assert spec.text_steps == spec.length("audio")
    found, repairs = prepare(split, preparation)
    assert repairs.get("audio", {}).get("hidden_steps", 0) == (~said).sum()
    assert not repairs.get("audio", {}).keys() & {"lost_steps", "wordless_steps"}  # pauses stay
    text, audio = found.features["text"], found.features["audio"][..., 0]
    table = np.random.default_rng(0).normal(size=(spec.vocabulary("text"), 3))
    for n, row in enumerate(words):
        pieces, mask = text[n], found.masks["text"][n]
        steps = {}
        for (id_, _, step), real in zip(pieces.tolist(), mask, strict=True):
            assert real == (id_ != 0)
            assert (step >= 0) == (real and id_ not in (CLS, SEP))
            if step >= 0:
                steps.setdefault(step, []).append(id_)
        if steps:
            assert pieces[0, 0] == CLS and pieces[mask][-1, 0] == SEP
            assert list(steps) == sorted(steps)
        whole = [k for k in range(shape[1]) if ids_of(row[k])]
        for step, ids in steps.items():
            assert step < spec.text_steps
            if found.masks["audio"][n, step]:  # the same moment in both
                stored = int(audio[n, step]) - 100 * n - 1
            elif not most:
                valid = [k for k in range(shape[1]) if said[n, k] or k in whole]
                stored = valid[0] + step
                assert not said[n, stored]
            else:
                continue
            of_word = ids_of(row[stored])
            if most:
                assert set(ids) <= set(of_word)
            else:
                np.testing.assert_array_equal(table[ids].mean(0), table[of_word].mean(0))
        if not most:
            assert len(steps) == len(whole)
    if not most:
        counts = [len(pieces_of(row)) for row in words]
        assert found.masks["text"].sum(axis=1).tolist() == counts
        # Cut to its length quarter, a sample keeps every piece, every step of audio and of a word.
        quarters = quarters_of(found, spec)
        for n, quarter in enumerate(quarters):
            lengths = cut_lengths(spec, quarter)
            for m, length in lengths.items():
                assert not found.masks[m][n, length:].any()
            assert text[n, :, 2].max() < spec.pooled_steps(lengths["text"]) <= spec.text_steps


def test_a_sample_without_words_keeps_the_steps_of_its_audio():
    split = split_of([["a", "", "", "", ""], [""] * 5])
    preparation = fitted(split)
    assert preparation.spec.lengths == (5, 5)
    found, repairs = prepare(split, preparation)
    assert found.features["audio"][..., 0].tolist() == [[0, 1, 0, 0, 0], [101, 102, 103, 104, 105]]
    empty = {"text": {"empty_transcripts": 1}}
    assert repairs == empty | {"audio": {"wordless_steps": 4}}
    found, repairs = prepare(split, fitted(split, truncate="last", model={"max_len": 4}))
    assert found.features["audio"][..., 0].tolist() == [[0, 1, 0, 0], [102, 103, 104, 105]]
    assert repairs == empty | {"audio": {"wordless_steps": 4}}  # what was cut is no loss
    # Streamed audio is gathered as resident audio is.
    split = split_of([["films", "", "ungoods"], ["a", "b!", ""]])
    resident, repairs = prepare(split, fitted(split))
    streamed, same = prepare(split, fitted(split), budget=0)
    assert repairs == same == {"audio": {"wordless_steps": 2}}
    x = streamed.features["audio"]
    np.testing.assert_array_equal(x[np.arange(2), : x.shape[1]], resident.features["audio"])


def test_pieces_of_a_word_that_is_cut_are_cut():
    split = split_of([["a", "", "", "", "b"], ["good", "", "a", "", ""]])
    preparation = fitted(split, "words", truncate="first", model={"max_len": 4})
    assert (preparation.spec.lengths, preparation.spec.text_steps) == ((4, 4), 4)
    found, repairs = prepare(split, preparation)
    wanted = [
        [[CLS, 0, -1], [4, 0, 0], [SEP, 0, -1], [0, 0, -1]],
        [[CLS, 0, -1], [6, 0, 0], [4, 0, 2], [SEP, 0, -1]],
    ]
    assert found.features["text"].tolist() == wanted
    assert found.masks["text"].sum(axis=1).tolist() == [3, 4]
    assert found.features["audio"][..., 0].tolist() == [[1, 2, 3, 4], [101, 102, 103, 104]]
    assert repairs == {"text": {"cut_pieces": 1}}
    # The specification travels through JSON.
    spec = preparation.spec
    again = CorpusSpec.from_dict(json.loads(json.dumps(dataclasses.asdict(spec))))
    assert again == spec and hash(again) == hash(spec)
    features, masks = blank_sample(spec)
    assert (features["text"].shape, features["text"].dtype) == ((1, 4, 3), np.int32)
    assert masks["text"].shape == (1, 4)


def test_words_alone_are_pooled_to_their_own_steps():
    split = split_of([["films", "", "a"], ["", "good", "ungoods"]])
    split = dataclasses.replace(split, features={})
    preparation = fitted(split, "first", alignment="unaligned")
    assert (preparation.spec.modalities, preparation.spec.text_steps) == (("text",), 3)
    assert preparation.groups == ()
    found, _ = prepare(split, preparation)
    wanted = [[-1, 0, 0, 2, -1, -1], [-1, 0, 1, 1, 1, -1]]  # the first word is step 0 in each
    assert found.features["text"][..., 2].tolist() == wanted


@pytest.mark.parametrize(
    ("aligned", "alignment", "groups"),
    [
        (("text", "audio"), "auto", (("text", "audio"),)),
        (("text", "audio"), "unaligned", ()),
        ((), "auto", ()),
        (None, "auto", (("text", "audio"),)),
        ((), "aligned", (("text", "audio"),)),
    ],
)
def test_words_share_steps_where_the_corpus_says_so(aligned, alignment, groups):
    split = split_of([["a", "films"], ["good", "a"]])
    data = dataclasses.replace(DATA, alignment=alignment)
    model = ModelConfig(text_encoder="FOLDER")
    assert fit(corpus(split, aligned), data, model, {"text": tiny_text.Encoder()}).groups == groups


def test_a_transcript_shares_its_steps_with_nothing():
    split = split_of(raw_text=["a b", "a b"])
    audio = {"audio": audio_of(2, 4), "video": audio_of(2, 4)}
    split = dataclasses.replace(split, features=audio)
    for aligned in (None, ("audio", "video")):
        model = ModelConfig(text_encoder="FOLDER")
        found = fit(corpus(split, aligned), DATA, model, {"text": tiny_text.Encoder()})
        assert found.groups == (("audio", "video"),)
        assert found.spec.lengths == (4, 4, 4) and found.spec.modalities[0] == "text"


# --- another split than the one that was fitted ---


def test_a_split_may_have_its_text_in_another_form():
    of_words = fitted(split_of([["films", "a"]]))
    of_texts = fitted(split_of(raw_text=["films a"]))
    said = split_of(raw_text=["a films"])
    words = dataclasses.replace(split_of([["a", "", "films"]]), features={})
    ids = split_of(ids=[[CLS, 4, 7, 8, SEP]])
    for preparation in (of_words, of_texts):
        for split in (said, words, ids):
            found, _ = prepare(split, preparation)
            assert found.features["text"][0, :, 0].tolist() == [CLS, 4, 7, 8, SEP]
    nothing, _ = prepare(dataclasses.replace(said, raw_text=None), of_texts)
    assert not nothing.masks["text"].any()
    np.testing.assert_array_equal(nothing.features["text"], np.tile([0, 0, -1], (1, 5, 1)))


def test_audio_beside_a_transcript_needs_its_words_where_they_share_steps():
    preparation = fitted(split_of([["films", "a"]]))
    split = split_of(raw_text=["films a"])
    split = dataclasses.replace(split, features={"audio": audio_of(1, 2)})
    with pytest.raises(UserError, match="trained with words and audio step by step"):
        prepare(split, preparation)
    blank = dataclasses.replace(split, features={"audio": np.zeros((1, 7, 1))})
    found, _ = prepare(blank, preparation)
    assert found.masks["text"].all() and not found.masks["audio"].any()
    longer = dataclasses.replace(split_of([["films", "a"]]), features={"audio": audio_of(1, 3)})
    with pytest.raises(UserError, match="words, audio have 2, 3 steps here"):
        prepare(longer, preparation)


# --- refusals ---


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        ({"ids": [[[0.5]]]}, {}, "has neither transcripts (train/raw_text) nor words or token ids"),
        ({"raw_text": ["a"]}, {"text": "ids"}, "data.text = ids: memory has no token ids as text"),
        ({"raw_text": [" "]}, {}, "no modality has a valid training step"),
        ({"raw_text": ["a"]}, {"pool": "words"}, "model.text_pool = words: memory does not know"),
        ({"ids": [[4]]}, {"pool": "first"}, "its text is the token ids that are stored"),
        ({"raw_text": ["a"]}, {"encoder": tiny_text.Encoder(tokenizer="")}, "has no tokenizer"),
        ({"ids": [[4]]},
         {"encoder": tiny_text.Encoder(tokenizer=""), "model": {"text_special": False}},
         "model.text_special = false: model.text_encoder = FOLDER has no tokenizer"),
        ({"raw_text": ["a"]},
         {"encoder": tiny_text.Encoder(tiny_text.architecture(vocab_size=16))},
         "its tokenizer has token ids up to 16, but its embedding has 16 rows: they are of "
         "different models."),
        ({"raw_text": ["a"]},
         {"encoder": tiny_text.Encoder(tokenizer="{}")},
         "model.text_encoder = FOLDER: its tokenizer is no tokenizer.json"),
        ({"words": [["a"]]},
         {"model": {"modalities": ("audio",)}},
         "model.text_encoder = FOLDER: text is not among model.modalities."),
    ],
)
def test_what_an_encoder_cannot_read_is_refused(given, settings, message):
    assert message in refusal(fitted, split_of(**given), **settings)


ALONE = tiny_text.Encoder(tokenizer="")


@pytest.mark.parametrize(
    ("preparation", "given", "message"),
    [
        ({"text": "ids"}, {"ids": [[2, 17, 3]]},
         "'v[0]' has the token id 17, but the text encoder knows 0 to 16"),
        ({"text": "ids"}, {"ids": [[2, -7, 3]]}, "has the token id -7, but"),
        ({"text": "ids"}, {"ids": [[2, 2**40, 3]]}, "has the token id 2147483647, but"),
        ({"text": "ids"}, {"ids": [[2, 4, 3]], "segments": np.array([[0, 2, 0]])},
         "has the segment id 2, but the text encoder knows 0 to 1 alone"),
        ({"text": "ids", "encoder": ALONE}, {"raw_text": ["a"]},
         "without a tokenizer: give it token ids as text"),
        ({"pool": "words"}, {"ids": [[4]]}, "pools the pieces of words (model.text_pool = words)"),
    ],
)
def test_a_split_that_a_fitted_model_cannot_read_is_refused(preparation, given, message):
    good = split_of(ids=[[2, 4, 3]]) if "text" in preparation else split_of([["a"]])
    assert message in refusal(prepare, split_of(**given), fitted(good, **preparation))


# --- samples in memory ---


def bundle(preparation: Preparation) -> Bundle:
    """A model that prepares, and cannot predict."""
    return Bundle(Config(), preparation, [0], [1], {}, "digest")


def test_samples_in_memory_give_their_text_in_any_form():
    model = bundle(fitted(split_of([["films", "a"], ["b", ""]])))
    wanted, mask = model.prepare(words=[["films", "a"], ["a"]])
    ids = [[CLS, 7, 8, 4, SEP], [CLS, 4, SEP]]
    padded = np.array([[*row, *[0] * (5 - len(row))] for row in ids])
    there = np.array([[1] * 5, [1] * 3 + [0] * 2])
    bert = np.stack([padded, there, np.zeros_like(there)], axis=1)
    forms = [
        {"raw_text": ["films a", "a"]},
        {"features": {"text": ids}},
        {"features": {"text": padded}},
        {"features": {"text": padded}, "masks": {"text": there}},
        {"features": {"text": bert}},
        {"features": {"text": bert.astype(np.float32)}},
        {"words": np.array([["films", "a"], ["a", ""]])},
        {"features": {"audio": np.zeros((2, 9, 1))}, "raw_text": ["films a", "a"]},
    ]
    for form in forms:
        found, valid = model.prepare(**form)
        np.testing.assert_array_equal(found["text"], wanted["text"])
        np.testing.assert_array_equal(valid["text"], mask["text"])
        assert not valid["audio"].any()
    audio = np.array([[[1.0], [2.0]], [[3.0], [0.0]]])
    found, valid = model.prepare({"audio": audio}, words=[["films", "a"], ["a"]])
    assert found["audio"][..., 0].tolist() == [[0, 1, 1, 2, 0], [0, 3, 0, 0, 0]]
    assert valid["audio"].tolist() == (found["audio"][..., 0] > 0).tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": {"text": [[4]]}, "raw_text": ["a"]}, "this model reads one of them"),
        ({"features": {"text": [[4]]}, "words": [["a"]]}, "this model reads one of them"),
        ({"features": {"text": [[0.5]]}}, "expected token ids (N, T), or (N, 3, T): token ids"),
        ({"features": {"text": [[[4.5], [1], [0]]]}}, "holds a number that is not a whole one"),
        ({"features": {"text": [[[4], [2], [0]]]}}, "the mask in features['text'] is int32 (1, 1)"),
        ({"features": {"text": [[[4], [1], [0]]]}, "masks": {"text": [[1]]}},
         "masks names 'text', but features['text'] (N, 3, T) brings its own mask."),
        ({"features": {"text": [[99]]}}, "the samples: the text of '0' has the token id 99"),
        ({"words": ["a film"]}, "words must be a list with a list of words for each sample."),
        ({"words": [["a", 3]]}, "words must be a list with a list of words for each sample."),
        ({"words": [["a"]], "raw_text": ["a", "b"]}, "2 in raw_text, 1 in words"),
        ({}, "Nothing is given to predict: expected features, raw_text or words."),
    ],
)
def test_samples_that_do_not_fit_are_refused(given, message):
    model = bundle(fitted(split_of(raw_text=["a films"])))
    assert message in refusal(model.prepare, **given)
    split = dataclasses.replace(split_of([["a"]]), words=None)
    plain = fit(corpus(split, ()), dataclasses.replace(DATA, text="features"), ModelConfig())
    with pytest.raises(UserError, match="words are for a model with a pretrained text encoder"):
        bundle(plain).prepare({"audio": [[[1.0]]]}, words=[["a"]])
