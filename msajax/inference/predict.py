"""Scores a corpus with a bundle."""

import logging
from typing import Any

from msajax.config import SYNTHETIC
from msajax.corpus.corpus import Corpus, Split
from msajax.corpus.glove import with_word_vectors
from msajax.corpus.in_memory import with_embedded
from msajax.corpus.predictions import Scored, write_predictions
from msajax.errors import UserError
from msajax.inference.bundle import Bundle, wants_vectors

logger = logging.getLogger(__name__)


def predict_corpus(
    bundle: Bundle, corpus: Corpus, split_name: str, output: str, **overrides: Any
) -> int:
    """Scores one split, or all, and writes them as CSV. Labels are not needed.

    A corpus of transcripts without text features gets the vectors of their words, for a model whose
    text is features.

    Args:
        split_name: train, valid, test or all.
        overrides: settings of `data` in place of the bundle's, as `Bundle.with_data` takes them.

    Returns:
        The number of rows written.

    Raises:
        UserError: if the corpus does not fit the model, or the file cannot be written.
    """
    bundle = bundle.with_data(**overrides)
    preparation, spec = bundle.preparation, bundle.preparation.spec
    corpus = with_word_vectors(with_same_features(bundle, corpus), bundle.config.data)
    names = list(corpus.headers) if split_name == "all" else [split_name]
    for m in corpus.modalities:
        if m not in spec.modalities:
            logger.warning("The model does not know modality %r; it is ignored.", m)

    # Whether there are transcripts or words of which the model's text is made; else what would
    # read the transcripts.
    headers = [corpus.headers[name] for name in names]
    readers = (preparation.words, preparation.text_from, preparation.embedding("text"))
    has_text = any(header.has_raw_text or header.words for header in headers)
    makes_text = has_text and any((*readers, bundle.config.data.glove_path))
    count = sum(header.transcripts for header in headers)
    is_embedded = corpus.source.embedding("text") is not None
    unread = ""
    if count and not (makes_text or is_embedded or corpus.path == SYNTHETIC):
        if "text" not in spec.modalities:
            how = "the model reads no text"
        else:
            key = "--config.data.glove_path=FILE"
            how = f"{key} reads them if the model's text are vectors of words"
        unread = f"{count} transcripts found; not read: {how}"

    here = {*corpus.modalities, *(("text",) if makes_text else ())}
    lacking = [m for m in spec.modalities if m not in here]
    if len(lacking) == len(spec.modalities):
        raise UserError(
            f"{corpus.path} has nothing that the model reads, which is {', '.join(lacking)}"
            f"{f'; {unread}' if unread else ''}."
        )
    for m in lacking:
        logger.warning("%s lacks modality %r; it is absent in every sample.", corpus.path, m)
    if unread and "text" not in corpus.modalities:
        logger.warning("%s: %s.", corpus.path, unread)

    # Warned of and not refused while the numbers of steps are equal: the user may know better than
    # the file. Unequal ones cannot be shifted as one, and preparation refuses them.
    for group in preparation.groups if corpus.aligned is not None else ():
        here = [m for m in group if m in corpus.modalities]
        if len(here) > 1 and not set(here) <= set(corpus.aligned):
            logger.warning(
                "%s says that not all of %s share their steps; the model was trained with them "
                "aligned.",
                corpus.path,
                ", ".join(here),
            )

    scorer, scored = bundle.scorer, []  # which finds devices before anything is read
    named, has_vectors = overrides.get("glove_path"), corpus.source.has_vectors
    for name in names:
        stored, split = read_split(bundle, corpus, name)
        has_vectors |= wants_vectors(stored, spec)
        scored.append(Scored(split, *scorer.score(split, name)))
    if named and not has_vectors:
        logger.warning("Nothing reads data.glove_path = %s (needs words without features).", named)
    write_predictions(output, scored, bundle.seeds, spec, bundle.calibration)
    return sum(len(each.split) for each in scored)


def read_split(bundle: Bundle, corpus: Corpus, name: str) -> tuple[Split, Split]:
    """Reads a split to be scored, as stored and prepared; raises `UserError` if it does not fit."""
    stored, preparation = corpus.split(name), bundle.preparation
    # Labels that are no classes have names, too.
    trained = dict(zip(preparation.classes, preparation.spec.label_names, strict=False))
    for number, called in corpus.headers[name].classes.items():
        if called != str(number) and trained.get(number, called) != called:
            raise UserError(
                f"{stored.where}: class {number} is {called!r}, but {trained[number]!r} in the "
                "corpus of the model: number the classes as there, or leave out the labels."
            )
    return stored, bundle.prepare_split(stored, name)


def with_same_features(bundle: Bundle, corpus: Corpus) -> Corpus:
    """Returns the corpus with features as the same pretrained encoders make them, if any did.

    Raises `UserError` for features that were made otherwise than those of training.
    """
    for m in bundle.preparation.spec.modalities:
        trained, here = bundle.preparation.embedding(m), corpus.source.embedding(m)
        if trained == here or bundle.preparation.spec.encoder(m) is not None:
            continue
        if m in bundle.embedders:
            corpus = with_embedded(corpus, bundle.embedders[m], trained)
        # One column may be waveforms, of which preparation says what is missing.
        elif m in corpus.modalities and not (here is None and corpus.width(m) == 1):
            said = [f"made by {e.describe()}" if e else "of no encoder" for e in (here, trained)]
            key, what = "text_encoder=FOLDER", "its transcripts are"
            if m != "text":
                key, what = f"encoders={m}=FOLDER", "its waveforms are"
            advice = f": with --config.model.{key} {what} read by that encoder" * bool(trained)
            raise UserError(
                f"{corpus.path}: its {m} is {said[0]}, that of the model's corpus "
                f"{said[1]}{advice}."
            )
    return corpus
