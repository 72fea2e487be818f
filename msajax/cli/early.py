"""Ends a process at SIGTERM and SIGINT in one line while it is being loaded.

It imports nothing that takes time, so that no moment is left in which a signal gives a traceback.
"""

import os
import signal
import time
from typing import Any, NoReturn

began: float | None = None  # when the command did, by time.monotonic()


def end_at_signals() -> None:
    """Lets SIGTERM and SIGINT end the process: nothing is written before a mode begins."""
    global began
    began = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, frame: Any) -> NoReturn:
    del frame
    try:
        os.write(2, f"error: Stopped by {signal.Signals(number).name}.\n".encode())
    finally:
        os._exit(128 + number)
