"""Runs --mode=train: trains a run, or a run for each fold of a corpus."""

import logging

from rich.console import Console

from msajax.errors import NON_FINITE, OK, STOPPED
from msajax.modes.options import Options
from msajax.runtime.signals import StopRequest


def run(options: Options, console: Console) -> int:
    """Trains, and prints the results; returns the exit code."""
    config, (workdir,) = options.config, options.required("workdir")
    with StopRequest() as stop:
        # From here on a signal is noted: loading what follows takes seconds.
        from msajax import cross_validation, experiment
        from msajax.evaluation.tables import print_folds, print_results
        from msajax.runtime import cpu_devices, processes
        from msajax.runtime.devices import configure_jax
        from msajax.training.failures import failure_message

        configure_jax(config.train)  # before other processes are met, or a device is asked for
        cpu_devices.set_asked(config.mesh)
        options.join()
        if not processes.is_first():
            logging.getLogger("msajax").setLevel(logging.ERROR)  # the first process logs
        processes.require_same({"data.folds": config.data.folds, "data.fold": config.data.fold})
        folds = config.data.folds > 0 and config.data.fold < 0
        train = cross_validation.cross_validate if folds else experiment.train
        results = train(config, workdir, options["stop_after_epochs"], stop, options["profile"])
    if processes.is_first() and results is not None:
        (print_folds if folds else print_results)(results, console)
    if results is None:
        print(f"Paused; the same command continues. Run folder: {workdir}")
        return STOPPED
    print(f"Run folder: {workdir}")
    if results["failed"]:
        options.complain(failure_message(results["failed"]))
        return NON_FINITE
    return OK
