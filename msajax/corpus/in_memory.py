"""Reads and pads sequences as programs have them in memory; makes corpora of splits there."""

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from msajax.corpus.corpus import Corpus, Embedding, Source, Split, SplitHeader, count_transcripts
from msajax.corpus.labels import describe_labels
from msajax.errors import UserError

_IN_MEMORY = Source("memory", "splits in memory")
_NOT_A_VALUE = ("NAType", "NaTType")  # what pandas has for a value that is missing


def is_missing(value: Any) -> bool:
    """Says whether a value stands for none: None, NaN, or what pandas has for it."""
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or type(value).__name__ in _NOT_A_VALUE


def is_list(value: Any) -> bool:
    """Says whether a value is a list, a tuple or an array with axes: no text, and no number."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def as_list(value: Any, where: str) -> list[Any]:
    """Returns the values of a list, an array, or a column of a pandas or polars data frame."""
    for method in ("tolist", "to_list"):  # numpy and pandas, polars
        if not isinstance(value, type) and callable(found := getattr(value, method, None)):
            value = found()
            break
    if is_list(value):
        return list(value)
    if hasattr(value, "columns"):
        names = ", ".join(map(repr, list(value.columns)[:3]))
        raise UserError(
            f"{where} is a table, of the columns {names}: expected a single column, whose name no "
            "other one has."
        )
    like = " in the order of the table's rows" if isinstance(value, Mapping) else ""
    raise UserError(
        f"{where} is of type {type(value).__name__}: expected a list with an entry for each "
        f"sample{like}."
    )


def require_same_rows(parts: Mapping[str, Any]) -> None:
    """Raises `UserError` if indices, as pandas has them, put rows in another order.

    Samples are paired by position: rows that were shuffled or left out in one place alone would go
    to others. The keys of `parts` say what a message calls each.
    """
    # Lists have a method of that name.
    indices = {where: getattr(part, "index", None) for where, part in parts.items()}
    known = [(where, x) for where, x in indices.items() if hasattr(x, "equals")]
    for where, index in known[1:]:
        if not index.equals(known[0][1]):
            raise UserError(
                f"{where} and {known[0][0]} have different indices, but row i of one is paired "
                "with row i of the other: bring them into the same order, and "
                ".reset_index(drop=True) both."
            )


def as_numbers(value: Any, where: str) -> np.ndarray:
    """Makes an array of truth values, integers or floats of 64 bits at most.

    Nested lists, an array, or what turns itself into one, as tensors do. `UserError` for rows of
    different lengths, and for what is no number, calls it `where`.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{where} is no array of numbers: {str(error).splitlines()[0]}") from error
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{where} is {array.dtype} {array.shape}: expected numbers [T, d], a row for each step."
        )
    return array.astype(np.float64) if array.dtype.itemsize > 8 else array


def pad(rows: Sequence[np.ndarray], steps: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pads sequences behind their ends with zeros.

    N sequences `[T, d]`, or token ids `[T]`, become `[N, T, d]` or `[N, T]`, of `steps` steps at
    least; a sequence without a step may have any shape. Returned with the N lengths. Raises
    `ValueError` for steps of different widths, naming two samples.
    """
    lengths = np.array([len(row) for row in rows])
    first = next((i for i, row in enumerate(rows) if len(row)), 0)
    shape = rows[first].shape[1:]
    kind = np.result_type(*[row for row in rows if len(row)] or rows)
    padded = np.zeros((len(rows), max(steps, lengths.max()), *shape), kind)
    for i, row in enumerate(rows):
        if len(row) and row.shape[1:] != shape:
            raise ValueError(
                f"sample {i} has steps of {row.shape[1:]}, but sample {first} of {shape}"
            )
        padded[i, : len(row)] = row if len(row) else 0
    return padded, lengths


def require_unicode(texts: Sequence[str], name: Callable[[int], str]) -> None:
    """Raises `UserError` for text i that cannot be stored; the message calls it `name(i)`."""
    for i, text in enumerate(texts):
        if "\0" in text:
            raise UserError(f"{name(i)} holds the character NUL, which an array of text may lose.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{name(i)} holds a character that Unicode does not have (half of a surrogate "
                f"pair, at {error.start})."
            ) from error


def corpus_of(
    splits: Mapping[str, Split],
    *,
    source: Source = _IN_MEMORY,
    label_names: Sequence[str] = (),
    integers: bool = False,
    aligned: Sequence[str] | None = None,
) -> Corpus:
    """Makes a corpus of splits.

    Its digest covers the arrays, not their storage: a recompressed copy is the same corpus.

    Args:
        label_names: names of the labels, or of classes stored as whole numbers.
        integers: says that labels are stored as whole numbers.
        aligned: modalities that share their steps; () if none do, None if that is not known.

    Raises:
        UserError: if splits are empty or do not fit together, or the aligned modalities do not.
        ValueError: if the label names do not fit.
    """
    digest, headers = hashlib.sha256(), {}
    aligned = None if aligned is None else tuple(aligned)
    digest.update(repr((*label_names, integers, aligned)).encode())
    for name, split in splits.items():
        digest.update(name.encode())
        arrays = {"label": split.labels, "id": split.ids, "raw_text": split.raw_text}
        arrays |= {"text_segments": split.segments, "text_pieces": split.pieces}
        arrays |= {**split.features, **{f"{m}_mask": mask for m, mask in split.masks.items()}}
        arrays |= {f"{m}_times": times for m, times in split.times.items()}
        arrays |= {"word_origin": split.word_origin}
        for part, array in arrays.items():
            if array is not None:
                update_digest(digest, part, array)
        if split.words is not None:
            digest.update(json.dumps(split.words.tolist()).encode())
        described = {}
        if split.labels is not None:
            described = describe_labels(split.labels, integers=integers, names=label_names)
        headers[name] = SplitHeader(
            size=len(split),
            shapes={m: (*x.shape[1:], 0)[:2] for m, x in split.features.items()},
            dtypes={m: x.dtype.name for m, x in split.features.items()},
            masked=frozenset(split.masks),
            has_raw_text=split.raw_text is not None,
            transcripts=count_transcripts(split.raw_text),
            words=0 if split.words is None else split.words.shape[1],
            **described,
        )
    return Corpus(
        source=source,
        digest=digest.hexdigest(),
        headers=headers,
        ids={name: split.ids.tolist() for name, split in splits.items()},
        read=splits.__getitem__,
        aligned=aligned,
    )


def update_digest(digest: Any, name: str, array: np.ndarray) -> None:
    """Continues a digest of `hashlib` with an array: its name, type, shape and content."""
    array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
    digest.update(array.data)


def with_embedded(
    corpus: Corpus, embed: Callable[[Split, str], Split], embedding: Embedding
) -> Corpus:
    """Returns a corpus of which a modality is made anew as its splits are read, to be saved.

    `embed(split, its name)` returns the split with that modality's features; `embedding` says how.
    """
    changed, made = copy.copy(corpus), embedding.modality
    others = tuple(one for one in corpus.source.embeddings if one.modality != made)
    changed.source = dataclasses.replace(corpus.source, embeddings=(*others, embedding))
    has_other_steps = made != "text" or embedding.pool == "pieces"
    if has_other_steps and corpus.aligned is not None:
        changed.aligned = tuple(m for m in corpus.aligned if m != made)

    def read(name: str) -> Split:
        split = embed(corpus.split(name), name)
        dropped = {made} if has_other_steps else set()
        times = {m: x for m, x in split.times.items() if m not in dropped}
        return dataclasses.replace(split, times=times)

    changed.split = read
    return changed
