"""Numbers that are not finite: steps are skipped, seeds fail alone, a run ends with exit code 3."""

import dataclasses
import logging

import chex
import jax
import numpy as np
import pytest
from tiny import SMALLEST, lines_of, run, tiny_config

from msajax.corpus.formats import open_corpus
from msajax.errors import NonFiniteError
from msajax.experiment import run as experiment
from msajax.inference.bundle import load_bundle, save_bundle
from msajax.preparation.apply import prepare
from msajax.preparation.fit import fit
from msajax.runs.folder import RunFolder
from msajax.training.feed import Pace
from msajax.training.loop import train_groups
from msajax.training.run import Run

PATH = "regression/kernel"
SHAPE = (8, 1)
SETTINGS = {**SMALLEST, "train__seeds": 3}
CONFIG = tiny_config(**SETTINGS)


def poison(*values: float) -> dict[str, np.ndarray]:
    """The output layer of each seed filled with its value; NaN leaves it random."""
    return {PATH: np.stack([np.full(SHAPE, value) for value in values])}


@pytest.fixture(scope="module")
def one_of_three(tmp_path_factory):
    """Three seeds, of which the second begins with parameters that overflow."""
    folder, told = tmp_path_factory.mktemp("failures") / "run", []
    logger, handler = logging.getLogger("msajax"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    logger.addHandler(handler)
    try:
        trained = run(CONFIG, folder, initial=poison(np.nan, np.inf, np.nan))
    finally:
        logger.removeHandler(handler)
    return trained, folder, told


def test_a_seed_that_fails_leaves_the_others_bit_equal_to_a_run_without_it(one_of_three, tmp_path):
    trained, folder, _ = one_of_three
    assert trained.finished
    assert trained.failed == [{"seed": 1, "epoch": 1, "step": 5}]
    whole = run(CONFIG, tmp_path)
    others = [
        jax.tree.map(lambda x: np.asarray(x)[[0, 2]], of.variables) for of in (trained, whole)
    ]
    chex.assert_trees_all_equal(*others)
    lines = [[x for x in lines_of(path) if x["seed"] != 1] for path in (folder, tmp_path)]
    assert lines[0] == lines[1]


def test_a_failed_seed_writes_one_last_line_that_says_so(one_of_three):
    (line,) = [line for line in lines_of(one_of_three[1]) if line["seed"] == 1]
    assert line["failed"] and line["stopped"] and not line["best"]
    assert (line["skipped"], line["step"]) == (5, 5)
    assert line["train_loss"] is None and line["grad_norm"] is None


def test_a_failed_seed_keeps_its_last_good_state(one_of_three):
    kernel = np.asarray(one_of_three[0].variables["params"]["regression"]["kernel"])
    assert np.isinf(kernel[1]).all() and np.isfinite(kernel[[0, 2]]).all()


def test_a_skipped_step_is_told_with_its_seed_its_step_and_the_ids_of_its_batch(one_of_three):
    told = [message for message in one_of_three[2] if "skipped" in message]
    assert [message.split(":")[0] for message in told] == [
        f"Random seed 1, epoch 1, step {step} of 6" for step in range(1, 6)
    ]
    ids = [message.split("Its batch: ")[1].rstrip(".").split(", ") for message in told]
    assert all(1 <= len(batch) <= 8 for batch in ids)
    assert len(set().union(*ids)) == sum(map(len, ids))  # no sample twice in an epoch


def test_when_every_seed_has_failed_the_run_leaves_its_epoch_at_once_and_saves_nothing(
    tmp_path, monkeypatch
):
    taken = []
    monkeypatch.setattr(Pace, "update", lambda pace, quarter, steps, seconds: taken.append(steps))
    config = tiny_config(**SETTINGS, train__checkpoint_every_seconds=0.0)
    with pytest.raises(NonFiniteError, match=r"3 random seed.*seed 0 in epoch 1, step 5; seed 1"):
        run(config, tmp_path, initial=poison(np.inf, np.inf, np.inf))
    lines = lines_of(tmp_path)
    assert [(line["seed"], line["epoch"], line["failed"]) for line in lines] == [
        (0, 1, True),
        (1, 1, True),
        (2, 1, True),
    ]
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert sum(taken) == 5


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_steps_that_are_skipped_now_and_then_fail_no_seed(tmp_path):
    # A label that is infinite as float32 spoils one batch of every epoch, six in all.
    config = tiny_config(**SETTINGS, train__epochs=6)
    corpus = open_corpus(config.data.path, config.data)
    preparation = fit(corpus, config.data, config.model)
    train, _ = prepare(corpus.split("train"), preparation)
    valid, _ = prepare(corpus.split("valid"), preparation)
    labels = train.labels.copy()
    labels[5] = 1e39
    spoiled = dataclasses.replace(train, labels=labels)
    folder = RunFolder(str(tmp_path))
    trained = train_groups(Run(config, corpus, preparation, spoiled, valid, folder))
    assert trained.failed == []
    assert [line["skipped"] for line in lines_of(tmp_path)] == [1] * 18
    chex.assert_tree_all_finite(trained.variables)


def test_a_run_with_a_failed_seed_reports_the_others_and_names_it(tmp_path):
    whole = experiment.train(CONFIG, str(tmp_path / "whole"))
    bundle = load_bundle(tmp_path / "whole" / "bundle")
    kernel = bundle.params["regression"]["kernel"].copy()
    kernel[1] = 3e38
    bundle.params["regression"]["kernel"] = kernel
    save_bundle(str(tmp_path / "spoiled"), bundle)
    config = tiny_config(**SETTINGS, model__init_from=str(tmp_path / "spoiled"))
    results = experiment.train(config, str(tmp_path / "run"))
    assert results["seeds"] == [0, 2]
    assert [failure["seed"] for failure in results["failed"]] == [1]
    assert len(results["test"]["mae"]["seeds"]) == 2
    assert whole["failed"] == [] and whole["seeds"] == [0, 1, 2]
    assert load_bundle(tmp_path / "run" / "bundle").seeds == [0, 2]
    header = (tmp_path / "run" / "predictions" / "test.csv").read_text().splitlines()[0]
    assert "score_seed0" in header and "score_seed1" not in header
    # The same command again says the same.
    assert experiment.train(config, str(tmp_path / "run")) == results
