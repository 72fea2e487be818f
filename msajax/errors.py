"""The ways in which a run may end early without a bug in the program, and its exit codes."""

import contextlib
from collections.abc import Iterator

OK, USER_ERROR, NON_FINITE, STOPPED = 0, 2, 3, 75  # exit codes


class UserError(ValueError):
    """A mistake in the flags, the configuration, the data or the files: one sentence, exit code 2.

    The message says what was wrong, where, and what would be right.
    """


class NonFiniteError(ArithmeticError):
    """The loss of every random seed is no longer a finite number: exit code 3."""


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Names the file that cannot be written: the system's own error about a full disk does not.

    Raises:
        UserError: in place of an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def first_line(error: BaseException) -> str:
    """What an error of a library says first."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
