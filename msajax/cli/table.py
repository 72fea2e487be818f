"""Runs --mode=table: one table of many runs, a row a run and a column a metric."""

from rich.console import Console

from msajax.cli.options import Options
from msajax.comparison.compare import tabulate
from msajax.comparison.output import RUN_TABLE, print_run_table, require_output, write
from msajax.errors import OK


def run(options: Options, console: Console) -> int:
    """Measures, tests and prints; returns the exit code."""
    runs, output = options.paths, options["output"]
    if output:
        require_output(output, runs, RUN_TABLE)
    metrics = [name.strip() for name in (options["metrics"] or "").split(",") if name.strip()]
    content = tabulate(runs, options["split"] or "test", options["convention"] or "", metrics)
    if output:
        write(output, content, RUN_TABLE)
    print_run_table(content, console)
    return OK
