"""Measures the memory of training on long sequences, against the same model in PyTorch.

    python bench/memory.py [--lengths=50,500,375] [--batch_size=32] [--repeats=3]

Trains one epoch of four batches whose sequences all have the longest length, each time in a process
of its own, and prints how much the process held at most, medians and ranges: training steps alone
of msajax and of PyTorch (if it is installed), and a whole run by msajax's command line, where
validation's programs are compiled while it trains. Width 128, 4 heads, two blocks a modality.
Modalities are text, audio and video, as many as there are lengths; PyTorch is measured with all.
"""

import argparse
import dataclasses
import importlib.util
import pathlib
import statistics
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path.cwd())]

import numpy as np
from cost import peak_of

WIDTHS = {"text": 300, "audio": 74, "video": 35}


def write_corpus(path: pathlib.Path, lengths: list[int], batch_size: int) -> None:
    """Writes random features and labels of full length: four batches, and half of one to score."""
    rng, arrays = np.random.default_rng(0), {}
    for split, samples in {"train": 4 * batch_size, "valid": batch_size // 2, "test": 2}.items():
        for m, length in zip(WIDTHS, lengths, strict=False):
            arrays[f"{split}/{m}"] = rng.normal(size=(samples, length, WIDTHS[m])).astype("f4")
        arrays[f"{split}/label"] = rng.uniform(-3, 3, samples).astype("f4")
        arrays[f"{split}/id"] = np.array([f"{split}{i}" for i in range(samples)])
    np.savez(path, **arrays)


def train_in_msajax(path: str, batch_size: int) -> None:
    """Takes the steps of one epoch in msajax, compiled first as a run has them compiled."""
    import train_step

    from msajax.config import ModelConfig
    from msajax.corpus.formats import open_corpus
    from msajax.runtime.compile import Compilers
    from msajax.spec import CorpusSpec

    train_step.BATCH = batch_size
    split = open_corpus(path).split("train")
    there = [m for m in WIDTHS if m in split.features]
    lengths = tuple(split.features[m].shape[1] for m in there)
    spec = CorpusSpec(tuple(there), tuple(WIDTHS[m] for m in there), lengths)
    masks = {m: np.ones(split.features[m].shape[:2], bool) for m in there}
    split = dataclasses.replace(split, masks=masks)
    system = train_step.Msajax(ModelConfig(model_dim=128, ff_dim=256), split, spec=spec)
    batches = next(system.dispatches()).batches
    with Compilers() as compilers:
        compilers.add("steps", lambda: system.programs.lower_steps(system.state, batches))
        while not compilers.is_ready("steps", 60):
            pass
    system.train()


def train_in_torch(path: str, batch_size: int) -> None:
    """Takes the steps of one epoch in PyTorch, as users' loops do."""
    import peer_torch
    import torch

    from msajax.config import ModelConfig
    from msajax.spec import CorpusSpec

    arrays = np.load(path)
    features = {m: torch.tensor(arrays[f"train/{m}"]) for m in WIDTHS}
    lengths = tuple(x.shape[1] for x in features.values())
    spec = CorpusSpec(tuple(WIDTHS), tuple(WIDTHS.values()), lengths)
    labels = torch.tensor(arrays["train/label"])[:, None]
    model = peer_torch.SequenceLevel(ModelConfig(model_dim=128, ff_dim=256), spec).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for start in range(0, len(labels), batch_size):
        rows = {m: x[start : start + batch_size] for m, x in features.items()}
        masks = {m: torch.ones(x.shape[:2], dtype=torch.bool) for m, x in rows.items()}
        optimizer.zero_grad()
        (model(rows, masks) - labels[start : start + batch_size]).abs().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def main() -> None:
    """Measures both, in turn, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="50,500,375")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps_of", choices=("msajax", "PyTorch"), help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps_of:
        train = train_in_torch if options.steps_of == "PyTorch" else train_in_msajax
        return train(options.corpus, options.batch_size)

    lengths = list(map(int, options.lengths.split(",")))
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = pathlib.Path(folder, "corpus.npz")
        write_corpus(corpus, lengths, options.batch_size)
        ours = {
            "data.path": corpus, "model.model_dim": 128, "model.ff_dim": 256, "optim.name": "adamw",
            "optim.clip_norm": 1.0, "train.epochs": 1, "train.seeds": 1, "train.report": "false",
            "train.batch_size": options.batch_size, "train.compile_cache": "off",
        }  # fmt: skip
        run = [sys.executable, "-m", "msajax.main"]
        run += [f"--config.{key}={value}" for key, value in ours.items()]
        steps = [sys.executable, __file__, f"--corpus={corpus}"]
        steps += [f"--batch_size={options.batch_size}"]
        has_torch = importlib.util.find_spec("torch") and len(lengths) == len(WIDTHS)
        commands = {"msajax, a run": run, "msajax": [*steps, "--steps_of=msajax"]}
        if has_torch:
            commands["PyTorch"] = [*steps, "--steps_of=PyTorch"]
        for k in range(options.repeats):
            for name, command in commands.items():
                workdir = [f"--workdir={folder}/{k}"] if command is run else []
                found.setdefault(name, []).append(peak_of([*command, *workdir]))
    for name, peaks in found.items():
        spread = f"{min(peaks):.0f} to {max(peaks):.0f}"
        print(f"{name}: {statistics.median(peaks):.0f} MiB ({spread})")


if __name__ == "__main__":
    main()
