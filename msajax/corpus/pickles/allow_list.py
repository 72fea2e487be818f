"""Lists the names that a pickle may call, and builds what each of them stands for.

Nothing of numpy is called with what a file says before type, shape and size are known to fit the
bytes that are there. No name leads to the function of that name: each leads to a builder of ours.
"""

import collections
import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from msajax.corpus.corpus import are_characters
from msajax.errors import printable

MAX_DEPTH = 100
_MIB = 1 << 20

_TYPE = re.compile(r"b1|[iu][1248]|f[248]|O[48]?|[SU]\d{1,8}")
_SCALARS = {str, bytes, int, float, bool, type(None)}
# Bytes of an empty set or OrderedDict; a list or dict takes less.
_CONTAINER_BYTES = 256
# Bytes of an array, the view of it in its shape, and their sizes and strides.
_ARRAY_BYTES = 512


class Refused(Exception):
    """Says why a file is not read, in the predicate of a sentence whose subject is the file."""


class Limits:
    """Counts what one file may still cause, in bytes of memory or in work that takes as long.

    Reading a file takes time and memory in proportion to its size as long as every byte of it is
    used once. But a file of kilobytes can use a list that it made a million times: that is counted.
    """

    def __init__(self, file_size: int) -> None:
        self.total = self._left = 256 * _MIB + 16 * file_size
        # By id: how deep object arrays are nested, and the array, which must live to keep its id.
        self._levels: dict[int, tuple[int, np.ndarray]] = {}

    def spend(self, amount: int) -> None:
        """Counts `amount` bytes. Raises `Refused` when they are too many for the file."""
        self._left -= amount
        if self._left < 0:
            raise Refused("would take far more memory or time than a file of its size may ask for")

    def nest(self, array: np.ndarray, items: Iterable[Any]) -> None:
        """Counts how deep object arrays lie in each other: freeing them recurses in C."""
        levels = self._levels
        level = 1 + max((levels[id(x)][0] for x in items if id(x) in levels), default=0)
        if level > MAX_DEPTH:
            raise Refused(f"nests its values more than {MAX_DEPTH} deep")
        levels[id(array)] = level, array


class Global:
    """Describes a name from the allow-list.

    Attributes:
        name: module and name, with a dot between.
        build: makes what a call of the name returns: `(arguments, limits) -> value`.
        factory: the class of that name, if a defaultdict may make values of it.
    """

    __slots__ = ("name", "build", "factory")

    def __init__(self, name: str, build: Callable, factory: type | None = None) -> None:
        self.name, self.build, self.factory = name, build, factory


class Pending:
    """Stands for an array or a type of array that a file has announced and not yet described.

    Attributes:
        build: makes the value of its description: `(state, limits) -> value`.
        places: indices of the memo under which it was put.
    """

    __slots__ = ("build", "places")

    def __init__(self, build: Callable) -> None:
        self.build, self.places = build, []


def find_global(module: str, name: str) -> Global:
    """Returns the entry of the allow-list; raises `Refused` for every other name."""
    found = ALLOWED.get((module, name))
    if found is None:
        raise Refused(
            f"asks for '{printable(f'{module}.{name}')}', which could run code; only pickles of "
            "numpy arrays, strings, numbers, lists, tuples, sets and dicts are read"
        )
    return found


def set_item(target: dict, key: Any, value: Any, limits: Limits) -> None:
    """Sets an item of a dict; refuses keys whose hash or comparison is expensive."""
    _check_key(target, key, limits)
    target[key] = value


def add_member(target: set, member: Any, limits: Limits) -> None:
    """Adds a member to a set; refuses members whose hash or comparison is expensive."""
    _check_key(target, member, limits)
    target.add(member)


def _check_key(target: dict | set, key: Any, limits: Limits) -> None:
    """Refuses keys other than text, numbers and short flat tuples; counts what comparing costs.

    Hashing a nested tuple walks all of it, every time. Text hashes with a secret. Other keys can be
    chosen to collide with everything in `target`, and are counted as if they did; consecutive
    numbers, as in a vocabulary, are not.
    """
    kind = type(key)
    if kind is str or kind is bytes or (kind is int and abs(key - len(target)) < 1000):
        return
    parts = key if kind is tuple else (key,)
    if len(parts) > 8 or not all(type(p) in _SCALARS or isinstance(p, np.generic) for p in parts):
        raise Refused(f"has a {kind.__name__} as a key that is no string, number or short tuple")
    limits.spend(8 * len(target) + sum(len(p) for p in parts if isinstance(p, np.str_ | np.bytes_)))


