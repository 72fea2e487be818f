"""Runs the modes that set runs side by side: compare and table."""

from rich.console import Console

from msajax.cli.early_checks import check_figures
from msajax.cli.options import Options
from msajax.comparison.compare import compare as compare_runs
from msajax.comparison.compare import tabulate
from msajax.comparison.output import (
    COMPARISON,
    RUN_TABLE,
    print_comparison,
    print_run_table,
    require_output,
    write,
)
from msajax.errors import OK


def compare(options: Options, console: Console) -> int:
    """Runs --mode=compare: tests whether runs, or files of predictions, differ by chance alone."""
    runs, output, figures = options.paths, options["output"], options["figures"]
    if output:
        require_output(output, runs, COMPARISON)
    if figures:
        check_figures(figures)
    report = compare_runs(
        runs, options["split"] or "test", options["convention"] or "", options["every_pair"]
    )
    if output and output.endswith(".html"):
        from msajax.report.compared import write_comparison  # what draws is loaded for it alone

        write_comparison(output, report)
    elif output:
        write(output, report, COMPARISON)
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
        require_output(output, runs, RUN_TABLE)
    metrics = [name.strip() for name in (options["metrics"] or "").split(",") if name.strip()]
    content = tabulate(runs, options["split"] or "test", options["convention"] or "", metrics)
    if output:
        write(output, content, RUN_TABLE)
    print_run_table(content, console)
    return OK
