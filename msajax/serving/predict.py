"""Scores for a corpus from a bundle."""

import logging

from msajax.config import MeshConfig
from msajax.data.corpus import Corpus
from msajax.data.predictions import write_predictions
from msajax.data.prepare import prepare
from msajax.models import build_model
from msajax.serving.bundle import Bundle
from msajax.training.parallel import make_layout
from msajax.training.scoring import make_predict, predict_split

logger = logging.getLogger(__name__)


def predict_corpus(bundle: Bundle, corpus: Corpus, split_name: str, output: str) -> int:
    """Scores one split, or all, and writes them as CSV. Labels are not needed.

    Args:
        bundle: the model.
        corpus: what to score.
        split_name: train, valid, test or all.
        output: the CSV file.

    Returns:
        The number of rows written.

    Raises:
        UserError: if the corpus does not fit the model, or the file cannot be written.
    """
    spec = bundle.preparation.spec
    for m in corpus.modalities:
        if m not in spec.modalities:
            logger.warning("The model does not know modality %r; it is ignored.", m)
    for m in spec.modalities:
        from_words = m == "text" and bundle.preparation.words
        if m not in corpus.modalities and not from_words:
            logger.warning("%s lacks modality %r; it is absent in every sample.", corpus.path, m)

    names = list(corpus.headers) if split_name == "all" else [split_name]
    layout = make_layout(MeshConfig(), "auto", len(bundle.seeds))
    predict = make_predict(build_model(bundle.config.model, spec), layout)
    params = layout.put_state(bundle.params)
    splits, scores, weights = [], [], []
    for name in names:
        budget = bundle.config.data.device_memory_budget
        split, repairs = prepare(corpus.split(name), bundle.preparation, budget)
        if repairs:
            logger.warning("Repaired in split %r: %s.", name, repairs)
        s, w = predict_split(predict, params, split, name, spec, layout)
        splits.append(split)
        scores.append(s)
        weights.append(w)
    write_predictions(output, splits, scores, weights, bundle.seeds, spec)
    return sum(len(split) for split in splits)
