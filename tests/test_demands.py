"""What is asked of a corpus before it is used: transcripts that nothing reads, splits that lack."""

import dataclasses
import logging

import numpy as np
import pytest
from refusals import refusal

from msajax.config import Config, DataConfig, ModelConfig
from msajax.corpus.corpus import Corpus, Embedding, Source, Split
from msajax.corpus.demands import describe_unread_transcripts, require_run, say_unread_transcripts
from msajax.corpus.in_memory import corpus_of
from msajax.errors import UserError
from msajax.preparation.fit import fit
from msajax.preparation.inspection import inspect_corpus

UNREAD = "9 transcripts found; not read: data.text=words or model.text_encoder=FOLDER reads them"
FOLDS = "makes splits of all samples, by video, and tests each of them once."


def split_of(first: int, features=("text", "audio"), labels=True, size: int = 3) -> Split:
    rng = np.random.default_rng(first)
    return Split(
        ids=np.array([f"v{first + i}[0]" for i in range(size)]),
        features={m: rng.normal(size=(size, 2, 3)) for m in features},
        masks={},
        labels=rng.normal(size=(size, 1)) if labels else None,
        raw_text=np.array(["a good film"] * size),
    )


def corpus(features=("text", "audio"), **source) -> Corpus:
    splits = {name: split_of(10 * k, features) for k, name in enumerate(("train", "valid", "test"))}
    return corpus_of(splits, source=dataclasses.replace(Source("c", "f"), **source))


def test_transcripts_that_nothing_reads_are_told_of_in_training_and_by_inspect(caplog):
    with caplog.at_level(logging.INFO):
        say_unread_transcripts(corpus(), Config())
        say_unread_transcripts(corpus(("audio",)), Config())
    levels = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert levels == [("INFO", UNREAD), ("WARNING", UNREAD)]  # loud where there is no other text
    report = inspect_corpus(corpus(), DataConfig())
    assert (report["notes"], report["warnings"]) == ([UNREAD], [])
    for features in (("audio",), ()):
        report = inspect_corpus(corpus(features), DataConfig())
        assert (report["notes"], report["warnings"]) == ([], [UNREAD])


@pytest.mark.parametrize(
    ("data", "model", "source"),
    [
        ({"text": "words"}, {}, {}),
        ({}, {"text_encoder": "FOLDER"}, {}),
        ({}, {}, {"has_vectors": True}),
        ({}, {}, {"embeddings": (Embedding("d", "bert", 3),)}),
    ],
)
def test_transcripts_that_are_read_are_passed_over(data, model, source):
    data, model = DataConfig(**data), ModelConfig(**model)
    assert describe_unread_transcripts(corpus(**source), data, model) == ""
    report = inspect_corpus(corpus(**source), data, model)
    assert (report["notes"], report["warnings"]) == ([], [])


def test_a_corpus_of_transcripts_alone_is_refused_by_the_same_words():
    with pytest.raises(UserError, match=f"^c: {UNREAD}\\.$"):
        fit(corpus(()), DataConfig(), ModelConfig())
    with pytest.raises(UserError, match=f"names 'text', .* it has audio; {UNREAD}\\.$"):
        fit(corpus(("audio",)), DataConfig(), ModelConfig(modalities=("text",)))
    words = {
        name: dataclasses.replace(corpus(()).split(name), raw_text=None, words=np.full((3, 2), "a"))
        for name in ("train", "valid", "test")
    }
    with pytest.raises(UserError, match="words of 9 samples found; not read: model.text_en"):
        fit(corpus_of(words), DataConfig(), ModelConfig())


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        ({"train": split_of(0, size=6)},
         f"no split 'valid'; it has train. --config.data.folds=5 {FOLDS}"),
        ({"test": split_of(0, size=4)},
         f"no split 'train'; it has test. --config.data.folds=4 {FOLDS}"),
        ({"train": split_of(0, size=2)},
         "data.folds=3 makes splits of the samples of 3 or more videos; here are 2."),
        ({"train": split_of(0), "valid": split_of(5), "test": split_of(9, labels=False)},
         f"split 'test' has no labels, which it needs. --config.data.folds=5 {FOLDS}"),
        ({"train": dataclasses.replace(split_of(0), ids=np.array(["a[0]", "17", "b[0]"]))},
         "once their ids tell which video each is of, as 'video[0]' or 'video$_$0' do and "
         "'17' does not."),
    ],
    ids=["train alone", "test alone", "two videos", "no labels", "ids of no video"],
)
def test_a_corpus_that_lacks_splits_is_told_of_folds(splits, says):
    assert refusal(require_run, corpus_of(splits), Config()).endswith(says)
    unlabelled = corpus_of({"train": split_of(0, labels=False)})  # what no fold would help
    with pytest.raises(UserError, match=r"no split 'valid'; it has train\.$"):
        require_run(unlabelled, Config())
    assert not [w for w in inspect_corpus(unlabelled, DataConfig())["warnings"] if "folds" in w]
