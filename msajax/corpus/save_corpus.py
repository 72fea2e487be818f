"""Writes a corpus of what a program has in memory: a table, and lists of sequences."""

import collections
import dataclasses
import difflib
import logging
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from msajax.checks import number_of
from msajax.config import ModelConfig
from msajax.corpus.corpus import (
    SPLIT_NAMES,
    SPLITS,
    Corpus,
    Source,
    Split,
    count_transcripts,
    describe_width,
    is_finite,
    modality_order,
    pad_words,
    require_modest_padding,
)
from msajax.corpus.folds import deal_by_shares, videos_of
from msajax.corpus.formats import native, save
from msajax.corpus.formats.arrays import NAME, RESERVED, TIMES
from msajax.corpus.formats.pickled import LABELS
from msajax.corpus.in_memory import (
    as_list,
    as_numbers,
    corpus_of,
    is_list,
    is_missing,
    pad,
    require_same_rows,
    require_unicode,
)
from msajax.corpus.labels import MOST_CLASSES, label_kind, require_names
from msajax.errors import UserError, printable
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)

_SPLITS = {**SPLIT_NAMES, "validation": "valid"}
_LARGEST = float(np.finfo(np.float32).max)
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_TEXTS = ("text", "raw_text", "words")  # what transcripts and words may be called


@dataclasses.dataclass(frozen=True, repr=False)
class SavedCorpus:
    """Says what `save_corpus` wrote; printed, it is the sentences.

    Attributes:
        sizes: `{split: samples}`.
        modalities: `{modality: facts}`: its `width`, 0 for token ids and words; its `shortest`,
            `median` and `longest` sequence in steps, of the samples that have it; and how many
            samples it is `absent` in.
        sentences: put all of that into words, and labels, alignment and how splits were made.
    """

    path: str
    sizes: Mapping[str, int]
    modalities: Mapping[str, Mapping[str, float]]
    sentences: Sequence[str]

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


def save_corpus(
    path: str | os.PathLike,
    table: Any,
    sequences: Mapping[str, Any],
    *,
    label: str | Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    split: str | Sequence[float] = "split",
    id: str = "id",
    group: str | None = None,
    seed: int = 0,
    aligned: Sequence[str] | bool | None = None,
    overwrite: bool = False,
    **unknown: Any,
) -> SavedCorpus:
    """Writes a corpus of a table and lists of sequences: padded, with masks, checked.

    Args:
        path: a native archive to write, if it ends in .npz; else a folder of arrays, which is read
            as it is used.
        table: a data frame of pandas or polars, or a dict of columns; a row for each of N samples.
        sequences: `{modality: N arrays [T, d]}` of any lengths T, in the order of the table's
            rows; all their steps are real, also steps of zeros, and None or an array without a
            step is an absent modality. A modality may also be lists of N vectors `[d]`, a single
            step each, or of N lists of token ids; or one array `[N, T, d]` that is padded with
            zeros already. N strings as `text` (or `raw_text`) are transcripts, N lists of strings
            as `text` (or `words`) are words step by step.
        label: the column of labels, or several. Real numbers are scores; text, and whole numbers
            from 0 in a single column, are classes. `{column: names}` gives the classes of text an
            order, which else is that of ordered categories, or of the alphabet. None writes no
            labels; a split in which all labels are missing has none.
        split: the column that says train, valid (or dev, val, validation) or test; or the shares of
            train, valid and test that are drawn, as (0.7, 0.1, 0.2): whole groups, none of which
            is in two splits. A share of 0 leaves that split out.
        id: the column of ids; each sample has its own.
        group: the column of videos or speakers by which shares are drawn; None for the video that
            ids name, as in `video[3]`. Beside a column of splits it is checked that no group is in
            two of them.
        seed: decides the draw of splits.
        aligned: the modalities whose step i is of the same moment; True for all, False for none,
            None for those that are equally long in every sample.
        overwrite: replaces a native archive at `path`.
        **unknown: refused, with the name that was probably meant.

    Returns:
        What was written, in numbers and sentences.

    Raises:
        UserError: for whatever does not fit together, naming the argument and the sample; nothing
            is written then.
    """
    how = {"label": label, "split": split, "id": id, "group": group, "seed": seed}
    how["aligned"] = aligned
    for name in unknown:
        known = (*how, "overwrite")
        near = difflib.get_close_matches(name, known, 1, 0) or known[:1]
        raise UserError(f"save_corpus has no argument {name!r}: did you mean {near[0]!r}?")
    path = require_free(path, overwrite)
    corpus, saved = corpus_of_table(Source(path, "native npz"), table, sequences, **how)
    save(corpus, path)
    return saved


