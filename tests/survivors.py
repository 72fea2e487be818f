"""Runs that are ended by force: how they are started, killed, and compared with one that was not.

Used by `test_survival.py` and by `bench/kill.py`.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from tiny import lines_of, tiny_config_dict

from msajax.runtime.signals import StopRequest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 1800  # seconds after which a process that a test waits for counts as hanging
KEPT = ("predictions/valid.csv", "predictions/test.csv", "config.json")
ENVIRONMENT = dict(os.environ)  # as no test has changed it
BUNDLE = ("bundle/bundle.json", "bundle/parameters.safetensors")


def on_devices(count: int) -> dict[str, str]:
    """What a process is to find in its environment for so many virtual CPU devices, 0 for any."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
    number = f"--xla_force_host_platform_device_count={count}" * (count > 0)
    # Virtual devices are CPUs, also where there is a GPU.
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{number} {flags}".strip()}


def write_experiment(path: pathlib.Path, **settings) -> pathlib.Path:
    """The tiny run, with settings of one's own, as an experiment file."""
    text = (
        "from msajax.config import default_config\n\n\ndef get_config():\n"
        "    config = default_config()\n"
        f"    config.update({tiny_config_dict(**settings).to_dict()!r})\n    return config\n"
    )
    path.write_text(text)
    return path


