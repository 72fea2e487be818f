"""Several labels of a sample: metrics and thresholds by their definition, a run from end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

import msajax
from msajax.config import TrainConfig
from msajax.errors import UserError
from msajax.metrics.calibration import Basis
from msajax.models.contract import Prediction
from msajax.preparation.batches import Batch
from msajax.tasks import make_task
from msajax.tasks.multi_label import MultiLabel, Thresholds
from msajax.training.objective import loss_of

NAMES = ("happy", "sad", "angry")
BASIS = Basis(30, "video", optimistic=False)


def drawn(seed: int, n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.uniform(size=(n, len(NAMES))) < (0.5, 0.2, 0.7)).astype(float)
    return np.clip(0.6 * rng.uniform(size=labels.shape) + 0.4 * labels, 0.01, 0.99), labels


@pytest.mark.parametrize("seed", range(4))
def test_metrics_agree_with_scikit_learn(seed):
    p, y = drawn(seed)
    found = make_task("multi_label", NAMES, y).compute(p, y)
    has = p > 0.5

    def f1(average):
        return sklearn.metrics.f1_score(y, has, average=average, zero_division=0)

    expected = {
        "accuracy": (has == y).mean(),
        "f1_weighted": f1("weighted"),
        "f1_macro": f1("macro"),
        "auc": sklearn.metrics.roc_auc_score(y, p),
        "binary_cross_entropy": np.mean(
            [sklearn.metrics.log_loss(y[:, k], p[:, k]) for k in range(3)]
        ),
        "balanced_accuracy": np.mean(
            [sklearn.metrics.balanced_accuracy_score(y[:, k], has[:, k]) for k in range(3)]
        ),
        "auc_sad": sklearn.metrics.roc_auc_score(y[:, 1], p[:, 1]),
        "f1_macro_happy": sklearn.metrics.f1_score(y[:, 0], has[:, 0]),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-10)


def test_a_bootstrap_of_ranks_is_the_area_of_each_resample():
    p, y = drawn(5)
    metric = make_task("multi_label", NAMES, y).reported["auc_happy"]
    counts = np.random.default_rng(0).multinomial(len(p), np.full(len(p), 1 / len(p)), 6)
    for found, times in zip(metric.weighted(p.T, y.T, counts.astype(float)).T, counts, strict=True):
        rows = np.repeat(np.arange(len(p)), times)
        assert found == pytest.approx(sklearn.metrics.roc_auc_score(y[rows, 0], p[rows, 0]))


def test_the_loss_is_a_binary_cross_entropy_of_each_label():
    rng = np.random.default_rng(0)
    outputs, (_, labels) = rng.normal(size=(5, 3)).astype(np.float32), drawn(1, 5)
    weight = np.array([1.0, 0, 1, 1, 1])
    batch = Batch({}, {}, jnp.float32(labels), jnp.float32(weight), None)
    total, rows = jax.jit(
        lambda score: loss_of("multi_label", "cross_entropy", TrainConfig()).measure(
            Prediction(score, None), batch
        )
    )(outputs)
    p = np.asarray(MultiLabel.scores(outputs), np.float64)
    each = -np.log(np.where(labels > 0, p, 1 - p)).mean(axis=1)
    assert float(rows) == 4 and float(total) == pytest.approx((each * weight).sum(), rel=1e-6)


def test_thresholds_have_the_largest_f1_and_a_label_that_nobody_has_keeps_one_half():
    p, y = drawn(2)
    y[:, 2] = 0
    found = Thresholds.fit(p[None], y, BASIS)
    for k in (0, 1):
        every = [sklearn.metrics.f1_score(y[:, k], p[:, k] > t) for t in np.linspace(0, 1, 1001)]
        mine = sklearn.metrics.f1_score(y[:, k], p[:, k] > found.thresholds[k])
        assert mine >= max(every) - 1e-12
    assert found.thresholds[2] == 0.5
    np.testing.assert_array_equal(found.applied(p[None])["labels"], p > np.array(found.thresholds))
    assert Thresholds.fit(p[None, :8], y[:8], BASIS) is None


def test_emotions_are_learned_of_intensities_and_told_by_thresholds_of_their_own(tmp_path):
    rng, arrays = np.random.default_rng(0), {"label_name": np.array(NAMES)}
    for split, n in (("train", 48), ("valid", 16), ("test", 16)):
        x = rng.normal(size=(n, 1, 4))
        arrays[f"{split}/id"] = np.array([f"{split}_{i}" for i in range(n)])
        arrays[f"{split}/text"] = x
        arrays[f"{split}/label"] = np.maximum(x[:, 0, :3] + 0.2, 0)  # an intensity of each
    np.savez(tmp_path / "corpus.npz", **arrays)
    model = msajax.ModelConfig(model_dim=8, num_heads=2, ff_dim=8)

    def config(binarize="none", **more):
        return msajax.Config(
            data=msajax.DataConfig(path=str(tmp_path / "corpus.npz"), binarize=binarize),
            model=msajax.ModelConfig(**(vars(model) | more)),
            optim=msajax.OptimConfig(learning_rate=0.01),
            train=msajax.TrainConfig(epochs=12, batch_size=8),
        )

    with pytest.raises(UserError, match="are not several columns of 0 and 1; --config.data.binar"):
        msajax.train(config(task="multi_label"), tmp_path / "other")
    result = msajax.train(config(binarize="0"), tmp_path / "run")  # by itself: columns of 0 and 1
    columns = result.predictions("test")
    y = arrays["test/label"] > 0
    p = np.stack([columns[f"score_{name}"] for name in NAMES], axis=1)
    for k, name in enumerate(NAMES):
        np.testing.assert_array_equal(columns[f"label_{name}"], y[:, k])
        np.testing.assert_array_equal(columns[f"predicted_{name}"], p[:, k] > 0.5)
    assert result["test"]["auc"]["mean"] == pytest.approx(
        sklearn.metrics.roc_auc_score(y, p), rel=1e-6
    )
    assert result["test"]["auc"]["mean"] > 0.7 and "macro F1" in str(result)
    told = " ".join(str(result).split())
    assert "F1 of each label at 0.5" in told and "class is the true one" not in told
    scores = result.bundle.predict({"text": arrays["test/text"].astype(np.float32)})
    thresholds = result["calibration"]["thresholds"]
    np.testing.assert_array_equal(scores.labels, scores.score > np.array(thresholds))
    card = (tmp_path / "run" / "bundle" / "README.md").read_text()
    report = (tmp_path / "run" / "report.html").read_text()
    assert "threshold of its own" in card and "threshold" in report and "happy" in report
