"""Promises of the compilers: the order, what is dropped, and that nobody waits for them."""

import pathlib
import signal
import subprocess
import sys
import threading
import time

import chex
import jax
import jax.monitoring
import pytest
import survivors
from survivors import ROOT, differences, newest_step
from tiny import SMALLEST, run, tiny_config

from msajax.runtime import compile as compile_module
from msajax.runtime.compile import Compilers
from msajax.runtime.signals import StopRequest
from msajax.training import feed, loop, programs

SOON = 600  # seconds, on a machine with much else to do


class Program:
    """Stands for a program: it is traced at once, and compiled when it is let go."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told, self.let_go = name, told, threading.Event()

    def lower(self) -> "Program":
        self.told.append(self.name)
        return self

    def compile(self) -> str:
        assert self.let_go.wait(SOON)
        return self.name


def test_programs_are_traced_in_order_and_whoever_needs_one_waits_for_it_alone(monkeypatch):
    monkeypatch.setattr(compile_module, "LOADING_SECONDS", 0.01)
    told = []
    first, second, third = (Program(name, told) for name in "abc")
    with Compilers(threads=2) as at_work:
        for program in (first, second, third):
            at_work.add(program.name, program.lower)
        second.let_go.set()
        assert at_work.is_ready("b", SOON) and not at_work.is_ready("a")
        first.let_go.set()
        assert at_work.is_ready("a", SOON)
        third.let_go.set()
        assert at_work.is_ready("c", SOON)
    assert told == ["a", "b", "c"]


def test_memory_goes_back_to_the_system_once_a_program_is_compiled(monkeypatch):
    told = []
    monkeypatch.setattr(compile_module, "return_memory", lambda: told.append("returned"))
    program = Program("a", told)
    program.let_go.set()
    with Compilers(threads=1) as at_work:
        at_work.add("a", program.lower)
        assert at_work.is_ready("a", SOON)
    assert told == ["a", "returned"]


def test_leaving_drops_what_has_not_begun_and_waits_for_nothing():
    told = []
    first, second = Program("a", told), Program("b", told)
    with Compilers(threads=1) as at_work:
        at_work.add("a", first.lower)
        at_work.add("b", second.lower)
        assert not at_work.is_ready("a", 0.1)
    assert compile_module.is_compiling()  # and yet the context was left
    first.let_go.set()
    ends = time.monotonic() + SOON
    while compile_module.is_compiling():
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert told == ["a"]


@pytest.mark.parametrize(
    ("mode", "settings", "quarters"),
    [("jit", {**SMALLEST, "data__synthetic__lengths": (2,)}, 2), ("pmap", SMALLEST, 1)],
)
def test_a_run_compiled_ahead_comes_to_the_bits_of_one_that_compiles_when_it_calls(
    mode, settings, quarters, tmp_path, monkeypatch
):
    compiled = []

    def note(event: str, seconds: float, fun_name: str = "", **more) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append((fun_name, threading.current_thread().name.split("-")[0]))

    config = tiny_config(train__epochs=1, train__seeds=1, mesh__mode=mode, **settings)
    programs.jit_programs.cache_clear()  # another file may have had this run
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        ahead = run(config, tmp_path / "ahead")
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert {thread for _, thread in compiled} == {"compiler"}, compiled
    names = [name for name, _ in compiled]
    assert names.count("jit(gather)") == names.count("jit(predict)") == quarters
    monkeypatch.setattr(loop, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(Compilers, "is_ready", lambda *_: True)
    chex.assert_trees_all_equal(ahead.variables, run(config, tmp_path / "called").variables)
    assert differences(tmp_path / "ahead", tmp_path / "called", finished=False) == []


def test_an_error_of_tracing_in_the_background_ends_the_run_with_its_own_words(
    tmp_path, monkeypatch
):
    def broken(*_, **__):
        raise RuntimeError("the model is broken")

    monkeypatch.setattr(programs, "train_step", broken)
    # What is traced here would be found by other runs.
    monkeypatch.setattr(programs, "jit_programs", programs.jit_programs.__wrapped__)
    with pytest.raises(RuntimeError, match="^the model is broken"):
        run(tiny_config(**SMALLEST), tmp_path)


class StopWhileWaiting(StopRequest):
    """Asks to stop as soon as a program of a name is waited for."""

    requested = False

    def watch(self, name: str, monkeypatch) -> None:
        """Lets no program of the name become ready."""
        is_ready = Compilers.is_ready

        def watched(at_work: Compilers, waited_for, seconds: float = 0.0) -> bool:
            self.requested = self.requested or waited_for == name
            return waited_for != name and is_ready(at_work, waited_for, seconds)

        monkeypatch.setattr(Compilers, "is_ready", watched)


@pytest.mark.parametrize(("name", "steps"), [("init", 0), ("validation", 5)])
def test_a_stop_while_a_program_is_compiled_saves_what_there_is(
    name, steps, tmp_path, monkeypatch
):
    config = tiny_config(train__epochs=1, **SMALLEST)
    monkeypatch.setattr(feed.Pace, "update", lambda *_: None)  # every step a dispatch of its own
    with monkeypatch.context() as patch:
        stop = StopWhileWaiting()
        stop.watch(name, patch)
        assert not run(config, tmp_path / "run", stop=stop).finished
    assert newest_step(tmp_path / "run") == steps
    assert run(config, tmp_path / "run").finished and run(config, tmp_path / "whole").finished
    assert differences(tmp_path / "run", tmp_path / "whole", finished=False) == []


# A compiler is inside LLVM for a while, where no Python runs and nothing can be interrupted.
SLOW = """
import hashlib, jax, sys
from msajax.main import run
from msajax.runtime import signals

def compile(self):
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)

jax.stages.Lowered.compile = compile
signals.PATIENCE_SECONDS = 600
run()
"""


def test_a_process_that_is_stopped_while_it_compiles_leaves_at_once(tmp_path):
    path = survivors.write_experiment(tmp_path / "experiment.py", **SMALLEST)
    folder: pathlib.Path = tmp_path / "run"
    command = [sys.executable, "-c", SLOW, "--config", str(path), "--workdir", str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "compiling\n"
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=SOON)
        finally:
            process.kill()
    assert process.returncode == 75, err
    assert out.endswith(f"Paused; the same command continues. Run folder: {folder}\n")
    assert "Traceback" not in err and newest_step(folder) == 0
