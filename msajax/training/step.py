"""Takes one training step of one random seed: a pure function.

Rates are data of the compiled step, so that other numbers need no other program. A dropout rate, a
decay or a clipping of 0 and what is frozen are structure, so that what is off costs nothing; groups
of parameters are those of a pattern, whatever their values are.
"""

import dataclasses
import fnmatch
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.flatten_util import ravel_pytree

from msajax.config import Config, TrainConfig
from msajax.config.grammar import as_on
from msajax.layers.basic import RATES, dropout_numbers, rows_of_batch
from msajax.layers.platform import platform
from msajax.layers.prng import dropout_key, parameters_key
from msajax.models.contract import Model, Prediction, Stage, init_variables, joined, without
from msajax.preparation.batches import Batch, Progress
from msajax.spec import CorpusSpec
from msajax.training.objective import Objective, Sums, measure_terms, weights_before
from msajax.training.optimizers import Optimizer, OptimizerRates, StepInfo
from msajax.training.state import StepMetrics, TrainState
from msajax.training.transforms import Transforms, amounts, parse_transform

MOST_KEPT = 8  # recipes whose compiled programs stay in memory, for the next run of the same one


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """Holds what a step is made of, all of it known before a program is compiled.

    Programs are found again by the recipe itself: another of the same settings is another.

    Attributes:
        passes: steps that each pass of an epoch has; one pass, unless the model has stages.
        average: decay of the parameters' moving average; 0 is off, or the optimiser has its own.
        shared: paths of frozen parameters that are the same for every seed, and in no state.
        accumulation_steps: equal parts that a batch is cut into; their gradients are summed.
        most_skipped_steps: a seed that skips so many steps in a row has failed.
    """

    module: nn.Module
    model: Model
    optimizer: Optimizer
    objective: Objective
    transforms: Transforms = Transforms()
    passes: tuple[int, ...] = (1,)
    average: float = 0.0
    accumulation_steps: int = 1
    shared: frozenset[str] = frozenset()
    most_skipped_steps: int = TrainConfig.most_skipped_steps

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Returns the passes that make an epoch."""
        return tuple(self.model.stages) or (Stage(),)

    def stage_at(self, step: jax.Array) -> jax.Array | int:
        """Returns the number of the stage that a step of the run is in."""
        if len(self.passes) == 1:
            return 0
        ends = jnp.array(list(itertools.accumulate(self.passes)))
        return jnp.searchsorted(ends, step % sum(self.passes), side="right")

    def split_memory(self, memory: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Splits a memory into what has a row for each sample and what has not."""
        whole = () if self.model.memory is None else self.model.memory.whole
        of_rows = {name: x for name, x in memory.items() if name not in whole}
        return of_rows, {name: x for name, x in memory.items() if name in whole}

    def counts(self, stage: jax.Array | int) -> jax.Array:
        """Says which terms of the objective count in a stage, `[T]` bool."""
        fits, names = fnmatch.fnmatchcase, self.objective.terms
        found = [[any(fits(n, p) for p in one.terms) for n in names] for one in self.stages]
        return jnp.array(found)[stage]


class Rates(NamedTuple):
    """Holds the numbers of a step.

    Attributes:
        optimizer: learning rates, warm-up, decay and clipping.
        dropout: `{site: (uint32, float32)}`, as `dropout_numbers`, of sites whose rate is not 0.
        transforms: `[K]` float32, the amount of each transform.
    """

    optimizer: OptimizerRates
    dropout: dict[str, tuple[np.uint32, np.float32]]
    transforms: np.ndarray


def make_rates(config: Config, optimizer: OptimizerRates) -> Rates:
    """Collects the numbers of an experiment's step, on the host."""
    rates = config.model.dropout_rates
    dropout = {site: dropout_numbers(rate) for site, rate in rates.items() if as_on(rate) > 0}
    return Rates(optimizer, dropout, amounts(config.train.transforms))


def structure_of(config: Config) -> Config:
    """Puts one number for every rate that is not 0: experiments of one structure become equal."""
    transforms = []
    for entry in config.train.transforms:
        name, modality, amount = parse_transform(entry)
        transforms.append(f"{name}:{modality}={as_on(float(amount))}")
    return dataclasses.replace(
        config,
        model=config.model.structure,
        optim=config.optim.structure,
        train=dataclasses.replace(config.train, transforms=tuple(transforms)),
    )


