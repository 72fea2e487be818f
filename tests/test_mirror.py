"""Promises to a run in a bucket: whatever happens, the bucket alone holds a whole state of it.

The many moments at which an upload can fail are tried on a store in memory; the real command meets
a server of the storage API on this machine.
"""

import contextlib
import logging
import os
import pathlib
import shutil
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator

import pytest
import survivors
from survivors import Fork, Forks, differences
from test_processes import free_port
from tiny import SMALLEST, tiny_config

from msajax.comparison.compare import compare
from msajax.errors import UserError
from msajax.runs import bucket as bucket_module
from msajax.runs import manifest
from msajax.runs.bucket import Bucket
from msajax.runs.folder import RunFolder
from msajax.runs.local_copy import bundle_folder
from msajax.runs.mirror import Mirror
from msajax.runtime import processes, signals

URL = "gs://bucket/runs/a"

# --- a store in memory, that fails when it is told to ---


class Store:
    """As much of a file system as a bucket needs; every change counts."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = dict(objects or {})
        self.changes = 0
        self.fails_at, self.fails_after, self.dies = 0, False, False
        self.waits = lambda: None

    def _change(self, change) -> None:
        self.changes += 1
        self.waits()
        due = self.fails_at and (
            self.changes >= self.fails_at if self.dies else self.changes == self.fails_at
        )
        if not due or (self.fails_after and self.changes == self.fails_at):
            change()
        if due:
            raise OSError("out of order")

    def invalidate_cache(self) -> None:
        pass

    def find(self, url: str) -> list[str]:
        return [n for n in self.objects if n.startswith(url.removeprefix("gs://") + "/")]

    def cat_file(self, url: str) -> bytes:
        try:
            return self.objects[url.removeprefix("gs://")]
        except KeyError:
            raise FileNotFoundError(url) from None

    def get_file(self, url: str, path: str, callback) -> None:
        pathlib.Path(path).write_bytes(self.cat_file(url))

    def pipe_file(self, url: str, content: bytes) -> None:
        self._change(lambda: self.objects.update({url.removeprefix("gs://"): content}))

    def put_file(self, path: str, url: str, callback) -> None:
        self.pipe_file(url, pathlib.Path(path).read_bytes())

    def rm_file(self, url: str) -> None:
        self.cat_file(url)
        self._change(lambda: self.objects.pop(url.removeprefix("gs://")))

    def names(self) -> set[str]:
        return {name.removeprefix("bucket/runs/a/") for name in self.objects}


@pytest.fixture
def use(monkeypatch):
    """Lets every bucket be this store."""

    def choose(store: Store) -> Store:
        monkeypatch.setattr(bucket_module, "_file_system", lambda url: store)
        return store

    return choose


@pytest.fixture
def at_once(monkeypatch) -> None:
    """Requests without the thread of each, for tests that make thousands of them."""
    thread = types.SimpleNamespace(Thread=lambda target, **_: types.SimpleNamespace(start=target))
    monkeypatch.setattr(bucket_module, "threading", thread)


@pytest.fixture(autouse=True)
def own_scratch(monkeypatch, tmp_path) -> Iterator[pathlib.Path]:
    """Scratch folders of this process come here, and none may be left."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def checkpoint_files(step: int) -> dict[str, bytes]:
    return {"state/manifest": b"%d" % step, f"state/d/{step}": b"x" * step, "digest/metadata": b"d"}


def write(folder: str, name: str, content: bytes) -> None:
    path = pathlib.Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def save(folder: str, *steps: int) -> None:
    """What a run leaves that has saved after these steps, an epoch each; orbax keeps two."""
    write(folder, "run.json", b"run")
    write(folder, "config.json", b"config")
    write(folder, "metrics.jsonl", b"".join(b"%d\n" % s for s in range(1, max(steps) + 1)))
    checkpoints = pathlib.Path(folder, "checkpoints")
    for step in steps:
        for name, content in checkpoint_files(step).items():
            write(folder, f"checkpoints/unfinished/{name}", content)
        shutil.rmtree(checkpoints / str(step), ignore_errors=True)
        (checkpoints / "unfinished").rename(checkpoints / str(step))
    for path in sorted(checkpoints.iterdir(), key=lambda p: int(p.name))[:-2]:
        shutil.rmtree(path)


