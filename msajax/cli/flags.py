"""Reads the command line; a mistake is one line and exit code 2."""

import ast
import itertools
import os
import pathlib
import re
import sys

from absl import flags
from absl import logging as absl_logging
from ml_collections import config_flags

from msajax import config as configuration
from msajax.checks import is_url
from msajax.cli.modes import MODES
from msajax.cli.options import Options
from msajax.config.reading import meanings
from msajax.errors import OK, USER_ERROR, UserError, on_one_line
from msajax.files import meant

DEFAULT_CONFIG = pathlib.Path(__file__).parent / "default_experiment.py"

# Flags with a name here are read here or in `main.py`; modes read the others as `options[flag]`.
CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment file.")
MODE = flags.DEFINE_enum("mode", "train", list(MODES), "What to do.")
flags.DEFINE_string("workdir", None, "The run's folder, also in a bucket (gs://…).")
flags.DEFINE_string("input", None, "A corpus, or a CSV of predictions to evaluate.")
flags.DEFINE_string("output", None, "Where to write the result.")
flags.DEFINE_string("bundle", None, "A run's bundle folder, also in a bucket.")
MODELS = flags.DEFINE_string("models", None, "A Python file that registers models of your own.")
flags.DEFINE_enum("split", None, ["train", "valid", "test", "all"], "Which split.")
flags.DEFINE_string("convention", None, "Metrics as some papers print them, by name.")
flags.DEFINE_string("figures", None, "Folder for a report's figures, as PDF and SVG.")
flags.DEFINE_string("metrics", None, "The columns of a table of runs, by name.")
flags.DEFINE_boolean("every_pair", False, "Compare each run with each.")
# Counted from this start, so that the same command, repeated, always makes progress.
flags.DEFINE_integer(
    "stop_after_epochs", None, "Save and exit 75 after so many epochs.", lower_bound=1
)
flags.DEFINE_string("profile", None, "Folder for a profiler's trace of some steps.")
COORDINATOR = flags.DEFINE_string("coordinator_address", None, "host:port of process 0.")
PROCESSES = flags.DEFINE_integer("num_processes", None, "How many train one run.", lower_bound=1)
PROCESS = flags.DEFINE_integer("process_id", None, "This process, from 0.", lower_bound=0)
DISTRIBUTED = flags.DEFINE_boolean("distributed", False, "Processes as the cluster names them.")
JOIN_SECONDS = flags.DEFINE_float(
    "join_seconds", 120, "How long processes wait for each other, 1 to 86400."
)
flags.DEFINE_boolean(
    "download", False, "Fetch pretrained encoders from the Hugging Face hub that are no folders."
)
flags.DEFINE_integer("samples", None, "How many samples to explain.", lower_bound=1)
flags.DEFINE_string(
    "target", None, "The output or class to explain; or devices that a run is planned for."
)
flags.DEFINE_string(
    "steps", None, "Words to continue a text by (50); or what a step of a recording is."
)
flags.DEFINE_list("columns", None, "Columns of a table of recordings: name=column,….")
flags.DEFINE_string("audio", "columns", "What the sound of recordings becomes.")
flags.DEFINE_string("asr_model", None, "Folder of a faster-whisper model.")
flags.DEFINE_integer("jobs", 0, "Processes; 0 for one a core.", lower_bound=0)
flags.DEFINE_string("transcript", None, "What is said in a clip.")
flags.DEFINE_float(
    "temperature", 1.0, "How freely words are drawn; 0 takes the likeliest.", lower_bound=0
)
flags.DEFINE_integer("sample_seed", 0, "Seed of the words drawn.", lower_bound=0)
flags.DEFINE_integer("trials", None, "How many trials are drawn.", lower_bound=0)
flags.DEFINE_integer("trial_seeds", None, "Random seeds of a trial.", lower_bound=1)
flags.DEFINE_list("contenders", None, "Models to compare, the reference first.")
flags.DEFINE_float("hours", None, "Hours after which no more models begin.", lower_bound=0)
flags.DEFINE_boolean("median", True, "Stop hopeless trials by the median rule.")
flags.DEFINE_boolean("winner", True, "Train the winner of a sweep, and test it.")
VERSION = flags.DEFINE_boolean("version", False, "Print the version.")
_PATHS = (*("workdir", "input", "output", "figures", "bundle", "profile", "models"), "asr_model")
_FLAGS_OF_MODES = tuple(dict.fromkeys(itertools.chain(*(mode.flags for mode in MODES.values()))))
_overridden: list[str] = []  # keys that the command line sets
_positional: list[str] = []  # words of the command line that are no flags
_EXIT_CODES = """\
Exit codes: 0 done; 1 a bug; 2 the flags, configuration, data or files are wrong; 3 the numbers of
random seeds became non-finite; 75 stopped after SIGTERM, SIGINT or so many epochs, or because
another process was lost: the same command continues; 130 and 143 stopped at once by a signal."""
# Python's own words for a value of the wrong type, and what is needed instead.
_WRONG_TYPE = re.compile(r"flag (--.*): .*(int\(\)|to float|boolean argument)", re.DOTALL)
_NEEDED = {"int()": "a whole number", "to float": "a number", "boolean argument": "true or false"}
_NOT_A_CONFIG = "The experiment file's get_config() must return a ConfigDict."


