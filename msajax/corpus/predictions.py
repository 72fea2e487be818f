"""Writes and reads predictions, for every mode, as CSV (UTF-8, RFC 4180, 9 significant digits).

Tables of other tools are read, too, whatever separates and names their columns.
"""

import contextlib
import csv
import dataclasses
import functools
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from msajax.corpus.corpus import Split
from msajax.corpus.on_demand import take_rows
from msajax.errors import UserError, printable
from msajax.files import replacing
from msajax.metrics.calibration import Calibration, Intervals
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS
from msajax.tasks.base import finite, named_by

_LONGEST_FIELD = 2**31 - 1  # a transcript may be long
_SEPARATORS = (",", ";", "\t", "|")

# What other tools call the columns, in lower case and without spaces, dashes, dots or underscores.
_SPELLINGS = {
    "id": (
        *("id", "ids", "sampleid", "sample", "segmentid", "segment", "utteranceid", "uttid"),
        *("clip", "filename", "file", "name", "key"),
    ),
    "label": (
        *("label", "labels", "groundtruth", "truth", "true", "truelabel", "truevalue", "gt"),
        *("gold", "goldlabel", "target", "targets", "actual", "annotation", "reference"),
        *("y", "ytrue", "ytest", "expected"),
    ),
    "score": (
        *("score", "scores", "prediction", "predictions", "predicted", "pred", "preds"),
        *("ypred", "yhat", "output", "outputs", "estimate", "predictedscore", "predictedlabel"),
        *("predictedvalue", "modeloutput"),
    ),
}
_ROLES = {spelling: role for role, names in _SPELLINGS.items() for spelling in names}


def read_table(path: str) -> tuple[list[str], list[dict[str, str]]]:
    """Reads the names of the columns of a table and its rows, as a file of predictions has them.

    The separator is the comma, semicolon, tab or bar under which most columns of the first line are
    known. Columns in the spellings of other tools are renamed `id`, `label` and `score` where the
    file has none of that name; `video_id` and `clip_id` make an id together.

    Raises:
        UserError: if the file cannot be read, or does not say which column is which.
    """
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty: expected columns such as id, label and score.")
    first = text.lstrip("\r\n").partition("\n")[0]
    separator = max(_SEPARATORS, key=lambda s: _known_columns(first, s))
    lines = re.split("\r\n|\n|\r", text)
    # Other tools write sentences between tabs as they are: a quotation mark in one quotes nothing.
    plain = separator == "\t" and len({line.count("\t") for line in lines if line}) == 1
    quoting = {"quoting": csv.QUOTE_NONE} if plain else {}
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, **quoting)
        rows = list(reader)
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as CSV: {error}.") from error
    columns = [name.strip() for name in reader.fieldnames or []]
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise UserError(f"{path} has the column {twice[0]!r} twice.")
    # The columns that other tools call otherwise are renamed; this program's own names count first.
    new = list(columns)
    for role in _SPELLINGS:
        if role in columns or any(name.startswith(f"{role}_") for name in columns):
            continue
        found = [i for i, name in enumerate(columns) if _ROLES.get(_plain_name(name)) == role]
        if len(found) > 1:
            either = " or ".join(repr(columns[i]) for i in found)
            raise UserError(f"{path}: is {either} the {role}? Name that column {role!r}.")
        for i in found:
            new[i] = role
    named = dict(zip(reader.fieldnames or [], new, strict=True))
    renamed = [{named.get(name, name): value for name, value in row.items()} for row in rows]
    normal = {_plain_name(name): name for name in columns}
    if "id" not in new and {"videoid", "clipid"} <= normal.keys():
        video, clip = normal["videoid"], normal["clipid"]
        renamed = [{"id": f"{row[video]}$_${row[clip]}", **row} for row in renamed]
        new = ["id", *new]
    return new, renamed