def corpus_of_table(
    source: Source,
    table: Any,
    sequences: Mapping[str, Any],
    *,
    label: str | Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    split: str | Sequence[float] = "split",
    id: str = "id",
    group: str | None = None,
    seed: int = 0,
    aligned: Sequence[str] | bool | None = None,
    beside: Mapping[str, Sequence[np.ndarray]] = MappingProxyType({}),
) -> tuple[Corpus, SavedCorpus]:
    """Makes a corpus of what `save_corpus` takes, and says what it holds.

    Args:
        beside: N arrays each, in the order of the table's rows: `word_origin` `[T]`, and times
            `[T, 2]` by modality, of the words as `text`.

    Raises:
        UserError: for whatever does not fit together, naming the argument and the sample.
    """
    # The table: ids, labels and splits; then the sequences in the order of its rows.
    rows = _Table(table)
    ids = _read_ids(rows.column(id, "id"), id)
    labels = _read_labels(rows, label, ids)
    splits, how = _read_or_draw_splits(rows, split, group, ids, seed)
    modalities, raw_text = _read_modalities(sequences, ids)
    given = {f"sequences[{name!r}]": value for name, value in sequences.items()}
    require_same_rows(rows.parts() | given)
    shared, why = _find_aligned(modalities, aligned, ids)

    # What shares its steps is padded to the same length, words with the text that they are of.
    moved = {"words" if m == "text" and m not in modalities else m for m in shared}
    moved |= {"words"} if "text" in shared and "words" in modalities else set()
    steps = max((modalities[m].steps for m in moved), default=1)
    modalities |= {m: dataclasses.replace(modalities[m], least=steps) for m in moved}

    # A split at a time, padded.
    made = {}
    for name in SPLITS:
        chosen = np.flatnonzero(splits == name)
        if not chosen.size:
            continue
        features = {m: x.array(chosen) for m, x in modalities.items() if not x.are_words}
        words = modalities.get("words")
        made[name] = Split(
            ids=np.array(ids)[chosen],
            features=features,
            masks={m: modalities[m].mask(chosen) for m in features if modalities[m].has_mask},
            labels=_labels_of(labels, chosen, name),
            raw_text=None if raw_text is None else np.array([raw_text[i] for i in chosen], np.str_),
            words=words and pad_words([words.rows[i] for i in chosen], words.steps),
            times={
                m: _pad_beside(arrays, chosen, modalities.get(m, words), np.nan)
                for m, arrays in beside.items()
                if m != "word_origin"
            },
            word_origin=_pad_beside(beside["word_origin"], chosen, words, np.int8(-1))
            if words and "word_origin" in beside
            else None,
        )
    names = () if labels is None else require_names(labels.names, "label")
    try:
        corpus = corpus_of(
            made,
            source=source,
            label_names=names,
            integers=labels is not None and labels.are_classes,
            aligned=shared,
        )
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"The columns of labels have {error}.") from error
    if corpus.modalities == () and not any(h.has_raw_text for h in corpus.headers.values()):
        raise UserError("No sample has a step of any modality: there is nothing to write.")
    # What the caller reads of it.
    left = [repr(name) for name in rows.columns if name not in rows.used]
    unread = f"not read of the table: {', '.join(left)}" if left else ""
    warnings = _words_apart(modalities, ids) if aligned is None else []
    return corpus, _describe_saved(corpus, modalities, raw_text, [why, how, unread], warnings)


