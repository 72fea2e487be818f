"""Moves parameters: Adam, schedules, and groups of parameters with settings of their own."""

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from msajax.config import OptimConfig
from msajax.errors import UserError
from msajax.layers.linear import materialised

_LAYER = re.compile(r"_(\d+)(?:/|$)")  # block_3/attention/…


@dataclasses.dataclass(frozen=True)
class Settings:
    """Holds the settings by which one parameter moves.

    Attributes:
        learning_rate: the peak of its rate.
        weight_decay: its decoupled decay.
        warmup_steps: steps of linear warm-up.
        frozen: whether it stays as it began.
    """

    learning_rate: float
    weight_decay: float
    warmup_steps: int
    frozen: bool = False


def settings_of(config: OptimConfig, paths: Iterable[str]) -> dict[str, Settings]:
    """Applies `optim.groups` to the paths of a model's parameters, joined by `/`.

    Without a group, weight decay acts on kernels alone, as is usual for Transformers: not on
    biases, norms and position tables.

    Raises:
        UserError: for a pattern that names no parameter, and if all would be frozen.
    """
    paths = list(paths)
    found = {
        path: Settings(
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay if path.split("/")[-1] == "kernel" else 0.0,
            warmup_steps=config.warmup_steps,
        )
        for path in paths
    }
    factors = dict.fromkeys(paths, 1.0)
    for group in config.parsed_groups:
        named = [path for path in paths if fnmatch.fnmatchcase(path, group.pattern)]
        if not named:
            raise UserError(
                f"optim.groups = {group.text!r}: no parameter has such a path; there are "
                f"{', '.join(dict.fromkeys(path.split('/')[0] + '/*' for path in paths))}."
            )
        if group.setting == "layer_decay":
            factors |= _layer_factors(named, group.value)
            continue
        value = group.value
        if group.setting in ("frozen", "warmup_steps"):
            value = type(getattr(found[named[0]], group.setting))(value)
        for path in named:
            found[path] = dataclasses.replace(found[path], **{group.setting: value})
    if all(settings.frozen for settings in found.values()):
        raise UserError("optim.groups freezes every parameter: there is nothing left to train.")
    return {
        path: dataclasses.replace(settings, learning_rate=settings.learning_rate * factors[path])
        for path, settings in found.items()
    }