def help_text() -> str:
    """Writes what --help says: the modes, the exit codes, and every configuration key."""
    lines = [f"msajax, or python -m msajax.main --mode MODE: {', '.join(MODES)}", ""]
    for name, mode in MODES.items():
        first, *rest = mode.usage.splitlines()
        lines += [f"  {name:10} {first}", *(f"{'':13}{line}" for line in rest)]
    lines += ["", _EXIT_CODES, "", "Configuration keys, with their defaults:"]
    section = ""
    for key, default, text in meanings():
        if (above := key.rpartition(".")[0]) != section:
            section = above
            lines.append("")
        value = ",".join(map(str, default)) if isinstance(default, tuple) else default
        lines.append(f"  --config.{key}={value}".ljust(48) + f"  {text}")
    return "\n".join(lines)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses flags; a mistake is one line and exit code 2, and --help ends the program, too."""
    if any(re.fullmatch("--?h(elp(full|short|xml)?)?", argument) for argument in argv[1:]):
        print(help_text())
        sys.exit(OK)
    absl_logging.set_verbosity(absl_logging.ERROR)  # what goes wrong is told in one line, below
    try:
        # Keys first: an unknown one is told before the experiment file runs.
        for argument in argv[1:]:
            if override := re.fullmatch(r"--?(?:no)?config\.([^=]+)(=.*)?", argument, re.DOTALL):
                _overridden.append(override[1])
        for key in _overridden:
            if not re.fullmatch(r"model\.\w+\..+", key):  # of a model that the file may register
                configuration.check_key(key)
        # ml_collections looks for overrides in sys.argv, too, whatever arguments it is given.
        given, sys.argv = sys.argv, [_as_list(argument) for argument in _config_first(argv)]
        try:
            file = _experiment_file(sys.argv)
            if os.path.isfile(file) and not file.endswith(".py"):
                raise UserError(
                    f"{file} is no experiment file, whose name ends in .py; a corpus goes to "
                    f"--config.data.path={file}."
                )
            flags.FLAGS.set_gnu_getopt()  # flags may stand behind the paths of a mode
            rest = flags.FLAGS(sys.argv)
            if len(rest) > 1 and not MODES[MODE.value].takes_paths:
                raise UserError(_stray(argv, rest[1]))
            _positional.extend(map(os.path.expanduser, rest[1:]))
            for key in _overridden:
                configuration.check_key(key)
            if not hasattr(CONFIG.value, "lock"):  # a missing file would pass until it is touched
                raise UserError(_NOT_A_CONFIG)
        finally:
            sys.argv = given
        for name in _PATHS:
            if flags.FLAGS[name].value:
                flags.FLAGS[name].value = os.path.expanduser(flags.FLAGS[name].value)
        return rest
    # Whatever went wrong, in one line: the libraries' own words speak of their code.
    except UserError as error:
        problem = str(error)
    except OSError as error:
        name = _experiment_file(_config_first(argv))
        near = meant(name) or meant(os.path.join("configs", name)) or "."
        problem = f"There is no configuration file {name}{near}"
        if pathlib.Path(name).is_file():  # then its get_config() missed another file
            problem = f"The experiment file cannot be loaded: {error.__cause__ or error}"
    except flags.UnrecognizedFlagError as error:
        keys = configuration.keys_named(error.flagname)
        near = [f"--config.{key}" for key in keys]
        if not keys and (suggested := re.search(r"Did you mean: (.*) \?", str(error))):
            near = [f"--{name}" for name in suggested[1].split(", ")]
        advice = f": did you mean {' or '.join(near)}?" if near else "; see --help."
        problem = f"There is no flag --{error.flagname}{advice}"
    except flags.Error as error:
        problem = str(error)
        if "Traceback" in problem:  # of an experiment file: what follows its last frame
            first, last = problem.split(": ")[0], re.split(r"(?m)^  .*\n", problem)[-1]
            problem = f"{first}: {last.removeprefix(f'{UserError.__module__}.UserError: ')}"
        elif found := _WRONG_TYPE.match(problem):
            problem = f"{found[1]}: must be {_NEEDED[found[2]]}."
    except (Exception, SystemExit) as error:  # an experiment file may raise anything
        problem = f"{type(error).__name__}: {error}"
        known = configuration.known_keys()
        if wrong := [key for key in _overridden if key not in known]:
            problem = configuration.unknown_key(wrong[0])
        elif locked := re.search('Key "([^"]+)" does not exist', problem):
            problem = configuration.unknown_key(locked[1])
        problem = f"The experiment file cannot be loaded: {problem}"
        if "does not support indexing" in problem:  # an override of what is no ConfigDict
            problem = _NOT_A_CONFIG
    complain(problem)
    sys.exit(USER_ERROR)


def _as_list(argument: str) -> str:
    """Rewrites an override of a list of words, `a,b`, in the form of a tuple of words."""
    given = re.fullmatch(r"(--?config\.([^=]+)=)(.*)", argument, re.DOTALL)
    if given is None or given[2] not in configuration.list_keys():
        return argument
    try:
        words = ast.literal_eval(given[3])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        words = [part.strip() for part in given[3].split(",")]
    words = (words,) if isinstance(words, str) else words
    if not isinstance(words, list | tuple) or any(
        not isinstance(word, str) or re.search(r"[\s()\[\]'\"]", word) for word in words
    ):
        raise UserError(f"{given[2]} = {given[3]!r}: names are separated by commas, as in a,b.")
    return given[1] + repr(tuple(words))


def _config_first(argv: list[str]) -> list[str]:
    """Moves the experiment file to the front: overrides are read after it."""
    files, others, arguments = [], [], iter(argv[1:])
    for argument in arguments:
        if argument == "--":
            others += [argument, *arguments]
        elif given := re.fullmatch("--?config(?:=(.*))?", argument, re.DOTALL):
            file = next(arguments, None) if given[1] is None else given[1]
            (others if file is None else files).append(argument if file is None else file)
        else:
            others.append(argument)
    named = os.path.expanduser(files[-1]) if files else DEFAULT_CONFIG
    return [argv[0], f"--config={named}", *others]


def _experiment_file(argv: list[str]) -> str:
    """Finds the experiment file of `_config_first`, without the argument behind its colon."""
    return argv[1].removeprefix("--config=").split(":")[0]


def _stray(argv: list[str], word: str) -> str:
    before = argv[argv.index(word) - 1].partition("=")[0] if word in argv else ""
    key = re.sub("^--?config[.]", "", before)
    if key in configuration.list_keys():
        return f"{word!r} stands alone: names are separated by commas, as in {before}=a,b."
    return f"{word!r} is not a flag; see --help."


def options() -> Options:
    """Collects what the command line asks of its mode, with the configuration checked."""
    if MODELS.value:
        configuration.load_models_from(MODELS.value)
    config = configuration.from_config_dict(CONFIG.value)
    model = CONFIG.value.to_dict().get("model", {})
    names = [key.removeprefix("data.") for key in _overridden if key.startswith("data.")]
    experiment = _experiment_file(["", f"--config={flags.FLAGS['config'].config_filename}"])
    return Options(
        mode=MODE.value,
        config=config,
        overrides={name: getattr(config.data, name) for name in names if "." not in name},
        given={name: flags.FLAGS[name].value for name in _FLAGS_OF_MODES},
        paths=tuple(_positional),
        join=join_processes,
        complain=complain,
        experiment="" if experiment == str(DEFAULT_CONFIG) else experiment,
        own={name: of for name, of in model.items() if isinstance(of, dict)},
    )


def join_processes() -> None:
    """Meets a run's other processes, if flags name any; raises `UserError` if flags contradict."""
    given = [f"--{f.name}" for f in (COORDINATOR, PROCESSES, PROCESS) if f.value is not None]
    if DISTRIBUTED.value and given:
        raise UserError(f"--distributed asks the cluster's environment: leave out {given[0]}.")
    if given and len(given) < 3:
        raise UserError(
            "--coordinator_address, --num_processes and --process_id belong together, but only "
            f"{' and '.join(given)} is given."
        )
    if not 1 <= JOIN_SECONDS.value <= 86400:  # the library counts in whole seconds
        raise UserError(f"--join_seconds={JOIN_SECONDS.value:g} must be from 1 to 86400.")
    if not runs_with_others():
        return
    if given and not re.fullmatch(r".+:\d+", COORDINATOR.value):
        raise UserError(f"--coordinator_address={COORDINATOR.value} must be host:port.")
    if given and PROCESS.value >= PROCESSES.value:
        raise UserError(
            f"--process_id={PROCESS.value} must be below --num_processes={PROCESSES.value}: "
            "processes are counted from 0."
        )
    from msajax.runtime import processes  # --help need not wait for JAX

    processes.join(COORDINATOR.value, PROCESSES.value, PROCESS.value, JOIN_SECONDS.value)