ENDING = {
    "bundle/bundle.json": b"bundle",
    "bundle/parameters.safetensors": b"parameters",
    "predictions/test.csv": b"test",
    "predictions/valid.csv": b"valid",
    "results.json": b"results",
}


def end(folder: str) -> None:
    for name, content in ENDING.items():
        write(folder, name, content)


@contextlib.contextmanager
def begun() -> Iterator[Mirror]:
    """A start of a run, which ends with its last upload."""
    with Mirror(URL) as mirror:
        mirror.take()
        yield mirror


def train_to(*steps: int, ends: bool = False) -> None:
    """A start of a run that comes to its last upload."""
    with begun() as mirror:
        save(mirror.path, *steps)
        if ends:
            end(mirror.path)


def dying(changes: int, before: dict[str, bytes], use, act: Callable[[], None]) -> Iterator[Store]:
    """The bucket after an action that a server's end met at each of its changes, before that."""
    for moment in range(1, changes + 1):
        store = use(Store(before))
        store.fails_at, store.dies = moment, True
        with pytest.raises(UserError, match="out of order"):
            act()
        store.fails_at = 0
        yield store


def require_whole(oldest: int) -> dict[str, bytes]:
    """What the next start finds is a whole state, of `oldest` or later; returns its files."""
    with begun() as mirror:
        found = files_of(mirror)
        steps = sorted({int(n.split("/")[1]) for n in found if n.startswith("checkpoints/")})
        for step in steps:
            for name, content in checkpoint_files(step).items():
                assert found[f"checkpoints/{step}/{name}"] == content
        newest = max(steps, default=0)
        assert newest >= oldest
        assert "config.json" not in found or found["run.json"] == b"run"
        if newest:
            assert found["config.json"] == b"config"
            lines = found["metrics.jsonl"].decode().split()
            assert lines[:newest] == [str(s) for s in range(1, newest + 1)]
        if "results.json" in found:
            assert ENDING.items() <= found.items() and newest == 9
        return found


def files_of(mirror: Mirror) -> dict[str, bytes]:
    folder = pathlib.Path(mirror.path)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def marked(store: Store) -> set[int]:
    return {int(n.split("/")[1]) for n in store.names() if n.startswith("uploaded/")}


def test_what_is_pushed_comes_back_and_the_older_checkpoints_go(use, own_scratch):
    store = use(Store())
    train_to(3)
    train_to(5)
    assert marked(store) == {3, 5} and "lock" not in store.names()
    train_to(9, ends=True)
    found = require_whole(9)
    expected = {f"checkpoints/{s}/{n}" for s in (5, 9) for n in checkpoint_files(s)}
    assert found.keys() == {"run.json", "config.json", "metrics.jsonl", *ENDING, *expected}
    assert store.names() == found.keys() | {"uploaded/5", "uploaded/9"}


def test_an_object_where_a_checkpoint_would_be_is_left_out(use):
    store = use(Store())
    train_to(3)
    store.objects |= {"bucket/runs/a/checkpoints/9": b"mine", "bucket/runs/a/uploaded/9": b""}
    train_to(5)
    assert 5 in marked(store)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("dies", [False, True], ids=["an error", "the end"])
@pytest.mark.parametrize("saved", [[], [3, 5]], ids=["the first", "a later one"])
def test_an_upload_that_ends_at_any_object_leaves_a_whole_state(saved, dies, after, use, at_once):
    """A server's error at each change of the bucket, or the end of the process there."""
    before = use(Store())
    for step in saved:
        train_to(step)
    counted = use(Store(before.objects))
    train_to(9, ends=True)
    seen = set()
    for moment in range(1, counted.changes + 1):
        store = use(Store(before.objects))
        store.fails_at, store.dies, store.fails_after = moment, dies, after
        last = moment == counted.changes  # giving the lock back, after everything
        with contextlib.nullcontext() if last else pytest.raises(UserError, match="out of order"):
            train_to(9, ends=True)
        assert store.changes == moment or dies, "something was changed after an error"
        store.fails_at = 0
        found = require_whole(max(saved, default=0))
        seen.add(("checkpoints/9/digest/metadata" in found, "results.json" in found))
        train_to(9, ends=True)  # the same command continues
        assert store.objects == counted.objects
    assert seen == {(False, False), (True, False), (True, True)}


ADDED = {
    "notes.html": b"report",
    "explanations/valid.csv": b"valid",
    "explanations/test.csv": b"test",
}


