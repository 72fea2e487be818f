"""Finds the splits in the pickles of a corpus, and turns their values into arrays.

    a file: {train, valid (or dev, val), test} -> the content of a split
    a file: the content of a split; of the one that the file is named for, else of all
    a folder: train.pkl, valid.pkl (or dev, val), test.pkl, each the content of a split

Each may be compressed with gzip, also by its name (train.pkl.gz). A pickle has no index, so all of
it is read into memory. The readers of the formats know what the content of a split means.

Functions that read a value take `where`, the beginning of a sentence about it: the file, the split
and the value's name; they raise `UserError` for a value of another type or shape.
"""

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Collection
from typing import Any

import numpy as np

from msajax.corpus.corpus import SPLIT_NAMES, SPLITS
from msajax.corpus.pickles import NoPickle, read_pickle
from msajax.errors import UserError, reading

logger = logging.getLogger(__name__)

WHOLE = "all"
"""The name of all samples, in a corpus without splits."""

MODALITIES = {
    **dict.fromkeys(("text", "glove"), "text"),
    **dict.fromkeys(("audio", "acoustic", "covarep"), "audio"),
    **dict.fromkeys(("video", "vision", "visual", "facet"), "video"),
}
"""Modalities by the names that files have for them."""

LABELS = ("label", "labels", "regression_labels", "y")

_SUFFIXES = (".pkl", ".pickle", ".pk", ".p")
_SHOWN = 6  # keys of a dict that a message quotes
_NUMBERS = {int, float, bool}
_MOST_PARTS = 8  # of an id
_LARGEST_TEXT = 1 << 30  # bytes; in a numpy array every string takes as much as the longest


@dataclasses.dataclass(frozen=True)
class Pickled:
    """Holds the content of a corpus's pickles."""

    path: str
    # The content by split, in the order of `SPLITS`, or of all samples as `WHOLE`. A reader removes
    # a split before it reads it, so that memory need not hold all twice.
    trees: dict[str, Any]

    def where(self, split: str) -> str:
        """Returns how the name of something in a split begins, for a message."""
        return f"{self.path}: " if split == WHOLE else f"{self.path}: {split}/"


def read_pickled(path: str, glove_path: str) -> Pickled | None:
    """Reads the pickles at a path, each once; returns None if there is none.

    Files of a folder that are not read are logged, but for the word vectors, which formats read.

    Raises:
        UserError: for a pickle that cannot be read, and for two of the same split.
    """
    if os.path.isdir(path):
        trees = _read_folder(path, glove_path)
        return Pickled(path, trees) if trees else None
    try:
        tree = read_pickle(path)
    except NoPickle:
        return None
    if splits := _splits(path, tree):
        return Pickled(path, splits)
    # A part of a corpus, as test.pkl, can then be predicted.
    stem, _ = _stem_and_suffix(path)
    return Pickled(path, {SPLIT_NAMES.get(stem, WHOLE): tree})


def _read_folder(folder: str, glove_path: str) -> dict[str, Any]:
    candidates: dict[str, list[str]] = {name: [] for name in SPLITS}
    others: list[str] = []
    for name in list_folder(folder):
        stem, suffix = _stem_and_suffix(name)
        file = os.path.join(folder, name)
        if stem in SPLIT_NAMES and suffix in _SUFFIXES and os.path.isfile(file):
            candidates[SPLIT_NAMES[stem]].append(file)
        elif os.path.realpath(file) != os.path.realpath(glove_path):
            others.append(name)
    files: dict[str, str] = {}
    trees: dict[str, Any] = {}
    for split in SPLITS:
        for file in candidates[split]:
            if split in files:
                raise UserError(f"{files[split]} and {file} are both the split {split!r}.")
            with contextlib.suppress(NoPickle):
                trees[split] = read_pickle(file)
                files[split] = file
    if files:
        log_unread(folder, others)
    for split, tree in trees.items():
        if _splits(files[split], tree):
            raise UserError(
                f"{files[split]} holds splits, but in a folder it is itself the split {split!r}: "
                "name the file in data.path."
            )
    return trees


