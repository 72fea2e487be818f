"""Sequence-level multimodal sentiment analysis in JAX and Flax.

>>> import msajax
>>> corpus = msajax.open_corpus("corpus.npz")
>>> results = msajax.train(msajax.Config(), "runs/mine")
>>> bundle = msajax.load("runs/mine/bundle")
"""

from typing import Any

from msajax.config import Config
from msajax.errors import NonFiniteError, UserError
from msajax.version import __version__

__all__ = ["Config", "NonFiniteError", "UserError", "__version__", "load", "open_corpus", "train"]


def __getattr__(name: str) -> Any:
    """Loads what needs JAX at its first use, so that `import msajax` is quick."""
    if name in ("load", "open_corpus", "train"):
        from msajax import experiment

        return getattr(experiment, name)
    raise AttributeError(f"module 'msajax' has no attribute {name!r}")
