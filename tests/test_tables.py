"""Results in words: units, directions, legends, and how they compare with trivial floors."""

import io
import math
import re

import numpy as np
import pytest
from rich.console import Console

from msajax.metrics.table import SENTIMENT, TABLE, base_of
from msajax.results import legend
from msajax.results.findings import noise_of_seeds
from msajax.results.tables import against_floors, print_results, print_summary
from msajax.studies.sweep.sweep import print_sweep
from msajax.tasks import TASKS, make_task

POM = (  # as long as names get
    *("confident", "passionate", "dominant", "credible", "entertaining", "reserved", "trusting"),
    *("relaxed", "outgoing", "thorough", "nervous", "persuasive", "humorous", "voice_pleasant"),
    *("vivid", "expertise", "self-presentation"),
)


def values(mean: float | None, sd: float | None = 0.01, ci95=(0.2, 0.3), seeds: int = 5) -> dict:
    return {"mean": mean, "sd": sd, "ci95": list(ci95), "seeds": [mean] * seeds}


def results_of(test: dict[str, dict], floors: dict[str, dict]) -> dict:
    """As in results.json, with validation as good as test."""
    seeds = len(next(iter(test.values()))["seeds"])
    return {
        "model": {"name": "sequence_level", "parameters": 724035},
        "corpus": {"sizes": {"train": 9, "valid": 1871, "test": 4659}},
        "seeds": list(range(seeds)),
        "best_epoch": [7] * seeds,
        "valid": test,
        "test": test,
        "test_ensemble": {name: of["mean"] for name, of in test.items()},
        "floors": floors,
    }


def printed(results: dict, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_results(results, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    return text


def row(text: str, metric: str) -> list[str]:
    """What stands in a metric's row, behind its name."""
    (line,) = [line for line in text.splitlines() if re.match(f"{metric} [↓↑]", line)]
    cell = r"[↓↑]|\[.*?\](?: %)?|[\d.]+(?: ± [\d.]+)?(?: %)?(?: \(\w\))?|-"
    return re.findall(cell, line.partition(" ")[2])


def mae(mean: float, sd: float | None = 0.01, ci95=(0.2, 0.3), **floors: float) -> list[str]:
    """What is said of a mean absolute error beside floors."""
    return against_floors(
        results_of({"mae": values(mean, sd, ci95)}, {k: {"mae": v} for k, v in floors.items()})
    )


# --- against the floors ---


@pytest.mark.parametrize("mean", [1.235, 1.181])
def test_a_result_that_does_not_beat_the_hardest_floor_says_so(mean):
    (said,) = mae(mean, ci95=(1.1, 1.3), constant_0=3.594, train_median=1.181)
    assert said == (
        f"Test mae {mean:.3f} does not beat the 1.181 of the training median: by this measure, an "
        "answer that never changes is at least as good as the model."
    )


def test_a_result_that_beats_it_by_no_more_than_chance_says_why():
    beats = "Test mae 1.150 is better than the 1.181 of the constant 0, but not distinguishable"
    floors = {"constant_0": 1.181, "train_median": 1.3}
    assert mae(1.15, 0.001, (1.1, 1.2), **floors) == [
        f"{beats} from it: the 95 % interval [1.100, 1.200] includes it."
    ]
    assert mae(1.15, 0.04, (1.1, 1.16), **floors) == [f"{beats} from it: the seeds' sd is 0.040."]
    assert mae(1.15, 0.04, (1.1, 1.2), **floors) == [
        f"{beats} from it: the 95 % interval [1.100, 1.200] includes it and the seeds' sd is 0.040."
    ]
    clear = ["Test mae 1.150 beats the 1.181 of the constant 0."]
    assert mae(1.15, 0.03, (1.1, 1.16), **floors) == clear
    assert mae(1.15, None, (1.1, 1.16), **floors) == clear  # a single seed has no spread


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf])
def test_nothing_is_said_of_a_floor_that_is_no_number(unknown):
    assert mae(1.2, train_median=unknown) == []
    assert mae(1.2, train_median=unknown, constant_0=1.0)[0].startswith("Test mae 1.200 does not")


