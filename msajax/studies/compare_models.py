"""Compares models on equal terms: each is swept with the same budget, and its winner tested once.

WORKDIR holds

    NAME.py                 the experiment of a contender: what all share, its model and its space
    NAME                    its sweep, or with no trials its run
    NAME.log, NAME.json     what its process said, and what it took
    models.json, .csv, .html  the table, after every contender
    models.tex              every metric, for a paper, once all have ended
"""

import collections
import contextlib
import functools
import json
import logging
import math
import os
import pathlib
import runpy
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flax.traverse_util import unflatten_dict
from rich.console import Console
from rich.text import Text

from msajax.checks import differences, is_url
from msajax.comparison.compare import (
    FIRST,
    SECOND,
    UNDEFINED,
    about_groups,
    compare_pairs,
    tabulate,
)
from msajax.comparison.contenders import open_runs
from msajax.comparison.output import csv_text, p_value, run_table_latex
from msajax.config import Config, checked, flatten, from_config_dict, identity
from msajax.config.identity import NUMERICS
from msajax.config.registry import OF_EVERY_MODEL, registered
from msajax.corpus.folds import require_one_fold
from msajax.corpus.formats import open_own
from msajax.errors import (
    NON_FINITE,
    OK,
    STOPPED,
    USER_ERROR,
    UserError,
    on_one_line,
    user_failure,
    writing,
)
from msajax.experiment.run import open_encoders
from msajax.files import as_strict, json_text, read_json, write_if_new, write_json, write_text
from msajax.models.build import declared
from msajax.report import charts
from msajax.report.figures import Chart
from msajax.report.page import Panel, render, shortened
from msajax.results import legend
from msajax.results.findings import interval, is_number, mean_sd
from msajax.results.tables import MetricTable, print_sentences
from msajax.runs.claim import FOLDS, goes_on, require_no_difference
from msajax.runs.folder import RunFolder
from msajax.runs.lock import Lock
from msajax.runs.manifest import LOCK
from msajax.runtime.signals import FOLLOWS, StopRequest
from msajax.studies.folds import as_one_run, ended_folds
from msajax.studies.sweep.files import SWEEP, WINNER, experiment_text
from msajax.studies.sweep.space import plan
from msajax.training.failures import failure_message

logger = logging.getLogger(__name__)

RESULTS, LATEX = "models.json", "models.tex"
DONE, NOT_RUN, PAUSED, _KILLED = "done", "not run", "paused", "killed"
_TAKEN = ("models", LOCK)  # names of other files beside those of contenders
TEXT_ONLY = "text_only"  # the floor that every table has
_WAIT = 60.0  # seconds for a process of a start that was killed
_POLL, _NOTED = 0.2, 10.0  # seconds after which a process is looked at, and its cost is noted
_SPLITS, _SEED = ("valid", "test"), "random seed"
_LONGEST = 16  # characters of a name in the chart


class Budget(NamedTuple):
    """Says what every contender gets.

    Attributes:
        trials: settings that are drawn from its space; 0 trains the settings that are declared.
        trial_seeds: random seeds of a trial.
        hours: time of this start, after which no contender begins; None for no limit.
        models: a Python file that registers models; "" for none.
    """

    trials: int = 8
    trial_seeds: int = 1
    hours: float | None = None
    models: str = ""


_Experiments = Mapping[str, tuple[Config, dict[str, Any] | None]]  # with their spaces, by name


