"""Several real processes train one run: to the parameters of one, or to one clear sentence."""

import json
import pathlib
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import survivors
from tiny import SMALLEST

EPOCHS = 40  # long enough for a signal to come before the end


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Writes an experiment file with settings of its own."""
    folder = tmp_path_factory.mktemp("experiments")

    def write(**settings) -> pathlib.Path:
        path = folder / f"tiny_{len(list(folder.iterdir()))}.py"
        usual = {"train__epochs": EPOCHS, "train__patience": 0, "train__loss": "mse"}
        settings = {"optim__learning_rate": 1e-3} | usual | settings
        return survivors.write_experiment(path, **SMALLEST, **settings)

    return write


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


class Running(NamedTuple):
    """A process, and the files of what it says and of its errors."""

    process: survivors.Fork
    out: pathlib.Path
    err: pathlib.Path


@pytest.fixture
def start(forks, tmp_path_factory) -> Iterator[Callable[..., Running]]:
    """Starts the command with so many devices; nothing outlives the test."""
    folder, started = tmp_path_factory.mktemp("said"), []

    def begin(*arguments, devices: int = 1) -> Running:
        out, err = (folder / f"{len(started)}.{name}" for name in ("out", "err"))
        settings = {"log": out, "errors": err, "environment": survivors.on_devices(devices)}
        started.append(Running(forks.start(*arguments, **settings), out, err))
        return started[-1]

    yield begin
    for running in started:
        running.process.send_signal(signal.SIGKILL)


@pytest.fixture
def together(start) -> Callable[..., list[Running]]:
    """Starts so many processes of one run."""

    def begin(count: int, *arguments) -> list[Running]:
        of = [f"--coordinator_address=localhost:{free_port()}", f"--num_processes={count}"]
        return [
            start(*arguments, "--join_seconds=600", *of, f"--process_id={i}") for i in range(count)
        ]

    return begin


def answers(running: list[Running]) -> list[tuple[int, str, str]]:
    return [(r.process.wait(), r.out.read_text(), r.err.read_text()) for r in running]


def lines_of(folder: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(forks, experiment, tmp_path_factory):
    """The run of one process with one device."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    done = forks.run("--config", experiment(), "--workdir", folder)
    assert done.returncode == 0, done.stderr
    return folder


def assert_same_run(folder: pathlib.Path, alone: pathlib.Path) -> None:
    """The same epochs, and their numbers to rounding; `test_devices.py` compares parameters."""
    lines, expected = lines_of(folder), lines_of(alone)
    for key in ("seed", "epoch", "step", "best", "stopped"):
        assert [line[key] for line in lines] == [line[key] for line in expected], key
    for key in ("train_loss", "valid_mae", "grad_norm"):
        np.testing.assert_allclose(
            [line[key] for line in lines], [line[key] for line in expected], rtol=1e-5
        )


def test_two_processes_that_any_of_them_stops_go_on_to_the_run_of_one(
    together, experiment, alone, tmp_path
):
    folder, path = tmp_path / "run", experiment()  # a random seed in each
    running = together(2, "--config", path, "--workdir", folder)
    wait_for(lambda: (folder / "metrics.jsonl").exists() and lines_of(folder), running)
    running[1].process.send_signal(signal.SIGTERM)
    found = answers(running)
    # It may have come after the last step.
    assert [code for code, _, _ in found] in ([75, 75], [0, 0]), found
    # Now of a corpus that streams, half of every batch in each.
    path = experiment(mesh__seed=1, mesh__data=2, data__device_memory_budget=0)
    found = answers(together(2, "--config", path, "--workdir", folder))
    assert [code for code, _, _ in found] == [0, 0], found
    assert_same_run(folder, alone)
    results = json.loads((folder / "results.json").read_text())
    assert results["seeds"] == [0, 1]
    assert json.loads((folder / "run.json").read_text())["processes"] == 2
    # The first one tells; the others say only how they met, and where the run is.
    assert f"epoch {EPOCHS}/{EPOCHS}" in found[0][2] and "valid" in found[0][1]
    for _, out, err in found[1:]:
        told = [line for line in out.splitlines() if not line.startswith("[Gloo]")]
        assert told == [f"Run folder: {folder}"]
        assert "epoch" not in err


