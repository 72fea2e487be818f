"""Promises to a run that is interrupted, killed, damaged or out of room: nothing but time is lost.

The moments are those of real processes with real signals; the many combinations of settings run
inside this process.
"""

import contextlib
import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import survivors
from absl import logging as absl_logging
from survivors import ROOT, Fork, StopAfter, differences, newest_step
from tiny import SMALLEST, run, tiny_config

from msajax.errors import UserError
from msajax.experiment import run as experiment_module
from msajax.files import write_text
from msajax.inference.bundle import load_bundle
from msajax.runs.checkpoints import Checkpoints
from msajax.runtime.signals import StopRequest
from msajax.training import feed, saving

STEPS = 6  # of an epoch of the smallest run
EPOCHS = 14  # long enough for a signal to come before the end

# --- interrupted anywhere, in this process ---


IN_GROUPS = ("*encoder/*:frozen=true", "head/*:learning_rate=0.001")


@pytest.mark.parametrize(
    "settings",
    [
        {
            "data__device_memory_budget": 0, "optim__average": 0.9, "optim__groups": IN_GROUPS,
            "train__transforms": ("modality_dropout:*=0.3", "feature_noise:*=0.1"),
        },
        {"mesh__mode": "pmap", "train__seeds": 1, "optim__name": "schedule_free"},
    ],
    ids=["streams", "pmap"],
)
def test_a_run_interrupted_inside_epochs_comes_to_the_same_bits(settings, monkeypatch, tmp_path):
    # Every step is a dispatch of its own, so that a run can stop after each, but before none.
    monkeypatch.setattr(feed.Pace, "update", lambda *_: None)
    monkeypatch.setattr(saving, "POLL_SECONDS", survivors.LIMIT)
    settings = SMALLEST | settings | {"data__synthetic__lengths": (2,)}  # two length quarters
    config = tiny_config(
        **settings,
        train__epochs=4,
        train__patience=1,
        train__checkpoint_every_steps=3,
        optim__plateau_patience=1,
    )
    assert config.model.dropout_rate > 0
    whole = run(config, tmp_path / "whole")
    stops = []
    for questions in (3, 3, 1):  # after so many steps more, the last time with a validation
        assert not run(config, tmp_path / "run", stop=StopAfter(questions)).finished
        stops.append(newest_step(tmp_path / "run"))
    assert stops == [3, 6, 7]
    resumed = run(config, tmp_path / "run")
    assert resumed.finished and resumed.best_epoch == whole.best_epoch
    assert differences(tmp_path / "run", tmp_path / "whole", finished=False) == []


# --- real processes, real signals ---


SETTINGS = SMALLEST | {"train__epochs": EPOCHS, "train__patience": 0}
SAVING = "--config.train.checkpoint_every_steps=1"  # for those that do not come to their end
Train = Callable[..., Fork]


