"""Writes and reads bundles: all that prediction needs, in JSON and safetensors, no pickle.

The folder:

    bundle.json             configuration, specification, preparation, seeds, versions, digests
    parameters.safetensors  every seed's best variables, and the standardisation statistics
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from msajax.config import Config, from_config_dict, is_registered
from msajax.config.registry import registered, warn_of_other_source
from msajax.data.prepare import Preparation
from msajax.errors import UserError
from msajax.files import replacing_folder
from msajax.inference.bundle import Bundle
from msajax.models import declared, parameter_shapes
from msajax.runs.remote.local_copy import bundle_folder
from msajax.spec import CorpusSpec
from msajax.version import NUMERICS, __version__, require_numerics

FORMAT_VERSION = 4
_JSON, _ARRAYS = "bundle.json", "parameters.safetensors"


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
    encoded = safetensors.numpy.save(arrays)
    preparation = dataclasses.asdict(dataclasses.replace(bundle.preparation, statistics={}))
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
        "corpus_digest": bundle.corpus_digest,
        "parameters_sha256": hashlib.sha256(encoded).hexdigest(),
    }
    content["sha256"] = _digest(content)

    with replacing_folder(path) as folder:
        with open(os.path.join(folder, _ARRAYS), "wb") as file:
            file.write(encoded)
        with open(os.path.join(folder, _JSON), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)


def load_bundle(path: str | os.PathLike) -> Bundle:
    """Reads a bundle and verifies its digests.

    Raises:
        UserError: if it is missing, damaged, of another format or of other numerics.
    """
    path = os.fspath(path)
    if not os.path.isfile(os.path.join(path, _JSON)):
        raise UserError(f"There is no bundle at {path}: it would hold a file {_JSON}.")
    try:
        with open(os.path.join(path, _JSON), encoding="utf-8") as file:
            content = json.load(file)
        if int(content["format_version"]) > FORMAT_VERSION:
            raise UserError(
                f"The bundle {path} has format {content['format_version']}, newer than this "
                f"program's {FORMAT_VERSION}: install msajax {content['msajax']} or newer."
            )
        if int(content["format_version"]) < FORMAT_VERSION:
            raise UserError(
                f"The bundle {path} was written by an older msajax, {content['msajax']}, in format "
                f"{content['format_version']}; this program reads {FORMAT_VERSION}: train anew."
            )
        if content.pop("sha256") != _digest(content):
            raise ValueError(f"{_JSON} does not match its digest")
        require_numerics(content, f"The bundle {path}")
        require_model(content["model"], f"The bundle {path}")
        with open(os.path.join(path, _ARRAYS), "rb") as file:
            encoded = file.read()
        if hashlib.sha256(encoded).hexdigest() != content["parameters_sha256"]:
            raise ValueError(f"{_ARRAYS} does not match its digest")
        arrays = safetensors.numpy.load(encoded)
        return _from_parts(content, arrays)
    except UserError:
        raise
    except (
        *(OSError, ValueError, LookupError, TypeError, AttributeError),
        *(RecursionError, OverflowError, safetensors.SafetensorError),
    ) as error:
        raise UserError(f"The bundle {path} is damaged: {error}.") from error


def load(path: str | os.PathLike) -> Bundle:
    """Loads a bundle, also from a bucket (gs://…).

    Raises:
        UserError: if it is missing or damaged.
    """
    with bundle_folder(os.path.expanduser(path)) as folder:
        return load_bundle(folder)


def _from_parts(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> Bundle:
    preparation = content["preparation"]
    statistics = {
        m: (arrays[f"statistics/{m}/mean"], arrays[f"statistics/{m}/deviation"])
        for m in preparation["statistics"]
    }
    spec = CorpusSpec.from_dict(preparation["spec"])
    listed = {key: tuple(preparation.pop(key)) for key in ("classes", "words")}
    listed["groups"] = tuple(map(tuple, preparation.pop("groups")))
    flat = {k: v for k, v in arrays.items() if not k.startswith("statistics/")}
    variables = flax.traverse_util.unflatten_dict(flat, sep="/")
    params = variables.pop("params")
    config = from_config_dict(content["config"])
    _require_shapes(config, spec, params)
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


def require_model(content: Mapping[str, Any], where: str) -> None:
    """Raises `UserError` for a model that is not registered here.

    Args:
        content: has "name", "module" and "file", from `_model_of`.
        where: what has the model.
    """
    if not is_registered(content["name"]):
        raise UserError(
            f"{where} has the model {content['name']!r}, which is no model of msajax: it was "
            f"{content['module']} in {content['file']}. Add --models=FILE.py with that file, or in "
            "Python import it first."
        )
    warn_of_other_source(content["name"], content["file_sha256"], where)


def _require_shapes(config: Config, spec: CorpusSpec, params: Any) -> None:
    """Raises `UserError` unless the module that is registered has parameters of these shapes."""
    shapes = parameter_shapes(config.model, spec)
    found = flax.traverse_util.flatten_dict(params, sep="/")
    stored = {path: x.shape[1:] for path, x in found.items()}
    if stored != shapes:
        path = min(set(stored.items()) ^ set(shapes.items()))[0]
        raise UserError(
            f"The model {config.model.name!r} that is registered here is another one than the "
            f"bundle's: its parameter {path} is {shapes.get(path, 'missing')} here, "
            f"{stored.get(path, 'missing')} in the bundle."
        )


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
