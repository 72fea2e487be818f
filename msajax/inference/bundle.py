"""Holds a trained model with all that prediction needs, and writes and reads it: no pickle.

The folder:

    bundle.json             configuration, specification, preparation, seeds, calibration of the
                            scores, versions, digests
    parameters.safetensors  every seed's best variables, and the standardisation statistics
    frozen.safetensors      parameters that are the same for every seed, if there are any
    tokenizer.json          of a pretrained text encoder
"""

import dataclasses
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

from msajax import __version__, announce
from msajax.config import Config, ModelConfig, from_config_dict
from msajax.config.identity import NUMERICS
from msajax.config.registry import registered, warn_of_other_source
from msajax.corpus.corpus import Embedding, Split
from msajax.corpus.steps import Groups, without
from msajax.encoders.folder import open_folder
from msajax.errors import UserError
from msajax.files import as_path, replacing_folder
from msajax.inference.description import DAMAGE, FORMAT_VERSION, content_digest, read_description
from msajax.inference.embed import make_embedder
from msajax.inference.scores import Scores, as_split, make_scorer
from msajax.inference.scoring import Scorer, make_next_token
from msajax.metrics import calibration
from msajax.metrics.calibration import Calibration
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.models.contract import joined
from msajax.preparation.apply import prepare
from msajax.preparation.fit import Preparation
from msajax.preparation.lost import say_prepared
from msajax.preparation.pieces import named
from msajax.preparation.words import embed
from msajax.runs.folder import encode_frozen
from msajax.runs.local_copy import bundle_folder
from msajax.runs.manifest import DESCRIPTION, FROZEN
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, repr=False)
class Bundle:
    """Holds a trained model: each random seed's parameters at its best epoch, and preparation.

    Attributes:
        best_epoch: one per seed.
        params: parameters, leading axis S.
        corpus_digest: digest of the corpus that it was trained on.
        collections: the model's mutable collections by name, leading axis S.
        shared: parameters that are the same for every seed, nested, without a leading axis; they
            are not among `params`.
        embedders: make features, by modality, where an encoder made those of training.
        calibration: says how sure the mean over seeds is; None if there were too few samples.
    """

    config: Config
    preparation: Preparation
    seeds: list[int]
    best_epoch: list[int]
    params: Any
    corpus_digest: str
    collections: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shared: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    embedders: Mapping[str, Callable[[Split], Split]] = dataclasses.field(default_factory=dict)
    calibration: Calibration | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """Returns the module's variables, leading axis S, but for those that are `shared`."""
        return {"params": self.params, **self.collections}

    @property
    def all_params(self) -> dict[str, Any]:
        """Returns the parameters, nested: leading axis S, or 1 of those that all seeds share."""
        return joined(self.params, jax.tree.map(lambda x: x[None], self.shared))

    @property
    def parameters(self) -> int:
        """Counts the parameters of one seed's model."""
        own, shared = (sum(x.size for x in jax.tree.leaves(t)) for t in (self.params, self.shared))
        return own // len(self.seeds) + shared

    def __repr__(self) -> str:
        return (
            f"Bundle({self.config.model.name} of {self.preparation.spec.describe()}; "
            f"{self.parameters:,} parameters, {len(self.seeds)} seed(s))"
        )

    def predict(
        self,
        features: Mapping[str, Any] | None = None,
        masks: Mapping[str, Any] | None = None,
        raw_text: Sequence[str] | None = None,
        words: Sequence[Sequence[str]] | None = None,
    ) -> Scores:
        """Scores N samples, prepared as the training split was; any N and any lengths.

        Args:
            features: `{modality: [N, T, d]}` numbers as a file would hold them, not standardised,
                `[N, T]` token ids, or a list of N arrays `[T, d]` of different lengths, as
                `save_corpus` takes them; None or an array without a step lacks the modality. A
                single sample is a list of one, or `x[None]`; `[N, d]` is for a model of single
                steps. A modality that is left out is absent. Text of a pretrained encoder may be
                token ids, or `[N, 3, T]`: token ids, mask and segment ids.
            masks: `{modality: [N, T]}`, True for a real step, or a list of N masks `[T]`; without
                one, steps before the first and after the last non-zero one are padding, in a list
                too (or none, if the run's `data.mask_from_zeros` is off).
            raw_text: N transcripts, for a model that reads words or has a pretrained text encoder.
            words: N lists with a word for each step, for a model whose pretrained text encoder was
                trained with words and other modalities step by step.

        Raises:
            UserError: for a modality that the model does not read, shapes that do not fit, or a
                sequence longer than the model's unless `with_data(truncate=…)` says what to keep.
        """
        spec = self.preparation.spec
        split = self._read(features, masks, raw_text, words)
        if not len(split):
            columns = (spec.label_names, spec.modalities)
            found = (np.zeros((len(self.seeds), 0, len(names))) for names in columns)
        else:
            prepared = self.prepare_split(split, "the samples", refuse=False)
            found = self.scorer.score(prepared, "the samples", one_program=True)
        return Scores.of_seeds(*found, self.calibration)

    def prepare(
        self,
        features: Mapping[str, Any] | None = None,
        masks: Mapping[str, Any] | None = None,
        raw_text: Sequence[str] | None = None,
        words: Sequence[Sequence[str]] | None = None,
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Makes what the model reads of N samples: features and masks, for its linen module.

        Args and errors are those of `predict`.

        Returns:
            `{modality: [N, T, d]}` standardised float32 features, `[N, T]` token ids, or pieces
            `[N, T, 3]` of a pretrained encoder's text, and `{modality: [N, T]}` masks, each padded
            to the modality's longest sequence in training.
        """
        spec = self.preparation.spec
        split = self._read(features, masks, raw_text, words)
        split = self.prepare_split(split, "the samples", refuse=False)
        found = {m: split.features[m][:, : spec.length(m)] for m in spec.modalities}
        return found, {m: split.masks[m] for m in spec.modalities}

    def _read(self, features: Any, masks: Any, raw_text: Any, words: Any) -> Split:
        """Makes a split of what `predict` takes; refuses transcripts that nothing would read."""
        preparation = self.preparation
        split = as_split(features, masks, raw_text, preparation, words)
        readers = (preparation.words, preparation.text_from, preparation.embedding("text"))
        if raw_text is not None and not any((*readers, self.config.data.glove_path)):
            raise UserError(
                "raw_text is given, and this model reads none: give features, or, if its text is "
                "vectors of words, name their file (bundle.with_data(glove_path=FILE))."
            )
        return split

    def with_data(
        self,
        *,
        truncate: str | None = None,
        glove_path: str | None = None,
        allow_loss: bool | None = None,
        text_encoder: str | None = None,
        encoders: Mapping[str, str] | None = None,
    ) -> "Bundle":
        """Returns the same model with other settings of `data`, as far as prediction reads them.

        Args:
            truncate: says what is kept of sequences longer than the model's: error, first, last or
                uniform.
            glove_path: word vectors for transcripts without text features.
            allow_loss: see `data.allow_loss`.
            text_encoder: the folder of the text encoder that made the text features of the training
                corpus; transcripts then get theirs by it.
            encoders: folders by modality in the same way, as `{"audio": FOLDER}` for features of
                sound.

        Raises:
            UserError: for a value that the setting cannot have, and for another text encoder.
        """
        given = {"truncate": truncate, "glove_path": glove_path, "allow_loss": allow_loss}
        given = {name: value for name, value in given.items() if value is not None}
        config = self.config.to_dict()
        config["data"] |= given
        config = from_config_dict(config)
        preparation = dataclasses.replace(
            self.preparation, truncate=config.data.truncate, allow_loss=config.data.allow_loss
        )
        embedders = dict(self.embedders)
        of_text = {"text": text_encoder} if text_encoder else {}
        for m, folder in (of_text | dict(encoders or {})).items():
            stored = "transcripts" if m == "text" else "waveforms"
            if preparation.spec.encoder(m) is not None:
                raise UserError(
                    f"{named(m, folder)}: this model has a pretrained encoder of its own, which "
                    f"reads {stored}: leave the key out."
                )
            if (embedding := preparation.embedding(m)) is None:
                raise UserError(
                    f"{named(m, folder)}: no pretrained encoder made the {m} features of this "
                    "model's corpus, so that none can make others."
                )
            embedders[m] = make_embedder(open_folder(folder), embedding)
        return dataclasses.replace(
            self, config=config, preparation=preparation, embedders=embedders
        )

    @functools.cached_property
    def scorer(self) -> Scorer:
        """Puts the model on the devices, made at its first use."""
        return make_scorer(
            self.config, self.preparation, self.variables, self.shared, len(self.seeds)
        )

    @functools.cached_property
    def next_token(self) -> Callable[[np.ndarray, np.ndarray], jax.Array]:
        """Returns the program of `make_next_token`, made at its first use.

        Only of a model of the next_token task.
        """
        module = build_model(self.config.model, self.preparation.spec)
        return make_next_token(module, self.scorer, jax.tree.structure(self.variables))

    @functools.cached_property
    def _lenient(self) -> Preparation:
        return dataclasses.replace(self.preparation, allow_loss=True)

    def prepare_split(self, split: Split, name: str, *, refuse: bool = True) -> Split:
        """Prepares a split as read, and says what was repaired in it.

        Transcripts without text features get the vectors of their words, for a model whose text is
        features.

        Args:
            refuse: whether a split that loses much is refused. Samples in memory are not, for a
                sample's score may not depend on the others: what they lose is said.

        Raises:
            UserError: if it does not fit the model.
        """
        spec = self.preparation.spec
        preparation = self.preparation if refuse else self._lenient
        glove_path = self.config.data.glove_path
        for one in preparation.embeddings:
            if not wants_embedding(split, one):
                continue
            if one.modality not in self.embedders:
                stored = "transcripts"
                key = argument = "text_encoder=FOLDER"
                if one.modality != "text":
                    stored, key = "waveforms", f"encoders={one.modality}=FOLDER"
                    argument = f"encoders={{{one.modality!r}: FOLDER}}"
                raise UserError(
                    f"{split.where}: the {one.modality} of this model is what an encoder made of "
                    f"{stored} ({one.describe()}): name its folder with --config.model.{key} (in "
                    f"Python bundle.with_data({argument}))."
                )
            split = self.embedders[one.modality](split)
        if preparation.embedding("text") is None and glove_path and wants_vectors(split, spec):
            features, mask, unknown = embed(split.raw_text.tolist(), glove_path)
            share = 100 * unknown
            logger.info("Text from transcripts: %.1f %% of the words have no vector.", share)
            split = dataclasses.replace(
                split,
                features={**split.features, "text": features},
                masks={**split.masks, "text": mask},
                derived=split.derived | {"text"},
            )
            # Its steps are the words of the transcript, which are not those of other modalities.
            groups = without(preparation.groups, "text")
            preparation = dataclasses.replace(preparation, groups=groups)
            _require_steps_apart(self.config.model, spec, groups, split.where)
        split, repairs = prepare(split, preparation, self.config.data.device_memory_budget)
        say_prepared(name, split, repairs, preparation.clip)
        return split


def _require_steps_apart(model: ModelConfig, spec: CorpusSpec, groups: Groups, where: str) -> None:
    """Raises `UserError` for a model that joins steps which are in no group any more."""
    apart = dataclasses.replace(spec, groups=groups)
    if apart == spec:
        return
    try:
        same = parameter_shapes(model, apart) == parameter_shapes(model, spec)
    except UserError:
        same = False
    if not same:
        raise UserError(
            f"{where}: this model joins text to other modalities step by step, and the words of "
            "transcripts have steps of their own: give it text as features, as it was trained on."
        )


def wants_embedding(split: Split, embedding: Embedding) -> bool:
    """Says whether a split has what an encoder would make features of, in place of them."""
    m = embedding.modality
    if m == "text":
        has_words = split.raw_text is not None or split.words is not None
        return has_words and m not in split.features
    return m in split.features and split.features[m].shape[2:] == (1,) != (embedding.width,)


def wants_vectors(split: Split, spec: CorpusSpec) -> bool:
    """Says whether transcripts would be the text of a split, by word vectors."""
    reads_features = "text" in spec.modalities and not spec.vocabulary("text")
    return reads_features and split.raw_text is not None and "text" not in split.features


# --- the folder ---

_ARRAYS, _TOKENIZER = "parameters.safetensors", "tokenizer.json"


def save_bundle(path: str, bundle: Bundle) -> None:
    """Writes a bundle in place of `path`, once complete; raises `UserError` if it cannot."""
    # The files of arrays, encoded in memory: bundle.json holds their digests.
    arrays = flatten_dict(jax.device_get(bundle.variables), sep="/")
    arrays = {path: np.asarray(x) for path, x in arrays.items()}
    for m, (mean, deviation) in bundle.preparation.statistics.items():
        arrays |= {f"statistics/{m}/mean": mean, f"statistics/{m}/deviation": deviation}
    files = {_ARRAYS: safetensors.numpy.save(arrays)}
    if bundle.shared:
        files[FROZEN] = encode_frozen(flatten_dict(bundle.shared, sep="/"))
    if bundle.preparation.tokenizer:
        files[_TOKENIZER] = bundle.preparation.tokenizer.encode()
    # What is no array; of the preparation all but what those files hold.
    preparation = dataclasses.replace(bundle.preparation, statistics={}, tokenizer="")
    preparation = dataclasses.asdict(preparation)
    entry = registered()[bundle.config.model.name]
    content = {
        "format": "msajax bundle",
        "format_version": FORMAT_VERSION,
        "msajax": __version__,
        "numerics": NUMERICS,
        "jax": jax.__version__,
        "config": bundle.config.to_dict(),
        "model": {  # where its module was registered, for a message
            "name": bundle.config.model.name,
            "module": declared(bundle.config.model).module.__qualname__,
            "file": os.path.basename(entry.origin),
            "file_sha256": entry.digest,
        },
        "preparation": preparation | {"statistics": list(bundle.preparation.statistics)},
        "seeds": bundle.seeds,
        "best_epoch": bundle.best_epoch,
        "calibration": bundle.calibration and bundle.calibration.to_dict(),
        "corpus_digest": bundle.corpus_digest,
        "sha256_of": {name: hashlib.sha256(x).hexdigest() for name, x in files.items()},
    }
    content["sha256"] = content_digest(content)

    with replacing_folder(path) as folder:
        for name, encoded in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(encoded)
        with open(os.path.join(folder, DESCRIPTION), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)


def load_bundle(path: str | os.PathLike) -> Bundle:
    """Reads a bundle and verifies its digests; raises `UserError` if it cannot be used."""
    path = os.fspath(path)
    announce.now(f"Loading the bundle {path}")
    content = read_description(path)
    try:
        # Read the other files, which are as they were written if their digests are.
        model = content["model"]
        warn_of_other_source(model["name"], model["file_sha256"], f"The bundle {path}")
        files = {}
        for name in {_ARRAYS, FROZEN, _TOKENIZER} & content["sha256_of"].keys():
            with open(os.path.join(path, name), "rb") as file:
                files[name] = file.read()
            if hashlib.sha256(files[name]).hexdigest() != content["sha256_of"][name]:
                raise ValueError(f"{name} does not match its digest")
        shared = safetensors.numpy.load(files[FROZEN]) if FROZEN in files else {}
        shared = unflatten_dict(shared, sep="/")
        arrays = safetensors.numpy.load(files[_ARRAYS])

        # Put the preparation together, with types that JSON has not kept.
        preparation = content["preparation"]
        preparation["tokenizer"] = files.get(_TOKENIZER, b"").decode()
        preparation["spec"] = CorpusSpec.from_dict(preparation["spec"])
        preparation["statistics"] = {
            m: (arrays.pop(f"statistics/{m}/mean"), arrays.pop(f"statistics/{m}/deviation"))
            for m in preparation["statistics"]
        }
        for key in ("classes", "words"):
            preparation[key] = tuple(preparation[key])
        preparation["groups"] = tuple(map(tuple, preparation["groups"]))
        preparation["embeddings"] = tuple(map(Embedding.from_dict, preparation["embeddings"]))

        # What is left of the arrays are variables, which must fit the model that is known here.
        variables = unflatten_dict(arrays, sep="/")
        params = variables.pop("params")
        config = from_config_dict(content["config"])
        if (fitted := content["calibration"]) is not None:
            task = TASKS[preparation["spec"].label_kind]
            fitted = calibration.from_dict(fitted, task.calibration)
        _require_shapes(config, preparation["spec"], params, shared)
        return Bundle(
            config=config,
            preparation=Preparation(**preparation),
            seeds=content["seeds"],
            best_epoch=content["best_epoch"],
            params=params,
            corpus_digest=content["corpus_digest"],
            collections=variables,
            shared=shared,
            calibration=fitted,
        )
    except UserError:
        raise
    except (*DAMAGE, safetensors.SafetensorError) as error:
        raise UserError(f"The bundle {path} is damaged: {error}.") from error


def load(path: str | os.PathLike) -> Bundle:
    """Loads a bundle, also from a bucket; raises `UserError` if it is missing or damaged."""
    path = as_path(path, "bundle", "the folder of a bundle")
    with bundle_folder(os.path.expanduser(path)) as folder:
        return load_bundle(folder)


def _require_shapes(config: Config, spec: CorpusSpec, params: Any, shared: Any) -> None:
    shapes = parameter_shapes(config.model, spec)
    own, of_all = (flatten_dict(x, sep="/") for x in (params, shared))
    stored = {path: x.shape[1:] for path, x in own.items()}
    stored |= {path: x.shape for path, x in of_all.items()}
    if stored != shapes:
        path = min(set(stored.items()) ^ set(shapes.items()))[0]
        raise UserError(
            f"The model {config.model.name!r} that is registered here is another one than the "
            f"bundle's: its parameter {path} is {shapes.get(path, 'missing')} here, "
            f"{stored.get(path, 'missing')} in the bundle."
        )