def test_when_one_is_killed_the_other_stops_soon_and_the_restart_continues(
    together, experiment, tmp_path
):
    folder, begun = tmp_path / "run", 0
    path = experiment(train__checkpoint_every_seconds=0.0, train__epochs=5000)
    metrics = folder / "metrics.jsonl"

    def count() -> int:
        return len(metrics.read_text().splitlines())

    for killed in (1, 0):
        running = together(2, "--config", path, "--workdir", folder)
        wait_for(lambda least=begun + 4: metrics.exists() and count() > least, running)
        running[killed].process.send_signal(signal.SIGKILL)
        code, _, err = answers([running[1 - killed]])[0]
        if code == 75:
            assert f"error: Process {1 - killed} of 2 has lost another one" in err
            assert "Traceback" not in err
        else:  # the library noticed first that the process which coordinates has gone
            assert (code, killed) == (-signal.SIGABRT, 0), err
            assert "another task died" in err
        running[killed].process.wait()
        begun = count()
    seen = [(line["seed"], line["epoch"]) for line in lines_of(folder)]
    assert seen == [(seed, epoch) for epoch in range(1, seen[-1][1] + 1) for seed in (0, 1)]


def wait_for(condition, running: list[Running]) -> None:
    """Until a condition holds, while all processes live."""
    deadline = time.monotonic() + survivors.LIMIT
    while not condition():
        ended = [one for one in running if one.process.poll() is not None]
        assert not ended, ended[0].err.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_mistake_that_one_process_meets_ends_all_with_its_sentence(
    together, experiment, tmp_path
):
    # The first process alone looks at the workdir.
    (tmp_path / "file").write_text("mine")
    path = experiment()
    found = answers(together(2, "--config", path, "--workdir", tmp_path / "file"))
    for code, _, err in found:
        assert code == 2
        assert "The workdir" in err and "is a file; it must be a folder." in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            {"optim__learning_rate": 2e-3},
            "optim.learning_rate = 0.002, process 0 0.001; --stop_after_epochs = 1, process 0 None",
        ),
        ({"data__folds": 3}, "data.folds = 3, process 0 0"),  # which asks for several runs
    ],
    ids=["a rate", "folds"],
)
def test_processes_with_other_settings_are_refused_with_both_sides(
    setting, said, start, experiment, tmp_path
):
    paths = [experiment(), experiment(**setting)]
    port = free_port()
    running = [
        start(
            *("--config", path, "--workdir", tmp_path / "run", f"--process_id={i}"),
            *(f"--coordinator_address=localhost:{port}", "--num_processes=2"),
            *["--stop_after_epochs=1"] * i,  # one that went on alone would wait for ever
        )
        for i, path in enumerate(paths)
    ]
    for code, _, err in answers(running):
        assert code == 2, err
        assert f"error: Process 1 has {said}: every process" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("devices", "counts", "expected"),
    [
        ((2, 1), (2, 2), "as many devices as the others: process 0 2, process 1 1."),
        ((1, 1), (2, 3), "Process 1 was told --num_processes=3, process 0 2: "),
    ],
    ids=["devices", "counts"],
)
def test_processes_that_do_not_fit_together_all_say_so(
    devices, counts, expected, start, experiment, tmp_path
):
    port = free_port()
    running = [
        start(
            *("--config", experiment(), "--workdir", tmp_path / "run", f"--process_id={i}"),
            *(f"--coordinator_address=localhost:{port}", f"--num_processes={counts[i]}"),
            devices=devices[i],
        )
        for i in (0, 1)
    ]
    for code, _, err in answers(running):
        assert code == 2 and "Traceback" not in err, err
        (error,) = [line for line in err.splitlines() if line.startswith("error:")]
        assert expected in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", ["address", "count"])
def test_processes_that_never_meet_give_up_in_time(wrong, forks, experiment, tmp_path):
    port = free_port()
    process_id = {"address": 1, "count": 0}[wrong]
    flags = [f"--coordinator_address=localhost:{port}", "--num_processes=2", "--join_seconds=4"]
    arguments = ["--config", experiment(), "--workdir", tmp_path / "run", *flags]
    done = forks.run(*arguments, f"--process_id={process_id}")
    assert (done.returncode, done.stdout) == (2, "")
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert re.search(rf"After 4 s not all have met of 2 processes at localhost:{port}", error)
    assert not (tmp_path / "run").exists()