# --- builders ---


def _require(ok: bool, name: str) -> None:
    if not ok:
        raise Refused(f"calls {name} with other arguments than numpy or Python would write")


def _codecs_encode(args: tuple, limits: Limits) -> bytes:
    """Builds bytes as protocols 0 to 2 of Python 3 write them."""
    ok = len(args) == 2 and type(args[0]) is type(args[1]) is str
    _require(ok and args[1] in ("latin1", "latin-1"), "_codecs.encode")
    limits.spend(len(args[0]))
    return args[0].encode("latin-1")


def _set(args: tuple, limits: Limits) -> set:
    _require(len(args) == 0 or (len(args) == 1 and type(args[0]) in (list, tuple)), "set")
    members = args[0] if args else ()
    limits.spend(_CONTAINER_BYTES + 128 * len(members))
    made: set = set()
    for member in members:
        add_member(made, member, limits)
    return made


def _frozenset(args: tuple, limits: Limits) -> frozenset:
    return frozenset(_set(args, limits))


def _ordered_dict(args: tuple, limits: Limits) -> collections.OrderedDict:
    _require(len(args) == 0 or (len(args) == 1 and type(args[0]) is list), "OrderedDict")
    pairs = args[0] if args else []
    limits.spend(2 * _CONTAINER_BYTES + 256 * len(pairs))
    made: collections.OrderedDict = collections.OrderedDict()
    for pair in pairs:
        _require(type(pair) in (list, tuple) and len(pair) == 2, "OrderedDict")
        set_item(made, *pair, limits)
    return made


def _defaultdict(args: tuple, limits: Limits) -> collections.defaultdict:
    factory = args[0] if args else None
    known = factory is None or (type(factory) is Global and factory.factory is not None)
    _require(len(args) <= 1 and known, "defaultdict")
    limits.spend(_CONTAINER_BYTES)
    return collections.defaultdict(None if factory is None else factory.factory)


def _no_call(args: tuple, limits: Limits) -> None:
    raise Refused("calls numpy.ndarray, which pickles of arrays only mention")


def _reconstruct(args: tuple, limits: Limits) -> Pending:
    ok = len(args) == 3 and args[0] is NDARRAY and _is_shape(args[1]) and args[1] == (0,)
    _require(ok, "_reconstruct")
    limits.spend(_ARRAY_BYTES)
    return Pending(_array_from_state)


def _array_from_state(state: Any, limits: Limits) -> np.ndarray:
    ok = type(state) is tuple and len(state) in (4, 5)
    ok = ok and all(type(version) is int for version in state[:-4])
    _require(ok and type(state[-2]) in (bool, int), "ndarray.__setstate__")
    shape, dtype, column_major, data = state[-4:]
    return _array(data, dtype, shape, "F" if column_major else "C", limits)


def _frombuffer(args: tuple, limits: Limits) -> np.ndarray:
    """Builds an array as protocol 5 writes it."""
    ok = len(args) in (4, 5) and type(args[3]) is str
    _require(ok and args[3] in (("C", "F") if len(args) == 4 else ("C", "F", "K")), "_frombuffer")
    data, dtype, shape, order, *axes = args
    if order != "K":
        return _array(data, dtype, shape, order, limits)
    array = _array(data, dtype, shape, "C", limits)
    _require(_is_shape(axes[0]) and sorted(axes[0]) == list(range(array.ndim)), "_frombuffer")
    return array.transpose(axes[0])


def _scalar(args: tuple, limits: Limits) -> np.generic:
    ok = len(args) == 2 and isinstance(args[0], np.dtype) and args[0].kind != "O"
    _require(ok, "numpy's scalar")
    return _array(args[1], args[0], (), "C", limits)[()]


