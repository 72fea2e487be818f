"""Handles requests to stop: what SIGTERM and SIGINT do to a run, and to the other modes."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from msajax.errors import STOPPED

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# After these a process that is asked to stop, and has not begun to save, ends without saving:
# schedulers kill soon.
PATIENCE_SECONDS = 8.0
_scratch: set[str] = set()  # folders that must not outlive this process


class StopRequest(contextlib.AbstractContextManager):
    """Listens to SIGTERM and SIGINT while it is entered.

    The first signal is noted; the run serves it between two dispatches, or while it waits for a
    program, by saving a checkpoint. If it has not begun to after `PATIENCE_SECONDS`, because a
    corpus is read, the process ends with the exit code of a stopped run all the same: the
    checkpoint before stands, and what follows it comes out again bit for bit. A second signal ends
    the process at once, with 128 plus its number.

    Attributes:
        requested: whether a signal has come.
    """

    def __init__(self) -> None:
        """Prepares to listen, but does not begin to."""
        self.requested = False
        self._served = False
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "StopRequest":
        """Begins to listen."""
        # A thread listens: Python calls a handler only between two of its own instructions, and
        # compiling a program, which is one of them, takes many seconds.
        ear, mouth = socket.socketpair()
        mouth.setblocking(False)
        listener = threading.Thread(target=self._listen, args=(ear,), daemon=True)
        listener.start()
        self._undo.callback(listener.join)
        self._undo.callback(mouth.close)  # which ends the listener
        before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        self._undo.callback(signal.set_wakeup_fd, before)
        self._undo.enter_context(_handled_by(lambda number, frame: None))
        return self

    def __exit__(self, *exc_info) -> None:
        """Lets signals do what they did before."""
        self._undo.close()

    def serve(self) -> None:
        """Notes that the run saves and ends: it is waited for, however long that takes."""
        self._served = True

    def _listen(self, ear: socket.socket) -> None:
        came = 0.0
        with ear:
            while True:
                waiting = self.requested and not self._served
                left = came + PATIENCE_SECONDS - time.monotonic()
                ear.settimeout(max(left, 0.001) if waiting else None)
                try:
                    heard = ear.recv(1)
                except TimeoutError:
                    if not self._served:
                        _say("This takes long: leaving at once; the same command continues.")
                        leave(STOPPED)
                    continue
                if not heard:
                    return
                if heard[0] in SIGNALS:
                    if self.requested:
                        leave(128 + heard[0])
                    name = signal.Signals(heard[0]).name
                    _say(f"{name}: stopping after this step; once more: at once.")
                    came, self.requested = time.monotonic(), True


class Interrupted(KeyboardInterrupt):
    """Says that SIGTERM or SIGINT has come, in a mode that has nothing to save.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        """Keeps the number of the signal, and names it in the message."""
        super().__init__(f"Stopped by {signal.Signals(number).name}.")
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGTERM and SIGINT into an exception, so that unfinished files are removed.

    A second signal ends the process at once, with 128 plus its number.

    Raises:
        Interrupted: at the first signal.
    """
    heard = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        if heard:
            leave(128 + number)
        heard.append(number)
        raise Interrupted(number)

    with _handled_by(interrupt):
        yield


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Lends a private folder for temporary files; it goes at the end, and at `leave`."""
    path = tempfile.mkdtemp(prefix="msajax-")
    _scratch.add(path)
    try:
        yield path
    finally:
        _scratch.discard(path)
        _remove(path)


def is_kept(path: str) -> bool:
    """Returns whether a scratch folder is still whole, because nobody has begun to remove it."""
    return path in _scratch


def leave(code: int) -> NoReturn:
    """Ends the process at once; of all that is to be tidied up, only removes scratch folders."""
    while _scratch:
        _remove(_scratch.pop())
    if os.isatty(2):
        os.write(2, b"\033[?25h")  # the cursor, which a bar hides
    os._exit(code)


def _remove(path: str) -> None:
    for _ in range(3):  # a thread may be writing into it
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _handled_by(handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _say(text: str) -> None:
    # Not by logging or print: they may be at work just now, and neither can be entered twice.
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
