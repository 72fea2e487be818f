"""Says what a command is doing whenever it has said nothing for a while.

Bars and lines of training say the rest: where one begins, `now()` ends what is said here.
"""

import logging
import threading
import time

SECONDS = 1.5  # without a line, before there is one

logger = logging.getLogger(__name__)

_changed = threading.Condition()
_stage = ""
_is_watching = False  # never in a notebook, where nothing is said


def begin(stage: str, since: float | None = None) -> None:
    """Begins to watch the time of a command, whose first stage this is.

    It began at `since`, by time.monotonic(); None for now.
    """
    global _is_watching
    _is_watching = True
    now(stage)
    last = since or time.monotonic()
    threading.Thread(target=_watch, args=(last,), name="announce", daemon=True).start()


def now(stage: str = "") -> None:
    """Notes what is done from now on, such as "Reading a.npz"; nothing where a bar shows it."""
    global _stage
    if _is_watching:
        with _changed:
            _stage = stage
            _changed.notify()


def _watch(last: float) -> None:
    """Logs the stage once it is new and nothing has been said for `SECONDS` since `last`."""
    said = ""
    while True:
        with _changed:
            _changed.wait_for(lambda said=said: _stage not in ("", said))
            while (left := last + SECONDS - time.monotonic()) > 0:
                _changed.wait(left)
            stage = _stage
        if stage not in ("", said):
            logger.info("%s ...", stage)
            said, last = stage, time.monotonic()
