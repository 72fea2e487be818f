"""Runs the command line: one mode, one exit code. `flags.py` says what can be asked."""

from msajax.cli import early

# What follows takes a while to load, and an import that is interrupted prints a traceback.
if __name__ == "__main__":
    early.end_at_signals()

import gc
import io
import logging
import os
import sys
import warnings
from typing import TextIO

from absl import app
from rich.console import Console

from msajax import __version__, announce
from msajax.cli import flags
from msajax.cli.modes import run_mode
from msajax.errors import NON_FINITE, OK, USER_ERROR, NonFiniteError, UserError
from msajax.runtime.compile import is_compiling
from msajax.runtime.signals import follow_parent, interruptible


def run() -> None:
    """Parses the command line, runs one mode and exits with its code."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened, a run's perhaps, would replace it
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = _opened(sys.stdout, 1), _opened(sys.stderr, 2)
    follow_parent()
    # Importing and tracing make millions of objects that stay; looking through all of them every
    # few thousand is a fifth of the time until the first step.
    gc.set_threshold(100_000, 10, 10)
    app.run(main, flags_parser=flags.parse_flags)


def main(argv: list[str]) -> int:
    """Runs the mode that the flags name and returns the exit code."""
    del argv
    if flags.VERSION.value:
        print(f"msajax {__version__}")
        return OK
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("msajax")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    warnings.showwarning = lambda message, *_: logger.warning("%s", message)

    # What ends the mode early becomes one line and an exit code.
    announce.begin("Loading the program", early.began)
    try:
        with interruptible():
            flags.refuse_strangers()
            flags.refuse_remote_paths()
            options = flags.options().with_fetched_encoder()
            console = Console(width=None if sys.stdout.isatty() else 100)
            code = run_mode(options, console)
    except UserError as error:
        flags.complain(str(error))
        code = USER_ERROR
    except NonFiniteError as error:
        flags.complain(str(error))
        code = NON_FINITE
    except OSError as error:  # a disk that is full, a folder that has gone: no bug of the program
        place = f"{error.filename}: " if error.filename else ""
        flags.complain(f"{place}{error.strerror or error}.")
        code = USER_ERROR
    finally:
        announce.now()

    sys.stdout.flush()
    lost = sys.stdout.buffer.raw.problem
    if code == OK and lost is not None and not isinstance(lost, BrokenPipeError):
        flags.complain(f"Standard output cannot be written: {lost.strerror}.")
        code = USER_ERROR
    if code != OK and (flags.runs_with_others() or is_compiling()):
        # An orderly exit waits for other processes, which may wait for this one, and for a program
        # that is being compiled: in the middle of it LLVM cannot be taken down.
        sys.stderr.flush()
        os._exit(code)
    return code


class _Stream(io.FileIO):
    """Writes standard output or error, whose loss must not decide how a mode ends.

    A reader that goes early, such as `head`, has read enough.
    """

    problem: OSError | None = None  # the last error of writing

    def write(self, data: bytes) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            self.problem = error
            return len(data)


def _opened(stream: TextIO | None, descriptor: int) -> TextIO:
    """Makes what replaces a standard stream, also one that was closed from the start."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Stream(descriptor, "w", closefd=False)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


if __name__ == "__main__":
    run()
