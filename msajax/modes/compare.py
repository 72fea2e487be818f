"""Runs --mode=compare: tests whether runs, or files of predictions, differ by more than chance."""

from rich.console import Console

from msajax.errors import OK
from msajax.evaluation.comparison import compare
from msajax.evaluation.comparison_output import (
    print_comparison,
    require_output,
    write_comparison,
)
from msajax.modes.early_checks import check_figures
from msajax.modes.options import Options


def run(options: Options, console: Console) -> int:
    """Compares and prints; returns the exit code."""
    runs, output, figures = options.paths, options["output"], options["figures"]
    if output:
        require_output(output, runs)
    if figures:
        check_figures(figures)
    report = compare(
        runs, options["split"] or "test", options["convention"] or "", options["every_pair"]
    )
    if output:
        write_comparison(output, report)
    if figures:
        from msajax.evaluation.report import compared, figure_files  # which take a while to load

        drawn = figure_files.draw_figures(compared.panels(report))
        figure_files.write_figures(figures, drawn)
    print_comparison(report, console)
    if figures:
        print(f"Figures: {figures}")
    return OK
