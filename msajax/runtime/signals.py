"""Handles requests to stop: what SIGTERM and SIGINT do to a run, and to the other modes.

A thread hears them. Python calls a handler only between two instructions of the main thread, and
compiling a program, which is one of them, takes many seconds; and an exception that a handler
raises can come up anywhere, also where a library swallows it or crashes.
"""

import atexit
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from msajax.errors import STOPPED
from msajax.files import remove_unfinished

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# After these a process that is asked to stop, and has not begun to save, ends without saving:
# schedulers kill soon.
PATIENCE_SECONDS = 8.0
FOLLOWS = "MSAJAX_FOLLOWS_STDIN"  # an environment variable: see `follow_parent`
TIDYING_SECONDS = 0.2  # after a second signal


class StopRequest(contextlib.AbstractContextManager):
    """Listens to SIGTERM and SIGINT while it is entered.

    While a run starts, and has nothing to save, the first signal ends the process at once: with the
    exit code of a stopped run after SIGTERM, and where the same command goes on with what is there;
    else with 128 plus its number. From `will_serve` on it is noted; the run serves it between two
    dispatches, or while it waits for a program, by saving a checkpoint. If it has not begun to
    after `PATIENCE_SECONDS`, because the run measures, the process ends with the exit code of a
    stopped run all the same: the checkpoint before stands, and what follows it comes out again bit
    for bit. A second signal ends the process at once, with 128 plus its number.
    """

    def __init__(self, has_begun: Callable[[], bool] = lambda: False) -> None:
        """Prepares to listen, but does not begin to; asks `has_begun` if a start is stopped."""
        self.requested = False
        self._has_begun = has_begun
        self._will_serve, self._served = False, False
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "StopRequest":
        """Begins to listen."""
        self._undo.enter_context(_listening(self._listen))
        self._undo.enter_context(_handled_by(_do_nothing))
        return self

    def __exit__(self, *exc_info) -> None:
        """Lets signals do what they did before."""
        self._undo.close()

    def will_serve(self) -> None:
        """Notes that signals are served from now on: the run has started."""
        self._will_serve = True

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
                    if not (self._will_serve or self._served):
                        self._leave_start(heard[0], name)
                    _say(f"{name}: stopping after this step; once more: at once.")
                    came, self.requested = time.monotonic(), True

    def _leave_start(self, number: int, name: str) -> NoReturn:
        if self._has_begun():
            _say(f"{name} while starting; the same command continues.")
            leave(STOPPED)
        _say(f"{name} while starting: nothing was trained yet; the same command begins anew.")
        leave(STOPPED if number == signal.SIGTERM else 128 + number)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ends the process at SIGTERM or SIGINT, in a mode that has nothing to save.

    It says so in one line, removes unfinished files, and exits with 128 plus the signal's number.
    After a second signal that may take `TIDYING_SECONDS` more. Signals are heard until the process
    ends, also when the context has been left.
    """
    leaving = threading.Event()

    def stop(number: int) -> NoReturn:
        _say(f"error: Stopped by {signal.Signals(number).name}.")
        leave(128 + number)

    def listen(ear: socket.socket) -> None:
        leaver = None
        with ear:
            while heard := ear.recv(1):
                if heard[0] not in SIGNALS:
                    continue
                if leaver is not None:
                    leaver.join(TIDYING_SECONDS)
                    os._exit(128 + heard[0])
                leaving.set()
                leaver = threading.Thread(target=stop, args=(heard[0],), daemon=True)
                leaver.start()
        if leaver is not None:
            leaver.join()

    hearing = contextlib.ExitStack()
    hearing.enter_context(_listening(listen))
    for number in SIGNALS:
        signal.signal(number, _do_nothing)

    def finish() -> None:
        # Python would give signals back their power to kill while it takes libraries down.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        hearing.close()

    atexit.register(finish)
    try:
        yield
    finally:
        if leaving.is_set():  # what came up because files were removed is not to be told
            threading.Event().wait()


def follow_parent() -> None:
    """Asks this process to stop, as SIGTERM does, once what holds its standard input has gone.

    A process that sets `FOLLOWS` for another one does not leave it behind, however it ends itself.
    """
    if os.environ.pop(FOLLOWS, ""):

        def follow() -> None:
            while os.read(0, 1):
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=follow, daemon=True).start()


def leave(code: int) -> NoReturn:
    """Ends the process at once; of all that is to be tidied up, only removes unfinished files."""
    try:
        remove_unfinished()
        if os.isatty(2):
            os.write(2, b"\033[?25h")  # the cursor, which a bar hides
    finally:
        os._exit(code)


@contextlib.contextmanager
def _listening(listen: Callable[[socket.socket], None]) -> Iterator[None]:
    """Has a thread call `listen` with a socket on which each signal's number comes, a byte each."""
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    listener = threading.Thread(target=listen, args=(ear,), daemon=True)
    listener.start()
    before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        mouth.close()  # which ends the listener
        listener.join()


@contextlib.contextmanager
def _handled_by(handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _do_nothing(*_) -> None:
    """Handles a signal for Python, which tells the listening thread of those with handlers."""


def _say(text: str) -> None:
    # Not by logging or print: they may be at work just now, and neither can be entered twice.
    with contextlib.suppress(OSError):
        start = "\r\033[2K" if os.isatty(2) else ""  # in place of a bar
        os.write(2, f"{start}{text}\n".encode())
