"""A run's folder in a bucket: an ordinary folder on this machine, and a mirror of it.

The run works in a scratch folder of its first process, as in any other. What goes between that and
the bucket has the same names in both, so that a copy of the bucket is a run's folder. Beside it the
bucket holds three things of its own:

    lock            who trains: a bucket has no locks, so that whoever comes later takes it over,
                    and who finds another owner in it uploads nothing any more
    uploaded/STEP   says that all of checkpoints/STEP is there: written after, removed before it
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
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from msajax.checks import is_url
from msajax.errors import UserError
from msajax.runs import lock, manifest
from msajax.runs.folder import KEPT
from msajax.runs.manifest import Upload
from msajax.runs.remote.object_store import Bucket
from msajax.runtime import processes
from msajax.runtime.signals import StopRequest, is_kept, scratch_folder

logger = logging.getLogger(__name__)

_MARKERS = "uploaded"
_UPLOADING = "uploading"


class Mirror(contextlib.AbstractContextManager):
    """A run's folder on this machine, wherever the run lives; of a path, just that path.

    Of a URL, entering brings what the bucket says of the run into a scratch folder of the first
    process. After `take`, leaving uploads everything, waits for it and gives the run back. The
    scratch folder goes in any case.

    Attributes:
        path: the run's folder on this machine.
    """

    def __init__(self, workdir: str, stop: StopRequest | None = None) -> None:
        """Holds nothing yet of `workdir`; `stop` is told when the last upload begins."""
        self.path = self._workdir = os.fspath(workdir)
        self._stop = stop
        self._is_remote, self._bucket = False, None
        self._trains, self._owner = False, b""  # and the content of `lock` then
        self._digests: dict[str, str] = {}  # of files as they are in the bucket
        self._states: dict[str, tuple] = {}  # of files here when they were last alike
        self._pulled: dict[int, Any] = {}  # the identities of checkpoints as they came
        self._pushed: set[int] = set()  # checkpoints
        self._restorable: set[int] = set()  # of those that came, what restoring has left
        self._saves: queue.SimpleQueue = queue.SimpleQueue()  # their steps, and at the end None
        self._pusher = threading.Thread(target=self._push_saves, daemon=True)
        self._failure: BaseException | None = None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "Mirror":
        """Brings what a bucket says of the run, but no checkpoints.

        Raises:
            UserError: in all processes, if it cannot be read.
        """
        self._is_remote = processes.of_first(lambda: is_url(self._workdir))  # whatever theirs say
        if self._is_remote:
            processes.of_first(self._open)
            self._undo.push(self._leave)
        return self

    def _open(self) -> None:
        with contextlib.ExitStack() as undo:
            scratch = undo.enter_context(scratch_folder())
            self.path = os.path.join(scratch, "run")
            undo.enter_context(_called(self._workdir, self.path))
            self._bucket = Bucket(self._workdir)
            self._pull(checkpoints=False)
            self._undo = undo.pop_all()

    def __exit__(self, *exc_info) -> bool | None:
        """Ends what `take` began; an error names the URL in place of the scratch folder.

        Raises:
            UserError: in all processes, if the last upload fails.
        """
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
        """Makes this the only trainer of the run, and brings all that the bucket holds of it.

        Raises:
            UserError: in all processes, if that fails.
        """
        if self._is_remote:
            processes.of_first(self._take)

    def _take(self) -> None:
        if former := self._bucket.read(manifest.LOCK):
            logger.warning(
                "%s was not given back by %s: if that still trains, it ends at its next upload.",
                self._workdir,
                lock.describe_owner(former),
            )
        owner = lock.this_process() | {"token": secrets.token_hex(16)}
        self._owner = json.dumps(owner).encode()
        self._bucket.write(manifest.LOCK, self._owner)
        self._pull(checkpoints=True)
        self._pusher.start()
        self._trains = True

    def replace(self, name: str) -> None:
        """Uploads a file or folder of the table alone, outside training, if it has changed.

        A folder that is uploaded in part only is none: the next start does not find it.

        Raises:
            UserError: in all processes, if that fails, or if the bucket has other results by now
                than those that were read from it.
        """
        if self._is_remote:
            processes.of_first(lambda: self._put_entry(manifest.find(name)))

    def saved(self, step: int) -> None:
        """Has a checkpoint uploaded as soon as it is whole, beside the training.

        Raises:
            UserError: if an upload before has failed.
        """
        if self._trains:
            self._raise_failure()
            self._restorable.update(self._pulled.keys() & self._steps())  # before too old to stay
            self._saves.put(step)

    def _pull(self, checkpoints: bool) -> None:
        """Makes the folder hold what the bucket does."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.path)
        self._digests.clear()
        self._states.clear()
        names = self._bucket.names()
        is_run = manifest.CONFIG in names
        marked, begun = _steps_below(_MARKERS, names), _steps_below(manifest.CHECKPOINTS, names)
        for step in sorted(marked ^ begun, key=int) if checkpoints else ():
            logger.warning(
                "Checkpoint %s/checkpoints/%s cannot be used: it is there in part, or uploaded/%s "
                "is missing, which says that it is whole.",
                *(self._workdir, step, step),
            )
        whole = {e.name for e in manifest.uploaded(Upload.BEFORE_CHECKPOINTS, Upload.AT_END)}
        for name in sorted(whole):
            if f"{_UPLOADING}/{name}" in names:
                whole.remove(name)
                logger.warning("%s/%s is left out: it is there in part.", self._workdir, name)
        early = manifest.early_names()
        for name in names:
            top, _, rest = name.partition("/")
            path = os.path.join(self.path, name)
            if not is_run and top not in early:
                # Its name alone, so that `RunFolder.claim` refuses it.
                os.makedirs(os.path.join(self.path, top), exist_ok=True)
            elif top == manifest.CHECKPOINTS:
                if checkpoints and rest.partition("/")[0] in marked:
                    self._bucket.get(name, path)
            elif top in whole and self._bucket.get(name, path):
                self._digests[name] = _digest(path)
        self._pulled = {step: self._identity(step) for step in self._steps()}

    def _push_saves(self) -> None:
        try:
            while (step := self._saves.get()) is not None:
                # The next save and the end both wait for this one, if it comes to anything.
                while step not in self._steps() and self._saves.empty():
                    time.sleep(0.05)
                self._push()
        except BaseException as error:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _finish(self) -> None:
        """Uploads everything, waits for it and gives the run back."""
        if not self._trains:
            return
        self._saves.put(None)
        self._pusher.join()
        self._raise_failure()
        self._push()
        self._remove_outdated_results()
        for entry in manifest.uploaded(Upload.AT_END):
            self._put_entry(entry)
        self._require_lock()
        with contextlib.suppress(UserError):  # all is uploaded; the next one takes it over
            self._bucket.remove(manifest.LOCK)

    def _push(self) -> None:
        """Uploads the newest whole checkpoint, after what it needs; then older ones may go."""
        with _folder_beside(self.path) as copies:
            step = self._copy_newest(copies)
            for entry in manifest.uploaded(Upload.BEFORE_CHECKPOINTS):
                self._put_entry(entry)
            if step is not None:
                self._push_checkpoint(step, os.path.join(copies, str(step)))

    def _copy_newest(self, copies: str) -> int | None:
        """The newest whole checkpoint, whose files keep these names if it is deleted."""
        while steps := self._steps():
            step, problem = steps[-1], None
            try:
                copy = os.path.join(copies, str(step))
                shutil.copytree(self._checkpoint(step), copy, copy_function=os.link)
            except OSError as error:
                problem = error.args[0][0][2] if isinstance(error, shutil.Error) else error
            # None is deleted before so many newer ones are whole.
            if sum(other > step for other in self._steps()) < KEPT:
                if problem is not None:
                    raise UserError(f"{self._checkpoint(step)} cannot be copied: {problem}.")
                return step
        return None

    def _push_checkpoint(self, step: int, copy: str) -> None:
        there = self._bucket.names()
        marker = f"{_MARKERS}/{step}"
        files = {f"checkpoints/{step}/{name}": os.path.join(copy, name) for name in _files_in(copy)}
        if not self._has(step):
            if marker in there:  # of another one, saved at the same step
                self._remove(marker)
            for name, path in files.items():
                self._require_lock()
                self._bucket.put(path, name)
            self._require_lock()
            self._bucket.write(marker, b"")
            self._pushed.add(step)

        # One that came from the bucket, and was gone here by the first save, was found damaged.
        known = sorted(self._pushed.union(self._restorable, self._steps()))
        kept = [s for s in known if f"{_MARKERS}/{s}" in (*there, marker)][-KEPT:]
        current = {marker, *files}
        for name in sorted(there, reverse=True):  # uploaded/… before checkpoints/…
            if not (found := re.match(rf"(?:{_MARKERS}|checkpoints)/(\d+)(?:/|$)", name)):
                continue
            of = int(found[1])
            if of > step and not self._pushed:
                continue  # nothing has replaced it yet
            if of not in kept or (of == step and name not in current):
                self._remove(name)

    def _put_entry(self, entry: manifest.Entry) -> None:
        """Makes the bucket hold a file or folder as it is here, if it is here."""
        here = _files_in(self.path, entry.name)
        if not entry.is_folder:
            for name in here:
                self._put_changed(name)
            return
        known = {n: d for n, d in self._digests.items() if _top(n) == entry.name}
        if not here or known == {name: _digest(os.path.join(self.path, name)) for name in here}:
            return
        marker = f"{_UPLOADING}/{entry.name}"
        self._require_lock()
        self._bucket.write(marker, b"")
        for name in here:
            self._put_changed(name)
        for name in self._bucket.names():
            if _top(name) == entry.name and name not in here:
                self._remove(name)
        self._remove(marker)

    def _put_changed(self, name: str) -> None:
        path = os.path.join(self.path, name)
        found = os.stat(path)
        state = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._states.get(name) == state:
            return  # without reading it: it may be large
        with _folder_beside(self.path) as copies:
            copy = shutil.copyfile(path, os.path.join(copies, "file"))  # it may grow meanwhile
            digest = _digest(copy)
            if self._digests.get(name) != digest:
                self._require_lock()
                self._bucket.put(copy, name)
                self._digests[name] = digest
        self._states[name] = state

    def _remove_outdated_results(self) -> None:
        """Removes results.json, and what else says something about results, unless it is this one.

        A run that has gone on has other results, which are uploaded afterwards.
        """
        path = os.path.join(self.path, manifest.RESULTS)
        if os.path.exists(path) and _digest(path) == self._digests.get(manifest.RESULTS):
            return
        there = self._bucket.names()
        for entry in manifest.derived():
            for name in there:
                if _top(name) == entry.name:
                    self._remove(name)

    def _remove(self, name: str) -> None:
        self._require_lock()
        self._bucket.remove(name)
        self._digests.pop(name, None)
        self._states.pop(name, None)

    def _require_lock(self) -> None:
        """Raises `UserError` once the bucket is not this process's to change.

        Because it is ending, or somebody else trains the run, or, outside training, has trained it
        on: what was made of former results must not stand beside others.
        """
        if not is_kept(os.path.dirname(self.path)):  # what was found in it may be a part
            raise UserError(f"{self._workdir}: this process is ending, and uploads nothing more.")
        if self._owner and (found := self._bucket.read(manifest.LOCK)) != self._owner:
            who = lock.describe_owner(found) if found else "somebody who has removed its lock"
            raise UserError(
                f"{self._workdir} was taken over by {who}: this process uploads nothing any more; "
                "what it had uploaded is there."
            )
        if not self._owner:
            found = self._bucket.read(manifest.RESULTS)
            digest = None if found is None else hashlib.sha256(found).hexdigest()
            if digest != self._digests.get(manifest.RESULTS):
                raise UserError(
                    f"{self._workdir} holds other results than those that were read from it: "
                    "somebody has trained the run on. Nothing more was uploaded; the same command "
                    "reads the new ones."
                )

    def _has(self, step: int) -> bool:
        """Whether the bucket holds this machine's checkpoint of a step."""
        came = step in self._pulled and self._pulled[step] == self._identity(step)
        return came or step in self._pushed

    def _identity(self, step: int) -> tuple[int, int] | None:
        """Tells a checkpoint from another one of the same step."""
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self._checkpoint(step))
            return status.st_ino, status.st_mtime_ns
        return None

    def _steps(self) -> list[int]:
        """Of the whole checkpoints on this machine: they get their names when they are."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._checkpoint("")) as found:
            return sorted(int(x.name) for x in found if x.name.isdecimal() and x.is_dir())
        return []

    def _checkpoint(self, step: int | str) -> str:
        return os.path.join(self.path, "checkpoints", str(step))


@contextlib.contextmanager
def bundle_folder(path: str | os.PathLike) -> Iterator[str]:
    """A bundle's folder on this machine; from a bucket it is brought for as long as this lasts.

    Raises:
        UserError: if it cannot be.
    """
    path = os.fspath(path)
    if not is_url(path):
        yield path
        return
    with scratch_folder() as folder, _called(path, folder):
        bucket = Bucket(path)
        for name in bucket.names():
            if "/" not in name:
                bucket.get(name, os.path.join(folder, name))
        yield folder


def _folder_beside(path: str) -> tempfile.TemporaryDirectory:
    """A folder on the same file system, where files can have second names."""
    return tempfile.TemporaryDirectory(dir=os.path.dirname(path), ignore_cleanup_errors=True)


@contextlib.contextmanager
def _called(url: str, path: str) -> Iterator[None]:
    """Names the URL wherever an error or a line of the log would name the folder."""
    before = logging.getLogRecordFactory()

    def make(*args, **kwargs) -> logging.LogRecord:
        record = before(*args, **kwargs)
        if record.name.startswith("msajax"):
            record.msg, record.args = record.getMessage().replace(path, url), ()
        return record

    logging.setLogRecordFactory(make)
    try:
        yield
    except (UserError, OSError) as error:
        if path not in str(error):
            raise
        text = str(error).replace(path, url)
        if isinstance(error, OSError):
            text = f"{text}, in its copy on this machine."
        elif "cannot be written" in text:  # for want of room here, and not there
            text = f"{error} It is the copy of {url} on this machine."
        raise UserError(text) from error
    finally:
        logging.setLogRecordFactory(before)


def _top(name: str) -> str:
    """Returns the entry of a run's folder that a file or object is, or lies in."""
    return name.partition("/")[0]


def _steps_below(top: str, names: list[str]) -> set[str]:
    found = (name.split("/")[1] for name in names if name.startswith(f"{top}/"))
    return {step for step in found if step.isdecimal()}


def _files_in(folder: str, top: str = "") -> list[str]:
    """Every file at or below `top` in a folder, by its path from there."""
    start = os.path.join(folder, top)
    if os.path.isfile(start):
        return [top]
    found = [os.path.join(where, name) for where, _, names in os.walk(start) for name in names]
    return sorted(os.path.relpath(path, folder) for path in found)


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
