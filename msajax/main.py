"""python -m msajax.main: train, evaluate, predict and inspect from the command line.

  train     (default) --config FILE[:arg] --workdir W [--config.section.key=value …]
                      [--stop_after_epochs=k]
  evaluate  --workdir W [--split=test] | --input predictions.csv   [--output FILE.json]
  predict   --bundle DIR --input CORPUS [--split=all] --output FILE.csv
  inspect   --input CORPUS [--output FILE.json] [--config.data.key=value …]

Exit codes: 0 done; 1 a bug; 2 the flags, configuration, data or files are wrong; 3 the numbers
became non-finite; 75 stopped on request after saving: the same command continues.
"""

import logging
import pathlib
import re
import sys

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags
from rich.console import Console

from msajax import config as configuration
from msajax.errors import NonFiniteError, UserError
from msajax.version import __version__

DEFAULT_CONFIG = pathlib.Path(__file__).parent.parent / "configs" / "synthetic.py"
OK, USER_ERROR, NON_FINITE, STOPPED = 0, 2, 3, 75

_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment file.")
_MODE = flags.DEFINE_enum("mode", "train", ["train", "evaluate", "predict", "inspect"], "What.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.")
_INPUT = flags.DEFINE_string("input", None, "A corpus, or a CSV of predictions to evaluate.")
_OUTPUT = flags.DEFINE_string("output", None, "Where to write the result.")
_BUNDLE = flags.DEFINE_string("bundle", None, "A run's bundle folder.")
_SPLIT = flags.DEFINE_enum("split", None, ["train", "valid", "test", "all"], "Which split.")
_STOP_AFTER = flags.DEFINE_integer(
    "stop_after_epochs", None, "Save and exit 75 after so many epochs.", lower_bound=1
)
_VERSION = flags.DEFINE_boolean("version", False, "Print the version.")
_NOT_A_CONFIG = "The experiment file's get_config() must return a ConfigDict."


def run() -> None:
    """Parses the command line, runs one mode and exits with its code."""
    app.run(main, flags_parser=parse_flags)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses flags; a mistake is one line and exit code 2.

    Raises:
        SystemExit: for a mistake, and for --help.
    """
    if any(re.fullmatch("--?h(elp(full|short|xml)?)?", argument) for argument in argv[1:]):
        print(__doc__, "\nConfiguration keys:", ", ".join(configuration.known_keys()))
        sys.exit(OK)
    absl_logging.set_verbosity(absl_logging.ERROR)  # what goes wrong is told in one line, below
    try:
        for argument in argv[1:]:
            if override := re.fullmatch(r"--?(?:no)?config\.([^=]+)(=.*)?", argument, re.DOTALL):
                configuration.check_key(override[1])
        if not _config_file(argv) and DEFAULT_CONFIG.exists():
            argv = [argv[0], f"--config={DEFAULT_CONFIG}", *argv[1:]]
        rest = flags.FLAGS(argv)
        if len(rest) > 1:
            raise UserError(f"{rest[1]!r} is not a flag; see --help.")
        if _config_file(argv) and not hasattr(_CONFIG.value, "lock"):
            raise UserError(_NOT_A_CONFIG)
        return rest  # the line above also touches a missing file, which would pass until then
    except UserError as error:
        problem = str(error)
    except OSError as error:
        name = _config_file(argv)
        problem = f"There is no configuration file {name}."
        if pathlib.Path(name).is_file():  # then its get_config() missed another file
            problem = f"The experiment file cannot be loaded: {error.__cause__ or error}"
    except flags.Error as error:
        problem = str(error)
        if "Traceback" in problem:  # of an experiment file: what follows its last frame
            first, last = problem.split(": ")[0], re.split(r"(?m)^  .*\n", problem)[-1]
            problem = f"{first}: {last.removeprefix(f'{UserError.__module__}.UserError: ')}"
    except (Exception, SystemExit) as error:  # an experiment file may raise anything
        problem = f"{type(error).__name__}: {error}"
        if locked := re.search('Key "([^"]+)" does not exist', problem):
            problem = configuration.unknown_key(locked[1])
        problem = f"The experiment file cannot be loaded: {problem}"
        if "does not support indexing" in problem:  # an override of what is no ConfigDict
            problem = _NOT_A_CONFIG
    _complain(problem)
    sys.exit(USER_ERROR)


def _config_file(argv: list[str]) -> str | None:
    """The experiment file that a command line names, without the argument behind its colon."""
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if named := re.fullmatch("--?config(=(.*))?", argument, re.DOTALL):
            return (following if named[1] is None else named[2]).split(":")[0]
    return None


def main(argv: list[str]) -> int:
    """Runs the mode that the flags name and returns the exit code."""
    del argv
    if _VERSION.value:
        print(f"msajax {__version__}")
        return OK
    _log_to_stderr()
    mode = {"train": _train, "evaluate": _evaluate, "predict": _predict, "inspect": _inspect}
    try:
        return mode[_MODE.value](Console(width=None if sys.stdout.isatty() else 100))
    except UserError as error:
        _complain(str(error))
        return USER_ERROR
    except NonFiniteError as error:
        _complain(str(error))
        return NON_FINITE


def _train(console: Console) -> int:
    from msajax import experiment  # here and below: --help and mistakes need not wait for JAX
    from msajax.evaluation.tables import print_results

    config = _config()
    results = experiment.train(config, _required("workdir"), _STOP_AFTER.value)
    if results is None:
        print(f"Paused; the same command continues. Run folder: {_WORKDIR.value}")
        return STOPPED
    print_results(results, console)
    print(f"Run folder: {_WORKDIR.value}")
    return OK


def _evaluate(console: Console) -> int:
    from msajax import experiment
    from msajax.evaluation.tables import print_summary

    if bool(_WORKDIR.value) == bool(_INPUT.value):
        raise UserError(
            "--mode=evaluate needs one of --workdir=RUN and --input=predictions.csv, not both."
        )
    if _INPUT.value:
        report = experiment.evaluate_predictions(_INPUT.value)
    else:
        report = experiment.evaluate_run(_WORKDIR.value, _SPLIT.value or "test")
    _write_output(report)
    print_summary(f"{report['input']}, {report['samples']} samples", report, console)
    if "largest_difference" in report:
        print(f"Largest difference from results.json: {report['largest_difference']:.3g}")
    return OK


def _predict(console: Console) -> int:
    from msajax import experiment

    del console
    rows = experiment.predict(
        _required("bundle"), _required("input"), _required("output"), _SPLIT.value or "all"
    )
    print(f"{rows} predictions: {_OUTPUT.value}")
    return OK


def _inspect(console: Console) -> int:
    from msajax import experiment
    from msajax.data.inspection import render

    report = experiment.inspect(_required("input"), _config().data)
    _write_output(report)
    render(report, console)
    return OK


def _config() -> configuration.Config:
    if _CONFIG.value is None:
        raise UserError(f"--mode={_MODE.value} needs --config.")
    return configuration.from_config_dict(_CONFIG.value)


def _required(name: str) -> str:
    if not (value := flags.FLAGS[name].value):
        raise UserError(f"--mode={_MODE.value} needs --{name}.")
    return value


def _write_output(report: dict) -> None:
    from msajax.training.run_folder import write_json

    if _OUTPUT.value:
        try:
            write_json(_OUTPUT.value, report)
        except OSError as error:
            raise UserError(f"{_OUTPUT.value} cannot be written: {error.strerror}.") from error


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("msajax")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)  # orbax tells its whole day


def _complain(problem: str) -> None:
    print("error:", " ".join(problem.split()), file=sys.stderr)


if __name__ == "__main__":
    run()
