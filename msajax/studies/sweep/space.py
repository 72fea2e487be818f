"""Reads the space of a sweep, which settings it tries, and plans its trials."""

import itertools
import math
import os
import runpy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict

from msajax.config import Config, ModelConfig, check_key, flatten, from_config_dict, identity
from msajax.errors import UserError, user_failure
from msajax.models.build import declared

TrialSettings = dict[str, Any]  # what a trial changes of the experiment, by key

MOST_TRIALS = 10_000
_SCALES = ("log", "linear")
# Settings that would make the scores of two trials incomparable, or that the sweep itself sets.
_FIXED = {
    "train.seeds": "--trial_seeds says how many random seeds a trial has",
    "train.first_seed": "all trials train the same random seeds",
    "train.seeds_at_once": "it changes no number",
    "train.select_by": "trials are compared by one metric",
    "data.folds": "trials are compared on one validation split",
    "data.fold": "trials are compared on one validation split",
    "data.split_seed": "trials are compared on one validation split",
}


def load_space(path: str, model: ModelConfig) -> Any:
    """Calls a file's `get_space()`, else takes its model's space; raises `UserError` if none."""
    path = os.path.abspath(path)  # as tracebacks name it
    try:
        get_space = runpy.run_path(path).get("get_space")
        if not callable(get_space):
            if space := declared(model).space:
                return dict(space)
            raise UserError(
                f"{path} has no get_space(), which returns what a sweep tries: {{key: list of "
                f"values, or (low, high, 'log' or 'linear')}}; nor does {model.name} declare it."
            )
        return get_space()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UserError(f"get_space() of {path}{user_failure(path, error)}") from error


