"""Measures what a run costs as it grows: time and memory, one axis at a time.

    python bench/cost.py [--axes=samples,steps,width,seeds,devices] [--values=N,N,…] [--epochs=2]
                         [--settings='--config.model.n_layers_mod=0']

Every point is a whole run of msajax in a fresh process: configs/sequence_base.py on the embedded
corpus with one random seed, 1,000 samples, 20 steps and width 128 but for what the axis changes,
and nothing kept of earlier compiling. Prints a Markdown table: milliseconds of a training step (of
all seeds together), samples per second (likewise), seconds of the last epoch, how much longer the
first one took (what compiling costs), and the peak memory of the process. Where an epoch has 10,000
samples or more it is the only one: what compiling cost the default is taken off. About 10 minutes
on 2 cores.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent

AXES = {
    "samples": (1_000, 10_000, 100_000),
    "steps": (20, 50, 500),
    "width": (64, 128, 256, 512),
    "seeds": (1, 2, 5, 10, 20),
    "devices": (1, 2),
}
DEFAULT = {"samples": 1_000, "steps": 20, "width": 128, "seeds": 1, "devices": 1}
ONE_EPOCH_FROM = 10_000  # samples


class Cost(NamedTuple):
    """Holds what one run cost.

    Attributes:
        first: seconds of the first epoch.
        last: seconds of the last epoch, which compiles nothing; that of the only one, if so.
        steps: of an epoch.
        peak: MiB, the most that the process held at once.
    """

    first: float
    last: float
    steps: int
    peak: float


def main() -> None:
    """Measures every point once, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--values", help="of the axis, if it is a single one")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--settings", default="", help="arguments of every run, in one word")
    options = parser.parse_args()
    settings = shlex.split(options.settings)
    axes = {axis: AXES[axis] for axis in options.axes.split(",")}
    if options.values:
        axes = dict.fromkeys(axes, tuple(map(int, options.values.split(","))))
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores {options.settings}\n")
    print("| | ms a step | samples/s | s an epoch | s to compile | peak MiB |")
    print("|---|---|---|---|---|---|")
    base = run(DEFAULT, max(options.epochs, 2), settings)
    known = {tuple(DEFAULT.values()): base}
    for axis, values in axes.items():
        for value in values:
            point = DEFAULT | {axis: value}
            epochs = options.epochs if point["samples"] < ONE_EPOCH_FROM else 1
            key = tuple(point.values())
            if key not in known:
                known[key] = run(point, epochs, settings)
            print(line(f"{axis} {value:,}", point, known[key], base), flush=True)


def line(name: str, point: dict[str, int], cost: Cost, base: Cost) -> str:
    """Makes a row of the table; `base` says what compiling took where there is one epoch."""
    compiling = cost.first - cost.last
    epoch = cost.last
    if point["samples"] >= ONE_EPOCH_FROM:
        compiling = base.first - base.last
        epoch = cost.last - compiling
    cells = [name, f"{1e3 * epoch / cost.steps:.1f}"]
    cells += [f"{point['seeds'] * point['samples'] / epoch:.0f}", f"{epoch:.1f}"]
    return f"| {' | '.join([*cells, f'{compiling:.1f}', f'{cost.peak:.0f}'])} |"


def run(point: dict[str, int], epochs: int, more: list[str]) -> Cost:
    """Trains once in a process of its own."""
    length, width = point["steps"], point["width"]
    settings = {
        "data.synthetic.train": point["samples"],
        "data.synthetic.valid": 2,  # so that an epoch is training
        "data.synthetic.test": 2,
        "data.synthetic.lengths": f"{length},{length},{length}",
        "model.max_len": length,
        "model.model_dim": width,
        "model.ff_dim": 2 * width,
        "train.seeds": point["seeds"],
        "train.epochs": epochs,
        "train.patience": 0,
        "train.compile_cache": "off",
        "mesh.cpu_devices": point["devices"],
    }
    command = [sys.executable, "-m", "msajax.main", "--config=configs/sequence_base.py:smoke"]
    command += [f"--config.{key}={value}" for key, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder, "run")
        peak = peak_of([*command, f"--workdir={workdir}", *more])
        lines = list(map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines()))
    return Cost(
        first=lines[0]["seconds"],
        last=lines[-1]["seconds"],
        steps=lines[-1]["step"] // lines[-1]["epoch"],
        peak=peak,
    )


def peak_of(command: list[str]) -> float:
    """Runs a process on CPUs to its end; returns the most memory that it held at once, in MiB."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        # Of this process alone: `resource` knows the largest of all children only.
        _, status, used = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status):
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{log.read()[-2000:]}")
    return used.ru_maxrss / 1024


if __name__ == "__main__":
    main()
