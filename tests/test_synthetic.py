"""The embedded corpus: the same bytes every time, learnable, with reliability that is real."""

import dataclasses

import numpy as np
import pytest

from msajax.config import DataConfig, ModelConfig, SyntheticConfig
from msajax.corpus.synthetic import generate
from msajax.preparation.apply import check_split, prepare
from msajax.preparation.fit import fit

SMALL = SyntheticConfig(
    60, 30, 25, modalities=("video", "text", "eeg"), widths=(3, 6, 4), lengths=(5, 9, 1),
    absent_share=0.3,
)


@pytest.fixture(scope="module")
def default():
    return generate(SyntheticConfig())


def test_the_same_settings_give_the_same_corpus_and_others_another():
    changes = (
        *({}, {"seed": 1}, {"train": 61}, {"widths": (3, 6, 5)}, {"lengths": (5, 9, 2)}),
        *({"absent_share": 0.2}, {"modalities": ("video", "text", "gaze")}),
    )
    settings = [dataclasses.replace(SMALL, **change) for change in changes]
    settings += [
        coincidence(task, train=40, test=10, seed=seed)
        for task in ("sign", "stress") for seed in (0, 1)
    ]
    settings += [dataclasses.replace(CONNECTOME, seed=seed) for seed in (0, 1)]
    digests = [generate(chosen).corpus.digest for chosen in settings]
    assert digests == [generate(chosen).corpus.digest for chosen in settings]
    assert len(set(digests)) == len(digests)
    one, other = generate(SMALL), generate(SMALL)
    assert one.corpus.aligned == ()  # no modality shares its steps with another
    for name in ("train", "valid", "test"):
        a, b = one.corpus.split(name), other.corpus.split(name)
        for m in SMALL.modalities:
            np.testing.assert_array_equal(a.features[m], b.features[m])
            np.testing.assert_array_equal(a.masks[m], b.masks[m])
        np.testing.assert_array_equal(a.labels, b.labels)
        np.testing.assert_array_equal(a.raw_text, b.raw_text)


def test_the_default_has_the_sizes_of_mosi(default):
    summary = default.corpus.summary()
    assert summary["sizes"] == {"train": 1284, "valid": 229, "test": 686}
    assert summary["widths"] == {"text": 300, "audio": 74, "video": 47}
    corpus = default.corpus
    ids = np.concatenate([corpus.split(name).ids for name in corpus.headers])
    assert len(set(ids.tolist())) == 1284 + 229 + 686 and corpus.repeated_ids == 0


def test_labels_are_multiples_of_a_fifth_in_the_range_of_sentiment(default):
    for name in default.corpus.headers:
        labels = default.corpus.split(name).labels
        np.testing.assert_array_equal(labels, np.round(labels * 5) / 5)
        assert labels.min() >= -3 and labels.max() <= 3
        assert not np.signbit(labels[labels == 0]).any()
        assert 1.2 < labels.std() < 1.8 and 0.4 < (labels > 0).mean() < 0.7


@pytest.mark.parametrize("seed", range(3))
def test_reliability_is_0_exactly_where_a_modality_is_absent(seed):
    made = generate(dataclasses.replace(SMALL, seed=seed, absent_share=0.5))
    for name in made.corpus.headers:
        split = made.corpus.split(name)
        present = {m: split.masks[m].any(axis=1) for m in SMALL.modalities}
        for m, here in present.items():
            reliability = made.reliability[name][m]
            np.testing.assert_array_equal(reliability == 0, ~here)
            assert reliability[here].min() >= 0.1 and reliability.max() <= 1
            assert (split.features[m][~split.masks[m]] == 0).all()
        assert np.any(list(present.values()), axis=0).all()  # no sample without any modality
        assert not np.all(list(present.values()), axis=0).all()


def test_padding_leads_in_text_trails_elsewhere_and_there_are_holes(default):
    train = default.corpus.split("train")
    for m, leads in (("text", True), ("audio", False), ("video", False)):
        mask = train.masks[m][train.masks[m].any(axis=1)]
        padded_first, padded_last = (~mask[:, 0]).mean(), (~mask[:, -1]).mean()
        assert (padded_first > 0.8) == leads and (padded_last > 0.8) == (not leads)
        inner = [row.nonzero()[0] for row in mask]
        assert 0.03 < np.mean([rows[-1] - rows[0] + 1 > len(rows) for rows in inner]) < 0.3