def _pad_beside(
    arrays: Sequence[np.ndarray], rows: np.ndarray, modality: "_Modality", filler: Any
) -> np.ndarray:
    """Pads what stands beside the steps of a modality, of the samples of n indices."""
    shape = (len(rows), modality.steps, *arrays[0].shape[1:])
    padded = np.full(shape, filler)
    for row, i in zip(padded, rows, strict=True):
        row[: len(arrays[i])] = arrays[i]
    return padded


def require_free(path: Any, overwrite: bool) -> str:
    """Returns where to write; raises `UserError` for what is there and must not be replaced."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise UserError(f"path={path!r}: expected the name of a file, as 'corpus.npz'.")
    path = os.path.expanduser(os.fspath(path)).rstrip(os.sep)
    ending = os.path.splitext(path)[1]
    if ending not in ("", ".npz"):
        raise UserError(
            f"{path}: a corpus is written as an archive, whose name ends in .npz, or as a folder, "
            f"whose name has no ending; not as {ending}."
        )
    if os.path.lexists(path):
        if not overwrite:
            raise UserError(
                f"{path} is there already: choose another name, or replace an archive with "
                "overwrite=True."
            )
        if not native.matches(path):
            raise UserError(f"{path} is there and no .npz archive: choose another name.")
    return path


# --- the table ---


class _Table:
    """Reads columns of a data frame of pandas or polars, or of a dict of columns."""

    def __init__(self, table: Any) -> None:
        names = table.keys() if isinstance(table, Mapping) else getattr(table, "columns", None)
        if names is None or isinstance(table, str) or hasattr(table, "collect"):  # a LazyFrame
            raise UserError(
                f"table is of type {type(table).__name__}: expected a data frame of pandas or "
                "polars, or a dict of columns."
            )
        self.columns = list(names)
        self.used: set[str] = set()
        self._table = table
        # Columns of a data frame are of one length; those that nobody asks for may be large.
        looked_at = self.columns if isinstance(table, Mapping) else self.columns[:1]
        sizes = {name: len(self._values(name)) for name in looked_at}
        if len(set(sizes.values())) > 1:
            found = ", ".join(f"{size} in {name!r}" for name, size in sizes.items())
            raise UserError(f"The columns of the table differ in length: {found}.")
        if not next(iter(sizes.values()), 0):
            raise UserError("The table has no row: expected one for each sample.")

    def column(self, name: Any, what: str) -> list[Any]:
        if hasattr(name, "__len__") and not isinstance(name, str | tuple):
            raise UserError(
                f"{what} is of type {type(name).__name__}: expected the name of a column."
            )
        if name not in self.columns:
            raise UserError(
                f"{what}={printable(repr(name))}: the table has no such column; it has "
                f"{', '.join(map(repr, self.columns))}."
            )
        self.used.add(name)
        return self._values(name)

    def parts(self) -> dict[str, Any]:
        """Returns what may have an index of its own, by what a message calls it."""
        if not isinstance(self._table, Mapping):
            return {"the table": self._table}
        return {f"column {name!r} of the table": self._table[name] for name in self.columns}

    def ordered_classes(self, name: str) -> list[str] | None:
        """Returns the names in the order of a column of ordered categories; None for others."""
        kind = getattr(self._table[name], "dtype", None)  # pandas; polars calls it an Enum
        if not getattr(kind, "ordered", type(kind).__name__ == "Enum"):
            return None
        names = as_list(kind.categories, f"The categories of column {name!r}")
        return names if all(isinstance(one, str) for one in names) else None

    def _values(self, name: Any) -> list[Any]:
        return as_list(self._table[name], f"Column {name!r} of the table")


def _read_ids(values: Sequence[Any], column: str) -> list[str]:
    ids = _read_names(values, f"Column {column!r}, the id,")
    first: dict[str, int] = {}
    for i, id_ in enumerate(ids):
        if (earlier := first.setdefault(id_, i)) != i:
            raise UserError(
                f"Column {column!r} has the id {printable(id_)!r} twice, in the rows {earlier} and "
                f"{i} (from 0): each sample needs an id of its own."
            )
    return ids


def _read_names(values: Sequence[Any], where: str) -> list[str]:
    names = []
    for i, value in enumerate(values):
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)  # whole numbers beside a missing one are floats
        known = isinstance(value, str | int | np.integer) and not isinstance(value, bool)
        names.append(str(value).strip() if known else "")
        if not names[-1]:
            raise UserError(
                f"{where} is {printable(repr(value))} in row {i} (from 0): expected text or a "
                "whole number."
            )
    require_unicode(names, lambda i: f"{where} in row {i} (from 0)")
    return names


def _read_or_draw_splits(
    table: _Table, split: Any, group: str | None, ids: Sequence[str], seed: int
) -> tuple[np.ndarray, str]:
    """Returns the split `[N]` of each sample, and a sentence on how it came there.

    Splits are those of a column, or drawn by shares, so that all samples of a group are in the same
    one. A group is what a column says, or the video that the ids name.
    """
    # Splits that a column names.
    if isinstance(split, str):
        if split not in table.columns:
            there = ", ".join(map(repr, table.columns))
            raise UserError(
                f"split={split!r}: the table has no such column; it has {there}. To draw splits "
                "give shares of train, valid and test, as split=(0.7, 0.1, 0.2)."
            )
        named = []
        for i, value in enumerate(table.column(split, "split")):
            name = _SPLITS.get(value.strip().lower()) if isinstance(value, str) else None
            if name is None:
                raise UserError(
                    f"split={split!r}: row {i} (from 0) says {printable(repr(value))}; expected "
                    f"one of {', '.join(_SPLITS)}."
                )
            named.append(name)
        if group is None:
            return np.array(named), f"splits: those of the column {split!r}"
    # Groups, which splits share none of: those that are named, or those to be drawn.
    if group is None:
        instead = "name the column of videos or speakers: group='speaker'"
        groups, by = videos_of(ids, "Shares are drawn by video, but", instead), "video"
    else:
        groups = _read_names(table.column(group, "group"), f"Column {group!r}, the group,")
        by = group
    if isinstance(split, str):
        first: dict[str, str] = {}
        for unit, name in zip(groups, named, strict=True):
            if (other := first.setdefault(unit, name)) != name:
                raise UserError(
                    f"group={group!r}: samples of {printable(unit)!r} are in {other} and in "
                    f"{name}; leave group out to keep these splits, or give shares to draw others."
                )
        said = f"splits: those of the column {split!r}; no {group} is in two of them"
        return np.array(named), said

    # Shares, by which groups are dealt.
    numbers = list(split) if is_list(split) else []
    are_numbers = len(numbers) == len(SPLITS) and all(
        isinstance(s, _NUMBERS) and 0 <= s <= 1 for s in numbers
    )
    if not are_numbers or abs(sum(numbers) - 1) > 1e-6:
        raise UserError(
            f"split={printable(repr(split))}: expected the name of a column, or three shares that "
            "sum to 1, of train, valid and test, as (0.7, 0.1, 0.2)."
        )
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise UserError(f"seed={seed!r}: expected a whole number of 0 or more.")
    units, wanted = sorted(set(groups)), sum(share > 0 for share in numbers)
    dealt = deal_by_shares(units, dict(zip(SPLITS, numbers, strict=True)), int(seed))
    if not all(dealt.values()):
        raise UserError(
            f"split={split!r}: the {len(groups)} samples make {len(units)} group(s) by {by}, too "
            f"few for {wanted} splits that share none: give a share of 0 to one of them, or group= "
            "another column (with the column of ids, samples are drawn one by one)."
        )
    owner = {unit: name for name, found in dealt.items() for unit in found}
    counts = ", ".join(f"{len(dealt[name])} {name}" for name in SPLITS if name in dealt)
    said = f"splits: drawn by {by} with seed {seed}, none of which is in two: {counts}"
    return np.array([owner[unit] for unit in groups]), said


@dataclasses.dataclass(frozen=True)
class _Labels:
    values: np.ndarray  # `[N, K]` float64; classes as whole numbers from 0
    known: np.ndarray  # `[N]` bool, True for a sample that has labels
    names: tuple[str, ...]  # of the K columns or the classes; () for the usual names
    are_classes: bool  # says that they are to be stored as whole numbers


def _read_labels(table: _Table, label: Any, ids: Sequence[str]) -> _Labels | None:
    """Reads labels of one or several columns: `label` is as `save_corpus` takes it.

    Returns:
        Scores of columns of numbers; classes of one column of text, in the order that is given, or
        that of its ordered categories, else of the alphabet; or of whole numbers from 0.
    """
    if label is None:
        return None
    one = isinstance(label, Mapping) and len(label) == 1
    are_names = (one or is_list(label)) and all(isinstance(name, str) for name in label)
    columns = [label] if isinstance(label, str) else list(label) if are_names else []
    if not columns or len(set(columns)) < len(columns):
        raise UserError(
            f"label={printable(repr(label))}: expected the name of a column, several different "
            "names, or {name: classes}."
        )
    cells = [table.column(name, "label") for name in columns]
    known = np.array([not all(map(is_missing, row)) for row in zip(*cells, strict=True)])
    if not known.any():
        raise UserError(f"Column {columns[0]!r} of labels is empty: leave label out.")
    ordered = table.ordered_classes(columns[0])
    classes = label[columns[0]] if isinstance(label, Mapping) else ordered
    if any(isinstance(value, str) for value in cells[0]) or classes is not None:
        if len(columns) > 1:
            raise UserError(
                f"label={printable(repr(label))}: classes are one column of text, and scores "
                f"columns of numbers, but {columns[0]!r} holds text, and there are {len(columns)}."
            )
        return _read_classes(cells[0], columns[0], classes, known)
    values = np.full((len(ids), len(columns)), np.nan)
    for k, column in enumerate(cells):
        for i in np.flatnonzero(known):
            value = column[i]
            if not isinstance(value, _NUMBERS) or not abs(value) <= _LARGEST:
                raise UserError(
                    f"Column {columns[k]!r} of labels is {printable(repr(value))} in row {i} "
                    f"(from 0), of the sample {printable(ids[i])!r}: expected a finite number."
                )
            values[i, k] = value
    whole = not any(
        isinstance(value, float | np.floating) and not is_missing(value) for value in cells[0]
    )
    found = np.unique(values[known])
    are_classes = len(columns) == 1 and whole and found[0] >= 0 and len(found) <= MOST_CLASSES
    usual = len(columns) == 1 and columns[0].lower() in LABELS
    return _Labels(values, known, () if usual else tuple(columns), are_classes)


def _read_classes(values: Sequence[Any], column: str, classes: Any, known: np.ndarray) -> _Labels:
    for i in np.flatnonzero(known):
        if not isinstance(values[i], str):
            raise UserError(
                f"Column {column!r} of labels is {printable(repr(values[i]))} in row {i} (from 0), "
                "but text in other rows: expected names of classes, or numbers alone."
            )
    there = sorted({value for value, is_known in zip(values, known, strict=True) if is_known})
    if all(number_of(text, None) is not None for text in there):
        raise UserError(
            f"Column {column!r} of labels holds numbers as text, as {there[0]!r}: make numbers of "
            "them, as by .astype(float)."
        )
    names = there if classes is None else as_list(classes, f"label={{{column!r}: …}}")
    if left := [value for value in there if value not in names]:
        raise UserError(
            f"Column {column!r} has the class {printable(left[0])!r}, which is none of "
            f"{printable(str(names))}."
        )
    if not 2 <= len(set(names)) == len(names) <= MOST_CLASSES:
        raise UserError(
            f"Column {column!r} has {len(names)} class(es): expected 2 to {MOST_CLASSES} different "
            f"ones; label={{{column!r}: [names]}} gives all of them."
        )
    numbers = {name: k for k, name in enumerate(names)}
    coded = [[numbers[v] if ok else np.nan] for v, ok in zip(values, known, strict=True)]
    return _Labels(np.array(coded, np.float64), known, tuple(names), True)


def _labels_of(labels: _Labels | None, rows: np.ndarray, split: str) -> np.ndarray | None:
    """Returns the labels of a split's samples, None if none has any; refuses some without."""
    if labels is None or not labels.known[rows].any():
        return None
    if missing := collections.Counter(labels.known[rows].tolist())[False]:
        raise UserError(
            f"{missing} of {len(rows)} samples of {split} have no label, the first in row "
            f"{rows[~labels.known[rows]][0]} (from 0): leave these rows out, or all labels of the "
            "split."
        )
    return labels.values[rows]


