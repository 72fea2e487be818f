"""Keeps a run's folder in a bucket: an ordinary folder on this machine, and a mirror of it.

An object store has neither the locks nor the renames on which a run's promises rest. So the run
works in a scratch folder of its first process, as in any other, and the mirror adds one promise:
what a later start finds in the bucket is a whole state. Names are the same in both, so that a copy
of the bucket is a run's folder. Beside them the bucket holds three things of its own:

    lock            says who trains: whoever comes later takes it over, and whoever finds another
                    owner in it uploads nothing any more
    uploaded/STEP   says that all of checkpoints/STEP is there: written after, removed before it;
                    not inside of it, where orbax would not know it
    uploading/NAME  says that the folder NAME is being replaced: written before, removed after it

An object is there whole or not at all, and after what it needs: a checkpoint after the lines of
metrics.jsonl before it, results.json after everything. Results of a run that has gone on since are
taken away before the bundle that they are about is replaced.
"""

import contextlib
import hashlib
import json
import logging
import os
import queue
import re
import secrets
import shutil
import threading
import time
from typing import Any

from msajax.checks import is_url
from msajax.errors import UserError
from msajax.files import digest_of, is_kept, scratch_folder
from msajax.runs import lock, manifest
from msajax.runs.bucket import Bucket
from msajax.runs.folder import KEPT
from msajax.runs.local_copy import files_in, folder_beside, named_by_url
from msajax.runs.manifest import Upload
from msajax.runtime import processes
from msajax.runtime.signals import StopRequest

logger = logging.getLogger(__name__)

UPLOADED = "uploaded"  # uploaded/STEP is there once all of checkpoints/STEP is
UPLOADING = "uploading"  # uploading/NAME is there while the folder NAME is replaced


