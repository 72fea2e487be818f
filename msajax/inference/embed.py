"""Makes features of transcripts with a pretrained text encoder that does not move."""

import dataclasses
import functools
import logging
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from msajax.corpus.corpus import Embedding, Split
from msajax.encoders.folder import Folder
from msajax.encoders.module import make_encoder, parameters_of
from msajax.encoders.tokens import Tokenizer
from msajax.errors import UserError
from msajax.layers.heads import pool_words
from msajax.preparation.lost import say_repairs
from msajax.preparation.pieces import (
    Sizes,
    TextSource,
    choose_pieces,
    count_words,
    read_pieces,
    require_fit,
)

logger = logging.getLogger(__name__)

_PIECES = 2048  # in a batch: rows times their length
_STEP = 16  # lengths of batches are multiples of it, so that there are few programs
_SAY_SECONDS = 10.0  # between two lines of progress


def embedding_of(folder: Folder, **settings: Any) -> Embedding:
    """Describes what a folder's encoder makes; settings are those of `Embedding`."""
    a = folder.architecture
    return Embedding(digest=folder.digest, kind=a.kind, width=a.width, **settings)


class Embedder:
    """Makes the text features of splits, with one encoder and one way to pool."""

    def __init__(self, folder: Folder, embedding: Embedding) -> None:
        """Reads the encoder's weights.

        Raises:
            UserError: if the folder is not the one that the embedding names, has no tokenizer, or
                cannot be read.
        """
        if folder.digest != embedding.digest:
            raise UserError(
                f"{folder.path} is another text encoder ({folder.digest[:12]}) than the one that "
                f"made the text features ({embedding.describe()}): name the same folder."
            )
        folder.require_tokenizer()
        require_fit(folder, folder.path, embedding.max_len)
        self.embedding, self._folder = embedding, folder
        found = parameters_of(folder.architecture, folder.tensors(), folder.path)
        self._params = jax.device_put(unflatten_dict(found, sep="/"))
        self._module = make_encoder(folder.architecture, jnp.float32)

    def __call__(self, split: Split, name: str = "") -> Split:
        """Replaces the text of a split by features `[N, T, D]` float32 with a mask `[N, T]`.

        T is that of the words where they are pooled, else that of the longest transcript, whose
        pieces the split then names step by step. A sample with an empty transcript has no text.

        Args:
            name: what lines of progress call it; "" for none.

        Raises:
            UserError: for a split without transcripts, for transcripts that are too long unless
                they are cut, and for words that are to be pooled and are not known.
        """
        embedding, architecture = self.embedding, self._folder.architecture
        pools = embedding.pool != "pieces"
        if split.raw_text is None and split.words is None:
            raise UserError(f"{split.where} has no transcripts (raw_text) that could be embedded.")
        if pools and split.words is None:
            raise UserError(
                f"{split.where} does not know its words step by step: pool {embedding.pool!r} "
                "needs them; choose pieces."
            )
        kind = "words" if pools else "raw_text"
        source = TextSource(architecture, self._folder.tokenizer, kind, embedding.pool, True)
        # What is stored as text is not what is read.
        alone = dataclasses.replace(split, features={}, masks={}, segments=None)
        read, counts = read_pieces(alone, source)
        pieces, mask = read.features["text"], read.masks["text"]
        most = min(embedding.max_len or architecture.positions, architecture.positions)
        most = max(min(most, mask.shape[1]), 1)
        sizes = Sizes(most, most, architecture.positions, embedding.truncate)
        there = int(mask.sum())
        chosen, mask = choose_pieces(mask, pieces[..., 2] < 0, sizes, split.ids)
        counts["cut_pieces"] = there - int(mask.sum())
        say_repairs(name or split.where, {"text": counts}, 0)
        pieces = np.take_along_axis(pieces, chosen[..., None], axis=1)
        words = count_words(split, pieces[..., 2]) if pools else 0
        features, valid = self._encode(pieces, mask, words, name)
        written = None
        if not pools:  # the pieces for people, "" where a step is not valid
            tokenizer = Tokenizer.from_json(
                self._folder.tokenizer, "The tokenizer of the text encoder"
            )
            known, number = np.unique(pieces[..., 0], return_inverse=True)
            names = np.array(tokenizer.names(known), np.str_)
            written = np.where(valid, names[number.reshape(valid.shape)], "")
        return dataclasses.replace(
            split,
            features={**split.features, "text": features},
            masks={**split.masks, "text": valid},
            segments=None,
            pieces=written,
        )

    def _encode(
        self, pieces: np.ndarray, mask: np.ndarray, words: int, name: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encodes pieces `[N, P, 3]`, short ones with short ones, and pools them to `words`."""
        if words:
            valid = np.zeros((len(mask), words), bool)
        else:
            valid = mask if self.embedding.special else mask & (pieces[..., 2] >= 0)
        features = np.zeros((*valid.shape, self.embedding.width), np.float32)
        lengths = (mask * np.arange(1, mask.shape[1] + 1)).max(axis=1, initial=0)
        lengths = np.minimum(-(-np.maximum(lengths, 1) // _STEP) * _STEP, mask.shape[1])
        done, said = 0, time.monotonic()
        for length in sorted(set(lengths.tolist())):
            (rows,) = (lengths == length).nonzero()
            size = max(_PIECES // length, 1)
            for start in range(0, len(rows), size):
                batch = rows[start : start + size]
                # Filled up, so that every length has one program.
                filled = np.concatenate([batch, np.repeat(batch[:1], size - len(batch))])
                x, there = self._program(
                    self._params, pieces[filled, :length], mask[filled, :length], words
                )
                x, there = np.asarray(x)[: len(batch)], np.asarray(there)[: len(batch)]
                features[batch, : x.shape[1]] = x
                if words:
                    valid[batch] = there
                done += len(batch)
                if name and time.monotonic() - said > _SAY_SECONDS:
                    said = time.monotonic()
                    logger.info("%s: %d of %d transcripts.", name, done, len(mask))
        features[~valid] = 0
        return features, valid

    @functools.cached_property
    def _program(self) -> Any:
        def encode(params: Any, pieces: jax.Array, mask: jax.Array, words: int):
            ids, segments, step = jnp.moveaxis(pieces, -1, 0)
            x = self._module.apply({"params": params}, ids, mask, segments=segments, train=False)
            if not words:
                return x, mask
            return pool_words(x, jnp.where(mask, step, -1), words, self.embedding.pool)

        return jax.jit(encode, static_argnums=3)
