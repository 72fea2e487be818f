"""Reads pickles that come from someone else, without running anything: `read_pickle`."""

from msajax.corpus.pickles.reader import NoPickle, read_pickle

__all__ = ["NoPickle", "read_pickle"]
