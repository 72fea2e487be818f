"""Holds a pickle that is being read: its bytes, its stack and its memo.

Every size that the file declares is compared with what is left of it before anything is allocated.
"""

import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from msajax.corpus.pickles.allow_list import Global, Limits, Pending, Refused
from msajax.errors import printable

# Longer numbers are in no corpus, and reading them takes more than linear time.
_DIGITS = 640
_NOTHING = object()  # what the memo holds where nothing was put


class Truncated(Refused):
    """Says that a file ends too early, or declares more than it has."""


class Machine:
    """Holds what is known of a pickle between two opcodes.

    Args:
        file: the pickle, at its beginning.
        size: bytes that the file has.
        limits: what the file may cause.
        find_global: returns the entry for a module and a name, or raises `Refused`.

    Attributes:
        stack: values above the last mark.
        marked: the stacks below each mark.
        memo: what the file can refer to by an index.
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
