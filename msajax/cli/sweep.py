"""Runs --mode=sweep: tries settings, trains the winner on fresh seeds, tests it once."""

import functools

from rich.console import Console

from msajax.cli.early_checks import check_training, load_jax
from msajax.cli.options import Options
from msajax.errors import NON_FINITE, OK, STOPPED, UserError
from msajax.files import refuse_inside
from msajax.runs.claim import has_begun
from msajax.runtime.signals import StopRequest


def run(options: Options, console: Console) -> int:
    """Sweeps, and prints the best trials and the winner's results; returns the exit code."""
    (workdir,) = options.required("workdir")
    options.check_output(("planned", "trials", "winner"))
    if options["output"]:
        refuse_inside(options["output"], workdir, "workdir")
    check_training(options.config, workdir, None, False)
    if not options.experiment:
        raise UserError(
            "--mode=sweep needs --config=FILE, a Python file with get_config(), and with "
            "get_space(), which returns what a sweep tries."
        )
    with StopRequest(functools.partial(has_begun, workdir)) as stop:
        # From here on a signal is noted: loading what follows takes seconds.
        load_jax()
        from msajax.studies.sweep.space import load_space
        from msajax.studies.sweep.sweep import Plan, print_sweep, sweep
        from msajax.training.failures import failure_message

        what = Plan(
            space=load_space(options.experiment),
            trials=options["trials"],
            trial_seeds=options["trial_seeds"],
            median=options["median"],
            winner=options["winner"],
        )
        content = sweep(options.config, what, workdir, stop)
    if content is None:
        print(f"Paused; the same command continues. Folder of the sweep: {workdir}")
        return STOPPED
    options.write_output(content)
    print_sweep(content, console)
    print(f"Folder of the sweep: {workdir}")
    failed = (content["winner"].get("results") or {}).get("failed")
    if failed:
        options.complain(failure_message(failed))
        return NON_FINITE
    return OK