def begin(
    seed: jax.Array, memory: Mapping[str, jax.Array], recipe: Recipe, spec: CorpusSpec
) -> TrainState:
    """Makes the state of one random seed before its first step.

    Its seed is `[]` uint32, and `memory` `{name: [N, …]}` is the model's before the first step.
    """
    params, collections = init_variables(recipe.module, recipe.model, spec, parameters_key(seed))
    params = without(params, recipe.shared)
    moving, _ = recipe.optimizer.split(params)
    states = tuple(recipe.optimizer.init(trained_in(stage, moving)) for stage in recipe.stages)
    return TrainState(
        seed=seed,
        step=jnp.int32(0),
        params=params,
        collections=collections,
        opt_state=states[0] if len(states) == 1 else states,
        # A copy: the training program overwrites the buffers of both.
        average=jax.tree.map(jnp.copy, moving) if recipe.optimizer.averages else {},
        memory=dict(memory),
        learning_rate_scale=jnp.float32(1),
        skipped_in_a_row=jnp.int32(0),
    )


def train_step(
    state: TrainState,
    batch: Batch,
    recipe: Recipe,
    rates: Rates,
    axis_name: str | None = None,
    shared: Any = None,
) -> tuple[TrainState, StepMetrics]:
    """Takes one optimiser step, unless its loss or its gradient is not finite.

    A skipped step counts as a step, so that the next one has other random numbers, but changes
    nothing else: one bad batch costs one step. After too many in a row, `step` stands still too:
    a seed that diverges fails alone.

    Args:
        state: one random seed's state, without the seed axis.
        batch: B rows, of which those with `row_weight` 0 do not count; under `axis_name`, this
            device's part of them.
        axis_name: the mapped axis over which the rows are spread, if there is one.
        shared: the values of `recipe.shared`, nested like parameters.

    Returns:
        The next state, and this step's metrics.
    """
    # The batch as the model reads it: changed at random, with the memory of its samples.
    rows = batch.row_weight.shape[0]
    first = jax.lax.axis_index(axis_name) * rows if axis_name else 0
    batch = recipe.transforms(batch, rates.transforms, state.seed, state.step, first)
    # A row that only fills the batch has a number beyond the memory: it reads 0, writes nothing.
    take = functools.partial(jnp.take, indices=batch.row, axis=0, mode="fill", fill_value=0)
    of_rows, whole = recipe.split_memory(state.memory)
    batch = batch.replace(memory=jax.tree.map(take, of_rows))
    steps_per_epoch = sum(recipe.passes)
    progress = Progress(
        step=state.step,
        epoch=state.step // steps_per_epoch,
        share=jnp.minimum(state.step / jnp.maximum(rates.optimizer.last_step, 1), 1),
    )
    key = dropout_key(state.seed, state.step)
    stage = recipe.stage_at(state.step)
    counts = recipe.counts(stage)
    moving, frozen = recipe.optimizer.split(state.params)

    def predict(moving: Any, part: Batch, first: jax.Array | int) -> tuple[Prediction, Any]:
        return recipe.module.apply(
            {
                "params": joined(joined(moving, frozen), shared or {}),
                **state.collections,
                **rows_of_batch(first, part.row_weight),
                RATES: rates.dropout,
            },
            part.features,
            part.masks,
            train=True,
            rngs={"dropout": key},
            mutable=list(recipe.model.mutable),
        )

    # The gradient over the rows of all devices, of the parameters that the stage trains.
    where = RowSlice(first, axis_name, counts, progress, whole)
    gradient, found = _differentiate(predict, moving, batch, recipe, where)
    sums = found.sums
    if axis_name and platform() != "tpu":
        # As one vector: between processes every array would be a message, and a wait, of its own;
        # on a GPU, two kernels.
        flat, unflatten = ravel_pytree((gradient, sums))
        gradient, sums = unflatten(jax.lax.psum(flat, axis_name))
    elif axis_name:  # a TPU's compiler sums them at once, without a copy
        gradient, sums = jax.lax.psum((gradient, sums), axis_name)
    sums = jax.tree.map(lambda x: jnp.where(counts, x, 0), sums)

    if len(recipe.stages) > 1:  # a parameter that does not move cannot spoil a step
        gradient = _of_stage(recipe, stage, gradient)

    # Move the parameters, and all that follows from them, if the step's numbers are finite.
    grad_norm = recipe.optimizer.norm(gradient)
    finite = jnp.isfinite(sums.sums).all() & jnp.isfinite(grad_norm)
    failed = state.skipped_in_a_row >= recipe.most_skipped_steps
    taken, skipped = finite & ~failed, ~finite & ~failed
    when = StepInfo(state.step, state.learning_rate_scale, taken)
    moved, opt_state, average = _moved(recipe, rates, state, gradient, moving, stage, when)
    after = {
        "collections": found.collections,
        "average": _averaged(recipe.average, state, moved) if recipe.average else average,
        "memory": _remembered(recipe, state, found.prediction, where.known_to(batch), axis_name),
    }

    # What the step measured, and the state behind it.
    base_rate = recipe.optimizer.learning_rates(rates.optimizer, state.step)[0]
    metrics = StepMetrics(
        sums=jnp.where(taken, sums.sums, 0),
        weights=jnp.where(taken, sums.weights, 0),
        grad_norm=jnp.where(taken, grad_norm, 0),
        learning_rate=base_rate * state.learning_rate_scale,
        skipped=skipped.astype(jnp.float32),
    )
    before = {name: getattr(state, name) for name in after}
    after = jax.tree.map(lambda new, old: jnp.where(taken, new, old), after, before)
    memory = recipe.model.memory
    if memory is not None and memory.after_epoch is not None:  # also if the last step was skipped
        ends = ~failed & ((state.step + 1) % steps_per_epoch == 0)
        changed = memory.after_epoch(after["memory"], progress.epoch)
        for name, x in changed.items():
            kept = after["memory"][name]
            after["memory"] = {**after["memory"], name: jnp.where(ends, x.astype(kept.dtype), kept)}
    state = state.replace(
        step=state.step + ~failed,
        skipped_in_a_row=jnp.where(taken, 0, state.skipped_in_a_row + skipped),
        params=joined(moved, frozen),
        opt_state=opt_state,
        **after,
    )
    return state, metrics


