"""Cuts transcripts into the pieces of a pretrained encoder, with the tokenizer of its folder.

The only file that imports `tokenizers`, which is optional.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from msajax.errors import UserError

_BATCH = 1024  # transcripts cut at a time, so that the library's objects stay few
NOTHING = (0, 0, -1)  # what stands where there is no piece


class Pieces(NamedTuple):
    """Holds the pieces of N transcripts, special ones such as [CLS] and [SEP] among them.

    Attributes:
        values: `[N, S, 3]` int32: the token id of a piece; its segment id; and the number of its
            word, or, where transcripts were not given as words, its own place: -1 for a special
            piece. Padding, behind the last piece, is 0, 0, -1.
        mask: `[N, S]` bool, True for every piece. A transcript of which nothing is left but special
            pieces has none.
    """

    values: np.ndarray
    mask: np.ndarray


@dataclasses.dataclass(frozen=True, repr=False)
class Tokenizer:
    """Cuts texts as the tokenizer.json of an encoder's folder says.

    Truncation, padding and random cuts that the file asks for are switched off.

    Attributes:
        size: the rows that an embedding needs for its token ids.
        special: token ids of the special pieces that it adds to each transcript.
        where: names it in messages.
    """

    inner: Any
    size: int
    special: tuple[int, ...]
    where: str = ""

    @classmethod
    def from_json(cls, text: str, where: str) -> "Tokenizer":
        """Reads a tokenizer.json, called `where`; raises `UserError` if it cannot be read."""
        try:
            return dataclasses.replace(_load_tokenizer(text), where=where)
        except ImportError as error:
            raise UserError(
                f"{where} needs the package tokenizers: pip install -r requirements-text.txt."
            ) from error
        except ValueError as error:
            raise UserError(f"{where} is no tokenizer.json: {error}.") from error

    def encode(self, texts: Sequence[str]) -> Pieces:
        """Cuts N transcripts, with their special pieces; raises `UserError` if that fails."""
        rows = []
        for encoding in self._batches(self.inner.encode_batch_fast, texts):
            ids, special = _ids_of(encoding)
            rows.append((ids, np.where(special, -1, np.arange(len(special)))))
        return _join(rows)

    def encode_words(self, samples: Sequence[Sequence[str]]) -> Pieces:
        """Cuts N transcripts that are given as words, with their special pieces.

        The words are joined by spaces and cut as a whole, so that the pieces of a word are those of
        the running text; a byte-level tokenizer, for example, has other pieces for a word without
        the space before it. A piece that reaches over several words belongs to the first one. A
        word that is empty, or space alone, has no piece and counts in the numbers of the others.

        Raises:
            UserError: if the tokenizer fails on them.
        """
        texts, owners = [], []
        for words in samples:
            said = [(k, " ".join(word.split())) for k, word in enumerate(words)]
            said = [(k, word) for k, word in said if word]
            texts.append(" ".join(word for _, word in said))
            # A space belongs to the word behind it, as many tokenizers have it.
            lengths = np.array([len(word) + (i > 0) for i, (_, word) in enumerate(said)], int)
            owners.append(np.repeat(np.array([k for k, _ in said], int), lengths))
        rows = []
        for encoding, owner in zip(
            self._batches(self.inner.encode_batch, texts), owners, strict=True
        ):
            ids, special = _ids_of(encoding)
            if not len(owner):
                special[:] = True
                owner = np.array([-1])
            begin, _ = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
            word = owner[np.minimum(begin, len(owner) - 1)]
            rows.append((ids, np.where(special, -1, word)))
        return _join(rows)

    def names(self, ids: Sequence[int]) -> list[str]:
        """Writes pieces for people; one that goes on a word begins with ##, as in WordPiece.

        Raises:
            UserError: if the tokenizer fails on them.
        """
        found = []
        with self._failing():
            # What pieces begin with where a word begins; "" if the tokenizer has no such mark.
            known = self.inner.get_vocab()
            mark = next((m for m in "Ġ▁" if any(p.startswith(m) and p != m for p in known)), "")
            for number in map(int, ids):
                piece = self.inner.id_to_token(number) or f"#{number}"
                # A byte-level piece is no text: é, say, is two other letters in it.
                text = self.inner.decode([number], skip_special_tokens=False).strip()
                text = text.removeprefix(mark) or piece  # a tokenizer may have no decoder
                goes_on = mark and number not in self.special and not piece.startswith(mark)
                found.append(f"##{text}" if goes_on else text)
        return found

    def _batches(self, cut: Callable[[list[str]], list[Any]], texts: Sequence[str]) -> Iterator:
        for start in range(0, len(texts), _BATCH):
            with self._failing():
                cut_texts = cut(list(map(str, texts[start : start + _BATCH])))
            yield from cut_texts

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Makes one sentence of whatever the library raises."""
        try:
            yield
        except BaseException as error:
            reason = _reason(error)
            raise UserError(
                f"{self.where} holds a tokenizer that fails on transcripts: {reason}."
            ) from error


