"""A bundle: all that prediction needs and nothing else, in JSON and safetensors, no pickle.

The folder:

    bundle.json             configuration, specification, preparation, seeds, versions, digests
    parameters.safetensors  every seed's best parameters, and the standardisation statistics
"""

import dataclasses
import hashlib
import json
import os
import shutil
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from msajax.config import Config, from_config_dict
from msajax.data.prepare import Preparation
from msajax.errors import UserError, writing
from msajax.spec import CorpusSpec
from msajax.version import NUMERICS, __version__, require_numerics

FORMAT_VERSION = 3
_JSON, _ARRAYS = "bundle.json", "parameters.safetensors"


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A trained model.

    Attributes:
        config: the experiment that made it.
        preparation: how a corpus becomes its input.
        seeds: the random seeds.
        best_epoch: one per seed.
        params: parameters, leading axis S.
        corpus_digest: of the corpus it was trained on.
    """

    config: Config
    preparation: Preparation
    seeds: list[int]
    best_epoch: list[int]
    params: Any
    corpus_digest: str

    @property
    def parameters(self) -> int:
        """The number of parameters of one seed's model."""
        return sum(x.size for x in jax.tree.leaves(self.params)) // len(self.seeds)


def save_bundle(path: str, bundle: Bundle) -> None:
    """Writes a bundle; what stands at `path` is replaced only once the new one is complete.

    Raises:
        UserError: if it cannot be written.
    """
    arrays = {
        f"params/{key}": np.asarray(value)
        for key, value in flax.traverse_util.flatten_dict(
            jax.device_get(bundle.params), sep="/"
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
        "preparation": preparation | {"statistics": list(bundle.preparation.statistics)},
        "seeds": bundle.seeds,
        "best_epoch": bundle.best_epoch,
        "corpus_digest": bundle.corpus_digest,
        "parameters_sha256": hashlib.sha256(encoded).hexdigest(),
    }
    content["sha256"] = _digest(content)

    temporary = f"{path}.partial"
    try:
        with writing(f"The bundle {path}"):
            shutil.rmtree(temporary, ignore_errors=True)
            os.makedirs(temporary)
            with open(os.path.join(temporary, _ARRAYS), "wb") as file:
                file.write(encoded)
            with open(os.path.join(temporary, _JSON), "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
            shutil.rmtree(path, ignore_errors=True)
            os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


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


def _from_parts(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> Bundle:
    preparation = content["preparation"]
    statistics = {
        m: (arrays[f"statistics/{m}/mean"], arrays[f"statistics/{m}/deviation"])
        for m in preparation["statistics"]
    }
    spec = CorpusSpec.from_dict(preparation["spec"])
    listed = {key: tuple(preparation.pop(key)) for key in ("classes", "words")}
    listed["groups"] = tuple(map(tuple, preparation.pop("groups")))
    flat = {k.removeprefix("params/"): v for k, v in arrays.items() if k.startswith("params/")}
    return Bundle(
        config=from_config_dict(content["config"]),
        preparation=Preparation(
            **preparation | {"spec": spec, "statistics": statistics} | listed
        ),
        seeds=content["seeds"],
        best_epoch=content["best_epoch"],
        params=flax.traverse_util.unflatten_dict(flat, sep="/"),
        corpus_digest=content["corpus_digest"],
    )


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
