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
    """Turns the error of a file that cannot be written into a `UserError` that names it."""
    try:
        yield
    except OSError as error:
        # A write that is cut short, as NumPy's on a full disk, has no name of its own.
        why = error.strerror or first_line(error)
        raise UserError(f"{path} cannot be written: {why}.") from error


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns the error of a file or folder that cannot be read into a `UserError` that names it."""
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


def user_failure(path: str, error: BaseException) -> str:
    """Says where a user's Python file failed, and why: `, line 3: ValueError: …`."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f", line {lines[-1]}" if lines else ""
    return f"{where}: {type(error).__name__}: {first_line(error)}"


def user_line(function: Any = None) -> str:
    """Says where code of the user's is, as `my_model.py, line 3: `; "" where it is none of theirs.

    It is the line where a function begins, or without one the line outside this package that runs.
    """
    package = os.path.dirname(__file__) + os.sep
    if function is None:
        frame = sys._getframe(1)
        # <string> is the code that dataclasses write.
        while frame and (frame.f_code.co_filename + os.sep).startswith((package, "<string>")):
            frame = frame.f_back
        file, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("<none>", 0)
    else:
        while isinstance(function, functools.partial):
            function = function.func
        code = getattr(function, "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code else ("<none>", 0)
    return "" if file.startswith((package, "<")) else f"{os.path.basename(file)}, line {line}: "


def on_one_line(text: str) -> str:
    """Escapes control characters and line breaks of text from a file or a command line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """Shortens text from a file to a part of a sentence, on one line."""
    return on_one_line(text[:100])[:100]
