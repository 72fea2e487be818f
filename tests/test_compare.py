"""The paired test against a second computation, exact small cases, and how often it cries wolf."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from msajax.evaluation import compare
from msajax.evaluation.compare import DRAWS, paired_test
from msajax.tasks import make_task

RNG = np.random.default_rng(0)
TASK = make_task("regression", ("sentiment",), np.array([[-3.0], [3.0]]))
SEGMENTS = (3, 1, 5, 2, 4, 1, 2)
VIDEOS = [f"video{v}[{i}]" for v, count in enumerate(SEGMENTS) for i in range(count)]
N, SEEDS = len(VIDEOS), 3
LABELS = RNG.uniform(-3, 3, (N, 1))
FIRST = LABELS + RNG.normal(0, 0.5, (SEEDS, N, 1))
SECOND = LABELS + RNG.normal(0, 0.9, (SEEDS, N, 1))


def naive(first, second, labels, groups, metric):
    """The difference and p, a draw and a seed at a time."""

    def difference(a, b):
        values = [[metric(of_seed[:, 0], labels[:, 0]) for of_seed in run] for run in (a, b)]
        return np.mean(values[0]) - np.mean(values[1])

    found = difference(first, second)
    generator, extreme = np.random.Generator(np.random.PCG64(0)), 0
    for _ in range(compare.DRAWS):
        swap = generator.integers(0, 2, max(groups) + 1)[groups].astype(bool)[None, :, None]
        drawn = difference(np.where(swap, second, first), np.where(swap, first, second))
        extreme += abs(drawn) >= abs(found) - 1e-12
    return found, (1 + extreme) / (1 + compare.DRAWS)


def mae(p, y):
    return np.abs(p - y).mean()


def corr(p, y):
    return np.corrcoef(p, y)[0, 1]


@pytest.mark.parametrize(("name", "metric"), [("mae", mae), ("corr", corr)])
def test_difference_and_p_are_those_of_the_definition(name, metric, monkeypatch):
    monkeypatch.setattr(compare, "DRAWS", 500)
    found = paired_test(FIRST, SECOND, LABELS, VIDEOS, TASK, name)
    groups = np.unique([id_[:6] for id_ in VIDEOS], return_inverse=True)[1]
    difference, p = naive(FIRST, SECOND, LABELS, groups, metric)
    assert found.difference == pytest.approx(difference, abs=1e-12)
    assert found.p == p
    assert (found.groups, found.unit) == (7, "video")


def test_few_groups_give_the_share_of_all_exchanges():
    ids = [id_ for id_ in VIDEOS if id_ < "video3"]
    first, second, labels = (x[..., : len(ids), :] for x in (FIRST, SECOND, LABELS))
    errors = np.abs(first - labels).mean(0) - np.abs(second - labels).mean(0)
    of_video = [part.sum() for part in np.split(errors[:, 0], np.cumsum(SEGMENTS[:2]))]
    sums = [abs(np.dot(signs, of_video)) for signs in itertools.product((1, -1), repeat=3)]
    exact = Fraction(sum(s >= sums[0] - 1e-12 for s in sums), len(sums))
    found = paired_test(first, second, labels, ids, TASK, "mae")
    assert found.groups == 3
    # Five standard deviations of a share of 10,000 draws.
    assert found.p == pytest.approx(float(exact), abs=5 * 0.5 / DRAWS**0.5)


def test_samples_are_exchanged_alone_where_ids_name_no_video():
    for ids in ([str(i) for i in range(N)], [f"train{i}" for i in range(N)]):
        found = paired_test(FIRST, SECOND, LABELS, ids, TASK, "mae")
        assert (found.groups, found.unit) == (N, "sample")
    assert found.p != paired_test(FIRST, SECOND, LABELS, VIDEOS, TASK, "mae").p


def test_the_other_way_round_is_as_likely_and_equal_runs_never_differ():
    there = paired_test(FIRST, SECOND, LABELS, VIDEOS, TASK, "mae")
    back = paired_test(SECOND, FIRST, LABELS, VIDEOS, TASK, "mae")
    assert back.difference == -there.difference and back.p == there.p
    same = paired_test(FIRST, FIRST, LABELS, VIDEOS, TASK, "corr")
    assert (same.difference, same.p) == (0.0, 1.0)


def test_a_clear_difference_reaches_the_smallest_p():
    ids = [str(i) for i in range(200)]
    labels = RNG.uniform(-3, 3, (200, 1))
    good, bad = (labels + RNG.normal(0, sd, (2, 200, 1)) for sd in (0.1, 2.0))
    assert paired_test(good, bad, labels, ids, TASK, "mae").p == 1 / (1 + DRAWS)


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
        called += paired_test(*runs, labels, ids, TASK, "mae").p <= 0.05
    assert called <= 9  # of 60: 3 expected, sd 1.7


def test_classes_have_the_test_too():
    task = make_task("classification", ("a", "b"), np.array([[0.0], [1.0]]))
    labels = RNG.integers(0, 2, (30, 1)).astype(float)
    sure = np.where(labels == 1, [0.2, 0.8], [0.8, 0.2])[None]
    blind = np.full((1, 30, 2), 0.5)
    blind[..., 0] += 0.01
    found = paired_test(sure, blind, labels, [str(i) for i in range(30)], task, "accuracy")
    assert found.difference == pytest.approx((labels == 1).mean())
    assert found.p < 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"second": SECOND[:, 1:]}, "the same samples and outputs"),
        ({"ids": VIDEOS[1:]}, "the same samples and outputs"),
        ({"metric": "accuracy"}, "'accuracy' is none of mae, corr"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_what_does_not_fit_is_refused(change, message):
    usual = {"first": FIRST, "second": SECOND, "labels": LABELS, "ids": VIDEOS}
    with pytest.raises(ValueError, match=message):
        paired_test(**{**usual, "task": TASK, "metric": "mae", **change})