def train_on() -> None:
    """A start of a run that has ended, with more epochs, to its end."""
    with begun() as mirror:
        RunFolder(mirror.path).begin_results()
        for name in ENDING:
            write(mirror.path, name, b"new")


def test_former_results_and_what_is_made_of_them_are_never_beside_a_new_bundle(
    use, added, at_once
):
    store = use(Store())
    with begun() as mirror:
        save(mirror.path, 9)
        for name, content in (ENDING | ADDED).items():
            write(mirror.path, name, content)
    assert store.names() >= ENDING.keys() | ADDED.keys()
    assert ADDED.items() <= require_whole(9).items()
    before = dict(store.objects)
    with begun():  # a start that comes to nothing takes nothing away
        pass
    assert store.objects == before
    counted = use(Store(before))
    train_on()
    assert not ADDED.keys() & counted.names()
    for store in dying(counted.changes - 1, before, use, train_on):
        found = {name: store.objects.get(f"bucket/runs/a/{name}") for name in ENDING}
        if ADDED.keys() & store.names():
            assert found["bundle/bundle.json"] == b"bundle"
        if found["results.json"]:
            new = found["results.json"] == b"new"
            assert new == (found["bundle/bundle.json"] == b"new")
        train_on()
        assert store.objects == counted.objects


def add(**former: bytes) -> None:
    """Adds artefacts to a run that has ended, one after another."""
    with Mirror(URL) as mirror:
        for name, content in ADDED.items():
            write(mirror.path, name, content)
        for name in former.keys() - ADDED.keys():
            pathlib.Path(mirror.path, name).unlink(missing_ok=True)
        for name in ("notes.html", "explanations"):
            mirror.replace(name)


def test_a_file_in_a_folder_is_uploaded_alone_and_comes_with_its_folder(use):
    store = use(Store())
    train_to(9, ends=True)
    before = dict(store.objects)
    with Mirror(URL) as mirror:
        write(mirror.path, manifest.CARD, b"card")
        mirror.replace(manifest.CARD)
    assert store.objects == before | {f"bucket/runs/a/{manifest.CARD}": b"card"}
    assert require_whole(9)[manifest.CARD] == b"card"


FORMER = {"notes.html": b"former", "explanations/former.csv": b"former"}


@pytest.mark.parametrize("former", [{}, FORMER], ids=["new", "other"])
def test_what_is_added_to_an_ended_run_is_uploaded_alone_and_whole(
    former, use, added, at_once, caplog
):
    store = use(Store())
    train_to(9, ends=True)
    rest = dict(store.objects)
    store.objects |= {f"bucket/runs/a/{name}": content for name, content in former.items()}
    before = dict(store.objects)
    counted = use(Store(before))
    add(**former)
    assert counted.objects == rest | {f"bucket/runs/a/{n}": c for n, c in ADDED.items()}
    changes = counted.changes
    add(**former)
    assert counted.changes == changes  # there is nothing to upload
    for store in dying(changes, before, use, lambda: add(**former)):
        assert rest.items() <= store.objects.items()
        caplog.clear()
        with Mirror(URL) as mirror:
            found = files_of(mirror)
        assert found.get("notes.html") in (former.get("notes.html"), b"report")
        in_part = "uploading/explanations" in store.names()
        assert in_part == (f"{URL}/explanations is left out: it is there in part." in caplog.text)
        inside = {n: c for n, c in found.items() if n.startswith("explanations/")}
        whole = [{n: c for n, c in x.items() if "/" in n} for x in (former, ADDED)]
        assert inside == {} if in_part else inside in whole
        add(**former)  # the same command continues
        assert store.objects == counted.objects


def test_what_was_made_of_former_results_is_not_uploaded_beside_others(use, added):
    store = use(Store())
    train_to(9, ends=True)
    with pytest.raises(UserError, match=f"^{URL} holds other results than those that were read"):
        with Mirror(URL) as mirror:
            write(mirror.path, "notes.html", b"report")
            train_on()
            after = dict(store.objects)
            mirror.replace("notes.html")
    assert store.objects == after


