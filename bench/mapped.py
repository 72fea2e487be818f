"""A corpus larger than memory would like: how fast it opens, trains, and what it keeps in memory.

    python bench/mapped.py [--samples=20000 --steps=50 --width=1100] [--folder=/tmp/large]

Writes a mapped folder of random float32 features (4.4 GB by default) once, then in a process of its
own opens it and trains the default model that streams it for two epochs; says how long each took
and the peak of resident memory, in which pages of the file that the system keeps for it count.
Beside it, an eighth of the corpus, streamed and resident in turn, three times each, with the ratio
of the medians.
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from msajax.config import default_config, from_config_dict
from msajax.corpus.formats import open_corpus
from msajax.corpus.formats.native import write_arrays
from msajax.experiment import run


def write(folder: pathlib.Path, samples: int, steps: int, width: int) -> None:
    """Random features whose mean says the label, in blocks."""
    rng = np.random.default_rng(0)

    def arrays():
        for split, size in (("test", 100), ("train", samples), ("valid", 100)):
            label = rng.uniform(-3, 3, size)
            features = np.lib.format.open_memmap(
                folder.with_suffix(".scratch"), "w+", np.float32, (size, steps, width)
            )
            for start in range(0, size, 500):
                rows = slice(start, min(start + 500, size))
                noise = rng.standard_normal((len(label[rows]), steps, width), np.float32)
                features[rows] = noise + label[rows, None, None].astype(np.float32) / 10
            yield f"{split}/id", np.array([f"{split}{i}" for i in range(size)])
            yield f"{split}/label", label
            yield f"{split}/video", features
            yield f"{split}/video_mask", np.ones((size, steps), bool)
            folder.with_suffix(".scratch").unlink()

    write_arrays(str(folder), arrays())


def measure(folder: str, budget: int, model_dim: int) -> None:
    """Opens and trains in this process, and prints the figures."""
    start = time.perf_counter()
    corpus = open_corpus(folder)
    opened = time.perf_counter() - start
    config = default_config()
    config.data.path = folder
    config.data.standardize = ()
    config.data.device_memory_budget = budget
    config.model.model_dim, config.model.ff_dim = model_dim, 4 * model_dim
    config.train.epochs = 2
    workdir = tempfile.mkdtemp()
    start = time.perf_counter()
    run.train(from_config_dict(config), workdir)
    trained = time.perf_counter() - start
    lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
    seconds = json.loads(lines[-1])["seconds"]
    shutil.rmtree(workdir)
    status = pathlib.Path("/proc/self/status").read_text()
    # Of this program alone: getrusage would count that of the one which started it.
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**20
    samples = corpus.headers["train"].size
    kind = "streamed" if budget == 0 else "resident"
    print(
        f"{samples} samples, width {model_dim}, {kind}: opened in {opened:.2f} s, "
        f"run of two epochs {trained:.0f} s, "
        f"second epoch {samples / seconds:.0f} samples/s, peak RSS {peak:.2f} GiB",
        flush=True,
    )


def main() -> None:
    """Writes the corpora and measures each in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--folder", type=pathlib.Path, default=None)
    parser.add_argument("--measure", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], int(options.measure[1]), options.dim)
        return
    root = options.folder or pathlib.Path(tempfile.mkdtemp())
    root.mkdir(parents=True, exist_ok=True)
    speeds: dict[int, list[float]] = {}
    for name, samples, budgets in (
        ("eighth", options.samples // 8, (2**60, 0) * 3),
        ("whole", options.samples, (0,)),
    ):
        if not (root / name).exists():
            write(root / name, samples, options.steps, options.width)
        for budget in budgets:
            command = [sys.executable, __file__, f"--dim={options.dim}"]
            command += ["--measure", str(root / name), str(budget)]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            print(said, end="", flush=True)
            speed = float(re.search(r"second epoch (\d+) samples/s", said)[1])
            speeds.setdefault(budget, []).append(speed)
        if name == "eighth":
            resident, streamed = (statistics.median(speeds[budget]) for budget in (2**60, 0))
            print(
                f"streamed / resident: {streamed / resident:.2f} (medians of three: "
                f"{streamed:.0f} and {resident:.0f} samples/s)",
                flush=True,
            )
    if options.folder is None:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