# --- the sequences ---


@dataclasses.dataclass(frozen=True)
class _Modality:
    """Holds a modality of N samples."""

    # N sequences: features `[T, d]`, token ids `[T]`, or lists of T words; or one array of all that
    # is padded already
    rows: Any
    where: str  # names it in messages
    lengths: np.ndarray  # `[N]`, the steps of each; 0 where the modality is absent
    least: int = 1  # the fewest steps to which they are padded, as what they are aligned with is

    @property
    def steps(self) -> int:
        return max(self.least, int(self.lengths.max()))

    @property
    def are_words(self) -> bool:
        return not isinstance(self._first, np.ndarray)

    @property
    def has_mask(self) -> bool:
        """Says whether it is known which steps are real; a padded array tells by its zeros."""
        return not isinstance(self.rows, np.ndarray)

    @property
    def width(self) -> int:
        """Returns the features per step; 0 for token ids and words."""
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

    def describe(self) -> tuple[dict[str, float], str]:
        """Returns what `SavedCorpus.modalities` says of it, and that in words."""
        there = self.lengths[self.lengths > 0]
        shortest, longest = int(there.min()), int(there.max())
        facts = {
            "width": self.width,
            "shortest": shortest,
            "median": float(np.median(there)),
            "longest": longest,
            "absent": int((self.lengths == 0).sum()),
        }
        kind = "stand step by step" if self.are_words else describe_width(self.width)
        steps = f"{shortest} to {longest} steps, median {facts['median']:g}"
        if shortest == longest:
            steps = f"{longest} step{'s' * (longest > 1)}"
        absent = f"; absent in {facts['absent']} samples" * bool(facts["absent"])
        padded = "; steps of zeros before the first and after the last other one are padding"
        return facts, f"{kind}, {steps}{absent}{padded * (not self.has_mask)}"

    def warnings(self) -> list[str]:
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


