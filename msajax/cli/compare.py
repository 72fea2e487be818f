"""Runs the modes that set runs side by side: compare and table."""

from rich.console import Console

from msajax.cli.early_checks import check_figures
from msajax.cli.options import Options
from msajax.comparison.compare import compare as compare_runs
from msajax.comparison.output import print_comparison, require_output
from msajax.comparison.table import FORMS, print_run_table, tabulate, write_run_table
from msajax.errors import OK


def compare(options: Options, console: Console) -> int:
    """Runs --mode=compare: tests whether runs, or files of predictions, differ by chance alone."""
    runs, output, figures = options.paths, options["output"], options["figures"]
    if output:
        require_output(output, runs)
    if figures:
        check_figures(figures)
    report = compare_runs(
        runs, options["split"] or "test", options["convention"] or "", options["every_pair"]
    )
    if output:
        from msajax.report.compared import write_comparison

        write_comparison(output, report)
    if figures:
        from msajax.report.compared import panels
        from msajax.report.page import draw_figures, write_figures

        write_figures(figures, draw_figures(panels(report)))
    print_comparison(report, console)
    if figures:
        print(f"Figures: {figures}")
    return OK


def table(options: Options, console: Console) -> int:
    """Runs --mode=table: one table of many runs, a row a run and a column a metric."""
    runs, output = options.paths, options["output"]
    if output:
        require_output(output, runs, FORMS)
    metrics = [name.strip() for name in (options["metrics"] or "").split(",") if name.strip()]
    content = tabulate(runs, options["split"] or "test", options["convention"] or "", metrics)
    if output:
        write_run_table(output, content)
    print_run_table(content, console)
    return OK
