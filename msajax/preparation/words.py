"""Makes token ids of words, by a vocabulary of the training split alone."""

import collections
import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from msajax.corpus.corpus import Split
from msajax.corpus.glove import read_glove

PADDING, UNKNOWN = "<padding>", "<unknown>"  # rows 0 and 1 of every vocabulary
# Chinese and Japanese, written without spaces, by the character; else a word with its apostrophes.
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+(?:['\u2019][^\W_{_UNSPACED}]+)*")


def tokenize(text: str) -> list[str]:
    """Returns the words of a transcript, in lower case, without punctuation."""
    # Composed: in a decomposed é the accent is a character of its own, and no letter.
    text = unicodedata.normalize("NFC", text.lower())
    return [word.replace("\u2019", "'") for word in _WORD.findall(text)]


def detokenize(words: Sequence[str]) -> str:
    """Joins words to a text of which `tokenize` makes them again."""
    return re.sub(rf"(?<=[{_UNSPACED}]) (?=[{_UNSPACED}])", "", " ".join(words))


def build_vocabulary(texts: Iterable[str], min_count: int) -> tuple[str, ...]:
    """Collects padding, the unknown word, then the words of `texts`, the most frequent first.

    Words that occur less often than `min_count` train the vector of the unknown word.
    """
    counts = collections.Counter(word for text in texts for word in tokenize(text))
    words = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
    return (PADDING, UNKNOWN, *words)


def embed(texts: Sequence[str], glove_path: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Makes features of N transcripts: the vectors of their words, from a file of word vectors.

    Raises `UserError` if the file cannot be read.

    Returns:
        Features `[N, T, d]` float32, zeros for a word without a vector; their mask `[N, T]`, true
        for every word; and the share of words without a vector, 0 without words.
    """
    words = (PADDING, UNKNOWN, *sorted({word for text in texts for word in tokenize(text)}))
    vectors = read_glove(glove_path, words[2:])
    row = {word: i for i, word in enumerate(words)}
    table = np.zeros((len(words), vectors.vectors.shape[1]), np.float32)
    known = [row[word] for word in vectors.words]
    table[known] = vectors.vectors
    ids, mask = encode(texts, words)
    unknown = ~np.isin(ids[mask], known)
    return table[ids], mask, float(unknown.mean()) if unknown.size else 0.0


def encode(texts: Sequence[str], vocabulary: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns token ids `[N, T]` int32 and their mask; T is the longest transcript's, or 1."""
    row = {word: i for i, word in enumerate(vocabulary)}
    unknown = row[UNKNOWN]
    sequences = [[row.get(word, unknown) for word in tokenize(text)] for text in texts]
    lengths = np.array([len(sequence) for sequence in sequences])
    mask = np.arange(max(lengths.max(initial=0), 1)) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.fromiter((i for sequence in sequences for i in sequence), np.int32)
    return ids, mask


def read_words(split: Split, words: Sequence[str]) -> Split:
    """Makes the transcripts of a split its text modality; without transcripts it has no text."""
    features = {m: x for m, x in split.features.items() if m != "text"}
    masks = {m: mask for m, mask in split.masks.items() if m != "text"}
    if split.raw_text is not None:
        features["text"], masks["text"] = encode(split.raw_text, words)
    derived = split.derived | {"text"}
    return dataclasses.replace(split, features=features, masks=masks, derived=derived)
