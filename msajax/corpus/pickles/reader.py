"""Reads pickles of arrays, text, numbers, lists, tuples, sets and dicts without running anything.

Opening a pickle the usual way runs whatever code its author chose. Here a file can only build data:
`opcodes.py` follows its opcodes, `allow_list.py` says what it may call. What comes back is a tree
of plain values that is safe to walk. A file that is compressed with gzip is decompressed first, in
bounded space.
"""

import collections
import contextlib
import gzip
import io
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from msajax.corpus.pickles.allow_list import (
    ALLOWED,
    MAX_DEPTH,
    Global,
    Limits,
    Pending,
    Refused,
    find_global,
)
from msajax.corpus.pickles.opcodes import Machine, Truncated, follow, is_opcode
from msajax.errors import UserError, reading

MOST_TIMES = 64  # how many times its own size a file may hold
MOST_BYTES = 8 << 30
_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20
_DAMAGED_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)
_HEAD = 4096
_BUFFER = 1 << 16
_SIGNATURES = tuple(bytes([0x80, protocol]) for protocol in (2, 3, 4, 5))
_DAMAGED = (IndexError, OverflowError, TypeError, ValueError, RecursionError)
# Bytes that `_check_tree` needs to remember a container.
_RECORD_BYTES = 216
_TEXTS = {str, bytes, bytearray}
_LEAVES = _TEXTS | {int, float, bool, type(None)}
_DICTS = {dict, collections.OrderedDict, collections.defaultdict}
_CONTAINERS = {list, tuple, set, frozenset} | _DICTS


class NoPickle(UserError):
    """Says that a file does not begin as a pickle does, so that it may be something else."""


def read_pickle(path: str | os.PathLike) -> Any:
    """Reads a pickle of protocol 0 to 5, also through gzip; strings of Python 2 as latin-1.

    The name of the file does not matter. A file that is no pickle is recognised by its first
    kilobytes, and no more of it is read.

    Returns:
        Arrays of truth values, integers, floats, strings or objects, numpy scalars and types, str,
        bytes, bytearray, int, float, bool, None, and list, tuple, set, frozenset, dict, OrderedDict
        and defaultdict of them. Nothing contains itself, containers lie in each other at most
        `MAX_DEPTH` deep, and copying everything as often as it occurs takes at most 256 MiB plus 16
        times the size of the file, decompressed. Arrays may be read-only and of either byte order.

    Raises:
        NoPickle: if the file does not begin as a pickle does.
        UserError: if it cannot be read, is damaged, or asks for anything else.
    """
    path = os.fspath(path)
    with contextlib.ExitStack() as files:
        file = files.enter_context(_open(path))
        compressed = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        _check_head(path, file, compressed)
        if compressed:
            file = files.enter_context(_decompress(path, file))
        size = os.fstat(file.fileno()).st_size
        limits = Limits(size)
        with _in_one_sentence(path, file, UserError):
            value = follow(Machine(file, size, limits, find_global))
            _require_end(file, size)
            _check_tree(value, limits)
            return value


def _open(path: str) -> BinaryIO:
    with reading(path):
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise UserError(f"{path} cannot be read: it is no regular file.")
        return open(path, "rb", buffering=_BUFFER)


def _decompress(path: str, file: BinaryIO) -> BinaryIO:
    """Decompresses a gzip file into a temporary one without a name, which is gone once closed."""
    # A file's own word on what it holds may be wrong, so bytes are counted as they come: a bomb
    # is refused before it fills the disk.
    most = _most_bytes(os.fstat(file.fileno()).st_size)
    content = tempfile.TemporaryFile()
    try:
        with gzip.GzipFile(fileobj=file) as compressed:
            while block := compressed.read(_CHUNK):
                if content.tell() + len(block) > most:
                    raise UserError(
                        f"{path} holds more than {most} bytes, which a gzip file of its size may "
                        "not: if it is meant to, decompress it and give that file."
                    )
                content.write(block)
        content.seek(0)
        return content
    except BaseException as error:
        content.close()
        if isinstance(error, _DAMAGED_GZIP):
            raise _damaged(path) from error
        if isinstance(error, OSError):
            reason = f"{path} cannot be decompressed in {tempfile.gettempdir()}: {error.strerror}."
            raise UserError(reason) from error
        raise


def _most_bytes(size: int) -> int:
    return min(MOST_TIMES * size, MOST_BYTES)


def _damaged(path: str) -> UserError:
    return UserError(f"{path} is a damaged gzip file, or was not copied to its end.")


