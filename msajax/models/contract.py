"""Defines what a model is to the rest of the program: its output, and what it declares."""

import dataclasses
import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from msajax.config import ModelConfig
from msajax.config.registry import require_module
from msajax.errors import UserError, user_line
from msajax.layers.basic import RATES, ROWS
from msajax.spec import CorpusSpec

# What parameters may be bound to: see `Model.bound`.
LABELS, MODALITIES, VOCABULARY, POSITIONS = "labels", "modalities", "vocabulary", "positions"
ROW, BATCH = "row", "batch"
_FUNCTIONS = {  # of a declaration: what is given to each, and what it returns
    "terms": "(config, name of the task's loss, that loss) -> terms by name",
    "check": "(config, spec) -> None",
    "check_labels": "(config, spec, labels) -> None",
    "initial": "(config, spec) -> values by path",
    "untrained": "(config, spec) -> patterns of paths",
}
# Collections with another meaning.
_RESERVED = {"params", "intermediates", ROWS, RATES, "statistics"}


@flax.struct.dataclass
class Prediction:
    """Holds what every model returns, float32.

    Attributes:
        score: `[B, K]`, one column per label name.
        modality_weights: `[B, M]` in the order of the specification's modalities; a row sums to 1,
            or is all 0 when the sample has no modality at all.
        aux: named arrays `[B, …]` that terms or a memory read; what only predicts drops them.
    """

    score: jax.Array
    modality_weights: jax.Array
    aux: Mapping[str, Any] = flax.struct.field(default_factory=dict)


class Term(NamedTuple):
    """Measures one thing that training minimises: a sum over rows, and what it is divided by.

    Attributes:
        measure: (prediction, batch) -> (sum, weight), both `[]`. The term is sum / weight of a
            whole batch; the weight has no gradient. Rows count by `batch.row_weight`, which is 0
            for rows that only fill a shape. A term that is annealed multiplies its sum by a
            function of `batch.progress`: the step, the epoch, the share of the run.
        weight: the factor of the term in the objective.
        scope: ROW if rows do not see each other and `measure`'s weight follows from the batch
            alone: then a batch may be cut into parts. BATCH otherwise.
    """

    measure: Callable[[Prediction, Any], tuple[jax.Array, jax.Array]]
    weight: float = 1.0
    scope: str = ROW


class Stage(NamedTuple):
    """Describes a pass over the training split, of several that make an epoch.

    Attributes:
        trains: patterns (fnmatch) of the paths of parameters that move.
        terms: patterns (fnmatch) of the names of the objective's terms that count.
        share: share of the split's batches that the pass reads, in (0, 1]: the epoch's first ones.
    """

    trains: Sequence[str] = ("*",)
    terms: Sequence[str] = ("*",)
    share: float = 1.0


class Memory(NamedTuple):
    """Keeps arrays from step to step: `[N, …]` with a row for each training sample, or whole ones.

    Checkpoints hold them, bundles do not. A step's `batch.memory` holds the rows of its samples,
    and the others whole.

    Attributes:
        begin: (labels `[N, L]`, specification) -> arrays by name.
        update: (memory, prediction, batch, epoch from 0) -> `{name: [B, …]}`, the new rows of the
            batch's samples, where memory is as before the step and prediction has no gradient.
        whole: names of the arrays without a row for each sample. They change at an epoch's end.
        after_epoch: (memory, epoch from 0) -> arrays by name that replace those of the memory; it
            is called once every sample that the epoch reads has been.
    """

    begin: Callable[[Any, CorpusSpec], Mapping[str, Any]]
    update: Callable[[Mapping[str, jax.Array], Prediction, Any, jax.Array], Mapping[str, jax.Array]]
    whole: Collection[str] = ()
    after_epoch: Callable[[Mapping[str, jax.Array], jax.Array], Mapping[str, jax.Array]] | None = (
        None
    )


