"""Runs --mode=compare: tests whether runs, or files of predictions, differ by more than chance."""

from rich.console import Console

from msajax.cli.early_checks import check_figures
from msajax.cli.options import Options
from msajax.comparison.compare import compare
from msajax.comparison.output import COMPARISON, print_comparison, require_output, write
from msajax.errors import OK


def run(options: Options, console: Console) -> int:
    """Compares and prints; returns the exit code."""
    runs, output, figures = options.paths, options["output"], options["figures"]
    if output:
        require_output(output, runs, COMPARISON)
    if figures:
        check_figures(figures)
    report = compare(
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

        drawn = draw_figures(panels(report))
        write_figures(figures, drawn)
    print_comparison(report, console)
    if figures:
        print(f"Figures: {figures}")
    return OK