def start(*arguments, log: pathlib.Path, **environment) -> subprocess.Popen:
    """The real command in a process of its own; what it says goes to `log`."""
    with open(log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "msajax.main", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def python(*arguments, **settings) -> subprocess.CompletedProcess:
    """Another Python, to its end; settings are those of `subprocess.run`."""
    usual = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": LIMIT}
    return subprocess.run([sys.executable, *map(str, arguments)], **usual | settings)


class StopAfter(StopRequest):
    """Asks to stop once it has been asked so many times itself."""

    def __init__(self, questions: int) -> None:
        self._left = questions

    @property
    def requested(self) -> bool:
        self._left -= 1
        return self._left < 0


def state_of(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint but the clock."""
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        state = manager.restore(
            manager.latest_step(), args=ocp.args.Composite(state=ocp.args.StandardRestore())
        ).state
    return {key: value for key, value in state.items() if key != "epoch/seconds"}


def differences(folder: pathlib.Path, whole: pathlib.Path, finished: bool = True) -> list[str]:
    """In what a run differs from the uninterrupted one; nothing, if it kept its promise."""
    state, expected = state_of(folder), state_of(whole)
    found = [f"{k} in one alone" for k in state.keys() ^ expected.keys()]
    found += [k for k in state.keys() & expected if not same_bits(state[k], expected[k])]
    if lines_of(folder) != lines_of(whole):
        found.append("metrics.jsonl")
    if not finished:
        return found
    results, expected_results = (
        json.loads((f / "results.json").read_text()) for f in (folder, whole)
    )
    for timed in (results, expected_results):
        timed["timing"].pop("train_seconds")
    if results != expected_results:
        found.append("results.json")
    names = (*KEPT, *BUNDLE)
    found += [n for n in names if (folder / n).read_bytes() != (whole / n).read_bytes()]
    return found + leftovers(folder, whole)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal, NaN and the sign of 0 included."""
    a, b = np.asarray(a), np.asarray(b)
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def leftovers(folder: pathlib.Path, whole: pathlib.Path) -> list[str]:
    """Whatever stands in a run's folder that an uninterrupted one does not leave."""

    def names(run: pathlib.Path) -> set[str]:
        found = {str(path.relative_to(run)) for path in run.rglob("*")}
        inside = r"checkpoints/\d+(/.*)?"  # the last two steps may be others
        return {name for name in found if not re.fullmatch(inside, name)}

    inside = [str(path) for path in (folder / "checkpoints").glob("*/*") if "tmp" in path.name]
    return sorted(names(folder) ^ names(whole)) + inside


SERVER = """
import gc, importlib, json, os, resource, sys
gc.set_threshold(100_000, 10, 10)
sys.path.append("tests")
import msajax.main, msajax.results.tables, msajax.studies.folds, msajax.report.model_card
import msajax.cli.train, msajax.cli.evaluate, msajax.cli.predict, jaxlib.mlir.dialects.mhlo
msajax.announce.SECONDS = 1e9  # what is said must not depend on how busy the machine is
import jax.extend
# A child of a process that has a backend would wait for its threads for ever.
assert not jax._src.xla_bridge.backends_are_initialized(), "importing msajax makes an array"
gc.freeze()  # a fork that looks through these objects would copy them
for line in sys.stdin:
    what, *rest = json.loads(line)
    if what == "poll":
        pid, status = os.waitpid(rest[0], os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    arguments, out, err, largest_file, folder, environment, program = rest
    os.environ.update(environment)
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(out, write, 0o600), 1)
    os.dup2(os.open(err, write, 0o600) if err else 1, 2)
    os.chdir(folder)
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.argv = ["msajax", *arguments]
    code = 1
    try:
        module, function = program.split(":")
        getattr(importlib.import_module(module), function)()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # taking JAX down in good order would take longer than many a command
"""


class Forks:
    """The same program for many command lines, imported once; every one in a fork of its own.

    `prelude` is Python that runs before.
    """

    def __init__(self, prelude: str = "", **environment: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", prelude + SERVER],
            cwd=ROOT,
            env=ENVIRONMENT | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *request):
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(
        self,
        *arguments,
        log: pathlib.Path,
        errors: pathlib.Path | str = "",
        largest_file: int = 0,
        folder: pathlib.Path = ROOT,
        environment: Mapping[str, str] | None = None,
        program: str = "msajax.main:run",
    ) -> "Fork":
        """Begins a command in a folder; what it says goes to `log`, or its errors elsewhere.

        `program` is the module, and what is called there.
        """
        request = [*map(str, arguments)], str(log), str(errors), largest_file, str(folder)
        pid = self.ask("start", *request, dict(environment or {}), program)
        return Fork(self, pid, log)

    def close(self) -> None:
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait(LIMIT)

    def run(self, *arguments, **settings) -> subprocess.CompletedProcess:
        """Runs a command to its end; settings are those of `start`."""
        with tempfile.TemporaryDirectory() as place:
            out, errors = pathlib.Path(place, "out"), pathlib.Path(place, "err")
            code = self.start(*arguments, log=out, errors=errors, **settings).wait()
            said = out.read_text(), errors.read_text()
        return subprocess.CompletedProcess(arguments, code, *said)


class Fork:
    """A command that runs; like `subprocess.Popen`, as far as it is used here."""

    def __init__(self, forks: Forks, pid: int, log: pathlib.Path) -> None:
        self._forks, self.pid, self.log, self._code = forks, pid, log, None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._forks.ask("poll", self.pid)
        return self._code

    def wait(self, seconds: float = LIMIT) -> int:
        """Its exit code; kills it, and fails, after so long."""
        last = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > last:
                self.send_signal(signal.SIGKILL)
                raise TimeoutError(f"process {self.pid} has not ended within {seconds} s")
            time.sleep(0.01)
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def until(self, happened: Callable[[], object]) -> "Fork":
        """Waits for something while it lives."""
        last = time.monotonic() + LIMIT
        while not happened():
            assert self.poll() is None, self.log.read_text()
            assert time.monotonic() < last, "nothing has happened"
            time.sleep(0.002)
        return self

    def ends(self, code: int) -> str:
        """Waits for its end with this code; returns what it has said, which holds no traceback."""
        found, text = self.wait(), self.log.read_text()
        assert found == code and "Traceback" not in text, text
        return text

    def error(self) -> str:
        """The one line that it is refused with."""
        (line,) = [line for line in self.ends(2).splitlines() if line.startswith("error: ")]
        return line


class Kill(NamedTuple):
    """What a kill met: `steps` of the newest whole checkpoint, names of unfinished writes."""

    aim: str
    seconds: float
    steps: int
    unfinished: list[str]
    folders: int  # runs that had ended before


def unfinished(folder: pathlib.Path) -> list[str]:
    """What is being written in a run's folder just now, by its name."""
    found = []
    for place in (folder, folder / "checkpoints", folder / "predictions"):
        with contextlib.suppress(FileNotFoundError):
            found += [name for name in os.listdir(place) if "tmp" in name or "partial" in name]
    return found


def newest_step(folder: pathlib.Path) -> int:
    """Of the newest checkpoint, 0 for none."""
    return max((int(p.name) for p in folder.glob("checkpoints/*") if p.name.isdigit()), default=0)


def kill_and_restart(
    whole: pathlib.Path,
    seconds: float,
    kills: int,
    seed: int,
    new_folder: Callable[[], pathlib.Path],
    begin: Callable[[pathlib.Path], subprocess.Popen],
) -> Iterator[Kill | list[str]]:
    """Kills a run at random moments, restarting it each time; yields each kill, then differences.

    A third of the kills each comes at any moment, while a checkpoint is written, and while the
    results are. A run that ends before its kill is compared with `whole`, the folder of one that
    was not interrupted and took so many seconds, and another one begun in a new folder.
    """
    moments, done, ended = random.Random(seed), 0, 0
    folder = new_folder()
    log = folder.with_suffix(".log")
    aims = ["saving", "anywhere", "ending"]
    while done < kills:
        aim = aims[done % len(aims)]
        saves, delay = moments.randint(1, 8), moments.uniform(0, seconds)
        pause = moments.choice([0, 0, moments.uniform(0, 0.05)])
        started, seen, last = time.monotonic(), 0, set()
        process = begin(folder)
        while process.poll() is None:
            passed = time.monotonic() - started
            if passed > LIMIT:
                process.send_signal(signal.SIGKILL)
                raise TimeoutError(log.read_text())
            now = set(unfinished(folder))
            if aim == "anywhere" and passed >= delay:
                break
            if aim == "saving":
                seen += len({name for name in now - last if "orbax" in name})
                if seen >= saves:
                    break
            if aim == "ending" and {"bundle.partial", "results.json.partial"} & now:
                break
            if aim == "ending" and (folder / "predictions").exists() and moments.random() < 0.1:
                break
            last = now
            time.sleep(0.001)
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        code = process.wait(LIMIT)
        text = log.read_text(errors="replace")
        if code == -signal.SIGKILL:
            done += 1
            passed = round(time.monotonic() - started, 2)
            yield Kill(aim, passed, newest_step(folder), unfinished(folder), ended)
        elif code == 0:
            ended, seconds = ended + 1, min(seconds, 0.9 * (time.monotonic() - started))
            if found := differences(folder, whole):
                yield found
                return
            folder = new_folder()
            log = folder.with_suffix(".log")
        else:
            yield [f"exit code {code}: {text[-2000:]}"]
            return
        if "Traceback" in text:
            yield [text[-4000:]]
            return
    code = begin(folder).wait(LIMIT)
    yield differences(folder, whole) if code == 0 else [f"exit code {code}: {log.read_text()}"]