@dataclasses.dataclass(frozen=True)
class Model:
    """Declares a model.

    Attributes:
        module: a linen module that takes `(config: ModelConfig, spec: CorpusSpec)`, and whose call
            `(features, masks, *, train=False)` returns a `Prediction`. Features are
            `{modality: [B, T_m, d_m]}`, `[B, T_m]` token ids, or what a pretrained encoder
            reads: pieces of text `[B, T_m, 3]` (see `preparation/pieces.py`), or steps of sound
            (see `preparation/waveforms.py`); masks `{modality: [B, T_m]}`.
        output_bias: path of the bias that is added to the scores, as `regression/bias`, which may
            begin at the training median. "" if there is none.
        bound: what rows or columns of parameters stand for, by pattern (fnmatch) of paths: LABELS,
            MODALITIES (in their order), VOCABULARY or POSITIONS. `model.init_from` loads them only
            where that is the same, whatever the shapes are; of a vocabulary the rows of the same
            words, of positions the common first rows.
        mutable: variable collections beside the parameters that training changes, as
            `batch_stats`.
        terms: (configuration, name of the task's loss, that loss) -> every term of the objective by
            name; without it, the task's loss alone.
        check: (configuration, specification) -> None; raises `UserError` for what cannot be built.
        check_labels: (configuration, specification, training labels `[N, L]`) -> None; raises
            `UserError` for labels that cannot be learned.
        memory: what is kept of every training sample, or a function (configuration) -> Memory if
            that depends on settings; None for nothing.
        initial: (configuration, specification) -> values that parameters begin with in place of
            random ones, by path, as those of a pretrained encoder.
        untrained: (configuration, specification) -> patterns (fnmatch) of the paths of parameters
            that stay as they began, whatever `optim.groups` says; None for none.
        stages: passes that make an epoch, or a function (configuration) -> Stages; without them it
            is one pass that trains everything.
        encoder: path of the module that holds the pretrained encoder of a modality, in which
            `{modality}` stands for it; "" for a model that has none inside.
        pooler: path of the module that begins as the text encoder's pooler; "" for none.
        space: what a sweep tries of the model's own settings and of training, by key: a list of
            values, or (low, high, "log" or "linear"); or a function (configuration) -> such a
            dict.
    """

    module: type[nn.Module]
    output_bias: str = ""
    bound: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    mutable: Sequence[str] = ()
    terms: Callable[[ModelConfig, str, Term], Mapping[str, Term]] | None = None
    check: Callable[[ModelConfig, CorpusSpec], None] | None = None
    check_labels: Callable[[ModelConfig, CorpusSpec, Any], None] | None = None
    memory: Memory | Callable[[ModelConfig], Memory] | None = None
    initial: Callable[[ModelConfig, CorpusSpec], Mapping[str, Any]] | None = None
    untrained: Callable[[ModelConfig, CorpusSpec], Sequence[str]] | None = None
    stages: Sequence[Stage] | Callable[[ModelConfig], Sequence[Stage]] = ()
    encoder: str = ""
    pooler: str = ""
    space: Mapping[str, Any] | Callable[[ModelConfig], Mapping[str, Any]] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        """Refuses what is of another kind than it must be, naming the line that declares it."""
        here = f"{user_line()}msajax.Model"
        require_module(self.module, here)
        for what, meaning in _FUNCTIONS.items():
            if (value := getattr(self, what)) is not None and not callable(value):
                raise UserError(
                    f"{here}: {what} is a {type(value).__name__}: it must be a function {meaning}."
                )
        for what in ("output_bias", "encoder", "pooler"):
            if not isinstance(path := getattr(self, what), str):
                raise UserError(f"{here}: {what} = {path!r} must be a path, as text.")
        if not isinstance(self.bound, Mapping):
            raise UserError(f"{here}: bound = {self.bound!r} must be a dict, by pattern of paths.")
        if not (isinstance(self.space, Mapping) or callable(self.space)):
            raise UserError(
                f"{here}: space = {self.space!r} must be a dict, by key of a setting, or a "
                "function of the model's settings that returns one."
            )
        memory = self.memory
        if memory is not None and not callable(memory):
            ok = isinstance(memory, Memory) and callable(memory.begin) and callable(memory.update)
            if not ok or not (memory.after_epoch is None or callable(memory.after_epoch)):
                raise UserError(
                    f"{here}: memory = {memory!r} must be a msajax.Memory of functions."
                )
        stages = () if callable(self.stages) else self.stages
        if isinstance(stages, Stage) or not isinstance(stages, list | tuple):
            raise UserError(f"{here}: stages = {stages!r} must be a tuple of msajax.Stage.")
        several = {"mutable": self.mutable}
        for k, stage in enumerate(stages):
            if not isinstance(stage, Stage):
                raise UserError(f"{here}: stages[{k}] = {stage!r} must be a msajax.Stage.")
            several |= {f"stages[{k}].trains": stage.trains, f"stages[{k}].terms": stage.terms}
        for what, names in several.items():
            is_several = isinstance(names, Collection) and not isinstance(names, str)
            if not is_several or not all(isinstance(name, str) for name in names):
                raise UserError(f"{here}: {what} = {names!r} must be a tuple of names.")
        if taken := _RESERVED.intersection(self.mutable):
            raise UserError(f"{here}: mutable names {min(taken)!r}, which is msajax's own.")

    def with_settings(self, config: ModelConfig) -> "Model":
        """Returns the same with the memory, stages and space that a configuration makes."""
        made = {what: getattr(self, what) for what in ("memory", "stages", "space")}
        made = {what: make(config) for what, make in made.items() if callable(make)}
        return dataclasses.replace(self, **made) if made else self

    def untrained_of(self, config: ModelConfig, spec: CorpusSpec) -> tuple[str, ...]:
        """Returns the patterns of what stays as it began."""
        return tuple(self.untrained(config, spec)) if self.untrained else ()

    def bound_to(self, path: str) -> set[str]:
        """Returns what a parameter is bound to."""
        fits = (p for p in self.bound if fnmatch.fnmatchcase(path, p))
        return {kind for pattern in fits for kind in self.bound[pattern]}