@pytest.mark.parametrize("seed", range(3))
def test_no_split_has_a_sequence_longer_than_the_longest_in_train(seed):
    corpus = generate(
        SyntheticConfig(4, 60, 60, widths=(2,) * 3, lengths=(50, 30, 20), seed=seed)
    ).corpus
    preparation = fit(corpus, DataConfig(), ModelConfig())
    assert preparation.spec.lengths == (50, 30, 20)
    for name in corpus.headers:
        check_split(corpus.split(name), preparation)


# --- what can be learned ---


def mean_of_valid_steps(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    total = np.where(mask[..., None], x, 0).sum(axis=1, dtype=np.float64)
    return total / np.maximum(mask.sum(axis=1), 1)[:, None]


def ridge(x: np.ndarray, y: np.ndarray, penalty: float):
    """Least squares with a penalty on everything but the offset; returns the predictor."""
    mean, offset = x.mean(axis=0), y.mean()
    centred = x - mean
    gram = centred.T @ centred + penalty * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, centred.T @ (y - offset))
    return lambda new: (new - mean) @ weights + offset


@pytest.mark.parametrize("modality", ["text", "audio", "video"])
def test_noise_falls_as_reliability_rises(default, modality):
    test = default.corpus.split("test")
    mask, reliability = test.masks[modality], default.reliability["test"][modality]
    steps = test.features[modality][mask].astype(np.float64)  # [valid steps, width]
    steps = (steps - steps.mean(axis=0)) / steps.std(axis=0)
    # Score and mark lie along two directions; what is left is noise ~ 1.1 - reliability.
    _, directions = np.linalg.eigh(steps.T @ steps)
    noise = np.square(steps @ directions[:, :-2]).mean(axis=1)
    owner = np.nonzero(mask)[0]
    size = np.sqrt(np.bincount(owner, noise, len(mask)) / np.maximum(mask.sum(axis=1), 1))
    here = reliability > 0
    assert np.corrcoef(size[here], 1.1 - reliability[here])[0, 1] > 0.98


def test_pooled_features_beat_the_median_clearly(default):
    corpus = default.corpus
    preparation = fit(corpus, DataConfig(), ModelConfig())
    pooled, labels = {}, {}
    for name in ("train", "valid"):
        split, _ = prepare(corpus.split(name), preparation)
        pooled[name] = np.concatenate(
            [mean_of_valid_steps(split.features[m], split.masks[m]) for m in split.features], axis=1
        )
        labels[name] = split.labels[:, 0]
    floor = np.abs(np.median(labels["train"]) - labels["valid"]).mean()
    prediction = ridge(pooled["train"], labels["train"], 100.0)(pooled["valid"])
    assert np.abs(prediction - labels["valid"]).mean() < 0.75 * floor
    assert np.corrcoef(prediction, labels["valid"])[0, 1] > 0.6


# --- connectomes ---

CONNECTOME = SyntheticConfig(
    300, 40, 200, task="connectome", modalities=("brain",), widths=(20,), lengths=(9,)
)


def test_a_connectome_begins_with_bands_age_and_gender():
    split = generate(CONNECTOME).corpus.split("train")
    x = split.features["brain"].astype(np.float64)
    assert x.shape == (300, 9, 20) and split.masks["brain"].all()
    edges = 45 ** (np.arange(10) / 9)  # from 1 to 45 Hz, each band as much wider as the last one
    np.testing.assert_allclose(x[..., 0], np.broadcast_to(edges[:-1], (300, 9)), rtol=1e-6)
    np.testing.assert_allclose(x[..., 1], np.broadcast_to(edges[1:], (300, 9)), rtol=1e-6)
    for column in (2, 3):  # of a person, not of a band
        assert (x[..., column] == x[:, :1, column]).all()
    assert 18 <= x[..., 2].min() < 25 and 83 < x[..., 2].max() <= 90
    assert set(np.unique(x[..., 3])) == {0, 1}