def test_a_checkpoint_that_was_found_damaged_is_replaced(use):
    store = use(Store())
    train_to(3)
    train_to(5)
    store.objects["bucket/runs/a/checkpoints/5/state/d/5"] = b"damaged"
    store.objects["bucket/runs/a/checkpoints/5/state/d/old"] = b"left behind"
    with begun() as mirror:
        folder = pathlib.Path(mirror.path, "checkpoints", "5")
        assert (folder / "state" / "d" / "5").read_bytes() == b"damaged"
        folder.rename(pathlib.Path(mirror.path).parent / "deleted")
        save(mirror.path, 5)
    assert "checkpoints/5/state/d/old" not in store.names()
    assert {"checkpoints/5/state/d/5", "uploaded/3"} <= require_whole(5).keys() | store.names()
    for later, left in (([], {3, 5}), ([4], {3, 4})):  # until something is in its place, it stays
        with begun() as mirror:
            pathlib.Path(mirror.path, "checkpoints", "5").rename(f"{mirror.path}/../deleted")
            if later:
                save(mirror.path, *later)
        assert marked(store) == left


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_checkpoint_that_is_deleted_while_it_is_copied_is_not_uploaded(
    all_of_it, use, monkeypatch
):
    store, link, linked = use(Store()), os.link, []

    def delete_first(source: str, target: str) -> None:
        if not linked:
            for path in pathlib.Path(mirror.path, "checkpoints", "3").rglob("*"):
                if path.is_file() and (all_of_it or path != pathlib.Path(source)):
                    path.unlink()  # as orbax does, when others are whole
            for step in (4, 5):
                for name, content in checkpoint_files(step).items():
                    write(mirror.path, f"checkpoints/{step}/{name}", content)
        linked.append(source)
        link(source, target)

    monkeypatch.setattr("os.link", delete_first)
    with begun() as mirror:
        save(mirror.path, 3)
    assert "/checkpoints/3/" in linked[0] and marked(store) == {5}
    assert not any(name.startswith("checkpoints/3/") for name in store.names())


def test_a_checkpoint_that_cannot_be_copied_is_an_error(use, monkeypatch):
    store = use(Store())
    monkeypatch.setattr("os.link", lambda *_: os.stat("/nowhere"))
    said = f"^{URL}/checkpoints/3 cannot be copied: .Errno 2. No such file .*: '/nowhere'.$"
    with pytest.raises(UserError, match=said), begun() as mirror:
        save(mirror.path, 3)
    assert not marked(store)


def test_a_process_that_leaves_at_once_uploads_nothing_of_what_it_removes(use, monkeypatch):
    store = use(Store())
    train_to(3)
    find, before = store.find, set(store.names())
    monkeypatch.setattr("os._exit", lambda code: None)  # an upload may still come before it
    monkeypatch.setattr("msajax.files._changing", threading.Semaphore(99))  # it is held for ever
    with pytest.raises(UserError, match=f"^{URL}: this process is ending"), begun() as mirror:
        save(mirror.path, 5)
        store.find = lambda url: signals.leave(75) or find(url)
    assert before == store.names() - {"lock"}
    store.find = find
    require_whole(3)


def test_other_processes_wait_for_the_last_upload_even_if_asked_to_stop(use, monkeypatch):
    use(Store())
    served = []
    with Mirror(URL, types.SimpleNamespace(serve=lambda: served.append(True))) as mirror:
        monkeypatch.setattr(processes, "of_first", lambda function: None)  # this is another one
        mirror.take()
        assert not served
    assert served


def until(happened) -> None:
    last = time.monotonic() + survivors.LIMIT
    while not happened():
        assert time.monotonic() < last, "nothing has happened"
        time.sleep(0.005)


def test_uploads_run_beside_the_training_the_newest_alone_and_once_whole(use):
    store = use(Store())
    with begun() as mirror:
        mirror.saved(3)  # not whole yet
        time.sleep(0.2)
        assert store.names() == {"lock"}
        blocked = [True]
        store.waits = lambda: until(lambda: not blocked[0])
        save(mirror.path, 3)
        until(lambda: store.changes == 2)  # it has begun
        for step in (4, 5, 6):
            save(mirror.path, step)
            mirror.saved(step)
        assert store.changes == 2
        blocked[0] = False
        until(lambda: "uploaded/6" in store.names())
        assert marked(store) == {3, 6}
        assert "lock" in store.names()
    assert "lock" not in store.names()
    require_whole(6)


