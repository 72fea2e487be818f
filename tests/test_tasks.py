"""Metrics, intervals and floors of each task against scikit-learn, loops and numbers by hand."""

import math
import warnings

import numpy as np
import pytest
import sklearn.metrics

from msajax.metrics import intervals as bootstrap
from msajax.metrics.table import SENTIMENT, TABLE, reported_by
from msajax.tasks import TASKS, Task, make_task

CLASSES = ("a", "b", "c", "d", "e")
NOTHING = np.zeros((2, 1))  # labels of a training split whose range does not matter
ROUNDING = {"rel": 1e-12, "abs": 1e-14}


def probabilities(rng, *shape: int) -> np.ndarray:
    p = np.exp(2 * rng.normal(size=shape))
    return p / p.sum(axis=-1, keepdims=True)


def class_task(classes: int = 5) -> Task:
    return make_task("classification", CLASSES[:classes], NOTHING)


def output_task(k: int) -> Task:
    return make_task("regression", CLASSES[:k], np.zeros((2, k)))


def token_task() -> Task:
    return make_task("next_token", ("nats", "tokens"), NOTHING)


def quietly(task: Task, scores, labels) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return task.compute(np.asarray(scores, float), np.asarray(labels, float))


# --- classes ---


@pytest.mark.parametrize("seed", range(12))
def test_class_metrics_agree_with_scikit_learn(seed):
    """Also where a class is in the labels alone, in the predictions alone, or in neither."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    p = probabilities(rng, n, 5)
    y = rng.choice(rng.permutation(5)[: rng.integers(1, 6)], n)
    if seed % 3 == 0:  # a class that is never predicted
        p[:, seed % 5] *= 1e-9
        p /= p.sum(axis=1, keepdims=True)
    found = class_task().compute(p, y[:, None].astype(float))
    predicted = p.argmax(axis=1)

    def f1(average):
        return sklearn.metrics.f1_score(y, predicted, average=average, zero_division=0)

    assert found == {
        "accuracy": pytest.approx(sklearn.metrics.accuracy_score(y, predicted), **ROUNDING),
        "f1_weighted": pytest.approx(f1("weighted"), **ROUNDING),
        "f1_macro": pytest.approx(f1("macro"), **ROUNDING),
        "uar": pytest.approx(
            sklearn.metrics.recall_score(y, predicted, labels=np.unique(y), average="macro"),
            **ROUNDING,
        ),
        "cross_entropy": pytest.approx(
            sklearn.metrics.log_loss(y, p, labels=range(5)), rel=1e-10
        ),
    }


def test_the_first_of_equally_probable_classes_is_the_predicted_one():
    p = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [1 / 3, 1 / 3, 1 / 3]])
    for labels, accuracy in (([0, 1, 0], 1.0), ([1, 2, 2], 0.0), ([0, 2, 1], 1 / 3)):
        found = class_task(3).compute(p, np.array(labels, float)[:, None])
        assert found["accuracy"] == pytest.approx(accuracy)


def test_a_label_of_probability_0_costs_the_most_that_a_float_can():
    p = np.array([[0.0, 1.0], [1.0, 0.0]])
    found = class_task(2).compute(p, np.array([[0.0], [0.0]]))
    assert found["cross_entropy"] == pytest.approx(1022 * math.log(2) / 2)  # -log(2^-1022), and 0


# --- several outputs ---


@pytest.mark.parametrize("seed", range(4))
def test_outputs_have_their_own_mae_corr_and_ccc_and_the_mean_of_them(seed):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(3, 40)), int(rng.integers(2, 6))
    p, y = rng.normal(size=(n, k)), rng.integers(1, 8, (n, k)).astype(float)
    y[0], y[1] = 1, 7  # no constant column
    found = output_task(k).compute(p, y)
    names = CLASSES[:k]
    expected = {}
    for i, name in enumerate(names):
        expected[f"mae_{name}"] = sum(abs(p[j, i] - y[j, i]) for j in range(n)) / n
        expected[f"corr_{name}"] = np.corrcoef(p[:, i], y[:, i])[0, 1]
        covariance = np.cov(p[:, i], y[:, i], ddof=0)
        apart = (p[:, i].mean() - y[:, i].mean()) ** 2
        expected[f"ccc_{name}"] = 2 * covariance[0, 1] / (np.trace(covariance) + apart)
    for metric in (every := ("mae", "corr", "ccc")):
        expected[metric] = sum(expected[f"{metric}_{name}"] for name in names) / k
    assert list(found) == [*every, *(f"{m}_{n}" for m in every for n in names)]
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_a_constant_output_has_no_corr_and_so_the_mean_has_none():
    y = np.array([[1.0, 2.0], [2.0, 5.0], [3.0, 1.0]])
    p = np.array([[0.1, 0.0], [0.1, 1.0], [0.1, 2.0]])
    with pytest.warns(RuntimeWarning) as caught:
        found = output_task(2).compute(p, y)
    assert [str(w.message).split()[0] for w in caught] == ["corr", "corr_a"]
    assert all("is constant" in str(w.message) for w in caught)
    assert math.isnan(found["corr"]) and math.isnan(found["corr_a"])
    assert found["corr_b"] == pytest.approx(np.corrcoef(p[:, 1], y[:, 1])[0, 1])
    assert found["mae"] == pytest.approx((np.abs(p - y)).mean())


# --- tokens ---


def test_cross_entropy_weighs_tokens_and_not_sequences():
    # 2 tokens of 1 nat each, 8 of 3 nats, and a sequence without any.
    scores = np.array([[2.0, 2], [24.0, 8], [0.0, 0]])
    found = token_task().compute(scores, np.full((3, 4), -1.0))
    assert found == {"cross_entropy": 2.6, "perplexity": pytest.approx(math.exp(2.6))}


def test_without_a_predicted_token_there_is_no_perplexity():
    with pytest.warns(RuntimeWarning, match="no sequence has two steps in a row"):
        found = token_task().compute(np.zeros((2, 2)), np.full((2, 3), -1.0))
    assert math.isnan(found["cross_entropy"]) and math.isnan(found["perplexity"])


# --- what a task is ---


def test_each_kind_has_its_metrics_and_one_that_selects():
    wide = np.array([[-4.0], [1.0]])
    reported = {
        "regression": output_task(1),
        "ratings": make_task("regression", ("a",), wide),
        "classification": class_task(),
        "ordinal": make_task("ordinal", ("a", "b", "c"), wide),
        "multi_label": make_task("multi_label", ("a",), wide),
        "next_token": token_task(),
    }
    assert {kind: tuple(task.reported) for kind, task in reported.items()} == {
        "regression": SENTIMENT,
        "ratings": tuple(reported_by("scores")),
        "classification": ("accuracy", "f1_weighted", "f1_macro", "uar", "cross_entropy"),
        "ordinal": (
            "mae", "corr", "accuracy", "f1_weighted", "f1_macro", "uar", "cross_entropy"
        ),
        "multi_label": tuple(
            metric + of for of in ("", "_a") for metric in reported_by("labels")
            if (metric, of) != ("f1_weighted", "_a")
        ),
        "next_token": ("cross_entropy", "perplexity"),
    }
    assert {kind: task.usual_selection for kind, task in reported.items()} == {
        "regression": "mae", "ratings": "mae", "classification": "cross_entropy",
        "ordinal": "mae", "multi_label": "binary_cross_entropy", "next_token": "cross_entropy",
    }
    assert output_task(3).usual_selection == "mae"
    assert {task.kind for task in reported.values()} == set(TASKS)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1, 3])
def test_one_output_is_bit_equal_to_the_metrics_of_a_score(seed, scale):
    rng = np.random.default_rng(seed)
    y = np.round(scale * rng.uniform(-3, 3, (31, 1)), 1)
    scores = (y + rng.normal(size=(3, 31, 1))).astype(np.float32).astype(float)
    task = make_task("regression", ("anything",), y)
    chosen = {name: TABLE[name].metric for name in task.reported}
    values = {name: metric.value(scores[0, :, 0], y[:, 0]) for name, metric in chosen.items()}
    assert task.compute(scores[0], y) == values
    found = bootstrap.bootstrap(scores[..., 0], y[:, 0], chosen)
    assert task.intervals(scores, y) == found


def cases() -> dict[str, tuple[Task, np.ndarray, np.ndarray]]:
    """Of every kind: a task, scores [S, N, K] and labels [N, L]."""
    rng = np.random.default_rng(3)
    seeds, n = 3, 13
    y = rng.integers(0, 3, (n, 1)).astype(float)
    ratings = rng.integers(1, 8, (n, 4)).astype(float)
    tokens = rng.integers(0, 9, (seeds, n, 1)).astype(float)
    tokens[:, :7] = 0
    return {
        "classification": (class_task(4), probabilities(rng, seeds, n, 4), y),
        "outputs": (output_task(4), ratings + rng.normal(size=(seeds, n, 4)), ratings),
        "score": (output_task(1), y - 1 + rng.normal(size=(seeds, n, 1)), y - 1),
        # A third of the resamples (0.8^5) miss the only non-zero label: these are left out.
        "undefined": (output_task(1), np.array([[[0.5], [-1.0], [2.0], [1.0], [0.1]],
                                                [[0.5], [0.5], [0.5], [-2.0], [0.5]]]),
                      np.array([[0.0], [0.0], [0.0], [1.0], [-0.0]])),
        "next_token": (token_task(),
                       np.concatenate([tokens * rng.uniform(1, 3, tokens.shape), tokens], axis=-1),
                       np.full((n, 5), -1.0)),
    }


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("block", [1, 300, 2**17])
def test_intervals_equal_a_loop_over_resamples_whatever_the_block(name, block, monkeypatch):
    monkeypatch.setattr(bootstrap, "_BLOCK", block)
    task, scores, labels = cases()[name]
    n = len(labels)
    drawn = np.random.Generator(np.random.PCG64(0)).integers(0, n, (1000, n))[:60]
    values = {metric: [] for metric in task.reported}
    for rows in drawn:
        by_seed = [quietly(task, s[rows], labels[rows]) for s in scores]
        for metric in task.reported:
            values[metric].append(np.mean([of_seed[metric] for of_seed in by_seed]))
    stacked = np.moveaxis(scores, 1, 2)
    targets = labels.T if task.kind == "regression" else labels[:, 0]
    found = bootstrap.bootstrap(stacked, targets, task.reported, resamples=60)
    assert list(found) == list(task.reported)
    for metric, interval in found.items():
        expected = np.nanpercentile(values[metric], (2.5, 97.5))
        assert interval == pytest.approx(expected, rel=1e-11, abs=1e-13), metric
        assert interval[0] < interval[1] or name == "undefined", metric
    assert name != "undefined" or found["acc2_nonzero"] == (0.5, 0.5)


# --- floors ---


def test_class_floors_by_hand():
    train = np.array([[0], [0], [0], [1]], float)  # shares 3/4 and 1/4
    labels = np.array([[1], [1], [0], [1], [1]], float)
    assert class_task(2).floors(train, labels) == {
        "majority": {"accuracy": 4 / 5},
        "train_shares": {
            "cross_entropy": pytest.approx((4 * math.log(4) + math.log(4 / 3)) / 5, rel=1e-14)
        },
    }
    # A class that train lacks.
    floors = class_task(3).floors(np.array([[0.0], [1.0]]), np.array([[2.0], [0.0]]))
    assert floors["train_shares"]["cross_entropy"] == math.inf


def test_floors_of_several_outputs_by_hand():
    train = np.array([[1.0, 10.0], [2.0, 20.0], [9.0, 30.0]])  # medians 2 and 20
    labels = np.array([[3.0, 20.0], [0.0, 26.0]])
    assert output_task(2).floors(train, labels) == {
        "train_median": {"mae": 2.25, "mae_a": 1.5, "mae_b": 3.0}
    }


def test_token_floors_by_hand():
    # Tokens 2 2 5 of train, each once more: 0..5 count 1 1 3 1 1 2 of 9.
    train = np.array([[2, -1, 2], [5, -1, -1]], float)
    labels = np.array([[2, 5, -1], [0, -1, -1]], float)
    nats = -(math.log(3 / 9) + math.log(2 / 9) + math.log(1 / 9)) / 3
    assert token_task().floors(train, labels) == {
        "train_shares": {
            "cross_entropy": pytest.approx(nats, rel=1e-14),
            "perplexity": pytest.approx(math.exp(nats), rel=1e-14),
        }
    }
    # A token that train lacks: 0..7 count 1 1 3 1 1 2 1 1 of 11.
    (floor,) = token_task().floors(train, np.array([[7.0]])).values()
    assert floor["perplexity"] == pytest.approx(11)
    (floor,) = token_task().floors(train, np.array([[-1.0]])).values()
    assert math.isnan(floor["cross_entropy"]) and math.isnan(floor["perplexity"])


def test_a_class_that_is_all_but_impossible_keeps_a_probability_with_a_logarithm():
    logits = np.float32([[0, 100.0], [0, 1.0]])
    p = np.float64(TASKS["classification"].scores(logits))
    usual = np.log([1, np.e]) - np.log(1 + np.e)
    np.testing.assert_allclose(np.log(p), [[-87, 0], usual], rtol=1e-6, atol=1e-7)
