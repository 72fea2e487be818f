"""Chooses which pieces of a text are read, and which steps of what shares steps with its words.

Modalities that share their steps with the words of a text follow them, in one of two ways:

    model.text_pool = pieces   They move to the pieces: their prepared step i is the stored step of
                               the word that piece i is of; special pieces have none. Steps at which
                               no word is are not read, for they are pauses, and counted. In a
                               sample without any word they keep their own steps.
    words, first               They keep their steps, and pieces know the steps of their words.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from msajax.corpus.corpus import Split
from msajax.corpus.steps import Chosen, choose_steps, require_same_length, spans, union
from msajax.encoders.tokens import NOTHING
from msajax.errors import UserError
from msajax.preparation.pieces import TEXT


class Sizes(NamedTuple):
    """Says how long sequences may be after preparation.

    Attributes:
        pieces: of text, special ones included, P.
        steps: of the modalities that move with the text: P where they move to its pieces.
        positions: the most pieces that the encoder takes.
        truncate: error, first, last or uniform.
    """

    pieces: int
    steps: int
    positions: int
    truncate: str


class Moved(NamedTuple):
    """Says what is read of a text and of the modalities that share the steps of its words.

    Attributes:
        split: with the prepared steps of words as the steps of pieces, where these are pooled.
        chosen: by modality, which stored piece or step each prepared one reads, and which are
            valid.
        cut_pieces: how many pieces are left out because a sequence is too long.
        cut: `[N, T]` or `[N, 1]`, stored steps of the other modalities that are left out with them.
        wordless: likewise, those that no piece reads because they are at no word.
    """

    split: Split
    chosen: Chosen
    cut_pieces: int
    cut: np.ndarray
    wordless: np.ndarray


def move(split: Split, masks: Mapping[str, np.ndarray], pool: str, sizes: Sizes) -> Moved:
    """Chooses the pieces of a text, and the steps of the modalities that move with it.

    Args:
        split: from `read_pieces`.
        masks: the readable steps `[N, T]` of what moves as one; of text its pieces, `[N, S]`.
        pool: model.text_pool.
        sizes: how long sequences may be.

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
    at = np.take_along_axis(word, source, axis=1)  # [N, P]
    spoken = kept & (at >= 0)
    has_piece = mark(word, mask & (word >= 0), steps)
    silent = ~has_piece.any(axis=1)[:, None]
    own = choose_steps(
        {m: valid & silent for m, valid in others.items()}, sizes.steps, sizes.truncate, split.ids
    )
    for m, valid in others.items():
        moved = np.where(silent, own[m][0], np.maximum(at, 0))
        chosen[m] = moved, np.where(
            silent, own[m][1], spoken & np.take_along_axis(valid, moved, axis=1)
        )
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
    source, kept = chosen[TEXT]
    prepared = np.full((len(split), steps), -1, np.int32)
    row, step = kept.nonzero()
    prepared[row, source[row, step]] = step
    numbers = np.take_along_axis(prepared, np.maximum(word, 0), axis=1)
    numbers = np.where(spoken, numbers, -1)
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
        special: `[N, S]`, which of them are special.
        sizes: how long sequences may be.
        ids: `[N]` str, of the samples.
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
        others = _shorten(pieces[~stays], max(length - int(stays.sum()), 0), truncate)
        pieces = np.sort(np.concatenate([pieces[stays], others])) if others.size else others
        source[row], kept[row] = 0, step < pieces.size
        source[row, : pieces.size] = pieces
    return source, kept


def _shorten(pieces: np.ndarray, room: int, truncate: str) -> np.ndarray:
    """Returns `room` of the pieces, or all if they are no more."""
    if pieces.size <= room:
        return pieces
    if truncate == "first":
        return pieces[:room]
    if truncate == "last":
        return pieces[pieces.size - room :]
    return pieces[np.round(np.linspace(0, pieces.size - 1, room)).astype(int)]


def take_pieces(x: np.ndarray, source: np.ndarray, kept: np.ndarray, pool: str) -> np.ndarray:
    """Makes prepared text `[N, P, 3]` of stored pieces `[N, S, 3]` and what is read of them."""
    out = np.take_along_axis(x, source[..., None], axis=1)
    if pool == "pieces":
        out[..., 2] = np.where(out[..., 2] >= 0, np.arange(source.shape[1]), -1)
    out[~kept] = NOTHING
    return out
