"""Separates the numbers of a step from its structure: other numbers need no other program.

Rates are data of the compiled step. A dropout rate, a decay or a clipping of 0 and what is frozen
are structure, so that what is off costs nothing; groups of parameters are those of a pattern,
whatever their values are.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from msajax.config import Config, ModelConfig
from msajax.config.grammar import as_on
from msajax.layers.basic import dropout_numbers
from msajax.training.optimizers import OptimizerRates
from msajax.training.transforms import amounts, parse_transform


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
    rates = model.dropout_rates
    return {site: dropout_numbers(rate) for site, rate in rates.items() if as_on(rate) > 0}


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
