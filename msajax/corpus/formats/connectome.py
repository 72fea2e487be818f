"""Reads a folder of connectomes: tables of samples and frequency bands, and files of matrices.

    samples.csv   id,label,age,gender,file[,split]: a row for each sample
    bands.csv     low_hz,high_hz: a row for each of the F frequency bands
    *.npy         (F, C, C) numbers, one file a sample: how strongly C channels are connected

A sample has F steps, which are its tokens: the edges of the band in Hz, the age in years and the
gender (0 or 1), as `model.positions = drofe` reads them, then the C (C - 1) / 2 numbers above the
diagonal of the band's matrix, row by row.
"""

import collections
import csv
import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from msajax.checks import number_of
from msajax.config import DataConfig
from msajax.corpus.corpus import SPLIT_NAMES, SPLITS, Corpus, Source, Split, SplitHeader, is_finite
from msajax.corpus.folds import SHARES, deal_by_shares, offer_folds, video_of
from msajax.corpus.formats import arrays
from msajax.corpus.labels import read_labels
from msajax.corpus.predictions import read_text
from msajax.corpus.synthetic import DEMOGRAPHICS
from msajax.errors import UserError, printable, reading

logger = logging.getLogger(__name__)

_SAMPLES, _BANDS = "samples.csv", "bands.csv"
_COLUMNS, _EDGES = ("id", "label", "age", "gender", "file"), ("low_hz", "high_hz")
_OLDEST = 130  # years
_GENDERS = (
    {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0},
    {"f": 0.0, "female": 0.0, "m": 1.0, "male": 1.0},
)
_LARGEST = 1 << 28  # bytes of a table
_MODALITY = "connectome"
_EQUAL = 1e-5  # of the largest number of a matrix: what rounding leaves of symmetry
_RECORDING = re.compile(r"(.+?)(?:\$_\$.*|\[[^\[\]]*\])", re.DOTALL)


class _Connectome(NamedTuple):
    """Holds a row of `samples.csv`."""

    id: str
    label: str  # the text in the table; "" if it is unknown
    age: float  # years
    gender: float  # 0 or 1
    path: str  # the file of the matrices
    split: str  # train, valid or test; "" if the table has no such column


def matches(path: str) -> bool:
    """Says whether `path` is a folder with both tables."""
    return all(os.path.isfile(os.path.join(path, name)) for name in (_SAMPLES, _BANDS))


def open_connectome(path: str, data: DataConfig) -> Corpus:
    """Opens a folder: reads every file once, for the digest and the checks, and keeps the tables.

    The digest covers what the tables say, the splits and the content of the matrices.

    Of `data`, `split_seed` counts for tables without splits, whose people are dealt at random, and
    `allow_loss` for matrices that are not symmetric.

    Raises:
        UserError: for tables that cannot be read or hold a value that is not of its kind or there
            twice, too few people to split, and matrices that are damaged, of another shape, not
            finite or not symmetric.
    """
    # What the tables say, which is small and stays.
    table, bands = os.path.join(path, _SAMPLES), os.path.join(path, _BANDS)
    edges, samples = _read_bands(path), _with_people(table, _read_samples(path))
    labels, names = _read_labels(table, samples)
    rows_of = _rows_of_splits(table, samples, data)
    said = [edges.tolist(), [sample[:4] for sample in samples], rows_of]
    digest = hashlib.sha256(json.dumps(said).encode())

    # Every matrix, which is checked and left on disk.
    channels, one_sided = 0, 0
    for sample in samples:
        header = _checked_header(sample, len(edges), bands, digest)
        channels = channels or header.shape[1]
        if header.shape[1] != channels:
            raise UserError(
                f"{sample.path} has {header.shape[1]} channels, but {samples[0].path} has "
                f"{channels}."
            )
        one_sided += _count_one_sided(sample.path, data.allow_loss)
    if one_sided:
        logger.warning(
            "%s: %d matrices are not symmetric: only what lies above their diagonals is read.",
            *(path, one_sided),
        )

    # The splits, whose tokens are made when they are asked for.
    ids = np.array([sample.id for sample in samples])
    headers = {}
    width = DEMOGRAPHICS + channels * (channels - 1) // 2
    for split, rows in rows_of.items():
        of_split, stored = [labels[k] for k in rows], None
        if any(label is not None for label in of_split):
            if None in of_split:
                raise UserError(
                    f"{table}: {of_split.count(None)} of {len(rows)} samples of {split} have no "
                    "label; expected one in each row of a split, or in none."
                )
            stored = np.array(of_split)  # whole numbers where all of them are
        headers[split] = SplitHeader(
            size=len(rows),
            shapes={_MODALITY: (len(edges), width)},
            dtypes={_MODALITY: "float32"},
            **read_labels(path, split, stored, ids[rows], names),
        )

    def read(split: str) -> Split:
        rows, header = rows_of[split], headers[split]
        tokens = np.empty((len(rows), len(edges), width), np.float32)
        tokens[..., :2] = edges
        for row, k in zip(tokens, rows, strict=True):
            row[:, 2], row[:, 3] = samples[k].age, samples[k].gender
            matrices = _map_matrices(samples[k].path)
            above = np.triu_indices(matrices.shape[-1], 1)
            if len(matrices) != len(edges) or len(above[0]) != width - DEMOGRAPHICS:
                raise UserError(f"{samples[k].path} changed while in use.")
            row[:, DEMOGRAPHICS:] = matrices[:, *above]
        stored = np.array([labels[k] for k in rows], float) if header.label_names else None
        return Split(
            ids=ids[rows],
            features={_MODALITY: tokens},
            masks={},
            labels=None if stored is None else stored[:, None],
        )

    return Corpus(
        source=Source(path, "connectome folder", repairs={"one_sided_matrices": one_sided}),
        digest=digest.hexdigest(),
        headers=headers,
        ids={split: ids[rows].tolist() for split, rows in rows_of.items()},
        read=read,
        aligned=(),
    )