def test_the_groups_of_a_connectome_are_classes_with_names():
    corpus = generate(CONNECTOME).corpus
    header = corpus.headers["test"]
    assert header.label_kind == "classes"
    assert header.classes == {0: "control", 1: "group_a", 2: "group_b"}
    counts = np.bincount(corpus.split("train").labels[:, 0].astype(int))
    assert len(counts) == 3 and counts.min() > 70


def test_a_group_differs_in_few_bands_and_age_shifts_them_all():
    split = generate(dataclasses.replace(CONNECTOME, train=6000)).corpus.split("train")
    x, group = split.features["brain"][..., 4:].astype(np.float64), split.labels[:, 0]
    age, gender = split.features["brain"][:, 0, 2], split.features["brain"][:, 0, 3]
    columns = np.stack([group == 0, group == 1, group == 2, (age - 54) / 21, gender - 0.5], axis=1)
    effect, *_ = np.linalg.lstsq(columns.astype(np.float64), x.reshape(len(x), -1), rcond=None)
    effect = effect.reshape(5, 9, 16)
    for changed in (1, 2):  # against controls; the noise of a difference is about 0.03
        size = np.sqrt(np.square(effect[changed] - effect[0]).mean(axis=1))
        assert (size > 0.1).sum() == 2 and (size < 0.06).sum() == 7
    for everywhere in (3, 4):
        assert (np.sqrt(np.square(effect[everywhere]).mean(axis=1)) > 0.12).all()


# --- scores that need two modalities at the same step ---


def coincidence(task: str, **sizes) -> SyntheticConfig:
    usual = {"train": 4000, "valid": 20, "test": 1000, "widths": (8, 6), "lengths": (8, 8)}
    return SyntheticConfig(task=task, modalities=("text", "audio"), **usual | sizes)


@pytest.mark.parametrize("task", ["sign", "stress"])
def test_scores_are_what_the_formula_makes_of_both_modalities(task):
    made = generate(coincidence(task))
    for name in ("train", "valid", "test"):
        split = made.corpus.split(name)
        v, a = (split.features[m][..., 0].astype(np.float64) for m in ("text", "audio"))
        if task == "sign":
            assert set(np.unique(a)) == {-1.0, 1.0}
            clean = 1.2 * (v * a).sum(axis=1) / np.sqrt(8)
        else:
            assert ((a == 3.0).sum(axis=1) == 1).all()
            clean = 1.2 * v[a == 3.0]
        np.testing.assert_allclose(made.clean[name], np.clip(clean, -3, 3), atol=1e-6)
        assert split.masks["text"].all() and split.masks["audio"].all()
    split = made.corpus.split("train")
    error = split.labels[:, 0] - made.clean["train"]
    assert np.abs(error).mean() == pytest.approx(0.1 * np.sqrt(2 / np.pi), rel=0.04)  # 0.080
    constant = np.abs(split.labels - np.median(split.labels)).mean()
    assert constant == pytest.approx(1.2 * np.sqrt(2 / np.pi), rel=0.04)  # 0.94 once clipped
    others = split.features["text"][..., 1:], split.features["audio"][..., 1:]
    assert all(x.std() == pytest.approx(0.3, rel=0.02) for x in others)


def test_a_sign_score_cannot_be_told_from_one_modality():
    split = generate(coincidence("sign")).corpus.split("train")
    y = split.labels[:, 0]
    for m in ("text", "audio"):  # 4,000 samples: chance is a correlation of about 0.016
        x = split.features[m].astype(np.float64).reshape(len(y), -1)
        for known in (x, np.square(x), np.abs(x)):
            known = known[:, known.std(axis=0) > 0]  # a sign's size says nothing at all
            assert np.abs(np.corrcoef(known.T, y)[-1, :-1]).max() < 0.075
    products = split.features["text"][..., 0] * split.features["audio"][..., 0]
    assert np.corrcoef(products.sum(axis=1), y)[0, 1] > 0.99