def runs_with_others() -> bool:
    """Tells whether this process is one of several."""
    return DISTRIBUTED.value or COORDINATOR.value is not None


def refuse_strangers() -> None:
    """Raises `UserError` for a flag or an override that the chosen mode would ignore."""
    mode = MODES[MODE.value]
    for key in _overridden:
        if mode.keys is not None and key not in mode.keys:
            raise UserError(
                f"--mode={MODE.value} does not read --config.{key}: the settings are those of the "
                "run."
            )
    for name in _FLAGS_OF_MODES:
        if flags.FLAGS[name].present > 0 and name not in mode.flags:
            raise UserError(f"--mode={MODE.value} does not read --{name}; see --help.")


def refuse_remote_paths() -> None:
    """Raises `UserError` for a URL where a path is needed: it would become a folder named gs:.

    A corpus is read where it lies, in pieces; an output is one file, which can be copied.
    """
    for name in ("input", "output", "figures", "profile"):
        if is_url(flags.FLAGS[name].value or ""):
            raise UserError(
                f"--{name}={flags.FLAGS[name].value} is no path: a bucket can hold a --workdir or "
                "a --bundle alone; copy the file, or mount the bucket, and give the path there."
            )


def complain(problem: str) -> None:
    """Says in one line what went wrong."""
    print("error:", on_one_line(" ".join(problem.split())), file=sys.stderr)