# --- tables ---


def _read_bands(folder: str) -> np.ndarray:
    """Reads the edges of the frequency bands in Hz, `[F, 2]` float64."""
    path = os.path.join(folder, _BANDS)
    rows = _read_table(path, _EDGES)
    edges = np.array([[number_of(row[name]) for name in _EDGES] for row in rows])
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


def _read_samples(folder: str) -> list[_Connectome]:
    path = os.path.join(folder, _SAMPLES)
    rows = _read_table(path, _COLUMNS)
    value, times = collections.Counter(row["id"] for row in rows).most_common(1)[0]
    if times > 1:
        raise UserError(f"{path}: {times} rows have the id {printable(value)!r}.")
    # Those that most rows have, so that what is refused is the odd row.
    genders = max(_GENDERS, key=lambda known: sum(row["gender"].lower() in known for row in rows))
    # Each value by itself, then the file, which no other row may have.
    samples, id_of_file = [], {}
    for row in rows:
        age, split, where = number_of(row["age"]), row.get("split"), f"{path}: {row['id'][:100]!r}"
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
        file = os.path.normpath(row["file"])
        is_outside = os.path.isabs(file) or file.split(os.sep)[0] == os.pardir
        if not row["file"] or is_outside or "\0" in row["file"]:
            raise UserError(
                f"{where} has the file {printable(row['file'])!r}; expected the path of an .npy "
                "file in this folder, counted from it."
            )
        file = os.path.join(folder, file)
        if not os.path.isfile(file):  # nor a pipe, which would be waited for
            raise UserError(f"{where} has the file {printable(row['file'])!r}, which is not there.")
        first = id_of_file.setdefault(os.path.realpath(file), row["id"])
        if first != row["id"]:
            raise UserError(
                f"{where} has the file {printable(row['file'])!r}, which is that of "
                f"{first[:100]!r}, too; expected a file of its own for each row."
            )
        split = SPLIT_NAMES[split] if split is not None else ""
        samples.append(_Connectome(row["id"], row["label"], age, gender, file, split))
    return samples


def _read_table(path: str, columns: Sequence[str]) -> list[dict[str, str]]:
    with reading(path):
        if os.path.getsize(path) > _LARGEST:
            raise UserError(f"{path} is larger than {_LARGEST} bytes, too large for a table.")
        text = read_text(path)
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    try:
        lines = [line for line in csv.reader(io.StringIO(text), delimiter=separator) if line]
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


# --- people and splits ---


def _with_people(table: str, samples: list[_Connectome]) -> list[_Connectome]:
    """Renames samples so that `video_of` an id is the person, and of no others.

    Recordings of one person are named `person[…]` or `person$_$…`. Elsewhere ids like `sub_01` are
    segments of one video, and `17` is of no video; here they become `sub_01[0]` and `17[0]`.
    """
    given, found = {sample.id for sample in samples}, []
    for sample in samples:
        if _person(sample) != video_of(sample.id):
            name = f"{sample.id}[0]"
            if name in given:
                raise UserError(
                    f"{table} has the ids {sample.id[:100]!r} and {name[:100]!r}, which name the "
                    "same recording of the same person: rename one of them."
                )
            sample = sample._replace(id=name)
        found.append(sample)
    return found


def _person(sample: _Connectome) -> str:
    found = _RECORDING.fullmatch(sample.id)
    return found[1] if found else sample.id


