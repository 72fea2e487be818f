"""Compares the sequence-level model with files of reference vectors.

    python tests/check_reference.py FILE.npz …

Each file holds a configuration, inputs, masks, every weight, and the expected score, loss and
gradient norm of an independent implementation. One JSON object per file goes to standard output.
Exit code 0: all agree; 1: a file disagrees; 2: a file cannot be read.
"""

import functools
import json
import pathlib
import sys

import jax

if __name__ == "__main__":  # as a script, the package is beside it rather than installed
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import flax.linen as nn
import flax.traverse_util
import jax.numpy as jnp
import numpy as np
import optax

from msajax.config import ModelConfig
from msajax.layers.heads import AdaptiveHead
from msajax.layers.transformer import TransformerBlock
from msajax.models.build import build_model
from msajax.spec import CorpusSpec

LIMITS = {"max_abs_error": 1e-5, "loss_abs_error": 1e-5, "grad_norm_rel_error": 1e-4}
MODEL_KEYS = (
    "model_dim", "num_heads", "ff_dim", "n_layers_mod", "n_layers_fuse", "bidirectional_fusion",
    "pooling_method", "norm_eps",
)


@functools.partial(jax.jit, static_argnums=0)
def apply_part(module: nn.Module, params, *arguments):
    """Applies a module: compiled once, as all blocks of a model have the same shapes."""
    return module.apply({"params": params}, *arguments, train=False)


def compiled_parts(call, args, kwargs, context):
    """Has `apply_part` compute every block, and the head, where they are parts of a model."""
    module = context.module
    if not (isinstance(module, TransformerBlock | AdaptiveHead) and module.path):
        return call(*args, **kwargs)
    return apply_part(module.clone(parent=None, name=None), module.variables["params"], *args)


@functools.cache  # once for all files of one model
def build(config: ModelConfig, spec: CorpusSpec):
    """Returns the model, and a function that gives loss, score and norm of the gradient."""
    model = build_model(config, spec)

    @nn.intercept_methods(compiled_parts)
    def loss_and_score(params, features, masks, target):
        score = model.apply({"params": params}, features, masks).score
        return jnp.abs(score - target).mean(), score

    def measure(*arguments):
        found, gradient = jax.value_and_grad(loss_and_score, has_aux=True)(*arguments)
        return *found, optax.tree.norm(gradient)

    return model, measure


def check(path: str) -> dict[str, float | int | str]:
    """Measures how far the model is from one file.

    Returns:
        The file's name, the number of parameters, and the three errors.

    Raises:
        OSError, KeyError, ValueError: if the file is not of the reference layout.
    """
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    config = json.loads(str(arrays["config"]))
    dims = config["dims"]  # JSON keeps the order: the first modality is the anchor
    spec = CorpusSpec(
        modalities=tuple(dims),
        widths=tuple(dims.values()),
        lengths=tuple(arrays[f"param:{m}_encoder/positions/embedding"].shape[0] for m in dims),
    )
    model, measure = build(
        ModelConfig(anchor=next(iter(dims)), **{key: config[key] for key in MODEL_KEYS}), spec
    )
    features = {m: arrays[f"input:{m}"] for m in dims}
    masks = {m: arrays[f"mask:{m}"] for m in dims}

    given = {k.removeprefix("param:"): v for k, v in arrays.items() if k.startswith("param:")}
    expected = flax.traverse_util.flatten_dict(
        jax.eval_shape(model.init, jax.random.key(0), features, masks)["params"], sep="/"
    )
    shapes = {k: v.shape for k, v in given.items()}
    if shapes != {k: v.shape for k, v in expected.items()}:
        differing = sorted(
            k
            for k in shapes.keys() | expected.keys()
            if k not in shapes or k not in expected or shapes[k] != expected[k].shape
        )
        raise ValueError(f"weights that do not fit the model: {', '.join(differing)}")
    params = flax.traverse_util.unflatten_dict(given, sep="/")
    loss, score, norm = measure(params, features, masks, arrays["target"])
    expected_norm = float(arrays["grad_global_norm"])
    return {
        "file": path,
        "parameters": sum(v.size for v in given.values()),
        "max_abs_error": float(np.abs(np.asarray(score) - arrays["output:score"]).max()),
        "loss_abs_error": abs(float(loss) - float(arrays["loss_mae"])),
        "grad_norm_rel_error": abs(float(norm) - expected_norm) / expected_norm,
    }


def main(paths: list[str]) -> int:
    """Checks every file and returns the exit code."""
    if not paths:
        print("usage: python tests/check_reference.py FILE.npz …", file=sys.stderr)
        return 2
    worst = 0
    for path in paths:
        try:
            report = check(path)
        except Exception as error:  # whatever is wrong with a foreign file, say it and go on
            reason = f"{type(error).__name__}: {error}"
            print(json.dumps({"file": path, "error": reason}))
            worst = 2
            continue
        print(json.dumps(report))
        # written so that a NaN fails
        if not all(report[key] < limit for key, limit in LIMITS.items()):
            worst = max(worst, 1)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
