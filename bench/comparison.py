"""Compares sequence-level fusion with what it is to replace: one command, every row, one table.

    python bench/comparison.py --corpus=sign --workdir=runs/comparison_sign
    python bench/comparison.py --corpus=stress --workdir=runs/comparison_stress
    python bench/comparison.py --corpus=CORPUS.npz --workdir=runs/comparison_mine

The rows are the models of `configs/`. On the embedded corpora sign and stress, whose score needs
what two modalities say at the same step, all have the width, depth and recipe below; on a file each
has its own. Every row is a run like any other, in a folder below the workdir: the same command goes
on where it stopped. Prints the table and writes it as comparison.json and comparison.csv; with
matplotlib (requirements-bench.txt), attention.svg shows which steps of the voice words attend to
(embedded corpora).

Speed is timed when every row has been trained, one random seed, as medians over repeats of all rows
in turn: an epoch with its validation, and a pass over the test split. Nothing else should run then.
"""

import csv
import dataclasses
import importlib.util
import json
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax
import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

import msajax
from msajax.comparison.statistics import Pair, paired_tests
from msajax.config import SYNTHETIC, Config, SyntheticConfig, from_config_dict
from msajax.corpus.corpus import Corpus
from msajax.corpus.formats import open_corpus
from msajax.corpus.predictions import read_predictions
from msajax.corpus.synthetic import generate
from msajax.experiment import run
from msajax.files import write_json
from msajax.inference.scores import make_scorer
from msajax.inference.scoring import cut_batches, predict_batches
from msajax.models.build import build_model
from msajax.preparation.apply import prepare
from msajax.tasks import make_task

