"""Sequence-level multimodal sentiment analysis in JAX and Flax.

>>> import msajax
>>> corpus = msajax.open_corpus("corpus.npz")
>>> config = msajax.Config(data=msajax.DataConfig(path="corpus.npz"))
>>> results = msajax.train(config, "runs/mine")
>>> bundle = msajax.load("runs/mine/bundle")
"""

from typing import Any

from msajax.config import Config, DataConfig, MeshConfig, ModelConfig, OptimConfig, TrainConfig
from msajax.errors import NonFiniteError, UserError
from msajax.version import __version__

__all__ = [
    "Config",
    "DataConfig",
    "MeshConfig",
    "ModelConfig",
    "NonFiniteError",
    "OptimConfig",
    "TrainConfig",
    "UserError",
    "__version__",
    "build_model",
    "cross_validate",
    "load",
    "open_corpus",
    "train",
]


def __getattr__(name: str) -> Any:
    """Loads what needs JAX at its first use, so that `import msajax` is quick."""
    if name == "build_model":
        from msajax.models import build_model

        return build_model
    if name == "cross_validate":
        from msajax.cross_validation import cross_validate

        return cross_validate
    if name in ("load", "open_corpus", "train"):
        from msajax import experiment

        return getattr(experiment, name)
    raise AttributeError(f"module 'msajax' has no attribute {name!r}")