def _read_modalities(
    sequences: Any, ids: Sequence[str]
) -> tuple[dict[str, _Modality], list[str] | None]:
    """Reads modalities by name, words among them as `words`; and N transcripts if there are any."""
    if not isinstance(sequences, Mapping) or not sequences:
        raise UserError(
            f"sequences is of type {type(sequences).__name__} and names no modality: expected "
            "{modality: list of N arrays [T, d]}, as {'text': [...], 'audio': [...]}."
        )
    found: dict[str, _Modality] = {}
    raw_text = None
    for name, value in sequences.items():
        is_name = isinstance(name, str) and NAME.fullmatch(name)
        is_name = is_name and not name.endswith(("_mask", TIMES))
        if name not in _TEXTS and not (is_name and name.lower() not in RESERVED):
            raise UserError(
                f"sequences names {printable(repr(name))}, which no modality can be called: "
                "expected letters and digits, no …_mask or …_times, and not id or label, which are "
                "columns of the table."
            )
        where = f"sequences[{name!r}]"
        # One array of all samples, a tensor too; lists, text and columns are read one by one.
        rows = np.asarray(value) if hasattr(value, "__array__") else None
        if rows is not None and rows.dtype.kind not in "OUS":
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
        # A list of transcripts, of words, or of sequences of numbers, as its first entry tells.
        first = next((r for r in rows if r is not None and not (is_list(r) and not len(r))), None)
        if isinstance(first, str):
            raw_text = _read_transcripts(rows, name, raw_text)
        elif name == "words" or _has_words(first):
            if "words" in found or name not in ("text", "words"):
                raise UserError(
                    f"{where} holds words: those of the samples are sequences['words'] alone."
                )
            found["words"] = _read_words(rows, where)
        elif name == "raw_text":
            raise UserError(f"{where} must be a list of transcripts: a string for each sample.")
        else:
            found[name] = _read_sequences(rows, where, ids)
    for name, modality in found.items():
        if not modality.lengths.any():
            raise UserError(f"sequences[{name!r}] has no step in any sample: leave it out.")
    if raw_text is None and "words" in found:
        raw_text = [" ".join(filter(None, row)) for row in found["words"].rows]
    order = modality_order(set(found) - {"words"})
    return {m: found[m] for m in (*order, *found.keys() - set(order))}, raw_text