@pytest.fixture(scope="module")
def train(forks, tmp_path_factory) -> Train:
    """Starts the smallest run in a folder; what it says is beside the folder, in a .log."""
    path = tmp_path_factory.mktemp("configs") / "tiny_run.py"
    survivors.write_experiment(path, **SETTINGS)

    def start(folder: pathlib.Path, *arguments, log=None, **limits) -> Fork:
        arguments = ("--config", path, "--workdir", folder, *arguments)
        return forks.start(*arguments, log=log or folder.parent / f"{folder.name}.log", **limits)

    return start


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory) -> pathlib.Path:
    """The folder of the uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder).ends(0)
    return folder


def test_signals_stop_a_run_with_a_checkpoint_and_the_same_command_continues(
    train, whole, tmp_path
):
    folder, last = tmp_path / "run", 0
    for number, ends in ((signal.SIGINT, 75), (None, None)):
        process = train(folder, SAVING).until(lambda last=last: newest_step(folder) > last)
        process.send_signal(number or signal.SIGTERM)
        if number is None:
            os.kill(process.pid, signal.SIGINT)  # a second one, before the first can be served
            ends = process.wait()
            assert ends in (130, 143)  # of two that wait, the system may give INT first
            number = signal.SIGTERM if ends == 130 else signal.SIGINT
        text = process.ends(ends)
        name = signal.Signals(number).name
        assert re.findall("(?m)^SIG.*", text) == [
            f"{name}: stopping after this step; once more: at once."
        ]
        if ends == 75:
            assert text.endswith(f"Paused; the same command continues. Run folder: {folder}\n")
            assert newest_step(folder) > last
        last = newest_step(folder)
    assert "Continuing after epoch" in train(folder).ends(0)
    assert differences(folder, whole) == []


def test_a_run_that_is_killed_again_and_again_comes_to_the_same_bits(train, tmp_path):
    def begin(folder: pathlib.Path) -> Fork:
        return train(folder, SAVING, "--config.train.epochs=4")

    numbers, whole, started = iter(range(100)), tmp_path / "whole", time.monotonic()
    begin(whole).ends(0)
    *kills, found = survivors.kill_and_restart(
        whole,
        time.monotonic() - started,
        kills=3,  # one of each aim
        seed=3,
        new_folder=lambda: tmp_path / f"run{next(numbers)}",
        begin=begin,
    )
    assert found == []
    assert len(kills) == 3
    assert any("orbax-checkpoint-tmp" in name for kill in kills for name in kill.unfinished)


def test_of_many_trainers_one_trains_and_a_killed_ones_lock_is_taken_over(train, whole, tmp_path):
    folder = tmp_path / "run"

    def refused(process: Fork, owner: int) -> None:
        line = process.error()
        assert f"The workdir {folder} is in use by " in line
        # It may have looked before the owner had written its name.
        assert f"by process {owner} on " in line or "by another process:" in line, line

    many = [train(folder, SAVING, log=tmp_path / f"{k}.log") for k in range(4)]
    last = time.monotonic() + survivors.LIMIT
    while len(living := [process for process in many if process.poll() is None]) > 1:
        assert time.monotonic() < last
        time.sleep(0.005)
    (owner,) = living
    many.remove(owner)
    for process in many:
        refused(process, owner.pid)
    owner.until(lambda: newest_step(folder) > 0)
    os.kill(owner.pid, signal.SIGSTOP)  # it lives, and comes no further
    refused(train(folder, log=tmp_path / "5.log"), owner.pid)
    owner.send_signal(signal.SIGKILL)
    assert owner.wait() == -signal.SIGKILL
    train(folder).ends(0)
    assert differences(folder, whole) == []


# --- signals at other moments ---


@contextlib.contextmanager
def having_said(word: str, code: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """Python that has come so far as to say a word; it does not outlive the test."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == f"{word}\n"
            yield process
        finally:
            process.kill()


STARTING = """
import time
from msajax.runtime import signals
with signals.StopRequest(lambda: {begun}):
    print("starting", flush=True)
    time.sleep(1800)
"""

BUSY = """
import hashlib, sys
from msajax.runtime import signals
signals.PATIENCE_SECONDS = float(sys.argv[1])
with signals.StopRequest() as stop:
    stop.will_serve()
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # like a compiler: no Python for minutes
"""


@pytest.mark.parametrize(
    ("patience", "signals", "ends"),
    [(0.5, [signal.SIGTERM], 75), (60, [signal.SIGTERM, signal.SIGINT], 130)],
)
def test_a_run_that_is_not_between_two_steps_ends_all_the_same(patience, signals, ends):
    with having_said("busy", BUSY, str(patience)) as process:
        process.send_signal(signals[0])
        # It is answered at once, whatever the process is doing.
        assert process.stderr.readline().startswith("SIGTERM: stopping after this step")
        for number in signals[1:]:
            process.send_signal(number)
        assert process.wait(survivors.LIMIT) == ends
        told = process.stderr.read()
    assert told.count("\n") == int(ends == 75) and "Traceback" not in told


