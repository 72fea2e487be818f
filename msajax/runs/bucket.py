"""Reads and writes objects in a bucket: the only importer of etils and fsspec.

`etils.epath` chooses the package by the URL: gcsfs for gs://, s3fs for s3://. Such packages try
again for half a minute when a server fails, so that nothing here does.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import fsspec
from etils import epath
from etils.epath import backend

from msajax.errors import UserError, first_line

T = TypeVar("T")
_NO_BUCKET = object()

PATIENCE_SECONDS = 60.0  # after which a server counts as one that does not answer
PART_BYTES = 50 * 2**20  # the most that one request sends
SLOWEST = 250_000  # bytes a second at which a request may send them


class Bucket:
    """Reads, replaces and removes whole objects below one URL.

    A request that is not answered ends in about a minute. Each method raises `UserError` for
    whatever goes wrong.
    """

    def __init__(self, url: str) -> None:
        """Finds what serves such URLs; raises `UserError` without a package for it, or a bucket."""
        self.url = url.rstrip("/")
        self._scheme, _, self._root = self.url.partition("://")
        if not self._root.partition("/")[0]:
            raise UserError(f"{url} names no bucket, as gs://bucket/run would.")
        self._files = self._bounded("reached", lambda beats: _file_system(self.url))

    def names(self) -> list[str]:
        """Lists the objects, each by what follows the URL and a slash."""

        def find(beats: fsspec.Callback) -> list[str]:
            self._files.invalidate_cache()  # others write too
            return self._files.find(self.url)

        found = self._bounded("read", find)
        parts = [name.lstrip("/").partition(f"{self._root}/") for name in found]
        names = [name for before, _, name in parts if not before]
        # A name becomes a path on this machine, and must not lead out of its folder.
        return sorted(n for n in names if not {"", ".", ".."} & set(n.split("/")))

    def read(self, name: str) -> bytes | None:
        """Reads an object; returns None if there is none."""
        return self._bounded(
            "read", lambda beats: self._files.cat_file(self._url(name)), absent=None
        )

    def write(self, name: str, content: bytes) -> None:
        """Replaces an object by a small one."""
        self._bounded("written", lambda beats: self._files.pipe_file(self._url(name), content))

    def get(self, name: str, path: str) -> bool:
        """Brings an object into a file, making its folder; returns whether there was one."""

        def get(beats: fsspec.Callback) -> bool:
            self._files.get_file(self._url(name), path, callback=beats)
            return True

        os.makedirs(os.path.dirname(path), exist_ok=True)
        return self._bounded("read", get, absent=False)

    def put(self, path: str, name: str) -> None:
        """Replaces an object by a file's content."""

        def put(beats: fsspec.Callback) -> None:
            self._files.put_file(path, self._url(name), callback=beats)

        part = min(os.path.getsize(path), PART_BYTES)
        self._bounded("written", put, part / SLOWEST)

    def remove(self, name: str) -> None:
        """Removes an object, if it is there."""
        self._bounded("written", lambda beats: self._files.rm_file(self._url(name)), absent=None)

    def _url(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _bounded(
        self,
        what: str,
        request: Callable[[fsspec.Callback], T],
        seconds: float = 0,
        absent: Any = _NO_BUCKET,
    ) -> T:
        """Returns the result of a request; gives it up when it shows no sign of life for too long.

        Args:
            what: reached, read or written, which the bucket cannot be if it fails.
            request: is given what it must call with every part that was sent or received.
            seconds: more silence than `PATIENCE_SECONDS` that is allowed.
            absent: the result if there is no such object; without it the bucket is missing.
        """
        signs: queue.SimpleQueue = queue.SimpleQueue()

        def work() -> None:
            try:
                signs.put((request(_Beats(signs)), None))
            except BaseException as error:
                signs.put((None, error))

        # In a thread that can be left behind: some libraries wait without any limit.
        threading.Thread(target=work, daemon=True).start()
        seconds += PATIENCE_SECONDS
        try:
            while (outcome := signs.get(timeout=seconds)) is None:
                pass
        except queue.Empty:
            raise self._unusable(what, f"no answer for {seconds:.0f} s") from None
        result, error = outcome
        if isinstance(error, UserError):
            raise error
        if isinstance(error, ImportError):
            raise UserError(
                f"{self.url}: {self._scheme}:// needs a package that is not installed: "
                f"{first_line(error)}."
            ) from error
        if isinstance(error, FileNotFoundError):
            if absent is not _NO_BUCKET:
                return absent
            raise self._unusable(what, "there is no such bucket") from error
        if error is not None:
            raise self._unusable(what, first_line(error).rstrip(".")) from error
        return result

    def _unusable(self, what: str, why: str) -> UserError:
        kept = " What it holds is kept; the same command continues from it."
        return UserError(f"{self.url} cannot be {what}: {why}.{kept if what == 'written' else ''}")


class _Beats(fsspec.Callback):
    """Passes on each part of a file that a library says it has sent or received."""

    def __init__(self, signs: queue.SimpleQueue) -> None:
        super().__init__()
        self._signs = signs

    def call(self, *_, **__) -> None:
        self._signs.put(None)


def _file_system(url: str) -> fsspec.AbstractFileSystem:
    """Returns the file system with which etils.epath reads and writes such URLs.

    `epath.Path` itself is not used: it turns to TensorFlow where that is installed, lists from a
    cache, finishes a file whose writing has failed, and says nothing while it works.
    """
    try:
        epath.Path(url)
    except KeyError as error:  # of no scheme that it knows
        raise UserError(
            f"{url} is no path, and no bucket that etils.epath knows, as of gs:// and s3://."
        ) from error
    for library in ("fsspec", "gcsfs", "s3fs"):  # each error is raised to us as well
        logging.getLogger(library).addHandler(logging.NullHandler())
    return backend.fsspec_backend.fs(url)
