"""The README's lines about a corpus of one's own, and the recipes', run as they stand there."""

import csv
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPES = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
# A model that compiles in seconds; every other argument is the README's.
SMALL = [
    "--config.model.model_dim=8",
    "--config.model.num_heads=2",
    "--config.model.ff_dim=8",
    "--config.train.seeds=2",
    "--config.train.epochs=2",
]


SMALLER = ["--config.model.n_layers_mod=0", "--config.model.max_len=1"]


def line_of(beginning: str) -> list[str]:
    """The README's command that begins so, as arguments of msajax.main."""
    (line,) = {line for line in README.splitlines() if line.startswith(beginning)}
    return line.removeprefix("python -m msajax.main ").split()


def msajax(arguments: list[str], folder: pathlib.Path) -> str:
    return python(["-m", "msajax.main", *arguments], folder)


def python(arguments: list[str], folder: pathlib.Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_section() -> str:
    """The Python of the section "From Python", on the corpus of ten lines and a small model."""
    section = re.search(r"## From Python\n(.*?)\n## ", README, re.DOTALL)[1]
    code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    small = "model=msajax.ModelConfig(model_dim=8, num_heads=2, ff_dim=8), "
    small += "train=msajax.TrainConfig(seeds=2, epochs=2), "
    assert code.count("msajax.Config(") == 1
    code = code.replace("msajax.Config(", f"msajax.Config({small}")
    return code.replace("corpus.npz", "mine.npz").replace("ModelConfig()", "ModelConfig(ff_dim=8)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder in which the README's ten lines were run."""
    path = tmp_path_factory.mktemp("readme")
    (script,) = re.findall(r"```python\n(import numpy as np\n.*?)```", README, re.DOTALL)
    lines = [line for line in script.splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 10
    subprocess.run([sys.executable, "-c", script], cwd=path, check=True)
    (path / "configs").symlink_to(ROOT / "configs")
    return path


def test_the_corpus_of_ten_lines_is_inspected_trained_on_and_scored(folder):
    found = msajax(
        [a.replace("corpus.npz", "mine.npz") for a in line_of("python -m msajax.main --mode ins")],
        folder,
    )
    assert "samples: 40 train, 12 valid, 12 test" in found
    assert "labels: regression of sentiment" in found and "warning: none" in found

    training = line_of("python -m msajax.main --config.data.path=corpus.npz --workdir runs/mine")
    training = [a.replace("corpus.npz", "mine.npz") for a in training]
    assert "2 random seeds" in msajax([*training, *SMALL], folder)
    # The same run from Python: it has ended, and is not trained again.
    shown = python_section() + """
import numpy as np
assert prediction.score.shape == (1, 1) and len(history) == 4
assert abs(test["score"] - scores.score[:, 0]).max() < 1e-6 and result["seeds"] == [0, 1]
print("as in the file:", scores.seeds.shape, scores.weights.shape)
"""
    shown = python(["-c", shown], folder)
    assert "mae" in shown and "as in the file: (2, 12, 1) (12, 2)" in shown

    prediction = re.search(r"`(--mode predict --bundle runs/mine/bundle [^`]*)`", README)
    assert "64 predictions: scores.csv" in msajax(prediction[1].split(), folder)
    with open(folder / "scores.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows[:2]] == ["train_0", "train_1"]
    assert all(np.isfinite(float(row["score"])) for row in rows)


# --- docs/recipes.md ---


def recipe(title: str) -> list[str]:
    """The commands of one of the recipes."""
    (section,) = re.findall(rf"(?ms)^## {title}$(.*?)(?=^## |\Z)", RECIPES)
    blocks = re.findall(r"```\n(.*?)```", section, re.DOTALL)
    return "".join(blocks).replace("\\\n", "").splitlines()


def run_recipe(line: str, folder: pathlib.Path) -> str:
    """Runs a command as it stands, but for a model that compiles in seconds and fewer epochs."""
    program, *arguments = shlex.split(line)
    if program == "printf":
        subprocess.run(line, shell=True, check=True, cwd=folder)
        return ""
    assert program == "python"
    if any(argument.startswith("--config") for argument in arguments):
        given = [argument.split("=")[0] for argument in arguments]
        arguments += [a for a in (*SMALL, *SMALLER) if a.split("=")[0] not in given]
    for many, few in (("40", "2"), ("80", "3")):
        arguments = [a.replace(f"epochs={many}", f"epochs={few}") for a in arguments]
    return python(arguments, folder)


@pytest.fixture
def study(tmp_path) -> pathlib.Path:
    """A folder with the program's files and a corpus of five videos."""
    rng, arrays = np.random.default_rng(0), {}
    for name, videos in (("train", "abc"), ("valid", "d"), ("test", "e")):
        n = 6 * len(videos)
        arrays[f"{name}/id"] = np.array([f"{video}[{i}]" for video in videos for i in range(6)])
        arrays[f"{name}/text"] = rng.normal(size=(n, 1, 4)).astype(np.float32)
        arrays[f"{name}/label"] = rng.uniform(-3, 3, n)
    np.savez(tmp_path / "corpus.npz", **arrays)
    for part in ("configs", "bench"):
        (tmp_path / part).symlink_to(ROOT / part)
    return tmp_path


def test_a_run_is_trained_longer_as_the_recipe_says(study):
    first, second = recipe("Training longer")
    run_recipe(first, study)
    assert json.loads((study / "runs/longer/results.json").read_text())["timing"]["epochs"] == 2
    run_recipe(second, study)
    assert json.loads((study / "runs/longer/results.json").read_text())["timing"]["epochs"] == 3


def test_folds_are_trained_and_measured_as_the_recipe_says(study):
    every, evaluate, single = recipe("Folds")
    assert "Run folder: runs/folds/fold_2" in run_recipe(single, study)
    before = (study / "runs/folds/fold_2/results.json").stat().st_mtime_ns
    said = run_recipe(every, study)
    table = said.split("\n\n")[0]
    assert "4 folds by video, 2 random seeds, 30 samples, each tested" in table
    assert all(len(line.rstrip()) <= 80 for line in table.splitlines())
    assert (study / "runs/folds/fold_2/results.json").stat().st_mtime_ns == before
    pooled = json.loads((study / "runs/folds/folds.json").read_text())["pooled"]["metrics"]["mae"]
    for text in (said, run_recipe(evaluate, study)):
        (row,) = re.findall(r"(?m)^mae ↓.*", text)
        assert f"{pooled['value']:.3f}" in row.split()


def test_trials_are_tried_as_the_recipe_says(study):
    write, trials = recipe("Trials on validation")
    run_recipe(write, study)
    lines = [json.loads(line) for line in run_recipe(trials, study).splitlines()]
    assert [line["trial"] for line in lines] == [
        {}, {"model.dropout_rate": 0.3}, {"optim.learning_rate": 0.001}
    ]
    for line in lines:
        assert line.keys() == {"trial", "valid_mae", "sd", "best_epoch", "seconds"}
        assert line["sd"] > 0 and len(line["best_epoch"]) == 3
    assert len({line["valid_mae"] for line in lines}) == 3