@functools.lru_cache(maxsize=4)
def _load_tokenizer(text: str) -> Tokenizer:
    """Reads a tokenizer.json, once for all who have the same; raises `ValueError` with a reason."""
    import tokenizers

    try:
        inner = tokenizers.Tokenizer.from_str(text)
        inner.no_truncation()
        inner.no_padding()
        if getattr(inner.model, "dropout", None):
            inner.model.dropout = None
        special = tuple(inner.encode("").ids)
        size = 1 + max(itertools.chain(inner.get_vocab().values(), special), default=-1)
    except BaseException as error:
        raise ValueError(_reason(error)) from error
    if not size:
        raise ValueError("it has no piece")
    return Tokenizer(inner, size, special)


def _reason(error: BaseException) -> str:
    """Shortens what the library found wrong, which may quote a whole file, to a part of a sentence.

    Any error of another origin is raised again. The library raises plain exceptions of every kind,
    and, when its Rust code panics, one that descends from BaseException and cannot be imported.
    """
    is_panic = type(error).__name__ == "PanicException"
    if isinstance(error, MemoryError) or not (is_panic or isinstance(error, Exception)):
        raise error
    return " ".join(str(error).split())[:120].rstrip(".") or type(error).__name__


def _ids_of(encoding: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns token ids and segment ids `[L, 2]` of a text, and which pieces are special, `[L]`."""
    ids = np.array([encoding.ids, encoding.type_ids], np.int64).T
    return ids, np.array(encoding.special_tokens_mask, bool)


def _join(rows: list[tuple[np.ndarray, np.ndarray]]) -> Pieces:
    """Pads the pieces of N texts: their ids `[L, 2]` and the numbers of their words, `[L]`."""
    rows = [row if (row[1] >= 0).any() else (row[0][:0], row[1][:0]) for row in rows]
    lengths = np.array([len(numbers) for _, numbers in rows], int)
    mask = np.arange(max(lengths.max(initial=0), 1)) < lengths[:, None]
    values = np.full((*mask.shape, 3), NOTHING, np.int32)
    if lengths.any():
        ids = np.concatenate([ids for ids, _ in rows])
        # An id beyond int32 is beyond every embedding; the largest number is refused there.
        values[mask, :2] = np.minimum(ids, np.iinfo(np.int32).max)
        values[mask, 2] = np.concatenate([numbers for _, numbers in rows])
    return Pieces(values, mask)


# --- vocab.txt ---

_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def json_of_vocabulary(vocabulary: str, settings: Mapping[str, Any], where: str) -> str:
    """Makes the tokenizer.json of BERT's own tokenizer, for a folder that has only a vocab.txt.

    Args:
        vocabulary: the content of vocab.txt: a piece on each line, whose number is its token id.
        settings: the content of tokenizer_config.json, {} if there is none; `do_lower_case`,
            `strip_accents`, `tokenize_chinese_chars` and the names of special pieces count.
        where: names vocab.txt in messages.

    Raises:
        UserError: if a special piece is missing, or a setting is of the wrong type.
    """
    if not isinstance(settings, Mapping):
        raise UserError(f"tokenizer_config.json beside {where} holds no JSON object.")
    lines = vocabulary.replace("\r\n", "\n").removesuffix("\n").split("\n")
    ids = {piece: row for row, piece in enumerate(lines)}
    names = {}
    for kind, usual in _SPECIAL.items():
        name = settings.get(f"{kind}_token", usual)
        name = name.get("content") if isinstance(name, Mapping) else name
        names[kind] = usual if name is None else name
        if not isinstance(names[kind], str):
            raise UserError(
                f"tokenizer_config.json beside {where}: {kind}_token must be a piece of the "
                "vocabulary."
            )
    for kind in ("unk", "cls", "sep"):
        if names[kind] not in ids:
            raise UserError(
                f"{where} lacks the piece {names[kind][:40]!r}: it is no vocabulary of a BERT."
            )
    flags = {
        "lowercase": _flag(settings, "do_lower_case", True, where),
        "strip_accents": _flag(settings, "strip_accents", None, where),
        "handle_chinese_chars": _flag(settings, "tokenize_chinese_chars", True, where),
    }
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    present = sorted({ids[name]: name for name in names.values() if name in ids}.items())
    first, last = ({"SpecialToken": {"id": names[kind], "type_id": 0}} for kind in ("cls", "sep"))
    second = {"SpecialToken": {"id": names["sep"], "type_id": 1}}
    one, other = ({"Sequence": {"id": id_, "type_id": k}} for k, id_ in enumerate("AB"))
    template = {
        "type": "TemplateProcessing",
        "single": [first, one, last],
        "pair": [first, one, last, other, second],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]}
            for name in (names["cls"], names["sep"])
        },
    }
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": row, "content": name, **plain, "special": True} for row, name in present
        ],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, **flags},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }
    return json.dumps(content, ensure_ascii=False)


def _flag(settings: Mapping[str, Any], key: str, usual: bool | None, where: str) -> bool | None:
    value = settings.get(key, usual)
    if value is not usual and not isinstance(value, bool):
        raise UserError(f"tokenizer_config.json beside {where}: {key} must be true or false.")
    return value
