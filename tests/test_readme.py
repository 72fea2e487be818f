"""The lines of the README about a corpus of one's own, run as they stand there."""

import csv
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# A model that compiles in seconds; every other argument is the README's.
SMALL = [
    "--config.model.model_dim=8",
    "--config.model.num_heads=2",
    "--config.model.ff_dim=8",
    "--config.train.seeds=2",
    "--config.train.epochs=2",
]


def line_of(beginning: str) -> list[str]:
    """The README's command that begins so, as arguments of msajax.main."""
    (line,) = {line for line in README.splitlines() if line.startswith(beginning)}
    return line.removeprefix("python -m msajax.main ").split()


def msajax(arguments: list[str], folder: pathlib.Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "msajax.main", *arguments],
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
    assert "2 random seed(s)" in msajax([*training, *SMALL], folder)
    # The same run from Python: it has ended, and is not trained again.
    shown = python_section() + """
import numpy as np
assert prediction.score.shape == (1, 1) and len(history) == 4
assert abs(test["score"] - scores.score[:, 0]).max() < 1e-6 and result["seeds"] == [0, 1]
print("as in the file:", scores.seeds.shape, scores.weights.shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", shown],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "mae" in done.stdout and "as in the file: (2, 12, 1) (12, 2)" in done.stdout
    assert "This run has ended" in done.stderr

    prediction = re.search(r"`(--mode predict --bundle runs/mine/bundle [^`]*)`", README)
    assert "64 predictions: scores.csv" in msajax(prediction[1].split(), folder)
    with open(folder / "scores.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows[:2]] == ["train_0", "train_1"]
    assert all(np.isfinite(float(row["score"])) for row in rows)
