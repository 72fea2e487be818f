"""Reads and writes the files of a sweep.

WORKDIR holds

    trials/000, trials/001, …  the run of each trial: config.json, run.json, metrics.jsonl; its
                               checkpoints are removed when it has ended
    trials/000.json, …         what is on record of it; written when it has ended
    sweep.json, trials.csv     all of that, after every trial
    winner.py                  the winning experiment, as a file that trains by itself
    winner                     its run, an ordinary one
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from msajax.checks import differences
from msajax.comparison.output import csv_text
from msajax.config import Config, flatten
from msajax.config.registry import registered
from msajax.errors import UserError, writing
from msajax.files import as_strict, json_text, read_json, write_if_new, write_json
from msajax.runs.claim import goes_on, require_no_difference
from msajax.runs.folder import RunFolder

SWEEP, TABLE, WINNER, WINNER_FILE = "sweep.json", "trials.csv", "winner", "winner.py"
_TRIALS = "trials"
_PATHS = ("data.path", "data.glove_path", "model.init_from")


@dataclasses.dataclass(frozen=True)
class SweepFolder:
    """Knows the paths of a sweep's files, reads them and writes them."""

    path: str

    def file(self, *names: str) -> str:
        """Returns a path inside the folder."""
        return os.path.join(self.path, *names)

    def trial(self, number: int) -> RunFolder:
        """Returns the folder of a trial's run."""
        return RunFolder(self.file(_TRIALS, f"{number:03}"))

    def claim(self, identity: Mapping[str, Any], trials: int) -> None:
        """Refuses a folder that belongs to another sweep than this one, or to none.

        A sweep may get more trials, as long as its winner has not been trained.

        Args:
            identity: settings by which two sweeps are the same sweep, flat.

        Raises:
            UserError: naming every difference.
        """
        if not goes_on(self.path, SWEEP, ", so it is no sweep's folder"):
            return
        try:
            stored = read_json(self.file(SWEEP))
            found = differences(
                json.loads(json.dumps(identity)),  # as JSON has it: a tuple is a list
                stored["identity"],
                "{key}: {there} there, {here} here",
            )
            planned = stored["planned"]
        except (LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.file(SWEEP)} is not that of a sweep: choose another --workdir."
            ) from error
        require_no_difference(self.path, "sweep", found)
        has_winner = os.path.exists(self.file(WINNER_FILE))
        if trials < planned or (trials > planned and has_winner):
            why = "can have more trials, but not fewer"
            if has_winner:
                why = "has chosen its winner, which may have been tested: it stays as it is"
            raise UserError(
                f"The workdir {self.path} holds a sweep of {planned} trials, not of {trials}. It "
                f"{why}. Choose another --workdir, or --trials={planned}."
            )

    def read(self) -> dict[str, Any]:
        """Reads sweep.json."""
        return read_json(self.file(SWEEP))

    def read_record(self, number: int) -> dict[str, Any] | None:
        """Reads the record of a trial, or refuses a damaged one; None of one that has not ended."""
        path = self.file(_TRIALS, f"{number:03}.json")
        if not os.path.exists(path):
            return None
        record = read_json(path)
        if not isinstance(record, dict) or record.get("trial") != number:
            raise UserError(f"{path} is no record of trial {number}: delete it and its folder.")
        return record

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Writes what is on record of a trial that has ended."""
        with writing(self.file(_TRIALS)):
            os.makedirs(self.file(_TRIALS), exist_ok=True)
        write_json(self.file(_TRIALS, f"{record['trial']:03}.json"), record)

    def drop_checkpoints(self, number: int) -> None:
        """Removes what only a trial that goes on would need."""
        folder = self.trial(number)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder.file("frozen.safetensors"))

    def write(self, content: Mapping[str, Any]) -> None:
        """Writes sweep.json, and trials.csv if there are trials; what is the same stays."""
        files = {SWEEP: json_text(content)}
        if content["trials"]:
            files[TABLE] = csv_text(_rows_of(as_strict(content)))
        for name, text in files.items():
            write_if_new(self.file(name), text)


def experiment_text(config: Config, sentence: str, space: Mapping[str, Any] | None = None) -> str:
    """Writes an experiment as the Python file that `--config` reads.

    Args:
        space: the space that its get_space() returns; None for no such function.
    """
    usual = flatten(Config())
    lines = [f'"""{_in_docstring(sentence)}"""', "", "from msajax.config import default_config"]
    entry = registered()[config.model.name]
    if entry.origin:  # a model of the user's own
        lines[-1] += ", load_models_from"
        lines += ["", f"load_models_from({os.path.abspath(entry.origin)!r})"]
    lines += ["", "", "def get_config():", f'    """{_in_docstring(sentence)}"""']
    lines += ["    config = default_config()"]
    folders = {m: _absolute(folder) for m, folder in config.model.encoder_folders.items()}
    for m, folder in config.model.encoder_folders.items():
        if m != "text" and "," in folders[m]:  # model.encoders could not name it
            folders[m] = folder
    model = config.model.with_encoders(folders)
    for key, value in flatten(dataclasses.replace(config, model=model)).items():
        if key in _PATHS:
            value = _absolute(value)
        if key not in usual or value != usual[key]:
            lines.append(f"    config.{key} = {value!r}")
    lines += ["    return config", ""]
    if space is not None:
        lines += ["", "def get_space():", '    """Returns what a sweep tries."""', "    return {"]
        lines += [f"        {key!r}: {values!r}," for key, values in space.items()]
        lines += ["    }", ""]
    return "\n".join(lines)


def _absolute(path: str) -> str:
    """Returns an absolute path; what is none, as a name on the hub, stays."""
    return os.path.abspath(path) if os.path.exists(path) else path


def _in_docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")


def _rows_of(content: Mapping[str, Any]) -> list[dict[str, str]]:
    metric, found = f"valid_{content['metric']}", []
    keys = dict.fromkeys(key for trial in content["trials"] for key in trial["settings"])
    for trial in content["trials"]:
        settings = trial["settings"]
        of_seeds = trial["seeds"] or [None] * len(content["seeds"])
        row = {"trial": str(trial["trial"])}
        row |= {key: _cell(settings[key]) if key in settings else "" for key in keys}
        row |= {metric: _cell(trial["score"]), f"{metric}_sd": _cell(trial["sd"])}
        for seed, score in zip(content["seeds"], of_seeds, strict=True):
            row[f"{metric}_seed{seed}"] = _cell(score)
        row |= {key: str(trial[key]) for key in ("ended", "epochs", "seconds")}
        row["told_apart"] = {True: "yes", False: "no", None: ""}[trial["told_apart"]]
        found.append(row | {"why": trial["why"]})
    return found


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
