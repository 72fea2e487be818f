"""Training from Python: progress is seen, and the result leads to everything the run left."""

import csv
import io
import json
import logging
import os
import pydoc
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from tiny import SMALLEST, tiny_config

import msajax
from msajax.results.tables import print_results

SETTINGS = {**SMALLEST, "train__epochs": 2, "data__synthetic__test": 9}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The result of a run of two seeds, and what it wrote to the log."""
    workdir, heard = tmp_path_factory.mktemp("api") / "run", io.StringIO()
    handlers, logging.root.handlers = logging.root.handlers, []  # as where nobody set up logging
    stderr, sys.stderr = sys.stderr, heard
    try:
        result = msajax.train(tiny_config(**SETTINGS), workdir)
    finally:
        logging.root.handlers, sys.stderr = handlers, stderr
    return result, heard.getvalue()


def test_the_result_is_that_of_the_folder_and_prints_as_its_table(trained, monkeypatch):
    result, _ = trained
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do
    with open(os.path.join(result.workdir, "results.json"), encoding="utf-8") as file:
        stored = json.load(file)
    assert dict(result) == stored and result["test"]["mae"]["mean"] == stored["test"]["mae"]["mean"]
    table = io.StringIO()
    print_results(stored, Console(file=table, width=100, force_terminal=False))
    assert str(result) == table.getvalue() and "mae" in str(result)
    assert "<pre" in result._repr_html_() and "mae" in result._repr_html_()
    assert repr(result) == f"Result({result.workdir!r}; print it for its table)"


def test_predictions_are_the_columns_of_the_file(trained):
    result, _ = trained
    for split, size in (("valid", 20), ("test", 9)):
        found = result.predictions(split)
        path = os.path.join(result.workdir, "predictions", f"{split}.csv")
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert list(found) == list(rows[0]) and len(rows) == size
        assert found["id"].tolist() == [row["id"] for row in rows]
        for name in ("label", "score", "score_seed1", "weight_text", "present_text"):
            assert found[name].tolist() == [float(row[name]) for row in rows]
        mae = np.abs(found["score_seed0"] - found["label"]).mean()
        np.testing.assert_allclose(mae, result[split]["mae"]["seeds"][0], rtol=1e-6)
    with pytest.raises(msajax.UserError, match="valid and test, not of 'train'"):
        result.predictions("train")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: msajax.load(None), "bundle = None: must be the path of the folder of a bundle"),
        (lambda: msajax.generate(1, "a"), "bundle = 1: must be the path of"),
        (lambda: msajax.open_corpus(b"c.npz"), "path = b'c.npz': must be the path of a corpus"),
        (lambda: msajax.train(msajax.Config(), None), "workdir = None: must be the path of a fol"),
        (lambda: msajax.compare("a", 4), "run = 4: must be the path of a run's folder, or of a"),
        (lambda: msajax.table("a", convention=("x",)), r"= \('x',\): must be names with commas"),
    ],
)
def test_what_is_no_path_is_refused_by_name(call, said):
    with pytest.raises(msajax.UserError, match=said):
        call()


def test_history_and_bundle_are_those_of_the_run(trained):
    result, _ = trained
    history = result.history()
    assert [(line["seed"], line["epoch"]) for line in history] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    best = min(line["valid_mae"] for line in history if line["seed"] == 1)
    assert best == result["valid"]["mae"]["seeds"][1]
    split = msajax.open_corpus("synthetic", result.bundle.config.data).split("test")
    scores = result.bundle.predict(split.features, split.masks)
    np.testing.assert_allclose(scores.score[:, 0], result.predictions()["score"], atol=1e-6)


def test_the_log_is_heard_once_and_nothing_stays_set(trained):
    _, heard = trained
    lines = heard.splitlines()
    assert sum("epoch 2/2" in line for line in lines) == 1
    assert sum("The model reads text (6 wide, 1 step)." in line for line in lines) == 1
    logger = logging.getLogger("msajax")
    assert (logger.handlers, logger.level, logger.propagate) == ([], logging.NOTSET, True)


def test_a_program_that_set_up_logging_is_left_alone(trained, caplog, capsys):
    result, _ = trained
    with caplog.at_level(logging.INFO, logger="msajax"):
        again = msajax.train(tiny_config(**SETTINGS), result.workdir)  # ended: read at once
    assert dict(again) == dict(result)
    assert "This run has ended" in caplog.text
    assert capsys.readouterr().err == ""


def test_completion_shows_the_public_names_and_does_not_wait_for_jax():
    script = """
import rlcompleter, sys, msajax
assert dir(msajax) == sorted(msajax.__all__)
complete = rlcompleter.Completer({"msajax": msajax}).complete
found = {complete("msajax.", i).split(".")[1].strip("()") for i in range(len(msajax.__all__) - 1)}
assert found == {*msajax.__all__} - {"__version__"} and complete("msajax.", len(found)) is None
assert "jax" not in sys.modules
msajax.load = None  # as a test does that replaces it
del msajax.load
assert callable(msajax.load) and "jax" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_help_explains_itself():
    """What help(msajax) prints names all that there is to use, with its own words."""
    shown = pydoc.plain(pydoc.render_doc(msajax))
    for name in {*msajax.__all__} - {"__version__"}:
        assert name in shown
    for words in (
        'result = msajax.train(config, "runs/mine")',
        "Trains, chooses on validation, then opens the test split once",
        "Scores N samples, prepared as the training split was",
        "Builds the model that a configuration names",
    ):
        assert words in shown
