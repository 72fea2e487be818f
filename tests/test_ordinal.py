"""Ordered levels: the loss and the probabilities by their formula, and a run from end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import msajax
from msajax.config import TrainConfig
from msajax.errors import UserError
from msajax.models.contract import Prediction
from msajax.preparation.batches import Batch
from msajax.tasks import make_task
from msajax.tasks.ordinal import Ordinal, expected
from msajax.training.objective import loss_of

LEVELS = 4


def above(outputs: np.ndarray) -> np.ndarray:
    """P(y > k) by the formula, one threshold after another, in float64."""
    o = outputs.astype(np.float64)
    return np.stack(
        [
            1 / (1 + np.exp(-(o[:, 0] - np.log1p(np.exp(o[:, 1 : k + 1])).sum(axis=1))))
            for k in range(o.shape[1])
        ],
        axis=1,
    )


def test_the_loss_and_the_probabilities_are_those_of_the_thresholds():
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(6, LEVELS - 1)).astype(np.float32)
    labels, weight = rng.integers(0, LEVELS, (6, 1)), np.array([1.0, 1, 0, 1, 1, 1])
    batch = Batch({}, {}, jnp.float32(labels), jnp.float32(weight), None)
    total, rows = jax.jit(
        lambda score: loss_of("ordinal", "cumulative", TrainConfig()).measure(
            Prediction(score, None), batch
        )
    )(outputs)
    p, true = above(outputs), labels > np.arange(LEVELS - 1)
    each = -np.where(true, np.log(p), np.log1p(-p)).sum(axis=1)
    assert float(rows) == 5 and float(total) == pytest.approx((each * weight).sum(), rel=1e-6)
    ends = np.concatenate([np.ones((6, 1)), p, np.zeros((6, 1))], axis=1)
    scores = np.asarray(Ordinal.scores(outputs))
    np.testing.assert_allclose(scores, ends[:, :-1] - ends[:, 1:], atol=1e-6)
    assert (scores > 0).all() and (np.asarray(Ordinal.scores(100 * outputs)) > 0).all()


@pytest.mark.parametrize("first", [16.0, 20.0, 30.0, -16.0, -30.0])
def test_probabilities_keep_their_digits_where_a_model_is_sure(first):
    found = np.asarray(Ordinal.scores(np.float32([[first, 0, 0]])), np.float64)[0]
    a = first - np.log(2) * np.arange(3)  # softplus(0) = log 2
    above, below = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(a))
    between = above[:-1] * below[1:] * 0.5  # 1 - exp(-log 2)
    np.testing.assert_allclose(found, [below[0], *between, above[-1]], rtol=4e-6)
    assert found.sum() == pytest.approx(1, abs=1e-6)


def test_numbers_are_measured_by_the_expected_level():
    rng = np.random.default_rng(1)
    scores = rng.dirichlet(np.ones(LEVELS), 30)
    labels = rng.integers(0, LEVELS, (30, 1)).astype(float)
    found = make_task("ordinal", ("a", "b", "c", "d"), labels).compute(scores, labels)
    mean = scores @ np.arange(LEVELS)
    np.testing.assert_allclose(expected(scores), mean)
    assert found["mae"] == pytest.approx(np.abs(mean - labels[:, 0]).mean(), rel=1e-12)
    assert found["corr"] == pytest.approx(np.corrcoef(mean, labels[:, 0])[0, 1], rel=1e-9)
    assert found["accuracy"] == (scores.argmax(axis=1) == labels[:, 0]).mean()


def test_levels_are_learned_scored_and_read_again_and_numbers_are_refused(tmp_path):
    rng, arrays = np.random.default_rng(0), {}
    for split, n in (("train", 40), ("valid", 12), ("test", 12)):
        levels = rng.integers(-1, 2, n)
        arrays[f"{split}/id"] = np.array([f"{split}_{i}" for i in range(n)])
        arrays[f"{split}/text"] = rng.normal(levels[:, None, None], 0.3, (n, 1, 4))
        arrays[f"{split}/label"] = levels
    np.savez(tmp_path / "corpus.npz", **arrays)
    config = msajax.Config(
        data=msajax.DataConfig(path=str(tmp_path / "corpus.npz")),
        model=msajax.ModelConfig(task="ordinal", model_dim=8, num_heads=2, ff_dim=8),
        optim=msajax.OptimConfig(learning_rate=0.01),
        train=msajax.TrainConfig(epochs=6, batch_size=8),
    )
    result = msajax.train(config, tmp_path / "run")
    columns = result.predictions("test")
    probabilities = np.stack([columns[f"score_{name}"] for name in ("-1", "0", "1")], axis=1)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(columns["level"], expected(probabilities), atol=1e-6)
    truth = arrays["test/label"]
    np.testing.assert_array_equal(columns["label"], truth)
    mae = np.abs(columns["level"] - 1 - truth).mean()
    assert mae < 0.5 < np.abs(truth).mean()
    assert result["test"]["mae"]["mean"] == pytest.approx(mae, rel=1e-5)
    assert "temperature" in str(result)  # as the command line prints it
    assert "ordinal" in (tmp_path / "run" / "bundle" / "README.md").read_text()
    arrays["train/label"] = arrays["train/label"] + 0.5
    np.savez(tmp_path / "corpus.npz", **arrays)
    with pytest.raises(UserError, match="are no levels, which are whole numbers in one column"):
        msajax.train(config, tmp_path / "other")
