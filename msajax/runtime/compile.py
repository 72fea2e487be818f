"""Compiles programs in background threads, and keeps compiled programs between runs."""

import atexit
import concurrent.futures
import contextlib
import ctypes
import functools
import logging
import os
import pathlib
import queue
import stat
import sys
import threading
import zlib
from collections.abc import Callable, Hashable
from typing import Any

logger = logging.getLogger(__name__)

MOST_THREADS = 4  # a run has few programs, and each takes memory while it is compiled
# A program that the cache holds is loaded in less, and loading it keeps Python to itself: a program
# that was traced meanwhile would delay both. Compiling takes longer, and leaves Python free.
LOADING_SECONDS = 3.0
LARGEST = 2 << 30  # bytes that the folder of compiled programs may take when a run begins
CHECKED = "checked"  # a file whose time says when programs were last looked at
_ZSTANDARD = b"\x28\xb5\x2f\xfd"  # what it packs begins with this

# Returns what has been traced, a `jax.stages.Lowered`, which is compiled by its `compile()`.
Lower = Callable[[], Any]

_at_work: set[threading.Thread] = set()  # threads that trace or compile just now
_warn_once = functools.cache(functools.partial(logger.warning, "%s"))


class Compilers(contextlib.AbstractContextManager):
    """Compiles programs in the order in which they are added, several at a time.

    Programs are traced one after another: tracing is Python, and two at once would only delay the
    first one. The next one is not traced before the last one is loaded, or turns out to need
    compiling. A program that has been compiled is found by JAX when its jitted function is called
    with arrays of the shapes, types and shardings that it was lowered for.

    When the context is left, what has not begun is dropped, and nothing is waited for.
    """

    def __init__(self, threads: int | None = None) -> None:
        """Prepares so many threads; without a number, as many as there are cores, at most 4."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._threads = threads or min(cores or 1, MOST_THREADS)
        self._waiting: queue.SimpleQueue = queue.SimpleQueue()
        self._tracing = threading.Lock()
        self._futures: dict[Hashable, list[concurrent.futures.Future]] = {}
        self._last: list[concurrent.futures.Future] = []  # of the program that was traced last

    def __enter__(self) -> "Compilers":
        """Starts the threads."""
        # What is registered last is called first: JAX takes its devices down behind this.
        atexit.unregister(_wait)
        atexit.register(_wait)
        for k in range(self._threads):
            threading.Thread(target=self._work, name=f"compiler-{k}", daemon=True).start()
        return self

    def __exit__(self, *exc_info) -> None:
        """Drops what has not begun; the threads end when they are done with what has."""
        for future in sum(self._futures.values(), []):
            future.cancel()
        for _ in range(self._threads):
            self._waiting.put(None)

    def add(self, name: Hashable, lower: Lower) -> None:
        """Compiles one more program, behind those that were added before it.

        `is_ready` is asked by its name, which several may share; `lower` is called in a background
        thread.
        """
        future: concurrent.futures.Future = concurrent.futures.Future()
        self._futures.setdefault(name, []).append(future)
        self._waiting.put((future, lower))

    def is_ready(self, name: Hashable, seconds: float = 0.0) -> bool:
        """Waits at most so long; returns whether all programs of a name are compiled.

        Raises:
            Exception: whatever tracing or compiling one of them raised.
        """
        done, waiting = concurrent.futures.wait(
            self._futures[name], seconds, concurrent.futures.FIRST_EXCEPTION
        )
        for future in done:
            future.result()
        return not waiting

    def _work(self) -> None:
        while True:
            with self._tracing:  # also while nothing waits, so that the order is kept
                job = self._waiting.get()
                if job is None:
                    return
                future, lower = job
                concurrent.futures.wait(self._last, LOADING_SECONDS)
                self._last = [future]
                # Counted before it begins: else `is_compiling` could overlook it.
                _at_work.add(threading.current_thread())
                begins = future.set_running_or_notify_cancel()
                lowered = _try(future, lower) if begins else None
            if lowered is not None:
                compiled = _try(future, lowered.compile)
                del lowered
                return_memory()
                if compiled is not None:
                    future.set_result(compiled)
            _at_work.discard(threading.current_thread())


def return_memory() -> None:
    """Returns memory that nothing holds any more to the system, where glibc would keep it.

    A program of long sequences takes as much to compile as it takes to run, and both stayed.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and keeps little
        if trim is not None:
            trim(0)


def is_compiling() -> bool:
    """Returns whether a thread of this process traces or compiles just now."""
    return bool(_at_work)


def _try(future: concurrent.futures.Future, function: Callable[[], Any]) -> Any:
    """Calls a function; what it raises becomes the future's, and None is returned."""
    try:
        return function()
    except BaseException as error:  # whoever waits for the program raises it
        future.set_exception(error)
        return None


def _wait() -> None:
    """Waits for the threads at work when a process ends in good order.

    A thread that is inside XLA or LLVM while the process takes its libraries down may crash it. A
    process that must not wait leaves by `os._exit` instead, which takes nothing down.
    """
    for thread in list(_at_work):
        thread.join()


def use_compile_cache(setting: str) -> None:
    """Keeps compiled programs between runs, in at most `LARGEST` bytes.

    A folder that JAX has been told of otherwise (JAX_COMPILATION_CACHE_DIR) stays as it is.

    Args:
        setting: `train.compile_cache`: off, auto (msajax/compiled in $XDG_CACHE_HOME or ~/.cache)
            or a folder.
    """
    import jax  # the threads above need none of it, and a command's --help does not wait for it

    if setting == "off" or jax.config.jax_compilation_cache_dir:
        return
    folder = pathlib.Path(setting)
    if setting == "auto":
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = pathlib.Path(cache) / "msajax" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            _warn_once(f"No compilation cache: others can write to {folder}, and so run code.")
            return
        prune(folder, LARGEST)
        drop_damaged(folder)
    except OSError as error:
        _warn_once(f"No compilation cache: {folder}: {error.strerror}.")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def drop_damaged(folder: pathlib.Path) -> None:
    """Deletes programs that were not written to their end, as a kill or a full disk leaves them.

    JAX would warn of such a file, compile anew, and leave it there for every later run. Only those
    written since the last check are looked at.
    """
    mark = folder / CHECKED
    checked = mark.stat().st_mtime_ns if mark.exists() else 0
    mark.touch()
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime_ns < checked:
                continue
            content = path.read_bytes()
            if content.startswith(_ZSTANDARD):  # JAX's choice where it is installed
                continue  # no more can be told
            stream = zlib.decompressobj()
            with contextlib.suppress(zlib.error):
                stream.decompress(content)
            if not stream.eof:
                path.unlink(missing_ok=True)


def prune(folder: pathlib.Path, largest: int) -> None:
    """Deletes the programs that were used longest ago until the rest takes `largest` bytes.

    Files that are not JAX's stay. Another run that wants a deleted program compiles it anew. JAX's
    own limit (jax_compilation_cache_max_size) would have every read wait for a lock, need filelock,
    and fail at every write once a file of times is missing, as in a folder from before, or after a
    kill between its two files.
    """
    programs = []  # (last used, bytes, path)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith("-cache"):
                with contextlib.suppress(FileNotFoundError):  # another run deletes them too
                    found = entry.stat(follow_symlinks=False)
                    used = max(found.st_atime, found.st_mtime)
                    programs.append((used, found.st_size, pathlib.Path(entry.path)))
    size = sum(entry[1] for entry in programs)
    for _, freed, path in sorted(programs):
        if size <= largest:
            break
        path.unlink(missing_ok=True)
        size -= freed
