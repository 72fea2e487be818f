"""Objects in a bucket: the only importer of etils and fsspec.

What reads and writes them is what `etils.epath` has for a URL, of gs:// the package gcsfs, of s3://
s3fs. Such packages try again for half a minute when a server fails, so that nothing here does.
"""

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import fsspec
from etils import epath
from etils.epath import backend

from msajax.errors import UserError, first_line

T = TypeVar("T")

PATIENCE_SECONDS = 60.0  # with a server that does not answer
PART_BYTES, SLOWEST = 50 * 2**20, 250_000  # of one request, and bytes a second that it may take


class Bucket:
    """Whole objects below one URL; a request that is not answered ends in about a minute."""

    def __init__(self, url: str) -> None:
        """Finds what serves such URLs, and credentials.

        Raises:
            UserError: if there is no package for it, or no bucket is named.
        """
        self.url = url.rstrip("/")
        self._scheme, _, self._root = self.url.partition("://")
        if not self._root.partition("/")[0]:
            raise UserError(f"{url} names no bucket, as gs://bucket/run would.")
        self._files = self._bounded("reached", lambda beats: _file_system(self.url))

    def names(self) -> list[str]:
        """The objects, by what follows the URL and a slash."""

        def find(beats: fsspec.Callback) -> list[str]:
            self._files.invalidate_cache()  # others write too
            return self._files.find(self.url)

        found = self._bounded("read", find)
        parts = [name.lstrip("/").partition(f"{self._root}/") for name in found]
        names = [name for before, _, name in parts if not before]
        # A name becomes a path on this machine.
        return sorted(n for n in names if not {"", ".", ".."} & set(n.split("/")))

    def read(self, name: str) -> bytes | None:
        """An object's content, or None if there is none."""

        def read(beats: fsspec.Callback) -> bytes | None:
            with contextlib.suppress(FileNotFoundError):
                return self._files.cat_file(self._of(name))
            return None

        return self._bounded("read", read)

    def write(self, name: str, content: bytes) -> None:
        """Replaces an object by a small one."""
        self._bounded("written", lambda beats: self._files.pipe_file(self._of(name), content))

    def get(self, name: str, path: str) -> bool:
        """Brings an object into a file, making its folder; returns whether there was one."""

        def get(beats: fsspec.Callback) -> bool:
            with contextlib.suppress(FileNotFoundError):
                self._files.get_file(self._of(name), path, callback=beats)
                return True
            return False

        os.makedirs(os.path.dirname(path), exist_ok=True)
        return self._bounded("read", get)

    def put(self, path: str, name: str) -> None:
        """Replaces an object by a file's content."""

        def put(beats: fsspec.Callback) -> None:
            self._files.put_file(path, self._of(name), callback=beats)

        part = min(os.path.getsize(path), PART_BYTES)
        self._bounded("written", put, part / SLOWEST)

    def remove(self, name: str) -> None:
        """Removes an object, if it is there."""

        def remove(beats: fsspec.Callback) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._of(name))

        self._bounded("written", remove)

    def _of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _bounded(
        self, what: str, request: Callable[[fsspec.Callback], T], seconds: float = 0
    ) -> T:
        """The result of a request that shows signs of life at least every so many seconds more.

        Raises:
            UserError: for whatever goes wrong with it.
        """
        signs: queue.SimpleQueue = queue.SimpleQueue()

        def work() -> None:
            try:
                signs.put((request(_Beats(signs)), None))
            except BaseException as error:
                signs.put((None, error))

        threading.Thread(target=work, daemon=True).start()  # nothing else ends a library's waiting
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
        if isinstance(error, FileNotFoundError):  # of an object it is no error
            raise self._unusable(what, "there is no such bucket") from error
        if error is not None:
            raise self._unusable(what, first_line(error).rstrip(".")) from error
        return result

    def _unusable(self, what: str, why: str) -> UserError:
        kept = " What it holds is kept; the same command continues from it."
        return UserError(f"{self.url} cannot be {what}: {why}.{kept if what == 'written' else ''}")


class _Beats(fsspec.Callback):
    """What a library calls with every part of a file that it has sent or received."""

    def __init__(self, signs: queue.SimpleQueue) -> None:
        super().__init__()
        self._signs = signs

    def call(self, *_, **__) -> None:
        self._signs.put(None)


def _file_system(url: str) -> fsspec.AbstractFileSystem:
    """What etils.epath reads and writes such URLs with.

    Not `epath.Path` itself: that turns to TensorFlow where it is installed, lists from a cache,
    finishes a file whose writing has failed, and says nothing while it works.
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
