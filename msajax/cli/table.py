"""Runs --mode=table: one table of many runs, a row a run and a column a metric."""

from rich.console import Console

from msajax.cli.options import Options
from msajax.comparison.output import require_output
from msajax.comparison.table import FORMS, print_run_table, tabulate, write_run_table
from msajax.errors import OK


def run(options: Options, console: Console) -> int:
    """Measures, tests and prints; returns the exit code."""
    runs, output = options.paths, options["output"]
    if output:
        require_output(output, runs, FORMS)
    metrics = [name.strip() for name in (options["metrics"] or "").split(",") if name.strip()]
    content = tabulate(runs, options["split"] or "test", options["convention"] or "", metrics)
    if output:
        write_run_table(output, content)
    print_run_table(content, console)
    return OK
