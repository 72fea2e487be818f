"""Follows the opcodes of pickle protocols 0 to 5, without the power to import or to call.

Python's own unpickler trusts its input: it imports, calls, sets attributes, and reserves whatever
a file declares. This one makes lists, tuples, dicts, sets, text and numbers, gives every call to
the builders of `allow_list.py`, and reads no more than is there: every size that the file declares
is compared with what is left of it before anything is allocated. Scanning a file before Python's
unpickler reads it would take as long, and numpy's constructors would still trust what it says.
"""

import codecs
import re
import struct
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, BinaryIO

from msajax.corpus.pickles.allow_list import Global, Limits, Pending, Refused, add_member, set_item
from msajax.errors import printable

# Longer numbers are in no corpus, and reading them takes more than linear time.
_DIGITS = 640
_NOTHING = object()  # what the memo holds where nothing was put
# Bytes that Python allocates for one or two of the file: an empty list or dict, and a set.
_LIST_BYTES, _SET_BYTES = 80, 240
# No corpus has longer numbers, and hashing them takes long.
_INTEGER_BYTES = 255
_UINT8, _INT32 = struct.Struct("<B"), struct.Struct("<i")
_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")
_FOREIGN_ESCAPE = re.compile(rb"\\(?![xnrt'\"])")
# What holds tables, columns or strings in a form of its own, and what can be done.
_TABLE = "msajax.save_corpus makes a corpus of such a table"
_INSTEAD = {
    "pandas.DataFrame": _TABLE,
    "pandas.core.frame.DataFrame": _TABLE,
    "polars.dataframe.": _TABLE,
    "pandas._libs.missing.": "fill what is missing, as .fillna('') does for text",
    "pandas._libs.tslibs.": "store text or numbers instead",
    "pandas.": "store its .to_numpy(dtype=object) instead",
    "polars.": "store its .to_list() instead",
    "pyarrow.": "store its .to_pylist() instead",
    "numpy._core._internal._convert_to_stringdtype": "store its .astype(object) instead",
}


class Truncated(Refused):
    """Says that a file ends too early, or declares more than it has."""


class Machine:
    """Holds what is known of a pickle between two opcodes.

    It begins with a file at its beginning, of `size` bytes. `find_global` returns the entry for a
    module and a name, or raises `Refused`.

    Attributes:
        stack: values above the last mark.
        marked: the stacks below each mark.
        memo: values to which the file can refer by an index.
    """

    def __init__(
        self, file: BinaryIO, size: int, limits: Limits, find_global: Callable[[str, str], Global]
    ) -> None:
        self.file = file
        self.size = size
        self.limits = limits
        self.find_global = find_global
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: list[Any] = []

    def take(self, count: int) -> bytes:
        """Reads the next `count` bytes."""
        if not 0 <= count <= 64:  # a few bytes need no check: a short read tells that they lack
            self.check_left(count)
        data = self.file.read(count)
        if len(data) != count:
            raise Truncated("ends too early")
        return data

    def check_left(self, count: int) -> None:
        """Refuses a declared size before anything of that size is allocated."""
        if count < 0:
            raise ValueError("a negative size")
        left = self.size - self.file.tell()
        if count > left:
            raise Truncated(f"declares {count} bytes where {left} are left")

    def number(self, packing: struct.Struct) -> Any:
        """Reads a number of fixed size."""
        return packing.unpack(self.take(packing.size))[0]

    def line(self) -> bytes:
        """Reads the rest of the line, without its end."""
        line = self.file.readline()
        if line[-1:] != b"\n":
            raise Truncated("ends too early")
        return line[:-1]

    def digits(self) -> bytes:
        """Reads a line that holds a number."""
        line = self.line()
        if len(line) > _DIGITS + len("-L"):
            raise Refused(f"holds a number of {len(line)} digits")
        return line

    def pop_mark(self) -> list[Any]:
        """Removes the last mark and returns the values above it."""
        items, self.stack = self.stack, self.marked.pop()
        return items

    def put(self, index: int) -> None:
        """Stores the value on top of the stack in the memo."""
        value, memo = self.stack[-1], self.memo
        if index == len(memo):
            memo.append(value)
        elif index < len(memo):
            if index < 0:
                raise ValueError("a negative index")
            memo[index] = value
        else:
            # An index far beyond what was put would make the memo larger than the file.
            if index > self.file.tell():
                raise ValueError("an index that so short a file has no use for")
            memo.extend([_NOTHING] * (index - len(memo)))
            memo.append(value)
        if type(value) is Pending:
            value.places.append(index)

    def get(self, index: int) -> None:
        """Pushes a value of the memo."""
        value = self.memo[index]
        if value is _NOTHING or index < 0:
            raise ValueError("an index that holds nothing")
        self.stack.append(value)

    def keys(self) -> list[str]:
        """Returns, for a message, the keys of dicts that lead to the value that is being read."""
        keys, below = [], None
        for level in [*self.marked, self.stack]:
            for i in range(len(level) - 1, max(-1, len(level) - 4), -1):
                # A key stands behind its dict; several items at once, alternating, behind a mark.
                behind = isinstance(level[i - 1], dict) if i else False
                among = isinstance(below, dict) and i % 2 == 0
                if isinstance(level[i], str) and (behind or among):
                    keys.append(printable(level[i]))
                    break
            below = level[-1] if level else None
        return keys[:4]

    def push(self, value: Any, cost: int = 0) -> None:
        """Puts a value on the stack; `cost` is what it takes beyond its bytes in the file."""
        self.limits.spend(cost)
        self.stack.append(value)


