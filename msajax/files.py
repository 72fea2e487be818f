"""Writes files whole or not at all, and reads and writes strict JSON."""

import contextlib
import difflib
import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import IO, Any

from msajax.errors import UserError, writing

# What must not outlive this process: temporary files and folders, by their paths.
_unfinished: set[str] = set()
# Held while a temporary name is taken, or what lies there is put in its place. `remove_unfinished`
# takes it for ever, so that nothing comes to be there while it removes.
_changing = threading.RLock()
_PATIENCE_SECONDS = 1.0  # for a rename, which hangs with its file system


def as_path(value: Any, name: str, expected: str) -> str:
    """Returns an argument that is a path as text; raises `UserError` for anything else."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        raise UserError(f"{name} = {value!r}: must be the path of {expected}.")
    return path


@contextlib.contextmanager
def replacing(path: str, *, binary: bool = False) -> Iterator[IO]:
    """Opens a file, of text or bytes, that replaces `path` once it is whole; else nothing is left.

    Raises `UserError` if it cannot be written.
    """
    temporary = partial(path)
    with writing(path):
        kind = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": ""}
        with _changing:
            opened = open(temporary, **kind)
            _unfinished.add(temporary)
        with _removed_at_the_end(temporary):
            with opened as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            put_in_place(temporary, path)


@contextlib.contextmanager
def replacing_folder(path: str) -> Iterator[str]:
    """Lends an empty folder that takes the place of `path` at the end; else nothing is left of it.

    What stood at `path` stays until then. A kill may leave `path` missing, but never a part of it.
    Raises `UserError` if it cannot be written.
    """
    temporary = partial(path)
    new, former = (os.path.join(temporary, name) for name in ("new", "former"))
    with writing(path), _removed_at_the_end(temporary):
        shutil.rmtree(temporary, ignore_errors=True)  # a killed process leaves it
        with _changing:
            os.makedirs(new)
        yield new
        with _changing:
            try:
                # By two renames, since none replaces a folder that holds something.
                with contextlib.suppress(FileNotFoundError):
                    os.rename(path, former)
                os.rename(new, path)
            finally:
                with contextlib.suppress(OSError):
                    if not os.path.exists(path):
                        os.rename(former, path)


@contextlib.contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[str]:
    """Lends a private folder for temporary files; it goes at the end, also of the process.

    It lies among the system's temporary files or, under a hidden name, in `parent`.
    """
    with _changing:
        path = tempfile.mkdtemp(prefix=".msajax-" if parent else "msajax-", dir=parent)
        _unfinished.add(path)
    with _removed_at_the_end(path):
        yield path


def put_in_place(temporary: str, path: str) -> None:
    """Renames what is whole now, a file or a folder, to the name that it was written for."""
    with _changing:
        os.replace(temporary, path)
        _unfinished.discard(temporary)


def is_kept(path: str) -> bool:
    """Returns whether a scratch folder is still whole, because nobody has begun to remove it."""
    return path in _unfinished


def remove_unfinished() -> None:
    """Removes all temporary files and folders of this process, which must end right after.

    Other threads can neither make new ones from here on, nor put one in its place.
    """
    if _changing.acquire(timeout=_PATIENCE_SECONDS):
        for path in list(_unfinished):
            _remove(path)


@contextlib.contextmanager
def _removed_at_the_end(path: str) -> Iterator[None]:
    _unfinished.add(path)
    try:
        yield
    finally:
        if path in _unfinished:
            _remove(path)


def _remove(path: str) -> None:
    _unfinished.discard(path)
    with contextlib.suppress(OSError):  # which a folder raises, too
        os.unlink(path)
    for _ in range(3):  # a thread may be writing into it
        shutil.rmtree(path, ignore_errors=True)


def partial(path: str) -> str:
    """Returns where a file or folder is written that takes the place of `path` once it is whole."""
    return f"{path}.partial"


def require_writable(path: str) -> None:
    """Raises `UserError` unless a file or a folder can be made at `path`; leaves nothing there.

    A file is tried in the nearest folder that is there: permissions alone do not tell, for the file
    system may be read-only.
    """
    folder = os.path.abspath(path)
    folder = folder if os.path.isdir(folder) else os.path.dirname(folder)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    with writing(path), tempfile.TemporaryFile(dir=folder):
        pass


def require_new(output: str) -> str:
    """Returns the path of what is to be written; raises `UserError` if something is there."""
    output = output.rstrip(os.sep)
    if os.path.lexists(output):
        raise UserError(f"--output={output} is there already: choose another name.")
    return output


def require_file_place(path: str) -> None:
    """Raises `UserError` unless a file can be written at `path`, whose folder must be there."""
    if os.path.isdir(path):
        raise UserError(f"{path} cannot be written: it is a folder, where a file is to be.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        near = meant(folder) or "."
        raise UserError(f"{path} cannot be written: there is no folder {folder}{near}")
    require_writable(path)


def meant(path: str) -> str:
    """Returns `; did you mean …` with what is there under nearly the name of what is not."""
    there, wrong = os.path.abspath(path), []
    while not os.path.lexists(there):
        wrong.insert(0, os.path.basename(there))
        there = os.path.dirname(there)
    stems: dict[str, str] = {}
    with contextlib.suppress(OSError):
        stems = {os.path.splitext(name)[0]: name for name in os.listdir(there)}
    stem = os.path.splitext(wrong[0])[0] if wrong else ""
    near = [one for one in stems if abs(len(one) - len(stem)) <= 2]
    near = [stems[one] for one in difflib.get_close_matches(stem, near, 1)]
    found = os.path.join(there, *near, *wrong[1:])
    if not near or not os.path.exists(found):
        return ""
    found = found if os.path.isabs(path) else os.path.relpath(found)
    return f"; did you mean {found}?"


def name_inside(folder: str, path: str) -> str:
    """Returns the name in a folder at or below which a path lies; `..` or `.` if none is."""
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
    return inside.split(os.sep)[0]


def refuse_inside(output: str, source: str, what: str) -> None:
    """Raises `UserError` for an output that would replace, or lie among, what is read."""
    if os.path.isfile(source) and os.path.exists(output) and os.path.samefile(output, source):
        raise UserError(f"--output={output} is the {what} itself: choose another file.")
    inside = os.path.realpath(source)
    if os.path.commonpath([os.path.realpath(output), inside]) == inside:
        raise UserError(f"--output={output} lies inside the {what} {source}: choose another place.")


def require_replaceable(output: str, what: str, is_what: Callable[[str], bool]) -> None:
    """Raises `UserError` if a file is there that is not empty and not `what` is written."""
    if os.path.isfile(output) and os.path.getsize(output) and not is_what(output):
        raise UserError(
            f"--output={output} is there already and holds no {what}: choose another name."
        )


def has_keys(path: str, keys: Collection[str]) -> bool:
    """Says whether a file holds a JSON object that has all of these keys at its top."""
    try:
        content = read_json(path)
    except UserError:
        return False
    return isinstance(content, Mapping) and content.keys() >= set(keys)


def read_json(path: str) -> Any:
    """Reads a JSON file that this program wrote; raises `UserError` if it is missing or damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            return strict_json(file.read())
    except FileNotFoundError as error:
        raise UserError(f"There is no {path}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def write_json(path: str, value: Any, indent: int | None = 2) -> None:
    """Writes strict JSON, whole or not at all; raises `UserError` if it cannot be written.

    Numbers that are not finite become null. `indent` is spaces a level; None puts all on one line,
    where lists of many numbers would otherwise take several times the room.
    """
    write_text(path, json_text(value, indent))


def json_text(value: Any, indent: int | None = 2) -> str:
    """Formats a value as a file of strict JSON holds it: numbers that are not finite are null."""
    separators = (",", ":" if indent is None else ": ")
    text = json.dumps(as_strict(value), indent=indent, separators=separators, allow_nan=False)
    return text + "\n"


def write_text(path: str, text: str) -> None:
    """Writes a text file, whole or not at all; raises `UserError` if it cannot be written."""
    with replacing(path) as file:
        file.write(text)


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file of bytes, whole or not at all; raises `UserError` if it cannot be written."""
    with replacing(path, binary=True) as file:
        file.write(content)


def strict_json(text: str | bytes) -> Any:
    """Reads JSON; raises `ValueError` for NaN and infinity, also as 1e400, which Python accepts."""

    def finite(number: str) -> float:
        if not math.isfinite(value := float(number)):
            raise ValueError(f"{number} is no number of JSON")
        return value

    return json.loads(text, parse_constant=finite, parse_float=finite)


def as_strict(value: Any) -> Any:
    """Replaces the numbers that are not finite, which JSON cannot hold, by None."""
    if isinstance(value, Mapping):
        return {key: as_strict(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_strict(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def digest_of(path: str) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def holds(path: str, text: str) -> bool:
    """Says whether a file is there and holds this text already."""
    try:
        with open(path, "rb") as file:
            return file.read() == text.encode()
    except FileNotFoundError:
        return False


def write_if_new(path: str, text: str) -> None:
    """Writes a text file, unless it holds this text already: then it stays as it is."""
    if not holds(path, text):
        write_text(path, text)
