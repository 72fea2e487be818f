"""Writes a bundle as a folder that is run with jax alone.

The folder:

    program.jax_export  the program, as `jax.export` serialises it: StableHLO, and what calls it.
                        It prepares, runs the model of every random seed, and takes their mean
    parameters.npz      its first argument, by name
    manifest.json       its inputs and outputs, the model, versions and digests
    example.py          calls it, in 20 lines
    tokenizer.json      of a pretrained text encoder
    vocabulary.json     the words of a model that reads transcripts, in the order of their token ids
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from msajax import __version__
from msajax.config.identity import NUMERICS
from msajax.corpus.steps import movers
from msajax.encoders.speech_architecture import SAMPLE_RATE
from msajax.errors import UserError, first_line
from msajax.files import digest_of, json_text, replacing_folder
from msajax.inference.bundle import Bundle
from msajax.inference.export.preparation import as_pair, prepare
from msajax.models.build import build_model
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
PLATFORMS = ("cpu", "cuda", "tpu")
BATCH = "batch"
_PROGRAM, _PARAMETERS = "program.jax_export", "parameters.npz"
_TOKENIZER, _VOCABULARY = "tokenizer.json", "vocabulary.json"

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


@dataclasses.dataclass(frozen=True)
class Program:
    """Holds an exported program and what it is called with.

    Attributes:
        exported: takes (parameters, inputs) by name, and returns scores by name.
        inputs: describes what is scored: name, dtype, shape and meaning of each; a word in a shape
            stands for a size that is free.
        longest: the largest value of each free size that has one.
        parameters: the first argument: parameters, collections and statistics.
        padded: steps of the modalities that the program pads before the model reads them.
    """

    exported: jax.export.Exported
    inputs: Sequence[Mapping[str, Any]]
    longest: Mapping[str, int]
    parameters: dict[str, np.ndarray]
    padded: dict[str, int]


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
        write_npz(parameters, program.parameters)
        digests[_PARAMETERS] = digest_of(parameters)
        manifest = _make_manifest(bundle, program, digests)
        files["manifest.json"] = json_text(manifest).encode()
        for name, content in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
    return manifest


def write_npz(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an .npz archive without the time of writing, so that equal arrays are equal files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def _make_manifest(bundle: Bundle, program: Program, digests: Mapping[str, str]) -> dict[str, Any]:
    preparation, spec = bundle.preparation, bundle.preparation.spec
    scores, weights = (BATCH, len(spec.label_names)), (BATCH, len(spec.modalities))
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
        "inputs": program.inputs,
        "longest": dict(program.longest),
        "padded": program.padded,
        "outputs": [
            _array("score", "float32", scores, "the mean over random seeds"),
            _array("score_sd", "float32", scores, "their deviation (ddof 1); NaN for one seed"),
            _array(
                "seeds", "float32", (len(bundle.seeds), *scores), "the score of each random seed"
            ),
            _array("weights", "float32", weights, "of the modalities, their mean"),
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
        "embeddings": [dataclasses.asdict(one) for one in preparation.embeddings],
        "corpus_digest": bundle.corpus_digest,
        "sha256_of": dict(sorted(digests.items())),
    }


def _array(name: str, dtype: str, shape: tuple[int | str, ...], meaning: str) -> dict[str, Any]:
    """Describes an input or an output; a word in a shape stands for a size that is free."""
    return {"name": name, "dtype": dtype, "shape": shape, "meaning": meaning}


def _text_of(bundle: Bundle) -> dict[str, Any] | None:
    preparation = bundle.preparation
    if (encoder := preparation.spec.encoder("text")) is not None:
        return {
            "tokenizer": _TOKENIZER if preparation.tokenizer else None,
            "encoder": encoder.kind,
            "from": preparation.text_from,
            "pool": preparation.text_pool,
            "padding_id": encoder.padding_id,
        }
    if preparation.words:
        return {"vocabulary": _VOCABULARY}
    return None


# --- the program ---


def make_program(bundle: Bundle) -> Program:
    """Exports a bundle.

    Sequences keep the length that they are called with. Where a model needs to know lengths when it
    is traced, as for tables of positions that are computed, and where the most words do not follow
    from the number of pieces, the program pads them to the longest.

    Raises:
        UserError: for a model that cannot be traced without the number of samples.
    """
    spec = bundle.preparation.spec
    inputs, longest = make_inputs(bundle)
    parameters = make_parameters(bundle)
    of_parameters = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in parameters.items()}
    # As JAX traces them: the free sizes are symbols.
    scope = jax.export.SymbolicScope([f"{name} <= {n}" for name, n in longest.items()])
    of_inputs = {
        one["name"]: jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(", ".join(map(str, one["shape"])), scope=scope), one["dtype"]
        )
        for one in inputs
    }
    problem: Exception | None = None
    for padded in (make_lengths(bundle), {m: spec.length(m) for m in spec.modalities}):
        function = jax.jit(_make_function(bundle, padded))
        try:
            with _without_paths():
                exported = jax.export.export(function, platforms=PLATFORMS)(
                    of_parameters, of_inputs
                )
            return Program(exported, inputs, longest, parameters, padded)
        except Exception as error:  # a user's own model may raise anything
            problem = error
            logger.debug("Not exported, padded to %s: %s", padded, error)
    raise UserError(
        f"The model {bundle.config.model.name!r} cannot be exported: its module cannot be traced "
        f"with a free number of samples: {first_line(problem)}"
    ) from problem


@contextlib.contextmanager
def _without_paths() -> Iterator[None]:
    """Keeps the paths of this machine's source files out of programs, which name each operation's.

    Without them the same bundle gives the same bytes wherever the program is installed.
    """
    name = "jax_traceback_in_locations_limit"
    usual = getattr(jax.config, name)
    jax.config.update(name, 0)
    try:
        yield
    finally:
        jax.config.update(name, usual)


_MASK = (
    "1 for a step that is there, 0 for padding; -1 in a row: found from what is zero, as the "
    "corpus was read"
)
_SAMPLE_MASK = _MASK.replace("a step that is", "a sample that is")


def make_inputs(bundle: Bundle) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Describes what the program of a bundle scores, and the largest value of each free size."""
    preparation, spec = bundle.preparation, bundle.preparation.spec
    # A group of modalities that move as one has one free number of steps, its text another.
    inputs: list[dict[str, Any]] = []
    longest: dict[str, int] = {}
    for members in movers(spec.modalities, preparation.groups):
        here = [m for m in members if m in spec.modalities]
        pieces = any(map(spec.is_pieces, here))
        others = [m for m in here if not spec.is_pieces(m)]
        if pieces:
            steps = _symbol("text", spec)
            longest[steps] = spec.length("text")
            word = "any number from 0 on"
            if others or spec.text_steps:
                word = "the step of the word that a piece is of"
            meanings = {
                "ids": "token ids of the text encoder's pieces",
                "segments": "segment ids of the pieces",
                "steps": f"{word}; -1 for a special piece, as [CLS] is",
            }
            for name, meaning in meanings.items():
                inputs.append(_array(f"{name}/text", "int32", (BATCH, steps), meaning))
            inputs.append(_array("masks/text", "int8", (BATCH, steps), _MASK))
        if others:
            steps = _symbol(others[0], spec)
            # Steps that move to pieces are as many as are stored.
            if not pieces or spec.text_steps:
                longest[steps] = preparation.sizes_of(here).steps
        for m in others:
            shape, mask = (BATCH, steps), _array(f"masks/{m}", "int8", (BATCH, steps), _MASK)
            if spec.is_sound(m):
                hop = spec.encoder(m).hop
                meaning = f"sound at {SAMPLE_RATE} Hz, {hop} samples a step, 0 behind its end"
                x = _array(f"features/{m}", "float32", (*shape, hop), meaning)
                mask = _array(f"masks/{m}", "int8", (*shape, hop), _SAMPLE_MASK)
            elif width := spec.width(m):
                meaning = "numbers as a file holds them, not standardised"
                x = _array(f"features/{m}", "float32", (*shape, width), meaning)
            else:
                meaning = f"token ids, 0 to {spec.vocabulary(m) - 1}; others are padding"
                x = _array(f"ids/{m}", "int32", shape, meaning)
            inputs += [x, mask]
    return inputs, longest


