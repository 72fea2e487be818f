"""Separates the numbers of a step from its structure: other numbers need no other program.

Rates are data of the compiled step. A dropout rate, a decay or a clipping of 0 and what is frozen
are structure, so that what is off costs nothing; groups of parameters are those of a pattern,
whatever their values are.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from msajax.config import Config, ModelConfig
from msajax.config.grammar import parse_override
from msajax.config.model import DROPOUT_RATES, SAME
from msajax.layers.basic import dropout_numbers
from msajax.training.optimizers import OptimizerRates
from msajax.training.transforms import amounts, parse_transform

_ON = 0.5  # stands for every number that is not 0


class Rates(NamedTuple):
    """Holds the numbers of a step.

    Attributes:
        optimizer: learning rates, warm-up, decay and clipping.
        dropout: `{site: (uint32, float32)}`, as `dropout_numbers`.
        transforms: `[K]` float32, the amount of each transform.
    """

    optimizer: OptimizerRates
    dropout: dict[str, tuple[np.uint32, np.float32]]
    transforms: np.ndarray


def make_rates(config: Config, optimizer: OptimizerRates) -> Rates:
    """Collects the numbers of an experiment's step, on the host."""
    return Rates(optimizer, dropout_rates(config.model), amounts(config.train.transforms))


def dropout_rates(model: ModelConfig) -> dict[str, tuple[np.uint32, np.float32]]:
    """Computes the numbers of every site whose dropout rate is not 0."""
    rates = {name: getattr(model, name) for name in DROPOUT_RATES}
    for modality, setting, text in map(parse_override, model.overrides):
        if setting in DROPOUT_RATES:
            rates[f"{modality}.{setting}"] = float(text)
    return {site: dropout_numbers(rate) for site, rate in rates.items() if rate not in (0, SAME)}


def structure_of(config: Config) -> Config:
    """Puts one number for every rate that is not 0: experiments of one structure become equal."""
    model, optim, train = config.model, config.optim, config.train
    on = {name: _as_on(getattr(model, name)) for name in DROPOUT_RATES}
    overrides = []
    for modality, setting, text in map(parse_override, model.overrides):
        value = _as_on(float(text)) if setting in DROPOUT_RATES else text
        overrides.append(f"{modality}.{setting}={value}")
    transforms = []
    for entry in train.transforms:
        name, modality, amount = parse_transform(entry)
        transforms.append(f"{name}:{modality}={_as_on(float(amount))}")
    groups = []
    for group in optim.parsed_groups:
        value = str(bool(group.value)).lower() if group.setting == "frozen" else 0
        if group.setting != "warmup_steps":
            value = value or _as_on(group.value)
        groups.append(f"{group.pattern}:{group.setting}={value}")
    usual = type(optim)()
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, overrides=tuple(overrides), **on),
        optim=dataclasses.replace(
            optim,
            learning_rate=_ON,
            min_learning_rate=0.0,
            warmup_steps=0,
            weight_decay=_as_on(optim.weight_decay),
            clip_norm=_as_on(optim.clip_norm),
            plateau_factor=usual.plateau_factor,
            plateau_patience=usual.plateau_patience,
            groups=tuple(groups),
        ),
        train=dataclasses.replace(train, transforms=tuple(transforms)),
    )


def _as_on(rate: float) -> float:
    return rate if rate in (0, SAME) else _ON
