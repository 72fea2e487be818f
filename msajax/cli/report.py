"""Runs --mode=report: writes the report of a finished run, or of folds."""

import os
from collections.abc import Sequence

from rich.console import Console

from msajax import announce
from msajax.cli.early_checks import check_figures, check_run, load_jax
from msajax.cli.options import Options
from msajax.comparison.compare import compare, with_first
from msajax.errors import OK, UserError
from msajax.runs import manifest
from msajax.runs.claim import holds_folds


def run(options: Options, console: Console) -> int:
    """Writes the report and says where it is; returns the exit code."""
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
    from msajax.runs.folder import RunFolder
    from msajax.runs.lock import Lock
    from msajax.runs.mirror import Mirror

    announce.now("Writing the report")
    with Mirror(workdir) as mirror:
        folder = RunFolder(mirror.path)
        folder.require_ended()
        with Lock(folder.path):
            compared = compare([folder.path, *against]) if against else None
            make(folder, compared and with_first(compared, workdir), figures)
        for name in (manifest.COMPARISON, manifest.REPORT):
            mirror.replace(name)
    return os.path.join(workdir, manifest.REPORT)
