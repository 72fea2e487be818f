"""Makes features of transcripts or of sound with a pretrained encoder that does not move."""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from msajax.corpus.corpus import Embedding, Split
from msajax.encoders.folder import Folder
from msajax.encoders.module import make_encoder, parameters_of
from msajax.encoders.speech_architecture import SAMPLE_RATE
from msajax.encoders.tokens import Tokenizer
from msajax.errors import UserError
from msajax.layers.heads import pool_words
from msajax.preparation.fit import require_suited
from msajax.preparation.lost import say_repairs
from msajax.preparation.pieces import (
    Sizes,
    TextSource,
    choose_pieces,
    count_words,
    read_pieces,
    require_fit,
)
from msajax.preparation.waveforms import read_waveforms

logger = logging.getLogger(__name__)

_PIECES = 2048  # in a batch: rows times their length
_SOUND_STEPS = 3000  # likewise, of sound: a minute
_STEP = 16  # lengths of batches are multiples of it, so that there are few programs
_SAY_SECONDS = 10.0  # between two lines of progress


def make_embedder(folder: Folder, embedding: Embedding) -> Callable[..., Split]:
    """Returns what makes features of splits with a folder's encoder: `(split, name="") -> split`.

    Raises:
        UserError: if the folder is not the one that the embedding names, or cannot be read.
    """
    if folder.digest != embedding.digest:
        raise UserError(
            f"{folder.path} is another encoder ({folder.digest[:12]}) than the one that made the "
            f"{embedding.modality} features ({embedding.describe()}): name the same folder."
        )
    require_suited({embedding.modality: folder})
    made = SoundEmbedder if folder.architecture.reads == "waveform" else Embedder
    return made(folder, embedding)


def _batches_by_length(
    lengths: np.ndarray, longest: int, steps: int, name: str, what: str
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields batches of rows of about `steps` steps, short ones with short ones.

    Args:
        lengths: `[N]`, steps of each row.
        name: the split's, for lines of progress; "" for none.

    Yields:
        The length of a batch, its rows, and these filled up so that a length has one program.
    """
    lengths = np.minimum(-(-np.maximum(lengths, 1) // _STEP) * _STEP, longest)
    done, said = 0, time.monotonic()
    for length in sorted(set(lengths.tolist())):
        (rows,) = (lengths == length).nonzero()
        size = max(steps // length, 1)
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            yield length, batch, np.concatenate([batch, np.repeat(batch[:1], size - len(batch))])
            done += len(batch)
            if name and time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                logger.info("%s: %d of %d %s.", name, done, len(lengths), what)


class Embedder:
    """Makes the text features of splits, with one encoder and one way to pool."""

    def __init__(self, folder: Folder, embedding: Embedding) -> None:
        """Reads the encoder's weights; raises `UserError` if they, or a tokenizer, are missing."""
        folder.require_tokenizer()
        require_fit(folder, embedding.max_len)
        self.embedding, self._folder = embedding, folder
        found = parameters_of(folder.architecture, folder.tensors(), folder.path)
        self._params = jax.device_put(unflatten_dict(found, sep="/"))
        self._module = make_encoder(folder.architecture, jnp.float32)

    def __call__(self, split: Split, name: str = "") -> Split:
        """Replaces the text of a split by features `[N, T, D]` float32 with a mask `[N, T]`.

        T is that of the words where they are pooled, else that of the longest transcript, whose
        pieces the split then names step by step. A sample with an empty transcript has no text.

        Args:
            name: the split's, for lines of progress; "" for none.

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
        # Cut transcripts into pieces, and choose those that the encoder has room for.
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
        # Encode them; steps are the words that pieces are pooled to, or the pieces themselves.
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
        for length, batch, filled in _batches_by_length(
            lengths, mask.shape[1], _PIECES, name, "transcripts"
        ):
            x, there = self._program(
                self._params, pieces[filled, :length], mask[filled, :length], words
            )
            x, there = np.asarray(x)[: len(batch)], np.asarray(there)[: len(batch)]
            features[batch, : x.shape[1]] = x
            if words:
                valid[batch] = there
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


class SoundEmbedder:
    """Makes features of the waveforms of splits, with one encoder."""

    def __init__(self, folder: Folder, embedding: Embedding) -> None:
        """Reads the encoder's weights; raises `UserError` if they cannot be."""
        self.embedding, self._folder = embedding, folder
        found = parameters_of(folder.architecture, folder.tensors(), folder.path)
        module = make_encoder(folder.architecture, jnp.float32)
        names = jax.eval_shape(
            lambda: module.init(
                jax.random.key(0), jnp.zeros((1, SAMPLE_RATE)), jnp.zeros(1, jnp.int32), train=False
            )
        )
        there = flatten_dict(names["params"], sep="/")
        found = {path: x for path, x in found.items() if path in there}
        self._params = jax.device_put(unflatten_dict(found, sep="/"))
        self._program = jax.jit(
            functools.partial(module.apply, train=False, method=module.read_steps)
        )

    def __call__(self, split: Split, name: str = "") -> Split:
        """Replaces the sound of a split by features `[N, T, D]` float32 with a mask `[N, T]`.

        T are the frames of the longest waveform, 50 a second in the usual encoders.

        Args:
            name: the split's, for lines of progress; "" for none.

        Raises:
            UserError: for a split without sound.
        """
        m = self.embedding.modality
        if m not in split.features:
            raise UserError(f"{split.where} has no {m} that could be embedded.")
        read, counts = read_waveforms(split, {m: self._folder.architecture}, True)
        say_repairs(name or split.where, counts, 0)
        steps, mask = read.features[m], read.masks[m]
        valid = np.zeros(mask.shape, bool)
        features = np.zeros((*mask.shape, self.embedding.width), np.float32)
        for length, batch, filled in _batches_by_length(
            mask.sum(axis=1), mask.shape[1], _SOUND_STEPS, name, "waveforms"
        ):
            of_batch = steps[filled][:, :length], mask[filled, :length]
            x, there = self._program({"params": self._params}, *of_batch)
            features[batch, :length] = np.asarray(x)[: len(batch)]
            valid[batch, :length] = np.asarray(there)[: len(batch)]
        longest = max(1, int(valid.any(axis=0).nonzero()[0].max(initial=0)) + 1)
        return dataclasses.replace(
            split,
            features={**split.features, m: features[:, :longest]},
            masks={**split.masks, m: valid[:, :longest]},
            derived=split.derived - {m},
        )