def _rows_of_splits(
    table: str, samples: Sequence[_Connectome], data: DataConfig
) -> dict[str, list[int]]:
    split_of = [sample.split for sample in samples]
    if not split_of[0]:
        people = {_person(sample) for sample in samples}
        if len(people) < len(SPLITS):
            raise UserError(
                f"{table} has no column split, and fewer than {len(SPLITS)} people to split at "
                "random: add one with train, valid or test in every row."
            )
        dealt = deal_by_shares(sorted(people), SHARES, data.split_seed)
        split_of_person = {person: name for name, found in dealt.items() for person in found}
        split_of = [split_of_person[_person(sample)] for sample in samples]
        if not data.folds:  # which pool all of them again
            logger.warning(
                "%s has no column split: %s people were split at random with seed %d into %s. %s",
                *(table, len(people), data.split_seed),
                ", ".join(f"{len(found)} {name}" for name, found in dealt.items()),
                offer_folds(len(people), "person"),
            )
    rows = {name: [k for k, split in enumerate(split_of) if split == name] for name in SPLITS}
    return {name: found for name, found in rows.items() if found}


# --- labels ---


def _read_labels(
    table: str, samples: Sequence[_Connectome]
) -> tuple[list[float | int | None], tuple[str, ...]]:
    """Reads numbers as they are, names as their place among all sorted, and no label as None."""
    texts = [sample.label for sample in samples]
    given = {text for text in texts if text}
    numbers = {
        text: int(text) if re.fullmatch(r"[+-]?[0-9]{1,15}", text) else number_of(text, None)
        for text in given
    }
    words = sorted(text for text, number in numbers.items() if number is None)
    if not words:
        if not all(isinstance(number, int) for number in numbers.values()):
            numbers = {text: float(number) for text, number in numbers.items()}
        return [numbers.get(text) for text in texts], ()
    if len(words) < len(given):
        number = min(given - set(words))
        raise UserError(
            f"{table} has the labels {printable(words[0])!r} and {printable(number)!r}; expected "
            "numbers alone, or names of classes alone."
        )
    if len(words) == 1:
        raise UserError(
            f"{table}: every label is {printable(words[0])!r}; expected two classes or more, or "
            "an empty label in every row, of samples that are only to be scored."
        )
    if not all(word.isprintable() for word in words):
        raise UserError(f"{table} has a label with characters that cannot be printed.")
    return [words.index(text) if text else None for text in texts], tuple(words)


# --- matrices ---


def _checked_header(sample: _Connectome, bands: int, table: str, digest: Any) -> arrays.ArrayHeader:
    """Checks the shape and type of a file, and adds its content to the digest."""
    with arrays.in_one_sentence(f"{sample.path} is damaged or no .npy file", *arrays.DAMAGED):
        with open(sample.path, "rb") as file:
            size = os.path.getsize(sample.path)
            header = arrays.check_array(sample.path, file, size, sample.id, digest)
    shape = header.shape
    square = len(shape) == 3 and shape[1] == shape[2] >= 2
    if header.dtype.kind not in "fiu" or not square or shape[0] != bands:
        raise UserError(
            f"{sample.path} is {header.dtype} of shape {shape}; expected numbers ({bands}, C, C): "
            f"a square matrix for each band of {table}."
        )
    return header


def _count_one_sided(path: str, allowed: bool) -> int:
    """Counts matrices of a file that are not symmetric; one of zeros below counts as symmetric."""
    matrices = np.asarray(_map_matrices(path), np.float64)
    above = np.triu_indices(matrices.shape[1], 1)
    upper, lower = matrices[:, *above], matrices.swapaxes(1, 2)[:, *above]
    bad = np.argwhere(~is_finite(upper))
    if len(bad):
        band, place = bad[0].tolist()
        raise UserError(
            f"{path}: {len(bad)} number(s) above the diagonals are not finite float32 numbers, the "
            f"first in band {band} between channels {above[0][place]} and {above[1][place]} (from "
            "0)."
        )
    largest = np.abs(upper).max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        differs = ~(np.abs(upper - lower) <= _EQUAL * largest).all(axis=1)
    differs &= (lower != 0).any(axis=1)
    if differs.any() and not allowed:
        raise UserError(
            f"{path}: the matrix of band {differs.argmax()} (from 0) is not symmetric, and only "
            "what lies above its diagonal is read: --config.data.allow_loss=true accepts that."
        )
    return int(differs.sum())


def _map_matrices(path: str) -> np.ndarray:
    with arrays.in_one_sentence(f"{path} changed or went bad while in use", *arrays.DAMAGED):
        return np.load(path, mmap_mode="r", allow_pickle=False)
