"""Measures training of other authors' models beside the same mathematics in PyTorch, in one run.

    python bench/peers.py [--models=mult,tfn,…] [--steps=50,50,50] [--samples=1284] [--repeats=5]

It prints samples per second of msajax and of PyTorch eager (torch_peers.py: fused attention, packed
LSTMs, whole batches, as their programs have them), medians and ranges over interleaved repeats,
with ratios, for training and for scoring. Sizes and rates are the toolkit's for CMU-MOSI: features
of 768, 5 and 20 columns, batches of 32, Adam. Lengths of sequences are drawn as they are in
CMU-MOSI's and CMU-MOSEI's files: about two fifths of the longest.
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path.cwd())]

import numpy as np
from rich.console import Console
from rich.table import Table
from train_step import BATCH, Msajax, interleaved

from msajax.config import ModelConfig
from msajax.config.registry import registered
from msajax.corpus.corpus import Split
from msajax.spec import CorpusSpec

WIDTHS = {"text": 768, "audio": 5, "video": 20}
READS = {"text_only": ("text",)}
MODELS = "text_only,lf_dnn,ef_lstm,tfn,lmf,self_mm,misa,mmim,almt,mult,dlf"  # of torch_peers.py


def make_split(spec: CorpusSpec, samples: int) -> Split:
    """Makes random features whose modalities have about the same share of their longest steps."""
    rng, features, masks = np.random.default_rng(0), {}, {}
    share = np.clip(rng.beta(2, 3, samples), 0.05, 1)
    for m, longest, width in zip(spec.modalities, spec.lengths, spec.widths, strict=True):
        masks[m] = np.arange(longest) < np.ceil(share * longest)[:, None]
        x = rng.normal(size=(samples, longest, width)) * masks[m][..., None]
        features[m] = x.astype(np.float32)
    labels = np.clip(np.round(rng.normal(size=(samples, 1)) * 5) / 5, -3, 3)
    return Split(np.arange(samples).astype(str), features, masks, labels)


class Torch:
    """Holds a model of torch_peers.py, its optimiser and the data."""

    def __init__(self, name: str, own, spec: CorpusSpec, split: Split):
        import torch
        import torch_peers

        torch.manual_seed(0)
        self.model, self.epoch = torch_peers.PEERS[name](own, spec), 0
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.features = {m: torch.tensor(x) for m, x in split.features.items()}
        self.lengths = {m: torch.tensor(x.sum(1)) for m, x in split.masks.items()}
        self.labels = torch.tensor(split.labels, dtype=torch.float32)
        if name == "self_mm":
            self.model.remember(self.labels)
        # MMIM reads every batch twice: first its estimators train alone.
        self.estimators = None
        if name == "mmim":
            parts = [*self.model.mean.parameters(), *self.model.variance.parameters()]
            self.estimators = torch.optim.Adam(parts, lr=1e-4)

    def found(self, rows):
        """Computes a batch."""
        sources = self.features, self.lengths
        return self.model(*({m: x[rows] for m, x in source.items()} for source in sources))

    def train(self) -> int:
        """Takes the steps of one epoch; returns the samples that it trained on."""
        import torch

        self.model.train()
        batches = torch.randperm(len(self.labels))[: len(self.labels) // BATCH * BATCH].split(BATCH)
        for rows in batches if self.estimators else ():
            self.estimators.zero_grad()
            (-self.model.likelihood(self.found(rows))).backward()
            self.estimators.step()
        for rows in batches:
            self.optimizer.zero_grad()
            self.model.loss(self.found(rows), self.labels[rows], rows, self.epoch).backward()
            self.optimizer.step()
        self.epoch += 1
        return len(batches) * BATCH

    def infer(self) -> int:
        """Scores all samples."""
        import torch

        self.model.eval()
        with torch.inference_mode():
            for rows in torch.arange(len(self.labels)).split(128):
                self.found(rows)["score"].numpy()
        return len(self.labels)


def main() -> None:
    """Measures one model after another, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--steps", default="50,50,50", help="of text, audio and video")
    parser.add_argument("--samples", type=int, default=1284)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    import torch

    steps = dict(zip(WIDTHS, map(int, arguments.steps.split(",")), strict=True))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {arguments.steps} steps")
    table = Table(title=f"samples per second, batch {BATCH}: median (range)")
    for column in ("model", "", "msajax", "PyTorch", "msajax is faster by"):
        table.add_column(column, justify="left" if column in ("model", "") else "right")
    for name in arguments.models.split(","):
        names = READS.get(name, tuple(WIDTHS))
        spec = CorpusSpec(names, tuple(WIDTHS[m] for m in names), tuple(steps[m] for m in names))
        own, split = registered()[name].settings(), make_split(spec, arguments.samples)
        systems = {
            "msajax": Msajax(ModelConfig(name=name, own=own), split, spec=spec, optimizer="adam"),
            "PyTorch": Torch(name, own, spec, split),
        }
        for method in ("train", "infer"):
            started = time.perf_counter()
            rates = interleaved(systems, method, arguments.repeats)
            ratio = statistics.median(rates["msajax"]) / statistics.median(rates["PyTorch"])
            said = [
                f"{statistics.median(x):.0f} ({min(x):.0f} to {max(x):.0f})" for x in rates.values()
            ]
            table.add_row(name, method, *said, f"{ratio:.2f}x")
            seconds = time.perf_counter() - started
            print(f"{name} {method}: {ratio:.2f}x, {seconds:.0f} s", file=sys.stderr)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