def _symbol(modality: str, spec: CorpusSpec) -> str:
    """Names the number of steps of a modality, in the letters that a symbol may have."""
    plain = re.fullmatch(r"[A-Za-z0-9_]+", modality)
    return f"steps_{modality}" if plain else f"length_{spec.modalities.index(modality)}"


def make_lengths(bundle: Bundle) -> dict[str, int]:
    """Returns the prepared lengths of what moves with pieces that are pooled, or with others.

    How many words so many pieces hold is not known; neither is how many steps a sample without any
    word has.
    """
    preparation, spec = bundle.preparation, bundle.preparation.spec
    if not spec.is_pieces("text"):
        return {}
    (group,) = (x for x in movers(spec.modalities, preparation.groups) if "text" in x)
    here = [m for m in group if m in spec.modalities]
    return {m: spec.length(m) for m in here} if len(here) > 1 or spec.text_steps else {}


def make_parameters(bundle: Bundle) -> dict[str, np.ndarray]:
    """Lists parameters, collections and pairs of statistics by name.

    They are an argument of the program: as constants those of a text encoder would pass the 2 GB
    that a program may have.
    """
    found = flatten_dict(jax.device_get(bundle.variables), sep="/")
    if bundle.shared:
        found |= flatten_dict({"params": jax.device_get(dict(bundle.shared))}, sep="/")
    for m, statistics in bundle.preparation.statistics.items():
        for name, values in zip(("mean", "deviation"), statistics, strict=True):
            found[f"statistics/{m}/{name}"] = as_pair(values)
    return {name: np.asarray(x) for name, x in found.items()}


