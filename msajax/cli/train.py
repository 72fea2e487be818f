"""Runs --mode=train: trains a run, or a run for each fold of a corpus."""

import functools
import logging
from collections.abc import Callable
from typing import Any

from rich.console import Console

from msajax.cli.early_checks import check_training, load_jax, open_for_training
from msajax.cli.options import Options
from msajax.config import Config
from msajax.errors import NON_FINITE, OK, STOPPED
from msajax.runs.claim import has_begun
from msajax.runtime.signals import StopRequest

Choose = Callable[[Config], tuple[Callable[..., Any], Callable[..., None]]]


def run(options: Options, console: Console) -> int:
    """Trains, and prints the results; returns the exit code."""
    return supervise(options, console, _choose)


def _choose(config: Config) -> tuple[Callable[..., Any], Callable[..., None]]:
    from msajax.experiment import run as experiment
    from msajax.results.tables import print_folds, print_results
    from msajax.studies import folds

    if config.data.folds > 0 and config.data.fold < 0:
        return folds.cross_validate, print_folds
    return experiment.train, print_results


def supervise(options: Options, console: Console, choose: Choose) -> int:
    """Meets other processes, trains until the end or a request to stop, and prints what came of it.

    Args:
        options: of the command line.
        console: where results go.
        choose: returns what trains, a function of configuration, workdir, epochs, stop and profile
            as `experiment.train` is, and what prints its results. It is called once signals are
            noted, so that it may load what takes long.

    Returns:
        The exit code.
    """
    config, (workdir,) = options.config, options.required("workdir")
    is_single = options.mode == "train" and (config.data.folds == 0 or config.data.fold >= 0)
    check_training(config, workdir, options["profile"], is_single)
    opened = {}
    # Of several processes, the others would wait for one that refuses alone.
    if is_single and not (options["distributed"] or options["coordinator_address"]):
        opened["corpus"] = open_for_training(config)
    with StopRequest(functools.partial(has_begun, workdir)) as stop:
        # From here on a signal is noted: loading what follows takes seconds.
        load_jax()
        from msajax.runtime import devices, processes
        from msajax.runtime.devices import configure_jax
        from msajax.training.failures import failure_message

        train, show = choose(config)
        configure_jax(config.train)  # before other processes are met, or a device is asked for
        devices.set_asked(config.mesh)
        options.join()
        if processes.several():
            stop.will_serve()  # all of them stop together
        if not processes.is_first():
            logging.getLogger("msajax").setLevel(logging.ERROR)  # the first process logs
        asked = {"--mode": options.mode, "data.folds": config.data.folds}
        processes.require_same(asked | {"data.fold": config.data.fold})
        epochs, profile = options["stop_after_epochs"], options["profile"]
        results = train(config, workdir, epochs, stop, profile, **opened)
    if processes.is_first() and results is not None:
        show(results, console)
    if results is None:
        print(f"Paused; the same command continues. Run folder: {workdir}")
        return STOPPED
    print(f"Run folder: {workdir}")
    if results["failed"]:
        options.complain(failure_message(results["failed"]))
        return NON_FINITE
    return OK
