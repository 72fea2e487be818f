"""Defines the errors that end a run early without a bug in the program, and the exit codes."""

import contextlib
import difflib
import functools
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

OK, USER_ERROR, NON_FINITE, STOPPED = 0, 2, 3, 75  # exit codes


class UserError(ValueError):
    """Reports a mistake in flags, configuration, data or files: one sentence, exit code 2.

    The message says what was wrong, where, and what would be right.
    """


class NonFiniteError(ArithmeticError):
    """Reports that the loss of every random seed is no longer a finite number: exit code 3."""


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Names the file that cannot be written, as the system's own error about a full disk does not.

    Raises:
        UserError: in place of an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Names the file or folder that cannot be read, as `writing` does."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def first_line(error: BaseException) -> str:
    """Returns the first line of a library's error, or its type if it says nothing."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean 'audio'?`, with what is known by nearly the same name, or ""."""
    near = difflib.get_close_matches(word, known, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def failure_of(path: str, error: BaseException) -> str:
    """Says where a user's Python file failed, and why: `, line 3: ValueError: …`."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f", line {lines[-1]}" if lines else ""
    return f"{where}: {type(error).__name__}: {first_line(error)}"


def line_of_user() -> str:
    """Says which line outside this package is running, as `my_model.py, line 3: `; "" for none."""
    frame, package = sys._getframe(1), os.path.dirname(__file__) + os.sep
    # <string> is the code that dataclasses write.
    while frame and (frame.f_code.co_filename + os.sep).startswith((package, "<string>")):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith("<"):
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}: "


def place_of(function: Any) -> str:
    """Says where a user's function begins, as `my_model.py, line 3: `; "" for one of a library."""
    while isinstance(function, functools.partial):
        function = function.func
    code, package = getattr(function, "__code__", None), os.path.dirname(__file__) + os.sep
    if code is None or code.co_filename.startswith((package, "<")):
        return ""
    return f"{os.path.basename(code.co_filename)}, line {code.co_firstlineno}: "


def on_one_line(text: str) -> str:
    """Escapes control characters and line breaks of text from a file or a command line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """Shortens text from a file to a part of a sentence, on one line."""
    return on_one_line(text[:100])[:100]
