"""Does on a machine with a GPU all that the page on speed says of one, and writes a report.

    python bench/gpu.py [--report=gpu.txt] [--only=speed,resume,kills,tests] [--kills=20]
                        [--speed='--dims=128 --seeds=1,5']

In turn: speed, types, seeds, steps per dispatch, memory and determinism (train_step.py); a run of
the default model that is stopped and resumed, against one that is not; kills (kill.py); and all
tests (launch/test.sh). The interpreter needs `pip install "jax[cuda13]"` beside the project's
requirements and those of the tests, and PyTorch for its rows. What a part prints is in the report
as soon as it is printed, so that one that was cut short holds what had been done. The exit code is
1 if a part failed. --speed holds arguments of train_step.py.
"""

import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
from typing import TextIO

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("speed", "resume", "kills", "tests")
# Tests run beside each other and start processes: each takes memory of the device as it needs it.
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
RUN = {  # the default model at its own width, on few samples
    "train.epochs": 4,
    "train.seeds": 2,
    "data.synthetic.train": 640,
}


def main() -> int:
    """Runs the parts that were chosen; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", default="gpu.txt")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--platform", default="cuda", help="what JAX_PLATFORMS is set to")
    parser.add_argument("--speed", default="--dims=128", help="arguments of train_step.py")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    # What the tests leave out of compiling for speed is not what users run.
    os.environ |= {"JAX_PLATFORMS": options.platform, "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    codes = {}
    with open(options.report, "w", encoding="utf-8") as report:
        tell(report, describe())
        if "speed" in chosen:
            speed = ["bench/train_step.py", "--rows=accelerator", *shlex.split(options.speed)]
            codes["speed"] = told(report, [sys.executable, *speed])
        if "resume" in chosen:
            codes["resume"] = resumed(report)
        if "kills" in chosen:
            kills = ["bench/kill.py", f"--kills={options.kills}"]
            codes["kills"] = told(report, [sys.executable, *kills], SHARED)
        if "tests" in chosen:
            codes["tests"] = told(report, tests(), SHARED)
        for part, code in codes.items():
            tell(report, f"{part}: {'done' if code == 0 else f'FAILED (exit code {code})'}")
    return int(any(codes.values()))


def tests() -> list[str]:
    """Makes the command of all tests, by the interpreter that runs this."""
    if pathlib.Path(sys.prefix) == ROOT / ".venv":
        return ["bash", "launch/test.sh"]
    return [sys.executable, "-m", "pytest", "-n", "3", "--dist", "loadfile"]


def describe() -> str:
    """Says what the machine and the libraries are."""
    asked = (
        "import jax, jaxlib; print('jax', jax.__version__, 'on',"
        " [device.device_kind for device in jax.devices()])"
    )
    lines = [time.strftime("%Y-%m-%d"), output_of(sys.executable, "-c", asked)]
    lines += [output_of(sys.executable, "-c", "import torch; print('torch', torch.__version__)")]
    query = "--query-gpu=name,driver_version,memory.total"
    lines += [output_of("nvidia-smi", query, "--format=csv")]
    return "\n".join(lines)


def output_of(*command: str) -> str:
    """Returns what a command says, or that it failed."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    return (done.stdout if done.returncode == 0 else done.stderr[-300:]).strip()


def tell(report: TextIO, text: str) -> None:
    """Prints a text, and writes it into the report at once."""
    print(text, flush=True)
    print(text, file=report, flush=True)


def told(report: TextIO, command: list[str], more: dict[str, str] | None = None) -> int:
    """Runs a command, whose output goes into the report; returns its exit code."""
    tell(report, f"\n$ {shlex.join(command)}")
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | (more or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    for line in process.stdout:
        tell(report, line.rstrip("\n"))
    code = process.wait()
    tell(report, f"({time.monotonic() - started:.0f} s, exit code {code})")
    return code


def resumed(report: TextIO) -> int:
    """Compares a run that is stopped after every epoch and resumed with one that is not."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import survivors

    with tempfile.TemporaryDirectory() as place:
        whole, cut = pathlib.Path(place, "whole"), pathlib.Path(place, "cut")
        settings = {**RUN, "train.compile_cache": f"{place}/programs"}
        command = [sys.executable, "-m", "msajax.main", "--config=configs/sequence_base.py:smoke"]
        command += [f"--config.{key}={value}" for key, value in settings.items()]
        if code := told(report, [*command, f"--workdir={whole}"]):
            return code
        for epoch in range(1, RUN["train.epochs"] + 1):
            code = told(report, [*command, f"--workdir={cut}", "--stop_after_epochs=1"])
            if code != (0 if epoch == RUN["train.epochs"] else 75):
                return code or 1
        found = survivors.differences(cut, whole)
    tell(report, f"DIFFERENT: {', '.join(found)}" if found else "Resumed: the same bits.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