def plan(space: Any, config: Config, trials: int | None) -> list[TrialSettings]:
    """Checks a space, and lists the settings of every trial.

    A space of lists alone is a grid, whose last key, in alphabetical order, changes fastest. With a
    number of trials, or with a range, trial k is drawn at random, from a generator (PCG64) that is
    seeded by k: it is the same whatever the number of trials. A combination that an earlier trial
    had is drawn anew. A list of dictionaries says the trials one by one.

    Args:
        space: the result of `get_space()`.
        trials: the number of trials; None for the whole grid.

    Raises:
        UserError: for a key or a value that cannot be tried, and too few or too many trials.
    """
    if trials is not None and (type(trials) is not int or trials < 1):
        raise UserError(f"--trials={trials}: must be 1 or more.")
    usual = flatten(config)
    if isinstance(space, list):
        if trials is not None:
            raise UserError("get_space() lists its trials one by one: leave out --trials.")
        return _check_listed(space, config, usual)
    if not isinstance(space, Mapping) or not space:
        raise UserError(
            "get_space() must return {key: list of values, or (low, high, 'log' or 'linear')}, or "
            f"a list of trials, each {{key: value}}; it returns {space!r}."
        )
    # Lists and ranges by key: a grid without a range is tried whole, or drawn from.
    for key, values in space.items():
        _check_tried_key(key, config)
        _check_values(key, values, usual[key])
    space = {key: space[key] for key in sorted(space)}
    ranges = [key for key, values in space.items() if isinstance(values, tuple)]
    size = math.inf if ranges else math.prod(map(len, space.values()))
    if trials is None and ranges:
        raise UserError(f"get_space(): {ranges[0]} is a range, which has no end: give --trials=N.")
    if trials is None and size > MOST_TRIALS:
        raise UserError(
            f"get_space() has {size} combinations, more than {MOST_TRIALS}: give --trials=N, which "
            "draws N of them at random."
        )
    if trials is None:
        combinations = itertools.product(*space.values())
        return [dict(zip(space, values, strict=True)) for values in combinations]
    if trials > min(size, MOST_TRIALS):
        most = f"get_space() has only {size} combinations" if size < trials else "it is too many"
        raise UserError(
            f"--trials={trials}: {most}; give at most {min(size, MOST_TRIALS)}"
            + ("." if ranges else "; a sweep without --trials tries every one.")
        )
    # Trial k has a generator of its own, so that it is the same whatever the number of trials.
    planned: list[TrialSettings] = []
    for number in range(trials):
        rng = np.random.Generator(np.random.PCG64(number))
        drawn = None
        while drawn is None or drawn in planned:
            drawn = {key: _draw_value(values, usual[key], rng) for key, values in space.items()}
        planned.append(drawn)
    return planned


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Replaces settings, by key; raises `UserError` for an impossible value or combination."""
    return from_config_dict(unflatten_dict(flatten(config) | dict(settings), sep="."))


def _check_listed(
    space: Sequence[Any], config: Config, usual: TrialSettings
) -> list[TrialSettings]:
    if not space or not all(isinstance(trial, Mapping) for trial in space):
        raise UserError(
            "get_space() returns a list: each of its trials must be {key: value}, where {} changes "
            "nothing, and there must be one or more."
        )
    for number, trial in enumerate(space):
        for key, value in trial.items():
            _check_tried_key(key, config)
            _check_value(key, value, usual[key])
        if trial in space[:number]:
            raise UserError(f"get_space() lists trial {number} twice: {dict(trial)}.")
    return [dict(trial) for trial in space]


def _check_tried_key(key: Any, config: Config) -> None:
    if not isinstance(key, str):
        raise UserError(f"get_space(): the key {key!r} must be text, as 'optim.learning_rate'.")
    try:
        check_key(key)
    except UserError as error:
        raise UserError(f"get_space(): {error}") from error
    usual = flatten(config)
    why = _FIXED.get(key)
    if key not in usual:
        why = f"it is of another model than model.name = {config.model.name}"
    elif why is None and key not in identity(config):
        why = "it does not change what is trained, or it is where the corpus comes from"
    if why:
        raise UserError(f"get_space(): {key} cannot be tried: {why}.")


def _check_values(key: str, values: Any, usual: Any) -> None:
    if isinstance(values, list):
        if not values:
            raise UserError(f"get_space(): the list of {key} is empty.")
        for i, value in enumerate(values):
            _check_value(key, value, usual)
            if value in values[:i]:
                raise UserError(f"get_space(): the list of {key} holds {value!r} twice.")
        return
    if not isinstance(values, tuple) or len(values) != 3 or values[2] not in _SCALES:
        raise UserError(
            f"get_space(): {key} has {values!r}: must be a list of values, or (low, high, 'log' or "
            "'linear')."
        )
    low, high, scale = values
    if type(usual) not in (int, float):
        raise UserError(f"get_space(): {key} is no number, so it has no range: give a list.")
    for bound in (low, high):
        _check_value(key, bound, usual)
    if not low < high:
        raise UserError(f"get_space(): {key} has the range {low} to {high}: low must be smaller.")
    if scale == "log" and low <= 0:
        raise UserError(
            f"get_space(): {key} has the range {low} to {high} on a logarithmic scale, which needs "
            "a low above 0."
        )


def _check_value(key: str, value: Any, usual: Any) -> None:
    kind = type(usual)
    kinds = {float: (float, int), tuple: (tuple, list)}.get(kind, (kind,))
    if type(value) not in kinds:
        raise UserError(f"get_space(): {key} = {value!r}: must be of type {kind.__name__}.")
    if kind is float and not math.isfinite(value):
        raise UserError(f"get_space(): {key} = {value!r}: must be finite.")


def _draw_value(values: Any, usual: Any, rng: np.random.Generator) -> Any:
    """Draws a value of a list, or of a range: a float with four digits, whole numbers inclusive."""
    if isinstance(values, list):
        return values[int(rng.integers(len(values)))]
    low, high, scale = values
    is_whole = type(usual) is int
    end = high + 1 if is_whole else high  # each whole number has the interval up to the next one
    if scale == "log":
        drawn = math.exp(rng.uniform(math.log(low), math.log(end)))
    else:
        drawn = rng.uniform(low, end)
    if is_whole:
        return min(max(math.floor(drawn), low), high)
    return min(max(float(f"{drawn:.4g}"), float(low)), float(high))
