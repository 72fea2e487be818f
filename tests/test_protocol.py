"""Numbers over seeds and their intervals, against independent arithmetic on small arrays."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score

from msajax.metrics.calibration import Intervals
from msajax.metrics.intervals import bootstrap
from msajax.metrics.table import SENTIMENT, TABLE
from msajax.results import measure
from msajax.tasks import Task, make_task

LABEL = np.array([-2.4, -1.0, -0.2, 0.0, 0.6, 1.0, 1.8, 3.0])
SCORES = np.array(  # two seeds
    [
        [-2.0, -0.4, 0.1, 0.2, 0.6, 1.4, 1.2, 2.4],
        [-1.0, -1.2, -0.3, -0.1, 0.9, -0.2, 2.6, 3.4],
    ]
)
NAMES = ("mae", "corr", "acc2_nonzero", "f1_has0")


def task_of(label: np.ndarray, *names: str) -> Task:
    """The task of one score a sample, and of its metrics those that are named."""
    task = make_task("regression", ("sentiment",), label[:, None])
    return replace(task, reported={name: task.reported[name] for name in names or task.reported})


def summarize(scores, label, names, how=measure.summarize):
    return how(scores[..., None], label[:, None], task_of(label, *names))


def naive(score: np.ndarray, label: np.ndarray, name: str) -> float:
    """A metric again, by the definitions of the papers and not by `msajax.metrics.table`."""
    if name == "mae":
        return statistics.fmean(abs(p - y) for p, y in zip(score, label, strict=True))
    if name == "corr":
        return float(np.corrcoef(score, label)[0, 1])
    if name == "acc2_nonzero":
        hits = [(p > 0) == (y > 0) for p, y in zip(score, label, strict=True) if y != 0]
        return sum(hits) / len(hits)
    assert name == "f1_has0"
    return float(f1_score(label >= 0, score >= 0, average="weighted", zero_division=0))


# --- over seeds ---


def test_a_summary_holds_every_seed_their_mean_and_their_sample_deviation():
    summary = summarize(SCORES, LABEL, NAMES)
    assert list(summary) == list(NAMES)
    for name, values in summary.items():
        assert values.keys() == {"mean", "sd", "seeds"}
        expected = [naive(score, LABEL, name) for score in SCORES]
        assert values["seeds"] == pytest.approx(expected, abs=1e-12)
        assert values["mean"] == pytest.approx(statistics.fmean(expected), abs=1e-12)
        assert values["sd"] == pytest.approx(statistics.stdev(expected), abs=1e-12)


def test_one_seed_has_no_deviation_and_an_undefined_metric_of_one_seed_no_mean():
    assert summarize(SCORES[:1], LABEL, ("mae",))["mae"] == {
        "mean": pytest.approx(0.3875),
        "sd": None,
        "seeds": [pytest.approx(0.3875)],
    }
    scores = np.stack([SCORES[0], np.ones_like(LABEL)])
    with pytest.warns(RuntimeWarning, match="corr is undefined"):
        corr = summarize(scores, LABEL, ("corr",))["corr"]
    assert corr["seeds"][0] == pytest.approx(naive(SCORES[0], LABEL, "corr"))
    assert math.isnan(corr["seeds"][1]) and math.isnan(corr["mean"]) and math.isnan(corr["sd"])


# --- intervals ---


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_summary_has_the_interval_of_the_mean_of_all_seeds(seeds):
    scores = SCORES[:seeds]
    summary = summarize(scores, LABEL, NAMES, measure.summarize_with_intervals)
    task = task_of(LABEL, *NAMES)
    expected = bootstrap(scores, LABEL, {n: TABLE[n].metric for n in task.reported})
    for name in NAMES:  # how samples are drawn: test_tasks.py
        assert summary[name].pop("ci95") == list(expected[name])
    assert summary == summarize(scores, LABEL, NAMES)


# --- the report ---


@pytest.fixture(scope="module")
def report() -> dict:
    valid = SCORES[:, ::-1] * 0.5
    train = np.array([-1.0, 0.4, 0.4, 2.0])
    return measure.report(
        {"valid": valid[..., None], "test": SCORES[..., None]},
        {"valid": -LABEL[:, None], "test": LABEL[:, None]},
        train[:, None],
        task_of(train),
        Intervals(9, "video", True, (0.5,), (None,)),
    )


def test_a_report_has_the_documented_entries_each_of_its_own_split(report):
    assert list(report) == ["valid", "test", "test_ensemble", "floors", "calibration"]
    for part in ("valid", "test", "test_ensemble"):
        assert list(report[part]) == list(SENTIMENT)
    for part, more in (("valid", ()), ("test", ("ci95",))):
        for values in report[part].values():
            assert values.keys() == {"mean", "sd", "seeds", *more}
    for name in NAMES:
        expected = [naive(score[::-1] * 0.5, -LABEL, name) for score in SCORES]
        assert report["valid"][name]["seeds"] == pytest.approx(expected)
        expected = [naive(score, LABEL, name) for score in SCORES]
        assert report["test"][name]["seeds"] == pytest.approx(expected)


def test_the_ensemble_is_the_metric_of_the_mean_score_and_not_the_mean_metric(report):
    mean_score = (SCORES[0] + SCORES[1]) / 2
    for name in NAMES:
        assert report["test_ensemble"][name] == pytest.approx(naive(mean_score, LABEL, name))
    # The mean score is wrong by .9 .2 .1 .05 .15 .4 .1 .1 = 2.
    assert report["test_ensemble"]["mae"] == pytest.approx(0.25)
    assert report["test"]["mae"]["mean"] == pytest.approx(0.475)
    assert report["calibration"]["test"] == {"coverage": [7 / 8], "width": [pytest.approx(1)]}
