"""Checks a corpus and its settings before they are used."""

import logging
import os

from msajax.config import Config, idle_settings
from msajax.data.corpus import Corpus
from msajax.errors import UserError
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)


def require_glove(path: str) -> None:
    """Raises `UserError` for a file of word vectors that is named and not there."""
    if path and not os.path.isfile(path):
        raise UserError(f"data.glove_path: there is no file at {path}.")


def say_what_is_idle(corpus: Corpus, config: Config, reads_tokens: bool) -> None:
    """Warns of settings that were changed and that nothing reads."""
    reads_vectors = corpus.source.has_vectors or config.data.text == "words"
    for phrase in idle_settings(config, reads_tokens=reads_tokens, reads_vectors=reads_vectors):
        logger.warning("Nothing reads %s.", phrase)


def require_targets(corpus: Corpus, config: Config, *splits: str) -> None:
    """Raises `UserError` unless the splits are there with what the model is to predict."""
    own = config.model.own_task
    if own and not TASKS[own].reads_labels:
        corpus.require_splits(*splits)
    else:
        corpus.require_labels(*splits)