def _make_function(bundle: Bundle, lengths: Mapping[str, int]) -> Callable[..., dict[str, Any]]:
    """Makes the function that is exported: (parameters, inputs) -> scores, each by name."""
    preparation, spec = bundle.preparation, bundle.preparation.spec
    module, task = build_model(bundle.config.model, spec), TASKS[spec.label_kind]
    own = flatten_dict(bundle.variables, sep="/").keys()
    seeds = len(bundle.seeds)

    def predict(parameters: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]):
        statistics, of_all, of_seeds = {}, {}, {}
        for name, x in parameters.items():
            if name in own:
                of_seeds[name] = x
            elif name.startswith("statistics/"):
                statistics[name.removeprefix("statistics/")] = x
            else:
                of_all[name] = x
        read = prepare(inputs, statistics, preparation, lengths)

        def predict_one(of_seed):
            variables = unflatten_dict(of_seed | of_all, sep="/")
            found = module.apply(variables, read.features, read.masks, train=False)
            return task.scores(found.score), found.modality_weights

        def one_by_one(of_seeds):
            return jax.lax.map(predict_one, of_seeds)

        def at_once(of_seeds):
            return jax.vmap(predict_one)(of_seeds)

        # As `Layout.over_seeds` does: CPUs are slow at products with an axis of seeds.
        scores, weights = jax.lax.platform_dependent(of_seeds, cpu=one_by_one, default=at_once)
        scores = jnp.where(read.wrong[:, None], jnp.nan, scores)
        mean = scores.mean(axis=0)
        sd = jnp.sqrt(jnp.square(scores - mean).sum(axis=0) / (seeds - 1))
        return {"score": mean, "score_sd": sd, "seeds": scores, "weights": weights.mean(axis=0)}

    return predict
