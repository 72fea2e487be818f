"""Moves parameters: a table of optimisers, the schedules of their rates, and clipping.

An optimiser is a function here and an entry in `OPTIMIZERS`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from msajax.config import OptimConfig
from msajax.config.sections import OWN
from msajax.errors import UserError
from msajax.layers.linear import materialised
from msajax.training.groups import ParameterSettings, settings_of
from msajax.training.packing import make_packing

COUNT = "count"  # steps taken, which every optimiser keeps
AVERAGE = "average"


class StepInfo(NamedTuple):
    """Says at which step parameters move, and whether they do.

    Attributes:
        step: the run's, from 0.
        scale: the plateau schedule's factor, the same for all groups.
        taken: False for a step that leaves everything as it was.
    """

    step: jax.Array
    scale: jax.Array
    taken: jax.Array | bool


class OptimizerRates(NamedTuple):
    """Holds the numbers by which parameters move, of G groups; group 0 is that of no pattern.

    Attributes:
        peak: `[G]` float32, the highest learning rate.
        low: `[G]` float32, where a schedule that ends takes it.
        warmup: `[G]` float32, steps of linear warm-up.
        decay: `[G]` float32, weight decay.
        clip_norm: `[]` float32, the largest norm of the whole gradient.
        last_step: `[]` float32, the run's if no seed stops early: schedules end there.
    """

    peak: Any
    low: Any
    warmup: Any
    decay: Any
    clip_norm: Any
    last_step: Any


class Step(NamedTuple):
    """Holds what an optimiser knows of a step, of all parameters.

    Attributes:
        settings: its own, by name, as `b1`.
        count: `[]` float32, steps taken, this one with them.
        rates: `[G]`, the learning rate of every group.
        totals: what it keeps of every group, with this step, by name.
        keep: (new, old) -> new if the step is taken, else old. State goes through it: choosing
            afterwards would have old and new arrays alive at once, and copy them at every step.
    """

    settings: Mapping[str, Any]
    count: jax.Array
    rates: jax.Array
    totals: Mapping[str, jax.Array]
    keep: Callable[[Any, Any], Any]


class Leaf(NamedTuple):
    """Holds one parameter of a step.

    Attributes:
        value: the parameter before the step.
        kept: arrays that the optimiser keeps of it, of the same shape, by name.
        decay: its weight decay; None if that is 0.
    """

    group: int
    gradient: jax.Array
    value: jax.Array
    kept: Mapping[str, jax.Array]
    decay: jax.Array | None

    def decayed(self, x: jax.Array) -> jax.Array:
        """Adds the decay to a gradient, or to a direction."""
        return x if self.decay is None else x + self.decay * self.value


# What one parameter becomes, and what is then kept of it.
Moved = tuple[jax.Array, dict[str, jax.Array]]


class Algorithm(NamedTuple):
    """Describes an optimiser.

    Attributes:
        begin: (step) -> the function that moves one parameter.
        settings: the keys of `optim.*` that it reads beside those that all do, and its own values.
        keeps: names of the arrays that it keeps of every parameter; they begin as 0. If `average`
            is one of them, it begins as the parameter, and validation, the best epoch and the
            bundle read it in place of the parameter.
        totals: (totals, rates `[G]`) -> what it keeps `[G]` of every group after a step, by name;
            before the first one they are 0, and it is called with {}.
    """

    begin: Callable[[Step], Callable[[Leaf], Moved]]
    settings: Mapping[str, Any]
    keeps: tuple[str, ...]
    totals: Callable[[Mapping[str, jax.Array], jax.Array], dict[str, jax.Array]] | None = None


def _adam(step: Step, *, coupled: bool) -> Callable[[Leaf], Moved]:
    """Moves by Adam (Kingma and Ba, 2015), or AdamW, decay apart (Loshchilov and Hutter, 2019)."""
    b1, b2, eps = (step.settings[name] for name in ("b1", "b2", "eps"))
    mean_scale, square_scale = 1 / (1 - b1**step.count), 1 / (1 - b2**step.count)

    def move(leaf: Leaf) -> Moved:
        g = leaf.decayed(leaf.gradient) if coupled else leaf.gradient
        mean, square = leaf.kept["mean"], leaf.kept["square"]
        mean = step.keep(b1 * mean + (1 - b1) * g, mean)
        square = step.keep(b2 * square + (1 - b2) * g * g, square)
        mean, square = materialised((mean, square))
        direction = mean * mean_scale / (jnp.sqrt(square * square_scale) + eps)
        direction = direction if coupled else leaf.decayed(direction)
        return leaf.value - step.rates[leaf.group] * direction, {"mean": mean, "square": square}

    return move


def _sgd(step: Step) -> Callable[[Leaf], Moved]:
    """Adds momentum without damping, as is usual since Sutskever et al., 2013; decay is coupled."""
    momentum, nesterov = step.settings["momentum"], step.settings["nesterov"]

    def move(leaf: Leaf) -> Moved:
        g = leaf.decayed(leaf.gradient)
        velocity = materialised(
            step.keep(momentum * leaf.kept["velocity"] + g, leaf.kept["velocity"])
        )
        direction = g + momentum * velocity if nesterov else velocity
        return leaf.value - step.rates[leaf.group] * direction, {"velocity": velocity}

    return move


def _lion(step: Step) -> Callable[[Leaf], Moved]:
    """Moves by the sign of a mean, with decoupled decay (Chen et al., 2023)."""
    b1, b2 = step.settings["b1"], step.settings["b2"]

    def move(leaf: Leaf) -> Moved:
        g, mean = leaf.gradient, leaf.kept["mean"]
        direction = leaf.decayed(jnp.sign(b1 * mean + (1 - b1) * g))
        moved = leaf.value - step.rates[leaf.group] * direction
        return moved, {"mean": step.keep(b2 * mean + (1 - b2) * g, mean)}

    return move


def _schedule_free(step: Step) -> Callable[[Leaf], Moved]:
    """Moves by AdamW with gradients taken between its path and its average (Defazio et al., 2024).

    The parameter is y, `path` is z and `average` is x, to which each step counts by the square of
    the highest rate so far. Its second moment alone is a mean; b1 is how near y is to x.
    """
    b1, b2, eps = (step.settings[name] for name in ("b1", "b2", "eps"))
    square_scale = 1 / (1 - b2**step.count)
    weight = step.totals["highest"] ** 2
    share = jnp.where(weight > 0, weight / jnp.where(weight > 0, step.totals["weights"], 1), 0)

    def move(leaf: Leaf) -> Moved:
        g, square = leaf.gradient, leaf.kept["square"]
        square = materialised(step.keep(b2 * square + (1 - b2) * g * g, square))
        path = jnp.where(step.count > 1, leaf.kept["path"], leaf.value)  # z begins as y
        direction = leaf.decayed(g / (jnp.sqrt(square * square_scale) + eps))
        path = path - step.rates[leaf.group] * direction
        path = materialised(step.keep(path, leaf.kept["path"]))
        average, c = leaf.kept["average"], share[leaf.group]
        average = step.keep((1 - c) * average + c * path, average)
        moved = b1 * average + (1 - b1) * path
        return moved, {"square": square, "path": path, "average": average}

    return move


def _weights(totals: Mapping[str, jax.Array], rates: jax.Array) -> dict[str, jax.Array]:
    highest = jnp.maximum(totals.get("highest", 0), rates)
    return {"highest": highest, "weights": totals.get("weights", 0) + highest**2}


_OF_ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
OPTIMIZERS: Mapping[str, Algorithm] = {
    "adam": Algorithm(functools.partial(_adam, coupled=True), _OF_ADAM, ("mean", "square")),
    "adamw": Algorithm(functools.partial(_adam, coupled=False), _OF_ADAM, ("mean", "square")),
    "sgd": Algorithm(_sgd, {"momentum": 0.9, "nesterov": False}, ("velocity",)),
    "lion": Algorithm(_lion, {"b1": 0.9, "b2": 0.99}, ("mean",)),
    "schedule_free": Algorithm(_schedule_free, _OF_ADAM, ("square", "path", AVERAGE), _weights),
}


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Turns gradients into parameters.

    Learning rates are functions of the run's step: a schedule of optax has a counter of its own,
    which would stand still in steps that are skipped. The trees that `init` and `update` take lack
    the parameters that are frozen: see `split`.

    Attributes:
        config: asked for by the user; of its rates only which are 0 counts here.
        joins: small parameters of a group move as one vector; see `packing`.
        joins_norm: the norm is that of one vector of all gradients, and no sum of many.
    """

    config: OptimConfig
    settings: Mapping[str, ParameterSettings]
    joins: bool = False
    joins_norm: bool = False

    @property
    def algorithm(self) -> Algorithm:
        """Returns the optimiser that the configuration names."""
        return OPTIMIZERS[self.config.name]

    @property
    def averages(self) -> bool:
        """Tells whether parameters are averaged, by `optim.average` or by the optimiser."""
        return bool(self.config.average) or AVERAGE in self.algorithm.keeps

    @property
    def moments(self) -> list[str]:
        """Lists the names of the arrays like the parameters that the optimiser's state holds."""
        return [name for name in self.algorithm.keeps if name != AVERAGE]

    def rates(self, config: OptimConfig, total_steps: int) -> OptimizerRates:
        """Collects the numbers of a configuration of the same structure, on the host.

        `total_steps` are the run's if no seed stops early.
        """
        settings = settings_of(config, self.settings)
        groups = {0: ParameterSettings(config.learning_rate, 0.0, config.warmup_steps)}
        groups |= {one.group: one for one in settings.values()}
        each = [groups[number] for number in range(len(groups))]
        peaks = [one.learning_rate for one in each]
        return OptimizerRates(
            peak=np.array(peaks, np.float32),
            low=np.minimum(config.min_learning_rate, peaks).astype(np.float32),
            warmup=np.array([one.warmup_steps for one in each], np.float32),
            decay=np.array([one.weight_decay for one in each], np.float32),
            clip_norm=np.float32(config.clip_norm),
            last_step=np.float32(total_steps - 1),
        )

    def split(self, params: Any) -> tuple[Any, Any]:
        """Splits parameters into those that move and those that are frozen."""
        flat = flatten_dict(params, sep="/")
        parts = (
            {path: x for path, x in flat.items() if self.settings[path].frozen == frozen}
            for frozen in (False, True)
        )
        moving, frozen = (unflatten_dict(part, sep="/") for part in parts)
        return moving, frozen

    def init(self, params: Any) -> dict[str, Any]:
        """Makes the state before the first step; an average is not in it, but apart."""
        algorithm, groups = self.algorithm, 1 + max(one.group for one in self.settings.values())
        totals = algorithm.totals({}, jnp.zeros(groups)) if algorithm.totals else {}
        state = {COUNT: jnp.int32(0), **jax.tree.map(jnp.zeros_like, totals)}
        return state | {name: jax.tree.map(jnp.zeros_like, params) for name in self.moments}

    def update(
        self,
        gradient: Any,
        state: Mapping[str, Any],
        params: Any,
        average: Any,
        rates: OptimizerRates,
        when: StepInfo,
    ) -> tuple[Any, dict[str, Any], Any]:
        """Moves parameters.

        Returns:
            The parameters, the next state, and the average, which is returned as it came if the
            optimiser has none.
        """
        algorithm = self.algorithm
        packing = make_packing(params, self.settings, self.joins)
        one_of_each = dict(zip(packing.keys, packing.paths, strict=True))
        gradients = packing.pack(gradient)
        if self.config.clip_norm:
            norm, most = self._norm_of(gradients), rates.clip_norm
            gradients = jax.tree.map(
                lambda g: jnp.where(norm < most, g, g / norm.astype(g.dtype) * most), gradients
            )

        def keep(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(when.taken, n, o), new, old)

        now = self.learning_rates(rates, when.step) * when.scale
        count = keep(optax.safe_increment(state[COUNT]), state[COUNT])
        after: dict[str, Any] = {COUNT: count}
        if algorithm.totals:
            before = {k: x for k, x in state.items() if k not in (COUNT, *algorithm.keeps)}
            after |= keep(algorithm.totals(before, now), before)
        own = {name: self.setting(name) for name in algorithm.settings}
        move = algorithm.begin(Step(own, count.astype(jnp.float32), now, after, keep))

        # One group after another, with all that is kept of it.
        kept = {name: average if name == AVERAGE else state[name] for name in algorithm.keeps}
        kept = {name: packing.pack(tree) for name, tree in kept.items()}
        values = packing.pack(params)
        for key, g in gradients.items():
            settings = self.settings[one_of_each[key]]
            decay = rates.decay[settings.group] if settings.weight_decay else None
            of_group = {name: arrays[key] for name, arrays in kept.items()}
            moved, of_group = move(Leaf(settings.group, g, values[key], of_group, decay))
            values[key] = keep(moved, values[key])
            for name, array in of_group.items():
                kept[name][key] = array
        after |= {name: packing.unpack(arrays) for name, arrays in kept.items()}
        average = after.pop(AVERAGE, average)
        return packing.unpack(values), after, average

    def norm(self, gradient: Any) -> jax.Array:
        """Computes the norm of a gradient, over the vectors that it moves by."""
        return self._norm_of(make_packing(gradient, self.settings, self.joins).pack(gradient))

    def _norm_of(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
        if not (self.joins_norm and arrays):
            return optax.tree.norm(arrays)
        return jnp.linalg.norm(jnp.concatenate([jnp.ravel(x) for x in arrays.values()]))

    def setting(self, name: str) -> Any:
        """Returns a setting of the optimiser: the user's, or its own."""
        value = getattr(self.config, name)
        return self.algorithm.settings[name] if value == OWN else value

    def learning_rates(self, rates: OptimizerRates, step: jax.Array) -> jax.Array:
        """Computes `[G]` rates of a step: linear warm-up from 0, then constant, or down to `low`.

        For the plateau schedule it is constant, and multiplied elsewhere by each seed's factor;
        along a cosine or a line there is no such factor: two schedules at once would surprise.
        """
        step, value = step.astype(jnp.float32), rates.peak
        if self.config.schedule in ("cosine", "linear"):
            left = jnp.maximum(rates.last_step - rates.warmup, 1)
            done = jnp.clip((step - rates.warmup) / left, 0, 1)
            if self.config.schedule == "linear":
                share = 1 - done
            else:
                share = 0.5 * (1 + jnp.cos(jnp.pi * done))
            value = rates.low + (rates.peak - rates.low) * share
        return value * jnp.minimum((step + (rates.warmup == 0)) / jnp.maximum(rates.warmup, 1), 1)


def make_optimizer(
    config: OptimConfig, paths: Iterable[str], untrained: Iterable[str] = ()
) -> Optimizer:
    """Builds the optimiser of a run whose model has these parameters, joined by `/`.

    Raises:
        UserError: for an optimiser that there is not, a setting that it does not read, and as
            `settings_of`.
    """
    algorithm = OPTIMIZERS.get(config.name)
    if algorithm is None:
        raise UserError(f"optim.name = {config.name!r}: must be one of {', '.join(OPTIMIZERS)}.")
    usual = OptimConfig()
    for name in dict.fromkeys(key for one in OPTIMIZERS.values() for key in one.settings):
        value = getattr(config, name)
        if name not in algorithm.settings and value != getattr(usual, name):
            raise UserError(
                f"optim.{name} = {value!r}: optim.name = {config.name!r} does not read it, but "
                f"{', '.join(f'optim.{key}' for key in algorithm.settings)}."
            )
    if config.average and AVERAGE in algorithm.keeps:
        raise UserError(
            f"optim.average = {config.average}: optim.name = {config.name!r} has an average of its "
            "own; leave it 0."
        )
    return Optimizer(config, settings_of(config, paths, untrained))
