"""Fits a pretrained encoder's text to the training split: what it is made of, how long it is."""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Split
from msajax.corpus.steps import spans, union
from msajax.encoders.architecture import Architecture
from msajax.encoders.tokens import Tokenizer
from msajax.errors import UserError
from msajax.preparation.piece_steps import count_words, mark
from msajax.preparation.pieces import TEXT, TextSource, has_ids

logger = logging.getLogger(__name__)

_SAID = {
    "words": "the words, step by step",
    "raw_text": "the transcripts (raw_text)",
    "ids": "the token ids that are stored",
}


class Encoder(Protocol):
    """Stands for an opened folder of a pretrained encoder.

    Attributes:
        architecture: of the encoder.
        tokenizer: the content of its tokenizer.json; "" without one.
    """

    architecture: Architecture
    tokenizer: str

    def require_tokenizer(self) -> str:
        """Returns `tokenizer`; raises `UserError` without one."""


def find_source(
    path: str, train: Split, data: DataConfig, model: ModelConfig, encoder: Encoder
) -> TextSource:
    """Decides what the text of a pretrained encoder is made of.

    Args:
        path: of the corpus, for messages.
        train: the training split as read.
        data: `text` and `mask_from_zeros`.
        model: `text_pool`, `text_special` and, for messages, `text_encoder`.
        encoder: the opened folder.

    Raises:
        UserError: if train has nothing that the encoder could read, or no words where they are
            pooled; if the tokenizer is missing, cannot be read, or has more pieces than the encoder
            has embeddings.
    """
    kind = _kind(path, train, data)
    if model.text_pool != "pieces" and kind != "words":
        raise UserError(
            f"model.text_pool = {model.text_pool}: {path} does not know its words step by step, "
            f"as train/words would say; its text is {_SAID[kind]}: choose pieces."
        )
    if kind != "ids":
        encoder.require_tokenizer()
    architecture = encoder.architecture
    if encoder.tokenizer:
        require_fit(encoder, model.text_encoder, model.max_len)
    elif not model.text_special:
        raise UserError(
            f"model.text_special = false: model.text_encoder = {model.text_encoder} has no "
            "tokenizer that would say which token ids are those of special pieces."
        )
    logger.info("%s: the text encoder reads %s.", path, _SAID[kind])
    source = architecture, encoder.tokenizer, kind, model.text_pool, data.mask_from_zeros
    return TextSource(*source)


def _kind(path: str, train: Split, data: DataConfig) -> str:
    """Returns words, raw_text or ids."""
    if data.text == "ids":
        if not has_ids(train):
            raise UserError(f"data.text = ids: {path} has no token ids as text in train.")
        return "ids"
    if train.words is not None:
        return "words"
    if train.raw_text is not None:
        return "raw_text"
    if not has_ids(train):
        raise UserError(
            f"{path} has neither transcripts (train/raw_text) nor words or token ids that "
            "model.text_encoder could read."
        )
    return "ids"


def require_fit(encoder: Encoder, path: str, max_len: int) -> None:
    """Refuses a tokenizer that does not fit its encoder.

    Args:
        encoder: with a tokenizer.
        path: of its folder, for messages.
        max_len: the most pieces of a transcript, special ones included; 0 for as many as it takes.

    Raises:
        UserError: if the tokenizer has more pieces than the encoder has embeddings, or adds so many
            special ones that no other fits beside them.
    """
    architecture, where = encoder.architecture, f"model.text_encoder = {path}: its tokenizer"
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


def measure(
    train: Split,
    masks: Mapping[str, np.ndarray],
    moving: Sequence[Sequence[str]],
    model: ModelConfig,
    text: TextSource | None,
) -> tuple[dict[str, int], int]:
    """Returns the prepared steps of each modality, and those that pieces of text are pooled to.

    Args:
        train: the training split; its text is pieces, from `read_pieces`, if an encoder reads it.
        masks: the readable steps `[N, T]` of each modality; of pieces `[N, S]`.
        moving: what moves as one, as `movers` returns it.
        model: `max_len`, in place of the longest sequences.
        text: how pieces are made; None without a pretrained encoder.
    """
    lengths: dict[str, int] = {}
    text_steps = 0
    for members in moving:
        if text and TEXT in members:
            longest, pooled = _longest(train, masks, members, text.pool)
            most = text.architecture.positions
            if model.max_len > most:
                logger.warning(
                    "model.max_len = %d: the text encoder takes %d pieces at most.",
                    model.max_len,
                    most,
                )
            lengths |= {m: model.max_len or steps for m, steps in longest.items()}
            text_steps = pooled and (model.max_len or pooled)
            for m in (TEXT,) if pooled else members:
                lengths[m] = min(lengths[m], most)
        else:
            steps = int(spans(union(masks[m] for m in members))[1].max())
            lengths |= dict.fromkeys(members, model.max_len or steps)
    return lengths, text_steps


def _longest(
    split: Split, masks: Mapping[str, np.ndarray], members: Sequence[str], pool: str
) -> tuple[dict[str, int], int]:
    """Measures the longest sequences of a text and of the modalities that move with it.

    Args:
        split: from `read_pieces`.
        masks: the readable steps `[N, T]` of each modality; of text its pieces, `[N, S]`.
        members: what moves as one, text among them.
        pool: model.text_pool.

    Returns:
        The steps by modality; and those that the pieces are pooled to, 0 if they are not.
    """
    pieces, others = masks[TEXT], [masks[m] for m in members if m != TEXT]
    longest = int(spans(pieces)[1].max())
    if pool == "pieces":
        # Without a word to move to, the other modalities keep their own steps.
        silent = ~pieces.any(axis=1)
        own = int((spans(union(others))[1] * silent).max()) if others else 0
        return dict.fromkeys(members, max(longest, own)), 0
    word = split.features[TEXT][..., 2]
    said = mark(word, pieces & (word >= 0), count_words(split, word))
    steps = int(spans(union([said, *others]))[1].max())
    return dict.fromkeys(members, steps) | {TEXT: longest}, steps
