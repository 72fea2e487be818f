"""Metrics as some papers print them, against scikit-learn, scipy and numbers by hand."""

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from test_metrics import random_case

from msajax.errors import UserError
from msajax.metrics.table import TABLE
from msajax.tasks import make_task
from msajax.tasks.conventions import by_convention


def measured(names: str, p, y, kind="regression", outputs=("label",)) -> dict[str, float]:
    """What a file with these scores and labels gets."""
    p, y = np.asarray(p, float), np.asarray(y, float)
    p, y = (x.reshape(len(y), -1) for x in (p, y))
    return by_convention(names, make_task(kind, outputs, y), y).compute(p, y)


def f1(true, predicted):
    return sklearn.metrics.f1_score(true, predicted, average="weighted", zero_division=0)


def same(expected: dict) -> dict:
    return {name: pytest.approx(value, rel=1e-12, abs=1e-14) for name, value in expected.items()}


def class_between(value: float, edges) -> int:
    return sum(value > edge for edge in edges)


@pytest.mark.parametrize("seed", range(10))
def test_sims_agrees_with_scikit_learn(seed):
    p, y = random_case(seed)
    y = np.round(y * 2) / 5  # multiples of 0.2, some of them outside of [-1, 1]
    p = p / 2
    clipped_p, clipped_y = np.clip(p, -1, 1), np.clip(y, -1, 1)
    classes = {
        k: [[class_between(v, edges) for v in x] for x in (clipped_y, clipped_p)]
        for k, edges in {2: [0], 3: [-0.1, 0.1], 5: [-0.7, -0.1, 0.1, 0.7]}.items()
    }
    assert measured("sims", p, y) == same(
        {
            "sims_mae": sklearn.metrics.mean_absolute_error(clipped_y, clipped_p),
            "sims_corr": scipy.stats.pearsonr(clipped_p, clipped_y).statistic,
            "sims_acc2": sklearn.metrics.accuracy_score(*classes[2]),
            "sims_f1": f1(*classes[2]),
            "sims_acc3": sklearn.metrics.accuracy_score(*classes[3]),
            "sims_acc5": sklearn.metrics.accuracy_score(*classes[5]),
        }
    )


EDGES_OF_SIMS = {  # a score, and its class of two, of three and of five
    **{-9.0: (0, 0, 0), -1.0: (0, 0, 0), -0.7: (0, 0, 0), -0.69: (0, 0, 1), -0.1: (0, 0, 1)},
    **{-0.09: (0, 1, 2), -0.0: (0, 1, 2), 1e-9: (1, 1, 2), 0.1: (1, 1, 2), 0.11: (1, 2, 3)},
    **{0.7: (1, 2, 3), 0.71: (1, 2, 4), 1.0: (1, 2, 4), 3.0: (1, 2, 4)},
}


def test_an_edge_of_sims_belongs_to_the_class_below():
    middles = {2: (-0.5, 0.5), 3: (-0.5, 0, 0.5), 5: (-1, -0.4, 0, 0.4, 1)}
    for score, classes in EDGES_OF_SIMS.items():
        for count, expected in zip(middles, classes, strict=True):
            for one_class, middle in enumerate(middles[count]):
                found = measured("sims", [score, -1, 1], [middle, -1, 1])[f"sims_acc{count}"]
                assert found == pytest.approx((2 + (one_class == expected)) / 3), score