def _stem_and_suffix(path: str) -> tuple[str, str]:
    """Returns the parts of a file's name in lower case: `train`, `.pkl` for `Train.pkl.gz`."""
    return os.path.splitext(os.path.basename(path).lower().removesuffix(".gz"))


def _splits(path: str, tree: Any) -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {}
    named: dict[str, str] = {}
    for key in tree:
        if isinstance(key, str) and (split := SPLIT_NAMES.get(key.lower())):
            if split in named:
                raise UserError(f"{path}: {named[split]!r} and {key!r} are both the split {split}.")
            named[split] = key
    if named and len(named) < len(tree):
        logger.info("%s: %d entries beside the splits are not read.", path, len(tree) - len(named))
    return {split: tree[named[split]] for split in SPLITS if split in named}


def describe(value: Any) -> str:
    """Describes a value of a pickle, for a message."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        keys = [repr(key[:30]) for key in value if isinstance(key, str)]
        more = ", …" if len(value) > _SHOWN else ""
        return f"a dict of {', '.join(keys[:_SHOWN]) or len(value)}{more}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def list_folder(folder: str) -> list[str]:
    """Returns the names of a folder, sorted."""
    with reading(folder):
        return sorted(os.listdir(folder))


def log_unread(path: str, names: Collection[str]) -> None:
    """Logs the names of fields or files that are not read."""
    if names:
        shown = ", ".join(repr(name[:50]) for name in sorted(names)[:20])
        logger.info("%s: not read: %s.", path, shown)


# --- values ---


def read_ids(value: Any, where: str) -> np.ndarray:
    """Reads ids `[N]` str from text, bytes, numbers, or lists like `[video, start, end]`.

    Such a list becomes `video[start-end]`, which people can read and which tells the video.
    """
    return _strings([_id(part, where) for part in _entries(value, where)], where)


def read_texts(value: Any, where: str) -> np.ndarray:
    """Reads transcripts `[N]` str from text or bytes, or from lists of words."""
    return _strings([_as_text(part, where) for part in _entries(value, where)], where)


def read_word_list(value: Any, where: str) -> list[str] | None:
    """Reads the words of a list or array of text or bytes; returns None for any other value."""
    words = value.tolist() if isinstance(value, np.ndarray) else value
    if type(words) not in (list, tuple) or not all(isinstance(w, str | bytes) for w in words):
        return None
    return [_as_text(word, where) for word in words]


def read_label_rows(value: Any, where: str) -> np.ndarray:
    """Reads labels `[N, K]`, of the type stored, from (N,), (N, 1), (N, 1, 1) or (N, K) numbers."""
    labels = as_array(value, where)
    columns = labels.shape[1:]
    if labels.ndim == 0 or 0 in columns or sum(size > 1 for size in columns) > 1:
        raise UserError(
            f"{where} is {describe(labels)}; expected numbers (N,), (N, 1), (N, 1, 1) or (N, K)."
        )
    return labels.reshape(len(labels), math.prod(columns))


def read_features(value: Any, where: str) -> np.ndarray:
    """Reads features `[N, T, d]` float32, or token ids `[N, T]` of the type stored.

    Real numbers (N, d) are features of one step, `[N, 1, d]`. Values beyond float32 become
    infinite, as preparation would make them in any case.
    """
    array = as_array(value, where)
    is_tokens = array.dtype.kind in "iu" and array.ndim == 2
    if array.dtype.kind == "f" and array.ndim == 2:
        array = array[:, None]
    if not is_tokens and (array.dtype.kind not in "fiu" or array.ndim != 3):
        raise UserError(
            f"{where} is {describe(array)}; expected numbers (N, T, d) or (N, d), or token "
            "ids: whole numbers (N, T)."
        )
    if 0 in array.shape[1:]:
        raise UserError(f"{where} is {describe(array)}; steps and features must be 1 or more.")
    if is_tokens:
        return np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return to_float32(array)


def as_array(value: Any, where: str) -> np.ndarray:
    """Makes one dense array `[len(value), ...]` of numbers, arrays, or (object arrays of) lists.

    Truth values, integers or floats; an array of them stays as it is.
    """
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return np.asarray(value)
    if type(value) in _NUMBERS:
        return as_array([value], where).reshape(())
    if type(value) in (list, tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        items = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else value
        shape = value.shape if isinstance(value, np.ndarray) else (len(value),)
        kinds = set(map(type, items))
        if kinds <= _NUMBERS:
            # Without a type numpy would turn large integers into floats or objects.
            exact = np.int64 if int in kinds else np.bool_
            try:
                array = np.array(items, np.float64 if float in kinds or not kinds else exact)
            except OverflowError as error:
                raise UserError(
                    f"{where} holds an integer that does not fit into 64 bits."
                ) from error
        else:
            parts = [as_array(item, where) for item in items]
            shapes = sorted({part.shape for part in parts})
            if len(shapes) > 1:
                raise UserError(
                    f"{where} holds arrays of the shapes {shapes[0]} and {shapes[-1]}; "
                    "expected equal shapes. Of sequences of different lengths msajax.save_corpus "
                    "makes a corpus."
                )
            array = np.stack(parts)
        return array.reshape((*shape, *array.shape[1:]))
    raise UserError(f"{where} holds a {type(value).__name__} where numbers are expected.")


def to_float32(array: np.ndarray) -> np.ndarray:
    """Turns numbers into float32; what is too large for it becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array, np.float32)


