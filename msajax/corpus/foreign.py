"""Reads tables of predictions, also those of other tools, whatever separates and names columns."""

import csv
import io
import re
from collections.abc import Sequence

from msajax.errors import UserError, printable

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
    separator = max(_SEPARATORS, key=lambda s: _known_columns(_cells(first, s)))
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
    new = _renamed(path, columns)
    named = dict(zip(reader.fieldnames or [], new, strict=True))
    renamed = [{named.get(name, name): value for name, value in row.items()} for row in rows]
    normal = {_normal(name): name for name in columns}
    if "id" not in new and {"videoid", "clipid"} <= normal.keys():
        video, clip = normal["videoid"], normal["clipid"]
        renamed = [{"id": f"{row[video]}$_${row[clip]}", **row} for row in renamed]
        new = ["id", *new]
    return new, renamed


def read_text(path: str) -> str:
    """Reads the text of a CSV file: UTF-8, or what spreadsheets call Unicode; a mark is left out.

    Raises:
        UserError: if it cannot be read, or is in another encoding, naming the line.
    """
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


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r")], delimiter=separator), [])
    except csv.Error:
        return []


def _normal(name: str) -> str:
    return re.sub(r"[\s_.-]+", "", name.casefold())


def _known_columns(columns: Sequence[str]) -> tuple[int, int]:
    """Counts the columns whose names are known, and all of them."""
    known = [
        name for name in columns if _normal(name) in _ROLES or re.match("(score|label)_", name)
    ]
    return len(known), len(columns)


def _renamed(path: str, columns: Sequence[str]) -> list[str]:
    """Renames the columns that other tools call otherwise.

    Raises:
        UserError: if two columns could be the same.
    """
    new = list(columns)
    for role in _SPELLINGS:
        if role in columns or any(name.startswith(f"{role}_") for name in columns):
            continue  # the names of this program's own files count first
        found = [i for i, name in enumerate(columns) if _ROLES.get(_normal(name)) == role]
        if len(found) > 1:
            named = " or ".join(repr(columns[i]) for i in found)
            raise UserError(f"{path}: is {named} the {role}? Name that column {role!r}.")
        for i in found:
            new[i] = role
    return new
