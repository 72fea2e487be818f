"""The paired test against a second computation, exact small cases, and how often it cries wolf."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from msajax.comparison import statistics
from msajax.comparison.statistics import (
    DRAWS,
    Pair,
    difference_intervals,
    holm,
    interval_over_seeds,
    paired_tests,
)
from msajax.tasks import make_task

RNG = np.random.default_rng(0)
TASK = make_task("regression", ("sentiment",), np.array([[-3.0], [3.0]]))
SEGMENTS = (3, 1, 5, 2, 4, 1, 2)
VIDEOS = [f"video{v}[{i}]" for v, count in enumerate(SEGMENTS) for i in range(count)]
N, SEEDS = len(VIDEOS), 3
LABELS = RNG.uniform(-3, 3, (N, 1))
FIRST = LABELS + RNG.normal(0, 0.5, (SEEDS, N, 1))
SECOND = LABELS + RNG.normal(0, 0.9, (SEEDS, N, 1))


def paired_test(first, second, labels, ids, name):
    pair = Pair.of(first, second, labels, ids, TASK)
    return paired_tests(pair, {name: TASK.reported[name]})[name]


def naive(first, second, labels, groups, metric):
    """The difference and p, a draw and a seed at a time."""

    def difference(a, b):
        values = [[metric(of_seed[:, 0], labels[:, 0]) for of_seed in run] for run in (a, b)]
        return np.mean(values[0]) - np.mean(values[1])

    found = difference(first, second)
    generator, extreme = np.random.Generator(np.random.PCG64(0)), 0
    for _ in range(statistics.DRAWS):
        swap = generator.integers(0, 2, max(groups) + 1)[groups].astype(bool)[None, :, None]
        drawn = difference(np.where(swap, second, first), np.where(swap, first, second))
        extreme += abs(drawn) >= abs(found) - 1e-12
    return found, (1 + extreme) / (1 + statistics.DRAWS)


def mae(p, y):
    return np.abs(p - y).mean()


def corr(p, y):
    return np.corrcoef(p, y)[0, 1]


def spearman(p, y):
    return corr(scipy.stats.rankdata(p), scipy.stats.rankdata(y))  # spearmanr is far slower


BY_NAME = [("mae", mae), ("corr", corr), ("spearman", spearman)]


@pytest.mark.parametrize(("name", "metric"), BY_NAME)
def test_difference_and_p_are_those_of_the_definition(name, metric, monkeypatch):
    monkeypatch.setattr(statistics, "DRAWS", 500)
    found = paired_test(FIRST, SECOND, LABELS, VIDEOS, name)
    groups = np.unique([id_[:6] for id_ in VIDEOS], return_inverse=True)[1]
    difference, p = naive(FIRST, SECOND, LABELS, groups, metric)
    assert found.difference == pytest.approx(difference, abs=1e-12)
    assert found.p == p
    assert (found.groups, found.unit) == (7, "video")


def test_all_metrics_together_are_tested_as_each_alone():
    pair = Pair.of(FIRST, SECOND, LABELS, VIDEOS, TASK)
    together = paired_tests(pair, TASK.reported)
    assert list(together) == list(TASK.reported)
    for name, found in together.items():
        assert found == paired_test(FIRST, SECOND, LABELS, VIDEOS, name)


@pytest.mark.parametrize(("few", "many"), [(1, 3), (2, 3)])
def test_other_numbers_of_seeds_stand_for_as_many_as_both_divide(few, many, monkeypatch):
    monkeypatch.setattr(statistics, "DRAWS", 200)
    first, rows = FIRST[:few], few * many
    alike = [np.concatenate([seed[None]] * (rows // len(run))) for run in (first, SECOND)
             for seed in run]  # fmt: skip
    a, b = np.concatenate(alike[:few]), np.concatenate(alike[few:])
    for name in ("mae", "corr", "spearman"):
        found = paired_test(first, SECOND, LABELS, VIDEOS, name)
        assert found.p == paired_test(a, b, LABELS, VIDEOS, name).p
        back = paired_test(SECOND, first, LABELS, VIDEOS, name)
        assert (back.p, back.difference) == (found.p, -found.difference)
    groups = np.unique([id_[:6] for id_ in VIDEOS], return_inverse=True)[1]
    difference, p = naive(a, b, LABELS, groups, mae)
    found = paired_test(first, SECOND, LABELS, VIDEOS, "mae")
    assert (found.difference, found.p) == (pytest.approx(difference, abs=1e-12), p)


@pytest.mark.parametrize("by_video", [True, False])
@pytest.mark.parametrize(("name", "metric"), BY_NAME)
def test_intervals_of_a_difference_equal_a_loop(name, metric, by_video):
    pair = Pair.of(FIRST[:2], SECOND, LABELS, VIDEOS, TASK)
    group_of = pair.group_of if by_video else np.arange(N)
    found = difference_intervals(
        pair, {name: TASK.reported[name]}, pair.group_of if by_video else None
    )[name]
    generator, values = np.random.Generator(np.random.PCG64(0)), []
    for _ in range(1000):
        drawn = generator.integers(0, group_of.max() + 1, group_of.max() + 1)
        rows = np.concatenate([np.flatnonzero(group_of == group) for group in drawn])
        means = [
            np.mean([metric(seed[rows, 0], LABELS[rows, 0]) for seed in run])
            for run in (FIRST[:2], SECOND)
        ]
        values.append(means[0] - means[1])
    assert found == pytest.approx(np.percentile(values, (2.5, 97.5)), rel=1e-9)


def test_the_interval_over_seeds_is_that_of_welch():
    a, b = np.array([0.9, 0.95, 0.87]), np.array([0.8, 0.82, 0.85, 0.79])
    expected = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert interval_over_seeds(a, b) == pytest.approx(tuple(expected), rel=1e-9)
    assert interval_over_seeds(a[:1], b) is None
    assert interval_over_seeds(a, np.array([0.8, np.nan])) is None
    assert interval_over_seeds(np.full(2, 0.5), np.full(3, 0.25)) == (0.25, 0.25)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.2, 0.9, 0.6]) == pytest.approx([0.6, 1, 1])
    assert holm([0.04]) == [0.04] and holm([]) == []


def test_few_groups_give_the_share_of_all_exchanges():
    ids = [id_ for id_ in VIDEOS if id_ < "video3"]
    first, second, labels = (x[..., : len(ids), :] for x in (FIRST, SECOND, LABELS))
    errors = np.abs(first - labels).mean(0) - np.abs(second - labels).mean(0)
    of_video = [part.sum() for part in np.split(errors[:, 0], np.cumsum(SEGMENTS[:2]))]
    sums = [abs(np.dot(signs, of_video)) for signs in itertools.product((1, -1), repeat=3)]
    exact = Fraction(sum(s >= sums[0] - 1e-12 for s in sums), len(sums))
    found = paired_test(first, second, labels, ids, "mae")
    assert found.groups == 3
    # Five standard deviations of a share of 10,000 draws.
    assert found.p == pytest.approx(float(exact), abs=5 * 0.5 / DRAWS**0.5)


def test_samples_are_exchanged_alone_where_ids_name_no_video():
    for ids in ([str(i) for i in range(N)], [f"train{i}" for i in range(N)]):
        found = paired_test(FIRST, SECOND, LABELS, ids, "mae")
        assert (found.groups, found.unit) == (N, "sample")
    assert found.p != paired_test(FIRST, SECOND, LABELS, VIDEOS, "mae").p


def test_equal_runs_never_differ():
    same = paired_test(FIRST, FIRST, LABELS, VIDEOS, "corr")
    assert (same.difference, same.p) == (0.0, 1.0)


def test_a_clear_difference_reaches_the_smallest_p():
    ids = [str(i) for i in range(200)]
    labels = RNG.uniform(-3, 3, (200, 1))
    good, bad = (labels + RNG.normal(0, sd, (2, 200, 1)) for sd in (0.1, 2.0))
    assert paired_test(good, bad, labels, ids, "mae").p == 1 / (1 + DRAWS)


def test_runs_that_do_not_differ_are_called_different_one_time_in_twenty():
    called = 0
    for trial in range(60):
        rng = np.random.default_rng(trial)
        labels = rng.uniform(-3, 3, (40, 1))
        shared = rng.normal(0, 0.5, (10, 4))  # what the segments of a video have in common
        runs = [
            labels + (shared[:, :1] + rng.normal(0, 1, (10, 1)) + rng.normal(0, 0.3, (10, 4)))
            .reshape(1, 40, 1)
            for _ in range(2)
        ]  # fmt: skip
        ids = [f"v{i // 4}[{i % 4}]" for i in range(40)]
        called += paired_test(*runs, labels, ids, "mae").p <= 0.05
    assert called <= 9  # of 60: 3 expected, sd 1.7


def test_paired_test_refuses_runs_that_do_not_fit():
    usual = {"first": FIRST, "second": SECOND, "labels": LABELS, "ids": VIDEOS}
    for change, message in (
        ({"second": SECOND[:, 1:]}, "the same samples and outputs"),
        ({"ids": VIDEOS[1:]}, "the same samples and outputs"),
    ):
        with pytest.raises(ValueError, match=message):
            paired_test(**{**usual, **change}, name="mae")