def to_whole(array: np.ndarray, where: str) -> np.ndarray:
    """Turns whole numbers of 0 or more, of whatever type, into int32; refuses other numbers."""
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int32)
    if not (whole == array).all() or (whole < 0).any():
        raise UserError(f"{where} holds a number that is not a whole one from 0 to 2**31 - 1.")
    return whole


def _entries(value: Any, where: str) -> list[Any]:
    if isinstance(value, np.ndarray) and value.ndim and value.size <= _MOST_PARTS * len(value):
        return value.tolist()
    if type(value) in (list, tuple):
        return list(value)
    raise UserError(f"{where} is {describe(value)}; expected a list with an entry for each sample.")


def _id(part: Any, where: str) -> str:
    if isinstance(part, np.ndarray | np.generic) and part.size <= _MOST_PARTS:
        part = part.tolist()
    if type(part) in (list, tuple) and 1 <= len(part) <= _MOST_PARTS:
        first, *others = (_id(item, where) for item in part)
        return f"{first}[{'-'.join(others)}]" if others else first
    if isinstance(part, str | bytes):
        return _as_text(part, where)
    if type(part) is int and abs(part) < 1 << 64:
        return str(part)
    if type(part) is float:
        return str(int(part)) if part.is_integer() else f"{part:.7g}"
    raise UserError(f"{where} holds {describe(part)} where an id is expected.")


def _as_text(part: Any, where: str) -> str:
    if isinstance(part, np.ndarray):
        part = part.tolist()
    if isinstance(part, str):
        return str(part)
    if isinstance(part, bytes):
        return part.decode(errors="backslashreplace")
    if (words := read_word_list(part, where)) is not None:
        return " ".join(words)
    raise UserError(f"{where} holds {describe(part)} where text is expected.")


def _strings(texts: list[str], where: str) -> np.ndarray:
    longest = max(map(len, texts), default=0)
    if 4 * longest * len(texts) > _LARGEST_TEXT:
        raise UserError(
            f"{where} holds {len(texts)} texts of up to {longest} characters; together they may "
            f"take {_LARGEST_TEXT} bytes."
        )
    return np.array(texts, np.str_)