class Mirror(contextlib.AbstractContextManager):
    """Offers a run's folder on this machine, wherever the run lives; of a path, just that path.

    Of a URL, entering brings what the bucket says of the run into a scratch folder of the first
    process. After `take`, leaving uploads everything, waits for it and gives the run back. The
    scratch folder goes in any case. What goes wrong is a `UserError` in all processes, which names
    the URL in place of the scratch folder.
    """

    def __init__(self, workdir: str, stop: StopRequest | None = None) -> None:
        """Holds nothing yet of `workdir`; `stop` is told when the last upload begins."""
        self.path = self._workdir = os.fspath(workdir)
        self._stop = stop
        self._is_remote, self._trains = False, False
        self._uploads: Uploads | None = None  # in the first process, of a URL
        self._pulled: dict[int, Any] = {}  # step: the identity of a checkpoint that was brought
        self._pushed: set[int] = set()  # steps of checkpoints that this process has uploaded
        self._restorable: set[int] = set()  # steps that were brought and not found damaged
        self._saves: queue.SimpleQueue = queue.SimpleQueue()  # their steps, and at the end None
        self._pusher = threading.Thread(target=self._push_saves, daemon=True)
        self._failure: BaseException | None = None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "Mirror":
        """Brings what a bucket says of the run, but no checkpoints."""
        self._is_remote = processes.of_first(lambda: is_url(self._workdir))  # whatever theirs say
        if self._is_remote:
            processes.of_first(self._open)
            self._undo.push(self._leave)
        return self

    def _open(self) -> None:
        with contextlib.ExitStack() as undo:
            scratch = undo.enter_context(scratch_folder())
            self.path = os.path.join(scratch, "run")
            undo.enter_context(named_by_url(self._workdir, self.path))
            self._uploads = Uploads(self._workdir, self.path)
            self._pull(checkpoints=False)
            self._undo = undo.pop_all()

    def __exit__(self, *exc_info) -> bool | None:
        """Ends what `take` began."""
        return self._undo.__exit__(*exc_info)

    def _leave(self, kind: type[BaseException] | None, *_) -> None:
        if self._stop is not None:
            self._stop.serve()  # in all processes: the others wait for the first one's upload
        if kind is None:
            processes.of_first(self._finish)
        elif issubclass(kind, Exception) and self._failure is None:
            with contextlib.suppress(UserError, OSError):  # the first one counts
                self._finish()
        self._saves.put(None)

    def take(self) -> None:
        """Makes this the only trainer of the run, and brings all that the bucket holds of it."""
        if self._is_remote:
            processes.of_first(self._take)

    def _take(self) -> None:
        self._uploads.take_over()
        self._pull(checkpoints=True)
        self._pusher.start()
        self._trains = True

    def replace(self, name: str) -> None:
        """Uploads a file or folder of the manifest alone, outside training, if it has changed.

        A folder that comes to be there in part only is not brought by the next start. It is refused
        if the bucket has other results by now than those that were brought.
        """
        if self._is_remote:
            processes.of_first(lambda: self._uploads.put_entry(manifest.find(name)))

    def saved(self, step: int) -> None:
        """Has a checkpoint uploaded beside the training, as soon as it is whole."""
        if self._trains:
            self._raise_failure()
            # Seen at the first save: later ones delete checkpoints because they are old.
            self._restorable.update(self._pulled.keys() & self._steps())
            self._saves.put(step)

    def _pull(self, checkpoints: bool) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.path)
        self._uploads.forget()
        names = self._uploads.bucket.names()
        is_run = manifest.CONFIG in names
        steps = self._whole_steps(names) if checkpoints else set()
        early, whole = manifest.early_names(), self._whole_entries(names)
        for name in names:
            if not is_run and _top(name) not in early:
                # Its name alone, so that `RunFolder.claim` refuses it.
                os.makedirs(os.path.join(self.path, _top(name)), exist_ok=True)
            elif _top(name) in whole:
                self._uploads.bring(name)
            elif _top(name) == manifest.CHECKPOINTS and (*name.split("/"), "")[1] in steps:
                self._uploads.bucket.get(name, os.path.join(self.path, name))
        self._pulled = {step: self._identity(step) for step in self._steps()}

    def _whole_steps(self, names: list[str]) -> set[str]:
        """Returns the steps whose checkpoints are whole in the bucket; names the others."""
        marked, begun = _steps_below(UPLOADED, names), _steps_below(manifest.CHECKPOINTS, names)
        for step in sorted(marked ^ begun, key=int):
            logger.warning(
                "Checkpoint %s/checkpoints/%s cannot be used: it is there in part, or uploaded/%s "
                "is missing, which says that it is whole.",
                *(self._workdir, step, step),
            )
        return marked

    def _whole_entries(self, names: list[str]) -> set[str]:
        """Returns the other entries that are brought; names those that are there in part."""
        entries = manifest.uploaded(Upload.BEFORE_CHECKPOINTS, Upload.AT_END)
        in_part = {entry.name for entry in entries if f"{UPLOADING}/{entry.name}" in names}
        for name in sorted(in_part):
            logger.warning("%s/%s is left out: it is there in part.", self._workdir, name)
        return {entry.name for entry in entries} - in_part

    def _push_saves(self) -> None:
        try:
            while (step := self._saves.get()) is not None:
                # It may never become whole: the next save, and the end, do not wait for it.
                while step not in self._steps() and self._saves.empty():
                    time.sleep(0.05)
                self._push()
        except BaseException as error:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _finish(self) -> None:
        if not self._trains:
            return
        self._saves.put(None)
        self._pusher.join()
        self._raise_failure()
        self._push()
        self._uploads.remove_former_results()
        for entry in manifest.uploaded(Upload.AT_END):
            self._uploads.put_entry(entry)
        self._uploads.give_back()

    def _push(self) -> None:
        """Uploads the newest whole checkpoint, after what it needs; then older ones may go."""
        with folder_beside(self.path) as copies:
            step = self._copy_newest(copies)
            for entry in manifest.uploaded(Upload.BEFORE_CHECKPOINTS):
                self._uploads.put_entry(entry)
            if step is not None:
                self._push_checkpoint(step, os.path.join(copies, str(step)))

    def _copy_newest(self, copies: str) -> int | None:
        """Links the newest whole checkpoint, so that it outlives deletion; returns its step."""
        while steps := self._steps():
            step, problem = steps[-1], None
            try:
                copy = os.path.join(copies, str(step))
                shutil.copytree(self._checkpoint(step), copy, copy_function=os.link)
            except OSError as error:
                problem = error.args[0][0][2] if isinstance(error, shutil.Error) else error
            # A copy is whole unless orbax has begun to delete the checkpoint meanwhile, which it
            # does only once so many newer ones are whole.
            if sum(other > step for other in self._steps()) < KEPT:
                if problem is not None:
                    raise UserError(f"{self._checkpoint(step)} cannot be copied: {problem}.")
                return step
        return None

    def _push_checkpoint(self, step: int, copy: str) -> None:
        """Uploads a checkpoint, unless the bucket has it, and removes those that are too old."""
        there = self._uploads.bucket.names()
        marker = f"{UPLOADED}/{step}"
        files = {f"checkpoints/{step}/{name}": os.path.join(copy, name) for name in files_in(copy)}
        came = step in self._pulled and self._pulled[step] == self._identity(step)
        if not (came or step in self._pushed):
            if marker in there:  # of another one, saved at the same step
                self._uploads.remove(marker)
            for name, path in files.items():
                self._uploads.put(path, name)
            self._uploads.write(marker, b"")
            self._pushed.add(step)

        # One that was brought, and was gone here by the first save, was found damaged.
        known = sorted(self._pushed.union(self._restorable, self._steps()))
        kept = [s for s in known if f"{UPLOADED}/{s}" in (*there, marker)][-KEPT:]
        current = {marker, *files}
        for name in sorted(there, reverse=True):  # uploaded/… before checkpoints/…
            if not (found := re.match(rf"(?:{UPLOADED}|checkpoints)/(\d+)(?:/|$)", name)):
                continue
            of = int(found[1])
            if of > step and not self._pushed:
                continue  # nothing has replaced it yet
            if of not in kept or (of == step and name not in current):
                self._uploads.remove(name)

    def _identity(self, step: int) -> tuple[int, int] | None:
        """Returns what tells a checkpoint from another one of the same step; None if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self._checkpoint(step))
            return status.st_ino, status.st_mtime_ns
        return None

    def _steps(self) -> list[int]:
        """Lists the steps of the checkpoints here that are whole: only then they get such names."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._checkpoint("")) as found:
            return sorted(int(x.name) for x in found if x.name.isdecimal() and x.is_dir())
        return []

    def _checkpoint(self, step: int | str) -> str:
        return os.path.join(self.path, manifest.CHECKPOINTS, str(step))