def blank_sample(spec: CorpusSpec) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Makes features and masks of one sample of zeros, its sequences as long as any may be."""
    masks = {m: jnp.ones((1, spec.length(m)), bool) for m in spec.modalities}
    features = {
        m: jnp.zeros((1, spec.length(m), *[3] * spec.is_pieces(m)), jnp.int32)
        if spec.vocabulary(m)
        else jnp.zeros((1, spec.length(m), spec.width(m)))
        for m in spec.modalities
    }
    return features, masks


def init_variables(
    module: nn.Module, model: Model, spec: CorpusSpec, key: jax.Array
) -> tuple[Any, dict[str, Any]]:
    """Makes a module's parameters and collections; raises `UserError` for undeclared ones."""
    variables = dict(module.init(key, *blank_sample(spec)))
    params = variables.pop("params", {})
    variables.pop("intermediates", None)
    if not set(variables) <= set(model.mutable):
        raise UserError(
            f"{type(module).__name__} has the variable collections {sorted(variables) or 'none'}: "
            f"its msajax.Model must declare them, and has mutable = {tuple(model.mutable)}."
        )
    return params, variables


def without(params: Any, paths: Collection[str]) -> Any:
    """Leaves out the parameters of these paths."""
    if not paths:
        return params
    flat = flatten_dict(params, sep="/")
    return unflatten_dict({path: x for path, x in flat.items() if path not in paths}, sep="/")


def joined(params: Any, others: Any) -> Any:
    """Joins trees of parameters, as moving and frozen ones; of equal paths the second counts."""
    if not others:
        return params
    return unflatten_dict(flatten_dict(params) | flatten_dict(others))
