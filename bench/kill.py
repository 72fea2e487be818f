"""Kills a tiny run with SIGKILL at random moments and restarts it, and compares what comes out.

    python bench/kill.py [--kills=50] [--seed=0]

Prints a line for each kill. At the end every run that was killed must hold the bits of one that was
not: parameters, optimiser state, selection, metrics, results, predictions and bundle, and no file
more; the exit code is 1 if one does not.
"""

import argparse
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import conftest  # noqa: F401  the tests' environment: the CPU, and where programs are kept
import survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=12)
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        experiment = survivors.write_experiment(
            place / "tiny_run.py", train__epochs=chosen.epochs, train__checkpoint_every_steps=1
        )

        def begin(folder: pathlib.Path):
            log = folder.with_suffix(".log")
            return survivors.start("--config", experiment, "--workdir", folder, log=log)

        for name in ("first", "whole"):  # the first one fills the cache of programs
            started = time.monotonic()
            code = begin(place / name).wait(survivors.LIMIT)
            seconds = time.monotonic() - started
            if code:
                print((place / f"{name}.log").read_text())
                return 1
        if found := survivors.differences(place / "first", place / "whole"):
            print("Two uninterrupted runs differ:", found)
            return 1
        print(f"An uninterrupted run takes {seconds:.1f} s.\n")
        print("kill  run  aimed at   after s  whole steps  unfinished then")
        numbers = iter(range(10**6))
        outcomes = survivors.kill_and_restart(
            place / "whole",
            seconds,
            chosen.kills,
            chosen.seed,
            lambda: place / f"run{next(numbers)}",
            begin,
        )
        kills = 0
        for outcome in outcomes:
            if isinstance(outcome, survivors.Kill):
                kills += 1
                print(
                    f"{kills:4}  {outcome.folders + 1:3}  {outcome.aim:9}  {outcome.seconds:7.2f}  "
                    f"{outcome.steps:11}  {', '.join(outcome.unfinished) or '-'}",
                    flush=True,
                )
        print(f"\n{kills} kills, {time.monotonic() - began:.0f} s.")
        print("DIFFERENT: " + "\n".join(outcome) if outcome else "The bits of an unkilled run.")
        return int(bool(outcome))


if __name__ == "__main__":
    sys.exit(main())
