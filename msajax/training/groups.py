"""Gives each parameter the settings of the groups that it is in: `optim.groups`."""

import dataclasses
import fnmatch
import re
from collections.abc import Iterable

from msajax.config import OptimConfig
from msajax.config.grammar import read_group
from msajax.errors import UserError
from msajax.models.inputs import ENCODER

# Convolutions of pretrained encoders of sound stay as they are unless a group says otherwise.
_USUAL = (f"{ENCODER.format(modality='*')}/convolutions/*:frozen=true",)
_LAYER = re.compile(r"_(\d+)(?:/|$)")  # block_3/attention/…


@dataclasses.dataclass(frozen=True)
class ParameterSettings:
    """Holds the settings by which one parameter moves.

    Attributes:
        learning_rate: the peak of its rate.
        group: a number from 1, the same for parameters that no pattern and no layer tells apart,
            whatever the values are.
    """

    learning_rate: float
    weight_decay: float
    warmup_steps: int
    frozen: bool = False
    group: int = 0


def settings_of(
    config: OptimConfig, paths: Iterable[str], untrained: Iterable[str] = ()
) -> dict[str, ParameterSettings]:
    """Applies `optim.groups` to the paths of a model's parameters, joined by `/`.

    Without a group, weight decay acts on kernels alone, as is usual for Transformers: not on
    biases, norms and position tables; and the convolutions of pretrained encoders of sound are
    frozen. What the patterns `untrained` name is frozen with any.

    Raises:
        UserError: for a pattern that names no parameter, and if all would be frozen.
    """
    paths = list(paths)
    kernels = {path for path in paths if path.split("/")[-1] == "kernel"}
    found = {
        path: ParameterSettings(
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay if path in kernels else 0.0,
            warmup_steps=config.warmup_steps,
        )
        for path in paths
    }
    factors = dict.fromkeys(paths, 1.0)
    apart = {path: (path in kernels,) for path in paths}
    usual = [read_group(text) for text in _USUAL]
    for number, group in enumerate((*usual, *config.parsed_groups)):
        named = [path for path in paths if fnmatch.fnmatchcase(path, group.pattern)]
        if not named and number < len(usual):
            continue
        if not named:
            raise UserError(
                f"optim.groups = {group.text!r}: no parameter has such a path; there are "
                f"{', '.join(dict.fromkeys(path.split('/')[0] + '/*' for path in paths))}."
            )
        above = dict.fromkeys(named, 0)
        value = group.value
        if group.setting == "layer_decay":
            above = _layers_above(named)
            factors |= {path: value**layers for path, layers in above.items()}
        else:
            if group.setting in ("frozen", "warmup_steps"):
                value = type(getattr(found[named[0]], group.setting))(value)
            for path in named:
                found[path] = dataclasses.replace(found[path], **{group.setting: value})
        for path, layers in above.items():
            apart[path] += ((number, layers),)
    for pattern in untrained:
        named = [path for path in paths if fnmatch.fnmatchcase(path, pattern)]
        if not named:
            raise UserError(
                f"The model's untrained {pattern!r} names no parameter: choose of "
                f"{', '.join(paths)}."
            )
        for path in named:
            found[path] = dataclasses.replace(found[path], frozen=True)
    if all(settings.frozen for settings in found.values()):
        raise UserError("optim.groups freezes every parameter: there is nothing left to train.")
    groups = {one: number for number, one in enumerate(dict.fromkeys(apart.values()), 1)}
    return {
        path: dataclasses.replace(
            settings,
            learning_rate=settings.learning_rate * factors[path],
            group=groups[apart[path]],
        )
        for path, settings in found.items()
    }


def _layers_above(paths: list[str]) -> dict[str, int]:
    """Counts the layers above each path's own.

    The first part of a path that ends in a number (`block_3`) says the layer; a path without one,
    as that of an embedding, lies below the first layer, but a final norm is of the last.
    """
    layers = {path: _LAYER.search(path) for path in paths}
    numbers = {path: int(found[1]) if found else -1 for path, found in layers.items()}
    numbers |= {path: max(numbers.values()) for path in paths if "final_norm/" in path}
    return {path: max(numbers.values()) - layer for path, layer in numbers.items()}
