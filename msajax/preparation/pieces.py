"""Makes the text that a pretrained encoder reads: pieces of transcripts, or token ids of a file.

Prepared text is `[N, P, 3]` int32, a token id, a segment id and a step for each piece, and a mask
that is True for every piece. Special pieces, such as [CLS] and [SEP], have step -1; padding is
0, 0, -1. The step of any other piece is its own place among the P, or, where pieces are pooled to
words, the prepared step of its word.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Split
from msajax.corpus.steps import (
    Chosen,
    choose_steps,
    first_to_last,
    require_same_length,
    spans,
    union,
)
from msajax.encoders.architecture import Architecture
from msajax.encoders.folder import Folder
from msajax.encoders.tokens import NOTHING, Pieces, Tokenizer
from msajax.errors import UserError

logger = logging.getLogger(__name__)

TEXT = "text"
FILE_PADDING = -1  # the token id that files pad with beside the encoder's own

# What a split may have, in the order in which it is looked for, by what the model was trained on.
_ORDER = {
    "words": ("words", "raw_text", "ids"),
    "raw_text": ("raw_text", "words", "ids"),
    "ids": ("ids", "raw_text", "words"),
}


class TextSource(NamedTuple):
    """Says how the text of a split becomes pieces of an encoder."""

    architecture: Architecture
    tokenizer: str  # the content of its tokenizer.json; "" without one
    kind: str  # names what the model is trained on: words (step by step), raw_text or ids
    pool: str  # model.text_pool
    mask_from_zeros: bool  # finds padding where a file has no mask of its token ids


def read_pieces(split: Split, source: TextSource) -> tuple[Split, dict[str, int]]:
    """Makes pieces of the text of a split.

    Returns:
        The split with text as pieces `[N, S, 3]`, not yet cut, and their mask; or without text, if
        it has none. The step of a piece is the stored step of its word if the model is trained on
        words. And counts by kind: samples whose transcript is empty, and token ids that the mask of
        the file hides although they are no padding.

    Raises:
        UserError: for token ids or segment ids that the encoder has no row for, for transcripts
            where there is no tokenizer, and for token ids where words are pooled.
    """
    features = {m: x for m, x in split.features.items() if m != TEXT}
    masks = {m: mask for m, mask in split.masks.items() if m != TEXT}
    kind = _first_kind(split, *_ORDER[source.kind])
    counts = {}
    if kind:
        pieces = _stored(split, source) if kind == "ids" else _cut(split, source, kind)
        _require_rows(split, pieces, source.architecture)
        features[TEXT], masks[TEXT] = pieces
        if empty := int((~pieces.mask.any(axis=1)).sum()):
            counts["empty_transcripts"] = empty
        if kind == "ids" and TEXT in split.masks and TEXT not in split.derived:
            padding = (0, source.architecture.padding_id, FILE_PADDING)
            is_padding = np.isin(split.features[TEXT], padding)
            if hidden := int(np.count_nonzero(~split.masks[TEXT] & ~is_padding)):
                counts["hidden_steps"] = hidden
    derived = split.derived - {TEXT}
    read = dataclasses.replace(split, features=features, masks=masks, derived=derived)
    return read, counts


def _first_kind(split: Split, *kinds: str) -> str:
    there = {"words": split.words is not None, "raw_text": split.raw_text is not None}
    there["ids"] = has_ids(split)
    return next((kind for kind in kinds if there[kind]), "")


def has_ids(split: Split) -> bool:
    """Says whether a split stores text as token ids."""
    x = split.features.get(TEXT)
    return x is not None and x.ndim == 2


def _cut(split: Split, source: TextSource, kind: str) -> Pieces:
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


def _require_rows(split: Split, pieces: Pieces, architecture: Architecture) -> None:
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


class Sizes(NamedTuple):
    """Says how long sequences may be after preparation."""

    pieces: int  # P, special ones included
    steps: int  # steps of the modalities that move with the text; P where they move to its pieces
    positions: int  # the most pieces that the encoder takes
    truncate: str  # error, first, last or uniform


class Moved(NamedTuple):
    """Says what is read of a text and of the modalities that share the steps of its words."""

    split: Split  # has the prepared steps of words as the steps of pieces, where these are pooled
    chosen: Chosen  # `{modality: (the stored piece or step of each prepared one, which are valid)}`
    cut_pieces: int  # counts the pieces that are left out because a sequence is too long
    # `[N, T]` or `[N, 1]`, stored steps of the other modalities that are left out with them
    cut: np.ndarray
    # `[N, T]` or `[N, 1]`, those that no piece reads because they are at no word
    wordless: np.ndarray


def move(split: Split, masks: Mapping[str, np.ndarray], pool: str, sizes: Sizes) -> Moved:
    """Chooses the pieces of a text, and the steps of the modalities that move with it.

    Args:
        split: the result of `read_pieces`.
        masks: the readable steps `[N, T]` of what moves as one; text has its pieces, `[N, S]`.
        pool: model.text_pool.

    Raises:
        UserError: for a sequence that is too long unless truncation is on, and for modalities
            whose words are not known step by step here.
    """
    others = {m: mask for m, mask in masks.items() if m != TEXT}
    if others and split.words is None:
        if any(mask.any() for mask in others.values()):
            names = ", ".join(others)
            raise UserError(
                f"{split.where}: the model was trained with words and {names} step by step, so "
                f"beside {names} it needs the words of each step, too, not transcripts or token "
                "ids: give it words, or leave the other modalities out."
            )
        blank = np.zeros((len(split), sizes.steps), int)
        moved = move(split, {TEXT: masks[TEXT]}, pool, sizes)
        absent = {m: (blank, blank.astype(bool)) for m in others}
        nowhere = np.zeros((len(split), 1), bool)
        return moved._replace(chosen=moved.chosen | absent, cut=nowhere, wordless=nowhere)
    return (_to_pieces if pool == "pieces" else _to_words)(split, masks[TEXT], others, sizes)


def _to_pieces(
    split: Split, mask: np.ndarray, others: Mapping[str, np.ndarray], sizes: Sizes
) -> Moved:
    """Moves other modalities to the pieces of the words that they share their steps with."""
    word = split.features[TEXT][..., 2]  # [N, S], the stored step of each piece's word
    source, kept = choose_pieces(mask, word < 0, sizes, split.ids)
    chosen, cut = {TEXT: (source, kept)}, int(mask.sum() - kept.sum())
    if not others:
        nowhere = np.zeros((len(split), 1), bool)
        return Moved(split, chosen, cut, nowhere, nowhere)
    steps = split.words.shape[1]
    require_same_length({"words": np.zeros((len(split), steps), bool), **others})

    # Each piece reads the step of its word; a sample without a piece keeps its own steps.
    at = np.take_along_axis(word, source, axis=1)  # [N, P]
    spoken = kept & (at >= 0)
    has_piece = mark(word, mask & (word >= 0), steps)
    silent = ~has_piece.any(axis=1)[:, None]
    own = choose_steps(
        {m: valid & silent for m, valid in others.items()}, sizes.steps, sizes.truncate, split.ids
    )
    for m, valid in others.items():
        moved = np.where(silent, own[m][0], np.maximum(at, 0))
        chosen[m] = (
            moved,
            np.where(silent, own[m][1], spoken & np.take_along_axis(valid, moved, axis=1)),
        )

    # What is left out with the pieces that are cut.
    left_out = has_piece & ~mark(at, spoken, steps)
    left_out |= silent & _too_long(others.values(), sizes.steps)
    return Moved(split, chosen, cut, left_out, ~has_piece & ~silent)


def _to_words(
    split: Split, mask: np.ndarray, others: Mapping[str, np.ndarray], sizes: Sizes
) -> Moved:
    """Tells each piece the prepared step of its word, which other modalities share."""
    pieces = split.features[TEXT]
    word = pieces[..., 2]  # [N, S], the stored step of each piece's word
    steps = count_words(split, word)
    spoken = mask & (word >= 0)
    valid = {TEXT: mark(word, spoken, steps), **others}
    chosen = choose_steps(valid, sizes.steps, sizes.truncate, split.ids)

    # The prepared step of each piece's word; -1 for special pieces and words that are cut.
    source, kept = chosen[TEXT]
    prepared = np.full((len(split), steps), -1, np.int32)
    row, step = kept.nonzero()
    prepared[row, source[row, step]] = step
    numbers = np.take_along_axis(prepared, np.maximum(word, 0), axis=1)
    numbers = np.where(spoken, numbers, -1)

    # Pieces of words that are cut are left out, and what is left closes up.
    left = mask & ~(spoken & (numbers < 0))  # without those whose word is cut
    closed = (mask & ~left).any(axis=1)
    chosen[TEXT] = choose_pieces(left, word < 0, sizes, split.ids, closed)
    cut = int(mask.sum() - chosen[TEXT][1].sum())
    features = {**split.features, TEXT: np.concatenate([pieces[..., :2], numbers[..., None]], 2)}
    too_long = _too_long(valid.values(), sizes.steps)
    split = dataclasses.replace(split, features=features)
    return Moved(split, chosen, cut, too_long, np.zeros_like(too_long))


def _too_long(masks: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Finds the samples `[N, 1]` whose sequences, from first to last valid step, are longer."""
    return (spans(union(masks))[1] > length)[:, None]


