"""Compares the peers' models with vectors of their reference implementations.

    python tests/check_peers.py FILE.npz …

A file holds `config/…`, of which `config/model` is the name, `param/…` by PyTorch's names and in
its layouts, `input/…` and `output/…`. The model is built and given the parameters; every output of
the file that the model has is compared: scores and losses within 1e-5, norms of gradients within
1e-4 of their values, all else within 2e-5 of max(1, |value|). A line for each file says how far
they are. Exit code 0: all agree; 1: one does not; 2: a file cannot be read, or its model is not
known.
"""

import dataclasses
import importlib
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

if __name__ == "__main__":  # as a script, the package is beside it rather than installed
    sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]

from flax.traverse_util import flatten_dict, unflatten_dict

from msajax.config import ModelConfig
from msajax.models.build import build_model
from msajax.spec import CorpusSpec

LIMITS = {"score": 1e-5, "losses": 1e-5, "gradient": 1e-4, "others": 2e-5}
Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class File:
    """Holds a file of reference vectors, each part by name."""

    config: dict[str, Any]
    param: dict[str, np.ndarray]
    input: dict[str, np.ndarray]
    output: dict[str, np.ndarray]

    @classmethod
    def read(cls, path: str) -> "File":
        """Reads a file; raises `OSError` or `ValueError` for one that cannot be read."""
        parts: dict[str, dict[str, Any]] = {"config": {}, "param": {}, "input": {}, "output": {}}
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                part, _, name = key.partition("/")
                value = archive[key]
                parts[part][name] = value.item() if part == "config" else value
        return cls(**parts)

    @property
    def batch(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Features and masks of the three modalities."""
        features = {m: self.input[m] for m in ("text", "audio", "video")}
        masks = {
            m: np.arange(x.shape[1]) < self.input[f"{m}_length"][:, None]
            for m, x in features.items()
        }
        return features, masks

    @property
    def spec(self) -> CorpusSpec:
        """What a model must know of these modalities."""
        features, _ = self.batch
        return CorpusSpec(
            tuple(features),
            tuple(x.shape[2] for x in features.values()),
            tuple(x.shape[1] for x in features.values()),
        )

    def build(self, **settings: Any) -> Any:
        """Builds the model with settings of its own."""
        config = ModelConfig(**settings)
        return build_model(config, self.spec)


def linear(name: str, param: Arrays, to: str) -> dict[str, np.ndarray]:
    """Renames a linear layer: its kernel stands the other way round."""
    found = {f"{to}/kernel": param[f"{name}.weight"].T}
    return found | ({f"{to}/bias": param[f"{name}.bias"]} if f"{name}.bias" in param else {})


def norm(name: str, param: Arrays, to: str) -> dict[str, np.ndarray]:
    """Renames the scale and the bias of a normalisation."""
    return {f"{to}/scale": param[f"{name}.weight"], f"{to}/bias": param[f"{name}.bias"]}


def lstm(name: str, param: Arrays, to: str, suffix: str = "l0") -> dict[str, np.ndarray]:
    """Renames an LSTM of one direction."""
    return {
        f"{to}/input_kernel": param[f"{name}.weight_ih_{suffix}"].T,
        f"{to}/state_kernel": param[f"{name}.weight_hh_{suffix}"].T,
        f"{to}/input_bias": param[f"{name}.bias_ih_{suffix}"],
        f"{to}/state_bias": param[f"{name}.bias_hh_{suffix}"],
    }


def nested(flat: Arrays) -> Any:
    """Makes a tree of parameters by path, and requires float32."""
    return unflatten_dict({path: np.asarray(x, np.float32) for path, x in flat.items()}, sep="/")


def count(params: Any) -> int:
    """Counts the numbers of a tree."""
    return sum(x.size for x in jax.tree.leaves(params))


def require_same_paths(params: Any, module: Any, *inputs: Any) -> None:
    """Raises `ValueError` unless these are the module's parameters, of the same shapes."""
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs))["params"]
    here, there = (
        {path: x.shape for path, x in flatten_dict(tree, sep="/").items()}
        for tree in (params, shapes)
    )
    if here != there:
        odd = sorted(here.items() ^ there.items())
        raise ValueError(f"parameters differ: {odd[:6]}")


def with_gradient(loss: Callable[[Any], tuple[jax.Array, Any]], params: Any) -> Any:
    """Computes (loss, others), and the norm of the loss's gradient."""
    (value, others), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    squares = sum(jnp.square(x.astype(jnp.float32)).sum() for x in jax.tree.leaves(gradient))
    return value, others, jnp.sqrt(squares)


def with_score(module: Any, params: Any, inputs: Any, loss_of: Callable[[Any], Any]) -> Any:
    """Computes the loss of a score, (the score, what the module keeps), and the gradient's norm."""
    require_same_paths(params, module, *inputs)

    def loss(params: Any) -> Any:
        prediction, kept = module.apply({"params": params}, *inputs, mutable="intermediates")
        return loss_of(prediction.score), (prediction.score, kept["intermediates"])

    return with_gradient(loss, params)


def kind_of(name: str) -> str:
    """Says which limit an output has."""
    if "grad_norm" in name:
        return "gradient"
    if "loss" in name:
        return "losses"
    return "score" if name.split("_")[-1] == "score" or name.startswith("score_") else "others"


def distances(found: Arrays, expected: Arrays) -> dict[str, float]:
    """Measures the largest difference of each kind, in the units of its limit.

    Raises:
        ValueError: for an output of another shape, and for a file of which too little is found.
    """
    worst = dict.fromkeys(LIMITS, 0.0)
    for name, value in expected.items():
        if name not in found:
            if kind_of(name) != "others":
                raise ValueError(f"the model has no {name}")
            continue
        here, there = np.asarray(found[name], np.float64), np.asarray(value, np.float64)
        if here.shape != there.shape:
            raise ValueError(f"{name} is {there.shape} in the file, {here.shape} here")
        kind = kind_of(name)
        difference = np.abs(here - there)
        if kind == "gradient":
            difference = difference / np.abs(there)
        elif kind == "others":
            difference = difference / np.maximum(np.abs(there), 1)
        largest = float(difference.max(initial=0))
        worst[kind] = largest if largest != largest else max(worst[kind], largest)
    return worst


def check(path: str) -> dict[str, float]:
    """Measures how far a model is from a file's outputs.

    Raises:
        OSError, ValueError, KeyError, ImportError: for a file or a model that cannot be had.
    """
    file = File.read(path)
    module = importlib.import_module(f"peer_{file.config['model'].split('_')[0]}")
    parameters, found = module.rebuild(file)
    expected = file.config.get("num_parameters", parameters)
    if parameters != expected:
        raise ValueError(f"{parameters} parameters here, {expected} in the file")
    return distances(found, file.output)


def main(paths: list[str]) -> int:
    """Checks every file and returns the exit code."""
    if not paths:
        print("usage: python tests/check_peers.py FILE.npz …", file=sys.stderr)
        return 2
    worst = 0
    for path in paths:
        name = pathlib.Path(path).stem
        try:
            found = check(path)
        except Exception as error:  # whatever is wrong with a foreign file, say it and go on
            print(f"{name}: cannot be compared: {type(error).__name__}: {error}")
            worst = 2
            continue
        print(f"{name}  " + "  ".join(f"{kind} {value:.1e}" for kind, value in found.items()))
        if not all(value <= LIMITS[kind] for kind, value in found.items()):
            worst = max(worst, 1)
    return worst


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "float32")
    sys.exit(main(sys.argv[1:]))