class RowSlice(NamedTuple):
    """Says which rows and terms a gradient is of.

    Attributes:
        first: position of the first row in the whole batch.
        axis_name: the mapped axis over which that batch is spread, if there is one.
        counts: `[T]` bool, the terms that count.
        whole: what the memory holds once for all samples.
    """

    first: jax.Array | int
    axis_name: str | None
    counts: jax.Array
    progress: Progress
    whole: Mapping[str, jax.Array]

    def known_to(self, batch: Batch) -> Batch:
        """Adds to a batch what has no rows."""
        return batch.replace(progress=self.progress, memory={**batch.memory, **self.whole})


class ForwardResult(NamedTuple):
    """Holds what a forward pass leaves beside the gradient.

    Attributes:
        sums: the terms, of this device's rows.
        collections: the model's mutable collections after the pass.
        prediction: None for a model without a memory, which alone reads it.
    """

    sums: Sums
    collections: Any
    prediction: Prediction | None


def _differentiate(
    predict: Callable, moving: Any, batch: Batch, recipe: Recipe, where: RowSlice
) -> tuple[Any, ForwardResult]:
    """Computes the gradient of the objective over this device's rows, a part at a time."""
    objective, parts = recipe.objective, recipe.accumulation_steps
    first, axis_name, counts, *_ = where
    factors = jnp.array([term.weight for term in objective.terms.values()]) * counts
    whole = None
    if parts > 1:
        known = where.known_to(batch)
        whole = weights_before(objective, lambda part: predict(moving, part, 0)[0], known)
        whole = jax.lax.psum(whole, axis_name) if axis_name else whole

    def loss(moving: Any, part: Batch, first: jax.Array | int) -> tuple[jax.Array, ForwardResult]:
        prediction, collections = predict(moving, part, first)
        sums = measure_terms(objective, prediction, part, axis_name, where.known_to)
        weights = whole
        if weights is None:
            weights = jax.lax.psum(sums.weights, axis_name) if axis_name else sums.weights
        # A term of which nothing counts in this batch is 0, not 0 / 0.
        each = sums.sums * (1 / jnp.where(weights > 0, weights, 1))
        value = jnp.where(counts, each * factors, 0).sum()
        return value, ForwardResult(sums, collections, prediction if recipe.model.memory else None)

    gradient_of = jax.grad(loss, has_aux=True)
    if parts == 1:
        return gradient_of(moving, batch, first)
    rows = len(batch.row_weight) // parts

    def accumulate(so_far: tuple[Any, Sums], part_and_index: tuple[Batch, jax.Array]):
        part, i = part_and_index
        gradient, found = gradient_of(moving, part, first + i * rows)
        return jax.tree.map(jnp.add, so_far, (gradient, found.sums)), found.prediction

    split = jax.tree.map(lambda x: x.reshape(parts, rows, *x.shape[1:]), batch)
    terms = jnp.zeros(len(objective.terms))
    nothing = (jax.tree.map(jnp.zeros_like, moving), Sums(terms, terms))
    (gradient, sums), predictions = jax.lax.scan(accumulate, nothing, (split, jnp.arange(parts)))
    joined_rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), predictions)
    return gradient, ForwardResult(sums, {}, joined_rows)


