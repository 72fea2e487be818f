"""The command line: one mode, one exit code. `flags.py` says what can be asked."""

import signal

if __name__ == "__main__":  # what follows takes a while to load; SIGINT must leave no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import TextIO

from absl import app
from rich.console import Console

from msajax import flags
from msajax.errors import NON_FINITE, OK, STOPPED, USER_ERROR, NonFiniteError, UserError
from msajax.runtime.signals import Interrupted, StopRequest, interruptible
from msajax.version import __version__


def run() -> None:
    """Parses the command line, runs one mode and exits with its code."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed, and the number would be that of the next file, a run's perhaps
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = _opened(sys.stdout, 1), _opened(sys.stderr, 2)
    app.run(main, flags_parser=flags.parse_flags)


def main(argv: list[str]) -> int:
    """Runs the mode that the flags name and returns the exit code."""
    del argv
    if flags.VERSION.value:
        print(f"msajax {__version__}")
        return OK
    _log_to_stderr()
    warnings.showwarning = lambda message, *_: logging.getLogger("msajax").warning("%s", message)
    mode = {
        "train": _train,
        "evaluate": _evaluate,
        "predict": _predict,
        "inspect": _inspect,
        "convert": _convert,
    }
    code = _outcome(mode[flags.MODE.value])
    sys.stdout.flush()
    lost = sys.stdout.buffer.raw.problem
    if code == OK and lost is not None and not isinstance(lost, BrokenPipeError):
        flags.complain(f"Standard output cannot be written: {lost.strerror}.")
        code = USER_ERROR
    if code != OK and flags.runs_with_others():
        sys.stderr.flush()
        os._exit(code)  # leaving in good order would wait for the others, who may wait for this
    return code


class _Stream(io.FileIO):
    """Standard output or error, whose loss must not decide how a mode ends.

    A reader that goes early, such as `head`, has read enough; a disk that is full is noted.

    Attributes:
        problem: the last one.
    """

    problem: OSError | None = None

    def write(self, data: bytes) -> int | None:
        """Writes, or does as if."""
        try:
            return super().write(data)
        except OSError as error:
            self.problem = error
            return len(data)


def _opened(stream: TextIO | None, descriptor: int) -> TextIO:
    """What replaces a standard stream, or one that was closed when the program began."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Stream(descriptor, "w", closefd=False)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


def _outcome(mode: Callable[[Console], int]) -> int:
    """Runs a mode; whatever ends it early becomes one line and an exit code."""
    try:
        with interruptible():
            flags.refuse_strangers()
            flags.refuse_remote_paths()
            return mode(Console(width=None if sys.stdout.isatty() else 100))
    except UserError as error:
        flags.complain(str(error))
        return USER_ERROR
    except NonFiniteError as error:
        flags.complain(str(error))
        return NON_FINITE
    except OSError as error:  # a disk that is full, a folder that has gone: no bug of the program
        place = f"{error.filename}: " if error.filename else ""
        flags.complain(f"{place}{error.strerror or error}.")
        return USER_ERROR
    except Interrupted as error:
        flags.complain(str(error))
        return 128 + error.number


def _train(console: Console) -> int:
    config, workdir = flags.chosen_config(), flags.required("workdir")
    with StopRequest() as stop:
        # Here and below: --help and mistakes need not wait for JAX.
        from msajax import cross_validation, experiment
        from msajax.evaluation.tables import print_folds, print_results
        from msajax.runtime import processes
        from msajax.runtime.devices import configure_jax, require_devices
        from msajax.training.failures import failure_message

        configure_jax(config.train)  # before the first process is met, and a device asked for
        flags.join_processes()
        require_devices()
        if not processes.is_first():
            logging.getLogger("msajax").setLevel(logging.ERROR)  # the first one tells
        processes.require_same({"data.folds": config.data.folds, "data.fold": config.data.fold})
        folds = config.data.folds > 0 and config.data.fold < 0
        train = cross_validation.cross_validate if folds else experiment.train
        results = train(config, workdir, flags.STOP_AFTER.value, stop, flags.PROFILE.value)
    if processes.is_first() and results is not None:
        (print_folds if folds else print_results)(results, console)
    if results is None:
        print(f"Paused; the same command continues. Run folder: {workdir}")
        return STOPPED
    print(f"Run folder: {workdir}")
    if results["failed"]:
        flags.complain(failure_message(results["failed"]))
        return NON_FINITE
    return OK


def _evaluate(console: Console) -> int:
    from msajax import cross_validation, experiment
    from msajax.evaluation.tables import print_summary
    from msajax.runs.folder import RunFolder

    if bool(flags.WORKDIR.value) == bool(flags.INPUT.value):
        raise UserError(
            "--mode=evaluate needs one of --workdir=RUN and --input=predictions.csv, not both."
        )
    if flags.INPUT.value:
        report = experiment.evaluate_predictions(flags.INPUT.value)
    elif cross_validation.holds_folds(flags.WORKDIR.value):
        report = cross_validation.evaluate_folds(
            flags.WORKDIR.value, flags.SPLIT.value or "test", flags.OUTPUT.value
        )
    else:
        if flags.OUTPUT.value:
            RunFolder(flags.WORKDIR.value).refuse_output(flags.OUTPUT.value)
        report = experiment.evaluate_run(flags.WORKDIR.value, flags.SPLIT.value or "test")
    _write_output(report)
    print_summary(f"{report['input']}, {report['samples']} samples", report, console)
    if "largest_difference" in report:
        print(f"Largest difference from results.json: {report['largest_difference']:.3g}")
    return OK


def _predict(console: Console) -> int:
    from msajax import experiment

    del console
    bundle, corpus, output = (flags.required(name) for name in ("bundle", "input", "output"))
    replaced = os.path.exists(output)
    split, overrides = flags.SPLIT.value or "all", flags.overridden_data()
    rows = experiment.predict(bundle, corpus, output, split, **overrides)
    print(f"{rows} predictions: {output}{', in place of the file that was there' * replaced}")
    return OK


def _inspect(console: Console) -> int:
    from msajax import experiment
    from msajax.data.inspection_tables import render as print_corpus
    from msajax.evaluation.tables import print_cost

    config = flags.chosen_config()
    if flags.INPUT.value:
        report, render = experiment.inspect(flags.INPUT.value, config.data), print_corpus
    else:
        report, render = experiment.inspect_model(config), print_cost
    _write_output(report)
    render(report, console)
    return OK


def _convert(console: Console) -> int:
    from msajax import experiment

    del console
    corpus, output = flags.required("input"), flags.required("output")
    experiment.convert(corpus, flags.chosen_config().data, output)
    print(f"Converted: {output}")
    return OK


def _write_output(report: dict) -> None:
    from msajax.experiment import refuse_inside
    from msajax.runs.folder import write_json

    if flags.OUTPUT.value:
        if flags.INPUT.value:
            refuse_inside(flags.OUTPUT.value, flags.INPUT.value, "input")
        write_json(flags.OUTPUT.value, report)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("msajax")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


if __name__ == "__main__":
    run()