def _layer_factors(paths: list[str], decay: float) -> dict[str, float]:
    """Computes a factor of the rate for each path: `decay` to the number of layers above its own.

    The first part of a path that ends in a number (`block_3`) says the layer; a path without one,
    as that of an embedding, lies below the first layer, but a final norm is of the last.
    """
    layers = {path: _LAYER.search(path) for path in paths}
    numbers = {path: int(found[1]) if found else -1 for path, found in layers.items()}
    numbers |= {path: max(numbers.values()) for path in paths if "final_norm/" in path}
    return {path: decay ** (max(numbers.values()) - layer) for path, layer in numbers.items()}


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


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Turns gradients into updates of parameters.

    Learning rates are functions of the run's step: a schedule of optax has a counter of its own,
    which would stand still in steps that are skipped. The trees that `init` and `update` take lack
    the parameters that are frozen: see `split`.

    Attributes:
        config: what the user asks for.
        total_steps: the run's if no seed stops early; the cosine and linear schedules end there.
        settings: every parameter's, by path.
    """

    config: OptimConfig
    total_steps: int
    settings: Mapping[str, Settings]

    def split(self, params: Any) -> tuple[Any, Any]:
        """Splits parameters into those that move and those that are frozen."""
        flat = flatten_dict(params, sep="/")
        parts = (
            {path: x for path, x in flat.items() if self.settings[path].frozen == frozen}
            for frozen in (False, True)
        )
        moving, frozen = (unflatten_dict(part, sep="/") for part in parts)
        return moving, frozen

    def init(self, params: Any) -> Any:
        """Makes the state before the first step: the moments of each parameter."""
        return self._without_rates(params, True).init(params)

    def update(self, gradient: Any, state: Any, params: Any, when: StepInfo) -> tuple[Any, Any]:
        """Computes what to add to parameters.

        Args:
            gradient: like the parameters.
            state: what `init` or the step before gave.
            params: those that move.
            when: the step.

        Returns:
            The updates, which mean nothing unless the step is taken, and the next state.
        """
        updates, state = self._without_rates(params, when.taken).update(gradient, state, params)
        rates: dict[Settings, jax.Array] = {}
        scaled = {}
        for path, update in flatten_dict(updates, sep="/").items():
            settings = self.settings[path]
            if settings not in rates:
                rates[settings] = self._rate(settings, when.step) * when.scale
            scaled[path] = -rates[settings] * update
        return unflatten_dict(scaled, sep="/"), state

    def learning_rate(self, step: jax.Array) -> jax.Array:
        """Returns the rate of parameters that are in no group, before the plateau's factor."""
        config = self.config
        return self._rate(Settings(config.learning_rate, 0.0, config.warmup_steps), step)

    def _rate(self, settings: Settings, step: jax.Array) -> jax.Array:
        """Computes the rate at a step: linear warm-up from 0, then constant, or down to the lowest.

        For the plateau schedule it is constant, and multiplied elsewhere by each seed's factor;
        along a cosine or a line there is no such factor: two schedules at once would surprise.
        """
        peak, warmup = settings.learning_rate, settings.warmup_steps
        step = step.astype(jnp.float32)
        value = jnp.float32(peak)
        if self.config.schedule in ("cosine", "linear"):
            low = min(self.config.min_learning_rate, peak)
            done = jnp.clip((step - warmup) / max(self.total_steps - 1 - warmup, 1), 0, 1)
            if self.config.schedule == "linear":
                value = low + (peak - low) * (1 - done)
            else:
                value = low + 0.5 * (peak - low) * (1 + jnp.cos(jnp.pi * done))
        if warmup:
            value = value * jnp.minimum(step / warmup, 1)
        return value

    def _without_rates(self, params: Any, taken: jax.Array | bool) -> optax.GradientTransformation:
        """Builds what clips the norm of the whole gradient, takes Adam's step, decays weights."""
        parts = []
        if self.config.clip_norm:
            parts.append(optax.clip_by_global_norm(self.config.clip_norm))
        parts.append(_scale_by_adam(taken))
        decays = {p: self.settings[p].weight_decay for p in flatten_dict(params, sep="/")}
        for decay in dict.fromkeys(filter(None, decays.values())):
            mask = unflatten_dict({p: d == decay for p, d in decays.items()}, sep="/")
            parts.append(optax.add_decayed_weights(decay, mask=mask))
        return optax.chain(*parts)


def _scale_by_adam(taken: jax.Array | bool) -> optax.GradientTransformation:
    """Takes Adam's step as `optax.scale_by_adam`, whose state it has, where `taken`.

    Optax's own would be chosen from afterwards: then old and new moments are alive at once, and
    every step copies them.
    """
    b1, b2, eps = 0.9, 0.999, 1e-8

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        count = jnp.where(taken, optax.safe_increment(state.count), state.count)
        steps = count.astype(jnp.float32)
        mean_scale, square_scale = 1 / (1 - b1**steps), 1 / (1 - b2**steps)

        def one(g: jax.Array, mean: jax.Array, square: jax.Array) -> tuple[jax.Array, ...]:
            mean = jnp.where(taken, b1 * mean + (1 - b1) * g, mean)
            square = jnp.where(taken, b2 * square + (1 - b2) * g * g, square)
            mean, square = materialised((mean, square))
            return mean * mean_scale / (jnp.sqrt(square * square_scale) + eps), mean, square

        found = jax.tree.map(one, gradient, state.mu, state.nu)
        updates, mu, nu = jax.tree.transpose(
            jax.tree.structure(gradient), jax.tree.structure((0, 0, 0)), found
        )
        return updates, state._replace(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def make_optimizer(config: OptimConfig, total_steps: int, paths: Iterable[str]) -> Optimizer:
    """Builds the optimiser of a run of at most `total_steps` steps.

    Args:
        config: what the user asks for.
        total_steps: if no seed stops early.
        paths: the model's parameters, joined by `/`.

    Raises:
        UserError: as `settings_of`.
    """
    return Optimizer(config, total_steps, settings_of(config, paths))
