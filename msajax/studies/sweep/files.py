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
import csv
import dataclasses
import io
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from msajax.checks import differences
from msajax.config import Config, flatten
from msajax.config.registry import registered
from msajax.errors import UserError, writing
from msajax.files import as_strict, holds, json_text, partial, read_json, write_json, write_text
from msajax.runs.folder import RunFolder

SWEEP, TABLE, WINNER, WINNER_FILE = "sweep.json", "trials.csv", "winner", "winner.py"
_TRIALS, _LOCK = "trials", "lock"
_PATHS = ("data.path", "data.glove_path", "model.init_from", "model.text_encoder")


@dataclasses.dataclass(frozen=True)
class SweepFolder:
    """Knows the paths of a sweep's files, reads them and writes them.

    Attributes:
        path: the folder.
    """

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
            identity: what makes two sweeps the same sweep, flat.
            trials: how many trials are planned.

        Raises:
            UserError: naming every difference.
        """
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise UserError(f"The workdir {self.path} is a file; it must be a folder.")
        there = set(os.listdir(self.path)) if os.path.isdir(self.path) else set()
        if SWEEP not in there:
            if others := there - {_LOCK, partial(SWEEP)}:
                raise UserError(
                    f"The workdir {self.path} holds {min(others)!r} but no {SWEEP}, so it is no "
                    "sweep's folder: choose an empty one or a new one."
                )
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
        if found:
            raise UserError(
                f"The workdir {self.path} holds another sweep ({'; '.join(found)}): choose another "
                "--workdir, or the settings of that sweep."
            )
        has_winner = os.path.exists(self.file(WINNER_FILE))
        if trials < planned or (trials > planned and has_winner):
            why = "can have more trials, but not fewer"
            if has_winner:
                why = "has chosen its winner, which may have been tested: it stays as it is"
            raise UserError(
                f"The workdir {self.path} holds a sweep of {planned} trials, not of {trials}. It "
                f"{why}. Choose another --workdir, or --trials={planned}."
            )

    def is_of(self, trials: int) -> bool:
        """Says whether sweep.json is there and plans so many trials."""
        return os.path.exists(self.file(SWEEP)) and self.read()["planned"] == trials

    def read(self) -> dict[str, Any]:
        """Reads sweep.json."""
        return read_json(self.file(SWEEP))

    def make(self) -> None:
        """Makes the folder.

        Raises:
            UserError: if it cannot be written.
        """
        with writing(self.path):
            os.makedirs(self.path, exist_ok=True)

    def read_record(self, number: int) -> dict[str, Any] | None:
        """Reads what is on record of a trial; None of one that has not ended.

        Raises:
            UserError: if the file is damaged.
        """
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
            files[TABLE] = _table(as_strict(content))
        for name, text in files.items():
            if not holds(self.file(name), text):
                write_text(self.file(name), text)

    def write_winner(self, config: Config, sentence: str) -> None:
        """Writes the winning experiment as a file."""
        text = experiment_text(config, sentence)
        if not holds(self.file(WINNER_FILE), text):
            write_text(self.file(WINNER_FILE), text)


def experiment_text(config: Config, sentence: str, space: Mapping[str, Any] | None = None) -> str:
    """Writes an experiment as the Python file that `--config` reads.

    Args:
        config: the experiment.
        sentence: what its docstring says.
        space: what its get_space() returns; None for no such function.
    """
    usual = flatten(Config())
    lines = [f'"""{_in_docstring(sentence)}"""', "", "from msajax.config import default_config"]
    entry = registered()[config.model.name]
    if entry.origin:  # a model of the user's own
        lines[-1] += ", load_models_from"
        lines += ["", f"load_models_from({os.path.abspath(entry.origin)!r})"]
    lines += ["", "", "def get_config():", f'    """{_in_docstring(sentence)}"""']
    lines += ["    config = default_config()"]
    for key, value in flatten(config).items():
        if key in _PATHS and os.path.exists(value):
            value = os.path.abspath(value)
        if key not in usual or value != usual[key]:
            lines.append(f"    config.{key} = {value!r}")
    lines += ["    return config", ""]
    if space is not None:
        lines += ["", "def get_space():", '    """Returns what a sweep tries."""', "    return {"]
        lines += [f"        {key!r}: {values!r}," for key, values in space.items()]
        lines += ["    }", ""]
    return "\n".join(lines)


def _in_docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")


def _table(content: Mapping[str, Any]) -> str:
    """Writes the trials as CSV, a row each."""
    trials, metric = content["trials"], f"valid_{content['metric']}"
    keys = dict.fromkeys(key for trial in trials for key in trial["settings"])
    seeds = content["seeds"]
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    scores = [f"{metric}_seed{seed}" for seed in seeds]
    columns = ("trial", *keys, metric, f"{metric}_sd", *scores, "ended", "epochs", "seconds")
    writer.writerow([*columns, "told_apart", "why"])
    for trial in trials:
        settings = trial["settings"]
        apart = {True: "yes", False: "no", None: ""}[trial["told_apart"]]
        writer.writerow(
            [
                trial["trial"],
                *(_cell(settings[key]) if key in settings else "" for key in keys),
                *(_cell(value) for value in (trial["score"], trial["sd"])),
                *(_cell(value) for value in trial["seeds"] or [None] * len(seeds)),
                *(trial["ended"], trial["epochs"], trial["seconds"], apart, trial["why"]),
            ]
        )
    return file.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
