"""Changes the bucket of a run, an object at a time, while the run is this process's to change."""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil

from msajax.errors import UserError
from msajax.files import is_kept
from msajax.runs import lock, manifest
from msajax.runs.remote.local_copy import files_in, folder_beside
from msajax.runs.remote.object_store import Bucket

logger = logging.getLogger(__name__)

UPLOADING = "uploading"  # uploading/NAME is there while the folder NAME is replaced


class Uploads:
    """Makes a run's bucket hold files and folders as they are in the run's folder here.

    Attributes:
        bucket: the objects; whoever changes them does so through this class.
    """

    def __init__(self, workdir: str, folder: str) -> None:
        """Finds the bucket of the URL `workdir`; `folder` is the run's on this machine.

        Raises:
            UserError: if nothing serves such URLs.
        """
        self.bucket = Bucket(workdir)
        self._workdir, self._folder = workdir, folder
        self._owner = b""  # the content of `lock` while this process trains
        self._digests: dict[str, str] = {}  # of objects
        # What tells whether a file here is another one than when its object was last alike.
        self._states: dict[str, tuple[int, int, int]] = {}

    def take_over(self) -> None:
        """Makes this process the run's trainer; names the former one, if it is not done.

        Nothing tells a trainer that was killed from one that lives, so that none is waited for. One
        that lives notices before its next change: one object is the most that it still writes.
        """
        if former := self.bucket.read(manifest.LOCK):
            logger.warning(
                "%s was not given back by %s: if that still trains, it ends at its next upload.",
                self._workdir,
                lock.describe_owner(former),
            )
        owner = lock.this_process() | {"token": secrets.token_hex(16)}
        self._owner = json.dumps(owner).encode()
        self.bucket.write(manifest.LOCK, self._owner)

    def give_back(self) -> None:
        """Ends being the run's trainer, after everything is uploaded."""
        self._require_own()
        with contextlib.suppress(UserError):  # the next trainer takes it over
            self.bucket.remove(manifest.LOCK)

    def forget(self) -> None:
        """Forgets what the bucket holds: it is about to be read anew."""
        self._digests.clear()
        self._states.clear()

    def bring(self, name: str) -> None:
        """Brings an object into its file here, if it is still there."""
        path = os.path.join(self._folder, name)
        if self.bucket.get(name, path):
            self._digests[name] = _digest(path)

    def put_entry(self, entry: manifest.Entry) -> None:
        """Makes the bucket hold a file or folder as it is here; what is not here stays there.

        Other objects stay as they are. A folder is marked while it is replaced, so that a part of
        it is never taken for the whole.
        """
        here = files_in(self._folder, entry.name)
        if not entry.is_folder:
            for name in here:
                self._put_changed(name)
            return
        known = {n: digest for n, digest in self._digests.items() if top(n) == entry.name}
        if not here or known == {n: _digest(os.path.join(self._folder, n)) for n in here}:
            return
        marker = f"{UPLOADING}/{entry.name}"
        self.write(marker, b"")
        for name in here:
            self._put_changed(name)
        for name in self.bucket.names():
            if top(name) == entry.name and name not in here:
                self.remove(name)
        self.remove(marker)

    def _put_changed(self, name: str) -> None:
        path = os.path.join(self._folder, name)
        found = os.stat(path)
        state = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._states.get(name) == state:
            return  # without reading it, as it may be large
        with folder_beside(self._folder) as copies:
            copy = shutil.copyfile(path, os.path.join(copies, "file"))  # it may grow meanwhile
            digest = _digest(copy)
            if self._digests.get(name) != digest:
                self.put(copy, name)
                self._digests[name] = digest
        self._states[name] = state

    def remove_former_results(self) -> None:
        """Removes results.json and what is made of results, unless results.json is the one here.

        A run that has gone on has other results: what is about the former ones goes before these
        are replaced.
        """
        path = os.path.join(self._folder, manifest.RESULTS)
        if os.path.exists(path) and _digest(path) == self._digests.get(manifest.RESULTS):
            return
        there = self.bucket.names()
        for entry in manifest.derived():
            for name in there:
                if top(name) == entry.name:
                    self.remove(name)

    def put(self, path: str, name: str) -> None:
        """Replaces an object by a file's content."""
        self._require_own()
        self.bucket.put(path, name)

    def write(self, name: str, content: bytes) -> None:
        """Replaces an object by a small one."""
        self._require_own()
        self.bucket.write(name, content)

    def remove(self, name: str) -> None:
        """Removes an object, if it is there."""
        self._require_own()
        self.bucket.remove(name)
        self._digests.pop(name, None)
        self._states.pop(name, None)

    def _require_own(self) -> None:
        """Raises `UserError` once the bucket is no longer this process's to change.

        That is so once the process is ending, which removes what it would upload; for a trainer,
        once it was taken over; for another mode, once somebody has trained the run on, because what
        is made of former results must not stand beside other ones.
        """
        if not is_kept(os.path.dirname(self._folder)):
            raise UserError(f"{self._workdir}: this process is ending, and uploads nothing more.")
        if self._owner:
            if (found := self.bucket.read(manifest.LOCK)) != self._owner:
                who = lock.describe_owner(found) if found else "somebody who has removed its lock"
                raise UserError(
                    f"{self._workdir} was taken over by {who}: this process uploads nothing any "
                    "more; what it had uploaded is there."
                )
            return
        found = self.bucket.read(manifest.RESULTS)
        digest = None if found is None else hashlib.sha256(found).hexdigest()
        if digest != self._digests.get(manifest.RESULTS):
            raise UserError(
                f"{self._workdir} holds other results than those that were read from it: somebody "
                "has trained the run on. Nothing more was uploaded; the same command reads the "
                "new ones."
            )


def top(name: str) -> str:
    """Returns the name at the top of a run's folder that an object or file is, or lies below."""
    return name.partition("/")[0]


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
