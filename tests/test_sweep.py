"""Sweeps: what is tried, what is stopped, what is chosen, and that a kill changes none of it."""

import csv
import json
import math
import os
import pathlib
import random
import re
import runpy
import shutil
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
import survivors
from pages import blocks
from scipy import stats
from survivors import StopAfter, differences
from tiny import SMALLEST, lines_of, run, tiny_config

import msajax
from msajax import config as configuration
from msajax.config import Config, flatten
from msajax.corpus.corpus import ClosedCorpus, Corpus
from msajax.errors import UserError
from msajax.models.build import declared
from msajax.studies.sweep import sweep as sweeps
from msajax.studies.sweep.files import experiment_text
from msajax.studies.sweep.space import load_space, plan, with_settings
from msajax.studies.sweep.verdicts import (
    SelectionMetric,
    best_so_far,
    how_it_ended,
    rank_correlations,
    ranked,
    told_apart,
    winner_sentence,
)

PATIENCE = 900  # seconds for a whole sweep in another process
SETTINGS = {
    **SMALLEST,
    "data__standardize": ("text",),
    "data__clip": 3.0,
    "optim__learning_rate": 0.02,
    "train__epochs": 6,
    "train__patience": 0,
}
BASE = tiny_config(**SETTINGS)
MAE, CORR = SelectionMetric("mae", False), SelectionMetric("corr", True)


# --- what is tried ---


def test_a_grid_is_every_combination_in_the_order_of_keys():
    space = {"optim.learning_rate": [0.1, 0.2], "model.modalities": [("text",), ["text", "audio"]]}
    assert plan(space, BASE, None) == [
        {"model.modalities": modalities, "optim.learning_rate": rate}
        for modalities in (("text",), ["text", "audio"])
        for rate in (0.1, 0.2)
    ]


def test_trial_k_is_the_same_whatever_the_number_of_trials_and_none_comes_twice():
    space = {
        "model.dropout_rate": (0.1, 0.5, "linear"),
        "optim.learning_rate": (1e-4, 1e-2, "log"),
        "model.num_heads": (1, 8, "log"),
        "train.patience": (2, 4, "linear"),
        "optim.name": ["adam", "adamw"],
    }
    drawn = plan(space, BASE, 1000)
    assert drawn[:9] == plan(dict(reversed(space.items())), BASE, 9)
    assert all(list(trial) == sorted(space) for trial in drawn)
    column = {key: [trial[key] for trial in drawn] for key in space}
    for key in ("model.dropout_rate", "optim.learning_rate"):
        low, high, _ = space[key]
        assert low <= min(column[key]) and max(column[key]) <= high
        assert all(value == float(f"{value:.4g}") for value in column[key])
    # Half of a range on a logarithmic scale lies below its geometric mean.
    assert stats.binomtest(sum(v < 1e-3 for v in column["optim.learning_rate"]), 1000).pvalue > 0.01
    assert stats.binomtest(sum(v < 0.3 for v in column["model.dropout_rate"]), 1000).pvalue > 0.01
    assert {type(value) for value in column["train.patience"]} == {int}
    counts = np.bincount(column["train.patience"])
    assert counts[:2].tolist() == [0, 0] and stats.chisquare(counts[2:]).pvalue > 0.01
    heads = np.bincount(column["model.num_heads"], minlength=9)[1:]
    expected = 1000 * np.diff(np.log(np.arange(1, 10))) / math.log(9)
    assert stats.chisquare(heads, expected).pvalue > 0.01
    six = {"model.num_heads": [1, 2, 4], "optim.name": ["adam", "adamw"]}
    every = plan(six, BASE, 6)
    assert sorted(map(str, every)) == sorted(map(str, plan(six, BASE, None)))


RATE = "optim.learning_rate"


