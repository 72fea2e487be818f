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


@pytest.fixture
def single_steps(monkeypatch):
    """Every step a dispatch of its own, so that a run can stop after each, but before none."""
    monkeypatch.setattr(feed.Pace, "update", lambda *_: None)
    monkeypatch.setattr(saving, "POLL_SECONDS", survivors.LIMIT)


@pytest.mark.parametrize(
    "settings",
    [{"data__device_memory_budget": 0}, {"mesh__mode": "pmap", "train__seeds": 1}],
    ids=["streams", "pmap"],
)
def test_a_run_interrupted_inside_epochs_comes_to_the_same_bits(settings, single_steps, tmp_path):
    config = tiny_config(
        **settings,
        data__synthetic__lengths=(2, 1),  # two length quarters
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


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> pathlib.Path:
    """The smallest run, saving at every opportunity."""
    path = tmp_path_factory.mktemp("configs") / "tiny_run.py"
    settings = {"train__epochs": EPOCHS, "train__patience": 0, "train__checkpoint_every_steps": 1}
    return survivors.write_experiment(path, **SMALLEST, **settings)


Train = Callable[..., Fork]


@pytest.fixture(scope="module")
def train(forks, experiment) -> Train:
    """Starts the training command in a folder; what it says is beside the folder, in a .log."""

    def start(folder: pathlib.Path, *arguments, log=None, **limits) -> Fork:
        arguments = ("--config", experiment, "--workdir", folder, *arguments)
        return forks.start(*arguments, log=log or log_of(folder), **limits)

    return start


def log_of(folder: pathlib.Path) -> pathlib.Path:
    return folder.parent / f"{folder.name}.log"


class Whole:
    folder: pathlib.Path
    seconds: float


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory) -> Whole:
    """The uninterrupted run."""
    made = Whole()
    made.folder = tmp_path_factory.mktemp("whole") / "run"
    started = time.monotonic()
    assert train(made.folder).wait() == 0, log_of(made.folder).read_text()
    made.seconds = time.monotonic() - started
    return made


def until(process: Fork, happened: Callable[[], bool]) -> None:
    """Waits for something while a process lives."""
    last = time.monotonic() + survivors.LIMIT
    while not happened():
        assert process.poll() is None, "the process has ended"
        assert time.monotonic() < last, "nothing has happened"
        time.sleep(0.002)


def finish(train: Train, folder: pathlib.Path) -> str:
    """Lets the same command end the run; returns what it says."""
    code = train(folder).wait()
    text = log_of(folder).read_text()
    assert code == 0 and "Traceback" not in text, text
    return text


