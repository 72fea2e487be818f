"""Measures the rows of a table of recordings, each in a process that may die of it."""

import contextlib
import dataclasses
import glob
import hashlib
import json
import logging
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from msajax import announce
from msajax.errors import UserError, printable, writing
from msajax.files import put_in_place, scratch_folder
from msajax.recordings.row import FACTS
from msajax.recordings.settings import Settings
from msajax.recordings.table import Row

logger = logging.getLogger(__name__)

_WALL = 10  # seconds on the clock for each of processor time
_MAPPED = 1 << 20  # bytes from which an array stays on disk until it is padded
_LOG_SECONDS = 60.0  # between lines of progress in a log
_POLL = 0.1  # seconds


class Stopped(Exception):
    """Says that `extract` was asked to stop; a second start goes on."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Holds what was measured of a row.

    Attributes:
        folder: holds its arrays.
        facts: what `row.measure` returned.
        status: ok, partial, if a modality is absent, or failed, if all are.
    """

    row: Row
    folder: str
    facts: Mapping[str, Any]
    status: str

    @classmethod
    def of(cls, row: Row, folder: str, settings: Settings) -> "Measured":
        """Reads it from its folder."""
        with open(os.path.join(folder, FACTS), encoding="utf-8") as file:
            facts = json.load(file)
        wanted = ["text", *["audio"] * (settings.audio != "none")]
        there = [facts[m] == "present" for m in wanted]
        status = "ok" if all(there) else "partial" if any(there) else "failed"
        return cls(row, folder, facts, status)

    def array(self, name: str) -> np.ndarray | None:
        """Returns one of its arrays; None if it has none."""
        path = os.path.join(self.folder, f"{name}.npy")
        if not os.path.exists(path):
            return None
        return np.load(path, mmap_mode="r" if os.path.getsize(path) > _MAPPED else None)


class _Worker:
    """Runs a process that measures one row after the other, and a new one when it has died."""

    def __init__(self, settings: Settings, errors: str) -> None:
        self._settings, self._errors, self._is_closed = settings, errors, False
        self._process: subprocess.Popen | None = None

    def measure(self, task: Mapping[str, Any]) -> None:
        """Has a row measured; if the process dies of it, once more without its file."""
        refused = self._try(task)
        if refused and (again := self._try({**task, "refused": refused})):
            raise RuntimeError(f"{task['path']} cannot be measured: {again[1]}")

    def close(self) -> None:
        """Ends the process, and lets no other one begin."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def _try(self, task: Mapping[str, Any]) -> tuple[str, str] | None:
        """Returns None if the row was measured, else a reason and a sentence."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        process, heard, wait, is_late = self._process, b"", 60.0, False
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(task).encode() + b"\n")
        while True:
            is_late = not select.select([process.stdout], [], [], _WALL * wait)[0]
            if is_late or not (part := os.read(process.stdout.fileno(), 1 << 16)):
                break
            *lines, heard = (heard + part).split(b"\n")
            for message in map(json.loads, lines):
                if "done" in message:
                    return None
                if "error" in message:
                    raise UserError(message["error"])
                wait = message["wait"]
        self._end()
        if self._is_closed:
            raise Stopped
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            said = file.read().strip().splitlines() or [f"exit code {process.returncode}"]
        if is_late or process.returncode == -signal.SIGXCPU:
            return "timeout", "It took too long."
        if "MemoryError" in said[-1] or process.returncode == -signal.SIGKILL:
            return "too_large", "It takes more memory than it may have."
        return "undecodable", f"The process that decoded it died: {printable(said[-1])}."

    def _start(self) -> None:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | one | {"PYTHONPATH": os.pathsep.join(paths)}
        with open(self._errors, "w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "msajax.recordings.row"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # Ctrl-C is for whoever asked
                bufsize=0,
            )
        with contextlib.suppress(OSError):
            settings = json.dumps(dataclasses.asdict(self._settings))
            self._process.stdin.write(settings.encode() + b"\n")


def measure_rows(
    rows: Sequence[Row],
    settings: Settings,
    folder: str,
    jobs: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Measured]:
    """Measures rows, but for those that `folder` holds already; each is written whole or not.

    Args:
        rows: at least one.
        folder: where the results of each row go, in a folder of its own.
        jobs: processes; 0 for one a core.
        should_stop: asked several times a second.

    Raises:
        Stopped: if it should; what is measured stays.
        UserError: if the model that writes transcripts cannot be loaded.
    """
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    for left in glob.glob(os.path.join(glob.escape(folder), ".msajax-*")):
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
    recipe = json.dumps(settings.recipe(), sort_keys=True)
    places = [os.path.join(folder, _key(row, recipe)) for row in rows]
    todo: dict[str, Row] = {
        place: row for place, row in zip(places, rows, strict=True) if not os.path.isdir(place)
    }
    if done := len(set(places)) - len(todo):
        logger.info("%d of %d rows are measured already.", done, len(set(places)))
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    ready: queue.SimpleQueue = queue.SimpleQueue()
    for item in todo.items():
        waiting.put(item)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jobs = min(jobs or cores or 1, len(todo))
    with scratch_folder(folder) as scratch, _progress(len(todo)) as tell:
        workers = [_Worker(settings, os.path.join(scratch, f"{n}.err")) for n in range(jobs)]

        def work(worker: _Worker, number: int) -> None:
            try:
                while True:
                    place, row = waiting.get_nowait()
                    made = os.path.join(scratch, str(number))
                    os.mkdir(made)
                    worker.measure({**row.task(), "folder": made})
                    put_in_place(made, place)
                    ready.put(None)
            except queue.Empty:
                pass
            except BaseException as error:
                ready.put(error)

        threads = [
            threading.Thread(target=work, args=pair, daemon=True)
            for pair in zip(workers, range(jobs), strict=True)
        ]
        try:
            for thread in threads:
                thread.start()
            left = len(todo)
            while left:
                if should_stop():
                    raise Stopped(f"{len(rows) - left} of {len(rows)} rows are measured")
                with contextlib.suppress(queue.Empty):
                    if (error := ready.get(timeout=_POLL)) is not None:
                        raise error
                    left -= 1
                    tell()
        finally:
            for worker in workers:
                worker.close()
    return [Measured.of(row, place, settings) for row, place in zip(rows, places, strict=True)]


def _key(row: Row, recipe: str) -> str:
    """Names what is measured of a row: what decides it, and the state of its file."""
    states = []
    for path in (row.path, row.times):
        with contextlib.suppress(OSError):
            state = os.stat(path)
            states.append([state.st_size, state.st_mtime_ns])
    text = json.dumps([recipe, row.task(), states], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    announce.now()
    if not sys.stderr.isatty():
        done, began, told = 0, time.monotonic(), time.monotonic()

        def say() -> None:
            nonlocal done, told
            done += 1
            if (now := time.monotonic()) - told > _LOG_SECONDS:
                told = now
                left = (now - began) / done * (total - done) / 60
                logger.info("%d of %d rows, %.0f minutes left", done, total, left)

        yield say
        return
    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=total)
        yield lambda: bar.advance(task)