@pytest.mark.parametrize(
    ("space", "trials", "message"),
    [
        (None, None, r"get_space\(\) must return \{key: .* it returns None"),
        ({}, None, r"get_space\(\) must return"),
        ([], None, "there must be one or more"),
        ([{}, 3], None, "each of its trials must be"),
        ([{}], 2, "lists its trials one by one: leave out --trials"),
        ([{}, {RATE: 0.1}, {}], None, "lists trial 2 twice"),
        ({3: [1]}, None, "the key 3 must be text"),
        ({"optim.lr": [1.0]}, None, "Unknown .* 'optim.lr': did you mean 'optim.learning_rate'"),
        ({"train.seeds": [1, 2]}, None, "train.seeds cannot be tried: --trial_seeds says"),
        ({"train.select_by": ["mae"]}, None, "compared by one metric"),
        ({"data.fold": [0]}, None, "compared on one validation split"),
        ({"mesh.data": [1]}, None, "it does not change what is trained"),
        ({"data.path": ["a"]}, None, "or it is where the corpus comes from"),
        ({RATE: []}, None, "the list of optim.learning_rate is empty"),
        ({RATE: [0.1, 0.1]}, None, "holds 0.1 twice"),
        ({RATE: ["fast"]}, None, "= 'fast': must be of type float"),
        ({"model.num_heads": [2.0]}, None, "= 2.0: must be of type int"),
        ({"model.num_heads": [True]}, None, "= True: must be of type int"),
        ({RATE: [math.nan]}, None, "must be finite"),
        ({RATE: 0.1}, None, "has 0.1: must be a list of values, or"),
        ({RATE: (0.1, 0.2)}, 1, "must be a list of values, or"),
        ({RATE: (0.1, 0.2, "sqrt")}, 1, "must be a list of values, or"),
        ({RATE: (0.2, 0.2, "linear")}, 1, "range 0.2 to 0.2: low must be smaller"),
        ({RATE: (0, 1, "log")}, 1, "logarithmic scale, which needs a low above 0"),
        ({"model.num_heads": (1, 2.5, "linear")}, 1, "= 2.5: must be of type int"),
        ({"optim.name": ("adam", "adamw", "log")}, 1, "is no number, so it has no range"),
        ({RATE: (0.1, 0.2, "log")}, None, "is a range, which has no end: give --trials=N"),
        ({RATE: [0.1, 0.2]}, 0, "--trials=0: must be 1 or more"),
        ({RATE: [0.1, 0.2]}, 3, "only 2 combinations; give at most 2; a sweep without"),
        ({"train.patience": list(range(10_001))}, None, "10001 combinations, more than 10000"),
        ({RATE: (0.1, 0.2, "log")}, 10_001, "--trials=10001: it is too many"),
    ],
)
def test_a_space_that_cannot_be_tried_is_one_sentence(space, trials, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        msajax.sweep(BASE, space, tmp_path / "w", trials=trials)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "w").exists()