def read_text(path: str) -> str:
    """Reads a CSV's text, UTF-8 or UTF-16 with a mark; raises `UserError`, naming a bad line."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read as CSV: {error.strerror}.") from error
    # Spreadsheets put a mark first, and some write two bytes a character.
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeError as error:
        raise UserError(_no_unicode(path, b"" if wide else content)) from error


def _no_unicode(path: str, content: bytes) -> str:
    """Says why a file cannot be read: spreadsheets save text in older encodings, too."""
    if b"\0" in content or b"\x1a" in content:
        return f"{path} cannot be read as CSV: it is no text."
    for number, line in enumerate(re.split(b"\r\n|\n|\r", content), 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            word = re.search(rb"[^\s,;|]*\Z", line[: error.start])[0]
            word += re.match(rb"[^\s,;|]*", line[error.start :])[0]
            return (
                f"{path}, line {number}: {printable(word.decode('latin-1'))!r} cannot be read as "
                "CSV, because it is stored as Latin-1 and not as UTF-8: save the file anew as "
                "UTF-8 (in a spreadsheet: 'CSV UTF-8')."
            )
    return f"{path} cannot be read as CSV: its text is neither whole UTF-16 nor UTF-8."


def _plain_name(name: str) -> str:
    return re.sub(r"[\s_.-]+", "", name.casefold())


def _known_columns(line: str, separator: str) -> tuple[int, int]:
    """Counts the columns of a first line whose names are known, and all of them."""
    try:
        columns = next(csv.reader([line.rstrip("\r")], delimiter=separator), [])
    except csv.Error:
        return 0, 0
    known = [
        name for name in columns if _plain_name(name) in _ROLES or re.match("(score|label)_", name)
    ]
    return len(known), len(columns)


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Holds scores of samples that can be measured, as read from a file."""

    kind: str  # a name in `msajax.tasks.TASKS`
    names: tuple[str, ...]  # of the K outputs or classes
    scores: np.ndarray  # `[S, N, K]` float64, S random seeds
    # `[N, K]` float64; `[N, 1]` of classes, counted from 0, and of next_token, where they are 0,
    # because its scores are measures already
    labels: np.ndarray
    ids: np.ndarray  # `[N]` str; empty where the file has none


class Scored(NamedTuple):
    """Holds a split that was scored."""

    split: Split  # prepared
    scores: np.ndarray  # `[S, N, K]`
    weights: np.ndarray  # `[S, N, M]`, a weight for each modality
    # Made by preparation, `{modality: {kind: count}}`
    repairs: Mapping[str, Mapping[str, int]] = {}

    def rows(self, chosen: np.ndarray) -> "Scored":
        """Returns some of the samples, by `[N]` bool."""
        split = take_rows(self.split, chosen)
        return Scored(split, self.scores[:, chosen], self.weights[:, chosen], self.repairs)


def require_no_other_file(path: str) -> None:
    """Raises `UserError` for an existing file that holds anything but predictions."""
    if os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as file:
            if file.read(3) != b"id,":
                raise UserError(
                    f"{path} is there already and holds no predictions: choose another name."
                )


def write_predictions(
    path: str,
    scored: Sequence[Scored],
    seeds: Sequence[int],
    spec: CorpusSpec,
    calibration: Calibration | None = None,
) -> None:
    """Writes one row per sample, whole file or none; raises `UserError` if it cannot be written.

    `score` and the weights are means over seeds; `score_sd` is their ddof-1 deviation, empty for a
    single seed. A label is empty when unknown. Several outputs have a column `label_<name>` and
    `score_<name>` each; classes have `label` and `predicted`, the class with the largest mean
    probability, and `score_<class>`, that probability; ordered levels have `level` beside these,
    the expected one from 0; several labels have `label_<name>` and `predicted_<name>`, 0 or 1, and
    `score_<name>`, the probability.

    With intervals, `low` and `high` (`low_<name>`, `high_<name>`) are the ends of that of the mean,
    and `interval` says on which samples they rest. A temperature adds nothing, and changes nothing:
    `score_<class>` stays the mean of the columns of its seeds.

    The splits stand one after another; `calibration` is of the mean over the S `seeds`.
    """
    has_text = any(split.raw_text is not None for split, *_ in scored)
    intervals = calibration if isinstance(calibration, Intervals) else None
    task = TASKS[spec.label_kind]
    columns = task.score_columns(spec.label_names)
    header = ["id", *task.label_columns(spec.label_names), *columns]
    if intervals:
        header += [c.replace("score", end, 1) for c in columns for end in ("low", "high")]
        header += ["interval"]
    for column in columns:
        header += [f"{column}_sd", *(f"{column}_seed{s}" for s in seeds)]
    header += [f"weight_{m}" for m in spec.modalities] + [f"present_{m}" for m in spec.modalities]
    header += ["raw_text"] * has_text
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for each in scored:
            writer.writerows(_rows(each, spec, intervals, has_text))


