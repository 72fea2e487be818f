"""Lets one process at a time train in a run's folder."""

import contextlib
import fcntl
import json
import os
import socket
import time
from typing import Any

from msajax.errors import UserError, writing
from msajax.runs.manifest import LOCK
from msajax.runtime import processes


class Lock(contextlib.AbstractContextManager):
    """Holds a run's folder for the first of this run's processes.

    The operating system keeps the lock (flock), so that it ends with its owner, however that dies.
    The file only names the owner, and stays.
    """

    def __init__(self, folder: str) -> None:
        """Prepares to lock `folder`, which exists."""
        self._path, self._file = os.path.join(folder, LOCK), None

    def __enter__(self) -> "Lock":
        """Takes the lock; raises `UserError`, in all processes, naming another owner."""
        processes.of_first(self._take)
        return self

    def __exit__(self, *exc_info) -> None:
        """Gives the lock back."""
        if self._file is not None:
            self._file.close()

    def _take(self) -> None:
        with contextlib.ExitStack() as closes, writing(self._path):
            file = closes.enter_context(open(self._path, "a+b", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise UserError(
                    f"The workdir {os.path.dirname(self._path)} is in use by "
                    f"{describe_owner(file.read())}: wait until it is done, or choose another "
                    "--workdir."
                ) from error
            except OSError as error:
                raise UserError(
                    f"{self._path} cannot be locked: {error.strerror}. A workdir must lie on a "
                    "file system with locks."
                ) from error
            file.truncate(0)
            file.write(json.dumps(this_process()).encode())
            closes.pop_all()
            self._file = file


def this_process() -> dict[str, Any]:
    """Describes this process as the owner of a lock, for the file."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": time.ctime()}


def describe_owner(text: bytes) -> str:
    """Names the owner that a lock's file describes, in words."""
    try:
        owner = json.loads(text)
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (ValueError, LookupError, TypeError):
        return "another process"  # which has the lock, but has not described itself yet
