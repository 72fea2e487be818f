"""Makes the text that a pretrained encoder reads: pieces of transcripts, or token ids of a file.

Prepared text is `[N, P, 3]` int32, a token id, a segment id and a step for each piece, and a mask
that is True for every piece. Special pieces, such as [CLS] and [SEP], have step -1; padding is
0, 0, -1. The step of any other piece is its own place among the P, or, where pieces are pooled to
words, the prepared step of its word (see `piece_steps.py`).
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from msajax.corpus.corpus import Split
from msajax.corpus.steps import first_to_last
from msajax.encoders.architecture import Architecture
from msajax.encoders.tokens import NOTHING, Pieces, Tokenizer
from msajax.errors import UserError

TEXT = "text"
FILE_PADDING = -1  # the token id that files pad with beside the encoder's own

# What a split may have, in the order in which it is looked for, by what the model was trained on.
_ORDER = {
    "words": ("words", "raw_text", "ids"),
    "raw_text": ("raw_text", "words", "ids"),
    "ids": ("ids", "raw_text", "words"),
}


class TextSource(NamedTuple):
    """Says how the text of a split becomes pieces.

    Attributes:
        architecture: of the encoder.
        tokenizer: the content of its tokenizer.json; "" without one.
        kind: what the model is trained on: words (step by step), raw_text or ids.
        pool: model.text_pool.
        mask_from_zeros: whether padding is found where a file has no mask of its token ids.
    """

    architecture: Architecture
    tokenizer: str
    kind: str
    pool: str
    mask_from_zeros: bool


def read_pieces(split: Split, source: TextSource) -> tuple[Split, dict[str, int]]:
    """Makes pieces of the text of a split.

    Returns:
        The split with text as pieces `[N, S, 3]`, not yet cut, and their mask; or without text, if
        it has none. The step of a piece is the stored step of its word if the model is trained on
        words. And the number of samples whose transcript is empty, and of token ids that the mask
        of the file hides although they are no padding, by kind.

    Raises:
        UserError: for token ids or segment ids that the encoder has no row for, for transcripts
            where there is no tokenizer, and for token ids where words are pooled.
    """
    features = {m: x for m, x in split.features.items() if m != TEXT}
    masks = {m: mask for m, mask in split.masks.items() if m != TEXT}
    there = {
        "words": split.words is not None,
        "raw_text": split.raw_text is not None,
        "ids": has_ids(split),
    }
    kind = next((kind for kind in _ORDER[source.kind] if there[kind]), "")
    counts = {}
    if kind:
        pieces = _stored(split, source) if kind == "ids" else _cut(split, source, kind)
        _require_rows(split, pieces, source.architecture)
        features[TEXT], masks[TEXT] = pieces
        if empty := int((~pieces.mask.any(axis=1)).sum()):
            counts["empty_transcripts"] = empty
        if kind == "ids" and (hidden := _count_hidden(split, source.architecture.padding_id)):
            counts["hidden_steps"] = hidden
    derived = split.derived - {TEXT}
    read = dataclasses.replace(split, features=features, masks=masks, derived=derived)
    return read, counts


def has_ids(split: Split) -> bool:
    """Says whether a split stores text as token ids."""
    x = split.features.get(TEXT)
    return x is not None and x.ndim == 2


def _cut(split: Split, source: TextSource, kind: str) -> Pieces:
    """Cuts the words or the transcripts of a split."""
    if not source.tokenizer:
        raise UserError(
            f"{split.where} has transcripts, but this model was trained on token ids, without a "
            "tokenizer: give it token ids as text."
        )
    tokenizer = Tokenizer.from_json(source.tokenizer, "The tokenizer of the text encoder")
    words = split.words.tolist() if kind == "words" else None
    if source.kind == "words":
        return tokenizer.encode_words(words or [text.split() for text in split.raw_text.tolist()])
    if words is None:
        return tokenizer.encode(split.raw_text.tolist())
    return tokenizer.encode([" ".join(" ".join(of_sample).split()) for of_sample in words])


def _stored(split: Split, source: TextSource) -> Pieces:
    """Takes the token ids of a split as they are."""
    if source.pool != "pieces":
        raise UserError(
            f"{split.where} has token ids, but this model pools the pieces of words "
            f"(model.text_pool = {source.pool}): give it words or transcripts."
        )
    x, mask = split.features[TEXT].astype(np.int64), split.masks.get(TEXT)
    if mask is None and source.mask_from_zeros:
        mask = first_to_last((x != source.architecture.padding_id) & (x != FILE_PADDING))
    elif mask is None:
        mask = np.ones(x.shape, bool)
    special = np.zeros(x.shape, bool)
    if source.tokenizer:
        added = Tokenizer.from_json(source.tokenizer, "The tokenizer of the text encoder").special
        special = np.isin(x, added)
    mask = mask & (mask & ~special).any(axis=1)[:, None]
    segments = np.zeros_like(x) if split.segments is None else split.segments.astype(np.int64)
    within = np.iinfo(np.int32)  # an id beyond int32 stays one beyond every embedding
    values = np.full((*x.shape, 3), NOTHING, np.int32)
    values[..., 0] = np.where(mask, np.clip(x, within.min, within.max), 0)
    values[..., 1] = np.where(mask, np.clip(segments, within.min, within.max), 0)
    values[..., 2] = np.where(mask & ~special, np.arange(x.shape[1]), -1)
    return Pieces(values, mask)


def _count_hidden(split: Split, padding_id: int) -> int:
    if TEXT not in split.masks or TEXT in split.derived:
        return 0
    is_padding = np.isin(split.features[TEXT], (0, padding_id, FILE_PADDING))
    return int(np.count_nonzero(~split.masks[TEXT] & ~is_padding))


def _require_rows(split: Split, pieces: Pieces, architecture: Architecture) -> None:
    """Raises `UserError` for ids of pieces that are not rows of the encoder's tables."""
    tables = {"token id": architecture.vocabulary, "segment id": max(architecture.segments, 1)}
    for column, (name, rows) in enumerate(tables.items()):
        ids = pieces.values[..., column]
        bad = (ids < 0) | (ids >= rows)
        if bad.any():
            row, step = np.argwhere(bad)[0]
            raise UserError(
                f"{split.where}: the text of {str(split.ids[row])!r} has the {name} "
                f"{ids[row, step]}, but the text encoder knows 0 to {rows - 1} alone: its pieces "
                "are those of another tokenizer."
            )