@contextlib.contextmanager
def _in_one_sentence(path: str, file: BinaryIO, kind: type[UserError]) -> Iterator[None]:
    """Turns an error of reading into a sentence, of type `kind` if the content is wrong."""
    try:
        with reading(path):
            yield
    except UserError:
        raise
    except Refused as error:
        raise kind(f"{path} {error}.") from error
    except _DAMAGED as error:
        raise kind(
            f"{path} is damaged or no pickle: it makes no sense near byte {file.tell()}."
        ) from error
    except MemoryError as error:
        raise UserError(f"{path} needs more memory than there is.") from error


def _require_end(file: BinaryIO, size: int) -> None:
    if file.tell() != size:
        raise Refused(f"goes on after its end, at byte {file.tell()} of {size}")


def _check_head(path: str, file: BinaryIO, compressed: bool) -> None:
    """Refuses a file that does not begin as a pickle does; leaves it at its beginning.

    Protocols 2 to 5 begin with a signature. Protocols 0 and 1 look like text: their first kilobytes
    have to make sense, opcode by opcode, and end the file or be inside of a container.
    """
    size = os.fstat(file.fileno()).st_size
    with _in_one_sentence(path, file, UserError):
        if compressed:
            try:
                with gzip.GzipFile(fileobj=file) as content:
                    head = content.read(_HEAD + 1)
            except _DAMAGED_GZIP as error:
                raise _damaged(path) from error
            size = len(head) if len(head) <= _HEAD else _most_bytes(size)
            head = head[:_HEAD]
        else:
            head = file.read(_HEAD)
        file.seek(0)
    if head.startswith(_SIGNATURES) and all(map(is_opcode, head[2:3])):
        return
    beginning = io.BytesIO(head)
    machine = Machine(beginning, size, Limits(size), _any_global)
    with _in_one_sentence(path, beginning, NoPickle):
        if head.startswith((b"\x80\0", b"\x80\1")):
            raise ValueError("protocols 0 and 1 have no signature")
        try:
            follow(machine)
        except Truncated:
            if len(head) >= size:
                raise
            if machine.marked or (machine.stack and type(machine.stack[0]) in _CONTAINERS):
                return
            raise ValueError("values that are in no container") from None
        _require_end(beginning, size)


def _any_global(module: str, name: str) -> Global:
    """Returns the entry of a name; one not allowed builds nothing, and reading refuses it."""
    return ALLOWED.get((module, name)) or Global(name, lambda *_: Pending(lambda *_: None))


def _check_tree(root: Any, limits: Limits) -> None:
    """Raises `Refused` for cycles, deep nesting, endless repetition and values that are no data."""
    finished: dict[int, tuple[int, int]] = {}  # by identity: depth, bytes of the whole tree
    path: set[int] = set()  # ids of the containers around the one looked at
    todo = [root] if _measure_small(root) is None else []
    while todo:
        value = todo[-1]
        if id(value) in finished:
            todo.pop()
            continue
        path.discard(id(value))
        children = _children(value)
        flat = _flat_bytes(children)
        depth, total, waiting = 0, flat or 8 * len(children), []
        for child in children if flat is None else ():
            known = finished.get(id(child)) or _measure_small(child)
            if known is None:
                if id(child) in path or child is value:
                    raise Refused("has a value that contains itself")
                waiting.append(child)
            else:
                depth, total = max(depth, known[0]), total + known[1]
        if len(path) + 1 + depth > MAX_DEPTH:
            raise Refused(f"nests its values more than {MAX_DEPTH} deep")
        if total > limits.total:
            raise Refused("repeats its values so often that reading them would have no end")
        if waiting:
            path.add(id(value))
            todo += waiting
        else:
            todo.pop()
            limits.spend(_RECORD_BYTES)
            finished[id(value)] = depth + 1, total


def _measure_small(value: Any) -> tuple[int, int] | None:
    """Returns depth and bytes of a value that needs no walk, None for other containers."""
    kind = type(value)
    if kind in _LEAVES:
        return 0, len(value) if kind in _TEXTS else 0
    if kind in _CONTAINERS:
        flat = 0 if not value else _flat_bytes(_children(value)) if len(value) <= 4 else None
        return None if flat is None else (1, flat)
    if isinstance(value, np.ndarray | np.generic):
        return None if value.dtype == object else (0, value.nbytes)
    if isinstance(value, np.dtype):
        return 0, 0
    if kind is Global:
        raise Refused(f"holds {value.name} itself, which is no data")
    raise Refused("announces an array or a type and never describes it")


def _children(value: Any) -> list[Any]:
    if type(value) in _DICTS:
        return [*value.keys(), *value.values()]
    if type(value) is np.ndarray:
        return value.reshape(-1).tolist()
    return [*value]


def _flat_bytes(children: list[Any]) -> int | None:
    kinds = set(map(type, children))
    if not kinds <= _LEAVES:
        return None
    texts = (len(child) for child in children if type(child) in _TEXTS)
    return 8 * len(children) + (sum(texts) if kinds & _TEXTS else 0)
