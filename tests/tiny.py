"""A run that is small enough to compile in seconds, for the tests that need one."""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Iterable

import jax
import ml_collections

from msajax.config import SYNTHETIC, Config, OptimConfig, default_config, from_config_dict
from msajax.experiment.run import build, open_sources
from msajax.runs.folder import RunFolder
from msajax.training.loop import Trained, train_groups
from msajax.training.optimizers import Optimizer, make_optimizer
from msajax.training.step import Rates, Recipe, make_rates

# One modality of one step: a program that compiles in a second, for tests of many processes.
SMALLEST = {
    "model__modalities": ("text",),
    "data__synthetic__modalities": ("text",),
    "data__synthetic__widths": (6,),
    "data__synthetic__lengths": (1,),
}


def tiny_config_dict(**overrides) -> ml_collections.ConfigDict:
    """Two modalities, unequal lengths, width 8; `section__key=value` changes a setting."""
    config = default_config()
    config.update_from_flattened_dict(
        {
            "data.path": SYNTHETIC,
            "data.synthetic.train": 44,
            "data.synthetic.valid": 20,
            "data.synthetic.test": 20,
            "data.synthetic.modalities": ("text", "audio"),
            "data.synthetic.widths": (6, 5),
            "data.synthetic.lengths": (5, 3),
            "data.synthetic.absent_share": 0.2,
            "model.model_dim": 8,
            "model.num_heads": 2,
            "model.ff_dim": 16,
            "model.n_layers_mod": 0,
            "model.position_init": 0.02,
            "optim.learning_rate": 5e-3,
            "train.seeds": 2,
            "train.epochs": 4,
            "train.batch_size": 8,
            "train.compile_cache": "off",
            "train.report": False,
            **{key.replace("__", "."): value for key, value in overrides.items()},
        }
    )
    return config


def tiny_config(**overrides) -> Config:
    """`tiny_config_dict`, frozen."""
    return from_config_dict(tiny_config_dict(**overrides))


def run(
    config: Config, folder: pathlib.Path, stop_after_epochs: int | None = None, **more
) -> Trained:
    """Trains without ever touching the test split; `more` is of its `Run`."""
    folder.mkdir(exist_ok=True)
    whole = build(config, open_sources(config), RunFolder(str(folder)))
    whole = dataclasses.replace(whole, stop_after_epochs=stop_after_epochs, **more)
    with jax.transfer_guard("disallow"):  # nothing moves to or from a device unasked
        return train_groups(whole)


def descent(rate: float, paths: Iterable[str], clip_norm: float = 0.0) -> Optimizer:
    """Subtracts `rate` times the gradient, clipped to a norm unless that is 0."""
    of_optim = {"name": "sgd", "momentum": 0.0, "schedule": "constant", "clip_norm": clip_norm}
    return make_optimizer(OptimConfig(learning_rate=rate, **of_optim), paths)


def rates_of(recipe: Recipe, total_steps: int = 10, config: Config | None = None) -> Rates:
    """The numbers that a recipe was made with, and perhaps others of a configuration."""
    optim = recipe.optimizer.config
    return make_rates(config or Config(optim=optim), recipe.optimizer.rates(optim, total_steps))


def lines_of(folder: pathlib.Path) -> list[dict]:
    """metrics.jsonl without the wall clock, which is outside every equality."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows of a CSV."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def snapshot(folder: pathlib.Path) -> dict:
    """What every file of a folder holds, and when it was written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
