"""Runs the modes that add files to a finished run: report and robustness."""

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console

from msajax import announce
from msajax.cli.early_checks import check_figures, check_run, load_jax
from msajax.cli.options import Options
from msajax.comparison.compare import compare, with_first
from msajax.errors import OK, UserError
from msajax.files import write_json
from msajax.runs.claim import holds_folds, refuse_folds, require_ended
from msajax.runs.manifest import COMPARISON, REPORT, ROBUSTNESS

logger = logging.getLogger(__name__)


def run_report(options: Options, console: Console) -> int:
    """Writes the report of a run, or of folds, and says where it is; returns the exit code."""
    del console
    (workdir,) = options.required("workdir")
    figures = options["figures"] or ""
    print(f"Report: {report(workdir, options.paths, figures)}")
    if figures:
        print(f"Figures: {figures}")
    return OK


def report(workdir: str, against: Sequence[str] = (), figures: str = "") -> str:
    """Writes report.html of a finished run, in place of one that is there; returns its path.

    Of the folder of a cross-validation it writes that of every fold, and of all together.

    Args:
        workdir: the run's folder, also in a bucket.
        against: other runs, or files of predictions, that the run is compared with; the comparison
            stays in the folder, as comparison.json, and in later reports. Without them an earlier
            one stays as it is.
        figures: a folder for every chart as PDF and SVG, of folds one in it for each; "" for none.

    Raises:
        UserError: if the run has not ended, a file of it is missing or damaged, other runs are not
            of the same samples, or `figures` is no folder to write to.
    """
    if figures:
        check_figures(figures)
    if holds_folds(workdir):
        if against:
            raise UserError(
                f"{workdir} holds folds, whose report compares nothing: use --mode=compare."
            )
        load_jax()
        from msajax.studies import folds

        for folder in folds.ended_folds(workdir):
            of_fold = os.path.join(figures, os.path.basename(folder.path)) if figures else ""
            report(folder.path, figures=of_fold)
        return folds.write_report(workdir, figures)
    check_run(workdir, "report", reads_corpus=False)
    from msajax.report.write import make

    announce.now("Writing the report")
    with _opened(workdir, COMPARISON, REPORT) as folder:
        compared = compare([folder.path, *against]) if against else None
        make(folder, compared and with_first(compared, workdir), figures)
    return os.path.join(workdir, REPORT)


def run_robustness(options: Options, console: Console) -> int:
    """Measures a run as its inputs get worse, and prints it; returns the exit code."""
    (workdir,) = options.required("workdir")
    found = measure_robustness(workdir)
    from msajax.robustness.measure import print_robustness

    print_robustness(found, console)
    print(f"Run folder: {workdir}")
    return OK


def measure_robustness(workdir: str) -> dict[str, Any]:
    """Measures the test metrics of a finished run as modalities and steps are lost, and with noise.

    It writes and returns robustness.json; a report that is in the folder shows it from then on.
    Raises `UserError` if the run has not ended, its corpus is gone or another one, or its model has
    no labels.
    """
    check_run(workdir, "robustness")
    from msajax.results.finished import open_finished
    from msajax.robustness import measure

    with adding("robustness", workdir, ROBUSTNESS) as folder:
        opened = open_finished(folder, "test")
        announce.now("Compiling and scoring the test split")
        begun = measure.begin(opened)
        spec = opened.bundle.preparation.spec
        if ids := [m for m in spec.modalities if not spec.has_features(m)]:
            logger.info("Noise is added to features; %s is token ids.", ", ".join(ids))
        found = begun.report(_tell_points)
        write_json(folder.file(ROBUSTNESS), found)
    return found


def _tell_points(points: Iterable[Any], count: int) -> Iterator[Any]:
    """Passes points through: with a bar on a terminal, with a line for each curve in a log."""
    from rich.progress import track

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


# --- the folder ---


@contextlib.contextmanager
def adding(mode: str, workdir: str, *names: str) -> Iterator[Any]:
    """Locks the folder of a run, also in a bucket, while a mode adds the files of these names.

    A report that is there is made anew. Raises `UserError` if the folder holds folds or no run that
    has ended, or another process uses it.
    """
    from msajax.experiment.artefacts import MAKERS, attempt
    from msajax.runtime import devices

    refuse_folds(workdir, f"--mode={mode}")
    devices.require_devices()
    with _opened(workdir, *names, REPORT) as folder:
        yield folder
        if os.path.exists(page := folder.file(REPORT)):
            attempt(page, lambda: MAKERS[REPORT](folder))


@contextlib.contextmanager
def _opened(workdir: str, *names: str) -> Iterator[Any]:
    """Locks the folder of a run that has ended, and replaces files of these names in its bucket."""
    from msajax.runs.folder import RunFolder
    from msajax.runs.lock import Lock
    from msajax.runs.mirror import Mirror

    with Mirror(workdir) as mirror:
        require_ended(mirror.path)
        with Lock(mirror.path):
            yield RunFolder(mirror.path)
        for name in names:
            mirror.replace(name)
