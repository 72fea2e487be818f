"""What `inspect` suspects of a corpus, and what it lets pass."""

import unicodedata

import numpy as np
import pytest

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Split
from msajax.corpus.in_memory import corpus_of
from msajax.preparation.inspection import inspect_corpus, suspect_ids, suspect_videos

EVERY = [0.0, 1.0, 2.0] * 4


def warnings_of(train, valid=EVERY, test=EVERY, *, integers=False, **model) -> list[str]:
    """The warnings on a corpus of these labels, all else faultless."""
    rng = np.random.default_rng(0)
    splits = {}
    for name, labels in {"train": train, "valid": valid, "test": test}.items():
        labels = np.array(labels, float)
        labels = labels[:, None] if labels.ndim == 1 else labels
        ids = np.array([f"{name}{i}[0]" for i in range(len(labels))])
        splits[name] = Split(ids, {"text": rng.normal(size=(len(ids), 2, 3))}, {}, labels)
    corpus = corpus_of(splits, integers=integers)
    return inspect_corpus(corpus, DataConfig(), ModelConfig(**model))["warnings"]


def test_labels_that_do_not_vary_are_told_of():
    scores = list(np.linspace(-2.5, 2.4, 12))
    assert warnings_of([1.5] * 4, scores, [0.5] * 3) == [
        "train: sentiment is 1.5 in all 4 samples: there is nothing to learn.",
        "test: sentiment is 0.5 in all 3 samples: it has no correlation there.",
    ]
    assert warnings_of(scores, scores, [0.5]) == []  # a single sample cannot vary
    two = np.stack([scores, [7.0] * 12], axis=1)
    assert warnings_of(two, two[:, ::-1], two) == [
        "train: 1 is 7 in all 12 samples: there is nothing to learn.",
        "valid: 0 is 7 in all 12 samples: it has no correlation there.",
        "test: 1 is 7 in all 12 samples: it has no correlation there.",
    ]


@pytest.mark.parametrize("values", [[0, 1, 2], [-1, 1], [1, 2, 3], [0, 1, 2, 3]])
def test_classes_stored_as_numbers_are_told_of_with_the_setting(values):
    labels = values * 6
    (told,) = warnings_of(labels, labels, labels)
    assert told == (
        f"sentiment takes the values {', '.join(map(str, values))} alone, which are learned as "
        "scores: if they are classes, --config.model.task=classification learns them as such."
    )
    assert warnings_of(labels, labels, labels, task="classification") == []
    assert warnings_of(labels, labels, labels, task="regression") == []


@pytest.mark.parametrize(
    "values",
    [[-3, -2, -1, 0, 1, 2, 3], [1, 1.5, 2], [0, 1, 2.5], list(range(-3, 4, 2))],
    ids=["sentiment", "halves", "fractions", "odd"],
)
def test_degrees_are_not_taken_for_classes(values):
    assert warnings_of(values * 6, values * 6, values * 6) == []


def test_few_labels_that_are_whole_by_chance_are_not_taken_for_classes():
    assert warnings_of([0, 1, 2], [1, 2], [0, 2]) == []


def test_classes_that_train_lacks_are_told_of_with_their_samples():
    assert warnings_of([0, 1] * 3, [0, 1, 2], [3, 3, 2, 0], integers=True) == [
        "valid: 1 sample(s) are of class(es) that train lacks (2): nothing learns them.",
        "test: 3 sample(s) are of class(es) that train lacks (2, 3): nothing learns them.",
    ]
    rows = np.eye(3)
    assert warnings_of(rows[[0, 1, 0]], rows[[0, 1]], rows[[2, 2]]) == [
        "test: all 2 samples are of the class 2: none can be told from it there.",
        "test: 2 sample(s) are of class(es) that train lacks (2): nothing learns them.",
    ]
    assert warnings_of(EVERY, [0, 1], [2, 0], integers=True) == []


def test_scales_that_differ_by_orders_are_told_of_and_others_are_not():
    rng = np.random.default_rng(0)

    def told(factor: float) -> list[str]:
        splits = {}
        for name, scale in {"train": 1.0, "valid": -1.0, "test": factor}.items():
            x = np.full((4, 3, 2), scale) * [3.0, 4.0]  # root mean square sqrt(12.5)
            x += 1e-9 * rng.normal(size=x.shape)  # so that no two samples are the same
            x[0, 0], x[1, 1], x[:, 2] = 1e6, np.nan, 0  # outliers, repaired values, padding
            ids = np.array([f"{name}{i}" for i in range(4)])
            splits[name] = Split(ids, {"audio": x}, {}, rng.normal(size=(4, 1)))
        found = inspect_corpus(corpus_of(splits), DataConfig())
        return [warning for warning in found["warnings"] if "scale" in warning]

    assert told(99.0) == told(0.0101) == []
    assert told(101.0) == [
        "The values of audio differ in scale: a step's root mean square is typically 3.54 in "
        "train, 3.54 in valid, 357 in test. Were they made in the same way?"
    ]
    assert len(told(0.0099)) == 1


def test_ids_that_differ_in_their_unicode_form_alone_are_told_of():
    nfc, nfd = (
        [unicodedata.normalize(form, id_) for id_ in ("é1", "ü2", "n3")] for form in ("NFC", "NFD")
    )
    have = "have, but for its Unicode form (NFC or NFD), the id of"
    assert suspect_ids({"train": nfc, "test": nfd}) == [
        f"2 sample(s) of test {have} one of train: samples may leak."
    ]
    assert suspect_ids({"train": [*nfc, nfd[0]], "test": ["É1"]}) == [
        f"1 sample(s) of train {have} an earlier one."
    ]
    assert suspect_ids({"train": [*nfd, *nfd], "test": nfd}) == []  # equal ids are told elsewhere


def test_videos_with_samples_in_two_splits_are_told_of():
    e = unicodedata.normalize("NFD", "é[1]")
    same = ["17", "whole"]
    found = suspect_videos({"train": ["é[0]", "b_1", *same], "test": [e, "c_1", *same]})
    assert len(found) == 1 and "(1 in train and test, as 'é')" in found[0]
    assert suspect_videos({"train": ["a_1", "a_2"], "test": ["b[0]", "train_3"]}) == []
