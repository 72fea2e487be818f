"""Runs --mode=ablate: trains every subset of a model's modalities, and compares them with all."""

from collections.abc import Callable
from typing import Any

from rich.console import Console

from msajax.config import Config
from msajax.modes.options import Options
from msajax.modes.train import supervise


def run(options: Options, console: Console) -> int:
    """Trains, and prints the comparison; returns the exit code."""
    return supervise(options, console, _choose)


def _choose(config: Config) -> tuple[Callable[..., Any], Callable[..., None]]:
    from msajax.ablation import ablate
    from msajax.evaluation.ablation_tables import print_ablation

    del config
    return ablate, print_ablation