class _Finished(Exception):
    """Says that the opcode STOP was reached."""


def follow(machine: Machine) -> Any:
    """Follows the opcodes of a file up to STOP, and returns the value that the file holds.

    Raises:
        Refused: for content that is not read.
        Truncated: for a file that ends too early.
        IndexError, OverflowError, TypeError, ValueError: for a damaged file.
    """
    read = machine.file.read
    try:
        while code := read(1):
            _OPCODES[code[0]](machine)
    except _Finished:
        (value,) = machine.stack
        if machine.marked:
            raise ValueError("a mark is left") from None
        return value
    raise Truncated("ends too early")


def is_opcode(code: int) -> bool:
    """Says whether a byte is an opcode of any protocol."""
    return _OPCODES[code] is not _unknown


def _unknown(m: Machine) -> None:
    raise ValueError("not an opcode")


def _sized(packing: struct.Struct, convert: Callable[[bytes], Any]) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(convert(m.take(m.number(packing))))


def _fixed(format: str) -> Callable[[Machine], None]:
    packing = struct.Struct(format)
    return lambda m: m.stack.append(m.number(packing))


def _refused(name: str) -> Callable[[Machine], None]:
    def refuse(m: Machine) -> None:
        raise Refused(f"uses the opcode {name}, which data alone never needs")

    return refuse


def _latin1(data: bytes) -> str:
    return data.decode("latin-1")


def _utf8(data: bytes) -> str:
    return data.decode("utf-8")


def _integer(data: bytes) -> int:
    if len(data) > _INTEGER_BYTES:
        raise Refused(f"holds an integer of {len(data)} bytes")
    return int.from_bytes(data, "little", signed=True)


def _int_or_bool(line: bytes) -> int:
    return line == b"01" if line in (b"00", b"01") else int(line)


def _quoted(line: bytes) -> str:
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise ValueError("a string without quotes")
    line = line[1:-1]
    # codecs only warns of escapes that Python 2 never wrote.
    if _FOREIGN_ESCAPE.search(line.replace(rb"\\", b"")):
        raise ValueError("an unknown escape")
    return _latin1(codecs.escape_decode(line)[0])


def _escaped(line: bytes) -> str:
    text = line.decode("raw-unicode-escape")
    text.encode("utf-8")  # fails for one half of a surrogate pair
    return text


def _bytearray(m: Machine) -> None:
    count = m.number(_UINT64)
    m.check_left(count)
    data = bytearray(count)
    if m.file.readinto(data) != count:
        raise Truncated("ends too early")
    m.stack.append(data)


def _protocol(m: Machine) -> None:
    version = m.number(_UINT8)
    if version > 5:
        raise Refused(f"is a pickle of protocol {version}; 0 to 5 are known")


def _stop(m: Machine) -> None:
    raise _Finished


def _mark(m: Machine) -> None:
    m.limits.spend(_LIST_BYTES)
    m.marked.append(m.stack)
    m.stack = []


def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()


def _tuple(size: int) -> Callable[[Machine], None]:
    def gather(m: Machine) -> None:
        m.limits.spend(_LIST_BYTES)
        m.stack[-size:] = [tuple(m.stack[-size:])]

    return gather


def _extend(m: Machine, items: list[Any]) -> None:
    target = m.stack[-1]
    if type(target) is not list:
        raise TypeError("items for something that is no list")
    target.extend(items)


