"""Finds parameters to begin with instead of random ones: of a bundle, of words, of labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util
import numpy as np

from msajax.config import ModelConfig, OptimConfig
from msajax.corpus.glove import WordVectors
from msajax.encoders.folder import POOLER, Folder
from msajax.encoders.module import parameters_of
from msajax.errors import UserError
from msajax.models.build import declared
from msajax.models.contract import LABELS, MODALITIES, POSITIONS, VOCABULARY, Model
from msajax.preparation.fit import Preparation
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS
from msajax.training.groups import settings_of

# By path of the parameter: values of one seed, or with a leading axis of seeds, that replace the
# random ones; NaN keeps those. One form for bundles, word vectors and medians of labels.
Initial = dict[str, np.ndarray]


def with_initial(params: Any, initial: Mapping[str, np.ndarray]) -> Any:
    """Replaces random parameters, leading axis S, by the given values."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    for path, values in initial.items():
        flat[path] = np.where(np.isnan(values), flat[path], values).astype(np.float32)
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def shared_values(
    initial: Initial, shapes: Mapping[str, tuple[int, ...]], optim: OptimConfig
) -> Initial:
    """Selects the values of frozen parameters that every seed begins with, and so keeps.

    They are float32, without an axis of seeds; none are random in part.
    """
    found: Initial = {}
    settings = settings_of(optim, shapes)
    for path in filter(lambda path: settings[path].frozen, initial):
        values = initial[path]
        if values.ndim > len(shapes[path]):
            if (values != values[:1]).any():
                continue
            values = values[0]
        if not np.isnan(values).any():
            found[path] = values.astype(np.float32, copy=False)
    return found


def from_labels(config: ModelConfig, spec: CorpusSpec, labels: np.ndarray) -> Initial:
    """Begins the output's bias where the task says, as at the median of ratings `[N, L]`."""
    bias = declared(config).output_bias
    values = TASKS[spec.label_kind].begins_at(labels) if bias else None
    return {} if values is None else {bias: values}


def from_model(
    model: Model, config: ModelConfig, spec: CorpusSpec, shapes: Mapping[str, tuple[int, ...]]
) -> Initial:
    """Takes the values that a model itself begins with; raises `UserError` for misshapen ones."""
    found = {path: np.asarray(x) for path, x in model.initial(config, spec).items()}
    for path, values in found.items():
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            raise UserError(f"The model's initial values of {path} are not all finite numbers.")
        if path not in shapes:
            raise UserError(
                f"The model gives initial values of {path}, but there is no such parameter."
            )
        if values.shape != shapes[path]:
            raise UserError(
                f"The model's initial values of {path} are {values.shape}; the parameter is "
                f"{shapes[path]}."
            )
    return found


def from_encoder(
    model: Model, modality: str, encoder: Folder, shapes: Mapping[str, tuple[int, ...]]
) -> Initial:
    """Reads the weights of a modality's pretrained encoder, and of the pooler behind that of text.

    Of the encoder's parameters that are optional only those in `shapes` count.

    Raises:
        UserError: if a weight is missing, misshapen or not finite, or a file is damaged.
    """
    found = parameters_of(encoder.architecture, encoder.tensors(), encoder.path)
    within = model.encoder.format(modality=modality)
    placed = {f"{within}/{path}": values for path, values in found.items()}
    if model.pooler and modality == "text":
        pooler = encoder.tensors(POOLER)
        for ours, theirs in (("kernel", "weight"), ("bias", "bias")):
            path, values = f"{model.pooler}/{ours}", pooler.get(f"pooler.dense.{theirs}")
            if values is not None and values.shape == shapes.get(path):  # kernels are square
                placed[path] = values.T
    return {path: values for path, values in placed.items() if path in shapes}


