"""How a run scales over processes on one machine: one processor core each, as far as there are any.

    python bench/processes.py [--config=configs/sequence_base.py] [--samples=1024] [--repeats=3]

Trains an embedded corpus of so many samples with 1, 2 and 4 processes: once with a random seed for
each process, which then exchange nothing but decisions, and once with one random seed whose batches
are shared, where every step sums the gradients of all. Prints samples per second of the last epoch
(medians over the repeats, which take turns, and their range), the ratio to one process, and the
bytes that a process sends in each step.
"""

import argparse
import itertools
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EPOCHS = 3
COUNTS = (1, 2, 4)


def train(options: argparse.Namespace, count: int, shared: bool, cache: str) -> tuple[float, int]:
    """Samples per second of the last epoch over all seeds, and the parameters of one."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder) / "run"
        settings = {
            "train.seeds": 1 if shared else count,
            "train.epochs": EPOCHS,
            "train.patience": 0,
            "train.compile_cache": cache,
            "data.synthetic.train": options.samples,
            "mesh.seed": 1 if shared else count,
            "mesh.data": count if shared else 1,
        }
        command = [sys.executable, "-m", "msajax.main", f"--config={options.config}:smoke"]
        command += [f"--workdir={workdir}"]
        command += [f"--config.{key}={value}" for key, value in settings.items()]
        cores = sorted(os.sched_getaffinity(0))
        running = []
        for i in range(count):
            own = [f"--coordinator_address=localhost:{port}"] if count > 1 else []
            own += [f"--num_processes={count}", f"--process_id={i}"] if count > 1 else []
            core = {cores[i % len(cores)]}
            running.append(
                subprocess.Popen(
                    [*command, *own],
                    cwd=ROOT,
                    env=os.environ | {"JAX_PLATFORMS": "cpu"},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    preexec_fn=lambda core=core: os.sched_setaffinity(0, core),
                )
            )
        if any([process.wait() for process in running]):
            raise SystemExit(f"{' '.join(command)} failed with {count} processes")
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        results = json.loads((workdir / "results.json").read_text())
    seeds = 1 if shared else count
    speed = seeds * options.samples / json.loads(lines[-1])["seconds"]
    return speed, results["model"]["parameters"]


def main() -> None:
    """Runs every case in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/sequence_base.py")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    speeds: dict[tuple[bool, int], list[float]] = {}
    print(f"{len(os.sched_getaffinity(0))} cores; samples per second of the last epoch:")
    with tempfile.TemporaryDirectory() as cache:
        for repeat, shared, count in itertools.product(
            range(options.repeats), (False, True), COUNTS
        ):
            if shared and count == 1:  # the same as a seed for each
                found = speeds[False, 1][-1:]
            else:
                speed, parameters = train(options, count, shared, cache)
                found = [speed]
            speeds.setdefault((shared, count), []).extend(found)
            print(f"  round {repeat + 1}, {count} processes, shared {shared}: {found[0]:.0f}")
    for (shared, count), found in speeds.items():
        what = "one seed, shared batches" if shared else "a seed for each process"
        # An all-reduce in a ring sends every process's gradients about twice.
        sent = 4 * parameters * 2 * (count - 1) / count if shared else 0
        speed, alone = statistics.median(found), statistics.median(speeds[shared, 1])
        print(
            f"{what:24} {count} processes  {speed:6.0f} ({min(found):.0f} to {max(found):.0f})  "
            f"{speed / alone:.2f} times one process  {sent / 1e6:.1f} MB sent per step"
        )


if __name__ == "__main__":
    main()