@pytest.mark.parametrize(
    ("number", "begun", "ends", "said"),
    [
        (signal.SIGINT, False, 130, "nothing was trained yet; the same command begins anew"),
        (signal.SIGTERM, False, 75, "nothing was trained yet; the same command begins anew"),
        (signal.SIGINT, True, 75, "SIGINT while starting; the same command continues"),
    ],
)
def test_a_start_that_is_stopped_ends_at_once(number, begun, ends, said):
    with having_said("starting", STARTING.format(begun=begun)) as process:
        process.send_signal(number)
        assert process.wait(survivors.LIMIT) == ends
        told = process.stderr.read()
    assert said in told and told.count("\n") == 1


def test_a_process_that_leaves_at_once_shows_the_cursor_again():
    terminal, its_end = os.openpty()
    os.set_blocking(terminal, False)
    code = "from msajax.runtime.signals import leave; leave(130)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=its_end)
    assert (done.returncode, os.read(terminal, 100)) == (130, b"\x1b[?25h")
    os.close(terminal)
    os.close(its_end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_a_mode_has_begun_or_in_another_one_is_one_line(number, forks, tmp_path):
    experiment, ready, log = (tmp_path / name for name in ("slow.py", "ready", "log"))
    experiment.write_text(
        "import pathlib, time\n\n\ndef get_config():\n"
        f"    pathlib.Path({str(ready)!r}).touch()\n    time.sleep({survivors.LIMIT})\n"
    )
    predictions = tmp_path / "predictions.csv"
    os.mkfifo(predictions)  # never written: reading it waits
    asked = "--config", experiment, "--workdir", tmp_path / "run"
    before = forks.start(*asked, log=log, program="msajax.__main__:run").until(ready.exists)
    asked = "--mode=evaluate", "--input", predictions, "--output", tmp_path / "report.json"
    writers: list[int] = []

    def reads() -> bool:
        with contextlib.suppress(OSError):  # nobody reads yet
            writers.append(os.open(predictions, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    within = forks.start(*asked, log=tmp_path / "log2").until(reads)
    for process in (before, within):
        process.send_signal(number)
        assert process.ends(128 + number) == f"error: Stopped by {number.name}.\n"
    os.close(*writers)
    left = {"slow.py", "ready", "log", "log2", "predictions.csv"}
    assert {path.name for path in tmp_path.iterdir()} == left


WRITING = """
import hashlib, os, sys
from msajax import files
from msajax.runtime.signals import interruptible
os.chdir(sys.argv[1])
with interruptible():
    try:
        with files.replacing("file") as file, files.replacing_folder("folder") as folder:
            with files.scratch_folder(".") as scratch:
                open(f"{folder}/part", "w").close()
                open(f"{scratch}/part", "w").close()
                print("busy", flush=True)
                hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # like a compiler
    finally:
        print("unwound")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_files_are_written_and_no_python_runs_leaves_nothing(number, tmp_path):
    (tmp_path / "file").write_text("before")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "before").touch()
    with having_said("busy", WRITING, str(tmp_path)) as process:
        assert len(list(tmp_path.rglob("*"))) == 9
        process.send_signal(number)
        assert process.wait(survivors.LIMIT) == 128 + number
        told = process.communicate()
    assert told == ("", f"error: Stopped by {number.name}.\n")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["before", "file", "folder"]
    assert (tmp_path / "file").read_text() == "before"


def test_a_folder_that_has_the_name_of_an_unfinished_file_is_kept(tmp_path):
    (tmp_path / "file.partial").mkdir()
    with pytest.raises(UserError, match="/file cannot be written: Is a directory.$"):
        write_text(str(tmp_path / "file"), "content")
    assert [p.name for p in tmp_path.iterdir()] == ["file.partial"]


def test_a_request_that_comes_before_training_writes_nothing(tmp_path):
    stop = StopRequest()
    stop.requested = True
    assert experiment_module.train(tiny_config(), str(tmp_path / "run"), stop=stop) is None
    assert not (tmp_path / "run").exists()


# --- damage ---


def damaged(path: pathlib.Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "deleted":
        path.unlink()
    elif kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "empty":
        path.write_bytes(b"")
    else:  # a flipped byte, at a share of the file
        content[int(float(kind) * (len(content) - 1))] ^= 0x41
        path.write_bytes(content)


def test_whatever_is_damaged_in_the_newest_checkpoint_no_wrong_state_comes_back(tmp_path, caplog):
    states = [
        {"a": np.random.default_rng(k).random(3000), "b": np.int64(k), "c": np.float32([k, 2])}
        for k in range(2)
    ]
    with Checkpoints(str(tmp_path / "sound")) as checkpoints:
        checkpoints.save(1, states[0])
        checkpoints.save(2, states[1])
    newest = sorted(p for p in (tmp_path / "sound" / "2").rglob("*") if p.is_file())
    outcomes = {}
    for file in newest:
        for kind in ("0", "0.3", "0.8", "truncated", "deleted"):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            shutil.copytree(tmp_path / "sound", tmp_path / "run")
            name = file.relative_to(tmp_path / "sound")
            damaged(tmp_path / "run" / name, kind)
            caplog.clear()
            with Checkpoints(str(tmp_path / "run")) as checkpoints:
                restored = checkpoints.restore(states[0])
            which = int(restored["b"])
            assert all(survivors.same_bits(restored[k], states[which][k]) for k in restored)
            if which == 0:
                assert f"{tmp_path / 'run'}/2 cannot be used" in caplog.text
            outcomes[str(name), kind] = which
    assert 0 in outcomes.values()
    with Checkpoints(str(tmp_path / "sound")) as checkpoints:
        assert int(checkpoints.restore(states[0])["b"]) == 1


def test_of_what_orbax_and_tensorstore_say_nothing_is_heard_and_all_else_is(
    tmp_path, caplog, monkeypatch
):
    def unretrieved(problem: str) -> None:
        logging.getLogger("asyncio").error("Never retrieved", exc_info=ValueError(problem))

    with caplog.at_level(logging.INFO), Checkpoints(str(tmp_path / "run")) as checkpoints:
        checkpoints.save(1, {"a": np.arange(9)})
        unretrieved('OUT_OF_RANGE: Error reading "a/0" in OCDBT database')
        unretrieved("of the user's own task")
        absl_logging.info("of the user's own program")
    said = [(r.name, r.getMessage(), r.exc_info and str(r.exc_info[1])) for r in caplog.records]
    assert said == [
        ("asyncio", "Never retrieved", "of the user's own task"),
        ("absl", "of the user's own program", None),
    ]
    with monkeypatch.context() as without_handlers:  # nobody has set up a log
        without_handlers.setattr(logging.root, "handlers", [])
        with Checkpoints(str(tmp_path / "other")) as checkpoints:
            checkpoints.save(1, {"a": np.arange(9)})
        assert logging.root.handlers == []  # so that logging.basicConfig() still has its effect


def step_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """The checkpoints of a run, the newest first."""
    found = [p for p in (folder / "checkpoints").iterdir() if p.name.isdigit()]
    return sorted(found, key=lambda p: -int(p.name))


def spoil(step: pathlib.Path) -> None:
    """Flips a byte in every file of a checkpoint's state: which one holds an array, orbax says."""
    for file in (step / "state").rglob("*"):
        if file.is_file() and file.stat().st_size:
            damaged(file, "0.5")


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Every file of a folder but who last trained in it, and the description of that start."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("lock", "run.json")
    }


@pytest.fixture(scope="module")
def paused(train, tmp_path_factory) -> pathlib.Path:
    """A run that has stopped after two epochs."""
    folder = tmp_path_factory.mktemp("paused") / "run"
    train(folder, SAVING, "--stop_after_epochs=2").ends(75)
    return folder


def spoil_checkpoints(folder: pathlib.Path) -> None:
    for step in step_folders(folder):
        spoil(step)


def change_line(folder: pathlib.Path, number: int, old: str, new: str) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new)
    (folder / "metrics.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (spoil_checkpoints, "None of the checkpoints in .* nothing was deleted"),
        (lambda f: change_line(f, 2, '"epoch"', '"epoch'), "metrics.jsonl, line 2 is damaged"),
        (lambda f: change_line(f, 3, '"seconds"', '"secondt"'), "metrics.jsonl, line 3 is damaged"),
        (lambda f: change_line(f, 2, '"step": ', '"step": NaN, "was": '), "line 2 is damaged"),
        (lambda f: damaged(f / "config.json", "truncated"), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[" * 10**5), "config.json cannot be read"),
        (lambda f: damaged(f / "config.json", "deleted"), "no config.json, so it is no run's"),
        (
            lambda f: (f / "config.json").write_text('{"trian": {"x": 1}}'),
            "cannot be continued.*config.json.*'trian.x'",
        ),
        (lambda f: damaged(f / "run.json", "truncated"), "run.json cannot be read"),
        (lambda f: damaged(f / "run.json", "deleted"), "There is no .*run.json"),
        (lambda f: (f / "run.json").write_text("[]"), "are not those of a run"),
        (lambda f: (f / "results.json").mkdir(), "results.json is a folder; a run keeps a file"),
        (lambda f: (f / "bundle").write_text("mine"), "bundle is a file; a run keeps a folder"),
        (
            lambda f: ((f / "metrics.jsonl").unlink(), (f / "metrics.jsonl").mkdir()),
            "metrics.jsonl is a folder; a run keeps a file there: move it",
        ),
    ],
    ids=["checkpoints", *(f"metrics{k}" for k in "123"), *(f"config{k}" for k in "1234"),
         *(f"run{k}" for k in "123"), *(f"kind{k}" for k in "123")],
)  # fmt: skip
def test_damage_that_cannot_be_made_good_is_one_line_and_nothing_is_lost(
    damage, expected, paused, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(paused, folder)
    damage(folder)
    before = contents(folder)
    config = tiny_config(**SETTINGS, train__checkpoint_every_steps=1)
    with pytest.raises(UserError, match=expected) as caught:
        experiment_module.train(config, str(folder))
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_a_damaged_bundle_is_refused_wherever_it_is_read(whole, forks, train, tmp_path):
    bundle = tmp_path / "bundle"
    for name in ("bundle.json", "parameters.safetensors"):
        for kind in ("truncated", "empty", "deleted"):  # no flipped bit: test_experiment.py
            shutil.rmtree(bundle, ignore_errors=True)
            shutil.copytree(whole / "bundle", bundle)
            damaged(bundle / name, kind)
            with pytest.raises(UserError, match="damaged|no bundle|newer than"):
                load_bundle(bundle)
    finished, output = tmp_path / "finished", tmp_path / "p.csv"
    shutil.copytree(whole, finished)
    bundle = finished / "bundle"
    damaged(bundle / "parameters.safetensors", "0.5")
    predict = "--mode=predict", "--bundle", bundle, "--input=synthetic", "--output", output
    for process in (
        forks.start("--mode=evaluate", "--workdir", finished, log=tmp_path / "evaluate.log"),
        forks.start(*predict, log=tmp_path / "predict.log"),
        train(tmp_path / "run", f"--config.model.init_from={bundle}"),
    ):
        assert "is damaged: parameters.safetensors" in process.error()
    assert not (tmp_path / "run").exists() and not output.exists()


# --- storage ---


def test_a_run_falls_back_to_the_newest_sound_checkpoint_and_comes_to_the_same_bits(
    train, whole, paused, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(paused, folder)
    (folder / "metrics.jsonl").rename(tmp_path / "lines")
    # No file longer than that: a checkpoint is, and the error is one of a save in the background.
    process = train(folder, SAVING, "--stop_after_epochs=1", largest_file=6000)
    said = f"A checkpoint cannot be written to {folder}/checkpoints: File too large. The last"
    assert said in process.error()
    assert "metrics.jsonl has no line of epoch(s) 1, 2 any more" in process.log.read_text()
    assert newest_step(folder) == newest_step(paused)
    (tmp_path / "lines").rename(folder / "metrics.jsonl")
    newest, older = step_folders(folder)
    spoil(newest)
    (folder / "checkpoints" / "9999").mkdir()  # an empty one, newer than all
    text = train(folder, SAVING, "--stop_after_epochs=1").ends(75)
    for unusable in ("9999", newest.name):
        assert f"Checkpoint {folder}/checkpoints/{unusable} cannot be used: " in text
    assert f"{older.name} cannot be used" not in text
    newest, _ = step_folders(folder)
    shutil.rmtree(newest / "digest")
    (folder / "checkpoints" / "9999").write_text("a file")
    text = train(folder).ends(0)
    assert f"Checkpoint {folder}/checkpoints/{newest.name} cannot be used: " in text
    (folder / "checkpoints" / "9999").unlink(missing_ok=True)
    assert differences(folder, whole) == []


@pytest.fixture
def small_disk(tmp_path) -> Iterator[pathlib.Path]:
    """A file system of its own, of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "msajax-test", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=survivors.LIMIT)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"this system lets no test mount a file system: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=survivors.LIMIT)


def test_a_full_disk_and_a_read_only_one_cost_nothing_but_time(
    train, whole, paused, small_disk, tmp_path
):
    folder, filler = small_disk / "run", small_disk / "filler"

    def start(*arguments) -> Fork:
        return train(folder, *arguments, log=tmp_path / "log")

    def fill(but: int) -> None:
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        filler.write_bytes(bytes(free - but))

    def remount(how: str) -> None:
        command = ["mount", "-o", f"remount,{how}", "msajax-test", str(small_disk)]
        subprocess.run(command, check=True, timeout=survivors.LIMIT)

    shutil.copytree(paused, folder)
    kept = newest_step(folder)
    assert kept == 2 * STEPS
    process = start(SAVING).until(lambda: newest_step(folder) > kept)
    process.send_signal(signal.SIGSTOP)
    fill(but=0)  # now not a byte is left
    process.send_signal(signal.SIGCONT)
    assert "cannot be written" in process.error()
    filler.unlink()
    before = contents(folder)
    remount("ro")
    assert f"The workdir {folder} cannot be written: Read-only" in start().error()
    assert contents(folder) == before
    remount("rw")
    start().ends(0)
    assert differences(folder, whole) == []


def test_a_run_whose_folder_became_anothers_writes_nothing_there(train, tmp_path):
    folder = tmp_path / "run"
    lines = folder / "metrics.jsonl"
    rarely = "--config.train.checkpoint_every_seconds=1000"
    process = train(folder, rarely, "--config.train.epochs=1000")
    process.until(lambda: lines.exists() and lines.stat().st_size > 0)
    process.send_signal(signal.SIGSTOP)
    folder.rename(tmp_path / "moved")
    (folder / "checkpoints").mkdir(parents=True)
    lines.write_text("theirs\n")
    process.send_signal(signal.SIGCONT)
    assert "another folder stands there now" in process.error()
    assert lines.read_text() == "theirs\n"


def test_a_workdir_that_vanishes_is_one_line(train, tmp_path):
    folder = tmp_path / "run"
    process = train(folder, SAVING).until(lambda: newest_step(folder) > 0)
    process.send_signal(signal.SIGSTOP)
    shutil.rmtree(folder)
    process.send_signal(signal.SIGCONT)
    assert "cannot be written" in process.error()
    if folder.exists():  # by a write that was under way
        assert "or delete it if it is the rest of a deleted run." in train(folder).error()
