"""Metrics against numbers worked out by hand, scipy, scikit-learn and closed forms."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from msajax.metrics import intervals, measures
from msajax.metrics.table import SENTIMENT, TABLE, reported_by
from msajax.results import measure
from msajax.tasks import make_task

# Half values, ties, a label on zero, a prediction outside [-3, 3].
HAND_PREDICTION = [2.5, -0.5, 0.5, -0.5, -3.7, 0.0, 2.2, 1.4]
HAND_LABEL = [2.0, 0.0, 1.0, -1.5, -3.0, 0.5, 3.0, 2.6]
# Sums over the eight samples: p 1.9, y 4.6, p² 27.49, y² 32.26, py 27.59, |p-y| 5.7, (p-y)² 4.57.
HAND_VALUES = {
    "mae": 5.7 / 8,
    "corr": (27.59 - 1.9 * 4.6 / 8) / math.sqrt((27.49 - 1.9**2 / 8) * (32.26 - 4.6**2 / 8)),
    # Rounded to +-3: p 2 0 0 0 -3 0 2 1, y 2 0 1 -2 -3 0 3 3.
    "acc7": 4 / 8,
    "acc5": 5 / 8,
    "acc3": 6 / 8,
    # Positive: 4 hits, 5 true, 4 predicted. Negative: 2 hits, 2 true, 3 predicted.
    "acc2_nonzero": 6 / 7,
    "f1_nonzero": (5 * 8 / 9 + 2 * 4 / 5) / 7,
    # Non-negative: 5 hits, 6 true, 5 predicted. Negative: 2 hits, 2 true, 3 predicted.
    "acc2_has0": 7 / 8,
    "f1_has0": (6 * 10 / 11 + 2 * 4 / 5) / 8,
    "mse": 4.57 / 8,
    "rmse": math.sqrt(4.57 / 8),
    "r2": 1 - 4.57 / (32.26 - 4.6**2 / 8),
    # Ranks: p 8 2.5 5 2.5 1 4 7 6, y 6 3 5 2 1 4 8 7.
    "spearman": (200.5 - 162) / math.sqrt((203.5 - 162) * (204 - 162)),
    "ccc": 2
    * (27.59 / 8 - 1.9 * 4.6 / 64)
    / (27.49 / 8 - (1.9 / 8) ** 2 + 32.26 / 8 - (4.6 / 8) ** 2 + ((1.9 - 4.6) / 8) ** 2),
}
EXACT = {"acc7", "acc5", "acc3", "acc2_nonzero", "acc2_has0"}
CONTINUOUS = tuple(reported_by("scores"))
OF_CLASSES = (*reported_by("classes"), *reported_by("tokens"))
# Every class of half value on both sides, so that no random case below is undefined.
ANCHORS = [-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.0]


def close(value):
    return pytest.approx(value, rel=1e-12, abs=1e-12)


def task_of(names):
    """The task of one score a sample, with some of its metrics."""
    task = make_task("regression", ("score",), np.zeros((1, 1)))
    return dataclasses.replace(task, reported={name: task.reported[name] for name in names})


def column(values):
    return np.asarray(values, float)[:, None]


def compute(prediction, label, names=SENTIMENT):
    return task_of(names).compute(column(prediction), column(label))


def interval(scores, label, names, resamples=1000, seed=0):
    chosen = {name: TABLE[name].metric for name in names}
    return intervals.bootstrap(np.asarray(scores, float), label, chosen, resamples, seed)


def floors(train, label, names):
    return task_of(names).floors(column(train), column(label))


def random_case(seed):
    """Prediction and label of one length: by turns halves full of ties, MOSI-like, plain floats."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 120))
    label, noise = rng.uniform(-3, 3, n), rng.normal(size=n)
    if seed % 3 == 0:
        label = np.round(2 * label) / 2
        prediction = np.round(2 * (label + 2 * noise)) / 2
    elif seed % 3 == 1:
        label = np.round(5 * label) / 5 * (rng.uniform(size=n) < 0.8)
        prediction = (label + noise).astype(np.float32)
    else:
        prediction = 3 * noise
    prediction = np.concatenate([rng.permutation(ANCHORS), prediction])
    return prediction, np.concatenate([rng.permutation(ANCHORS), label])


