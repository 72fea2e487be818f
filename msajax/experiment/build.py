"""Builds runs: opens what they read, prepares their splits, finds how their parameters begin."""

import logging
from typing import Any, NamedTuple

from msajax import announce
from msajax.config import Config
from msajax.corpus.corpus import Corpus, Split
from msajax.corpus.demands import require_glove, require_run
from msajax.corpus.folds import deal_validation
from msajax.corpus.formats import open_corpus
from msajax.corpus.glove import read_glove
from msajax.corpus.on_demand import take_rows
from msajax.encoders.folder import Folder, open_folder
from msajax.errors import UserError
from msajax.inference.bundle import load
from msajax.models import declared, parameter_shapes
from msajax.preparation import fit as preparing
from msajax.preparation.preparation import Preparation
from msajax.preparation.repairs import say_prepared
from msajax.runs.folder import RunFolder
from msajax.tasks import TASKS, make_task
from msajax.training.initial import (
    Initial,
    from_bundle,
    from_encoder,
    from_labels,
    from_model,
    from_words,
    shared_values,
)
from msajax.training.run import Run, check_model, layout_of

logger = logging.getLogger(__name__)


class Sources(NamedTuple):
    """Holds what a run reads.

    Attributes:
        corpus: opened.
        encoder: the folder of the text encoder, None without one.
        preparation: fitted on the training split.
    """

    corpus: Corpus
    encoder: Folder | None
    preparation: Preparation

    @property
    def digests(self) -> dict[str, str]:
        """The digests by which a run knows its corpus and its text encoder again."""
        digests = {"corpus digest": self.corpus.digest}
        return digests | ({"text encoder digest": self.encoder.digest} if self.encoder else {})


def open_sources(config: Config, corpus: Corpus | None = None) -> Sources:
    """Opens what a run reads; raises `UserError` for what cannot be trained on.

    Args:
        config: says what that is.
        corpus: the corpus, if it is open already.
    """
    require_glove(config.data.glove_path)
    encoder = open_encoder(config)
    if corpus is None:
        corpus = open_corpus(config.data.path, config.reading)
    return check(config, corpus, encoder)


def open_encoder(config: Config) -> Folder | None:
    """Opens the folder of the text encoder, if there is one; its weights are not read yet."""
    return open_folder(config.model.text_encoder) if config.model.text_encoder else None


def check(config: Config, corpus: Corpus, encoder: Folder | None) -> Sources:
    """Fits the preparation; raises `UserError` unless a run can train on the corpus and measure."""
    require_run(corpus, config)
    corpus.verify()  # after what headers alone can say: it may read all that there is
    return fit(config, corpus, encoder)


def fit(config: Config, corpus: Corpus, encoder: Folder | None) -> Sources:
    """Does what `check` does, for a corpus that has been verified."""
    require_run(corpus, config)
    preparation = preparing.fit(corpus, config.reading, config.model, encoder)
    check_model(config, preparation.spec)
    _check_share(config, corpus, preparation)
    return Sources(corpus, encoder, preparation)


def _check_share(config: Config, corpus: Corpus, preparation: Preparation) -> None:
    """Raises `UserError` if no part of validation can be held out, or nothing would use it."""
    share, kind = config.train.calibration_share, preparation.spec.label_kind
    if not share:
        return
    if not TASKS[kind].calibrates:
        raise UserError(
            f"train.calibration_share = {share:g}: nothing of a {kind} model is calibrated: leave "
            "the share at 0."
        )
    valid = corpus.split("valid")
    dealt = deal_validation(valid.ids, share, valid.where)
    logger.info(
        "%s: %d samples choose the epochs, %d calibrate; dealt by %s%s.",
        valid.where,
        dealt.chooses.sum(),
        dealt.calibrates.sum(),
        dealt.by,
        "" if dealt.by == "video" else ", as no two ids name the same video",
    )