def from_words(
    words: Sequence[str], shapes: Mapping[str, tuple[int, ...]], given: WordVectors
) -> tuple[Initial, str]:
    """Begins rows of the text embedding with word vectors; says how many words have one.

    The embedding has a row for each of the words; some of them are among those `given`.

    Raises:
        UserError: if the embedding has another width.
    """
    path = "text_embedding/embedding"
    table, width = np.full(shapes[path], np.nan), given.vectors.shape[1]
    if width != table.shape[1]:
        raise UserError(
            f"data.glove_path holds vectors of {width} numbers, embeddings have {table.shape[1]}: "
            f"set model.embedding_dim = {width} (or model.model_dim, where that must be 0)."
        )
    row = {word: i for i, word in enumerate(words)}
    table[[row[word] for word in given.words]] = given.vectors
    return {path: table}, f"{len(given.words)} of {len(words)} words begin with their word vector"


def from_bundle(
    model: Model,
    preparation: Preparation,
    shapes: Mapping[str, tuple[int, ...]],
    source: Preparation,
    params: Any,
    seeds: int,
) -> tuple[Initial, dict[str, Any]]:
    """Takes what a trained model and a new one have in common.

    Parameters match by path and shape, and by what the new model declares them bound to: of learned
    position tables the common first rows match; of an embedding of words, rows of the same word;
    what is bound to labels only where these have the same names, to modalities only where they are
    the same in the same order. The new run's k-th seed begins from the bundle's k-th; where the
    bundle has fewer, its first ones serve again.

    Args:
        model: declared by the new run.
        preparation: says what the new run reads.
        shapes: the new run's parameters, by path.
        source: says what the bundle reads.
        params: the bundle's, leading axis of its seeds, or 1 for all of them.

    Returns:
        The values, and a report: how many parameters are loaded, of how many; the same for each
        module; and a note on every path.

    Raises:
        UserError: if nothing matches.
    """
    given = flax.traverse_util.flatten_dict(params, sep="/")
    initial: Initial = {}
    notes: dict[str, str] = {}
    other_modalities = preparation.spec.modalities != source.spec.modalities
    for path, shape in shapes.items():
        if path not in given:
            notes[path] = "random: the bundle has none"
            continue
        values = np.asarray(given[path], np.float64)
        values = values[np.arange(seeds) % len(values)]  # [S, …]
        bound = model.bound_to(path)
        if LABELS in bound and _outputs(preparation) != _outputs(source):
            notes[path] = "random: other labels"
            continue
        if MODALITIES in bound and other_modalities:
            notes[path] = "random: other modalities"
            continue
        if VOCABULARY in bound and (preparation.words or source.words):
            there = {word: i for i, word in enumerate(source.words)}
            words = enumerate(preparation.words)
            rows = {i: there[word] for i, word in words if word in there}  # {row here: row there}
            notes[path] = f"{len(rows)} of {len(preparation.words)} words"
        elif POSITIONS in bound:
            rows = {i: i for i in range(min(shape[0], values.shape[1]))}
            notes[path] = f"{len(rows)} of {shape[0]} rows"
        else:
            rows, notes[path] = None, "loaded"
        if values.shape[2:] != shape[1:] or (rows is None and values.shape[1:] != shape):
            notes[path] = f"random: {shape} here, {values.shape[1:]} in the bundle"
            continue
        if rows is None:
            initial[path] = values
        elif rows:
            table = np.full((seeds, *shape), np.nan)
            table[:, list(rows)] = values[:, list(rows.values())]
            initial[path] = table
    if not initial:
        raise UserError("model.init_from: no parameter of that bundle fits this model.")
    modules: dict[str, list[int]] = {}
    for path, shape in shapes.items():
        counts = modules.setdefault(path.split("/")[0], [0, 0])
        counts[0] += int((~np.isnan(initial[path][0])).sum()) if path in initial else 0
        counts[1] += int(np.prod(shape))
    loaded, total = (sum(counts[i] for counts in modules.values()) for i in (0, 1))
    return initial, {"loaded": loaded, "of": total, "modules": modules, "notes": notes}


def _outputs(preparation: Preparation) -> tuple[str, tuple[str, ...]]:
    return preparation.spec.label_kind, preparation.spec.label_names
