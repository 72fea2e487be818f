"""Pickles of arrays, text, numbers, lists, tuples, sets and dicts, read without running anything.

Opening a pickle the usual way runs whatever code its author chose. Here a file can only build data:
`pickle_opcodes` follows its opcodes, `pickle_globals` is the list of what it may call. What comes
back is a tree of plain values that is safe to walk.
"""

import collections
import contextlib
import io
import os
import stat
from typing import Any, BinaryIO

import numpy as np

from msajax.data.formats import gzipped
from msajax.data.formats.pickle_globals import (
    ALLOWED,
    MAX_DEPTH,
    Global,
    Limits,
    Pending,
    Refused,
    find_global,
)
from msajax.data.formats.pickle_machine import Machine, Truncated
from msajax.data.formats.pickle_opcodes import follow, is_opcode
from msajax.errors import UserError

_HEAD = 4096
_BUFFER = 1 << 16
_DAMAGED = (IndexError, OverflowError, TypeError, ValueError, RecursionError)
# What a container takes in the account of `_check_tree`.
_RECORD_BYTES = 216
_NUMBERS = {int, float, bool}
_TEXTS = {str, bytes, bytearray}
_LEAVES = _NUMBERS | _TEXTS | {type(None)}
_DICTS = {dict, collections.OrderedDict, collections.defaultdict}
_CONTAINERS = {list, tuple, set, frozenset} | _DICTS


def matches(path: str) -> bool:
    """Whether the file at `path`, compressed or not, begins like a pickle, of whatever content.

    Protocols 2 to 5 begin with a signature. Protocols 0 and 1 are text, more or less: the first
    kilobytes have to make sense, opcode by opcode, and end the file or be inside of a container.

    Raises:
        UserError: if there is no file that can be read, or it is a damaged gzip file.
    """
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if gzipped.is_gzip(file):
            head = gzipped.read_head(path, file, _HEAD + 1)
            size = len(head) if len(head) <= _HEAD else gzipped.most_bytes(size)
            head = head[:_HEAD]
        else:
            head = file.read(_HEAD)
    if head[:1] == b"\x80":
        return head[1:2] in (b"\2", b"\3", b"\4", b"\5") and all(map(is_opcode, head[2:3]))
    machine = Machine(io.BytesIO(head), size, Limits(size), _any_global)
    try:
        follow(machine)
    except Truncated:
        inside = machine.marked or (machine.stack and type(machine.stack[0]) in _CONTAINERS)
        return len(head) < size and bool(inside)
    except (Refused, *_DAMAGED):
        return False
    return machine.file.tell() == size


def load_pickle(path: str | os.PathLike) -> Any:
    """Reads a pickle of protocol 0 to 5, also through gzip; strings of Python 2 as latin-1.

    Returns:
        Arrays of truth values, integers, floats, strings or objects, numpy scalars and types, str,
        bytes, bytearray, int, float, bool, None, and list, tuple, set, frozenset, dict, OrderedDict
        and defaultdict of them. Nothing contains itself, containers lie in each other at most
        `MAX_DEPTH` deep, and copying everything as often as it occurs takes at most 256 MiB plus 16
        times the size of the file, decompressed. Arrays may be read-only and of either byte order.

    Raises:
        UserError: if the file cannot be read, is damaged, or asks for anything else.
    """
    path = os.fspath(path)
    with contextlib.ExitStack() as files:
        file = files.enter_context(_open(path))
        if gzipped.is_gzip(file):
            file = files.enter_context(gzipped.decompress(path, file))
        size = os.fstat(file.fileno()).st_size
        limits = Limits(size)
        try:
            value = follow(Machine(file, size, limits, find_global))
            if file.tell() < size:
                raise Refused(f"goes on after its end, at byte {file.tell()} of {size}")
            _check_tree(value, limits)
            return value
        except Refused as error:
            raise UserError(f"{path} {error}.") from error
        except _DAMAGED as error:
            raise UserError(
                f"{path} is damaged or no pickle: it makes no sense near byte {file.tell()}."
            ) from error
        except MemoryError as error:
            raise UserError(f"{path} needs more memory than there is.") from error
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def as_array(value: Any, where: str) -> np.ndarray:
    """One dense array from numbers, arrays, or (object arrays of) lists of them, of equal shapes.

    Args:
        value: as `load_pickle` returns it.
        where: the file and the name of the value, to begin a sentence with.

    Returns:
        `[len(value), ...]` truth values, integers or floats; an array of them as it is.

    Raises:
        UserError: if shapes differ, or something is no number.
    """
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return np.asarray(value)
    if type(value) in _NUMBERS:
        return as_array([value], where).reshape(())
    if type(value) in (list, tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        items = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else value
        shape = value.shape if isinstance(value, np.ndarray) else (len(value),)
        kinds = set(map(type, items))
        if kinds <= _NUMBERS:
            # Left to itself, numpy would turn large integers into floats or objects.
            exact = np.int64 if int in kinds else np.bool_
            try:
                array = np.array(items, np.float64 if float in kinds or not kinds else exact)
            except OverflowError as error:
                raise UserError(
                    f"{where} holds an integer that does not fit into 64 bits."
                ) from error
        else:
            parts = [as_array(item, where) for item in items]
            shapes = sorted({part.shape for part in parts})
            if len(shapes) > 1:
                raise UserError(
                    f"{where} holds arrays of the shapes {shapes[0]} and {shapes[-1]}; "
                    "expected equal shapes."
                )
            array = np.stack(parts)
        return array.reshape((*shape, *array.shape[1:]))
    raise UserError(f"{where} holds a {type(value).__name__} where numbers are expected.")


def _open(path: str) -> BinaryIO:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise UserError(f"{path} cannot be read: it is no regular file.")
        return open(path, "rb", buffering=_BUFFER)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _any_global(module: str, name: str) -> Global:
    """Of a name that is not allowed, something inert: whether it may be read is asked later."""
    return ALLOWED.get((module, name)) or Global(name, lambda *_: Pending(lambda *_: None))


def _check_tree(root: Any, limits: Limits) -> None:
    """Refuses cycles, deep nesting, endless repetition and whatever is no data.

    Raises:
        Refused: saying which.
    """
    finished: dict[int, tuple[int, int]] = {}  # by identity: depth, bytes of the whole tree
    path: set[int] = set()  # containers around the one looked at
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
    """Depth and bytes of what needs no walk; None for other containers."""
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
    """Bytes of children that are all numbers or text."""
    kinds = set(map(type, children))
    if not kinds <= _LEAVES:
        return None
    texts = (len(child) for child in children if type(child) in _TEXTS)
    return 8 * len(children) + (sum(texts) if kinds & _TEXTS else 0)