def test_an_experiment_file_says_what_is_tried(tmp_path):
    path = tmp_path / "one.py"
    for text, message in [
        ("", r"has no get_space\(\), .*; nor does next_token declare it"),
        ("def get_space():\n    return 1 / 0\n", r"one.py, line 2: .*ZeroDivisionError"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            load_space(str(path), msajax.ModelConfig(name="next_token"))
    shipped = pathlib.Path(survivors.ROOT, "configs")
    assert len(plan(load_space(str(shipped / "synthetic.py"), BASE.model), BASE, None)) == 6
    (of_page,) = blocks("docs/sweep.md", "python")
    path.write_text(of_page)
    for file in (path, shipped / "mosi.py"):
        assert len(plan(load_space(str(file), BASE.model), BASE, 20)) == 20
    # Without it the space is what the model declares.
    path.write_text("")
    assert load_space(str(path), BASE.model) == declared(BASE.model).space


# --- what is decided, by hand ---


def line(seed: int, epoch: int, value: float | None, best: bool, **more) -> dict:
    named = {"valid_mae": value, "valid_corr": value, "best": best, "stopped": False}
    return {"seed": seed, "epoch": epoch, "failed": False, **named, **more}


def test_the_best_value_so_far_of_every_seed():
    lines = [
        *(line(4, 1, 1.5, True), line(5, 1, None, True), line(4, 2, 1.75, False)),
        *(line(5, 2, 1.25, True, stopped=True), line(4, 3, 1.0, True), line(4, 4, 0.5, True)),
    ]
    found = best_so_far(lines, (4, 5), "mae")
    assert np.array_equal(found, [[1.5, 1.5, 1.0, 0.5], [np.nan, 1.25, 1.25, 1.25]], equal_nan=True)
    assert best_so_far(lines[:3], (4, 5), "mae").shape == (2, 1)  # seed 5 is still in epoch 2
    assert best_so_far(lines, (4, 5, 6), "mae").shape == (3, 0)


def ended(values, before, metric=MAE, epochs=9, **more):
    lines = [line(0, e, v, True, **more) for e, v in enumerate(values, 1)]
    best = best_so_far(lines, (0,), metric.name)
    return how_it_ended(lines, best, metric, epochs, before)


def test_the_median_rule():
    # At epoch 3 the three before have 1, 2 and 4: the second stopped earlier, and keeps its 2.
    before = [[9, 9, 1.0, 0.5], [9, 2.0], [9, 9, 4.0, 1.0]]
    assert ended([9, 9, 2.0], before) is None  # equal to the median
    found = ended([9, 9, 2.125], before)
    assert (found.how, found.epoch) == ("median", 3)
    assert found.why == "mae 2.125 after epoch 3, where the median of the 3 trials before it has 2"
    assert ended([99, 99], before) is None  # less than a third of nine epochs
    assert ended([9, 9, 2.125], before[:2]) is None  # fewer than three before
    assert ended([9, 9, 2.125], None) is None  # turned off
    assert ended([9, 9, 2.0, 1.0], before) is None  # at epoch 4 the median of 0.5, 2 and 1 is 1
    assert ended([9, 9, 2.0, 1.5], before).epoch == 4
    assert ended([9, 9, None], before).why.startswith("mae undefined after epoch 3")
    # A metric that is better when it is larger, with its best so far instead of its last value.
    higher = [[0, 0, 0.1], [0, 0, 0.3], [0, 0, 0.2]]
    lines = [line(0, 1, 0.25, True), line(0, 2, 0.1, False), line(0, 3, 0.0, False)]
    assert how_it_ended(lines, best_so_far(lines, (0,), "corr"), CORR, 9, higher) is None
    assert ended([0, 0, 0.15], higher, CORR).how == "median"
    # The last epoch decides nothing any more.
    assert ended([9, 9, 9], before, epochs=3, stopped=True).how == "epochs"
    assert ended([9], before, stopped=True).how == "patience"
    assert ended([9], before, failed=True, stopped=True).how == "failed"


def record(number: int, *seeds: float, how: str = "epochs", **settings) -> dict:
    score = float(np.mean(seeds)) if seeds else None
    return {
        "trial": number, "score": score, "seeds": list(seeds), "ended": how, "settings": settings,
        "sd": float(np.std(seeds, ddof=1)) if len(seeds) > 1 else None,
    }  # fmt: skip


def test_the_winner_is_the_best_that_ran_to_its_end():
    records = [record(0, 2.0), record(1, 1.0, how="median"), record(2), record(3, 1.5),
               record(4, 1.5, how="patience"), record(5, 1.0, how="failed")]  # fmt: skip
    assert [r["trial"] for r in ranked(records, MAE)] == [3, 4, 0]
    assert [r["trial"] for r in ranked(records, CORR)] == [0, 3, 4]


def test_seeds_tell_trials_apart_as_the_paired_t_test_does():
    rng, found = np.random.default_rng(0), []
    for _ in range(40):
        one, other = rng.normal(size=3), rng.normal(0.5, 1, size=3) + rng.choice([0, 3])
        found.append(told_apart(record(0, *one), record(1, *other)))
        assert found[-1] == (stats.ttest_rel(one, other).pvalue < 0.05)
    assert {True, False} == set(found)
    assert not told_apart(record(0, 1.0), record(1, 99.0))
    words = [
        winner_sentence(record(7, 1.0, 2.0), apart, MAE)
        for apart in ({}, {1: True}, {1: False, 2: True, 0: False}, {1: False, 2: False})
    ]
    first = "Trial 7 is the best on validation, mae 1.5000 ± 0.7071 with 2 random seeds. "
    chance = " may be chance: the difference changes as much from one random seed to another."
    assert words == [
        first + "No other trial ran to its end.",
        first + "Its lead over the other trial that ran to its end is more than a change of random "
        "seeds explains.",
        first + "Its lead over 2 of the 3 other trials that ran to their end (trials 0, 1)"
        + chance,
        first + "Its lead over each of the 2 other trials that ran to their end" + chance,
    ]
    alone = winner_sentence(record(7, 1.0), {1: False}, MAE)
    assert alone.endswith("take --trial_seeds=3 or more.")


def test_rank_correlations_are_spearmans():
    settings = [(1, 5, "a"), (2, 5, "b"), (3, 5, "c"), (9, 5, "d"), (4, 5, "e")]
    scores = [1.0, 2.0, 5.0, 3.0, 4.0]
    records = [
        record(k, score, how="median", rate=rate, same=same, word=word)
        for k, ((rate, same, word), score) in enumerate(zip(settings, scores, strict=True))
    ]
    # Ranks 1 2 3 5 4 against 1 2 5 3 4: squared differences 0 0 4 4 0, 1 - 6 * 8 / (5 * 24).
    assert rank_correlations([*records, record(9)]) == {"rate": pytest.approx(0.6)}
    assert rank_correlations(records[:3]) == {}


# --- a sweep from end to end ---

BLIND = {"data.clip": 1e-4}  # features that are all alike: the median rule stops it
# Preparation, early stopping and saving are no part of compiled programs.
TRIALS = [
    {},
    {"data.clip": 10.0},
    {"data.clip": 1.0, "train.patience": 9},
    BLIND,
    {"model.num_heads": 3},  # which does not divide the width
    {RATE: 1e38},  # not finite after a step or two
    {"train.patience": 9},
]


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Iterator[tuple[pathlib.Path, msajax.SweepResult, list[str]]]:
    """The folder of a sweep, its result, and who read the test split meanwhile."""
    folder = tmp_path_factory.mktemp("sweep") / "w"
    events, split, train_trial = [], Corpus.split, sweeps.train_trial

    def watched(corpus: Corpus, name: str):
        assert not (name == "test" and events and events[-1] == "trial begins")
        events.append(f"reads {name}")
        return split(corpus, name)

    def told(*arguments, **named):
        events.append("trial begins")
        found = train_trial(*arguments, **named)
        events.append("trial ends")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Corpus, "split", watched)
        patch.setattr(sweeps, "train_trial", told)
        result = msajax.sweep(BASE, TRIALS, folder, trial_seeds=2)
    yield folder, result, events


def test_every_trial_is_on_record_with_how_it_ended(swept):
    folder, result, _ = swept
    assert result == json.loads((folder / "sweep.json").read_text())
    trials = result["trials"]
    assert [trial["settings"] for trial in trials] == TRIALS
    how = ["epochs", "epochs", "epochs", "median", "refused", "failed", "epochs"]
    assert [trial["ended"] for trial in trials] == how
    stopped, failed = trials[3]["epochs"], trials[5]["epochs"]
    assert [trial["epochs"] for trial in trials] == [6, 6, 6, stopped, 0, failed, 6]
    assert 2 <= stopped < 6
    assert trials[4]["why"].startswith("model.num_heads = 3: must divide model.model_dim = 8")
    assert "no longer finite" in trials[5]["why"] and trials[5]["score"] is None
    assert result["seeds"] == [2, 3] and BASE.train.seeds == 2  # the winner has 0 and 1
    with open(folder / "trials.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["ended"] for row in rows] == how
    assert [row["train.patience"] for row in rows] == ["", "", "9", "", "", "", "9"]
    assert float(rows[1]["valid_mae_seed3"]) == pytest.approx(trials[1]["seeds"][1], rel=1e-8)
    assert rows[3]["why"] == trials[3]["why"] and rows[3]["told_apart"] == ""
    left = {path.name for path in (folder / "trials" / "001").iterdir()}
    assert left == {"config.json", "run.json", "metrics.jsonl"}


def test_a_trial_is_trained_as_a_run_of_its_settings_and_seeds(swept, tmp_path):
    folder, result, _ = swept
    config = with_settings(BASE, {**TRIALS[1], "train.first_seed": 2})
    run(config, tmp_path / "alone")
    lines = lines_of(tmp_path / "alone")
    assert lines_of(folder / "trials" / "001") == lines
    trial = result["trials"][1]
    own = [[x["valid_mae"] for x in lines if x["seed"] == seed] for seed in (2, 3)]
    assert trial["seeds"] == [min(values) for values in own]
    assert trial["best_epoch"] == [values.index(min(values)) + 1 for values in own]
    assert trial["curve"] == pytest.approx(np.minimum.accumulate(own, axis=1).mean(axis=0).tolist())
    assert trial["score"] == trial["curve"][-1] == pytest.approx(np.mean(trial["seeds"]))
    assert trial["sd"] == pytest.approx(abs(trial["seeds"][0] - trial["seeds"][1]) / math.sqrt(2))
    # The one that was stopped has the same lines as if it had not been, as far as they go.
    last = result["trials"][3]["epochs"]
    assert max(x["epoch"] for x in lines_of(folder / "trials" / "003")) == last


def test_no_trial_opens_the_test_split_nor_could(swept):
    _, _, events = swept
    last = max(k for k, event in enumerate(events) if event == "trial ends")
    # Before all trials it is looked at once: whether it can be prepared.
    before = events[: events.index("trial begins")]
    assert before.count("reads test") == 1
    assert "reads test" not in events[len(before) : last]
    assert "reads test" in events[last:]
    corpus = msajax.open_corpus("synthetic", BASE.data)
    assert len(corpus.split("test").ids)
    closed = ClosedCorpus(corpus)
    assert closed.digest == corpus.digest and len(closed.split("valid").ids)
    with pytest.raises(RuntimeError, match="asked for the test split"):
        closed.split("test")


def test_the_winner_is_trained_on_its_own_seeds_and_its_file_reproduces_the_numbers(
    swept, tmp_path
):
    folder, result, _ = swept
    winner = result["winner"]
    scores = {t["trial"]: t["score"] for t in result["trials"] if t["ended"] == "epochs"}
    assert winner["trial"] == min(scores, key=scores.get)
    of_run = json.loads((folder / "winner" / "results.json").read_text())
    assert winner["results"] == of_run and of_run["seeds"] == [0, 1]
    config = json.loads((folder / "winner" / "config.json").read_text())
    expected = flatten(with_settings(BASE, winner["settings"]))
    assert flatten(configuration.from_config_dict(config)) == expected
    of_file = runpy.run_path(str(folder / "winner.py"))["get_config"]()
    msajax.train(configuration.from_config_dict(of_file), tmp_path / "again")
    assert differences(tmp_path / "again", folder / "winner") == []
    # The tables.
    text = str(result)
    assert winner["sentence"].split(".")[0] in " ".join(text.split())
    assert "stopped by the median" in text and "7 trials: 4 ran to the end" in text
    assert result.winner["test"] == of_run["test"]


def test_the_same_call_reads_what_has_ended_and_another_sweep_is_refused(swept, monkeypatch):
    folder, result, _ = swept
    monkeypatch.setattr(sweeps, "train_trial", None)  # nothing is trained
    before = {p: p.stat().st_mtime_ns for p in folder.glob("*.*")}
    again = msajax.sweep(BASE, TRIALS, folder, trial_seeds=2)
    assert dict(again) == dict(result)
    for config, space, more, message in [
        (BASE, TRIALS[1:], {}, r"get_space\(\): \[\{\}, .* there, \[\{'data"),
        (with_settings(BASE, {"model.ff_dim": 32}), TRIALS, {}, "model.ff_dim: 16 there, 32 here"),
        (BASE, TRIALS, {"trial_seeds": 3}, "--trial_seeds: 2 there, 3 here"),
        (BASE, TRIALS, {"median": False}, "--median: True there, False here"),
        (BASE, {RATE: [0.1]}, {}, r"holds another sweep \(get_space"),
    ]:
        with pytest.raises(UserError, match=message):
            msajax.sweep(config, space, folder, **{"trial_seeds": 2, **more})
    with pytest.raises(UserError, match="holds 'bundle' but no sweep.json"):
        msajax.sweep(BASE, TRIALS, folder / "winner")
    with pytest.raises(UserError, match="in a bucket"):
        msajax.sweep(BASE, TRIALS, "gs://bucket/sweep")
    after = {p: p.stat().st_mtime_ns for p in folder.glob("*.*")}
    assert {p.name for p in after if after[p] != before.get(p)} <= {"sweep.json", "trials.csv"}


def test_an_experiment_on_file_finds_its_encoders_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wavlm").mkdir()
    model = Config().model.with_encoders({"text": "org/bert", "audio": "wavlm"})
    (tmp_path / "of.py").write_text(experiment_text(Config(model=model), "Of two encoders."))
    found = runpy.run_path(str(tmp_path / "of.py"))["get_config"]().model
    assert found.text_encoder == "org/bert" and found.encoders == (f"audio={tmp_path}/wavlm",)


def test_a_sweep_may_get_more_trials_until_its_winner_is_chosen(tmp_path):
    space = {"train.patience": (1, 3, "linear")}
    config = with_settings(BASE, {"train.epochs": 1})
    done = msajax.sweep(config, space, tmp_path / "w", trials=1, trial_seeds=2, winner=False)
    assert done["winner"]["trial"] == 0 and "results" not in done["winner"]
    assert done.winner is None and not (tmp_path / "w" / "winner.py").exists()
    assert "alone" not in str(done)
    more = msajax.sweep(config, space, tmp_path / "w", trials=2, trial_seeds=2, winner=False)
    assert [t["settings"] for t in more["trials"]] == plan(space, config, 2)
    assert more["trials"][0]["seconds"] == done["trials"][0]["seconds"]  # it was not trained anew
    with pytest.raises(UserError, match="a sweep of 2 trials, not of 1. It can have more"):
        msajax.sweep(config, space, tmp_path / "w", trials=1, trial_seeds=2)
    (tmp_path / "w" / "winner.py").touch()
    with pytest.raises(UserError, match="has chosen its winner"):
        msajax.sweep(config, space, tmp_path / "w", trials=3, trial_seeds=2)


def test_a_sweep_of_which_nothing_is_left_says_why(tmp_path):
    trials = [{"model.num_heads": 3}, {"model.num_heads": 5}]
    with pytest.raises(UserError, match="No trial of .*trial 0: model.num_heads = 3: must divide"):
        msajax.sweep(BASE, trials, tmp_path / "w")


# --- stopped and killed ---


def without_seconds(folder: pathlib.Path) -> tuple[dict, list[dict]]:
    content = json.loads((folder / "sweep.json").read_text())
    content["winner"]["results"]["timing"].pop("train_seconds")
    for trial in content["trials"]:
        trial.pop("seconds")
    with open(folder / "trials.csv", encoding="utf-8", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    return content, rows


def test_a_sweep_that_is_killed_at_any_moment_comes_to_the_same_result(forks, tmp_path):
    settings = SETTINGS | {"train__checkpoint_every_steps": 4}  # of six in an epoch
    path = survivors.write_experiment(tmp_path / "small.py", **settings)
    trials = [{}, {"train.patience": 3}, {"train.patience": 5}, BLIND]
    path.write_text(f"{path.read_text()}\n\ndef get_space():\n    return {trials}\n")

    def begin(folder: pathlib.Path):
        arguments = ("--mode", "sweep", "--config", path, "--workdir", folder, "--trial_seeds=2")
        return forks.start(*arguments, log=folder.with_suffix(".log"))

    whole, folder, moments = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    assert begin(whole).wait(PATIENCE) == 0, whole.with_suffix(".log").read_text()
    expected = without_seconds(whole)
    how = [trial["ended"] for trial in expected[0]["trials"]]
    assert how[0] == "epochs" and how[3] == "median"

    def marks() -> int:
        """How far a sweep has come: lines of metrics, and files that are there."""
        found = [*folder.glob("trials/*/metrics.jsonl"), *folder.glob("winner/metrics.jsonl")]
        files = [p for name in ("*", "trials/*", "winner/*") for p in folder.glob(f"{name}.json")]
        return sum(p.read_bytes().count(b"\n") for p in found) + len(files)

    kills, stops = 0, 0
    while kills < 2:
        process, seen, wanted = begin(folder), marks(), moments.randint(1, 12)
        last = time.monotonic() + PATIENCE
        while process.poll() is None and marks() < seen + wanted and time.monotonic() < last:
            time.sleep(0.02)
        time.sleep(moments.choice([0, moments.uniform(0, 0.05)]))
        number = signal.SIGTERM if kills % 4 == 1 else signal.SIGKILL
        process.send_signal(number)
        code, said = process.wait(PATIENCE), folder.with_suffix(".log").read_text()
        assert "Traceback" not in said
        if code == 0:
            break
        assert code == (75 if number == signal.SIGTERM else -signal.SIGKILL), said
        kills, stops = kills + 1, stops + (code == 75)
    assert kills >= 2 and stops >= 1  # it did not end before
    assert begin(folder).wait(PATIENCE) == 0, folder.with_suffix(".log").read_text()
    assert without_seconds(folder) == expected
    assert differences(folder / "winner", whole / "winner") == []
    ours, theirs = ({str(p.relative_to(f)) for p in f.rglob("*")} for f in (folder, whole))
    inside = r"winner/checkpoints/\d+(/.*)?"  # the last two steps may be others
    assert {n for n in ours ^ theirs if not re.fullmatch(inside, n)} == set()
    assert "4 of 4: trial 3" in whole.with_suffix(".log").read_text()


def test_a_stop_that_comes_with_the_end_of_a_trial_pauses_the_sweep(tmp_path):
    stop = StopAfter(0)
    what = sweeps.Plan([{}, {RATE: 0.01}], trial_seeds=1, winner=False)
    assert sweeps.sweep(BASE, what, str(tmp_path / "w"), stop) is None
    assert json.loads((tmp_path / "w" / "sweep.json").read_text())["trials"] == []
    assert not os.path.exists(tmp_path / "w" / "winner.py")


def test_a_trial_that_ended_just_before_a_kill_is_not_trained_again(swept, tmp_path, monkeypatch):
    folder, result, _ = swept
    copy = tmp_path / "w"
    shutil.copytree(folder, copy)
    (copy / "trials" / "003.json").unlink()
    monkeypatch.setattr("msajax.studies.sweep.trial.train_groups", None)
    again = msajax.sweep(BASE, TRIALS, copy, trial_seeds=2)
    assert again["trials"] == result["trials"]


def test_settings_of_another_model_or_none_are_put_in_their_place():
    config = with_settings(BASE, {RATE: 0.5, "data.synthetic.lengths": (2,)})
    assert isinstance(config, Config) and config.optim.learning_rate == 0.5
    assert config.data.synthetic.lengths == (2,)
    changed = {k for k, v in flatten(config).items() if v != flatten(BASE)[k]}
    assert changed == {RATE, "data.synthetic.lengths"}