def count_words(split: Split, word: np.ndarray) -> int:
    """Returns the stored steps of the words of a split, of whose pieces `word` has the steps."""
    return int(word.max(initial=0)) + 1 if split.words is None else split.words.shape[1]


def mark(numbers: np.ndarray, valid: np.ndarray, steps: int) -> np.ndarray:
    """Marks the steps `[N, steps]` that are among the valid numbers of each row, `[N, S]`."""
    marked = np.zeros((len(numbers), steps), bool)
    row, column = valid.nonzero()
    marked[row, numbers[row, column]] = True
    return marked


def choose_pieces(
    mask: np.ndarray,
    special: np.ndarray,
    sizes: Sizes,
    ids: np.ndarray,
    closed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the pieces that are read; special ones stay whatever is cut.

    A sample of which nothing is left but special pieces has none.

    Args:
        mask: `[N, S]`, the pieces that there are.
        special: `[N, S]`, the special ones.
        ids: `[N]`, names of samples, for messages.
        closed: `[N]`, samples in which gaps between pieces are closed.

    Returns:
        Which piece each prepared one is, `[N, P]`, and which there are.

    Raises:
        UserError: for more pieces than may be read, unless truncation is on.
    """
    length, truncate = sizes.pieces, sizes.truncate
    first, lengths = spans(mask)
    too_long = lengths > length
    if truncate == "error" and too_long.any():
        row = too_long.argmax()
        hint = "a model that is trained with a larger model.max_len reads more"
        if length >= sizes.positions:
            hint = "the text encoder takes no more"
        raise UserError(
            f"{too_long.sum()} transcript(s) are longer than the model's {length} pieces, special "
            f"ones included, the first that of {str(ids[row])!r} with {lengths[row]}: "
            "--config.data.truncate=first, last or uniform keeps as many of each, at prediction "
            f"too (in Python bundle.with_data(truncate='last')); {hint}."
        )
    step = np.arange(length)
    source = np.minimum(first[:, None] + step, mask.shape[1] - 1)
    kept = (step < lengths[:, None]) & np.take_along_axis(mask, source, axis=1)
    for row in np.flatnonzero(too_long if closed is None else too_long | closed):
        (pieces,) = mask[row].nonzero()
        stays = special[row, pieces]
        others, room = pieces[~stays], max(length - int(stays.sum()), 0)
        if others.size > room and truncate == "first":
            others = others[:room]
        elif others.size > room and truncate == "last":
            others = others[others.size - room :]
        elif others.size > room:
            others = others[np.round(np.linspace(0, others.size - 1, room)).astype(int)]
        pieces = np.sort(np.concatenate([pieces[stays], others])) if others.size else others
        source[row], kept[row] = 0, step < pieces.size
        source[row, : pieces.size] = pieces
    return source, kept


def take_pieces(x: np.ndarray, source: np.ndarray, kept: np.ndarray, pool: str) -> np.ndarray:
    """Makes prepared text `[N, P, 3]` of stored pieces `[N, S, 3]` and what is read of them."""
    out = np.take_along_axis(x, source[..., None], axis=1)
    if pool == "pieces":
        out[..., 2] = np.where(out[..., 2] >= 0, np.arange(source.shape[1]), -1)
    out[~kept] = NOTHING
    return out


_SAID = {
    "words": "the words, step by step",
    "raw_text": "the transcripts (raw_text)",
    "ids": "the token ids that are stored",
}


def find_source(
    path: str, train: Split, data: DataConfig, model: ModelConfig, encoder: Folder
) -> TextSource:
    """Decides what the text of a pretrained encoder is made of.

    Raises `UserError` if train has nothing that the encoder could read, or no words where they are
    pooled; if the tokenizer is missing, cannot be read, or has more pieces than the encoder has
    embeddings.
    """
    kind = _first_kind(train, *(("ids",) if data.text == "ids" else _ORDER["words"]))
    if not kind:
        raise UserError(
            f"{path} has neither transcripts (train/raw_text) nor words or token ids that "
            "model.text_encoder could read."
        )
    if model.text_pool != "pieces" and kind != "words":
        raise UserError(
            f"model.text_pool = {model.text_pool}: {path} does not know its words step by step, "
            f"as train/words would say; its text is {_SAID[kind]}: choose pieces."
        )
    if kind != "ids":
        encoder.require_tokenizer()
    if encoder.tokenizer:
        require_fit(encoder, model.max_len)
    elif not model.text_special:
        raise UserError(
            f"model.text_special = false: {named(TEXT, encoder.path)} has no tokenizer that "
            "would say which token ids are those of special pieces."
        )
    logger.info("%s: the text encoder reads %s.", path, _SAID[kind])
    return TextSource(
        encoder.architecture, encoder.tokenizer, kind, model.text_pool, data.mask_from_zeros
    )


def named(modality: str, folder: str) -> str:
    """Says in a message which setting names the folder of a modality's encoder."""
    if modality == TEXT:
        return f"model.text_encoder = {folder}"
    return f"model.encoders = {modality}={folder}"


def require_fit(encoder: Folder, max_len: int) -> None:
    """Raises `UserError` for a tokenizer that does not fit its encoder.

    It has more pieces than the encoder has embeddings, or adds so many special ones that no other
    fits beside them in a transcript of `max_len` pieces, or, if that is 0, of as many as the
    encoder takes.
    """
    architecture = encoder.architecture
    where = f"{named(TEXT, encoder.path)}: its tokenizer"
    tokenizer = Tokenizer.from_json(encoder.tokenizer, where)
    if tokenizer.size > architecture.vocabulary:
        raise UserError(
            f"{where} has token ids up to {tokenizer.size - 1}, but its embedding has "
            f"{architecture.vocabulary} rows: they are of different models."
        )
    special = len(tokenizer.special)
    most = min(max_len or architecture.positions, architecture.positions)
    if most <= special:
        key = "model.max_len" if most == max_len else "the longest sequence of the encoder"
        raise UserError(
            f"{key} = {most}: the text encoder's tokenizer adds {special} special pieces to each "
            "transcript; no other would fit."
        )


def prepared_lengths(
    train: Split,
    masks: Mapping[str, np.ndarray],
    moving: Sequence[Sequence[str]],
    model: ModelConfig,
    text: TextSource | None,
) -> tuple[dict[str, int], int]:
    """Returns the prepared steps of each modality, and those that pieces of text are pooled to.

    Args:
        train: the training split; its text is pieces, from `read_pieces`, if an encoder reads it.
        masks: the readable steps `[N, T]` of each modality; text has its pieces, `[N, S]`.
        moving: the modalities that move as one, as `movers` returns them.
        model: `max_len` counts, in place of the longest sequences.
        text: tells how pieces are made; None without a pretrained encoder.
    """
    lengths: dict[str, int] = {}
    text_steps = 0
    for members in moving:
        if text is None or TEXT not in members:
            steps = int(spans(union(masks[m] for m in members))[1].max())
            lengths |= dict.fromkeys(members, model.max_len or steps)
            continue
        pieces, others = masks[TEXT], [masks[m] for m in members if m != TEXT]
        longest = int(spans(pieces)[1].max())
        if text.pool == "pieces":
            # Without a word to move to, the other modalities keep their own steps.
            silent = ~pieces.any(axis=1)
            own = int((spans(union(others))[1] * silent).max()) if others else 0
            found, pooled = dict.fromkeys(members, max(longest, own)), 0
        else:
            word = train.features[TEXT][..., 2]
            said = mark(word, pieces & (word >= 0), count_words(train, word))
            pooled = int(spans(union([said, *others]))[1].max())
            found = dict.fromkeys(members, pooled) | {TEXT: longest}
        most = text.architecture.positions
        if model.max_len > most:
            logger.warning(
                "model.max_len = %d: the text encoder takes %d pieces at most.", model.max_len, most
            )
        lengths |= {m: model.max_len or steps for m, steps in found.items()}
        text_steps = pooled and (model.max_len or pooled)
        for m in (TEXT,) if pooled else members:
            lengths[m] = min(lengths[m], most)
    return lengths, text_steps
