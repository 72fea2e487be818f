"""Reads the modalities of samples in memory, `{modality: N sequences}`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.corpus.corpus import describe_width, is_finite, modality_order, require_modest_padding
from msajax.corpus.formats.arrays import NAME, RESERVED
from msajax.corpus.sequences import as_list, as_numbers, is_list, is_missing, pad, require_unicode
from msajax.errors import UserError, printable

_TEXTS = ("text", "raw_text", "words")  # what transcripts and words may be called


@dataclasses.dataclass(frozen=True)
class Modality:
    """Holds a modality of N samples.

    Attributes:
        rows: N sequences: features `[T, d]`, token ids `[T]`, or lists of T words; or one array of
            all that is padded already.
        where: what a message calls it.
        lengths: `[N]`, the steps of each; 0 where the modality is absent.
        least: steps to which they are padded at least, as those are with which they are aligned.
    """

    rows: Any
    where: str
    lengths: np.ndarray
    least: int = 1

    @property
    def steps(self) -> int:
        """The steps to which sequences are padded."""
        return max(self.least, int(self.lengths.max()))

    @property
    def are_words(self) -> bool:
        """Whether the steps are words."""
        return not isinstance(self._first, np.ndarray)

    @property
    def has_mask(self) -> bool:
        """Whether it is known which steps are real; an array that is padded tells by its zeros."""
        return not isinstance(self.rows, np.ndarray)

    @property
    def width(self) -> int:
        """Features per step; 0 for token ids and words."""
        return self._first.shape[1] if not self.are_words and self._first.ndim == 2 else 0

    @property
    def _first(self) -> Any:
        return self.rows[int(self.lengths.argmax())]

    def array(self, rows: np.ndarray) -> np.ndarray:
        """Returns `[n, T, d]` features or `[n, T]` token ids of the samples of n indices."""
        if isinstance(self.rows, np.ndarray):
            return self.rows[rows]
        # Beside a sequence, so that samples that all lack the modality get its width and type.
        return pad([self._first, *(self.rows[i] for i in rows)], self.steps)[0][1:]

    def mask(self, rows: np.ndarray) -> np.ndarray:
        """Returns `[n, T]`, True for the real steps of the samples of n indices."""
        return np.arange(self.steps) < self.lengths[rows, None]

    def facts(self) -> dict[str, float]:
        """Returns width, lengths of the samples that have the modality, and how many have not."""
        there = self.lengths[self.lengths > 0]
        return {
            "width": self.width,
            "shortest": int(there.min()),
            "median": float(np.median(there)),
            "longest": int(there.max()),
            "absent": int((self.lengths == 0).sum()),
        }

    def describe(self, facts: Mapping[str, float]) -> str:
        """Puts `facts` into words."""
        kind = "stand step by step" if self.are_words else describe_width(self.width)
        shortest, longest = facts["shortest"], facts["longest"]
        steps = f"{shortest} to {longest} steps, median {facts['median']:g}"
        if shortest == longest:
            steps = f"{longest} step{'s' * (longest > 1)}"
        absent = f"; absent in {facts['absent']} samples" * bool(facts["absent"])
        padded = "; steps of zeros before the first and after the last other one are padding"
        return f"{kind}, {steps}{absent}{padded * (not self.has_mask)}"

    def warnings(self) -> list[str]:
        """Says what is probably a mistake: values that are no numbers, and zeros as padding."""
        if self.are_words:
            return []
        found = []
        bad = np.array([(~is_finite(row)).sum() for row in self.rows])
        if bad.any():
            found.append(
                f"{self.where} has {bad.sum()} value(s) in {(bad > 0).sum()} sample(s) that are "
                f"NaN, infinite or beyond float32, the first in {self.where}[{bad.argmax()}]: "
                "training and prediction set them to 0."
            )
        if not self.has_mask or self.steps == 1 or np.ptp(self.lengths):
            return found
        ends = sum(not (row[0].any() and row[-1].any()) for row in self.rows)
        if ends:
            found.append(
                f"{self.where} has {self.steps} steps in every sample, and {ends} of "
                f"{len(self.rows)} begin or end with a step of zeros, which counts as real: if it "
                "is padding, cut it off, or give one array [N, T, d] in place of the list."
            )
        return found


def read_modalities(
    sequences: Any, ids: Sequence[str]
) -> tuple[dict[str, Modality], list[str] | None]:
    """Reads modalities in memory.

    Args:
        sequences: `{modality: N sequences}`.
        ids: of the N samples.

    Returns:
        The modalities by name, words among them as `words`; and N transcripts, if there are any.

    Raises:
        UserError: naming the modality and the sample of what is no sequence, or does not fit.
    """
    if not isinstance(sequences, Mapping) or not sequences:
        raise UserError(
            f"sequences is of type {type(sequences).__name__} and names no modality: expected "
            "{modality: list of N arrays [T, d]}, as {'text': [...], 'audio': [...]}."
        )
    found: dict[str, Modality] = {}
    raw_text = None
    for name, value in sequences.items():
        _require_name(name)
        where = f"sequences[{name!r}]"
        rows = _numbers_or_none(value)
        if rows is not None:
            found[name] = _read_array(rows, where)
        else:
            rows = [None if is_missing(row) else row for row in as_list(value, where)]
        if len(rows) != len(ids):
            raise UserError(
                f"{where} has {len(rows)} entries, but the table has {len(ids)} rows: expected one "
                "for each, in their order."
            )
        if name in found:
            continue
        first = next((r for r in rows if r is not None and not (is_list(r) and not len(r))), None)
        if isinstance(first, str):
            raw_text = _read_transcripts(rows, name, raw_text)
        elif name == "words" or _is_words(first):
            if "words" in found or name not in ("text", "words"):
                raise UserError(
                    f"{where} holds words: those of the samples are sequences['words'] alone."
                )
            found["words"] = _read_words(rows, where)
        elif name == "raw_text":
            raise UserError(f"{where} must be a list of transcripts: a string for each sample.")
        else:
            found[name] = _read_rows(rows, where, ids)
    for name, modality in found.items():
        if not modality.lengths.any():
            raise UserError(f"sequences[{name!r}] has no step in any sample: leave it out.")
    if raw_text is None and "words" in found:
        raw_text = [" ".join(filter(None, row)) for row in found["words"].rows]
    order = modality_order(set(found) - {"words"})
    return {m: found[m] for m in (*order, *found.keys() - set(order))}, raw_text


def _require_name(name: Any) -> None:
    """Raises `UserError` for a name that no modality can have in a file."""
    known = isinstance(name, str) and NAME.fullmatch(name) and not name.endswith("_mask")
    if name not in _TEXTS and not (known and name.lower() not in RESERVED):
        raise UserError(
            f"sequences names {printable(repr(name))}, which no modality can be called: expected "
            "letters and digits, no …_mask, and not id or label, which are columns of the table."
        )


def _numbers_or_none(value: Any) -> np.ndarray | None:
    """Returns what is one array of numbers, a tensor too; None for lists, text and columns."""
    if not hasattr(value, "__array__"):
        return None
    array = np.asarray(value)
    return None if array.dtype.kind in "OUS" else array


def _read_array(value: np.ndarray, where: str) -> Modality:
    """Reads one array of all samples, which is padded already."""
    value = as_numbers(value, where)
    are_tokens = value.ndim == 2 and value.dtype.kind in "iu"
    if value.dtype.kind == "b":
        value = value.astype(np.float32)
    if value.ndim == 2 and not are_tokens:
        value = value[:, None]
    if value.ndim != (2 if are_tokens else 3) or 0 in value.shape:
        raise UserError(
            f"{where} is an array {value.shape}: expected a list of N arrays [T, d], or an array "
            "(N, T, d)."
        )
    return Modality(value, where, np.full(len(value), value.shape[1]))


def _read_rows(rows: Sequence[Any], where: str, ids: Sequence[str]) -> Modality:
    """Reads N sequences `[T, d]`, or `[d]` of a single step each, or `[T]` token ids."""
    arrays = [
        np.zeros(0) if row is None else _read_row(row, f"{where}[{i}]", ids[i])
        for i, row in enumerate(rows)
    ]
    first = next((i for i, x in enumerate(arrays) if x.size), 0)
    axes, kind = arrays[first].ndim, arrays[first].dtype.kind
    for i, x in enumerate(arrays):
        same = x.ndim == axes and (axes == 2 or (x.dtype.kind in "iu") == (kind in "iu"))
        if x.size and not same:
            raise UserError(
                f"{where}[{i}] is {x.dtype} {x.shape}, but {where}[{first}] is "
                f"{arrays[first].dtype} {arrays[first].shape}: expected arrays [T, d] of all."
            )
    if axes == 1 and kind in "iu":
        if any((x < 0).any() for x in arrays):
            raise UserError(f"{where} holds a token id below 0.")
    elif axes == 1:
        widths = {len(x) for x in arrays if x.size}
        if len(widths) > 1:
            raise UserError(
                f"{where} holds rows of {min(widths)} to {max(widths)} numbers: expected arrays "
                "[T, d]; steps of a single number are x[:, None]."
            )
        arrays = [x[None] if x.size else x for x in arrays]
    for i, x in enumerate(arrays):
        if x.size and x.shape[1:] != arrays[first].shape[1:]:
            raise UserError(
                f"{where}[{i}], of {printable(ids[i])!r}, is {x.shape[1]} wide, not "
                f"{arrays[first].shape[1]} as {where}[{first}], of {printable(ids[first])!r}: "
                "expected arrays [T, d] with the same d in all samples."
            )
    lengths = np.array([len(x) if x.size else 0 for x in arrays])
    arrays = [x if x.size else x[:0] for x in arrays]
    width = arrays[first].shape[1] if arrays[first].ndim == 2 else 0
    if lengths.any():
        require_modest_padding(where, lengths, lengths, width)
    return Modality(arrays, where, lengths)


def _read_row(row: Any, where: str, id_: str) -> np.ndarray:
    """Reads the sequence of a sample."""
    x = as_numbers(row, f"{where}, of {printable(id_)!r},")
    x = x.astype(np.float32) if x.dtype.kind == "b" else x
    if x.ndim not in (1, 2) or (len(x) and not x.size):
        raise UserError(
            f"{where}, of {printable(id_)!r}, is {x.dtype} {x.shape}: expected numbers [T, d], a "
            "row for each step."
        )
    return x


def _is_words(row: Any) -> bool:
    """Says whether a sequence is of words, of which some may be missing in front."""
    known = (step for step in row if step is not None) if is_list(row) else ()
    return isinstance(next(iter(known), None), str)


def _read_transcripts(rows: Sequence[Any], name: str, before: list[str] | None) -> list[str]:
    where = f"sequences[{name!r}]"
    if before is not None:
        raise UserError(f"{where} holds transcripts, of which there are others: give one of them.")
    if name not in ("text", "raw_text"):
        raise UserError(
            f"{where} holds text: transcripts are sequences['raw_text'], and other modalities "
            "arrays [T, d], which are not read from files."
        )
    for i, row in enumerate(rows):
        if row is not None and not isinstance(row, str):
            raise UserError(
                f"{where}[{i}] is of type {type(row).__name__}, but others are text: expected a "
                "transcript of each sample."
            )
    require_unicode([row or "" for row in rows], lambda i: f"{where}[{i}]")
    return [row or "" for row in rows]


def _read_words(rows: Sequence[Any], where: str) -> Modality:
    words = [[] if row is None else row for row in rows]
    for i, row in enumerate(words):
        if not is_list(row):
            raise UserError(f"{where}[{i}] must be a list of words, as ['so', 'good'].")
        if other := [k for k, word in enumerate(row) if not isinstance(word, str)]:
            raise UserError(
                f"{where}[{i}][{other[0]}] is {printable(repr(row[other[0]]))}: expected a word, "
                "or '' for a step without one."
            )
        require_unicode(row, lambda k, i=i: f"{where}[{i}][{k}]")
    words = [[str(word) for word in row] for row in words]
    return Modality(words, where, np.array([len(row) for row in words]))
