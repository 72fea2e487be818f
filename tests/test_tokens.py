"""Pieces of transcripts are those of `tokenizers`, pieces of words those of the running text."""

import builtins
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from tiny_text import PIECES, TOKENIZERS, WORDPIECE, altered
from tokenizers.implementations import BertWordPieceTokenizer

from msajax.encoders.tokens import Pieces, Tokenizer, _load_tokenizer, json_of_vocabulary
from msajax.errors import UserError

QUICK = settings(max_examples=40, deadline=None)
words = st.text("abgod é你!'", max_size=6)


def tokenizer(text: str = WORDPIECE) -> Tokenizer:
    return Tokenizer.from_json(text, "FOLDER/tokenizer.json")


def rows_of(pieces: Pieces) -> list[np.ndarray]:
    """The pieces of each transcript without padding, `[L, 3]`; padding is what it must be."""
    np.testing.assert_array_equal(
        pieces.values[~pieces.mask], np.tile([0, 0, -1], ((~pieces.mask).sum(), 1))
    )
    lengths = pieces.mask.sum(axis=1)
    np.testing.assert_array_equal(
        pieces.mask, np.arange(pieces.mask.shape[1]) < lengths[:, None]
    )
    return [row[:length] for row, length in zip(pieces.values, lengths, strict=True)]


# --- what comes out ---


def test_pieces_of_transcripts_are_ids_segments_and_places():
    found = tokenizer().encode(["A Films", "", "  ", "ungood!"])
    assert (found.values.dtype, found.values.shape) == (np.int32, (4, 5, 3))
    first, empty, blank, last = (row.tolist() for row in rows_of(found))
    assert first == [[2, 0, -1], [4, 0, 1], [7, 0, 2], [8, 0, 3], [3, 0, -1]]
    assert last == [[2, 0, -1], [10, 0, 1], [11, 0, 2], [12, 0, 3], [3, 0, -1]]
    assert empty == blank == []  # not even special pieces: there is nothing to read
    assert (tokenizer().size, tokenizer().special) == (len(PIECES), (2, 3))
    nothing = tokenizer().encode([])
    assert (nothing.values.shape, nothing.mask.shape) == ((0, 1, 3), (0, 1))


def test_pieces_of_words_know_their_word():
    found = tokenizer().encode_words([["Films", "", "un good", " "], ["", ""], []])
    first, empty, none = (row.tolist() for row in rows_of(found))
    steps = [(2, -1), (7, 0), (8, 0), (10, 2), (6, 2), (3, -1)]
    assert [(piece, step) for piece, _, step in first] == steps
    assert empty == none == []


@pytest.mark.parametrize("kind", TOKENIZERS)
@QUICK
@given(samples=st.lists(st.lists(words, max_size=5), min_size=1, max_size=4))
def test_words_have_the_pieces_of_the_running_text(kind, samples):
    made, plain = tokenizer(TOKENIZERS[kind]), tokenizers.Tokenizer.from_str(TOKENIZERS[kind])
    said = [[(k, " ".join(w.split())) for k, w in enumerate(row) if w.split()] for row in samples]
    texts = [" ".join(word for _, word in row) for row in said]
    for pieces, row, text in zip(
        rows_of(made.encode_words(samples)), said, texts, strict=True
    ):
        whole = plain.encode(text)
        content = [i for i, special in enumerate(whole.special_tokens_mask) if not special]
        assert pieces[:, 0].tolist() == (whole.ids if content else [])
        # The library's own way to words, each with the space that stands before it in the text.
        spaced = [" " * (i > 0) + word for i, (_, word) in enumerate(row)]
        apart = plain.encode(spaced, is_pretokenized=True)
        if apart.ids == whole.ids:
            owners = [-1 if word is None else row[word][0] for word in apart.word_ids]
            assert pieces[:, 2].tolist() == (owners if content else [])


