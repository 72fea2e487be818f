"""Runs the modes that train: train, ablate, sweep and compare_models."""

import functools
import logging
from collections.abc import Callable
from typing import Any

from rich.console import Console

from msajax.cli.early_checks import check_training, load_jax, open_for_training
from msajax.cli.options import Options
from msajax.config import Config
from msajax.errors import NON_FINITE, OK, STOPPED, UserError
from msajax.files import refuse_inside
from msajax.runs.claim import has_begun
from msajax.runtime.signals import StopRequest


def train(options: Options, console: Console) -> int:
    """Runs --mode=train and --mode=ablate: trains until the end or a request to stop, and prints.

    It trains a run, or a run for each fold of a corpus; ablate, one for every subset of the
    modalities. Several processes meet before they train.
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
        from msajax.training.failures import failure_message

        train_run, show = _load_training(options.mode, config)
        # Before other processes are met, or a device is asked for.
        devices.configure_jax(config.train)
        devices.set_asked(config.mesh)
        options.join()
        if processes.several():
            stop.will_serve()  # all of them stop together
        if not processes.is_first():
            logging.getLogger("msajax").setLevel(logging.ERROR)  # the first process logs
        asked = {"--mode": options.mode, "data.folds": config.data.folds}
        processes.require_same(asked | {"data.fold": config.data.fold})
        epochs, profile = options["stop_after_epochs"], options["profile"]
        results = train_run(config, workdir, epochs, stop, profile, **opened)
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


def _load_training(
    mode: str, config: Config
) -> tuple[Callable[..., Any], Callable[[Any, Console], None]]:
    """Loads what trains, called as `experiment.train` is, and what prints its results."""
    if mode == "ablate":
        from msajax.studies.ablation import ablate, print_ablation

        return ablate, print_ablation
    from msajax.experiment import run as experiment
    from msajax.results.tables import print_folds, print_results
    from msajax.studies import folds

    if config.data.folds > 0 and config.data.fold < 0:
        return folds.cross_validate, print_folds
    return experiment.train, print_results


def sweep(options: Options, console: Console) -> int:
    """Runs --mode=sweep: tries settings, trains the winner on fresh seeds, tests it once."""
    (workdir,) = options.required("workdir")
    options.check_output(("planned", "trials", "winner"))
    if options["output"]:
        refuse_inside(options["output"], workdir, "workdir")
    check_training(options.config, workdir, None, False)
    if not options.experiment:
        raise UserError(
            "--mode=sweep needs --config=FILE, a Python file with get_config(), and perhaps with "
            "get_space(), which returns what a sweep tries."
        )
    with StopRequest(functools.partial(has_begun, workdir)) as stop:
        # From here on a signal is noted: loading what follows takes seconds.
        load_jax()
        from msajax.studies.sweep.space import load_space
        from msajax.studies.sweep.sweep import Plan, print_sweep, sweep
        from msajax.training.failures import failure_message

        what = Plan(
            space=load_space(options.experiment, options.config.model),
            trials=options["trials"],
            trial_seeds=options["trial_seeds"] or 3,
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


def compare_models(options: Options, console: Console) -> int:
    """Runs --mode=compare_models: sweeps every contender in a process of its own; prints all."""
    (workdir,) = options.required("workdir")
    if not options["contenders"]:
        raise UserError("--mode=compare_models needs --contenders, as sequence_level,mult,tfn.")
    check_training(options.config, workdir, None, False)
    with StopRequest(functools.partial(has_begun, workdir)) as stop:
        load_jax()
        from msajax.studies import compare_models as models

        stop.will_serve()
        asked = {name: options[name] for name in models.Budget._fields}
        budget = models.Budget(
            **{name: value for name, value in asked.items() if value is not None}
        )
        named = (*options["contenders"], models.TEXT_ONLY)
        own = {name: settings for name, settings in options.own.items() if name in named}
        content, is_done = models.compare_models(
            options["contenders"], options.config, workdir, budget, stop, own
        )
    models.print_models(content, console)
    print(f"Folder of the comparison: {workdir}")
    if not is_done:
        print("Not every model has ended; the same command continues.")
        return STOPPED
    if not any(row["status"] == models.DONE for row in content["contenders"]):
        raise UserError("No model of the comparison has been trained: each says why above.")
    return OK