def independent(p, y):
    """The table of metrics, by other people's code and Python's own round."""

    def rounded(values, limit):
        return [round(min(max(float(value), -limit), limit)) for value in values]

    def accuracy(limit):
        hits = [a == b for a, b in zip(rounded(p, limit), rounded(y, limit), strict=True)]
        return sum(hits) / len(hits)

    def f1(true, predicted):
        return sklearn.metrics.f1_score(true, predicted, average="weighted", zero_division=0)

    p_kept, y_kept = p[y != 0] > 0, y[y != 0] > 0
    covariance = np.cov(p, y, ddof=0)
    return {
        "mae": sklearn.metrics.mean_absolute_error(y, p),
        "corr": scipy.stats.pearsonr(p, y).statistic,
        "acc7": accuracy(3),
        "acc5": accuracy(2),
        "acc3": accuracy(1),
        "acc2_nonzero": sklearn.metrics.accuracy_score(y_kept, p_kept),
        "f1_nonzero": f1(y_kept, p_kept),
        "acc2_has0": sklearn.metrics.accuracy_score(y >= 0, p >= 0),
        "f1_has0": f1(y >= 0, p >= 0),
        "mse": sklearn.metrics.mean_squared_error(y, p),
        "rmse": sklearn.metrics.root_mean_squared_error(y, p),
        "r2": sklearn.metrics.r2_score(y, p),
        "spearman": scipy.stats.spearmanr(p, y).statistic,
        "ccc": 2 * covariance[0, 1] / (np.trace(covariance) + (p.mean() - y.mean()) ** 2),
    }


