"""Holds a training run: everything that it is made of, built once and passed whole."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from msajax.config import Config, TrainConfig
from msajax.config.registry import is_own, registered
from msajax.corpus.corpus import Corpus, Split
from msajax.errors import UserError
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.models.contract import Model
from msajax.preparation.batches import quarters_of, steps_per_epoch
from msajax.preparation.fit import Preparation
from msajax.runs.folder import RunFolder
from msajax.runtime.devices import Layout, make_layout
from msajax.runtime.signals import StopRequest
from msajax.spec import CorpusSpec
from msajax.tasks import Task, make_task
from msajax.training.initial import Initial
from msajax.training.model_check import check_declaration, check_stages, one_sentence, trace_step
from msajax.training.objective import Objective, balanced_weights, make_objective
from msajax.training.optimizers import make_optimizer
from msajax.training.progress import EpochProgress
from msajax.training.step import MOST_KEPT, Rates, Recipe, make_rates, structure_of
from msajax.training.transforms import make_transforms

# What a step is made of in config.train.
_OF_A_STEP = ("loss", "huber_delta", "focal_gamma", "class_weights", "terms", "transforms")
_OF_A_STEP += ("accumulation_steps", "most_skipped_steps")

# Called with the lines of metrics.jsonl of one epoch, one per random seed that ran.
AfterEpoch = Callable[[Sequence[Mapping[str, Any]]], None]


@dataclasses.dataclass(frozen=True)
class Run:
    """Holds what a run is made of before its first step, and who stops or watches it.

    Attributes:
        train: the prepared training split, with labels.
        valid: the prepared validation split, with labels, but for samples that are held out to
            calibrate: it decides each seed's best epoch.
        repairs: what was repaired in the data, by split.
        initial: parameters that do not begin at random (see `initial.py`).
        shared: the frozen parameters that are the same for every seed, by path; no checkpoint has
            them (see `shared_values`).
        origin: says for run.json what `initial` is from.
        stop_after_epochs: pause after so many more epochs; None for no pause.
        stop: asks to save and to stop before the next dispatch.
        profile: folder for a trace of some dispatches; None for none.
        after_epoch: is called when an epoch's lines are written, in the first process.
        progress: makes what shows the run's epochs, of their number, how many are done, and the
            metric that validation follows.
    """

    config: Config
    corpus: Corpus
    preparation: Preparation
    train: Split
    valid: Split
    folder: RunFolder
    repairs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    initial: Initial = dataclasses.field(default_factory=dict)
    shared: Initial = dataclasses.field(default_factory=dict)
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stop_after_epochs: int | None = None
    stop: StopRequest = dataclasses.field(default_factory=StopRequest)
    profile: str | None = None
    after_epoch: AfterEpoch | None = None
    progress: Callable[[int, int, str], EpochProgress] = EpochProgress

    @property
    def spec(self) -> CorpusSpec:
        """Returns the sizes of the model's inputs, and what labels are."""
        return self.preparation.spec

    @property
    def seeds(self) -> list[int]:
        """Lists the random seeds."""
        first = self.config.train.first_seed
        return list(range(first, first + self.config.train.seeds))

    @functools.cached_property
    def task(self) -> Task:
        """Builds the task of the labels: its metrics, and what follows from them."""
        return make_task(self.spec.label_kind, self.spec.label_names, self.train.labels)

    @functools.cached_property
    def selection(self) -> str:
        """Names the metric that validation follows."""
        return self.task.selection(self.config.train.select_by)

    @functools.cached_property
    def layout(self) -> Layout:
        """Builds the layout of arrays on the devices."""
        return layout_of(self.config)

    @functools.cached_property
    def model(self) -> Model:
        """Returns the declaration of the model."""
        return declared(self.config.model)

    @functools.cached_property
    def module(self) -> nn.Module:
        """Builds the linen module."""
        return build_model(self.config.model, self.spec)

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every parameter of one seed, by path."""
        return parameter_shapes(self.config.model, self.spec)

    @functools.cached_property
    def objective(self) -> Objective:
        """Makes the terms that are minimised."""
        return make_objective(self.config, self.model, self.spec.label_kind, self.class_weights)

    @functools.cached_property
    def class_weights(self) -> tuple[float, ...]:
        """Says how much a sample of each class counts in the loss; () is once."""
        if self.config.train.class_weights == "none":
            return ()
        return balanced_weights(self.train.labels, len(self.spec.label_names))

    @functools.cached_property
    def quarters(self) -> np.ndarray:
        """Returns the length quarter of every row of the training split, `[N]`."""
        return quarters_of(self.train, self.spec)

    @functools.cached_property
    def passes(self) -> tuple[int, ...]:
        """Counts the steps of every pass over the training split; several, if there are stages."""
        steps = steps_per_epoch(self.quarters, self.config.train.batch_size)
        shares = [stage.share for stage in self.model.stages] or [1.0]
        return tuple(max(1, round(share * steps)) for share in shares)

    @property
    def steps(self) -> int:
        """Counts the steps of an epoch."""
        return sum(self.passes)

    @functools.cached_property
    def recipe(self) -> Recipe:
        """Makes the recipe of a step."""
        # What has no part in it may differ: seeds of another group, and a run that is trained for
        # longer or saved more often, have its programs; and so has one of other rates.
        train = TrainConfig(**{name: getattr(self.config.train, name) for name in _OF_A_STEP})
        config = Config(model=self.config.model, optim=self.config.optim, train=train)
        make = make_recipe
        if is_own(self.config.model.name):
            config = structure_of(config)
        else:  # a model from outside may compute with a rate itself
            make = make_recipe.__wrapped__
        return make(config, self.spec, self.passes, frozenset(self.shared), self.class_weights)

    @functools.cached_property
    def rates(self) -> Rates:
        """Collects the numbers of a step."""
        total_steps = self.steps * self.config.train.epochs
        return make_rates(self.config, self.recipe.optimizer.rates(self.config.optim, total_steps))

    @property
    def checkpoints(self) -> str:
        """Returns the folder of checkpoints; seeds that are trained in groups have one a group."""
        of_run = self.folder.checkpoints
        train = self.config.train
        return os.path.join(of_run, str(train.first_seed)) if train.seeds_at_once else of_run

    def groups(self) -> list["Run"]:
        """Splits the run into the groups of seeds that are trained together."""
        train = self.config.train
        at_once = train.at_once
        if at_once == train.seeds:
            return [self]
        groups = []
        for first in range(0, train.seeds, at_once):
            of_group = slice(first, min(first + at_once, train.seeds))
            seeds = self.seeds[of_group]
            group = dataclasses.replace(train, first_seed=seeds[0], seeds=len(seeds))
            config = dataclasses.replace(self.config, train=group)
            profile = None if groups else self.profile
            initial = {
                path: values[of_group] if values.ndim > len(self.shapes[path]) else values
                for path, values in self.initial.items()
            }
            groups.append(
                dataclasses.replace(self, config=config, initial=initial, profile=profile)
            )
        return groups

    def describe(self, repairs: Mapping[str, Any]) -> None:
        """Writes config.json and run.json, with what was repaired in the data so far."""
        self.folder.describe(self.config, self.corpus.summary(), repairs, self.origin)


@functools.lru_cache(maxsize=MOST_KEPT)
def make_recipe(
    config: Config,
    spec: CorpusSpec,
    passes: tuple[int, ...],
    shared: frozenset[str],
    class_weights: tuple[float, ...],
) -> Recipe:
    """Makes the recipe of a step; the same one again for settings of the same structure."""
    train, optim, model = config.train, config.optim, declared(config.model)
    shapes, untrained = parameter_shapes(config.model, spec), model.untrained_of(config.model, spec)
    return Recipe(
        module=build_model(config.model, spec),
        model=model,
        objective=make_objective(config, model, spec.label_kind, class_weights),
        optimizer=make_optimizer(optim, shapes, untrained),
        transforms=make_transforms(train.transforms, spec),
        passes=passes,
        average=optim.average,
        shared=shared,
        accumulation_steps=train.accumulation_steps,
        most_skipped_steps=train.most_skipped_steps,
    )


def layout_of(config: Config, devices: Sequence[jax.Device] = ()) -> Layout:
    """Builds the layout of a run over the devices of all its processes, or over others."""
    train = config.train
    rows = -(-train.batch_size // train.accumulation_steps)
    width = config.model.model_dim
    return make_layout(config.mesh, train.seed_axis, train.seeds, width, rows, devices)


def check_labels(config: Config, spec: CorpusSpec, labels: np.ndarray) -> None:
    """Refuses training labels `[N, L]` that the model cannot learn, by a `UserError`."""
    origin, model = registered()[config.model.name].origin, declared(config.model)
    if model.check_labels is not None:
        with one_sentence(config) if origin else contextlib.nullcontext():
            model.check_labels(config.model, spec, labels)


def check_model(config: Config, spec: CorpusSpec) -> None:
    """Raises `UserError` for settings that do not fit a corpus or each other; compiles nothing."""
    origin = registered()[config.model.name].origin
    with one_sentence(config) if origin else contextlib.nullcontext():
        _check_model(config, spec)


def _check_model(config: Config, spec: CorpusSpec) -> None:
    model, train = declared(config.model), config.train
    if config.model.encoder_folders and not model.encoder:
        raise UserError(
            f"model.name = {config.model.name!r} has no pretrained encoder inside: leave "
            "model.encoders and model.text_encoder empty, or train on a corpus that --mode embed "
            "has written."
        )
    shapes = parameter_shapes(config.model, spec)
    check_declaration(model, spec, shapes)
    passes = (1,) * max(len(model.stages), 1)
    recipe = make_recipe.__wrapped__(config, spec, passes, frozenset(), ())
    optimizer = recipe.optimizer
    moving = [path for path in shapes if not optimizer.settings[path].frozen]
    check_stages(recipe.objective, model.stages, moving)
    layout = layout_of(config)
    if model.mutable and (layout.mode == "pmap" or train.accumulation_steps > 1):
        raise UserError(
            f"model.name = {config.model.name!r} has statistics over whole batches "
            f"({', '.join(model.mutable)}): use mesh.mode = jit and train.accumulation_steps = 1."
        )
    if registered()[config.model.name].origin:
        trace_step(recipe, make_rates(config, optimizer.rates(config.optim, 1)), spec)
