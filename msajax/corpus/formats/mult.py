"""Reads the pickles of MulT and of MultiBench: `split_dicts.py` as it is.

    {train, valid, test} -> vision, text, audio (N, T, d), labels (N, 1, 1), id

Both pad before a sequence with steps of zeros, which preparation turns into masks; `id` is an array
of [video, start, end] in MulT, numbers or text in MultiBench.
"""

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus
from msajax.corpus.formats.mmsa import has_modality, read_corpus
from msajax.corpus.formats.pickled import Pickled


def matches(pickled: Pickled) -> bool:
    """Says whether the first split is a dict with a modality in it."""
    return has_modality(pickled)


def open_mult(pickled: Pickled, data: DataConfig) -> Corpus:
    """Reads a pickle of MulT or MultiBench.

    Raises:
        UserError: as `read_corpus` does.
    """
    return read_corpus(pickled, data, "MulT or MultiBench pickle")