def undefined(prediction, label, names=SENTIMENT):
    """The names that `compute` leaves undefined; checks one fitting warning for each of them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = compute(prediction, label, names)
    missing = [name for name in names if math.isnan(result[name])]
    assert [str(warning.message).split()[0] for warning in caught] == missing
    for warning in caught:
        assert warning.category is RuntimeWarning
        assert warning.filename == __file__
    return set(missing)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([-3.0, 0.0, 3.0], SENTIMENT),
        ([0.2], SENTIMENT),
        ([-1.0, 3.0001], CONTINUOUS),
        ([-3.0001, 1.0], CONTINUOUS),
    ],
)
def test_labels_within_three_get_the_sentiment_metrics(labels, names):
    assert SENTIMENT == tuple(HAND_VALUES)
    assert CONTINUOUS == ("mae", "corr", "mse", "rmse", "r2", "spearman", "ccc")
    assert tuple(make_task("regression", ("score",), column(labels)).reported) == names


def test_values_worked_out_by_hand_are_plain_floats_in_the_order_asked():
    for names in (SENTIMENT, ("ccc", "acc2_has0", "mae")):
        result = compute(HAND_PREDICTION, HAND_LABEL, names)
        assert tuple(result) == names
        for name, value in result.items():
            assert type(value) is float
            assert value == (HAND_VALUES[name] if name in EXACT else close(HAND_VALUES[name])), name


@pytest.mark.parametrize("seed", range(15))
def test_values_agree_with_scipy_and_sklearn(seed):
    p, y = random_case(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = compute(p, y)
    theirs = independent(np.asarray(p, np.float64), y)
    for name, value in ours.items():
        assert value == (theirs[name] if name in EXACT else close(theirs[name])), name


ROUNDED = {
    "acc7": {0.5: 0, -0.5: 0, 1.5: 2, -1.5: -2, 2.5: 2, -2.5: -2, 9.0: 3, -3.6: -3},
    "acc5": {0.5: 0, 2.5: 2, -3.0: -2},
    "acc3": {0.5: 0, -0.5: 0, 1.5: 1, -0.51: -1},
}


def test_accuracies_clip_then_round_half_to_even_on_both_sides():
    for (name, cases), limit in zip(ROUNDED.items(), (3, 2, 1), strict=True):
        for score, rounded in cases.items():
            for other in range(-3, 4):
                expected = {name: float(np.clip(other, -limit, limit) == rounded)}
                assert compute([score], [other], (name,)) == expected, (score, other)
                assert compute([other], [score], (name,)) == expected, (score, other)


def test_zero_is_non_negative_with_zeros_and_without_them_negative_or_dropped():
    names = ("acc2_has0", "acc2_nonzero")
    for zero in (0.0, -0.0):
        result = compute([zero, zero, zero], [1.0, 2.0, -1.0], names)
        assert result == {"acc2_has0": 2 / 3, "acc2_nonzero": 1 / 3}
    result = compute([1.0, -1.0, -1.0, -1.0], [0.0, -0.0, 0.0, -2.0], names)
    assert result == {"acc2_has0": 2 / 4, "acc2_nonzero": 1.0}


def test_f1_is_weighted_by_true_counts_and_zero_over_zero_is_zero():
    for prediction, label, expected in (
        ([1, 1], [1, -1], (2 / 3 + 0) / 2),  # a class never predicted has F1 0
        ([1, -1, 1], [1, 2, 3], 4 / 5),  # a class that is only predicted weighs nothing
        ([-1, -1], [1, 2], 0),
        ([1, 1, 1, -1], [1, 1, -1, -1], (2 * 4 / 5 + 2 * 2 / 3) / 4),
    ):
        result = compute(prediction, label, ("f1_nonzero", "f1_has0"))
        assert result == {"f1_nonzero": close(expected), "f1_has0": close(expected)}


def test_no_rounding_error_takes_a_correlation_out_of_plus_minus_one():
    rng = np.random.default_rng(1)
    for _ in range(100):
        y = rng.normal(size=50)
        for slope in (0.3, -0.3):
            corr = compute(slope * y + 0.1, y, ("corr",))["corr"]
            assert abs(corr) <= 1.0
            assert corr == close(np.sign(slope))
    in_the_last_bit = 0.1 + np.spacing(0.1) * np.arange(5)
    assert compute(in_the_last_bit, np.arange(5) - 2, ("corr",))["corr"] == close(1.0)


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 3.0, 1e200])
def test_corr_and_spearman_ignore_a_scale_however_extreme(scale):
    y = np.asarray(HAND_LABEL)
    names = ("corr", "spearman")
    plain = compute(HAND_PREDICTION, y, names)
    scaled = compute(-scale * np.asarray(HAND_PREDICTION), y, names)
    assert scaled == {name: close(-value) for name, value in plain.items()}


def test_a_constant_prediction_leaves_only_the_correlations_undefined():
    for n in (2, 3, 10, 686, 4659):
        y = np.linspace(-3, 2.9, n)
        for constant in (0.0, 0.1, 1 / 3, -2.7, 1e-30, 1e17 / 3):
            for kind in (np.float64, np.float32):
                assert undefined(np.full(n, constant, kind), y) == {"corr", "spearman"}


def test_a_constant_label_leaves_correlations_and_r2_undefined_and_ccc_zero():
    for constant in (0.1, -2.7, 1 / 3):
        p, y = np.linspace(-2, 2, 686), np.full(686, constant)
        assert undefined(p, y) == {"corr", "spearman", "r2"}
        assert compute(p, y, ("ccc",)) == compute(y, y + 0.1, ("ccc",)) == {"ccc": 0.0}
        assert undefined(y, y, ("ccc",)) == {"ccc"}  # both are the same constant
    assert undefined([1.0], [1.0]) == {"corr", "r2", "spearman", "ccc"}


@pytest.mark.parametrize(
    ("name", "prediction", "label", "reason"),
    [
        ("corr", [1, 1], [1, 2], "the prediction or the label is constant"),
        ("spearman", [1, 2], [2, 2], "the prediction or the label is constant"),
        ("r2", [1, 2], [2, 2], "the label is constant"),
        ("ccc", [2, 2], [2, 2], "prediction and label are the same constant"),
        ("acc2_nonzero", [1, 2], [0, 0], "every label is 0"),
        ("f1_nonzero", [1, 2], [0, 0], "every label is 0"),
    ],
)
def test_the_warning_of_an_undefined_metric_says_why(name, prediction, label, reason):
    with pytest.warns(RuntimeWarning, match=rf"^{name} is undefined .*{reason}") as caught:
        result = compute(prediction, label, (name,))
    assert math.isnan(result[name])
    assert len(caught) == 1


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_weights_count_samples_as_often_as_if_they_were_repeated(seed, grouped):
    rng = np.random.default_rng(seed)
    y = np.round(rng.uniform(-3, 3, 23) * (1 + seed)) / (1 + seed)
    p = np.round((y + rng.normal(size=(2, 23))) * 4) / 4
    group_of = rng.permutation(np.arange(23) % 7) if grouped else None
    weights = rng.integers(0, 3, (5, 7 if grouped else 23)).astype(float)
    counts = (weights[:, group_of] if grouped else weights).astype(int)
    of_scores = {name: row.metric for name, row in TABLE.items() if name not in OF_CLASSES}
    for name, metric in of_scores.items():
        found = metric.weighted(p, y, weights, group_of)
        assert found.shape == (2, 5)
        for i, of_seed in enumerate(p):
            for j, count in enumerate(counts):
                with np.errstate(all="ignore"):
                    expected = metric.value(np.repeat(of_seed, count), np.repeat(y, count))
                assert found[i, j] == pytest.approx(float(expected), rel=1e-11, abs=1e-12), name


def test_ranks_of_many_groups_are_those_of_few(monkeypatch):
    rng = np.random.default_rng(0)
    y, p = rng.integers(-3, 4, 40).astype(float), rng.normal(size=(2, 40))
    group_of, weights = np.arange(40) % 20, rng.integers(0, 3, (300, 20)).astype(float)
    few = measures.spearman.weighted(p, y, weights, group_of)
    monkeypatch.setattr(measures, "_FEW", 10)
    monkeypatch.setattr(measures, "_SMALL", 1000)
    np.testing.assert_allclose(
        measures.spearman.weighted(p, y, weights, group_of), few, rtol=1e-12, atol=1e-14
    )


def test_a_metric_undefined_in_every_resample_has_a_nan_interval_and_no_warning():
    scores = np.stack([np.full(6, 0.1), np.arange(6.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = interval(scores, np.zeros(6), ("corr", "acc2_nonzero", "mae"), resamples=20)
    assert np.isnan([*result["corr"], *result["acc2_nonzero"]]).all()
    assert np.isfinite(result["mae"]).all()


def test_the_interval_is_a_function_of_scores_label_and_seed_and_of_resamples():
    rng = np.random.default_rng(0)
    label, scores = rng.normal(size=30), rng.normal(size=(2, 30))
    first = interval(scores, label, ("mae", "corr"), resamples=50)
    np.random.seed(1)
    assert interval(scores, label, ("corr", "mae"), resamples=50) == first
    assert interval(scores, label, ("mae",), resamples=50, seed=1)["mae"] != first["mae"]
    with pytest.raises(ValueError, match="got 0"):
        interval(scores, label, ("mae",), resamples=0)


def test_floors_worked_out_by_hand():
    result = floors([9.0, -1.0, 0.5, 1.5], HAND_LABEL, SENTIMENT)
    assert set(result) == {"constant_0", "train_median", "majority"}
    assert result["constant_0"] == {"mae": close(13.6 / 8)}
    # The median of four is the mean of the middle two: 1.
    assert result["train_median"] == {"mae": close((1 + 1 + 0 + 2.5 + 4 + 0.5 + 2 + 1.6) / 8)}
    assert result["majority"] == {
        "acc7": 2 / 8,  # 0 and 0.5; 3.0 and 2.6
        "acc5": 3 / 8,  # 2.0, 3.0 and 2.6
        "acc3": 4 / 8,  # those and 1.0
        "acc2_nonzero": 5 / 7,
        "acc2_has0": 6 / 8,
    }


@pytest.mark.parametrize("seed", range(12))
def test_the_majority_is_what_the_best_constant_reaches(seed):
    _, y = random_case(seed)
    y = np.concatenate([y, np.full(seed, -0.3)])  # -0.0 once rounded: the class of 0.0
    majority = floors(y, y, SENTIMENT)["majority"]
    for name, share in majority.items():
        reached = [compute(np.full(y.size, c), y, (name,))[name] for c in range(-3, 4)]
        assert share == max(reached), name
    assert set(majority) == EXACT


def test_the_majority_of_no_samples_is_nan_with_a_warning():
    with pytest.warns(RuntimeWarning, match="acc2_nonzero is undefined .*every label is 0"):
        majority = floors([1.0], [0.0, 0.0], ("acc2_nonzero", "acc2_has0"))["majority"]
    assert math.isnan(majority["acc2_nonzero"])
    assert majority["acc2_has0"] == 1.0


def test_one_seed_has_no_deviation_and_an_undefined_metric_of_one_seed_no_mean():
    label, scores = column(HAND_LABEL), np.array([HAND_PREDICTION, np.ones(8)])[..., None]
    found = measure.summarize(scores[:1], label, task_of(("mae",)))
    assert found == {"mae": {"mean": close(5.7 / 8), "sd": None, "seeds": [close(5.7 / 8)]}}
    with pytest.warns(RuntimeWarning, match="corr is undefined"):
        corr = measure.summarize(scores, label, task_of(("corr",)))["corr"]
    assert corr["seeds"][0] == close(HAND_VALUES["corr"])
    assert np.isnan([corr["seeds"][1], corr["mean"], corr["sd"]]).all()
