"""Writes and reads bundles: all that prediction needs, in JSON and safetensors, no pickle.

The folder:

    bundle.json             configuration, specification, preparation, seeds, calibration of the
                            scores, versions, digests
    parameters.safetensors  every seed's best variables, and the standardisation statistics
    frozen.safetensors      parameters that are the same for every seed, if there are any
    tokenizer.json          of a pretrained text encoder
"""

import dataclasses
import hashlib
import json
import os
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from msajax import __version__, announce
from msajax.config import Config, from_config_dict
from msajax.config.identity import NUMERICS
from msajax.config.registry import registered, warn_of_other_source
from msajax.corpus.embedding import Embedding
from msajax.errors import UserError
from msajax.files import replacing_folder
from msajax.inference.bundle import Bundle
from msajax.inference.description import DAMAGE, FORMAT_VERSION, digest, read_description
from msajax.metrics import calibration
from msajax.models import declared, parameter_shapes
from msajax.preparation.preparation import Preparation
from msajax.runs.folder import encode_frozen
from msajax.runs.local_copy import bundle_folder
from msajax.runs.manifest import DESCRIPTION, FROZEN
from msajax.spec import CorpusSpec

_ARRAYS, _TOKENIZER = "parameters.safetensors", "tokenizer.json"


def save_bundle(path: str, bundle: Bundle) -> None:
    """Writes a bundle; what stands at `path` is replaced only once the new one is complete.

    Raises:
        UserError: if it cannot be written.
    """
    arrays = {
        key: np.asarray(value)
        for key, value in flax.traverse_util.flatten_dict(
            jax.device_get(bundle.variables), sep="/"
        ).items()
    }
    for m, (mean, deviation) in bundle.preparation.statistics.items():
        arrays |= {f"statistics/{m}/mean": mean, f"statistics/{m}/deviation": deviation}
    files = {_ARRAYS: safetensors.numpy.save(arrays)}
    if bundle.shared:
        flat = flax.traverse_util.flatten_dict(bundle.shared, sep="/")
        files[FROZEN] = encode_frozen(flat)
    if bundle.preparation.tokenizer:
        files[_TOKENIZER] = bundle.preparation.tokenizer.encode()
    preparation = dataclasses.replace(bundle.preparation, statistics={}, tokenizer="")
    preparation = dataclasses.asdict(preparation)
    content = {
        "format": "msajax bundle",
        "format_version": FORMAT_VERSION,
        "msajax": __version__,
        "numerics": NUMERICS,
        "jax": jax.__version__,
        "config": bundle.config.to_dict(),
        "model": _model_of(bundle.config),
        "preparation": preparation | {"statistics": list(bundle.preparation.statistics)},
        "seeds": bundle.seeds,
        "best_epoch": bundle.best_epoch,
        "calibration": bundle.calibration and bundle.calibration.to_dict(),
        "corpus_digest": bundle.corpus_digest,
        "sha256_of": {name: hashlib.sha256(x).hexdigest() for name, x in files.items()},
    }
    content["sha256"] = digest(content)

    with replacing_folder(path) as folder:
        for name, encoded in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(encoded)
        with open(os.path.join(folder, DESCRIPTION), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)


def load_bundle(path: str | os.PathLike) -> Bundle:
    """Reads a bundle and verifies its digests.

    Raises:
        UserError: if it is missing, damaged, of another format or of other numerics.
    """
    path = os.fspath(path)
    announce.now(f"Loading the bundle {path}")
    content = read_description(path)
    try:
        model = content["model"]
        warn_of_other_source(model["name"], model["file_sha256"], f"The bundle {path}")
        files = {}
        for name in {_ARRAYS, FROZEN, _TOKENIZER} & content["sha256_of"].keys():
            with open(os.path.join(path, name), "rb") as file:
                files[name] = file.read()
            if hashlib.sha256(files[name]).hexdigest() != content["sha256_of"][name]:
                raise ValueError(f"{name} does not match its digest")
        shared = safetensors.numpy.load(files[FROZEN]) if FROZEN in files else {}
        shared = flax.traverse_util.unflatten_dict(shared, sep="/")
        content["preparation"]["tokenizer"] = files.get(_TOKENIZER, b"").decode()
        return _from_parts(content, safetensors.numpy.load(files[_ARRAYS]), shared)
    except UserError:
        raise
    except (*DAMAGE, safetensors.SafetensorError) as error:
        raise UserError(f"The bundle {path} is damaged: {error}.") from error


def load(path: str | os.PathLike) -> Bundle:
    """Loads a bundle, also from a bucket (gs://…).

    Raises:
        UserError: if it is missing or damaged.
    """
    with bundle_folder(os.path.expanduser(path)) as folder:
        return load_bundle(folder)


def _from_parts(
    content: dict[str, Any], arrays: dict[str, np.ndarray], shared: dict[str, Any]
) -> Bundle:
    preparation = content["preparation"]
    statistics = {
        m: (arrays[f"statistics/{m}/mean"], arrays[f"statistics/{m}/deviation"])
        for m in preparation["statistics"]
    }
    spec = CorpusSpec.from_dict(preparation["spec"])
    listed = {key: tuple(preparation.pop(key)) for key in ("classes", "words")}
    listed["groups"] = tuple(map(tuple, preparation.pop("groups")))
    if preparation["embedding"] is not None:
        preparation["embedding"] = Embedding.from_dict(preparation["embedding"])
    flat = {k: v for k, v in arrays.items() if not k.startswith("statistics/")}
    variables = flax.traverse_util.unflatten_dict(flat, sep="/")
    params = variables.pop("params")
    config = from_config_dict(content["config"])
    _require_shapes(config, spec, params, shared)
    return Bundle(
        config=config,
        preparation=Preparation(
            **preparation | {"spec": spec, "statistics": statistics} | listed
        ),
        seeds=content["seeds"],
        best_epoch=content["best_epoch"],
        params=params,
        corpus_digest=content["corpus_digest"],
        collections=variables,
        shared=shared,
        calibration=content["calibration"] and calibration.from_dict(content["calibration"]),
    )


def _model_of(config: Config) -> dict[str, str]:
    """Says where the module of a bundle's model was registered, for a message."""
    entry = registered()[config.model.name]
    return {
        "name": config.model.name,
        "module": declared(config.model).module.__qualname__,
        "file": os.path.basename(entry.origin),
        "file_sha256": entry.digest,
    }


def _require_shapes(config: Config, spec: CorpusSpec, params: Any, shared: Any) -> None:
    """Raises `UserError` unless the module that is registered has parameters of these shapes."""
    shapes = parameter_shapes(config.model, spec)
    own, of_all = (flax.traverse_util.flatten_dict(x, sep="/") for x in (params, shared))
    stored = {path: x.shape[1:] for path, x in own.items()}
    stored |= {path: x.shape for path, x in of_all.items()}
    if stored != shapes:
        path = min(set(stored.items()) ^ set(shapes.items()))[0]
        raise UserError(
            f"The model {config.model.name!r} that is registered here is another one than the "
            f"bundle's: its parameter {path} is {shapes.get(path, 'missing')} here, "
            f"{stored.get(path, 'missing')} in the bundle."
        )