def error_of(folder: pathlib.Path) -> str:
    """The one line of a refusal that stands in a log, with no traceback around it."""
    text = log_of(folder).read_text()
    assert "Traceback" not in text, text
    (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
    return line


def test_signals_stop_a_run_with_a_checkpoint_and_the_same_command_continues(
    train, whole, tmp_path
):
    folder, last = tmp_path / "run", 0
    for number, ends in ((signal.SIGTERM, 75), (signal.SIGINT, 75), (None, None)):
        process = train(folder)
        until(process, lambda last=last: newest_step(folder) > last)
        process.send_signal(number or signal.SIGTERM)
        if number is None:
            os.kill(process.pid, signal.SIGINT)  # a second one, before the first can be served
            ends = process.wait()
            assert ends in (130, 143)  # of two that wait, the system may give INT first
            number = signal.SIGTERM if ends == 130 else signal.SIGINT
        assert process.wait() == ends
        text = log_of(folder).read_text()
        name = signal.Signals(number).name
        assert re.findall("(?m)^SIG.*", text) == [
            f"{name}: stopping after this step; once more: at once."
        ]
        assert "Traceback" not in text
        if ends == 75:
            assert text.endswith(f"Paused; the same command continues. Run folder: {folder}\n")
            assert newest_step(folder) > last
        last = newest_step(folder)
    assert "Continuing after epoch" in finish(train, folder)
    assert differences(folder, whole.folder) == []


def test_a_run_that_is_killed_again_and_again_comes_to_the_same_bits(
    train, whole, experiment, tmp_path
):
    numbers = iter(range(100))
    *kills, found = survivors.kill_and_restart(
        whole.folder,
        whole.seconds,
        kills=5,
        seed=3,
        new_folder=lambda: tmp_path / f"run{next(numbers)}",
        begin=train,
    )
    assert found == []
    assert len(kills) == 5
    assert any("orbax-checkpoint-tmp" in name for kill in kills for name in kill.unfinished)


def test_of_many_trainers_one_trains_and_a_killed_ones_lock_is_taken_over(
    forks, experiment, whole, tmp_path
):
    folder = tmp_path / "run"

    def start(k: int) -> Fork:
        log = tmp_path / f"{k}.log"
        return forks.start("--config", experiment, "--workdir", folder, log=log)

    def refused(k: int, owner: int) -> None:
        text = (tmp_path / f"{k}.log").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
        assert f"The workdir {folder} is in use by " in line and "Traceback" not in text
        # It may have looked before the owner had written its name.
        assert f"by process {owner} on " in line or "by another process:" in line, line

    many = {k: start(k) for k in range(4)}
    last = time.monotonic() + survivors.LIMIT
    while len(living := [k for k, process in many.items() if process.poll() is None]) > 1:
        assert time.monotonic() < last
        time.sleep(0.005)
    (owner,) = living
    assert [process.poll() for k, process in many.items() if k != owner] == [2, 2, 2]
    for k in many:
        if k != owner:
            refused(k, many[owner].pid)
    until(many[owner], lambda: newest_step(folder) > 0)
    os.kill(many[owner].pid, signal.SIGSTOP)  # it lives, and comes no further
    assert start(5).wait() == 2
    refused(5, many[owner].pid)
    many[owner].send_signal(signal.SIGKILL)
    assert many[owner].wait() == -signal.SIGKILL
    assert start(6).wait() == 0
    assert differences(folder, whole.folder) == []


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
    time.sleep(60)
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
def test_a_signal_before_a_mode_has_begun_leaves_no_traceback(number, tmp_path):
    experiment = tmp_path / "slow.py"
    ready = str(tmp_path / "ready")
    experiment.write_text(
        "import pathlib, time\n\n\ndef get_config():\n"
        f"    pathlib.Path({ready!r}).touch()\n    time.sleep({survivors.LIMIT})\n"
    )
    log = tmp_path / "log"
    process = survivors.start("--config", experiment, "--workdir", tmp_path / "run", log=log)
    until(process, (tmp_path / "ready").exists)
    process.send_signal(number)
    assert process.wait(survivors.LIMIT) == 128 + number
    assert log.read_text() == f"error: Stopped by {number.name}.\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_another_mode_is_one_line(number, forks, tmp_path):
    os.mkfifo(tmp_path / "predictions.csv")  # never written: reading it waits
    log, output = tmp_path / "log", tmp_path / "report.json"
    process = forks.start(
        *("--mode=evaluate", "--input", tmp_path / "predictions.csv", "--output", output), log=log
    )
    time.sleep(1)
    process.send_signal(number)
    assert process.wait(survivors.LIMIT) == 128 + number
    assert log.read_text() == f"error: Stopped by {number.name}.\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "predictions.csv"]


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


def test_of_what_orbax_and_tensorstore_say_nothing_is_heard_and_all_else_is(tmp_path, caplog):
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


def test_checkpoints_leave_a_log_that_nobody_has_set_up_as_it_is(tmp_path, monkeypatch):
    with monkeypatch.context() as without_handlers:
        without_handlers.setattr(logging.root, "handlers", [])
        with Checkpoints(str(tmp_path / "run")) as checkpoints:
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


def test_a_run_falls_back_to_the_newest_sound_checkpoint_and_comes_to_the_same_bits(
    train, whole, tmp_path
):
    folder = tmp_path / "run"
    assert train(folder, "--stop_after_epochs=4").wait() == 75
    newest, older = step_folders(folder)
    spoil(newest)
    (folder / "checkpoints" / "9999").mkdir()  # an empty one, newer than all
    assert train(folder, "--stop_after_epochs=1").wait() == 75
    text = log_of(folder).read_text()
    for unusable in ("9999", newest.name):
        assert f"Checkpoint {folder}/checkpoints/{unusable} cannot be used: " in text
    assert f"{older.name} cannot be used" not in text and "Traceback" not in text
    newest, _ = step_folders(folder)
    shutil.rmtree(newest / "digest")
    (folder / "checkpoints" / "9999").write_text("a file")
    text = finish(train, folder)
    assert f"Checkpoint {folder}/checkpoints/{newest.name} cannot be used: " in text
    (folder / "checkpoints" / "9999").unlink(missing_ok=True)
    assert differences(folder, whole.folder) == []


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
    assert train(folder, "--stop_after_epochs=2").wait() == 75
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
    damage, expected, train, paused, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(paused, folder)
    damage(folder)
    before = contents(folder)
    assert train(folder).wait() == 2
    assert re.search(expected, error_of(folder)), error_of(folder)
    assert contents(folder) == before


def test_lines_that_are_gone_are_named(train, paused, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(paused, folder)
    (folder / "metrics.jsonl").unlink()
    assert train(folder, "--stop_after_epochs=1").wait() == 75
    text = log_of(folder).read_text()
    assert "metrics.jsonl has no line of epoch(s) 1, 2 any more" in text


def test_a_damaged_bundle_is_refused_wherever_it_is_damaged(whole, forks, train, tmp_path):
    sound = whole.folder / "bundle"
    bundle = tmp_path / "bundle"
    for name in ("bundle.json", "parameters.safetensors"):
        for kind in (*np.linspace(0, 1, 25).astype(str), "truncated", "empty", "deleted"):
            shutil.rmtree(bundle, ignore_errors=True)
            shutil.copytree(sound, bundle)
            damaged(bundle / name, kind)
            with pytest.raises(UserError, match="damaged|no bundle|newer than"):
                load_bundle(bundle)
    shutil.rmtree(bundle)
    shutil.copytree(whole.folder, tmp_path / "finished")
    damaged(tmp_path / "finished" / "bundle" / "parameters.safetensors", "0.5")
    bundle = tmp_path / "finished" / "bundle"
    log = log_of(tmp_path / "run")
    commands = {
        "evaluate": ["--mode=evaluate", "--workdir", tmp_path / "finished"],
        "predict": [
            *("--mode=predict", "--bundle", bundle, "--input=synthetic"),
            *("--output", tmp_path / "p.csv"),
        ],
    }
    for arguments in commands.values():
        assert forks.start(*arguments, log=log).wait() == 2
        assert "is damaged: parameters.safetensors" in error_of(tmp_path / "run")
    assert train(tmp_path / "run", f"--config.model.init_from={bundle}").wait() == 2
    assert "is damaged: parameters.safetensors" in error_of(tmp_path / "run")
    assert not (tmp_path / "run").exists() and not (tmp_path / "p.csv").exists()


# --- storage ---


def test_a_checkpoint_that_cannot_be_written_is_one_line_and_the_run_goes_on_afterwards(
    train, whole, paused, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(paused, folder)
    # No file longer than that: a checkpoint is, and the error is one of a save in the background.
    assert train(folder, "--stop_after_epochs=1", largest_file=6000).wait() == 2
    said = f"A checkpoint cannot be written to {folder}/checkpoints: File too large. The last"
    assert said in error_of(folder)
    assert newest_step(folder) == newest_step(paused)
    finish(train, folder)
    assert differences(folder, whole.folder) == []


@pytest.fixture
def small_disk(tmp_path) -> Iterator[pathlib.Path]:
    """A file system of its own, of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "msajax-test", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"this system lets no test mount a file system: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=20)


def test_a_full_disk_and_a_read_only_one_cost_nothing_but_time(train, whole, small_disk, tmp_path):
    folder = small_disk / "run"
    log = log_of(tmp_path / "run")

    def start(*arguments) -> Fork:
        return train(folder, *arguments, log=log)

    assert start("--stop_after_epochs=1").wait() == 75
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "filler").write_bytes(bytes(free - 40_000))
    assert start().wait() == 2
    assert "cannot be written" in error_of(tmp_path / "run")
    (small_disk / "filler").unlink()
    kept = newest_step(folder)
    assert kept >= STEPS
    process = start()
    until(process, lambda: newest_step(folder) > kept)
    process.send_signal(signal.SIGSTOP)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "filler").write_bytes(bytes(free))  # now not a byte is left
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 2
    assert "cannot be written" in error_of(tmp_path / "run")
    (small_disk / "filler").unlink()
    before = contents(folder)
    remount = ["mount", "-o", "remount,{}", "msajax-test", str(small_disk)]
    subprocess.run([a.format("ro") for a in remount], check=True, timeout=20)
    assert start().wait() == 2
    assert f"The workdir {folder} cannot be written: Read-only" in error_of(tmp_path / "run")
    assert contents(folder) == before
    subprocess.run([a.format("rw") for a in remount], check=True, timeout=20)
    assert start().wait() == 0
    assert differences(folder, whole.folder) == []


def test_a_run_whose_folder_became_anothers_writes_nothing_there(train, tmp_path):
    folder = tmp_path / "run"
    rarely = ("checkpoint_every_steps=0", "checkpoint_every_seconds=1000", "epochs=100")
    process = train(folder, *(f"--config.train.{setting}" for setting in rarely))
    lines = folder / "metrics.jsonl"
    until(process, lambda: lines.exists() and lines.stat().st_size > 0)
    process.send_signal(signal.SIGSTOP)
    folder.rename(tmp_path / "moved")
    (folder / "checkpoints").mkdir(parents=True)
    lines.write_text("theirs\n")
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 2
    assert "another folder stands there now" in error_of(folder)
    assert lines.read_text() == "theirs\n"


def test_a_workdir_that_vanishes_is_one_line(train, whole, tmp_path):
    folder = tmp_path / "run"
    process = train(folder)
    until(process, lambda: newest_step(folder) > 0)
    process.send_signal(signal.SIGSTOP)
    shutil.rmtree(folder)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 2
    assert "cannot be written" in error_of(folder)
    if folder.exists():  # by a write that was under way
        assert train(folder).wait() == 2
        assert "or delete it if it is the rest of a deleted run." in error_of(folder)
        shutil.rmtree(folder)
    finish(train, folder)
    assert differences(folder, whole.folder) == []
