"""Runs --mode=ablate: trains every subset of a model's modalities, and compares them with all."""

from collections.abc import Callable
from typing import Any

from rich.console import Console

from msajax.cli.options import Options
from msajax.cli.train import supervise
from msajax.config import Config


def run(options: Options, console: Console) -> int:
    """Trains, and prints the comparison; returns the exit code."""
    return supervise(options, console, _choose)


def _choose(config: Config) -> tuple[Callable[..., Any], Callable[..., None]]:
    from msajax.studies.ablation import ablate, print_ablation

    del config
    return ablate, print_ablation
