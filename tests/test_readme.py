"""What the README and docs/recipes.md say to do with a corpus, run as it stands there."""

import contextlib
import csv
import io
import json
import pathlib
import re
import shlex
import subprocess

import numpy as np
import pytest
from pages import ROOT, blocks, commands, words_of

# A model that compiles in seconds; every other argument is the page's.
SMALL = [
    "--config.model.model_dim=8",
    "--config.model.num_heads=2",
    "--config.model.ff_dim=8",
    "--config.model.n_layers_mod=1",
    "--config.train.seeds=2",
    "--config.train.epochs=2",
]
ONE_QUARTER = "--config.model.max_len=24"  # every sequence is in the first one: one program
SMALLER = ["--config.model.n_layers_mod=0", "--config.model.max_len=1"]
NO_REPORT = "--config.train.report=False"


def python(code: str, folder: pathlib.Path) -> str:
    """Runs a script in a folder, in this process; returns what it prints."""
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said):
        exec(compile(code, "script", "exec"), {"__name__": "__main__"})
    return said.getvalue()


def python_of_the_pages() -> str:
    """The Python of the README and of docs/python.md, with a small model."""
    _, *code = blocks("README.md", "python") + blocks("docs/python.md", "python")
    code = "\n".join(code).replace("ModelConfig()", "ModelConfig(ff_dim=8)")
    sizes = "model_dim=8, num_heads=2, ff_dim=8, n_layers_mod=1, max_len=24"
    small = f"model=msajax.ModelConfig({sizes}), "
    small += "train=msajax.TrainConfig(seeds=2, epochs=2), "
    assert code.count("msajax.Config(") == 2
    return code.replace("msajax.Config(", f"msajax.Config({small}")


