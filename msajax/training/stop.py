"""Requests to stop: noted when they come, served between two dispatches."""

import contextlib
import os
import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest(contextlib.AbstractContextManager):
    """Listens to SIGTERM and SIGINT while it is entered.

    The first one is noted; a second one ends the process at once, with 128 plus its number. A
    checkpoint that is being written then is left behind unfinished, and the one before it stands.

    Attributes:
        requested: whether a signal has come.
    """

    def __init__(self) -> None:
        """Listens to nothing yet."""
        self.requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        """Begins to listen."""
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exc_info) -> None:
        """Lets signals do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested:
            os._exit(128 + number)
        self.requested = True
        # Not by logging or print: they may be at work just now, and neither can be entered twice.
        text = f"{signal.Signals(number).name}: stopping after this step; once more: at once.\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
