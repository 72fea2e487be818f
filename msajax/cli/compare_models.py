"""Runs --mode=compare_models: many models on equal terms."""

import functools

from rich.console import Console

from msajax.cli.early_checks import check_training, load_jax
from msajax.cli.options import Options
from msajax.errors import OK, STOPPED, UserError
from msajax.runs.claim import has_begun
from msajax.runtime.signals import StopRequest


def run(options: Options, console: Console) -> int:
    """Sweeps every contender in a process of its own, and prints the table of all."""
    (workdir,) = options.required("workdir")
    if not options["contenders"]:
        raise UserError("--mode=compare_models needs --contenders, as sequence_level,mult,tfn.")
    check_training(options.config, workdir, None, False)
    with StopRequest(functools.partial(has_begun, workdir)) as stop:
        load_jax()
        from msajax.studies.compare_models import DONE, Budget, compare_models, print_models

        stop.will_serve()
        asked = {name: options[name] for name in Budget._fields}
        budget = Budget(**{name: value for name, value in asked.items() if value is not None})
        content, is_done = compare_models(
            options["contenders"], options.config, workdir, budget, stop, options.own
        )
    print_models(content, console)
    print(f"Folder of the comparison: {workdir}")
    if not is_done:
        print("Not every model has ended; the same command continues.")
        return STOPPED
    if not any(row["status"] == DONE for row in content["contenders"]):
        raise UserError("No model of the comparison has been trained: each says why above.")
    return OK