def test_a_file_that_keeps_its_size_is_uploaded_again_if_it_has_changed_and_only_then(use):
    store = use(Store())
    with begun() as mirror:
        save(mirror.path, 3)
        mirror.saved(3)
        until(lambda: "uploaded/3" in store.names())
        save(mirror.path, 5)
        write(mirror.path, "run.json", b"RUN")
        before, puts = store.changes, []
        pipe = store.pipe_file
        store.pipe_file = lambda url, content: (puts.append(url), pipe(url, content))
    assert store.objects["bucket/runs/a/run.json"] == b"RUN"
    written = [url.removeprefix(f"{URL}/") for url in puts]
    files = [f"checkpoints/5/{name}" for name in sorted(checkpoint_files(5))]
    assert written == ["run.json", "metrics.jsonl", *files, "uploaded/5"]
    assert store.changes == before + len(written) + 1  # giving the lock back


def test_an_upload_that_fails_is_told_at_the_next_save(use):
    store = use(Store())
    with pytest.raises(UserError, match=f"^{URL} cannot be written: out of order. What it holds"):
        with begun() as mirror:
            store.fails_at = 3
            save(mirror.path, 3)
            mirror.saved(3)
            until(lambda: mirror._failure)
            mirror.saved(4)
            raise AssertionError("it was not told")
    assert store.changes == 3


def test_who_was_taken_over_ends_and_changes_nothing(use, caplog):
    store = use(Store())
    first = Mirror(URL)
    with pytest.raises(UserError, match=f"^{URL} was taken over by process {os.getpid()} on "):
        with first:
            first.take()
            save(first.path, 3)
            first.saved(3)
            until(lambda: "uploaded/3" in store.names())
            with caplog.at_level(logging.WARNING, "msajax"), Mirror(URL) as second:
                second.take()
                save(second.path, 4)
                said = f"{URL} was not given back by process {os.getpid()} on "
                assert said in caplog.text
                before = dict(store.objects)
                save(first.path, 5)
                first.saved(5)
                until(lambda: first._failure)
                assert store.objects == before
            after = dict(store.objects)
            first.saved(6)
    assert store.objects == after
    assert marked(store) == {3, 4} and "lock" not in store.names()


def test_an_error_of_the_run_still_uploads_what_it_has(use):
    store = use(Store())
    with pytest.raises(ArithmeticError), begun() as mirror:
        save(mirror.path, 3)
        raise ArithmeticError
    assert "uploaded/3" in store.names() and "lock" not in store.names()


def test_a_server_that_does_not_answer_is_waited_for_so_long(use, monkeypatch):
    monkeypatch.setattr(bucket_module, "PATIENCE_SECONDS", 0.2)
    store, answers = use(Store()), threading.Event()
    store.waits = lambda: answers.wait(survivors.LIMIT)
    with pytest.raises(UserError, match="written: no answer for 0 s"), begun():
        pass
    answers.set()  # until then it has not answered

    class Slow(Store):
        def get_file(self, url: str, path: str, callback) -> None:
            for _ in range(5):  # each in time, all of them not
                time.sleep(0.45)
                callback.relative_update(1)
            super().get_file(url, path, callback)

    monkeypatch.setattr(bucket_module, "PATIENCE_SECONDS", 2.0)
    use(Slow({"bucket/runs/a/config.json": b"config"}))
    with Mirror(URL) as mirror:
        assert pathlib.Path(mirror.path, "config.json").read_bytes() == b"config"


def test_names_of_objects_lead_nowhere_else(use, tmp_path):
    names = ["../x", "bundle/../../x", "checkpoints/3/../../../x", "/x", "bundle//x", "config.json"]
    use(Store({f"bucket/runs/a/{name}": b"" for name in names} | {"bucket/runs/ab": b""}))
    assert Bucket(URL + "/").names() == ["config.json"]


def test_what_is_no_run_of_this_kind_is_refused_by_its_url(use):
    store = use(Store({"bucket/runs/a/photo.jpg": b"photo", "bucket/runs/a/lock": b"{}"}))
    with pytest.raises(UserError, match=f"^The workdir {URL} holds 'photo.jpg' but no config.json"):
        with Mirror(URL) as mirror:
            RunFolder(mirror.path).claim(tiny_config(), {"corpus digest": "digest"})
    assert store.changes == 0


