"""Traces a step of a user's own model before anything is written, so that a mistake is one line."""

import contextlib
import dataclasses
import fnmatch
import functools
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from msajax.config import Config
from msajax.config.registry import registered
from msajax.errors import UserError, first_line, user_line
from msajax.models.contract import (
    LABELS,
    MODALITIES,
    POSITIONS,
    VOCABULARY,
    Model,
    Prediction,
    Stage,
    blank_sample,
    init_variables,
)
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS
from msajax.training.objective import Objective
from msajax.training.step import Rates, Recipe, begin, train_step

_ROWS = 2  # of the batch that is traced, out of a split of three samples
_SAMPLES = 3


@contextlib.contextmanager
def one_sentence(config: Config) -> Iterator[None]:
    """Turns what the code of a user's model raises into a `UserError` that names its line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # whatever the user's code raises
        # Say where the error passed through the file that registered the model.
        origin = registered()[config.model.name].origin
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == origin]
        where = f" ({os.path.basename(origin)}, line {lines[-1]})" if lines else ""
        raise UserError(
            f"The model {config.model.name!r} fails{where}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def trace_step(recipe: Recipe, rates: Rates, spec: CorpusSpec) -> None:
    """Traces a model's prediction and step without compiling; raises `UserError` if they misfit."""
    terms = {
        name: term._replace(measure=functools.partial(_measured, name, term.measure))
        for name, term in recipe.objective.terms.items()
    }
    recipe = dataclasses.replace(recipe, objective=Objective(terms))
    jax.eval_shape(lambda: _trace(recipe, rates, spec))


def _measured(
    name: str, measure: Callable[..., Any], prediction: Prediction, batch: Batch
) -> tuple[jax.Array, jax.Array]:
    """Measures a term; raises `UserError` unless it gives a sum with a gradient, and a weight."""
    found = measure(prediction, batch)
    is_pair = isinstance(found, tuple | list) and len(found) == 2
    if not is_pair or any(np.shape(x) for x in found):
        shapes = [np.shape(x) for x in found] if is_pair else "one value, not two"
        raise UserError(
            f"{user_line(measure)}the term {name!r} must return (sum, weight): the sum over the "
            f"rows of a batch and what it is divided by, both of shape (); here they are {shapes}."
        )
    if not jnp.issubdtype(jnp.result_type(found[0]), jnp.floating):
        raise UserError(
            f"{user_line(measure)}the sum of the term {name!r} is {jnp.result_type(found[0])}, "
            "which has no gradient: it must be a floating-point number."
        )
    return tuple(found)


def _trace(recipe: Recipe, rates: Rates, spec: CorpusSpec) -> None:
    features, masks = blank_sample(spec)
    features, masks = jax.tree.map(lambda x: jnp.repeat(x, _ROWS, axis=0), (features, masks))
    key = jax.random.key(0)
    params, collections = init_variables(recipe.module, recipe.model, spec, key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if leaf.dtype != jnp.float32:
            raise UserError(f"The model's parameter {name} is {leaf.dtype}: it must be float32.")
    variables = {"params": params, **collections}
    _require_prediction(recipe.module.apply(variables, features, masks, train=False), spec)
    columns = 1 if TASKS[spec.label_kind].has_classes else len(spec.label_names)  # of targets
    labels = np.zeros((_SAMPLES, columns), np.float32)
    memory = recipe.model.memory.begin(labels, spec) if recipe.model.memory else {}
    for name, x in dict(memory).items():
        if np.shape(x)[:1] != (_SAMPLES,) and name not in recipe.model.memory.whole:
            raise UserError(
                f"The model's memory {name!r} begins as {np.shape(x)} for {_SAMPLES} samples: it "
                "needs a row for each, or to be named in the memory's `whole`."
            )
    rows = np.arange(_ROWS, dtype=np.int32)
    batch = Batch(features, masks, jnp.asarray(labels[:_ROWS]), jnp.ones(_ROWS), jnp.asarray(rows))
    state = begin(jnp.uint32(0), jax.tree.map(jnp.asarray, dict(memory)), recipe, spec)
    if recipe.accumulation_steps > 1:
        batch = jax.tree.map(lambda x: jnp.repeat(x, recipe.accumulation_steps, axis=0), batch)
    train_step(state, batch, recipe, rates)


def _require_prediction(found: object, spec: CorpusSpec) -> None:
    if not isinstance(found, Prediction):
        raise UserError(
            f"The model returns {type(found).__name__}: it must return a msajax.Prediction."
        )
    for what, columns, of in (
        ("score", spec.outputs, "outputs"),
        ("modality_weights", len(spec.modalities), "modalities"),
    ):
        x = getattr(found, what)
        shape, dtype = np.shape(x), getattr(x, "dtype", None)
        if shape != (_ROWS, columns) or dtype != jnp.float32:
            raise UserError(
                f"The model's {what} of {_ROWS} samples is {dtype} {shape}: it must be float32 "
                f"({_ROWS}, {columns}), a column for each of the {of}."
            )


def check_declaration(
    model: Model, spec: CorpusSpec, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises `UserError` for declarations that name none of the parameters, `shapes` by path."""
    if not shapes:
        raise UserError("The model has no parameters: there is nothing to train.")
    bias = model.output_bias
    if bias and shapes.get(bias) != (spec.outputs,):
        raise UserError(
            f"The model's output_bias {bias!r} is {shapes.get(bias, 'no parameter')}: it must be "
            f"the path of a bias ({spec.outputs},); there are {', '.join(shapes)}."
        )
    kinds = (LABELS, MODALITIES, VOCABULARY, POSITIONS)
    for pattern, bound in model.bound.items():
        if isinstance(bound, str) or not set(bound) <= set(kinds):
            raise UserError(
                f"The model's bound[{pattern!r}] = {bound!r}: must be a tuple of some of "
                f"{', '.join(kinds)}."
            )


def check_stages(objective: Objective, stages: Sequence[Stage], paths: Iterable[str]) -> None:
    """Refuses stages that name nothing among the objective's terms and the parameters' paths.

    Raises:
        UserError: for a stage whose pattern names no term or no parameter, or whose share of an
            epoch is none.
    """
    paths = list(paths)
    for stage in stages:
        for what, patterns, names in (
            ("term", stage.terms, objective.terms),
            ("parameter", stage.trains, paths),
        ):
            for pattern in patterns:
                if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                    raise UserError(
                        f"A stage of the model names the {what} {pattern!r}, which there is not: "
                        f"choose of {', '.join(names)}."
                    )
        if not (stage.terms and stage.trains):
            raise UserError("A stage of the model has no term, or no parameter: it does nothing.")
        if not 0 < stage.share <= 1:
            raise UserError(f"A stage's share of an epoch is {stage.share}: must lie in (0, 1].")
