"""A bundle: all that prediction needs and nothing else, in JSON and safetensors, no pickle.

The folder:

    bundle.json             configuration, specification, preparation, seeds, versions, digests
    parameters.safetensors  every seed's best parameters, and the standardisation statistics
"""

import dataclasses
import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from msajax.config import Config, from_config_dict, is_registered
from msajax.config.registry import registered
from msajax.data.corpus import Split
from msajax.data.prepare import Preparation, prepare
from msajax.data.repairs import say_prepared
from msajax.data.steps import without
from msajax.data.vocabulary import embed
from msajax.errors import UserError, writing
from msajax.inference.scores import Scores, as_split, make_scorer
from msajax.inference.scoring import Scorer
from msajax.models import declared, parameter_shapes
from msajax.runs.remote.local_copy import bundle_folder
from msajax.spec import CorpusSpec
from msajax.version import NUMERICS, __version__, require_numerics

logger = logging.getLogger(__name__)

FORMAT_VERSION = 4
_JSON, _ARRAYS = "bundle.json", "parameters.safetensors"


@dataclasses.dataclass(frozen=True, repr=False)
class Bundle:
    """A trained model: of every random seed the parameters at its best epoch, and preparation.

    Attributes:
        config: the experiment that made it.
        preparation: how a corpus becomes its input.
        seeds: the random seeds.
        best_epoch: one per seed.
        params: parameters, leading axis S.
        corpus_digest: of the corpus it was trained on.
        collections: the model's mutable collections by name, leading axis S.
    """

    config: Config
    preparation: Preparation
    seeds: list[int]
    best_epoch: list[int]
    params: Any
    corpus_digest: str
    collections: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def variables(self) -> dict[str, Any]:
        """What the linen module is applied with, leading axis S."""
        return {"params": self.params, **self.collections}

    @property
    def parameters(self) -> int:
        """The number of parameters of one seed's model."""
        return sum(x.size for x in jax.tree.leaves(self.params)) // len(self.seeds)

    def __repr__(self) -> str:
        return (
            f"Bundle({self.config.model.name} of {self.preparation.spec.describe()}; "
            f"{self.parameters:,} parameters, {len(self.seeds)} seed(s))"
        )

    def predict(
        self,
        features: Mapping[str, Any],
        masks: Mapping[str, Any] | None = None,
        raw_text: Sequence[str] | None = None,
    ) -> Scores:
        """Scores N samples, prepared as the training split was; any N and any lengths.

        Args:
            features: `{modality: [N, T, d]}` numbers as a file would hold them, not standardised;
                `[N, d]` is a single step, `[N, T]` token ids; or a list of N arrays `[T, d]` of
                different lengths. A modality that is left out is absent.
            masks: `{modality: [N, T]}`, True for a real step; without one, steps before the first
                and after the last non-zero one are padding (or none, if the run's
                `data.mask_from_zeros` is off).
            raw_text: N transcripts, for a model that reads words.

        Raises:
            UserError: for a modality that the model does not read, shapes that do not fit, or a
                sequence longer than the model's unless `with_data(truncate=…)` says what to keep.
        """
        spec = self.preparation.spec
        split = as_split(features, masks, raw_text, self.preparation)
        if not len(split):
            outputs, modalities = len(spec.label_names), len(spec.modalities)
            seeds = np.zeros((len(self.seeds), 0, 1))
            return Scores.of_seeds(seeds.repeat(outputs, 2), seeds.repeat(modalities, 2))
        prepared = self.prepare_split(split, "the samples", refuse=False)
        return Scores.of_seeds(*self.scorer.score(prepared, "the samples"))

    def prepare(
        self,
        features: Mapping[str, Any],
        masks: Mapping[str, Any] | None = None,
        raw_text: Sequence[str] | None = None,
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What the model reads of N samples: features and masks, for a call of the linen module.

        Args and errors are those of `predict`.

        Returns:
            `{modality: [N, T, d]}` standardised float32 features, or `[N, T]` token ids, and
            `{modality: [N, T]}` masks, each padded to the modality's longest sequence in training.
        """
        spec = self.preparation.spec
        split = as_split(features, masks, raw_text, self.preparation)
        split = self.prepare_split(split, "the samples", refuse=False)
        found = {m: split.features[m][:, : spec.length(m)] for m in spec.modalities}
        return found, {m: split.masks[m] for m in spec.modalities}

    def with_data(
        self,
        *,
        truncate: str | None = None,
        glove_path: str | None = None,
        allow_loss: bool | None = None,
    ) -> "Bundle":
        """The same model with other settings of `data`, as far as prediction reads them.

        Args:
            truncate: what happens to sequences longer than the model's: error, first, last or
                uniform.
            glove_path: word vectors for transcripts without text features.
            allow_loss: see `data.allow_loss`.

        Raises:
            UserError: for a value that the setting cannot have.
        """
        given = {"truncate": truncate, "glove_path": glove_path, "allow_loss": allow_loss}
        given = {name: value for name, value in given.items() if value is not None}
        config = self.config.to_dict()
        config["data"] |= given
        config = from_config_dict(config)
        data = config.data
        preparation = dataclasses.replace(
            self.preparation, truncate=data.truncate, allow_loss=data.allow_loss
        )
        return dataclasses.replace(self, config=config, preparation=preparation)

    @functools.cached_property
    def scorer(self) -> Scorer:
        """The model on the devices, made at its first use."""
        return make_scorer(self.config, self.preparation, self.variables, len(self.seeds))

    def prepare_split(self, split: Split, name: str, *, refuse: bool = True) -> Split:
        """Prepares a split as read, and says what was repaired in it.

        Transcripts without text features get the vectors of their words, for a model whose text is
        features.

        Args:
            split: as read.
            name: what the log calls it.
            refuse: whether a split that loses much is refused. Samples in memory are not, for a
                sample's score may not depend on the others: what they lose is said.

        Raises:
            UserError: if it does not fit the model.
        """
        spec, preparation = self.preparation.spec, self.preparation
        if not refuse:
            preparation = dataclasses.replace(preparation, allow_loss=True)
        glove_path = self.config.data.glove_path
        if glove_path and wants_vectors(split, spec):
            split = _with_vectors(split, glove_path)
            # Its steps are the words of the transcript, which are not those of other modalities.
            groups = without(preparation.groups, "text")
            preparation = dataclasses.replace(preparation, groups=groups)
        split, repairs = prepare(split, preparation, self.config.data.device_memory_budget)
        say_prepared(name, split, repairs, preparation.clip)
        return split


def wants_vectors(split: Split, spec: CorpusSpec) -> bool:
    """Whether transcripts would be the text of a split, by word vectors."""
    reads_features = "text" in spec.modalities and not spec.vocabulary("text")
    return reads_features and split.raw_text is not None and "text" not in split.features


def _with_vectors(split: Split, glove_path: str) -> Split:
    """The split with the vectors of its transcripts' words as text."""
    features, mask, unknown = embed(split.raw_text.tolist(), glove_path)
    logger.info("Text from transcripts: %.1f %% of the words have no vector.", 100 * unknown)
    return dataclasses.replace(
        split,
        features={**split.features, "text": features},
        masks={**split.masks, "text": mask},
        derived=split.derived | {"text"},
    )


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
    origin = registered()[config.model.name].origin
    module = declared(config.model).module.__qualname__
    return {"name": config.model.name, "module": module, "file": os.path.basename(origin)}


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