def _moved(
    recipe: Recipe,
    rates: Rates,
    state: TrainState,
    gradient: Any,
    moving: Any,
    stage: jax.Array | int,
    when: StepInfo,
) -> tuple[Any, Any, Any]:
    """Moves what the step's stage trains, by an optimiser's state that is that stage's own.

    Returns the parameters, the optimiser's state, and its average of the parameters; all as they
    were unless the step is taken.
    """
    update = functools.partial(recipe.optimizer.update, rates=rates.optimizer)
    if len(recipe.stages) == 1:
        return update(gradient, state.opt_state, moving, state.average, when=when)
    params, averages = flatten_dict(moving, sep="/"), flatten_dict(state.average, sep="/")
    opt_states = []
    for number, one in enumerate(recipe.stages):
        trained, is_now = trained_in(one, moving), stage == number
        moved, opt_state, average = update(
            trained_in(one, gradient),
            state.opt_state[number],
            trained,
            trained_in(one, state.average),
            when=when._replace(taken=when.taken & is_now),
        )
        opt_states.append(opt_state)
        for trees, tree in ((params, moved), (averages, average)):
            for path, value in flatten_dict(tree, sep="/").items():
                trees[path] = jnp.where(is_now, value, trees[path])
    return unflatten_dict(params, sep="/"), tuple(opt_states), unflatten_dict(averages, sep="/")


def _of_stage(recipe: Recipe, stage: jax.Array | int, gradient: Any) -> Any:
    """Sets the gradient to zero where the stage trains nothing."""
    trained = [set(flatten_dict(trained_in(one, gradient), sep="/")) for one in recipe.stages]
    return unflatten_dict(
        {
            path: jnp.where(jnp.array([path in paths for paths in trained])[stage], g, 0)
            for path, g in flatten_dict(gradient, sep="/").items()
        },
        sep="/",
    )


def trained_in(stage: Stage, params: Any) -> Any:
    """Returns the parameters that a stage trains."""
    flat = flatten_dict(params, sep="/")
    named = {
        path: x
        for path, x in flat.items()
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in stage.trains)
    }
    return unflatten_dict(named, sep="/")


def _averaged(decay: float, state: TrainState, moved: Any) -> Any:
    """Takes the parameters that moved into their average; it follows the first steps faster."""
    step = state.step.astype(jnp.float32)
    decay = jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, state.average, moved)


def _remembered(
    recipe: Recipe,
    state: TrainState,
    prediction: Prediction | None,
    batch: Batch,
    axis_name: str | None,
) -> Any:
    """Writes the memory of the batch's samples, on every device that of all devices' rows."""
    if recipe.model.memory is None:
        return {}
    prediction = jax.lax.stop_gradient(prediction)
    update = recipe.model.memory.update
    written = batch.row, update(state.memory, prediction, batch, batch.progress.epoch)
    if axis_name:
        written = jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name, tiled=True), written)
    row, rows = written
    of_rows, whole = recipe.split_memory(state.memory)
    return whole | {
        name: kept.at[row].set(rows[name].astype(kept.dtype), mode="drop")
        for name, kept in of_rows.items()
    }