@pytest.mark.parametrize("seed", range(3))
def test_mmmo_compares_with_three_and_a_half(seed):
    rng = np.random.default_rng(seed)
    y = np.concatenate([[3.5, 1, 5], rng.integers(2, 11, 40) / 2])
    p = np.concatenate([[3.5, 3.5, 3.6], y[3:] + rng.normal(size=40)])
    assert measured("mmmo", p, y) == same(
        {
            "mae": sklearn.metrics.mean_absolute_error(y, p),
            "corr": scipy.stats.pearsonr(p, y).statistic,
            "mmmo_acc2": sklearn.metrics.accuracy_score(y > 3.5, p > 3.5),
            "mmmo_f1": f1(y > 3.5, p > 3.5),
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_youtube_takes_the_most_probable_of_three_classes(seed):
    rng = np.random.default_rng(seed)
    p, y = rng.dirichlet(np.ones(3), 30), rng.integers(0, 3, 30)
    predicted = p.argmax(axis=1)
    expected = same(
        {
            "accuracy": sklearn.metrics.accuracy_score(y, predicted),
            "f1_weighted": f1(y, predicted),
        }
    )
    assert measured("youtube", p, y, "classification", ("a", "b", "c")) == expected
    assert measured("youtube", predicted, y) == expected


@pytest.mark.parametrize("outputs", [16, 17])
def test_pom_means_leave_out_the_sentiment_among_seventeen(outputs):
    rng = np.random.default_rng(outputs)
    y = rng.integers(1, 8, (20, outputs)).astype(float)
    p = y + rng.normal(size=y.shape)
    p[0] = 2.5  # half to even: 2
    y[0, ::2], y[0, 1::2] = 2, 3
    names = tuple(f"t{k}" for k in range(outputs))
    traits = [k for k in range(outputs) if outputs == 16 or k != 14]
    each = {
        "pom_mae": [np.abs(p[:, k] - y[:, k]).mean() for k in range(outputs)],
        "pom_corr": [scipy.stats.pearsonr(p[:, k], y[:, k]).statistic for k in range(outputs)],
        "pom_acc": [
            np.mean([round(a) == round(b) for a, b in zip(p[:, k], y[:, k], strict=True)])
            for k in range(outputs)
        ],
    }
    expected = {name: np.mean([values[k] for k in traits]) for name, values in each.items()}
    expected |= {
        f"{name}_t{k}": value for name, values in each.items() for k, value in enumerate(values)
    }
    assert measured("pom", p, y, outputs=names) == same(expected)


@pytest.mark.parametrize("seed", range(10))
def test_what_leaves_out_zeros_swaps_arguments_or_rounds_away(seed):
    p, y = random_case(seed)
    p, kept = np.asarray(p, np.float64), y != 0
    expected = {
        "mae_nonzero": sklearn.metrics.mean_absolute_error(y[kept], p[kept]),
        "corr_nonzero": scipy.stats.pearsonr(p[kept], y[kept]).statistic,
        "f1_nonzero_by_prediction": f1(p[kept] > 0, y[kept] > 0),
        "f1_has0_by_prediction": f1(p >= 0, y >= 0),
    }
    assert measured("nonzero_mae,f1_by_prediction", p, y) == same(expected)

    def away(value: float) -> int:
        value = min(max(float(value), -3), 3)
        return int(math.copysign(math.floor(abs(value)) + (abs(value) % 1 >= 0.5), value))

    hits = [away(a) == away(b) for a, b in zip(p, y, strict=True)]
    assert measured("acc7_away_from_zero", p, y) == same({"acc7_away_from_zero": np.mean(hits)})


def test_halves_go_away_from_zero_and_the_number_below_a_half_does_not():
    scores = [0.5, -0.5, 1.5, 2.5, -2.5, np.nextafter(0.5, 0), 9.0, -0.0]
    whole = [1, -1, 2, 3, -3, 0, 3, 0]
    for score, expected in zip(scores, whole, strict=True):
        for other in range(-3, 4):
            found = measured("acc7_away_from_zero", [score], [other])
            assert found == {"acc7_away_from_zero": float(other == expected)}, (score, other)


def test_empty_subsets_and_constants_are_nan_with_a_warning_each():
    zeros, spread = np.zeros(4), np.arange(4) - 1.5
    for names, p, y, missing in (
        ("nonzero_mae", spread, zeros, ["mae_nonzero", "corr_nonzero"]),
        ("nonzero_mae", [1, 2, 3, 3], [0, 0, 1, 2], ["corr_nonzero"]),
        ("f1_by_prediction", spread, zeros, ["f1_nonzero_by_prediction"]),
        ("sims", np.full(4, 7.0), spread, ["sims_corr"]),
        ("sims", [2.0, 3, 4, 5], spread, ["sims_corr"]),  # constant once it is clipped
        ("mmmo", np.full(4, 0.1), spread + 3, ["corr"]),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = measured(names, p, y)
        assert [name for name, value in found.items() if math.isnan(value)] == missing, names
        assert [str(w.message).split()[0] for w in caught] == missing
        assert all(w.category is RuntimeWarning for w in caught)


def test_all_takes_what_suits_the_labels():
    def names(y, kind="regression", outputs=("label",)) -> set[str]:
        y = np.asarray(y, float).reshape(len(y), -1)
        task = make_task(kind, outputs, y)
        return set(by_convention("all", task, y).reported) - set(task.reported)

    usual = set(by_convention("nonzero_mae,acc7_away_from_zero,f1_by_prediction",
                              make_task("regression", ("x",), np.ones((1, 1))),
                              np.ones((1, 1))).reported)  # fmt: skip
    sims, mmmo = ({name for name in TABLE if name.startswith(of)} for of in ("sims", "mmmo"))
    assert names([-3, 0, 2.5]) == usual
    assert names([-1, 0.2, 1]) == usual | sims
    assert names([1.0, 4.5]) == mmmo
    assert names([0.0, 9.0]) == set()
    assert names([0, 1], "classification", ("a", "b", "c")) == set()


def test_a_convention_that_does_not_fit_is_refused():
    for names, kind, outputs, message in (
        ("simms", "regression", "x", "'simms' is none of sentiment, sims, .*, or all"),
        ("sims,", "regression", "x", "'' is none of"),
        ("sims", "regression", "xy", r"needs one score a sample; these are 2 score\(s\)"),
        ("pom", "regression", "x", "needs 16 or 17 scores a sample"),
        ("youtube", "classification", "ab", "needs three classes.*; these are 2 classes"),
        ("youtube", "regression", "x", "needs three classes"),
    ):
        y = np.full((3, len(outputs) if kind == "regression" else 1), 0.5)
        with pytest.raises(UserError, match=message):
            by_convention(names, make_task(kind, tuple(outputs), y), y)