def compare_models(
    contenders: Sequence[str],
    config: Config,
    workdir: str,
    budget: Budget,
    stop: StopRequest | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Sweeps each contender in a process of its own, and compares the winners with the first.

    A contender draws its trials from the space that its model declares, on validation alone; the
    best is trained on seeds that no trial had, and tested once. What has ended is only read, and
    what was interrupted goes on.

    Args:
        contenders: names of models, the reference first.
        config: what all have in common: the corpus, training, encoders, seeds. Settings of
            `model.*` that a contender does not read are left out of its experiment.
        own: settings of contenders' own, `{name: {setting: value}}`.

    Returns:
        The content of models.json, and whether every contender has ended by itself.

    Raises:
        UserError: for whatever the user can set right, before anything is trained.
    """
    config = checked(config)
    if budget.trials:  # a sweep has one test split; declared settings may be trained on all folds
        require_one_fold(config.data)
    _check_budget(budget)
    experiments = _experiments(contenders, config, budget, own or {})
    texts = {
        name: experiment_text(one, f"{name}, a contender of a comparison of models.", space)
        for name, (one, space) in experiments.items()
    }
    # What makes two comparisons the same; contenders may be added.
    digests = _digests(config)
    flat = {**identity(config), **digests, "numerics": NUMERICS}
    flat |= {"--trials": budget.trials, "--trial_seeds": budget.trial_seeds}
    identity_of_all = json.loads(json_text(flat))  # as JSON has it: a tuple is a list
    _claim(workdir, identity_of_all, experiments)
    with writing(workdir):
        os.makedirs(workdir, exist_ok=True)
    last = None if budget.hours is None else time.monotonic() + 3600 * budget.hours
    with Lock(workdir):
        # Those that were compared here before, and are not named now, stay in the table.
        before = _claim(workdir, identity_of_all, experiments)  # another start may have ended
        names = list(dict.fromkeys([*experiments, *before]))
        write = functools.partial(_write_table, workdir, config, identity_of_all, names, budget)
        content = write()
        for name, text in texts.items():  # what changes no run, as a path, may have changed
            write_if_new(os.path.join(workdir, f"{name}.py"), text)
        for k, name in enumerate(experiments):
            if _status(workdir, name) == DONE:
                continue
            if _is_over(stop, last):
                return content, False
            if _digests(config) != digests:
                raise UserError(
                    f"{config.data.path}, or an encoder, has changed since the comparison began: "
                    "put back what was there, or choose another --workdir."
                )
            logger.info("%s (%d of %d).", name, k + 1, len(experiments))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(workdir, LATEX))  # it is of what had ended before
            has_ended = _run_contender(workdir, name, budget, stop, last)
            content = write()
            if not has_ended:
                return content, False
            row = next(row for row in content["contenders"] if row["name"] == name)
            logger.info("%s: %s", name, _sentence(content, row))
        _write_latex(workdir, content)
        ends = [row["status"] for row in content["contenders"] if row["name"] in experiments]
        return content, not any(status.startswith((PAUSED, _KILLED)) for status in ends)


def _check_budget(budget: Budget) -> None:
    for name, least in (("trials", 0), ("trial_seeds", 1)):
        value = getattr(budget, name)
        if type(value) is not int or value < least:
            raise UserError(f"--{name}={value!r}: must be a whole number, {least} or more.")
    hours = budget.hours
    if hours is not None and not (isinstance(hours, int | float) and 0 <= hours < math.inf):
        raise UserError(f"--hours={hours!r}: must be a number, 0 or more.")


def of_contender(config: Config, name: str, own: Mapping[str, Any] | None = None) -> Config:
    """Returns an experiment with another model, without the settings that this one does not read.

    Args:
        own: settings of the model's own, in place of those that the experiment has for it.

    Raises:
        UserError: for a model that is not known, or settings that do not fit it.
    """
    if name not in registered():
        known = ", ".join(registered())
        raise UserError(f"--contenders names {name!r}, which is no model: known are {known}.")
    entry, usual = registered()[name], flatten(Config())

    def is_read(key: str) -> bool:
        section, _, rest = key.partition(".")
        if section != "model":
            return True
        if (first := rest.partition(".")[0]) in registered():  # settings of a model's own
            return first == name
        return entry.reads is None or rest in (*entry.reads, *OF_EVERY_MODEL)

    changed = {k: v for k, v in flatten(config).items() if k not in usual or usual[k] != v}
    nested = unflatten_dict({k: v for k, v in changed.items() if is_read(k)}, sep=".")
    model = nested.setdefault("model", {})
    model["name"] = name
    if entry.modalities:
        model["modalities"] = entry.modalities
    if own:
        model[name] = dict(own)
    return from_config_dict(nested)


def _experiments(
    contenders: Sequence[str], config: Config, budget: Budget, own: Mapping[str, Mapping[str, Any]]
) -> _Experiments:
    """Makes every contender's experiment and space; text alone stands last if it is missing."""
    if not contenders or not all(contenders):
        raise UserError(
            "--contenders names no model, or an empty one: names are separated by commas, as in "
            "sequence_level,mult,text_only."
        )
    if taken := [name for name in contenders if name in _TAKEN]:
        raise UserError(
            f"--contenders names {taken[0]!r}, a name that files of a comparison have: register "
            "the model by another one."
        )
    if twice := [name for name in contenders if list(contenders).count(name) > 1]:
        raise UserError(f"--contenders names {twice[0]!r} twice.")
    if TEXT_ONLY not in contenders:
        contenders = [*contenders, TEXT_ONLY]
    _check_own(own, contenders)
    found = {}
    for name in contenders:
        experiment = of_contender(config, name, own.get(name))
        space = dict(declared(experiment.model).space)
        if budget.trials and not space:
            raise UserError(
                f"The model {name!r} declares no space of settings (msajax.Model.space): give it "
                "one, or compare with --trials=0."
            )
        if budget.trials:
            try:
                plan(space, experiment, budget.trials)
            except UserError as error:
                raise UserError(f"The model {name!r}: {error}") from error
        found[name] = experiment, space if budget.trials else None
    return found


def _check_own(own: Mapping[str, Mapping[str, Any]], contenders: Sequence[str]) -> None:
    if not isinstance(own, Mapping):
        raise UserError(f"own = {own!r}: must be {{name of a contender: {{setting: value}}}}.")
    for name, settings in own.items():
        if name not in contenders:
            raise UserError(f"own names {name!r}, which is no contender.")
        if not isinstance(settings, Mapping):
            raise UserError(f"own[{name!r}] = {settings!r}: must be {{setting: value}}.")
        if name in registered() and registered()[name].settings is None:
            raise UserError(f"own names {name!r}, a model without settings of its own.")


def _digests(config: Config) -> dict[str, str]:
    found = {"corpus digest": open_own(config.data.path, config.reading).digest}
    return found | {f"{m} encoder digest": one.digest for m, one in open_encoders(config).items()}


def _claim(workdir: str, own: Mapping[str, Any], experiments: _Experiments) -> list[str]:
    """Refuses a folder of something else; returns contenders that were compared there before."""
    if is_url(workdir):
        raise UserError(f"The workdir {workdir} is in a bucket: name a folder.")
    if ":" in workdir:  # behind a colon --config=FILE has an argument
        raise UserError(f"The workdir {workdir} has a colon in its path: name one without.")
    if not goes_on(workdir, RESULTS):
        return []
    path = os.path.join(workdir, RESULTS)
    stored = read_json(path)
    try:
        found = differences(own, stored["identity"], "{key}: {there} there, {here} here")
        names = [row["name"] for row in stored["contenders"]]
    except (LookupError, TypeError) as error:
        raise UserError(
            f"{path} is not that of a comparison of models: choose another --workdir."
        ) from error
    for name, (config, space) in ({} if found else experiments).items():
        path = os.path.join(workdir, f"{name}.py")
        if os.path.exists(path):
            here = identity(config) | {"get_space()": space}
            form = f"{name}.py: {{key}}: {{there}} there, {{here}} here"
            found += differences(here, _stored_experiment(path), form)
    require_no_difference(workdir, "comparison", found)
    return names


def _stored_experiment(path: str) -> dict[str, Any]:
    """Reads what makes a contender's runs the same runs from its experiment file."""
    try:
        module = runpy.run_path(path)
        space = module["get_space"]() if "get_space" in module else None
        return identity(from_config_dict(module["get_config"]())) | {"get_space()": space}
    except Exception as error:  # whatever somebody has made of the file
        why = user_failure(path, error)
        raise UserError(f"{path}{why}; it was changed: choose another --workdir.") from error


# --- a contender's process ---


def _run_contender(
    workdir: str, name: str, budget: Budget, stop: StopRequest | None, last: float | None
) -> bool:
    """Trains a contender until it ends; returns whether it has, rather than paused."""
    folder = os.path.join(workdir, name)
    _wait_for_owner(folder)
    asked = ["--mode=train"]
    if budget.trials:
        asked = ["--mode=sweep", f"--trials={budget.trials}", f"--trial_seeds={budget.trial_seeds}"]
    asked += [f"--config={os.path.join(workdir, name)}.py", f"--workdir={folder}"]
    asked += [f"--models={budget.models}"] if budget.models else []
    before, started, peak, noted = _cost_so_far(workdir, name), time.monotonic(), 0.0, 0.0

    def note(code: int | None, why: str = "") -> None:
        """Writes what it took, together with its earlier starts, and how this one has ended."""
        seconds = round(before["seconds"] + time.monotonic() - started, 3)
        taken = {"seconds": seconds, "peak_mib": round(max(before["peak_mib"], peak), 1)}
        write_json(f"{folder}.json", taken | {"code": code, "why": why})

    # Its process ends by itself, or is asked to once the start is over; what it uses is counted.
    with open(f"{folder}.log", "ab") as log:
        begin, asked_to_stop = log.tell(), False
        process = subprocess.Popen(
            [sys.executable, "-m", "msajax.main", *asked],
            env=os.environ | {FOLLOWS: "1"},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        try:
            with Console(stderr=True).status(name) as shown:  # nothing where no terminal is
                while process.poll() is None:
                    if not asked_to_stop and _is_over(stop, last):
                        asked_to_stop = True
                        if stop:
                            stop.serve()  # what it saves is waited for
                        process.terminate()
                    peak = max(peak, _peak_mib(process.pid))
                    if time.monotonic() - noted > _NOTED:  # for the case of a kill
                        noted = time.monotonic()
                        note(None)
                    said = _lines_of(log.name, max(os.path.getsize(log.name) - 1000, 0))
                    shown.update(Text(f"{name}: {on_one_line(said[-1]) if said else ''}"))
                    time.sleep(_POLL)
        finally:
            if process.poll() is None:  # a program that is interrupted leaves nothing behind
                process.terminate()
                process.wait()
            process.stdin.close()
            lines = _lines_of(log.name, begin)
            errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            why = (errors or lines or ["it said nothing"])[-1]
            note(process.returncode, "" if process.returncode == OK else why)
    return not asked_to_stop or _status(workdir, name) == DONE


def _peak_mib(process: int) -> float:
    """Reads the most memory that a process has had; 0 where the system does not say it.

    What the system counts for the parent of one begins with the parent's own.
    """
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as file:
        return next((int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM")), 0.0)
    return 0.0


def _is_over(stop: StopRequest | None, last: float | None) -> bool:
    asked = stop is not None and stop.requested
    return asked or (last is not None and time.monotonic() > last)


def _wait_for_owner(folder: str) -> None:
    """Waits until a process of a start that was killed has saved, and let go of a folder."""
    last = time.monotonic() + _WAIT
    locks = [*pathlib.Path(folder).glob(LOCK), *pathlib.Path(folder).glob(f"fold_*/{LOCK}")]
    while locks:
        try:
            with Lock(str(locks[-1].parent)):
                locks.pop()
                continue
        except UserError:
            if time.monotonic() > last:
                raise
        time.sleep(_POLL)


def _cost_so_far(workdir: str, name: str) -> dict[str, Any]:
    path = os.path.join(workdir, f"{name}.json")
    if os.path.exists(path):
        return read_json(path)
    return {"seconds": 0.0, "peak_mib": 0.0, "code": None, "why": ""}


def _lines_of(path: str, begin: int) -> list[str]:
    with open(path, "rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _run_of(workdir: str, name: str) -> RunFolder:
    folder = os.path.join(workdir, name)
    is_sweep = os.path.exists(os.path.join(folder, SWEEP))
    return RunFolder(os.path.join(folder, WINNER) if is_sweep else folder)


def _status(workdir: str, name: str) -> str:
    run, taken = _run_of(workdir, name), _cost_so_far(workdir, name)
    # Of random seeds whose numbers were not finite, the others have results.
    if taken["code"] in (OK, NON_FINITE) and any(
        os.path.exists(run.file(n)) for n in ("results.json", FOLDS)
    ):
        return DONE
    if taken["code"] is None:
        return PAUSED if os.path.isdir(os.path.join(workdir, name)) else NOT_RUN
    if taken["code"] in (STOPPED, -signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGINT):
        return PAUSED
    if taken["code"] < 0:
        return f"{_KILLED} by {signal.Signals(-taken['code']).name}: the same command tries again"
    kinds = {USER_ERROR: "refused", NON_FINITE: "not finite"}
    return f"{kinds.get(taken['code'], 'failed')}: {taken['why']}"


# --- the table ---


def _write_table(
    workdir: str, config: Config, own: Mapping[str, Any], names: Sequence[str], budget: Budget
) -> dict[str, Any]:
    """Writes the table of what has ended so far; returns the content of models.json."""
    rows, results, runs = {}, {}, {}
    for name in names:
        rows[name] = row = _contender_row(workdir, name)
        if row["status"] == DONE:
            run = _run_of(workdir, name)
            try:
                # What cannot stand beside the first that has ended is not compared.
                open_runs([*list(runs.values())[:1], run.path], "test")
                is_folds = os.path.exists(run.file(FOLDS))
                found = as_one_run(run.path) if is_folds else run.read_results()
                row |= _measured(run, found)
                results[name], runs[name] = found, run.path
            except UserError as error:
                row["status"] = f"cannot be compared: {error}"
    metric = next((one["selection"] for one in results.values()), None)
    content = {
        "corpus": config.data.path,
        "budget": {
            "trials": budget.trials,
            "trial_seeds": budget.trial_seeds,
            "seeds": config.train.seeds,
        },
        "reference": names[0],
        "task": next((one["task"] for one in results.values() if "task" in one), None),
        "metric": metric,
        "floors": next((one["floors"] for one in results.values()), {}),
        "contenders": list(rows.values()),
        "notes": _test(rows, names[0], runs, metric),
        "identity": own,
    }
    content = as_strict(content)  # what is undefined is None, as in the file
    files = {RESULTS: json_text(content), "models.html": page(content)}
    files["models.csv"] = csv_text(rows_of(content))
    for name, text in files.items():
        write_if_new(os.path.join(workdir, name), text)
    return content


def _contender_row(workdir: str, name: str) -> dict[str, Any]:
    taken, folder = _cost_so_far(workdir, name), os.path.join(workdir, name)
    sweep: Mapping[str, Any] = {"trials": [], "winner": None}
    with contextlib.suppress(UserError, OSError):
        sweep = read_json(os.path.join(folder, SWEEP))
    return {
        "name": name,
        "parameters": None,
        "trials_done": len(sweep["trials"]),
        "settings": (sweep["winner"] or {}).get("settings", {}),
        "valid": {},
        "test": {},
        "samples_per_second": None,
        "peak_mib": taken["peak_mib"] or None,
        "seconds": taken["seconds"],
        "p": None,
        "p_holm": None,
        "verdict": None,
        "status": _status(workdir, name),
        "failed": [],
    }


def _measured(run: RunFolder, results: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "parameters": results["model"]["parameters"],
        "valid": results["valid"],
        "test": results["test"],
        "samples_per_second": _samples_per_second(run, results),
        "failed": results.get("failed", []),
    }


def _samples_per_second(run: RunFolder, results: Mapping[str, Any]) -> float | None:
    """Returns the median over epochs of what a run trains on in a second, validation included.

    The first epoch counts only where there is no other: it waits for programs to be compiled.
    """
    folders = ended_folds(run.path) if "runs" in results else [run]
    found, first = [], []
    for folder, of_run in zip(folders, results.get("runs", [results]), strict=True):
        # Random seeds that are trained together share the seconds of an epoch.
        epochs = collections.Counter((e["epoch"], e["seconds"]) for e in folder.read_metrics())
        for (epoch, seconds), seeds in epochs.items():
            if seconds:
                rates = found if epoch > 1 else first
                rates.append(seeds * of_run["corpus"]["sizes"]["train"] / seconds)
    return round(statistics.median(found or first), 1) if found or first else None


def _test(
    rows: Mapping[str, dict[str, Any]], reference: str, runs: Mapping[str, str], metric: str | None
) -> list[str]:
    """Tests every run that has ended against that of the reference, in one metric.

    Args:
        rows: get p and the verdict, as `compare` gives them.
        runs: folders by the names of contenders.

    Returns:
        What a reader must know of the tests, in sentences.
    """
    others = [name for name in runs if name != reference]
    if not others:
        return []
    if reference not in runs:
        return [f"{reference}, the reference, has no result: nothing was compared."]
    opened = open_runs([runs[name] for name in (reference, *others)], "test")
    if metric not in opened.task.reported:
        return [f"The labels of the test split have no {metric}: nothing was compared."]
    pairs = compare_pairs(opened, {(0, k): [metric] for k in range(1, len(runs))})
    words = {FIRST: "worse", SECOND: "better", UNDEFINED: None}
    for name, pair in zip(others, pairs.values(), strict=True):
        values = pair[metric]
        rows[name].update({key: values[key] for key in ("p", "p_holm")})
        rows[name]["verdict"] = words.get(values["verdict"], "noise")
    notes = [*opened.notes, *about_groups(opened._asdict() | {"groups": opened.groups}, len(pairs))]
    if unknown := [name for name in others if rows[name]["verdict"] is None]:
        notes.append(f"Undefined on test is the difference in {metric} of {', '.join(unknown)}.")
    return notes


def _write_latex(workdir: str, content: Mapping[str, Any]) -> None:
    """Writes models.tex, with every metric, unless it is there: its tests take a while."""
    path = os.path.join(workdir, LATEX)
    names = [row["name"] for row in content["contenders"] if row["status"] == DONE]
    if names and not os.path.exists(path):
        table = tabulate([_run_of(workdir, name).path for name in names])
        for row, name in zip(table["rows"], names, strict=True):
            row["run"] = name
        write_text(path, run_table_latex(table))


def rows_of(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists the table's values, a row for each contender, ready for a data frame."""
    metrics = next((row["test"] for row in content["contenders"] if row["test"]), {})
    found = []
    for row in content["contenders"]:
        listed = {key: row[key] for key in ("name", "status", "parameters", "trials_done")}
        listed["settings"] = ", ".join(f"{key} = {v}" for key, v in row["settings"].items())
        for split in ("valid", "test"):
            for metric in metrics:
                values = row[split].get(metric, {})
                for key in ("mean", "sd"):
                    listed[f"{split}_{metric}_{key}"] = values.get(key)
                if split == "test":
                    low, high = values.get("ci95", (None, None))
                    listed |= {f"test_{metric}_low": low, f"test_{metric}_high": high}
        listed |= {key: row[key] for key in ("p", "p_holm", "verdict")}
        listed |= {key: row[key] for key in ("samples_per_second", "peak_mib", "seconds")}
        found.append(listed)
    return found


_COLUMNS = ("parameters", "valid", "test", "95 % interval", "p", "p (Holm)", "samples/s", "MiB")


def _cells(content: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    if row["status"] != DONE:
        return [row["status"].partition(":")[0]]  # why stands among the sentences
    cells = [f"{row['parameters']:,}", *(_shown(content, row, split) for split in _SPLITS)]
    known = _defined(content, row)
    cells.append(interval(content["metric"], known) if known["ci95"] else "-")
    cells += ["-" if row[key] is None else p_value(row[key]) for key in ("p", "p_holm")]
    costs = (row["samples_per_second"], row["peak_mib"])
    return [*cells, *("-" if cost is None else f"{cost:,.0f}" for cost in costs)]


def _shown(content: Mapping[str, Any], row: Mapping[str, Any], split: str) -> str:
    values = row[split].get(content["metric"])
    return mean_sd(content["metric"], values) if values else "-"


def _defined(content: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the "seeds" whose test metric is defined, and its "ci95", or None."""
    values = row["test"].get(content["metric"], {"seeds": (), "ci95": (None, None)})
    is_known = all(map(is_number, values["ci95"]))
    return {
        "seeds": list(filter(is_number, values["seeds"])),
        "ci95": values["ci95"] if is_known else None,
    }


def sentences(content: Mapping[str, Any]) -> list[str]:
    """Says which contenders differ from the reference, and which came to nothing."""
    reference, metric, rows = (content[key] for key in ("reference", "metric", "contenders"))
    ended = (DONE, NOT_RUN, PAUSED)
    found = [f"{row['name']} {row['status']}" for row in rows if row["status"] not in ended]
    for row in rows:
        if row["failed"]:
            said = failure_message(row["failed"])
            found.append(f"{row['name']}: {said} The table has its other seeds.")
    texts = {
        "better": f"By test {metric}, better than {reference}:",
        "worse": f"By test {metric}, worse than {reference}:",
        "noise": f"Not told from {reference}:",
    }
    for verdict, text in texts.items():
        if names := [row["name"] for row in rows if row["verdict"] == verdict]:
            found.append(f"{text} {', '.join(names)}.")
    return [*found, *content["notes"]]


def _terms(content: Mapping[str, Any]) -> list[str]:
    budget = content["budget"]
    each = "its declared settings, "
    if budget["trials"]:
        trials, seeds = (
            _several(budget[k], w) for k, w in (("trials", "trial"), ("trial_seeds", _SEED))
        )
        each = (
            f"{trials} of {seeds} from the space that its model declares, on validation alone; "
            "the best "
        )
    return [
        f"Each contender: {each}trained on {_several(budget['seeds'], f'fresh {_SEED}')} and "
        "tested once.",
        f"p: the paired test against {content['reference']} on the test split; Holm: over all "
        "others. A model is told from it where the intervals of the difference, over samples, "
        "videos and random seeds, exclude 0 as well.",
        "samples/s: of training and its validation, the median over epochs after the first; MiB: "
        "the most memory of its process.",
    ]


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _sentence(content: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    if row["status"] != DONE:
        return row["status"]
    valid, test = (_shown(content, row, split) for split in _SPLITS)
    return f"{content['metric']} {valid} on valid, {test} on test, {row['seconds']:.0f} s"


def print_models(content: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a models.json: a row for each contender, and what it means."""
    metric = content["metric"]
    shown = f"{metric} {legend.arrow(metric)}" if metric else "no metric yet"
    seeds = _several(content["budget"]["seeds"], _SEED)
    table = MetricTable(f"{shown}, {seeds}", ["model", *_COLUMNS])
    for cells in _table_rows(content):
        table.add_row(*map(Text, cells))
    console.print(table)
    console.print()
    print_sentences([*sentences(content), *_terms(content)], console)


def _table_rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found = [(row["name"], *_cells(content, row)) for row in content["contenders"]]
    for name, value in _floors(content).items():
        found.append((name, "", "", legend.show(content["metric"], value)))
    return [(*cells, *[""] * (len(_COLUMNS) + 1 - len(cells))) for cells in found]


def _floors(content: Mapping[str, Any]) -> dict[str, float]:
    metric, floors = content["metric"], content["floors"]
    words = legend.task_of(content, [metric]).floor_words if floors else {}
    return {words[n].name: of[metric] for n, of in floors.items() if is_number(of.get(metric))}


def page(content: Mapping[str, Any]) -> str:
    """Makes models.html: the table, and each seed as a dot beside intervals and floors."""
    metric, ended = content["metric"], [r for r in content["contenders"] if r["status"] == DONE]
    known = {row["name"]: _defined(content, row) for row in ended}
    rows: list[charts.Row] = [
        (shortened(name, _LONGEST), of["seeds"], of["ci95"])
        for name, of in known.items()
        if of["seeds"]
    ]
    ours = len(rows)
    rows += [(shortened(name, _LONGEST), [value], None) for name, value in _floors(content).items()]
    note = "A dot is a random seed; a bar is the 95 % interval over samples; diamonds are floors."
    panel = Panel.of(
        "Models on equal terms",
        "compared.html",
        sentences=sentences(content),
        charts=[Chart(f"Test {metric}", charts.value_rows(rows, ours), note=note)] if ours else [],
        columns=["model", *(f"{c} {metric}" if metric and c in _SPLITS else c for c in _COLUMNS)],
        rows=_table_rows(content),
        label="models",
        notes=_terms(content),
        terms=[],
    )
    trials = content["budget"]["trials"]
    facts = [f"{len(ended)} of {_several(len(content['contenders']), 'model')}"]
    facts.append(f"{_several(trials, 'trial')} each" if trials else "declared settings")
    return render("Models", [panel], eyebrow="msajax compare_models", facts=facts)