def _array(data: Any, dtype: Any, shape: Any, order: str, limits: Limits) -> np.ndarray:
    """Builds an array in the memory of `data`, which must be as long as type and shape say."""
    if not isinstance(dtype, np.dtype) or not _is_shape(shape):
        raise Refused("has an array without a valid type or shape")
    count = math.prod(shape)
    declares = f"has an array of {dtype} of shape {printable(str(shape))}"
    if dtype.kind == "O":  # its content is a list, row by row whatever the order
        if type(data) is not list or len(data) != count:
            raise Refused(f"{declares} without as many objects")
    else:
        data = _raw(data, limits)
        if len(data) != count * dtype.itemsize:
            raise Refused(
                f"{declares}, which takes {count * dtype.itemsize} bytes, but brings {len(data)}"
            )
    # An array without rows must not have 2**60 columns either, because a sum over its rows would
    # have as many values. numpy gives strings without characters the room of one.
    limits.spend(_ARRAY_BYTES + max(dtype.itemsize, 4) * math.prod(n for n in shape if n))
    if dtype.kind == "O":
        array = np.fromiter(data, object, count).reshape(shape)
        limits.nest(array, data)
        return array
    if not data:
        return np.zeros(shape, dtype)
    return _elements(data, dtype).reshape(shape, order=order)


def _elements(data: bytes | bytearray, dtype: np.dtype) -> np.ndarray:
    """Returns a flat view of `data`; refuses bytes that numpy would trust and fail on later."""
    flat = np.frombuffer(data, dtype)
    if dtype.kind == "b" and flat.view(np.uint8).max() > 1:
        raise Refused("has truth values that are neither 0 nor 1")
    if dtype.kind == "U" and not are_characters(data, dtype.byteorder):
        raise Refused("holds characters that Unicode does not have")
    return flat


def _raw(data: Any, limits: Limits) -> bytes | bytearray:
    """Returns the bytes of an array; those of Python 2 have been read as latin-1 text."""
    if type(data) is str:
        limits.spend(len(data))
        return data.encode("latin-1")
    if type(data) not in (bytes, bytearray):
        raise Refused("has an array whose content is not bytes")
    return data


def _is_shape(value: Any) -> bool:
    """Says whether a value is a tuple of sizes, as many as numpy takes, each of 63 bits."""
    ok = type(value) is tuple and len(value) <= 64
    return ok and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _dtype(args: tuple, limits: Limits) -> Pending:
    ok = len(args) == 3 and type(args[0]) is str and {type(args[1]), type(args[2])} <= {bool, int}
    _require(ok, "numpy.dtype")
    if not _TYPE.fullmatch(args[0]):
        raise Refused(
            f"has an array of type '{printable(args[0])}'; expected truth values, integers, "
            "floats of at most 64 bits, strings or objects"
        )
    limits.spend(_ARRAY_BYTES)
    return Pending(functools.partial(_dtype_from_state, args[0]))


def _dtype_from_state(text: str, state: Any, limits: Limits) -> np.dtype:
    """Takes nothing but the byte order of the state: its flags could turn numbers into pointers."""
    dtype = np.dtype(object if text[0] == "O" else text)
    ok = type(state) is tuple and len(state) == 8 and type(state[0]) is type(state[5]) is int
    ok = ok and state[0] == 3 and type(state[1]) is str and state[1] in ("<", ">", "|", "=")
    _require(ok and state[5] in (-1, dtype.itemsize), "dtype.__setstate__")
    if any(part is not None for part in state[2:5]):
        raise Refused("has an array of records; expected numbers, strings or objects")
    return dtype.newbyteorder(state[1])


NDARRAY = Global("numpy.ndarray", _no_call)


def _allowed() -> dict[tuple[str, str], Global]:
    entries = [
        ("numpy", "dtype", _dtype, None),
        ("_codecs", "encode", _codecs_encode, None),
        ("collections", "OrderedDict", _ordered_dict, collections.OrderedDict),
        ("collections", "defaultdict", _defaultdict, collections.defaultdict),
    ]
    for core in ("numpy.core", "numpy._core"):
        entries += [
            (f"{core}.multiarray", "_reconstruct", _reconstruct, None),
            (f"{core}.multiarray", "scalar", _scalar, None),
            (f"{core}.numeric", "_frombuffer", _frombuffer, None),
        ]
    for builtins in ("builtins", "__builtin__"):
        entries += [(builtins, "set", _set, set), (builtins, "frozenset", _frozenset, frozenset)]
    table = {(m, name): Global(f"{m}.{name}", *rest) for m, name, *rest in entries}
    return table | {("numpy", "ndarray"): NDARRAY}


ALLOWED = _allowed()
