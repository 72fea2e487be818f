"""Reads the table of recordings: a row is a recording, or a part of one."""

import collections
import contextlib
import csv
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from msajax.checks import number_of
from msajax.corpus.in_memory import as_list, is_missing
from msajax.errors import UserError, nearest, printable, reading
from msajax.recordings.timed import READERS

COLUMNS = ("file", "id", "label", "transcript", "group", "split", "start", "end")
_LONGEST = 1 << 17  # characters of a cell


@dataclasses.dataclass(frozen=True)
class Row:
    """Holds a row of the table of recordings.

    Attributes:
        number: its number, from 1, the line after the names of the columns.
        file: the recording, as the table names it.
        id: of the sample; with a group `group$_$id`.
        labels: `{column: number, class or None}`.
        transcript: what is said; "" where that is not known, or `times` says it.
        times: path of a file of words and their times; "" for none.
        split: train, valid or test, by any of their names.
        start: seconds.
        end: likewise; infinite for the end of the file.
    """

    number: int
    file: str
    path: str
    id: str
    labels: Mapping[str, Any]
    transcript: str = ""
    times: str = ""
    split: str = "train"
    start: float = 0.0
    end: float = math.inf

    def task(self) -> dict[str, Any]:
        """Returns what decides its features, as `row.measure` takes it."""
        names = ("path", "start", "end", "transcript", "times")
        return {name: getattr(self, name) for name in names}


def read_rows(table: Any, columns: Mapping[str, str] | None = None) -> list[Row]:
    """Reads the table of recordings.

    Args:
        table: path of a CSV; or a data frame, a dict of columns, or a list of dicts. `file` and
            `id` are needed, `label` or several `label_…`, `transcript` (or the path of a file of
            times), `group`, `split`, `start` and `end` in seconds are read where they are. Paths
            are relative to the CSV's folder, or the working directory.
        columns: `{one of these names: what the table calls it}`.

    Raises:
        UserError: for a table that is not of this form, naming row and column.
    """
    folder, where = ".", "The table"
    if isinstance(table, str | os.PathLike):
        where, folder = os.fspath(table), os.path.dirname(os.fspath(table)) or "."
        names, cells = _read_csv(where)
    else:
        names, cells = _read_table(table)
    called = dict(columns or {})
    for known, name in called.items():
        if known not in COLUMNS and not known.startswith("label_"):
            raise UserError(f"--columns: there is no column {known!r}.{nearest(known, COLUMNS)}")
        if name not in names:
            raise UserError(
                f"{where} has no column {name!r}, which --columns names; it has {', '.join(names)}."
            )
    taken = set(called.values())
    called |= {
        name: name
        for name in names
        if (name in COLUMNS or name.startswith("label_")) and name not in called
        if name not in taken
    }
    for needed in ("file", "id"):
        if needed not in called:
            raise UserError(
                f"{where} has no column {needed!r}; it has {', '.join(names) or 'none'}. Another "
                f"name is given by --columns={needed}=NAME."
            )
    labels = _read_labels(where, cells, [known for known in called if known[:5] == "label"], called)
    rows = []
    for number, cell in enumerate(cells, 1):
        found = {
            known: "" if is_missing(value := cell[name]) else str(value).strip()
            for known, name in called.items()
        }
        at = f"{where}: row {number}"
        for needed in ("file", "id", *({"group", "split"} & found.keys())):
            if not found[needed]:
                raise UserError(f"{at} has no {called[needed]}.")
        start, end = (
            _seconds(found.get(name, ""), other, f"{at}: {called.get(name)}")
            for name, other in (("start", 0.0), ("end", math.inf))
        )
        if not start < end:
            raise UserError(f"{at}: start {start:g} must be before end {end:g}.")
        text = found.get("transcript", "")
        is_times = os.path.splitext(text)[1].lower() in READERS and len(text.split()) == 1
        group = found.get("group")
        rows.append(
            Row(
                number=number,
                file=found["file"],
                path=os.path.abspath(os.path.join(folder, os.path.expanduser(found["file"]))),
                id=f"{group}$_${found['id']}" if group else found["id"],
                labels=labels[number - 1],
                transcript="" if is_times else text,
                times=os.path.abspath(os.path.join(folder, text)) if is_times else "",
                split=found.get("split", "train"),
                start=start,
                end=end,
            )
        )
    twice = [id_ for id_, count in collections.Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise UserError(f"{where}: the id {printable(twice[0])!r} is there twice.")
    if not rows:
        raise UserError(f"{where} has no row.")
    return rows


def _read_csv(path: str) -> tuple[list[str], list[dict[str, str]]]:
    csv.field_size_limit(_LONGEST)
    try:
        with reading(path), open(path, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            names = [name.strip() for name in next(lines, [])]
            cells = []
            for line in lines:
                if line and len(line) != len(names):
                    raise UserError(
                        f"{path}: line {lines.line_num} has {len(line)} cells, but there are "
                        f"{len(names)} columns."
                    )
                if line:
                    cells.append(dict(zip(names, line, strict=True)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no CSV in UTF-8: {error}.") from error
    if len(set(names)) < len(names):
        raise UserError(f"{path} has two columns of the same name.")
    return names, cells


def _read_table(table: Any) -> tuple[list[str], list[dict[str, Any]]]:
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        names = list(dict.fromkeys(name for row in table for name in row))
        return names, [{name: row.get(name) for name in names} for row in table]
    names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
    columns = [as_list(table[name], f"Column {name!r} of the table") for name in names]
    if not names or len({len(column) for column in columns}) > 1:
        raise UserError(
            "The table must be the path of a CSV, a data frame, a dict of columns of equal length, "
            "or a list of dicts."
        )
    return names, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _read_labels(
    where: str, cells: Sequence[Mapping[str, Any]], known: list[str], called: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Reads the labels of each row; text is made numbers where all of a column is."""
    labels: list[dict[str, Any]] = [{} for _ in cells]
    for name in known:
        values = [cell[called[name]] for cell in cells]
        values = [None if is_missing(v) or v == "" else v for v in values]
        if all(v is None for v in values):
            continue
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                values = [kind(v) if isinstance(v, str) else v for v in values]
                break
        for row, value in zip(labels, values, strict=True):
            row[called[name]] = value
    return labels


def _seconds(text: str, other: float, where: str) -> float:
    if not text:
        return other
    seconds = number_of(text)
    if not 0 <= seconds < 1e9:
        raise UserError(f"{where} is {printable(text)!r}: must be seconds, 0 or more.")
    return seconds
