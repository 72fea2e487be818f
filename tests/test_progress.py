"""What is seen of a run while it trains: on a terminal, in a notebook, in a log."""

import io
import logging
import re
import sys
import types

import numpy as np
import pytest
from rich.console import Console

from msajax.training import progress
from msajax.training.progress import EpochProgress, TrialsProgress

LINE = {"epoch": 13, "train_loss": 1.25, "valid_cross_entropy": 2.5, "seconds": 0.5}
TOLD = "train loss 1.2500  valid cross_entropy 2.5000 (best 2.0000)  3 of 5 seeds still train"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def last_picture(*events, width: int = 80) -> list[str]:
    """The lines that the bar of a run of 100 epochs, 12 of them behind it, leaves behind."""
    console = Console(file=Terminal(), width=width, force_terminal=True)
    with EpochProgress(100, 12, "cross_entropy", console) as shown:
        for event in events:
            event(shown)
    text = re.sub(r"\x1b\[\??[0-9;]*[mhl]", "", console.file.getvalue())
    return [line.rstrip() for line in re.split(r"\x1b\[\d*[AK]", text)[-1].splitlines()]


def one_epoch(shown: EpochProgress) -> None:
    shown.epoch_done([LINE] * 3, np.array([1.0, 3.0, 2.0, 2.0, np.inf]))


def compiling(shown: EpochProgress) -> None:
    shown.compiling()


def seven_steps(shown: EpochProgress) -> None:
    shown.steps_done(7, 40)


def test_the_bar_says_compiling_only_until_the_next_steps_are_done():
    (line,) = last_picture(compiling)
    assert re.fullmatch(" 12/100 epochs [━╺╸]{20} -:--:-- left  compiling", line)
    for events in ((compiling, seven_steps), (seven_steps,)):
        (line,) = last_picture(*events)
        assert line.endswith("left  step 7 of 40") and "compiling" not in line
    assert last_picture(seven_steps, EpochProgress.validating)[0].endswith("left  validating")


@pytest.mark.parametrize("width", [80, 60])
def test_a_narrow_terminal_keeps_the_counters_and_cuts_what_the_epoch_gave(width):
    first, second = last_picture(compiling, one_epoch, seven_steps, width=width)
    counters = r" 13/100 epochs [━╺╸]{15,20} \d:\d\d:\d\d left  step 7 of 40"
    assert re.fullmatch(counters, first), first
    assert second == TOLD[: width - 1] + "…"
    assert last_picture(one_epoch, width=100)[1] == TOLD


def test_what_is_logged_meanwhile_stands_whole_above_the_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    logger, handler = logging.getLogger("msajax"), logging.StreamHandler()
    logger.addHandler(handler)
    try:
        with EpochProgress(100, 12, "mae", Console(stderr=True, width=80, force_terminal=True)):
            logger.warning("of a step")
        assert handler.stream is sys.stderr is terminal
    finally:
        logger.removeHandler(handler)
    assert "\x1b[2Kof a step\n" in terminal.getvalue()


def test_a_notebook_shows_the_bar_without_further_packages(monkeypatch):
    pictures = []

    class Handle:
        def update(self, bar) -> None:
            pictures.append(bar._repr_mimebundle_([], [])["text/plain"])

    def display(bar, display_id: bool) -> Handle:
        assert display_id
        Handle().update(bar)
        return Handle()

    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(display=display))
    with EpochProgress(100, 12, "cross_entropy", Console(force_jupyter=True)) as shown:
        for event in (compiling, seven_steps, seven_steps, one_epoch):
            event(shown)
    assert "12/100" in pictures[0] and "compiling" in pictures[1]
    assert len(pictures) == 3  # two a second, and the last one
    assert "13/100" in pictures[2] and TOLD[:70] in pictures[2]


def messages(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_log_has_a_line_for_the_compiler_one_a_minute_and_one_an_epoch(monkeypatch, caplog):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    log = Console(file=io.StringIO(), force_terminal=True)  # colours were asked for: no terminal
    with caplog.at_level(logging.INFO, "msajax"), EpochProgress(100, 12, "mae", log) as shown:
        for step in range(1, 5):
            now += 25.0
            shown.compiling()
            shown.steps_done(step, 4)
        shown.validating()
        # Of what the second one gave nothing is finite.
        lines = [
            {"epoch": 13, "seconds": 0.5, "train_loss": 1.0, "valid_mae": 2.0},
            {"epoch": 13, "seconds": 0.5, "train_loss": None, "valid_mae": np.nan},
        ]
        shown.epoch_done(lines, np.array([2.0, np.inf]))
    compiler, steps, epoch = messages(caplog)
    assert compiler.startswith("Compiling programs")
    assert steps == "epoch 13/100  step 3 of 4"
    assert epoch == (
        "epoch 13/100  train loss 1.0000  valid mae 2.0000 (best 2.0000)  "
        "2 of 2 seeds still train  0.5 s"
    )
    assert log.file.getvalue() == ""


def test_a_sweep_is_one_bar_of_trials_and_in_a_log_a_line_for_each(monkeypatch, caplog):
    console = Console(file=Terminal(), width=80, force_terminal=True)
    with TrialsProgress(20, 3, console) as sweep, sweep.of_trial(10, 4, "mae") as shown:
        shown.compiling()
        shown.epoch_done([LINE | {"epoch": 5, "valid_mae": 1.0}], np.array([1.0]))
        assert sweep._bar.tasks[0].completed == 3.5
        sweep.trial_done("trial 3")
        assert sweep._bar.tasks[0].completed == 4
    assert re.search(r" 4/20\S* trials ", console.file.getvalue())
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    log = Console(file=io.StringIO(), force_terminal=True)
    with caplog.at_level(logging.INFO, "msajax"), TrialsProgress(20, 3, log) as sweep:
        shown = sweep.of_trial(10, 4, "mae")
        for epoch in range(5, 11):
            now += 25.0
            shown.compiling()
            shown.epoch_done([LINE | {"epoch": epoch, "valid_mae": 1.0}], np.array([1.0]))
        sweep.trial_done("trial 3: mae 1")
    first, second, line = messages(caplog)
    assert first.startswith("epoch 7/10 ") and second.startswith("epoch 10/10 ")
    assert line == "4 of 20: trial 3: mae 1"
