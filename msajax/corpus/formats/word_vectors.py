"""Reads vectors for the words of a corpus whose files hold words and no features of text."""

import collections
import logging

from msajax.corpus.glove import WordVectors, read_glove
from msajax.errors import UserError

logger = logging.getLogger(__name__)


def read_vectors(path: str, glove_path: str, counts: collections.Counter[str]) -> WordVectors:
    """Reads the vectors of a corpus's words and logs how many words have none.

    Args:
        path: of the corpus, for messages.
        glove_path: a text file of word vectors.
        counts: how often each word occurs, at least one word.

    Raises:
        UserError: if the file is damaged, or has no vector of any of the words.
    """
    found = read_glove(glove_path, counts.keys())
    if not found.words:
        raise UserError(f"{glove_path} has none of the {len(counts)} words of {path}.")
    unknown = counts.total() - sum(counts[word] for word in found.words)
    logger.info(
        "%s: %d of %d words (%.1f %%) have no vector and stay valid steps of zeros.",
        *(path, unknown, counts.total(), 100 * unknown / counts.total()),
    )
    return found
