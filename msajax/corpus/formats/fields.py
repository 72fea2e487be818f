"""Turns the values of a pickle into arrays: ids, texts, labels, features.

Every function takes `where`, the beginning of a sentence about the value: the file, the split and
the value's name.
"""

import math
from typing import Any

import numpy as np

from msajax.corpus.formats.pickled import describe
from msajax.errors import UserError

MODALITIES = {
    **dict.fromkeys(("text", "glove"), "text"),
    **dict.fromkeys(("audio", "acoustic", "covarep"), "audio"),
    **dict.fromkeys(("video", "vision", "visual", "facet"), "video"),
}
"""Modalities by the names that files have for them."""

LABELS = ("label", "labels", "regression_labels", "y")

_NUMBERS = {int, float, bool}
_MOST_PARTS = 8  # of an id
_LARGEST_TEXT = 1 << 30  # bytes; in a numpy array every string takes as much as the longest


def sort_fields(where: str, fields: dict, own: dict[str, str]) -> tuple[dict[str, Any], set[str]]:
    """Sorts the fields of a split by what they are: id, label, raw_text or a modality.

    Args:
        where: how a sentence about the split begins.
        fields: values by the names of the file; None is no value.
        own: further names, in lower case, and what they are.

    Returns:
        `{what it is: (name, value)}`, and the names of all other fields.

    Raises:
        UserError: for two fields that are the same.
    """
    kinds = {"id": "id", "ids": "id", "raw_text": "raw_text"}
    kinds |= dict.fromkeys(LABELS, "label") | MODALITIES | own
    found: dict[str, Any] = {}
    others = set()
    for name, value in fields.items():
        kind = kinds.get(name.lower()) if isinstance(name, str) else None
        if kind is None:
            others.add(str(name) if isinstance(name, str) else describe(name))
        elif kind in found:
            raise UserError(f"{where}{found[kind][0]} and {where}{name} are both the {kind}.")
        elif value is not None:
            found[kind] = name, value
    return found, others


def read_ids(value: Any, where: str) -> np.ndarray:
    """Reads ids `[N]` str from text, bytes, numbers, or lists like `[video, start, end]`.

    Such a list becomes `video[start-end]`, which people can read and which tells the video.

    Raises:
        UserError: for a value of another type.
    """
    return _strings([_id(part, where) for part in _entries(value, where)], where)


def read_texts(value: Any, where: str) -> np.ndarray:
    """Reads transcripts `[N]` str from text or bytes, or from lists of words.

    Raises:
        UserError: for a value of another type.
    """
    return _strings([_text(part, where) for part in _entries(value, where)], where)


def read_words(value: Any, where: str) -> list[str] | None:
    """Reads the words of a list or array of text or bytes; returns None for any other value."""
    words = value.tolist() if isinstance(value, np.ndarray) else value
    if type(words) not in (list, tuple) or not all(isinstance(w, str | bytes) for w in words):
        return None
    return [_text(word, where) for word in words]


def read_label_rows(value: Any, where: str) -> np.ndarray:
    """Reads labels `[N, K]`, of the type stored, from (N,), (N, 1), (N, 1, 1) or (N, K) numbers.

    Raises:
        UserError: for other shapes, and for what is no number.
    """
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

    Raises:
        UserError: for other shapes and types.
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
    """Makes one dense array of numbers, arrays, or (object arrays of) lists of them.

    Returns:
        `[len(value), ...]` truth values, integers or floats; an array of them as it is.

    Raises:
        UserError: if shapes differ, or something is no number.
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
                    "expected equal shapes."
                )
            array = np.stack(parts)
        return array.reshape((*shape, *array.shape[1:]))
    raise UserError(f"{where} holds a {type(value).__name__} where numbers are expected.")


def to_float32(array: np.ndarray) -> np.ndarray:
    """Turns numbers into float32; what is too large for it becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array, np.float32)


def to_whole(array: np.ndarray, where: str) -> np.ndarray:
    """Turns whole numbers of 0 or more, of whatever type, into int32.

    Raises:
        UserError: for any other number.
    """
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int32)
    if not (whole == array).all() or (whole < 0).any():
        raise UserError(f"{where} holds a number that is not a whole one from 0 to 2**31 - 1.")
    return whole


def same_size(arrays: dict[str, np.ndarray], where: str) -> int:
    """Returns the number of samples that all fields of a split have.

    Raises:
        UserError: for two fields that disagree, naming them.
    """
    first, *others = arrays
    for name in others:
        if len(arrays[name]) != len(arrays[first]):
            raise UserError(
                f"{where}{name} has {len(arrays[name])} rows, but {where}{first} has "
                f"{len(arrays[first])}."
            )
    return len(arrays[first])


def _entries(value: Any, where: str) -> list[Any]:
    """Returns the entries of a list, tuple or array, one for each sample."""
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
        return _text(part, where)
    if type(part) is int and abs(part) < 1 << 64:
        return str(part)
    if type(part) is float:
        return str(int(part)) if part.is_integer() else f"{part:.7g}"
    raise UserError(f"{where} holds {describe(part)} where an id is expected.")


def _text(part: Any, where: str) -> str:
    if isinstance(part, np.ndarray):
        part = part.tolist()
    if isinstance(part, str):
        return str(part)
    if isinstance(part, bytes):
        return part.decode(errors="backslashreplace")
    if (words := read_words(part, where)) is not None:
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
