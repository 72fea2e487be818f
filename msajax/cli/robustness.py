"""Runs --mode=robustness: measures a finished run on inputs that get worse."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import track

from msajax import announce
from msajax.cli.early_checks import check_run
from msajax.cli.options import Options
from msajax.errors import OK
from msajax.files import write_json
from msajax.runs.manifest import ROBUSTNESS

logger = logging.getLogger(__name__)


def run(options: Options, console: Console) -> int:
    """Measures, writes robustness.json and prints it; returns the exit code."""
    (workdir,) = options.required("workdir")
    report = measure_robustness(workdir)
    from msajax.robustness.measure import print_robustness

    print_robustness(report, console)
    print(f"Run folder: {workdir}")
    return OK


def measure_robustness(workdir: str) -> dict[str, Any]:
    """Measures the test metrics of a finished run as modalities and steps are lost, and with noise.

    It writes and returns robustness.json; a report that is in the folder shows it from then on.
    Raises `UserError` if the run has not ended, its corpus is gone or another one, or its model has
    no labels.
    """
    check_run(workdir, "robustness")
    from msajax.cli.finished_run import adding
    from msajax.results.finished import open_finished
    from msajax.robustness import measure

    with adding("robustness", workdir, ROBUSTNESS) as folder:
        opened = open_finished(folder, "test")
        announce.now("Compiling and scoring the test split")
        begun = measure.begin(opened)
        spec = opened.bundle.preparation.spec
        if ids := [m for m in spec.modalities if not spec.has_features(m)]:
            logger.info("Noise is added to features; %s is token ids.", ", ".join(ids))
        report = begun.report(_tell_points)
        write_json(folder.file(ROBUSTNESS), report)
    return report


def _tell_points(points: Iterable[Any], count: int) -> Iterator[Any]:
    """Passes points through: with a bar on a terminal, with a line for each curve in a log."""
    announce.now()
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(points, "robustness", count, console=console, transient=True)
        return
    told = None
    for k, (curve, rate) in enumerate(points):
        if curve != told:
            named = ", ".join(curve.modalities)
            logger.info("%d of %d points; now %s of %s.", k, count, curve.kind, named)
            told = curve
        yield curve, rate