def _update(m: Machine, items: list[Any]) -> None:
    target = m.stack[-1]
    if type(target) not in (dict, OrderedDict, defaultdict):
        raise TypeError("items for something that is no dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        set_item(target, key, value, m.limits)


def _dict(m: Machine) -> None:
    items = m.pop_mark()
    m.push({}, _LIST_BYTES)
    _update(m, items)


def _unite(m: Machine, members: list[Any]) -> None:
    target = m.stack[-1]
    if type(target) is not set:
        raise TypeError("members for something that is no set")
    for member in members:
        add_member(target, member, m.limits)


def _push_frozenset(m: Machine) -> None:
    members = m.pop_mark()
    m.push(set(), _SET_BYTES)
    _unite(m, members)
    m.stack[-1] = frozenset(m.stack[-1])


def _push_global(m: Machine, module: Any, name: Any) -> None:
    if type(module) is not str or type(name) is not str:
        raise TypeError("a name that is no text")
    try:
        m.stack.append(m.find_global(module, name))
    except Refused as error:
        keys = m.keys()
        place = f"; it stands at {'/'.join(keys)!r}" if keys else ""
        for origin, advice in _INSTEAD.items():
            if f"{module}.{name}".startswith(origin):
                raise Refused(f"{error}{place}; {advice}") from None
        raise Refused(f"{error}{place}") from None


def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    _push_global(m, module, name)


def _inst(m: Machine) -> None:
    m.find_global(_utf8(m.line()), _utf8(m.line()))
    raise Refused("uses the opcode INST, which data alone never needs")


def _reduce(m: Machine) -> None:
    arguments, function = m.stack.pop(), m.stack[-1]
    if type(function) is not Global or type(arguments) is not tuple:
        raise TypeError("a call of something that is no function")
    m.stack[-1] = function.build(arguments, m.limits)


def _build(m: Machine) -> None:
    state, target = m.stack.pop(), m.stack[-1]
    if type(target) is not Pending:
        raise Refused("changes a value that is finished, which data alone never needs")
    m.stack[-1] = target.build(state, m.limits)
    for index in target.places:
        if m.memo[index] is target:
            m.memo[index] = m.stack[-1]


_NEVER_NEEDED = {
    **{"o": "OBJ", "\x81": "NEWOBJ", "\x92": "NEWOBJ_EX", "P": "PERSID", "Q": "BINPERSID"},
    **{"\x82": "EXT1", "\x83": "EXT2", "\x84": "EXT4"},
    **{"\x97": "NEXT_BUFFER", "\x98": "READONLY_BUFFER"},
}
_OPCODES: list[Callable[[Machine], None]] = [_unknown] * 256
for _code, _follow in {
    # numbers, constants
    "N": lambda m: m.stack.append(None),
    "\x88": lambda m: m.stack.append(True),
    "\x89": lambda m: m.stack.append(False),
    "K": _fixed("<B"),
    "M": _fixed("<H"),
    "J": _fixed("<i"),
    "G": _fixed(">d"),
    "\x8a": _sized(_UINT8, _integer),
    "\x8b": _sized(_INT32, _integer),
    "I": lambda m: m.stack.append(_int_or_bool(m.digits())),
    "L": lambda m: m.stack.append(int(m.digits().removesuffix(b"L"))),
    "F": lambda m: m.stack.append(float(m.digits())),
    # text and bytes; S, T and U are the str of Python 2
    "S": lambda m: m.stack.append(_quoted(m.line())),
    "T": _sized(_INT32, _latin1),
    "U": _sized(_UINT8, _latin1),
    "V": lambda m: m.stack.append(_escaped(m.line())),
    "X": _sized(_UINT32, _utf8),
    "\x8c": _sized(_UINT8, _utf8),
    "\x8d": _sized(_UINT64, _utf8),
    "B": _sized(_UINT32, bytes),
    "C": _sized(_UINT8, bytes),
    "\x8e": _sized(_UINT64, bytes),
    "\x96": _bytearray,
    # the stack and the memo
    "(": _mark,
    "0": _pop,
    "1": lambda m: m.pop_mark(),
    "2": lambda m: m.stack.append(m.stack[-1]),
    "p": lambda m: m.put(int(m.digits())),
    "q": lambda m: m.put(m.number(_UINT8)),
    "r": lambda m: m.put(m.number(_UINT32)),
    "\x94": lambda m: m.put(len(m.memo)),
    "g": lambda m: m.get(int(m.digits())),
    "h": lambda m: m.get(m.number(_UINT8)),
    "j": lambda m: m.get(m.number(_UINT32)),
    # containers
    "]": lambda m: m.push([], _LIST_BYTES),
    "l": lambda m: m.push(m.pop_mark()),
    "a": lambda m: _extend(m, [m.stack.pop()]),
    "e": lambda m: _extend(m, m.pop_mark()),
    ")": lambda m: m.stack.append(()),
    "\x85": _tuple(1),
    "\x86": _tuple(2),
    "\x87": _tuple(3),
    "t": lambda m: m.push(tuple(m.pop_mark()), _LIST_BYTES),
    "}": lambda m: m.push({}, _LIST_BYTES),
    "d": _dict,
    "s": lambda m: _update(m, [m.stack.pop(-2), m.stack.pop()]),
    "u": lambda m: _update(m, m.pop_mark()),
    "\x8f": lambda m: m.push(set(), _SET_BYTES),
    "\x90": lambda m: _unite(m, m.pop_mark()),
    "\x91": _push_frozenset,
    # names, calls and states
    "c": lambda m: _push_global(m, _utf8(m.line()), _utf8(m.line())),
    "\x93": _stack_global,
    "R": _reduce,
    "b": _build,
    "i": _inst,
    **{code: _refused(name) for code, name in _NEVER_NEEDED.items()},
    # the file itself
    "\x80": _protocol,
    "\x95": lambda m: m.check_left(m.number(_UINT64)),
    ".": _stop,
}.items():
    _OPCODES[ord(_code)] = _follow
