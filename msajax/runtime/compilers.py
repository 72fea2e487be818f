"""Compiles programs in background threads, for which a stop never waits."""

import atexit
import concurrent.futures
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Hashable
from typing import Any

MOST_THREADS = 4  # a run has few programs, and each takes memory while it is compiled
# A program that the cache holds is loaded in less, and loading it keeps Python to itself: a program
# that was traced meanwhile would delay both. Compiling takes longer, and leaves Python free.
LOADING_SECONDS = 3.0

# Returns what has been traced, a `jax.stages.Lowered`, which is compiled by its `compile()`.
Lower = Callable[[], Any]

_at_work: set[threading.Thread] = set()  # threads that trace or compile just now


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

        Args:
            name: for `is_ready`; several programs may share it.
            lower: traces the program; it is called in a background thread.
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
                # Counted before it begins: else `are_at_work` could overlook it.
                _at_work.add(threading.current_thread())
                begins = future.set_running_or_notify_cancel()
                lowered = _try(future, lower) if begins else None
            if lowered is not None:
                compiled = _try(future, lowered.compile)
                if compiled is not None:
                    future.set_result(compiled)
            _at_work.discard(threading.current_thread())


def are_at_work() -> bool:
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