def _rows(
    scored: Scored, spec: CorpusSpec, intervals: Intervals | None, has_text: bool
) -> Iterator[list[Any]]:
    split, scores, weights, _ = scored
    ends = None if intervals is None else np.stack(intervals.bounds(scores), axis=-1)  # [N, K, 2]
    task, names = TASKS[spec.label_kind], spec.label_names
    mean, mean_weights = scores.mean(axis=0), weights.mean(axis=0)
    present = {m: split.masks[m].any(axis=1) for m in spec.modalities}
    for i, name in enumerate(split.ids):
        label = None if split.labels is None else split.labels[i]
        row = [
            name,
            *task.label_cells(label, mean[i], names, _formatted),
            *map(_formatted, mean[i]),
        ]
        if ends is not None:
            row += [*map(_formatted, ends[i].ravel()), intervals.describe()]
        for of_seeds in scores[:, i].T:
            row += [_formatted(of_seeds.std(ddof=1)) if len(scores) > 1 else ""]
            row += map(_formatted, of_seeds)
        row += [_formatted(weight) for weight in mean_weights[i]]
        row += [int(present[m][i]) for m in spec.modalities]
        if has_text:
            row.append("" if split.raw_text is None else split.raw_text[i])
        yield row


def _formatted(value: float) -> str:
    return f"{value:.9g}"


def read_predictions(path: str, of_seeds: bool = True) -> Predictions:
    """Reads labels and scores: the columns `score…_seed<k>`, or `score…` where there are none.

    With a column `predicted` they are those of classes, with `level` beside it of ordered levels,
    with `predicted_<name>` of several labels; else with `label_<name>` and no `label` those of
    several outputs.

    Without `of_seeds` it reads the means over random seeds, the columns `score…`: S = 1.

    Raises:
        UserError: naming the column or the row that is missing, empty or not a finite number.
    """
    columns, rows = read_table(path)
    # Scores of real numbers have no mark of their own: their task, the first one, is asked last.
    task, names = next(
        (task, found)
        for task in reversed(TASKS.values())
        if (found := task.names_in(columns)) is not None
    )
    # The columns that the task needs are there, and every row has a value for each.
    labels, outputs = task.read_columns_of(names), task.score_columns(names)
    of_output = [_score_columns(columns, c) if of_seeds else [c] for c in outputs]
    needed = (*labels, *sum(of_output, []))
    there = ", ".join(map(printable, columns))
    if not {"id", *needed} & set(columns):
        raise UserError(
            f"{path} is no table of predictions, with the columns {' and '.join(needed)}: its "
            f"first line has {there}."
        )
    for column in needed:
        if column not in columns:
            raise UserError(f"{path} has no column {printable(column)!r}; it has {there}.")
    if len({len(of_seeds) for of_seeds in of_output}) != 1:
        raise UserError(f"{path}: every output must have scores of the same seeds.")
    if not rows:
        raise UserError(f"{path} holds no prediction.")
    for i, row in enumerate(rows):
        if None in row:  # what `csv` gives for too many: they would stand in other columns
            raise UserError(f"{path}, row {i + 1}: it has more values than there are columns.")

    def values(column: str, read: Callable[[str], float]) -> np.ndarray:
        found = np.empty(len(rows))
        for i, row in enumerate(rows):
            try:
                found[i] = read(row[column])
            except ValueError as error:
                said = "missing" if row[column] is None else f"{row[column]!r}, {error}"
                raise UserError(f"{path}, row {i + 1}: {column} is {said}.") from error
        return found

    # Numbers, which may still be no scores of the task.
    scores = np.stack([[values(c, finite) for c in of_seeds] for of_seeds in of_output], axis=-1)
    if (wrong := np.flatnonzero(~task.is_score(scores))).size:
        raise UserError(
            f"{path}, row {wrong[0] + 1}: the columns {', '.join(map(printable, outputs))} must be "
            f"{task.scores_are}."
        )
    read = functools.partial(task.read_label, names=names)
    columns_of_labels = [values(c, read) for c in labels] or [np.zeros(len(rows))]
    labelled = np.stack(columns_of_labels, axis=1)
    ids = np.array([row.get("id") or "" for row in rows])
    return Predictions(task.kind, names, scores, labelled, ids)


def read_columns(path: str) -> dict[str, np.ndarray]:
    """Reads a file of predictions by column.

    Returns:
        `{column: [N]}`: numbers as float64, an empty field as NaN; id, raw_text and classes as str.

    Raises:
        UserError: if it cannot be read, or a row has another number of values than there are
            columns.
    """
    columns, rows = read_table(path)
    for i, row in enumerate(rows):
        if None in row or None in row.values():  # what `csv` gives for too many, and for too few
            raise UserError(f"{path}, row {i + 1}: not one value for each of the columns.")
    found = {name: np.array([row[name] for row in rows]) for name in columns}
    for name in found.keys() - {"id", "raw_text"}:
        with contextlib.suppress(ValueError):  # numbers only if every value is one
            found[name] = np.array([float(row[name] or "nan") for row in rows])
    return found


def _score_columns(columns: Sequence[str], column: str) -> list[str]:
    of_seeds = [c for c in columns if named_by(c) == column and c != f"{column}_sd"]
    return of_seeds or [column]