def test_a_word_in_the_text_is_not_the_word_alone():
    made = tokenizer(TOKENIZERS["byte level"])
    (row,) = rows_of(made.encode_words([["ab", "ab"]]))
    names = tokenizers.Tokenizer.from_str(TOKENIZERS["byte level"])
    assert [names.id_to_token(i) for i in row[:, 0]] == ["<s>", "ab", "Ġab", "</s>"]
    assert row[:, 2].tolist() == [-1, 0, 1, -1]


def test_what_the_file_says_of_length_and_chance_is_switched_off():
    cut = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padded = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    padded |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    found = tokenizer(altered(truncation=cut, padding=padded)).encode(["good good good"])
    assert found.values[0, :, 0].tolist() == [2, 6, 6, 6, 3]
    content = json.loads(TOKENIZERS["byte level"])
    content["model"]["dropout"] = 0.9
    same = [tokenizer(TOKENIZERS["byte level"]), tokenizer(json.dumps(content))]
    one, other = (made.encode(["abab good ab"] * 20).values for made in same)
    np.testing.assert_array_equal(one, other)


# --- vocab.txt ---


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({}, {}),
        ({"do_lower_case": False}, {"lowercase": False}),
        ({"strip_accents": False}, {"strip_accents": False}),
        ({"do_lower_case": False, "strip_accents": True},
         {"lowercase": False, "strip_accents": True}),
        ({"tokenize_chinese_chars": False}, {"handle_chinese_chars": False}),
        ({"cls_token": {"content": "[CLS]"}, "pad_token": None, "model_max_length": 512}, {}),
    ],
)
def test_a_vocabulary_is_read_as_bert_reads_it(tmp_path, given, own):
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    usual = {"lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
    theirs = BertWordPieceTokenizer(str(file), **usual | own)
    ours = tokenizer(json_of_vocabulary(file.read_text(encoding="utf-8"), given, "vocab.txt"))
    texts = ["A Good film, GOOD!", "é É é", "你好 a你b", "un'good [SEP] a\u200bb", "\x85\u2028a"]
    for row, text in zip(rows_of(ours.encode(texts)), texts, strict=True):
        assert row[:, 0].tolist() == theirs.encode(text).ids
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2028", "", "a"]  # count whatever they hold
    content = json.loads(json_of_vocabulary("\r\n".join(lines), {}, "vocab.txt"))
    assert content["model"]["vocab"] == {line: k for k, line in enumerate(lines)}


@pytest.mark.parametrize(
    ("vocabulary", "given", "message"),
    [
        ("[PAD]\n[UNK]\n[CLS]\n", {}, "v lacks the piece '[SEP]': it is no vocabulary of a BERT."),
        ("[CLS]\n[SEP]\n", {}, "v lacks the piece '[UNK]'"),
        ("a", {"unk_token": 3}, "v: unk_token must be a piece of the vocabulary."),
        ("\n".join(PIECES), {"do_lower_case": 1}, "v: do_lower_case must be true or false."),
        ("\n".join(PIECES), {"strip_accents": "no"}, "v: strip_accents must be true or false."),
        ("\n".join(PIECES), [], "tokenizer_config.json beside v holds no JSON object."),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(vocabulary, given, message):
    assert message in refusal(json_of_vocabulary, vocabulary, given, "v")


# --- bad files ---


def content_of(name: str, **changes) -> str:
    content = json.loads(TOKENIZERS[name])
    content["model"] |= changes
    return json.dumps(content)


def template(ids: list[int]) -> dict:
    special = {"[CLS]": {"id": "[CLS]", "ids": ids, "tokens": ["[CLS]"]}}
    one = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": one, "pair": one, "special_tokens": special}


def split_by(pattern: str) -> str:
    way = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return altered(pre_tokenizer=way)


BAD = {
    "nothing": "", "no JSON": "{", "a list": "[]", "nested": "[" * 100_000,
    "cut short": WORDPIECE[: len(WORDPIECE) // 2],
    "another type": altered(model={"type": "Oracle"}),
    "a number": altered(model=3),
    "negative ids": content_of("wordpiece", vocab={"a": -1}),
    "ids beyond 32 bits": content_of("wordpiece", vocab={"a": 2**40}),
    "ids that are text": content_of("wordpiece", vocab={"a": "0"}),
    "an open bracket": split_by("("),
    "a search without end": split_by("(a+)+$"),
    "an unknown piece": content_of("unigram", unk_id=99),
    "half a character": altered(model={"type": "WordPiece", "vocab": {"\ud800": 0}}),
    "no piece": altered(model={"type": "WordLevel", "vocab": {}, "unk_token": "?"},
                        post_processor=None, added_tokens=[]),
}


def test_a_bad_file_or_text_is_one_sentence():
    for name, content in BAD.items():
        with pytest.raises(UserError, match="^FOLDER/tokenizer.json ") as error:
            tokenizer(content).encode(["a film", "a" * 28 + "b"])
        assert len(str(error.value)) < 300 and "\n" not in str(error.value), name
    for content, said in ((content_of("unigram", unk_id=None), "ü"), (WORDPIECE, "\ud800")):
        with pytest.raises(UserError, match="^FOLDER/tokenizer.json .*fails on transcripts"):
            tokenizer(content).encode([said])


def test_ids_beyond_every_embedding_count_as_rows_that_it_would_need():
    huge = content_of("wordpiece", vocab={p: i for i, p in enumerate(PIECES)} | {"z": 2**32 - 1})
    assert tokenizer(huge).size == 2**32
    assert tokenizer(altered(post_processor=template([4 * 10**9]))).size == 4 * 10**9 + 1


def test_without_the_library_a_sentence_names_the_requirements(monkeypatch):
    plain = builtins.__import__

    def refuse(name, *arguments, **named):
        if name == "tokenizers":
            raise ImportError(name)
        return plain(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    _load_tokenizer.cache_clear()
    with pytest.raises(UserError, match=r"package tokenizers: pip install -r requirements-text"):
        tokenizer()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_tokenizer_file_ends_in_anything_but_one_sentence(data):
    text = TOKENIZERS[data.draw(st.sampled_from(sorted(TOKENIZERS)))]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 9)):]
    else:
        content = json.loads(text)
        holder, key = content, data.draw(st.sampled_from(sorted(content)))
        while isinstance(holder[key], dict) and holder[key] and data.draw(st.booleans()):
            holder = holder[key]
            key = data.draw(st.sampled_from(sorted(holder)))
        holder[key] = data.draw(json_values)
        text = json.dumps(content)
    try:
        found = tokenizer(text).encode(["a good film", "é你"])
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        assert found.values.dtype == np.int32


# --- real transcripts ---


def test_all_transcripts_of_mosi_are_cut_as_the_library_cuts_them(shared_data):
    folder = shared_data.parent / "pretrained" / "minilm_l6"
    if not folder.is_dir():
        pytest.skip("no ../shared/pretrained/minilm_l6 beside this checkout")
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    with np.load(shared_data / "mosi_text_audio.npz") as arrays:
        said = [t for s in ("train", "valid", "test") for t in arrays[f"{s}/raw_text"].tolist()]
    plain = tokenizers.Tokenizer.from_str(text)
    plain.no_truncation()
    plain.no_padding()
    made = tokenizer(text)
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    rebuilt = tokenizer(json_of_vocabulary(vocabulary, settings, "vocab.txt"))
    for other in (made.encode(said), rebuilt.encode(said), made.encode_words(map(str.split, said))):
        for row, transcript in zip(rows_of(other), said, strict=True):
            assert row[:, 0].tolist() == plain.encode(transcript).ids
    with np.load(folder / "reference.npz") as reference:
        found = made.encode(reference["raw_text"].tolist())
        np.testing.assert_array_equal(found.values[..., 0], reference["ids"])
        np.testing.assert_array_equal(found.mask, reference["mask"])
