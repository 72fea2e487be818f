"""Measures fine-tuning of a BERT folder on transcripts against a plain PyTorch loop.

    python bench/finetune.py FOLDER CORPUS.npz [--repeats=3] [--batches=40]

Both train on the same batches, cut to the same length quarter, with the same weights, dropout
rates, loss, clipping and optimiser (see peer_bert.py); scores are compared before anything is
timed. Every repeat is a fresh process of each system in turn, which takes every batch once without
the clock and once with it. Prints seconds an epoch, samples per second, their ratio, and each
process's peak memory.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path.cwd())]

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from msajax.config import (
    Config,
    DataConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
    checked,
)
from msajax.encoders.folder import open_folder
from msajax.experiment.run import build, open_encoders, open_sources
from msajax.preparation.batches import cut_lengths, epoch_order
from msajax.runs.folder import RunFolder
from msajax.training.compiling import put_on_devices
from msajax.training.feed import Pace
from msajax.training.run import Run
from msajax.training.saving import first_state

BATCH, RATES, WARMUP = 32, (5e-5, 1e-3), 40


def make_run(folder: str, corpus: str) -> Run:
    """Makes the run that is timed: text alone, a mean over pieces, a linear head."""
    config = checked(
        Config(
            data=DataConfig(path=corpus, truncate="first"),
            model=ModelConfig(
                modalities=("text",),
                text_encoder=folder,
                n_layers_mod=0,
                n_layers_fuse=0,
                positions="none",
                dropout_rate=0.0,
                input_projection="where_needed",
                model_dim=open_folder(folder).architecture.width,
                num_heads=1,
                max_len=64,
            ),
            optim=OptimConfig(
                name="adamw",
                learning_rate=RATES[1],
                weight_decay=0.01,
                clip_norm=1.0,
                schedule="linear",
                min_learning_rate=0.0,
                warmup_steps=WARMUP,
                groups=(f"text_pretrained/*:learning_rate={RATES[0]}",),
            ),
            train=TrainConfig(batch_size=BATCH, compile_cache="off"),
        )
    )
    return build(config, open_sources(config), RunFolder(""))


def batches_of(run: Run, most: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns ids `[B, T]`, masks and labels `[B]` of the first steps of an epoch."""
    order = epoch_order(0, 0, quarters=run.quarters, batch_size=BATCH)
    found = []
    for quarter, rows, weight in zip(
        order.quarters[:most], order.indices, order.row_weight, strict=False
    ):
        rows, length = rows[weight > 0], cut_lengths(run.spec, int(quarter))["text"]
        pieces, mask = run.train.features["text"], run.train.masks["text"]
        labels = run.train.labels[rows, 0].astype(np.float32)
        found.append((pieces[rows, :length, 0], mask[rows, :length], labels))
    return found


def time_msajax(run: Run, batches: int) -> float:
    """Returns the seconds of one pass over the batches, after one that compiles."""
    there, pace = put_on_devices(run), Pace()
    train = first_state(run, there.programs).train
    order = epoch_order(0, 0, quarters=run.quarters, batch_size=BATCH)
    stopped, seconds = np.zeros(1, bool), 0.0
    for _ in range(2):
        seconds, taken = 0.0, 0
        pace.steps = 4
        for dispatch in there.feed.epoch([order], stopped, 0, pace):
            last = min(dispatch.last, dispatch.first + batches - taken)
            started = time.perf_counter()
            train, log = there.programs.train_steps(
                train, dispatch.batches, stopped, dispatch.first, last
            )
            jax.device_get(log)
            seconds += time.perf_counter() - started
            taken += last - dispatch.first
            if taken >= batches:
                break
    return seconds


def time_torch(run: Run, batches: int) -> float:
    """Returns the same of PyTorch; scores must agree with msajax's before anything is timed."""
    import peer_bert

    peer = peer_bert.FineTuning(open_encoders(run.config)["text"], 8 * run.steps, RATES, WARMUP)
    chosen = batches_of(run, batches)
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        for ids, mask, labels in chosen:
            peer.step(ids, mask, labels)
        seconds = time.perf_counter() - started
    return seconds


def compare_scores(run: Run) -> float:
    """Returns the largest difference of the encoders' scores, both with msajax's linear head."""
    import peer_bert
    import torch

    there = put_on_devices(run)
    params = first_state(run, there.programs).train.params
    peer = peer_bert.FineTuning(open_encoders(run.config)["text"], 100, RATES, WARMUP)
    head = jax.tree.map(lambda x: np.array(x[0]), params["regression"])
    peer.model.head.weight.data.copy_(torch.tensor(head["kernel"].T))
    peer.model.head.bias.data.copy_(torch.tensor(head["bias"]))
    ids, mask, _ = batches_of(run, 1)[0]
    there = peer.scores(ids, mask)
    rows = np.zeros((len(ids), ids.shape[1], 3), np.int32)
    rows[..., 0] = ids
    found = there.predict({"params": params}, {"text": rows}, {"text": mask})
    return float(np.abs(np.asarray(found.score)[0, :, 0] - there).max())


SYSTEMS = {"msajax": time_msajax, "torch": time_torch}


def main() -> None:
    """Times every system in processes of their own, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("corpus")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--system", choices=(*SYSTEMS, "compare"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if asked.system:
        run = make_run(asked.folder, asked.corpus)
        if asked.system == "compare":
            print(json.dumps(compare_scores(run)))
            return
        seconds = SYSTEMS[asked.system](run, asked.batches)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        samples = sum(len(labels) for _, _, labels in batches_of(run, asked.batches))
        print(json.dumps({"seconds": seconds, "samples": samples, "peak": peak}))
        return

    def ask(system: str):
        command = [sys.executable, __file__, asked.folder, asked.corpus]
        command += [f"--batches={asked.batches}", f"--system={system}"]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return json.loads(out.splitlines()[-1])

    print(f"msajax and PyTorch differ by {ask('compare'):.1e} in a score", flush=True)
    found: dict[str, list] = {name: [] for name in SYSTEMS}
    for _ in range(asked.repeats):
        for name, values in found.items():
            values.append(ask(name))
    table = Table(title=f"fine-tuning, {asked.batches} batches of {BATCH}")
    for column in ("system", "seconds, median", "min", "max", "samples/s", "peak, MiB"):
        table.add_column(column, justify="left" if column == "system" else "right")
    medians = {}
    for name, values in found.items():
        seconds = [value["seconds"] for value in values]
        medians[name] = statistics.median(seconds)
        rate = values[0]["samples"] / medians[name]
        peak = max(value["peak"] for value in values)
        cells = medians[name], min(seconds), max(seconds)
        table.add_row(name, *(f"{x:.2f}" for x in cells), f"{rate:.0f}", f"{peak:.0f}")
    Console(width=100).print(table)
    print(f"msajax is {medians['torch'] / medians['msajax']:.2f}x as fast")


if __name__ == "__main__":
    main()
