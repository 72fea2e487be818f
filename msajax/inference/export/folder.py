"""Writes a bundle as a folder that is run with jax alone.

The folder:

    program.jax_export  the program, as `jax.export` serialises it: StableHLO, and what calls it
    parameters.npz      its first argument, by name
    manifest.json       its inputs and outputs, the model, versions and digests
    example.py          calls it, in 20 lines
    tokenizer.json      of a pretrained text encoder
    vocabulary.json     the words of a model that reads transcripts, in the order of their token ids
"""

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from msajax import __version__
from msajax.config.identity import NUMERICS
from msajax.files import json_text, replacing_folder
from msajax.inference.bundle import Bundle
from msajax.inference.export.program import BATCH, PLATFORMS, Program, make_program

EXAMPLE = '''\
"""Scores samples with jax, numpy and flatbuffers: python example.py [INPUTS.npz [SCORES.npz]]"""
import json, pathlib, sys
import jax, jax.export
import numpy as np
here = pathlib.Path(__file__).resolve().parent
manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
program = jax.export.deserialize(bytearray((here / manifest["program"]).read_bytes()))
parameters = jax.device_put(dict(np.load(here / manifest["parameters"])))
longest = manifest["longest"]
# Without a file: two samples of zeros, of which every step is there.
inputs = dict(np.load(sys.argv[1])) if sys.argv[1:] else {x["name"]: np.full(
    [n if isinstance(n, int) else longest.get(n, 2) for n in x["shape"]],
    x["name"].startswith("masks/")) for x in manifest["inputs"]}
inputs = {x["name"]: inputs[x["name"]].astype(x["dtype"]) for x in manifest["inputs"]}
sizes = {s: n for x in manifest["inputs"] for s, n in zip(x["shape"], inputs[x["name"]].shape)}
if any(sizes[name] > most for name, most in longest.items()):
    sys.exit(f"These samples are {sizes} long, at most {longest} is read: cut them.")
scores = jax.device_get(jax.jit(program.call)(parameters, inputs))
print({name: x.shape for name, x in scores.items()}, scores["score"].tolist()[:3])
np.savez(sys.argv[2], **scores) if sys.argv[2:] else None
'''


FORMAT_VERSION = 1
_PROGRAM, _PARAMETERS = "program.jax_export", "parameters.npz"
_TOKENIZER, _VOCABULARY = "tokenizer.json", "vocabulary.json"


def write_export(bundle: Bundle, path: str) -> dict[str, Any]:
    """Exports a bundle into a new folder, whole or not at all; returns its manifest.

    Raises:
        UserError: if the model cannot be exported, or the folder cannot be written.
    """
    program = make_program(bundle)
    files = {_PROGRAM: bytes(program.exported.serialize()), "example.py": EXAMPLE.encode()}
    if bundle.preparation.tokenizer:
        files[_TOKENIZER] = bundle.preparation.tokenizer.encode()
    if bundle.preparation.words:
        files[_VOCABULARY] = json.dumps(bundle.preparation.words, ensure_ascii=False).encode()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    with replacing_folder(path) as folder:
        parameters = os.path.join(folder, _PARAMETERS)
        write_arrays(parameters, program.parameters)
        with open(parameters, "rb") as file:
            digests[_PARAMETERS] = hashlib.file_digest(file, "sha256").hexdigest()
        manifest = describe(bundle, program, digests)
        files["manifest.json"] = json_text(manifest).encode()
        for name, content in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
    return manifest


def write_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an .npz archive without the time of writing, so that equal arrays are equal files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def describe(bundle: Bundle, program: Program, digests: Mapping[str, str]) -> dict[str, Any]:
    """Makes the manifest of an export."""
    preparation, spec = bundle.preparation, bundle.preparation.spec
    outputs, seeds = len(spec.label_names), len(bundle.seeds)
    return {
        "format": "msajax export",
        "format_version": FORMAT_VERSION,
        "msajax": __version__,
        "numerics": NUMERICS,
        "jax": jax.__version__,
        "calling_convention_version": program.exported.calling_convention_version,
        "platforms": PLATFORMS,
        "program": _PROGRAM,
        "parameters": _PARAMETERS,
        "inputs": [
            {"name": one.name, "dtype": one.dtype, "shape": one.shape, "meaning": one.meaning}
            for one in program.interface.inputs
        ],
        "longest": dict(program.interface.longest),
        "padded": program.padded,
        "outputs": [
            _output("score", (BATCH, outputs), "the mean over random seeds"),
            _output("score_sd", (BATCH, outputs), "their deviation (ddof 1); NaN for one seed"),
            _output("seeds", (seeds, BATCH, outputs), "the score of each random seed"),
            _output("weights", (BATCH, len(spec.modalities)), "of the modalities, their mean"),
        ],
        # Of intervals: score ± quantile x spread, which is score_sd, or the floor where it is more.
        "calibration": bundle.calibration and bundle.calibration.to_dict(),
        "not_a_number": "scores of a sample whose ids or steps are none that the model knows",
        "model": {
            "name": bundle.config.model.name,
            "parameters": bundle.parameters,
            "seeds": bundle.seeds,
            "best_epoch": bundle.best_epoch,
        },
        "modalities": spec.modalities,
        "labels": {"kind": spec.label_kind, "names": spec.label_names},
        "preparation": {
            "standardized": list(preparation.statistics),
            "clip": preparation.clip,
            "mask_from_zeros": preparation.mask_from_zeros,
            "truncate": preparation.truncate,
            "aligned": preparation.groups,
        },
        "text": _text_of(bundle),
        "corpus_digest": bundle.corpus_digest,
        "sha256_of": dict(sorted(digests.items())),
    }


def _output(name: str, shape: tuple[int | str, ...], meaning: str) -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "shape": shape, "meaning": meaning}


def _text_of(bundle: Bundle) -> dict[str, Any] | None:
    """Says what makes the text of transcripts; None for text that is features or ids alone."""
    preparation = bundle.preparation
    if preparation.spec.text_encoder is not None:
        encoder = preparation.spec.text_encoder
        return {
            "tokenizer": _TOKENIZER if preparation.tokenizer else None,
            "encoder": encoder.kind,
            "from": preparation.text_from,
            "pool": preparation.text_pool,
            "padding_id": encoder.padding_id,
        }
    if preparation.words:
        return {"vocabulary": _VOCABULARY}
    if preparation.embedding is not None:
        return {"embedding": dataclasses.asdict(preparation.embedding)}
    return None