def _steps_below(folder: str, names: list[str]) -> set[str]:
    """Returns the steps of which there is an object in a folder of the bucket, as digits."""
    found = (name.split("/")[1] for name in names if name.startswith(f"{folder}/"))
    return {step for step in found if step.isdecimal()}


class Uploads:
    """Changes the bucket of a run, an object at a time, while the run is this process's to change.

    Others read the objects of `bucket` themselves, and change them through this class.
    """

    def __init__(self, workdir: str, folder: str) -> None:
        """Finds the bucket of the URL `workdir`; `folder` is the run's on this machine."""
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
            self._digests[name] = digest_of(path)

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
        known = {n: digest for n, digest in self._digests.items() if _top(n) == entry.name}
        if not here or known == {n: digest_of(os.path.join(self._folder, n)) for n in here}:
            return
        marker = f"{UPLOADING}/{entry.name}"
        self.write(marker, b"")
        for name in here:
            self._put_changed(name)
        for name in self.bucket.names():
            if _top(name) == entry.name and name not in here:
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
            digest = digest_of(copy)
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
        if os.path.exists(path) and digest_of(path) == self._digests.get(manifest.RESULTS):
            return
        there = self.bucket.names()
        for entry in manifest.derived():
            for name in there:
                if _top(name) == entry.name:
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


def _top(name: str) -> str:
    """Returns the name at the top of a run's folder that an object or file is, or lies below."""
    return name.partition("/")[0]
