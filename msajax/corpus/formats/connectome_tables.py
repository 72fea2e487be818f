"""Reads the tables of a folder of connectomes: `samples.csv` and `bands.csv`."""

import collections
import csv
import io
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from msajax.corpus.corpus import SPLIT_NAMES
from msajax.corpus.foreign import read_text
from msajax.errors import UserError, printable

SAMPLES, BANDS = "samples.csv", "bands.csv"
_COLUMNS, _EDGES = ("id", "label", "age", "gender", "file"), ("low_hz", "high_hz")
_OLDEST = 130  # years
_GENDERS = (
    {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0},
    {"f": 0.0, "female": 0.0, "m": 1.0, "male": 1.0},
)
_LARGEST = 1 << 28  # bytes of a table


class Sample(NamedTuple):
    """Holds a row of `samples.csv`.

    Attributes:
        id: of the sample.
        label: as it stands there; "" if it is unknown.
        age: in years.
        gender: 0 or 1.
        path: of its matrices.
        split: train, valid or test; "" if the table has no such column.
    """

    id: str
    label: str
    age: float
    gender: float
    path: str
    split: str


def read_bands(folder: str) -> np.ndarray:
    """Reads the edges of the frequency bands in Hz, `[F, 2]` float64.

    Raises:
        UserError: for a table that cannot be read, and for edges that make no band.
    """
    path = os.path.join(folder, BANDS)
    rows = _read(path, _EDGES)
    edges = np.array([[_number(row[name]) for name in _EDGES] for row in rows])
    low, high = edges.T
    bad = ~((low >= 0) & (low < high) & (high < np.inf))
    if bad.any():
        k = int(bad.argmax())
        found = " to ".join(repr(printable(rows[k][name])) for name in _EDGES)
        raise UserError(
            f"{path}: band {k} (from 0) is {found}; expected low_hz of 0 or more, and high_hz "
            "above it, in Hz."
        )
    return edges


def read_samples(folder: str) -> list[Sample]:
    """Reads and checks the rows of `samples.csv`.

    Raises:
        UserError: for a table that cannot be read, an id or a file that is there twice, and for an
            id, an age, a gender, a split or a file that is none.
    """
    path = os.path.join(folder, SAMPLES)
    rows = _read(path, _COLUMNS)
    value, times = collections.Counter(row["id"] for row in rows).most_common(1)[0]
    if times > 1:
        raise UserError(f"{path}: {times} rows have the id {printable(value)!r}.")
    # Those that most rows have, so that what is refused is the odd row.
    genders = max(_GENDERS, key=lambda known: sum(row["gender"].lower() in known for row in rows))
    samples, id_of_file = [], {}
    for row in rows:
        age, split, where = _number(row["age"]), row.get("split"), f"{path}: {row['id'][:100]!r}"
        if not row["id"] or not row["id"].isprintable():
            raise UserError(f"{path}: {row['id'][:100]!r} is no id: give each row one to print.")
        if not 0 <= age <= _OLDEST:
            raise UserError(
                f"{where} has the age {printable(row['age'])!r}; expected years, 0 to {_OLDEST}."
            )
        gender = genders.get(row["gender"].lower())
        if gender is None:
            raise UserError(
                f"{where} has the gender {printable(row['gender'])!r}; expected 0 or 1 in all "
                "rows, or f or m in all rows, which count as 0 and 1."
            )
        if split is not None and split not in SPLIT_NAMES:
            raise UserError(
                f"{where} has the split {printable(split)!r}; expected one of "
                f"{', '.join(SPLIT_NAMES)} in every row, or no column of that name."
            )
        file = _place(folder, row["file"], where)
        first = id_of_file.setdefault(os.path.realpath(file), row["id"])
        if first != row["id"]:
            raise UserError(
                f"{where} has the file {printable(row['file'])!r}, which is that of "
                f"{first[:100]!r}, too; expected a file of its own for each row."
            )
        split = SPLIT_NAMES[split] if split is not None else ""
        samples.append(Sample(row["id"], row["label"], age, gender, file, split))
    return samples


def _place(folder: str, file: str, where: str) -> str:
    """Returns the path of a file that a row names; raises `UserError` unless it is a file there."""
    inside = os.path.normpath(file)
    path = os.path.join(folder, inside)
    if not file or os.path.isabs(inside) or inside.split(os.sep)[0] == os.pardir or "\0" in file:
        raise UserError(
            f"{where} has the file {printable(file)!r}; expected the path of an .npy file in "
            "this folder, counted from it."
        )
    if not os.path.isfile(path):  # nor a pipe, which would be waited for
        raise UserError(f"{where} has the file {printable(file)!r}, which is not there.")
    return path


def _read(path: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Reads the rows of a table as text without the spaces around it.

    Values are separated by commas, or by semicolons or tabs if its first line has more of them.

    Raises:
        UserError: if it cannot be read, lacks one of the columns or has one twice, has no rows, or
            one of another length than its first line.
    """
    try:
        if os.path.getsize(path) > _LARGEST:
            raise UserError(f"{path} is larger than {_LARGEST} bytes, too large for a table.")
        text = read_text(path)
        first = text.partition("\n")[0]
        separator = max(",;\t", key=first.count)
        lines = [line for line in csv.reader(io.StringIO(text), delimiter=separator) if line]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as CSV: {error}.") from error
    names = [name.strip().lower() for name in lines[0]] if lines else []
    if missing := [name for name in columns if name not in names]:
        raise UserError(f"{path} lacks the column {missing[0]!r}; expected {','.join(columns)}.")
    if twice := [name for name in (*columns, "split") if names.count(name) > 1]:
        raise UserError(f"{path} has the column {twice[0]!r} twice.")
    rows = [[value.strip() for value in line] for line in lines[1:]]
    if not rows:
        raise UserError(f"{path} has no row below its first line.")
    for k, row in enumerate(rows):
        if len(row) != len(names):
            raise UserError(
                f"{path}: row {k + 1} below the first line has {len(row)} values, but that line "
                f"has {len(names)}."
            )
    return [dict(zip(names, row, strict=True)) for row in rows]


def _number(text: str) -> float:
    """Returns the number that a text is; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")
