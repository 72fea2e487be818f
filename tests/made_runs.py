"""Folders of runs that have ended, made without training: what a report is written from."""

import csv
import json
import pathlib
from typing import Any

import numpy as np

from msajax.config import default_config
from msajax.files import write_json
from msajax.results import measure
from msajax.runs.folder import RunFolder
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS, Task, make_task

SEEDS = (0, 3)
KINDS = ("sentiment", "outputs", "classes", "tokens")
SCRIPT = "<script>alert(1)</script>"
# In each place where text of others comes to a page; $ would be a formula of matplotlib.
HOSTILE = {
    where: f"{where} $x^2_{{$ \"'& {SCRIPT} <img src=x onerror=alert(2)> \u202e\x00\x1b\uffff"
    for where in ("id", "text", "name", "modality", "path", "command", "setting")
}


def make_run(path: pathlib.Path, kind: str, size: int = 24, hostile: bool = False) -> RunFolder:
    """A folder with results, predictions and all else of a run of two random seeds."""
    rng = np.random.default_rng(1)
    spec = spec_of(kind, hostile)
    labels, scores = labels_and_scores(kind, size, len(spec.label_names), rng)
    weights = rng.dirichlet(np.ones(len(spec.modalities)), (len(SEEDS), size))
    more = HOSTILE if hostile else {"id": "", "text": ""}
    ids = np.array([f"video{i // 4}[{i % 4}]{more['id']}" for i in range(size)])
    texts = np.array([f"words {i} {more['text']}" for i in range(size)])
    task = make_task(spec.label_kind, spec.label_names, labels)
    folder = RunFolder(str(path))
    (path / "predictions").mkdir(parents=True)
    with open(path / "predictions" / "test.csv", "w", newline="", encoding="utf-8") as file:
        rows = [
            {"id": ids[i], **cells(spec, labels[i], scores[:, i], weights[:, i])}
            | {"raw_text": texts[i]}
            for i in range(size)
        ]
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    results = results_of(spec, task, labels, scores)
    if hostile:
        results["corpus"]["path"] = f"/corpora/{HOSTILE['path']}"
    write_json(folder.file("results.json"), results)
    write_json(folder.file("config.json"), settings_of(hostile))
    write_json(folder.file("run.json"), run_of(hostile))
    lines = [
        {
            **{"seed": seed, "epoch": epoch, "step": epoch, "train_loss": 2.0 / epoch},
            **{f"valid_{task.usual_selection}": 1.0 + 1 / epoch, "skipped": 0, "seconds": 1.0},
        }
        for epoch in (1, 2, 3)
        for seed in SEEDS
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def cells(
    spec: CorpusSpec, label: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """The columns of one sample of predictions: label `[L]`, scores `[S, K]`, weights `[S, M]`."""
    task, names = TASKS[spec.label_kind], spec.label_names
    columns = task.score_columns(names)
    label_cells = task.label_cells(label, scores.mean(axis=0), names, str)
    row = dict(zip(task.label_columns(names), label_cells, strict=True))
    row |= dict(zip(columns, scores.mean(axis=0), strict=True))
    for column, of_seeds in zip(columns, scores.T, strict=True):
        row[f"{column}_sd"] = of_seeds.std(ddof=1)
        row |= {f"{column}_seed{s}": score for s, score in zip(SEEDS, of_seeds, strict=True)}
    for m, weight in zip(spec.modalities, weights.mean(axis=0), strict=True):
        row |= {f"weight_{m}": weight, f"present_{m}": 1}
    return row


def spec_of(kind: str, hostile: bool) -> CorpusSpec:
    named = (HOSTILE["name"],) if hostile else ("third",)
    kinds = {
        "sentiment": ("regression", ("sentiment",)),
        "outputs": ("regression", ("happy", "sad", *named)),
        "classes": ("classification", ("no", "yes", *named)),
        "tokens": ("next_token", ("negative_log_likelihood", "tokens")),
    }
    modalities = ("text", HOSTILE["modality"] if hostile else "audio")
    if kind == "tokens":
        modalities = modalities[:1]
    sizes = (1,) * len(modalities)
    return CorpusSpec(modalities, sizes, sizes, *kinds[kind])


def labels_and_scores(
    kind: str, size: int, names: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(SEEDS), size, names)
    if kind == "classes":
        scores = rng.dirichlet(np.ones(names), shape[:2])
        return np.arange(size)[:, None] % names, scores
    if kind == "tokens":
        scores = np.stack([rng.uniform(5, 50, shape[:2]), np.full(shape[:2], 10.0)], axis=-1)
        return np.zeros((size, 3)), scores
    labels = np.clip(np.round(rng.normal(0, 1.5, (size, names)), 1), -3, 3)
    labels[:2, 0] = (-3, 3)  # that the labels' range is that of sentiment
    return labels, labels + rng.normal(0, 0.5, shape)


def results_of(
    spec: CorpusSpec, task: Task, labels: np.ndarray, scores: np.ndarray
) -> dict[str, Any]:
    measured = measure.summarize_with_intervals(scores, labels, task)
    return {
        "model": {"name": "sequence_level", "parameters": 12345},
        "corpus": {**corpus_of_run(spec.modalities), "modalities": spec.modalities},
        "seeds": SEEDS,
        "epochs": 3,
        "selection": task.usual_selection,
        "best_epoch": [2, 3],
        "failed": [],
        "valid": measured,
        "test": measured,
        "test_ensemble": task.compute(scores.mean(axis=0), labels),
        "floors": task.floors(labels, labels),
        "timing": {"epochs": 3, "train_seconds": 61.0},
    }


def corpus_of_run(modalities: tuple[str, ...]) -> dict[str, Any]:
    return {
        "path": "/corpora/a.npz",
        "format": "native npz",
        "digest": "d1" * 32,
        "sizes": {"train": 40, "valid": 24, "test": 24},
        "widths": {**dict.fromkeys(modalities, 5), "left": 2},
    }


def settings_of(hostile: bool) -> dict[str, Any]:
    config = default_config()
    config.model.model_dim = 48
    if hostile:
        config.data.glove_path = HOSTILE["setting"]
    return config.to_dict()


def run_of(hostile: bool) -> dict[str, Any]:
    return {
        **{"msajax": "0.1.0", "numerics": 4, "python": "3.11.7", "packages": {"jax": "0.10.2"}},
        **{"device_kind": "cpu", "backend": "cpu", "devices": 1, "processes": 1, "cpus": 2},
        "corpus": {},
        "repairs": {"train": {"text": {"clipped": 7, "lost_steps": 5}}, "valid": {}, "test": {}},
        "initial": {},
        "command": ["/x/main.py", "--workdir", HOSTILE["command"] if hostile else "a run"],
    }


def add_extras(folder: RunFolder, hostile: bool = False) -> None:
    """Adds what robustness and explanation leave, and a calibration to the results."""
    modalities = ["text", HOSTILE["modality"] if hostile else "audio"]
    word = HOSTILE["text"] if hostile else "good"
    points = [
        {"rate": r, "metrics": {"mae": {"mean": 1 + r, "sd": 0.1, "ci95": [0.9 + r, 1.1 + r]}}}
        for r in (0, 0.5, 0.9)
    ]
    curves = [
        {"kind": kind, "modalities": modalities[:1], "points": points, "area": {"mae": 1.25}}
        for kind in ("drop_modality", "drop_pair", "drop_steps", "noise")
    ]
    whole = {"metric": "mae", "metrics": ["mae"], "rates": [0, 0.5, 0.9], "curves": curves}
    write_json(folder.file("robustness.json"), {**whole, "seeds": SEEDS, "draws": 3})
    sample = {
        **{"id": HOSTILE["id"] if hostile else "video0[0]", "label": -1.5, "score": 0.25},
        **{"weights": {}, "text": word, "words": [word, "not"], "attention": []},
        **{"contributions": {"text": [0.5, -0.25]}, "completeness_error": 0.01},
    }
    summary = {
        "mean_absolute_contribution": dict.fromkeys(modalities, 0.5),
        "completeness": {"median": 0.01, "max": 0.02},
    }
    explained = {"split": "test", "samples": [sample], "summary": summary}
    write_json(folder.file("explanation.json"), explained)