def test_larger_is_better_where_it_is_and_the_other_metrics_share_a_sentence():
    test = {
        "mae": values(0.9, 0.01, (0.8, 0.95)),
        "acc7": values(0.2, 0.01, (0.15, 0.25)),
        "acc5": values(0.3, 0.01, (0.25, 0.35)),
        "acc2_has0": values(0.6, 0.001, (0.5, 0.7)),
        "acc2_nonzero": values(0.7, 0.001, (0.65, 0.75)),
        "f1_has0": values(0.1),  # no floor
    }
    majority = {"acc7": 0.25, "acc5": 0.3, "acc2_has0": 0.55, "acc2_nonzero": 0.55}
    floors = {"train_median": {"mae": 1.0}, "majority": majority}
    assert against_floors(results_of(test, floors)) == [
        "Test mae 0.900 beats the 1.000 of the training median.",
        "No better than the floor on test: acc7 20.0 % (floor 25.0 %), acc5 30.0 % (floor 30.0 %).",
        "Better than the floor on test, but not distinguishable from it (it lies in the interval "
        "or within the seeds' sd): acc2_has0 60.0 % (floor 55.0 %).",
    ]


# --- the tables ---


def test_a_table_of_a_score_by_hand():
    test = {name: values(0.744, 0.007, (0.7094, 0.7781)) for name in SENTIMENT}
    test["corr"] = values(None, None, (None, None))
    floors = {"train_median": {"mae": 1.5}, "majority": {"acc7": 0.25, "acc3": None}}
    text = printed(results_of(test, floors))
    assert row(text, "mae") == [
        *("↓", "0.744 ± 0.007", "0.744 ± 0.007", "[0.709, 0.778]", "0.744", "1.500 (m)")
    ]
    share = ("74.4 ± 0.7 %", "74.4 ± 0.7 %", "[70.9, 77.8] %", "74.4 %")
    assert row(text, "acc7") == ["↑", *share, "25.0 % (c)"]
    assert row(text, "acc3") == row(text, "f1_has0") == ["↑", *share]
    assert row(text, "corr") == ["↑", "-", "-", "[-, -]", "-"]
    said = " ".join(text.split())
    for words in (
        "5 random seeds, best epochs 7, 7, 7, 7, 7; 1871 samples to validate, 4659 to test",
        "± standard deviation over the 5 random seeds",
        "95 % interval of the mean over seeds, by bootstrap over samples",
        "ensemble metrics of the score averaged over seeds",
        "(m) always the median of the training labels; (c) always the most frequent class",
        "acc2_has0, f1_has0 negative against zero or positive", "- undefined",
    ):
        assert words in said, words
    assert "(0)" not in said and "(s)" not in said  # floors that are not in the table


def test_one_seed_has_no_spread_and_no_ensemble():
    test = {"accuracy": values(0.5, None, (0.4, 0.6), 1)}
    test["cross_entropy"] = values(1.2, None, seeds=1)
    floors = {"majority": {"accuracy": 0.4}, "train_shares": {"cross_entropy": 1.1}}
    text = printed(results_of(test, floors))
    assert row(text, "accuracy") == ["↑", "50.0 %", "50.0 %", "[40.0, 60.0] %", "40.0 % (c)"]
    assert "±" not in text and "ensemble" not in text and "F1" not in text
    said = " ".join(text.split())
    assert "random seed 0, best epoch 7;" in said
    assert "of one random seed no spread is known" in said
    assert "does not beat the 1.100 of the training shares" in said


@pytest.mark.parametrize("width", [80, 100])
def test_columns_without_room_stand_below_and_no_name_is_cut(width):
    """Perplexities of a model that has learned nothing are wide."""
    names = make_task("next_token", ("text",), None).reported
    test = {name: values(123456.5, 12345.25, (1e5, 2e5)) for name in names}
    text = printed(results_of(test, {"train_shares": dict.fromkeys(names, 123456.5)}), width)
    number = "123456.500 ± 12345.250"
    for name in names:
        lines = re.findall(rf"(?m)^{name} ↓ (.*)$", text)
        assert len(lines) == 2
        assert " ".join(" ".join(lines).split()) == (
            f"{number} {number} [100000.000, 200000.000] 123456.500 123456.500 (s)"
        )
    assert len(re.findall(r"(?m)^metric .*$", text)) == 2