@pytest.fixture(scope="module")
def msajax(forks):
    """Runs a command of the program in a folder; returns what it says."""

    def run(arguments: list[str], folder: pathlib.Path) -> str:
        done = forks.run(*arguments, folder=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder in which the README's ten lines were run."""
    path = tmp_path_factory.mktemp("readme")
    script = blocks("README.md", "python")[0]
    lines = [line for line in script.splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 10
    assert "corpus.npz: 40 train, 12 valid, 12 test" in python(script, path)
    (path / "configs").symlink_to(ROOT / "configs")
    return path


@pytest.fixture(scope="module")
def trained(folder, msajax) -> pathlib.Path:
    """The same folder, after the README's commands on that corpus."""
    inspect, train = [words_of(line)[3:] for line in commands("README.md", "Your own data")]
    found = msajax(inspect, folder)
    assert "samples: 40 train, 12 valid, 12 test" in found
    assert "labels: regression of sentiment" in found and "warning: none" in found
    assert "2 random seeds" in msajax([*train, *SMALL, ONE_QUARTER], folder)
    return folder


def test_the_corpus_of_ten_lines_is_trained_on_and_scored(trained, msajax):
    lines = commands("README.md", "Look, and predict")
    explain, predict = [words_of(line)[3:] for line in lines]
    assert (trained / "runs/mine/report.html").exists()
    assert "explanation.html" in msajax(explain, trained)
    assert "64 predictions: scores.csv" in msajax(predict, trained)
    with open(trained / "scores.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"] for row in rows} == {f"video{i // 4}[{i % 4}]" for i in range(64)}
    assert all(np.isfinite(float(row["score"])) for row in rows)


def test_the_python_of_the_pages_reads_that_run(trained):
    # The run has ended, and is not trained again.
    shown = python_of_the_pages() + """
import numpy as np
assert prediction.score.shape == (1, 1) and len(history) == 4
valid, audio = (np.asarray(bundle.prepare(new)[1][m]) for m in ("text", "audio"))
assert maps.shape[0] == len(valid) and maps.shape[2:] == 2 * valid.shape[1:]
assert across.shape[2:] == (valid.shape[1], audio.shape[1])
assert abs((maps * valid[:, None, None]).sum(-1)[:, 0][valid] - 1).max() < 1e-5
assert mae == result["test"]["mae"]["mean"]
assert abs(test["score"] - scores.score[:, 0]).max() < 1e-6 and result["seeds"] == [0, 1]
assert both.score.shape == last.score.shape == (2, 1) and not both.weights[:, 0].any()
assert abs(both.score[0] - last.score[0]).max() < 1e-6
assert last.weights.all(axis=1).tolist() == [False, True]
print("as in the file:", scores.seeds.shape, scores.weights.shape)
"""
    shown = python(shown, trained)
    assert "mae" in shown and "as in the file: (2, 12, 1) (12, 2)" in shown


# --- docs/recipes.md ---


def recipe(title: str) -> list[str]:
    """The commands of one of the recipes."""
    return commands("docs/recipes.md", title)


@pytest.fixture
def run_recipe(msajax):
    def run(line: str, folder: pathlib.Path) -> str:
        """Runs a command as it stands, but for a model that compiles in seconds, and shorter."""
        program, *arguments = shlex.split(line)
        if program == "printf":
            subprocess.run(line, shell=True, check=True, cwd=folder)
            return ""
        assert [program, *arguments[:2]] == ["python", "-m", "msajax.main"]
        if any(argument.startswith("--config") for argument in arguments):
            given = [argument.split("=")[0] for argument in arguments]
            arguments += [a for a in (*SMALL, *SMALLER, NO_REPORT) if a.split("=")[0] not in given]
        for many, few in (("40", "2"), ("80", "3")):
            arguments = [a.replace(f"epochs={many}", f"epochs={few}") for a in arguments]
        return msajax(arguments[2:], folder)

    return run


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


def test_a_run_is_trained_longer_as_the_recipe_says(study, run_recipe):
    first, second = recipe("Training longer")
    run_recipe(first, study)
    assert json.loads((study / "runs/longer/results.json").read_text())["timing"]["epochs"] == 2
    run_recipe(second, study)
    assert json.loads((study / "runs/longer/results.json").read_text())["timing"]["epochs"] == 3


def test_folds_are_trained_and_measured_as_the_recipe_says(study, run_recipe):
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


def test_runs_are_compared_as_the_recipe_says(tmp_path, run_recipe):
    (code,) = [code for code in blocks("docs/recipes.md", "python") if "msajax.compare" in code]
    labels, off = np.arange(12) / 4 - 1.5, {"mine": 0.125, "other": 0.5}
    for run, error in off.items():
        (tmp_path / f"runs/{run}/predictions").mkdir(parents=True)
        (tmp_path / f"runs/{run}/results.json").write_text("{}")
        rows = [f"{'abcdef'[i // 2]}[{i % 2}],{y},{y + error}\n" for i, y in enumerate(labels)]
        path = tmp_path / f"runs/{run}/predictions/test.csv"
        path.write_text("id,label,score\n" + "".join(rows))
    rows = [f"well\t{y + 0.75}\t{y}\n" for y in labels]
    (tmp_path / "theirs.txt").write_text("Original\tPrediction\tGround Truth\n" + "".join(rows))
    # Every exchange moves a video's error from one run to the other: only all or none of the six
    # give a difference as large, 2 of 64.
    said = python(code, tmp_path)
    found = re.search(r"\n(\S+) (\S+) first is better\n$", said)
    assert float(found[1]) == -0.375
    assert float(found[2]) == pytest.approx(2 / 64, abs=0.006)
    assert (tmp_path / "comparison.csv").exists()
    pair, several, foreign, one_table, for_paper = recipe("Comparing runs")
    assert "runs/mine is better by 0.375" in run_recipe(pair, tmp_path)
    assert "tabular" in (tmp_path / "comparison.tex").read_text()
    said = " ".join(run_recipe(several, tmp_path).split())
    assert "theirs.txt has no ids: its rows were paired with those of runs/mine" in said
    assert "Each was compared with each" in said
    assert re.search(r"mae_nonzero ↓ +0\.750 ", run_recipe(foreign, tmp_path))
    assert re.search(r"(?m)^mine +0\.125", run_recipe(one_table, tmp_path))
    assert r"\toprule" in (tmp_path / "table.tex").read_text()
    run_recipe(for_paper, tmp_path)
    assert (tmp_path / "table.csv").exists()