def test_names_that_cannot_be_files_here_are_one_sentence_about_the_url(use):
    use(Store({f"bucket/runs/a/{name}": b"{}" for name in ("config.json", "config.json/x")}))
    with pytest.raises(UserError, match=f"exists: '{URL}/config.json', in its copy on this"):
        with Mirror(URL):
            pass


def test_a_checkpoint_that_is_not_known_to_be_whole_is_named(use, caplog):
    store = use(Store())
    train_to(3)
    train_to(5)
    files = {name: store.objects.pop(name) for name in [*store.objects] if "checkpoints/5" in name}
    del store.objects["bucket/runs/a/uploaded/3"]
    with caplog.at_level(logging.WARNING, "msajax"):
        assert not any(name.startswith("checkpoints/") for name in require_whole(0))
    for step in (3, 5):
        assert f"Checkpoint {URL}/checkpoints/{step} cannot be used: it is there" in caplog.text
    store.objects |= files | {"bucket/runs/a/uploaded/3": b""}
    caplog.clear()
    with caplog.at_level(logging.WARNING, "msajax"):
        require_whole(5)
    assert "cannot be used" not in caplog.text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/run", r"s3:// needs a package that is not installed: .*s3fs"),
        ("ftp://host/run", "is no path, and no bucket that etils.epath knows"),
        ("gs:///run", "names no bucket"),
        ("gs:/bucket/run", "names no bucket, as gs://bucket/run would"),
    ],
)
def test_a_url_that_nothing_serves_is_one_sentence(url, said, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(UserError, match=f"^{url}.* {said}"), bundle_folder(url):
        pass


# --- the real command, and a server of the storage API ---

EPOCHS = 5


class Server:
    """The storage API on this machine, which can go away and come back with its objects."""

    def __init__(self) -> None:
        from gcp_storage_emulator.handlers.buckets import create_bucket
        from gcp_storage_emulator.storage import Storage

        self._storage, self.port = Storage(use_memory_fs=True), free_port()
        create_bucket("bucket", self._storage)
        self.start()

    def start(self) -> None:
        from gcp_storage_emulator.server import APIThread

        self._thread = APIThread("localhost", self.port, self._storage, daemon=True)
        self._thread.start()
        assert self._thread.is_running.wait(survivors.LIMIT)

    def stop(self) -> None:
        self._thread.join()

    def names(self, run: str) -> list[str]:
        while True:
            with contextlib.suppress(RuntimeError):  # a file has come while it looked
                files, _ = self._storage.get_file_list("bucket", prefix=f"{run}/")
                break
        return [file["name"].removeprefix(f"{run}/") for file in files]

    def whole(self, run: str) -> list[int]:
        """The checkpoints that are marked."""
        names = [name.split("/") for name in self.names(run)]
        return sorted(int(name[1]) for name in names if name[0] == "uploaded")

    def half(self, run: str) -> bool:
        """Whether a checkpoint is there in part."""
        there = {n.split("/")[1] for n in self.names(run) if n.startswith("checkpoints/")}
        return bool(there - {str(step) for step in self.whole(run)})

    def copy(self, run: str, folder: pathlib.Path) -> pathlib.Path:
        """The run's folder, as one would copy it from the bucket."""
        for name in self.names(run):
            if not name.startswith("uploaded/"):
                write(str(folder), name, self._storage.get_file("bucket", f"{run}/{name}"))
        (folder / "lock").touch()  # of a trainer in the folder itself
        return folder


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    from gcp_storage_emulator import server as emulator

    read, end = emulator._read_raw_data, b"\n--==0==--"

    def read_body(handler) -> bytes | None:
        """An upload that ends in CR would lose it, as a part of the line's end behind it."""
        body = read(handler)
        return body.removesuffix(end) + b"\r" + end if body and body.endswith(end) else body

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "_read_raw_data", read_body)
        made = Server()
        yield made
        made.stop()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def forks(server, scratch) -> Iterator[Forks]:
    patience = "from msajax.runs import bucket; bucket.PATIENCE_SECONDS = 10\n"
    address = f"http://localhost:{server.port}"
    started = Forks(
        f"import gcsfs\n{patience}", STORAGE_EMULATOR_HOST=address, TMPDIR=str(scratch)
    )
    yield started
    started.close()