def build(config: Config, sources: Sources, folder: RunFolder) -> Run:
    """Builds a run: prepares its splits for training and validation, finds how parameters begin.

    Args:
        config: checked.
        sources: what the run reads.
        folder: where its files go; nothing is written yet.

    Raises:
        UserError: for a split that cannot be prepared, and parameters that cannot be read.
    """
    corpus, encoder, preparation = sources
    announce.now("Preparing the splits")
    initial, shared, origin = _initial(config, preparation, encoder)
    train, valid, repairs = _prepare(config, corpus, preparation)
    return Run(
        config=config,
        corpus=corpus,
        preparation=preparation,
        train=train,
        valid=valid,
        folder=folder,
        repairs=repairs,
        initial=from_labels(config.model, preparation.spec, train.labels) | initial,
        shared=shared,
        origin=origin,
    )


def _prepare(
    config: Config, corpus: Corpus, preparation: Preparation
) -> tuple[Split, Split, dict[str, Any]]:
    """Prepares the splits for training and validation; returns what was repaired in them, too.

    Of validation those samples are returned that choose the epochs.
    """
    budget = config.data.device_memory_budget
    # Virtual CPU devices share a memory, in which each has the training split.
    of_each = budget // layout_of(config).copies
    train_split, train_repairs = preparing.prepare(corpus.split("train"), preparation, of_each)
    valid_split, valid_repairs = preparing.prepare(corpus.split("valid"), preparation, budget)
    say_prepared("train", train_split, train_repairs, preparation.clip)
    say_prepared("valid", valid_split, valid_repairs, preparation.clip)
    for warning in corpus.describe_shared_ids():
        logger.warning("%s", warning)
    spec = preparation.spec
    for name, split in (("train", train_split), ("valid", valid_split)):
        TASKS[spec.label_kind].require_targets(split.labels, f"{corpus.path}, split {name!r}")
    make_task(spec.label_kind, spec.label_names, train_split.labels).selection(
        config.train.select_by
    )
    repairs = {"train": train_repairs, "valid": valid_repairs}
    if corpus.repairs:
        repairs["corpus"] = corpus.repairs
    share = config.train.calibration_share
    chooses = deal_validation(valid_split.ids, share, valid_split.where).chooses
    return train_split, take_rows(valid_split, chooses), repairs


def _initial(
    config: Config, preparation: Preparation, encoder: Folder | None
) -> tuple[Initial, Initial, dict[str, Any]]:
    """Reads initial parameters from other files.

    Returns:
        All of them; those that every seed shares for good; and a report for run.json.
    """
    initial: Initial = {}
    origin: dict[str, Any] = {}
    model = declared(config.model)
    reads_words = bool(preparation.words) and "text" in preparation.spec.modalities
    has_vectors = bool(config.data.glove_path) and reads_words
    if not (model.initial or encoder or has_vectors or config.model.init_from):
        return initial, {}, origin
    shapes = parameter_shapes(config.model, preparation.spec)
    if model.initial:
        initial = from_model(model, config.model, preparation.spec, shapes)
        origin["model"] = sorted(initial)
    if encoder:
        initial |= from_encoder(model, encoder)
        origin["text_encoder"] = {"path": encoder.path, "digest": encoder.digest}
    if has_vectors:
        vectors = read_glove(config.data.glove_path, preparation.words)
        of_words, origin["words"] = from_words(preparation.words, shapes, vectors)
        initial |= of_words
        logger.info("%s: %s.", config.data.glove_path, origin["words"])
    if config.model.init_from:
        source = load(config.model.init_from)
        loaded, origin["bundle"] = from_bundle(
            model, preparation, shapes, source.preparation, source.all_params, config.train.seeds
        )
        initial |= loaded
        modules = origin["bundle"]["modules"]
        counted = ", ".join(f"{m} {n} of {of}" for m, (n, of) in modules.items())
        logger.info("Parameters from %s: %s.", config.model.init_from, counted)
    return initial, shared_values(initial, shapes, config.optim), origin