def test_the_table_of_a_sweep_cuts_no_name():
    name = "mae_self-presentation_of_the_speaker"
    trial = {"trial": 0, "score": 0.5, "sd": 0.01, "ended": "epochs", "told_apart": None}
    trial |= {"epochs": 30, "seconds": 1e4, "settings": {"train.a_name_without_any_space": 1}}
    content = {"metric": name, "larger_is_better": False, "trials": [trial], "winner": None}
    console = Console(file=io.StringIO(), width=80)
    print_sweep(content | {"rank_correlations": {}}, console)
    text = console.file.getvalue()
    head = text.partition("─")[0].splitlines()[1:]
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    parts = re.findall(r"mae\S+|_\S+ ↓|\S+ ↓", "\n".join(head))
    assert "".join(parts) == f"{name} ↓" and "0.500 ± 0.010" in text


def test_a_summary_has_the_same_units_and_its_legend():
    metrics = {"f1_macro": values(0.5, 0.05, (0.4, 0.6)), "perplexity": values(9.0, 0.5, (8, 10))}
    console = Console(file=io.StringIO(), width=80)
    summary = {"metrics": metrics, "ensemble": {"f1_macro": 0.55, "perplexity": 8.5}}
    print_summary("[b]runs/x[/b]", summary, console)
    text = console.file.getvalue()
    assert text.startswith("[b]runs/x[/b]")
    assert row(text, "f1_macro") == ["↑", "50.0 ± 5.0 %", "[40.0, 60.0] %", "55.0 %"]
    assert row(text, "perplexity") == ["↓", "9.000 ± 0.500", "[8.000, 10.000]", "8.500"]
    assert "floor" not in text and "the plain mean over classes" in text


def test_every_metric_and_every_floor_is_explained():
    for name in TABLE:
        (line,) = legend.metric_lines([name], TASKS["regression"])
        assert name == line[0] and line[1]
    for name in POM:
        assert (base_of(f"mae_{name}"), base_of(f"corr_{name}")) == ("mae", "corr")
        assert base_of(f"pom_acc_{name}") == "pom_acc"


def test_a_task_says_what_its_metrics_and_its_floors_mean():
    """One metric alone does not tell the task; results of older versions have all of them."""
    test, floors = {"accuracy": values(0.6)}, {"majority": {"accuracy": 0.7}}
    words = {
        "classification": ("always the most frequent class", "whose most probable class is"),
        "multi_label": ("(c) of each label always the more frequent answer", "to have a label"),
    }
    for kind, (answer, meaning) in words.items():
        said = " ".join(printed(results_of(test, floors) | {"task": kind}).split())
        assert answer in said and meaning in said
    labels = np.array([[0.0, 1.0], [4.0, 0.0]])
    for kind, task in TASKS.items():
        for names in (("a", "b"), ("a", "b", "c")):
            reported = make_task(kind, names, labels).reported
            assert legend.task_of({}, reported) is task


def test_losses_fall_and_all_other_metrics_rise_whatever_they_are_reported_of():
    losses = {"mae", "mse", "rmse", "cross_entropy", "perplexity"}
    labels = np.array([[-3.0], [3.0]])
    for kind, names in (
        ("regression", ("sentiment",)),
        ("regression", POM),
        ("classification", ("a", "b")),
        ("next_token", ("text",)),
    ):
        for name, metric in make_task(kind, names, labels).reported.items():
            rises = base_of(name) not in losses
            assert metric.larger_is_better == legend.larger_is_better(name) == rises, name


def test_what_seeds_alone_may_change_follows_students_t():
    """Of 95 % of simulated pairs of runs the difference lies below the bound of the first."""
    rng = np.random.default_rng(0)
    for seeds in (2, 5):
        of_first, of_second = rng.normal(size=(2, 20_000, seeds))
        bounds = []
        for values in of_first[:3]:
            test = {"mae": {"mean": 1.0, "sd": values.std(ddof=1), "seeds": values.tolist()}}
            said = noise_of_seeds({"test": test})
            (shown,) = re.findall(r"up to about ([\d.]+) in test mae by the seeds", said)
            bounds.append(float(shown) / values.std(ddof=1))
        np.testing.assert_allclose(bounds, bounds[0], rtol=2e-3)
        differences = np.abs(of_first.mean(axis=1) - of_second.mean(axis=1))
        inside = differences <= bounds[0] * of_first.std(axis=1, ddof=1)
        assert abs(inside.mean() - 0.95) < 0.006  # 4 deviations of 20,000 draws
