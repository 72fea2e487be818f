"""Tries settings on the validation split; the test split is never read.

    python bench/trials.py --config=configs/mosi.py --config.data.path=CORPUS.npz --trials=FILE

FILE holds one trial a line: a JSON object of keys and values that override the configuration, as in
{"model.dropout_rate": 0.3}. Prints one JSON object a trial: the best validation score of the random
seeds (of the metric that train.select_by follows: mean and ddof-1 deviation), its epochs, and how
long it took.
"""

import json
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np
from absl import app, flags
from ml_collections import config_flags

from msajax import config as configuration
from msajax.building import build, open_sources
from msajax.runs.folder import RunFolder
from msajax.runtime import devices
from msajax.training.loop import train_seeds

_CONFIG = config_flags.DEFINE_config_file("config")
_TRIALS = flags.DEFINE_string("trials", None, "One JSON object a line.", required=True)


def run_trial(config: configuration.Config) -> dict:
    """Trains one configuration in a temporary folder."""
    config = configuration.checked(config)
    devices.configure_jax(config.train)
    sources = open_sources(config)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as path:
        run = build(config, sources, RunFolder(path))
        train_seeds(run)
        lines = run.folder.read_metrics()
    best = {line["seed"]: line for line in lines if line["best"]}.values()
    key = f"valid_{run.selection}"
    scores = [line[key] for line in best]
    return {
        key: round(float(np.mean(scores)), 4),
        "sd": round(float(np.std(scores, ddof=1)), 4) if len(scores) > 1 else None,
        "best_epoch": [line["epoch"] for line in best],
        "seconds": round(time.monotonic() - started, 1),
    }


def main(argv: list[str]) -> None:
    """Runs every trial of the file."""
    del argv
    for text in pathlib.Path(_TRIALS.value).read_text(encoding="utf-8").splitlines():
        if not text.strip():
            continue
        trial = json.loads(text)
        values = _CONFIG.value.copy_and_resolve_references()
        values.update_from_flattened_dict(
            {k: tuple(v) if isinstance(v, list) else v for k, v in trial.items()}
        )
        result = run_trial(configuration.from_config_dict(values))
        print(json.dumps({"trial": trial, **result}), flush=True)


if __name__ == "__main__":
    app.run(main)
