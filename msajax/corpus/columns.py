"""Reads ids, labels and splits of the columns of a table in memory: a data frame, or a dict."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.corpus.corpus import SPLIT_NAMES, SPLITS
from msajax.corpus.folds import deal_by_shares, videos_of
from msajax.corpus.formats.fields import LABELS
from msajax.corpus.labels import MOST_CLASSES
from msajax.corpus.sequences import as_list, is_list, is_missing, require_unicode
from msajax.errors import UserError, printable

_SPLITS = {**SPLIT_NAMES, "validation": "valid"}
_LARGEST = float(np.finfo(np.float32).max)
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


class Table:
    """Reads columns of a data frame of pandas or polars, or of a dict of columns.

    Attributes:
        columns: the names of all columns.
        used: the names of those that were asked for.
        size: N, the number of rows.
    """

    def __init__(self, table: Any) -> None:
        """Keeps the table; raises `UserError` if it is none, or its columns differ in length."""
        names = table.keys() if isinstance(table, Mapping) else getattr(table, "columns", None)
        if names is None or isinstance(table, str):
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
        self.size = next(iter(sizes.values()), 0)
        if not self.size:
            raise UserError("The table has no row: expected one for each sample.")

    def column(self, name: Any, what: str) -> list[Any]:
        """Returns the N values of a column; `what` is the argument that names it.

        Raises:
            UserError: for a column that is not there.
        """
        if name not in self.columns:
            raise UserError(
                f"{what}={printable(repr(name))}: the table has no such column; it has "
                f"{', '.join(map(repr, self.columns))}."
            )
        self.used.add(name)
        return self._values(name)

    def require_same_rows(self, sequences: Mapping[str, Any]) -> None:
        """Raises `UserError` if indices, as pandas has them, put rows in another order.

        Samples are paired by position: rows that were shuffled or left out in one place alone
        would go to others.
        """
        parts = {"the table": self._table}
        if isinstance(self._table, Mapping):
            parts = {f"column {name!r} of the table": self._table[name] for name in self.columns}
        parts |= {f"sequences[{name!r}]": value for name, value in sequences.items()}
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

    def ordered_classes(self, name: str) -> list[str] | None:
        """Returns the names in the order of a column of ordered categories; None for others."""
        kind = getattr(self._table[name], "dtype", None)  # pandas; polars calls it an Enum
        if not getattr(kind, "ordered", type(kind).__name__ == "Enum"):
            return None
        names = as_list(kind.categories, f"The categories of column {name!r}")
        return names if all(isinstance(one, str) for one in names) else None

    def _values(self, name: Any) -> list[Any]:
        return as_list(self._table[name], f"Column {name!r} of the table")


def read_ids(values: Sequence[Any], column: str) -> list[str]:
    """Reads the ids of the samples: text or whole numbers, each once.

    Raises:
        UserError: naming the row of an id that is missing, of another type, or there twice.
    """
    ids = _names(values, f"Column {column!r}, the id,")
    first: dict[str, int] = {}
    for i, id_ in enumerate(ids):
        if (earlier := first.setdefault(id_, i)) != i:
            raise UserError(
                f"Column {column!r} has the id {printable(id_)!r} twice, in the rows {earlier} and "
                f"{i} (from 0): each sample needs an id of its own."
            )
    return ids


def _names(values: Sequence[Any], where: str) -> list[str]:
    """Reads text or whole numbers as text; raises `UserError` for a row of something else."""
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


# --- splits ---


def read_splits(values: Sequence[Any], column: str) -> np.ndarray:
    """Reads the split `[N]` of each sample: train, valid (or dev, val, validation) or test.

    Raises:
        UserError: naming the row of another value.
    """
    found = []
    for i, value in enumerate(values):
        name = _SPLITS.get(value.strip().lower()) if isinstance(value, str) else None
        if name is None:
            raise UserError(
                f"split={column!r}: row {i} (from 0) says {printable(repr(value))}; expected one "
                f"of {', '.join(_SPLITS)}."
            )
        found.append(name)
    return np.array(found)


def draw_splits(groups: Sequence[str], shares: Any, seed: int, by: str) -> np.ndarray:
    """Draws a split `[N]` for each sample, so that all samples of a group are in the same one.

    Args:
        groups: the group of each of the N samples: its video, or its speaker.
        shares: of the groups, for train, valid and test; they sum to 1, and 0 leaves a split out.
        seed: of the draw.
        by: what the message calls the groups.

    Raises:
        UserError: for other shares, and for fewer groups than splits.
    """
    numbers = list(shares) if is_list(shares) else []
    are_numbers = len(numbers) == len(SPLITS) and all(
        isinstance(s, _NUMBERS) and 0 <= s <= 1 for s in numbers
    )
    if not are_numbers or abs(sum(numbers) - 1) > 1e-6:
        raise UserError(
            f"split={printable(repr(shares))}: expected the name of a column, or three shares that "
            "sum to 1, of train, valid and test, as (0.7, 0.1, 0.2)."
        )
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise UserError(f"seed={seed!r}: expected a whole number of 0 or more.")
    units, wanted = sorted(set(groups)), sum(share > 0 for share in numbers)
    dealt = deal_by_shares(units, dict(zip(SPLITS, numbers, strict=True)), int(seed))
    if not all(dealt.values()):
        raise UserError(
            f"split={shares!r}: the {len(groups)} samples make {len(units)} group(s) by {by}, too "
            f"few for {wanted} splits that share none: give a share of 0 to one of them, or group= "
            "another column (with the column of ids, samples are drawn one by one)."
        )
    owner = {unit: split for split, names in dealt.items() for unit in names}
    return np.array([owner[group] for group in groups])


def read_groups(table: Table, group: str | None, ids: Sequence[str]) -> tuple[list[str], str]:
    """Returns the group of each sample, and what groups are: the video that ids name, or a column.

    Raises:
        UserError: for a column that is not there, a row without a group, and ids that name no
            video if there is no column.
    """
    if group is not None:
        return _names(table.column(group, "group"), f"Column {group!r}, the group,"), group
    instead = "name the column of videos or speakers: group='speaker'"
    return videos_of(ids, "Shares are drawn by video, but", instead), "video"


def require_apart(groups: Sequence[str], splits: np.ndarray, column: str) -> None:
    """Raises `UserError` if samples of one group are in two splits."""
    first: dict[str, str] = {}
    for group, split in zip(groups, splits.tolist(), strict=True):
        if (other := first.setdefault(group, split)) != split:
            raise UserError(
                f"group={column!r}: samples of {printable(group)!r} are in {other} and in {split}; "
                "leave group out to keep these splits, or give shares to draw others."
            )


# --- labels ---


@dataclasses.dataclass(frozen=True)
class Labels:
    """Holds the labels of N samples.

    Attributes:
        values: `[N, K]` float64; classes as whole numbers from 0.
        known: `[N]` bool, whether a sample has labels.
        names: of the K columns or of the classes; () for the usual ones.
        are_classes: whether they are to be stored as whole numbers.
    """

    values: np.ndarray
    known: np.ndarray
    names: tuple[str, ...]
    are_classes: bool


def read_labels(table: Table, label: Any, ids: Sequence[str]) -> Labels | None:
    """Reads labels of one or several columns.

    Args:
        table: the table.
        label: a name, several names, or `{name: classes in their order}`; None for no labels.
        ids: of the samples, for messages.

    Returns:
        Scores of columns of numbers; classes of one column of text, in the order that is given, or
        that of its ordered categories, else of the alphabet; or of whole numbers from 0.

    Raises:
        UserError: naming the column and the row that is no finite number.
    """
    if label is None:
        return None
    columns = [label] if isinstance(label, str) else list(label) if _are_names(label) else []
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
    return Labels(values, known, () if usual else tuple(columns), are_classes)


def _are_names(label: Any) -> bool:
    one = isinstance(label, Mapping) and len(label) == 1
    return (one or is_list(label)) and all(isinstance(name, str) for name in label)


def _read_classes(values: Sequence[Any], column: str, classes: Any, known: np.ndarray) -> Labels:
    """Reads classes by their names; numbers that are stored as text are refused."""
    for i in np.flatnonzero(known):
        if not isinstance(values[i], str):
            raise UserError(
                f"Column {column!r} of labels is {printable(repr(values[i]))} in row {i} (from 0), "
                "but text in other rows: expected names of classes, or numbers alone."
            )
    there = sorted({value for value, is_known in zip(values, known, strict=True) if is_known})
    if all(map(_is_number, there)):
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
    return Labels(np.array(coded, np.float64), known, tuple(names), True)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def labels_of(labels: Labels | None, rows: np.ndarray, split: str) -> np.ndarray | None:
    """Returns the labels of a split's samples, or None if none of them has any.

    Raises:
        UserError: if only some of them have.
    """
    if labels is None or not labels.known[rows].any():
        return None
    if missing := collections.Counter(labels.known[rows].tolist())[False]:
        raise UserError(
            f"{missing} of {len(rows)} samples of {split} have no label, the first in row "
            f"{rows[~labels.known[rows]][0]} (from 0): leave these rows out, or all labels of the "
            "split."
        )
    return labels.values[rows]
