"""Compares pretrained encoders with the reference outputs in their folders.

    python tests/check_pretrained.py FOLDER …

A folder holds config.json, the weights, and reference.npz: `ids` and `mask` `[B, T]`, `segments`
where there are any, or `waveform` and `mask` `[B, S]` and `frame_mask` `[B, T]`;
`last_hidden_state` `[B, T, D]`, and perhaps `hidden_0` (what the first layer reads) to `hidden_L`
(after each layer), zero at padding. For each folder the largest difference of each of
them is printed. Exit code 0: all agree within 2e-5; 1: one does not; 2: a folder cannot be read.
"""

import os
import pathlib
import sys

import jax

if __name__ == "__main__":  # as a script, the package is beside it rather than installed
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import flax.traverse_util
import numpy as np

from msajax.encoders.folder import open_folder
from msajax.encoders.module import make_encoder, parameters_of

LIMIT = 2e-5


def check(path: str) -> dict[str, float]:
    """Measures how far an encoder is from its reference: the largest difference of each output.

    Raises:
        OSError, KeyError, ValueError: if the folder or its reference cannot be read.
    """
    folder = open_folder(path)
    with np.load(os.path.join(path, "reference.npz"), allow_pickle=False) as archive:
        reference = {key: archive[key] for key in archive.files}
    encoder = make_encoder(folder.architecture, "float32")
    params = parameters_of(folder.architecture, folder.tensors(), path)
    variables = {"params": flax.traverse_util.unflatten_dict(params, sep="/")}

    @jax.jit
    def run(variables, *inputs, **more):
        return encoder.apply(variables, *inputs, **more, train=False, mutable="intermediates")

    mask = reference["mask"].astype(bool)
    if "waveform" in reference:
        lengths = mask.sum(axis=1, dtype=np.int32)
        if (mask != (np.arange(mask.shape[1]) < lengths[:, None])).any():
            raise ValueError("a waveform of reference.npz is padded in front, or has holes")
        (output, valid), kept = run(variables, reference["waveform"], lengths)
        if not np.array_equal(valid, reference["frame_mask"].astype(bool)):
            raise ValueError("frame_mask of reference.npz has other valid frames")
    else:
        more = {key: reference[key] for key in ("segments",) if key in reference}
        output, kept = run(variables, reference["ids"], mask, **more)
    (hidden,) = kept["intermediates"]["hidden"]
    outputs = {f"hidden_{i}": one for i, one in enumerate(hidden)}
    last = f"hidden_{len(hidden) - 1}"
    expected = reference["last_hidden_state"]
    if last in reference and np.allclose(reference[last], expected, rtol=0, atol=1e-6):
        outputs[last] = output  # in the reference it stands behind the final norm
    outputs["last_hidden_state"] = output
    wanted = [key for key in reference if key == "last_hidden_state" or key.startswith("hidden_")]
    for key in wanted:
        if key not in outputs:
            raise ValueError(f"reference.npz holds {key}, but there are {len(hidden) - 1} layers")
        if outputs[key].shape != reference[key].shape:
            raise ValueError(f"{key} has the shape {reference[key].shape} in reference.npz")
    return {key: float(np.abs(np.asarray(outputs[key]) - reference[key]).max()) for key in wanted}


def main(paths: list[str]) -> int:
    """Checks every folder and returns the exit code."""
    if not paths:
        print("usage: python tests/check_pretrained.py FOLDER …", file=sys.stderr)
        return 2
    worst = 0
    for path in paths:
        try:
            differences = check(path)
        except Exception as error:  # whatever is wrong with a foreign folder, say it and go on
            print(f"{path}: cannot be read: {type(error).__name__}: {error}")
            worst = 2
            continue
        largest = max(differences.values(), key=lambda value: (value != value, value))  # NaN first
        each = ", ".join(f"{key} {value:.1e}" for key, value in differences.items())
        print(f"{path}: {largest:.1e} ({each})")
        if not largest <= LIMIT:
            worst = max(worst, 1)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
