"""Runs --mode=compare: tests whether runs, or files of predictions, differ by more than chance."""

from rich.console import Console

from msajax.errors import OK
from msajax.evaluation.comparison import compare
from msajax.evaluation.comparison_output import (
    print_comparison,
    require_output,
    write_comparison,
)
from msajax.modes.options import Options


def run(options: Options, console: Console) -> int:
    """Compares and prints; returns the exit code."""
    runs, output = options.paths, options["output"]
    if output:
        require_output(output, runs)
    report = compare(
        runs, options["split"] or "test", options["convention"] or "", options["every_pair"]
    )
    if output:
        write_comparison(output, report)
    print_comparison(report, console)
    return OK