def _read_array(value: np.ndarray, where: str) -> _Modality:
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
    return _Modality(value, where, np.full(len(value), value.shape[1]))


def _read_sequences(rows: Sequence[Any], where: str, ids: Sequence[str]) -> _Modality:
    """Reads N sequences `[T, d]`, or `[d]` of a single step each, or `[T]` token ids."""
    # Numbers of one or two axes, alike in all samples that have a step.
    arrays = []
    for i, row in enumerate(rows):
        called = f"{where}[{i}], of {printable(ids[i])!r},"
        x = np.zeros(0) if row is None else as_numbers(row, called)
        x = x.astype(np.float32) if x.dtype.kind == "b" else x
        if x.ndim not in (1, 2) or (len(x) and not x.size):
            raise UserError(
                f"{called} is {x.dtype} {x.shape}: expected numbers [T, d], a row for each step."
            )
        arrays.append(x)
    first = next((i for i, x in enumerate(arrays) if x.size), 0)
    axes, kind = arrays[first].ndim, arrays[first].dtype.kind
    for i, x in enumerate(arrays):
        same = x.ndim == axes and (axes == 2 or (x.dtype.kind in "iu") == (kind in "iu"))
        if x.size and not same:
            raise UserError(
                f"{where}[{i}] is {x.dtype} {x.shape}, but {where}[{first}] is "
                f"{arrays[first].dtype} {arrays[first].shape}: expected arrays [T, d] of all."
            )
    # One axis: token ids, or a single step of d numbers.
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
    # The same width everywhere, and no sequence that padding would make of all memory.
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
    return _Modality(arrays, where, lengths)