@pytest.fixture
def train(forks, tmp_path) -> Callable[..., Fork]:
    experiment, numbers = tmp_path / "tiny_run.py", iter(range(100))
    settings = {"train__epochs": EPOCHS, "train__patience": 0, "train__checkpoint_every_steps": 1}
    survivors.write_experiment(experiment, **SMALLEST, **settings)

    def start(workdir, *arguments) -> Fork:
        log = tmp_path / f"{next(numbers)}.log"
        return forks.start("--config", experiment, "--workdir", workdir, *arguments, log=log)

    return start


@pytest.fixture
def left(scratch) -> Iterator[list[str]]:
    """Scratch folders that a test has seen a killed process leave; there may be no others."""
    known: list[str] = []
    yield known
    assert {path.name for path in scratch.glob("msajax-*")} == set(known)
    for path in scratch.glob("msajax-*"):
        path.rename(scratch / path.name.replace("msajax", "seen"))


def test_a_run_in_a_bucket_survives_and_comes_to_the_bits_of_one_in_a_folder(
    train, forks, server, scratch, left, tmp_path
):
    url = "gs://bucket/run"
    whole = train(tmp_path / "whole")
    killed = train(url)
    killed.until(lambda: server.whole("run") and server.half("run"))
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    left += [path.name for path in scratch.glob("msajax-*")]
    assert len(left) == 1

    known = max(server.whole("run"))
    asked = train(url)
    # Programs are compiled by then, so that it can save soon.
    asked.until(lambda: max(server.whole("run")) > known and "valid" in asked.log.read_text())
    asked.send_signal(signal.SIGTERM)
    text = asked.ends(75)
    assert f"{url} was not given back by process {killed.pid} on " in text
    assert "Continuing after epoch" in text
    assert text.endswith(f"Paused; the same command continues. Run folder: {url}\n")
    assert "lock" not in server.names("run") and not server.half("run")

    text = train(url).ends(0)
    assert "Continuing after epoch" in text and "not given back" not in text
    assert text.endswith(f"Run folder: {url}\n") and str(scratch) not in text
    whole.ends(0)
    assert differences(server.copy("run", tmp_path / "copy"), tmp_path / "whole") == []

    before = server.names("run")
    evaluated = forks.run("--mode=evaluate", "--workdir", url).stdout
    assert f"{url}, 20 samples" in evaluated and "results.json: 0\n" in evaluated
    assert server.names("run") == before


def test_of_two_trainers_the_older_ends_and_if_the_server_goes_away_the_last_state_stays(
    train, server, left
):
    url, long = "gs://bucket/two", "--config.train.epochs=100"  # none may end before
    older = train(url, long)
    older.until(lambda: server.whole("two"))
    newer = train(url, long, "--stop_after_epochs=5")
    line = older.error()
    assert f"{url} was taken over by process {newer.pid} on " in line
    known = max(server.whole("two"))
    newer.until(lambda: max(server.whole("two")) > known)
    server.stop()
    try:
        begun = train(url, long)
        assert newer.error().startswith(f"error: {url} cannot be ")
        assert f"not given back by process {older.pid} on " in newer.log.read_text()
        assert begun.error() == f"error: {url} cannot be read: no answer for 10 s."
    finally:
        server.start()
    known = max(server.whole("two"))
    goes_on, missing = train(url, long, "--stop_after_epochs=1"), train("gs://nowhere/run")
    assert "Continuing after epoch" in goes_on.ends(75) and max(server.whole("two")) > known
    assert not server.half("two")
    assert missing.error() == "error: gs://nowhere/run cannot be read: there is no such bucket."


def test_a_run_in_a_bucket_is_compared_with_a_file(use, tmp_path):
    rows = [b"v[%d],%d,%d" % (i, i - 2, i) for i in range(5)]
    table = b"\n".join([b"id,label,score", *rows])
    objects = {**ENDING, "config.json": b"config", "predictions/test.csv": table}
    use(Store({f"bucket/runs/a/{name}": content for name, content in objects.items()}))
    path = tmp_path / "other.csv"
    path.write_bytes(table.replace(b"[1]", b"[7]"))
    with pytest.raises(UserError, match=rf"1 in {URL} alone \('v\[1\]'\) and 1 in .*other.csv"):
        compare([URL, str(path)])
    path.write_bytes(table)
    report = compare([URL, str(path)])
    assert report["pairs"][0]["metrics"]["mae"]["first"] == 2
    with pytest.raises(UserError, match="gs://bucket/runs/b holds no run that has ended"):
        compare(["gs://bucket/runs/b", str(path)])
