"""Makes one program of a bundle: preparation, the model of every random seed, their mean."""

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from msajax.corpus.steps import movers
from msajax.errors import UserError, first_line
from msajax.inference.bundle import Bundle
from msajax.inference.export.preparation import as_pair, prepare
from msajax.models import build_model
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)

PLATFORMS = ("cpu", "cuda", "tpu")
BATCH = "batch"


@dataclasses.dataclass(frozen=True)
class Input:
    """Describes an argument of an exported program.

    Attributes:
        name: what it is, and of which modality, as `features/audio`.
        dtype: of its numbers.
        shape: sizes; a word stands for one that is free.
        meaning: what it holds, for people.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    meaning: str


@dataclasses.dataclass(frozen=True)
class Interface:
    """Describes all arguments of an exported program.

    Attributes:
        inputs: what is scored.
        longest: the largest value of each free size that has one.
    """

    inputs: tuple[Input, ...]
    longest: Mapping[str, int]

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the inputs as JAX traces them, their free sizes as symbols."""
        scope = jax.export.SymbolicScope([f"{name} <= {n}" for name, n in self.longest.items()])
        return {
            one.name: jax.ShapeDtypeStruct(
                jax.export.symbolic_shape(", ".join(map(str, one.shape)), scope=scope), one.dtype
            )
            for one in self.inputs
        }


@dataclasses.dataclass(frozen=True)
class Program:
    """Holds an exported program and what it is called with.

    Attributes:
        exported: takes (parameters, inputs) by name, and returns scores by name.
        interface: of the inputs.
        parameters: the other argument: parameters, collections and statistics.
        padded: steps of the modalities that the program pads before the model reads them.
    """

    exported: jax.export.Exported
    interface: Interface
    parameters: dict[str, np.ndarray]
    padded: dict[str, int]


def make_program(bundle: Bundle) -> Program:
    """Exports a bundle.

    Sequences keep the length that they are called with. Where a model needs to know lengths when it
    is traced, as for tables of positions that are computed, and where the most words do not follow
    from the number of pieces, the program pads them to the longest.

    Raises:
        UserError: for a model that cannot be traced without the number of samples.
    """
    spec, interface = bundle.preparation.spec, make_interface(bundle)
    parameters = make_parameters(bundle)
    longest = {m: spec.length(m) for m in spec.modalities}
    fixed = make_lengths(bundle)
    of_parameters = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in parameters.items()
    }
    problem: Exception | None = None
    for padded in (fixed, longest):
        function = jax.jit(_make_function(bundle, padded))
        try:
            with _without_paths():
                exported = jax.export.export(function, platforms=PLATFORMS)(
                    of_parameters, interface.shapes()
                )
            return Program(exported, interface, parameters, padded)
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


def make_interface(bundle: Bundle) -> Interface:
    """Describes what the program of a bundle is called with."""
    preparation, spec = bundle.preparation, bundle.preparation.spec
    inputs: list[Input] = []
    longest: dict[str, int] = {}
    for members in movers(spec.modalities, preparation.groups):
        here = [m for m in members if m in spec.modalities]
        sizes, pieces = preparation.sizes_of(here), any(map(spec.is_pieces, here))
        others = [m for m in here if not spec.is_pieces(m)]
        if pieces:
            steps = _symbol("text", spec)
            longest[steps] = spec.length("text")
            inputs += _inputs_of_pieces(steps, bool(others or spec.text_steps))
        if others:
            steps = _symbol(others[0], spec)
            inputs += [one for m in others for one in _inputs_of(m, steps, spec)]
            # Steps that move to pieces are as many as are stored.
            if not pieces or spec.text_steps:
                longest[steps] = sizes.steps
    return Interface(tuple(inputs), longest)


def _symbol(modality: str, spec: CorpusSpec) -> str:
    """Names the number of steps of a modality, in the letters that a symbol may have."""
    plain = re.fullmatch(r"[A-Za-z0-9_]+", modality)
    return f"steps_{modality}" if plain else f"length_{spec.modalities.index(modality)}"


_MASK = (
    "1 for a step that is there, 0 for padding; -1 in a row: found from what is zero, as the "
    "corpus was read"
)


def _inputs_of(modality: str, steps: str, spec: CorpusSpec) -> list[Input]:
    width, shape = spec.width(modality), (BATCH, steps)
    if width:
        meaning = "numbers as a file holds them, not standardised"
        x = Input(f"features/{modality}", "float32", (*shape, width), meaning)
    else:
        meaning = f"token ids, 0 to {spec.vocabulary(modality) - 1}; others are padding"
        x = Input(f"ids/{modality}", "int32", shape, meaning)
    return [x, Input(f"masks/{modality}", "int8", shape, _MASK)]


def _inputs_of_pieces(steps: str, knows_words: bool) -> list[Input]:
    shape = (BATCH, steps)
    word = "the step of the word that a piece is of" if knows_words else "any number from 0 on"
    meanings = {
        "ids": "token ids of the text encoder's pieces",
        "segments": "segment ids of the pieces",
        "steps": f"{word}; -1 for a special piece, as [CLS] is",
    }
    found = [Input(f"{name}/text", "int32", shape, text) for name, text in meanings.items()]
    return [*found, Input("masks/text", "int8", shape, _MASK)]


def make_lengths(bundle: Bundle) -> dict[str, int]:
    """Returns the prepared lengths of what moves with pieces that are pooled, or with others.

    How many words so many pieces hold is not known; neither is how many steps a sample without any
    word has.
    """
    preparation, spec = bundle.preparation, bundle.preparation.spec
    if spec.text_encoder is None or "text" not in spec.modalities:
        return {}
    (group,) = (x for x in movers(spec.modalities, preparation.groups) if "text" in x)
    here = [m for m in group if m in spec.modalities]
    return {m: spec.length(m) for m in here} if len(here) > 1 or spec.text_steps else {}


def make_parameters(bundle: Bundle) -> dict[str, np.ndarray]:
    """Lists parameters, collections and pairs of statistics by name.

    They are an argument of the program: as constants those of a text encoder would pass the 2 GB
    that a program may have.
    """
    own = flatten_dict(jax.device_get(bundle.variables), sep="/")
    shared = flatten_dict({"params": jax.device_get(dict(bundle.shared))}, sep="/")
    pairs = {
        f"statistics/{m}/{name}": as_pair(values)
        for m, of_modality in bundle.preparation.statistics.items()
        for name, values in zip(("mean", "deviation"), of_modality, strict=True)
    }
    found = {**own, **(shared if bundle.shared else {}), **pairs}
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
