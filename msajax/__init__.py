"""Sequence-level multimodal sentiment analysis in JAX and Flax.

Make a corpus of a table and lists of arrays, train on it, and score samples of your own:

    import msajax

    msajax.save_corpus("corpus.npz", table, {"audio": arrays}, label="y", split="split")
    corpus = msajax.open_corpus("corpus.npz")     # print(corpus) says what is in it
    config = msajax.Config(data=msajax.DataConfig(path="corpus.npz"))
    result = msajax.train(config, "runs/mine")    # continues where it was interrupted
    print(result)                                 # metrics of validation and test, over seeds
    test = result.predictions("test")             # columns: id, label, score, …
    bundle = result.bundle                        # or msajax.load("runs/mine/bundle")
    scores = bundle.predict({"text": text, "audio": audio})    # arrays [N, T, d] as in a file
    scores.score                                  # [N, K]
    msajax.compare("runs/mine", "runs/other")     # paired: is the difference more than chance?
    msajax.table("runs/mine", "runs/other").save("table.tex")    # one table for a paper

The settings are the fields of `Config` and its sections; help(msajax.TrainConfig) explains one.
For the linen module itself see `build_model`, `Bundle.prepare` and `Bundle.params`.
On the command line: msajax --help.
"""

import importlib
import sys
import types
from typing import Any

__version__ = "0.1.0"

# Where each name is: loaded at its first use, so that `import msajax` is quick, and a command that
# is stopped while it loads can say so.
_LAZY = {
    "Bundle": "msajax.inference.bundle",
    "Config": "msajax.config",
    "CorpusSpec": "msajax.spec",
    "DataConfig": "msajax.config",
    "Dropout": "msajax.layers.basic",
    "Memory": "msajax.models.contract",
    "MeshConfig": "msajax.config",
    "Model": "msajax.models.contract",
    "ModelConfig": "msajax.config",
    "NonFiniteError": "msajax.errors",
    "OptimConfig": "msajax.config",
    "Prediction": "msajax.models.contract",
    "Result": "msajax.api",
    "Scores": "msajax.inference.scores",
    "Settings": "msajax.checks",
    "Stage": "msajax.models.contract",
    "SweepResult": "msajax.api",
    "Term": "msajax.models.contract",
    "TrainConfig": "msajax.config",
    "UserError": "msajax.errors",
    "blank_sample": "msajax.models.contract",
    "build_model": "msajax.models.build",
    "compare": "msajax.api",
    "compare_models": "msajax.api",
    "cross_validate": "msajax.api",
    "default_config": "msajax.config",
    "extract": "msajax.recordings.extract",
    "generate": "msajax.inference.generate",
    "load": "msajax.inference.bundle",
    "open_corpus": "msajax.corpus.formats",
    "register_model": "msajax.config",
    "row_weight": "msajax.layers.basic",
    "save_corpus": "msajax.corpus.save_corpus",
    "sweep": "msajax.api",
    "table": "msajax.api",
    "train": "msajax.api",
}

__all__ = sorted(["__version__", *_LAZY])


class _Package(types.ModuleType):
    """The package; what needs JAX is a property, which completion in a shell does not read."""

    def __dir__(self) -> list[str]:
        return sorted(__all__)


def _lazy(name: str) -> property:
    def load(package: types.ModuleType) -> Any:
        if name not in package.__dict__:
            package.__dict__[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return package.__dict__[name]

    def replace(package: types.ModuleType, value: Any) -> None:
        package.__dict__[name] = value

    def restore(package: types.ModuleType) -> None:
        package.__dict__.pop(name, None)

    return property(load, replace, restore)


for _name in _LAZY:
    setattr(_Package, _name, _lazy(_name))
sys.modules[__name__].__class__ = _Package