_CORPUS = flags.DEFINE_string("corpus", None, "sign, stress, or a corpus file.", required=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the runs.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Random seeds of every row.")
_SAMPLES = flags.DEFINE_integer("samples", 6000, "Training samples of an embedded corpus.")
_EPOCHS = flags.DEFINE_integer("epochs", 40, "Epochs on an embedded corpus.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Repeats of every timing.")

# (row, experiment file, what differs from it)
ROWS = (
    ("sequence-level", "sequence_base", {}),
    ("sequence-level, bidirectional", "sequence_base", {"model.bidirectional_fusion": True}),
    ("without fusion", "pooled_ablation", {}),
    ("early pooling", "early_pooling", {}),
    ("early pooling, clean heads", "early_pooling_clean", {}),
    ("fusion, then encoders", "fuse_then_encode", {}),
)
# Of every row on the embedded corpora. One block on each side of fusion, or after it.
_EMBEDDED = {
    "data.path": SYNTHETIC,
    "data.standardize": (),
    "data.synthetic.valid": 1000,
    "data.synthetic.test": 1000,
    "data.synthetic.modalities": ("text", "audio"),
    "data.synthetic.widths": (8, 6),
    "data.synthetic.lengths": (8, 8),
    "model.model_dim": 64,
    "model.ff_dim": 128,
    "model.dropout_rate": 0.0,
    "optim.name": "adamw",
    "optim.learning_rate": 1e-3,
    "optim.weight_decay": 0.01,
    "optim.schedule": "cosine",
    "optim.warmup_steps": 100,
    "optim.clip_norm": 1.0,
    "train.batch_size": 64,
    "train.patience": 0,
}


def config_of(file: str, changes: dict) -> Config:
    """The configuration of a row."""
    spec = importlib.util.spec_from_file_location(file, ROOT / "configs" / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    values = {"data.path": _CORPUS.value, "train.seeds": _SEEDS.value}
    if _CORPUS.value in ("sign", "stress"):
        values |= _EMBEDDED | {
            "data.synthetic.task": _CORPUS.value,
            "data.synthetic.train": _SAMPLES.value,
            "train.epochs": _EPOCHS.value,
        }
        for depth in ("n_layers_mod", "n_layers_post_fuse"):
            values[f"model.{depth}"] = min(config.model[depth], 1)
    config.update_from_flattened_dict(values | changes)
    return from_config_dict(config)


def run_row(config: Config, folder: pathlib.Path) -> dict:
    """Trains a row, or reads what it left; its figures and scores."""
    results = run.train(config, str(folder))
    return {
        "parameters": results["model"]["parameters"],
        "valid_mae": results["valid"]["mae"],
        "test_mae": results["test"]["mae"],
        "predictions": read_predictions(str(folder / "predictions" / "test.csv")),
    }


def time_training(configs: list[Config], size: int) -> list[float]:
    """Samples per second of every row in the epochs behind the first, which compiles."""
    rates: list[list[float]] = [[] for _ in configs]
    for _ in range(_REPEATS.value):
        for rate, config in zip(rates, configs, strict=True):
            train = dataclasses.replace(config.train, seeds=1, epochs=3)
            with tempfile.TemporaryDirectory() as folder:
                run.train(dataclasses.replace(config, train=train), folder)
                with open(pathlib.Path(folder, "metrics.jsonl"), encoding="utf-8") as file:
                    seconds = [json.loads(line)["seconds"] for line in file]
            rate += [size / of_epoch for of_epoch in seconds[1:]]
    return [statistics.median(rate) for rate in rates]


def time_inference(folders: list[pathlib.Path], corpus: Corpus) -> list[float]:
    """Samples per second of every row's bundle."""
    timed = []
    for folder in folders:
        bundle = msajax.load(folder / "bundle")
        one_seed = jax.tree.map(lambda x: x[:1], bundle.variables)
        scorer = make_scorer(bundle.config, bundle.preparation, one_seed, 1)
        split, _ = prepare(corpus.split("test"), bundle.preparation)
        batches = list(cut_batches(split, scorer.spec, scorer.place))
        predict_batches(scorer.predict, scorer.variables, batches)  # compiles
        timed.append((scorer.predict, scorer.variables, batches, len(split)))
    rates: list[list[float]] = [[] for _ in timed]
    for _ in range(_REPEATS.value):
        for rate, (*arguments, size) in zip(rates, timed, strict=True):
            start = time.perf_counter()
            predict_batches(*arguments)
            rate.append(size / (time.perf_counter() - start))
    return [statistics.median(rate) for rate in rates]


def noise_mae(config: SyntheticConfig) -> float:
    """What a model that knows everything but the noise on the scores reaches on test."""
    made = generate(config)
    return float(np.abs(made.corpus.split("test").labels[:, 0] - made.clean["test"]).mean())


def draw_attention(folder: pathlib.Path, corpus: Corpus, path: pathlib.Path) -> None:
    """Draws the words' attention to the voice, of one seed: on average, and of two samples."""
    from matplotlib import pyplot

    bundle = msajax.load(folder / "bundle")
    split, _ = prepare(corpus.split("test"), bundle.preparation)
    model = build_model(bundle.config.model, bundle.preparation.spec)
    variables = jax.tree.map(lambda x: x[0], bundle.variables)
    _, kept = model.apply(variables, split.features, split.masks, mutable="intermediates")
    block = kept["intermediates"]["fusion"]["layers_0"]["text_from_audio"]["attention"]
    steps = int(split.masks["text"][0].sum())  # the tables are longer
    # [sample, head, word, step of the voice]
    maps = np.asarray(block["attention"][0])[:, :, :steps, :steps]
    heads = maps.shape[1]
    figure, axes = pyplot.subplots(3, heads, figsize=(2.1 * heads, 6.2), squeeze=False)
    shown = [("all samples", maps.mean(0), None)]
    for i in range(2):
        voice = split.features["audio"][i, :steps, 0]
        stressed = int(voice.argmax()) if _CORPUS.value == "stress" else None
        shown.append((f"sample {i}", maps[i], stressed))
    for row, (title, of_heads, stressed) in zip(axes, shown, strict=True):
        for head, (axis, map_) in enumerate(zip(row, of_heads, strict=True)):
            axis.imshow(map_, vmin=0, vmax=1, cmap="viridis")
            axis.set_title(f"{title}, head {head}", fontsize=8)
            axis.tick_params(labelsize=6)
            if stressed is not None:
                axis.axvline(stressed, color="white", linestyle=":")
        row[0].set_ylabel("word (query)", fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("voice (key)", fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def print_table(rows: list[dict], title: str) -> None:
    """Prints the rows."""
    table = Table(title=title, title_justify="left")
    columns = ("model", "parameters", "valid MAE", "test MAE", "difference", "p")
    for column in (*columns, "train/s", "infer/s"):
        table.add_column(column, justify="left" if column == "model" else "right")

    def spread(values: dict) -> str:
        sd = "" if values["sd"] is None else f" ± {values['sd']:.3f}"
        return f"{values['mean']:.3f}{sd}"

    for row in rows:
        paired = row["paired"]
        table.add_row(
            row["model"],
            f"{row['parameters']:,}",
            spread(row["valid_mae"]),
            spread(row["test_mae"]),
            "" if paired is None else f"{paired['difference']:+.3f}",
            "" if paired is None else f"{paired['p']:.4f}",
            f"{row['training_samples_per_second']:,.0f}",
            f"{row['inference_samples_per_second']:,.0f}",
        )
    Console(width=120).print(table)


def main(argv: list[str]) -> None:
    """Runs every row, then compares each with the first."""
    del argv
    workdir = pathlib.Path(_WORKDIR.value)
    configs = [config_of(file, changes) for _, file, changes in ROWS]
    folders = [workdir / name.replace(", ", "_").replace(" ", "_") for name, _, _ in ROWS]
    found = []
    for (name, _, _), config, folder in zip(ROWS, configs, folders, strict=True):
        print(f"{name}: {folder}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        found.append({"model": name} | run_row(config, folder))
    corpus = open_corpus(configs[0].data.path, configs[0].data)
    sizes = {name: header.size for name, header in corpus.headers.items()}
    trained, inferred = time_training(configs, sizes["train"]), time_inference(folders, corpus)
    scored = [row.pop("predictions") for row in found]
    first = scored[0]
    task = make_task("regression", ("sentiment",), corpus.split("train").labels)
    for row, predictions, *speeds in zip(found, scored, trained, inferred, strict=True):
        row["training_samples_per_second"], row["inference_samples_per_second"] = speeds
        row["paired"] = None
        if predictions is not first:
            pair = Pair.of(predictions.scores, first.scores, first.labels, first.ids, task)
            row["paired"] = paired_tests(pair, {"mae": task.reported["mae"]})["mae"]._asdict()
    report = {"corpus": corpus.summary(), "seeds": _SEEDS.value, "rows": found}
    title = f"{_CORPUS.value}, {sizes}, {_SEEDS.value} seeds"
    if _CORPUS.value in ("sign", "stress"):
        report["noise_mae"] = noise_mae(configs[0].data.synthetic)
        title += f"; MAE of the noise alone {report['noise_mae']:.3f}"
    print_table(found, title)
    print("difference and p (paired test): against the first row.")
    write_json(str(workdir / "comparison.json"), report)
    with open(workdir / "comparison.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["model", "parameters", "valid_mae", "valid_sd", "test_mae", "test_sd", "difference"]
            + ["p", "training_samples_per_second", "inference_samples_per_second"]
        )
        for row in found:
            paired = row["paired"] or {"difference": "", "p": ""}
            mae = row["valid_mae"], row["test_mae"]
            spreads = [values[part] for values in mae for part in ("mean", "sd")]
            writer.writerow(
                [row["model"], row["parameters"], *spreads, paired["difference"], paired["p"]]
                + [row["training_samples_per_second"], row["inference_samples_per_second"]]
            )
    if _CORPUS.value in ("sign", "stress") and importlib.util.find_spec("matplotlib"):
        draw_attention(folders[0], corpus, workdir / "attention.svg")


if __name__ == "__main__":
    app.run(main)
