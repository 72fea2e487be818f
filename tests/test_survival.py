"""Promises to a run that is interrupted, killed, damaged or out of room: nothing but time is lost.

The moments are those of real processes with real signals; the many combinations of settings run
inside this process.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import survivors
from survivors import Fork, Forks, differences, newest_step, state_of
from tiny import lines_of, run, tiny_config

from msajax.errors import UserError
from msajax.training import feed
from msajax.training.checkpoints import Checkpoints
from msajax.training.run_folder import RunFolder
from msajax.training.stop import StopRequest

STEPS = 7  # of an epoch of the tiny run
EPOCHS = 12

# --- interrupted anywhere, in this process ---


class StopAfter(StopRequest):
    """Asks to stop once it has been asked so many times itself."""

    def __init__(self, questions: int) -> None:
        self._left = questions

    @property
    def requested(self) -> bool:
        self._left -= 1
        return self._left < 0


@pytest.fixture
def single_steps(monkeypatch):
    """Every step a dispatch of its own, so that a run can stop after each."""
    monkeypatch.setattr(feed.Pace, "update", lambda *_: None)


@pytest.mark.parametrize(
    ("mode", "seeds", "streams"),
    [("jit", 1, True), ("jit", 3, False), ("pmap", 1, True), ("pmap", 2, False)],
)
def test_a_run_interrupted_inside_epochs_comes_to_the_same_bits(
    mode, seeds, streams, single_steps, tmp_path
):
    config = tiny_config(
        mesh__mode=mode,
        train__seeds=seeds,
        train__epochs=4,
        train__patience=1,
        train__checkpoint_every_steps=3,
        optim__plateau_patience=1,
        optim__learning_rate=0.02,
        data__device_memory_budget=0 if streams else 2**31,
    )
    assert config.model.dropout_rate > 0
    whole = run(config, tmp_path / "whole")
    stops = []
    for questions in (3, 3, 1):  # after so many steps more, the last time with a validation
        assert not run(config, tmp_path / "run", stop=StopAfter(questions)).finished
        stops.append(newest_step(tmp_path / "run"))
    assert stops == [3, 6, STEPS]
    resumed = run(config, tmp_path / "run")
    assert resumed.finished and resumed.best_epoch == whole.best_epoch
    assert differences(tmp_path / "run", tmp_path / "whole", finished=False) == []


# --- real processes, real signals ---


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    server = Forks()
    yield server
    server.close()


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> pathlib.Path:
    """A tiny run that saves at every opportunity."""
    path = tmp_path_factory.mktemp("configs") / "tiny_run.py"
    return survivors.write_experiment(
        path, train__epochs=EPOCHS, train__patience=0, train__checkpoint_every_steps=1
    )


Train = Callable[..., Fork]


@pytest.fixture(scope="module")
def train(forks, experiment) -> Train:
    """Starts the training command in a folder; what it says is beside the folder, in a .log."""

    def start(folder: pathlib.Path, *arguments, **limits) -> Fork:
        return forks.start(
            *("--config", experiment, "--workdir", folder, *arguments),
            log=log_of(folder),
            **limits,
        )

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
    for number, ends in ((signal.SIGTERM, 75), (signal.SIGINT, 75), (None, 130)):
        process = train(folder)
        until(process, lambda last=last: newest_step(folder) > last)
        began = time.monotonic()
        process.send_signal(number or signal.SIGTERM)
        if number is None:
            os.kill(process.pid, signal.SIGINT)  # a second one, before the first can be served
        assert process.wait() == ends
        assert time.monotonic() - began < 60  # on a machine with much else to do
        text = log_of(folder).read_text()
        name = signal.Signals(number or signal.SIGTERM).name
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


def test_a_torn_last_line_and_lines_of_lost_epochs_are_repaired(train, whole, tmp_path):
    folder = tmp_path / "run"
    assert train(folder, "--stop_after_epochs=2").wait() == 75
    line = (folder / "metrics.jsonl").read_text().splitlines()[-1]
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(line.replace('"epoch": 2', '"epoch": 3') + "\n" + line[: len(line) // 2])
    finish(train, folder)
    assert differences(folder, whole.folder) == []


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
