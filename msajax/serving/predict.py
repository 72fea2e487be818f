"""Scores for a corpus from a bundle."""

import dataclasses
import logging

from msajax.config import MeshConfig
from msajax.data.corpus import Corpus, Split
from msajax.data.losses import count_without_any
from msajax.data.predictions import write_predictions
from msajax.data.prepare import prepare
from msajax.data.repairs import say_losses, say_repairs
from msajax.data.steps import without
from msajax.data.vocabulary import embed
from msajax.models import build_model
from msajax.serving.bundle import Bundle
from msajax.spec import CorpusSpec
from msajax.training.parallel import make_layout
from msajax.training.scoring import make_predict, predict_split

logger = logging.getLogger(__name__)


def predict_corpus(
    bundle: Bundle, corpus: Corpus, split_name: str, output: str, glove_path: str = ""
) -> int:
    """Scores one split, or all, and writes them as CSV. Labels are not needed.

    A corpus of transcripts without text features gets the vectors of their words, for a model whose
    text is features.

    Args:
        bundle: the model.
        corpus: what to score.
        split_name: train, valid, test or all.
        output: the CSV file.
        glove_path: word vectors for transcripts; "" for those that the bundle was trained with.

    Returns:
        The number of rows written.

    Raises:
        UserError: if the corpus does not fit the model, or the file cannot be written.
    """
    spec = bundle.preparation.spec
    names = list(corpus.headers) if split_name == "all" else [split_name]
    for m in corpus.modalities:
        if m not in spec.modalities:
            logger.warning("The model does not know modality %r; it is ignored.", m)
    named, has_vectors = glove_path, corpus.has_vectors
    glove_path = glove_path or bundle.config.data.glove_path
    for m in spec.modalities:
        reads_words = bool(bundle.preparation.words or glove_path)
        from_words = m == "text" and reads_words and corpus.headers[names[0]].has_raw_text
        if m not in corpus.modalities and not from_words:
            logger.warning("%s lacks modality %r; it is absent in every sample.", corpus.path, m)

    for group in bundle.preparation.groups if corpus.aligned is not None else ():
        here = [m for m in group if m in corpus.modalities]
        if len(here) > 1 and not set(here) <= set(corpus.aligned):
            logger.warning(
                "%s says that not all of %s share their steps; the model was trained with them "
                "aligned.",
                corpus.path,
                ", ".join(here),
            )

    layout = make_layout(MeshConfig(), "auto", len(bundle.seeds))
    predict = make_predict(build_model(bundle.config.model, spec), layout)
    params = layout.put_state(bundle.params)
    splits, scores, weights = [], [], []
    for name in names:
        budget = bundle.config.data.device_memory_budget
        split, preparation = corpus.split(name), bundle.preparation
        if glove_path and split.raw_text is not None and "text" not in split.features:
            split = _with_vectors(split, spec, glove_path)
            has_vectors |= "text" in split.features
            # Its steps are the words of the transcript, which are not those of other modalities.
            preparation = dataclasses.replace(
                preparation, groups=without(preparation.groups, "text")
            )
        split, repairs = prepare(split, preparation, budget)
        say_repairs(name, repairs, preparation.clip)
        say_losses(name, repairs, count_without_any(split.masks), len(split))
        s, w = predict_split(predict, params, split, name, spec, layout)
        splits.append(split)
        scores.append(s)
        weights.append(w)
    if named and not has_vectors:
        logger.warning("Nothing reads data.glove_path = %s (needs words without features).", named)
    write_predictions(output, splits, scores, weights, bundle.seeds, spec)
    return sum(len(split) for split in splits)


def _with_vectors(split: Split, spec: CorpusSpec, glove_path: str) -> Split:
    """The split with the vectors of its transcripts' words as text, if the model reads features."""
    if "text" not in spec.modalities or spec.vocabulary("text"):
        return split
    features, mask, unknown = embed(split.raw_text.tolist(), glove_path)
    logger.info("Text from transcripts: %.1f %% of the words have no vector.", 100 * unknown)
    return dataclasses.replace(
        split,
        features={**split.features, "text": features},
        masks={**split.masks, "text": mask},
        derived=split.derived | {"text"},
    )