def _has_words(row: Any) -> bool:
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


def _read_words(rows: Sequence[Any], where: str) -> _Modality:
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
    return _Modality(words, where, np.array([len(row) for row in words]))


# --- what is said of them ---


def _find_aligned(
    modalities: Mapping[str, _Modality], given: Any, ids: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """Finds the modalities that share their steps, as `save_corpus` takes them, and says why.

    Words are those of `text`, and share its steps where both are there.
    """
    lengths = {("text" if m == "words" else m, m): x.lengths for m, x in modalities.items()}
    names = modality_order({name for name, _ in lengths})
    if given is None:
        return _equally_long(lengths, names)
    if not isinstance(given, bool | str) and not is_list(given):
        raise UserError(f"aligned={given!r}: expected names of modalities, True, False or None.")
    if isinstance(given, bool):
        given = names if given and len(names) > 1 else ()
    given = [given] if isinstance(given, str) else list(given)
    if len(given) == 1 or any(m not in names or given.count(m) > 1 for m in given):
        raise UserError(
            f"aligned={given!r}: expected two or more of {', '.join(names)}, each once."
        )
    chosen = {key: x for key, x in lengths.items() if key[0] in given}
    for key, x in list(chosen.items())[1:]:
        first, other = next(iter(chosen.items()))
        apart = (x != other) & (x > 0) & (other > 0)
        if apart.any():
            i = int(apart.argmax())
            raise UserError(
                f"aligned={tuple(given)!r}: {printable(ids[i])!r} (sample {i}) has {other[i]} "
                f"step(s) of {first[1]}, but {x[i]} of {key[1]}; aligned sequences are equally "
                "long."
            )
    said = f"aligned: {', '.join(given)}, as asked for" if given else "aligned: none, as asked for"
    return tuple(given), said


def _equally_long(
    lengths: Mapping[tuple[str, str], np.ndarray], names: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """Finds the first modalities that are equally long in every sample, and longer than a step."""

    def same(*pair: str) -> bool:
        both = [x for (name, _), x in lengths.items() if name in pair]
        return all(
            ((x == y) | (x == 0) | (y == 0)).all() and x.max() > 1 for x in both for y in both
        )

    for m in names:
        group = tuple(other for other in names if same(m, other))
        if len(group) > 1:
            return group, (
                f"aligned: {', '.join(group)}, which are equally long in every sample; "
                "aligned=False says that they are not"
            )
    return (), "aligned: none"


def _words_apart(modalities: Mapping[str, _Modality], ids: Sequence[str]) -> list[str]:
    if not {"words", "text"} <= modalities.keys():
        return []
    words, text = modalities["words"], modalities["text"]
    apart = (words.lengths != text.lengths) & (words.lengths > 0) & (text.lengths > 0)
    i = int(apart.argmax())
    return [
        f"{words.where} has {words.lengths[i]} step(s) in {printable(ids[i])!r}, the first of "
        f"{apart.sum()} such sample(s), but {text.where} has {text.lengths[i]}: so words share "
        "their steps with nothing; if that is meant, aligned=False says it."
    ] * bool(apart.any())


def _describe_saved(
    corpus: Corpus,
    modalities: Mapping[str, _Modality],
    raw_text: Sequence[str] | None,
    others: Sequence[str],
    warnings: Sequence[str],
) -> SavedCorpus:
    sizes = {name: header.size for name, header in corpus.headers.items()}
    found = ", ".join(f"{size} {name}" for name, size in sizes.items())
    sentences, facts, warnings = [f"{corpus.path}: {found}"], {}, list(warnings)
    for m, x in modalities.items():
        facts[m], said = x.describe()
        sentences.append(f"{m} {said}")
        warnings += x.warnings()
    for warning in warnings:
        logger.warning("%s: %s", corpus.path, warning)
        sentences.append(f"warning: {warning}")
    if raw_text is not None:
        found = count_transcripts(np.array(raw_text))
        sentences.append(f"raw_text: transcripts of {found} samples")
    return SavedCorpus(
        corpus.path, sizes, facts, [*sentences, _describe_labels(corpus), *filter(None, others)]
    )


def _describe_labels(corpus: Corpus) -> str:
    labelled = [name for name, header in corpus.headers.items() if header.label_names]
    if not labelled:
        return "labels: none; such a corpus can be predicted, but not trained on"
    try:
        task = label_kind(corpus, ModelConfig())
    except UserError as error:  # one class alone
        return f"labels: {error}"
    where = "" if len(labelled) == len(corpus.headers) else f", in {' and '.join(labelled)} alone"
    whole = "; whole numbers are classes, .astype(float) makes them scores" * bool(
        TASKS[task.kind].has_classes and task.names == tuple(map(str, task.classes))
    )
    return f"labels: {task.kind} of {printable(', '.join(task.names))}{where}{whole}"
