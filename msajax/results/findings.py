"""Says in sentences what results amount to: what a model reaches beside the trivial floors."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from msajax.results import legend
from msajax.tasks import TASKS
from msajax.tasks.base import Floor

# What validation minimises by default.
_SELECTION = tuple(dict.fromkeys(task.usual_selection for task in TASKS.values()))


def headline(results: Mapping[str, Any]) -> str:
    """Names the metric that a report puts first: what the task minimises by default."""
    known = [*_SELECTION, *results["test"]]
    return next(name for name in known if name in results["test"])


def finding(results: Mapping[str, Any], over: str = "") -> str:
    """Says in one sentence what was found on test, in the words of `against_floors`.

    It names the headline metric's mean, its spread over random seeds, its 95 % interval, and
    whether the hardest floor is beaten, where there is one.

    Args:
        over: says what the mean is taken over, if not random seeds.
    """
    name = headline(results)
    test, seeds = results["test"][name], len(results["test"][name]["seeds"])
    over = over or (f"over {seeds} random seeds" if seeds > 1 else "of one random seed")
    subject = f"{mean_sd(name, test)} {over} (95 % interval {interval(name, test)})"
    for beside in _beside_floors(results):
        if beside.metric == name:
            return _sentence(beside, subject)
    return f"Test {name} is {subject}; no trivial floor is known for it."


def noise_of_seeds(results: Mapping[str, Any]) -> str:
    """Says how far another such run may lie from this one by random seeds alone; "" if unknown.

    The difference of the means of two runs of S seeds has the deviation sigma * sqrt(2 / S), and sd
    estimates sigma with S - 1 degrees of freedom: Student's t gives the 95 % bound.
    """
    name = headline(results)
    sd, seeds = results["test"][name]["sd"], len(results["test"][name]["seeds"])
    if not is_number(sd):
        return ""
    from scipy.special import stdtrit  # here: it takes a while to load

    bound = float(stdtrit(seeds - 1, 0.975)) * sd * math.sqrt(2 / seeds)
    return (
        f"Another run like this one, of {seeds} other random seeds, may differ from it by up to "
        f"about {legend.show(name, bound)} in test {name} by the seeds alone (95 %): a smaller "
        "difference is noise."
    )


def against_floors(results: Mapping[str, Any]) -> list[str]:
    """Compares the test means of a results.json with the hardest floors, in sentences.

    They say what a table does not: that a model has learned nothing. They are not stored, as they
    follow from numbers that are. The metric that validation minimises by default has a sentence of
    its own. Of the others those are named that do not beat their floor, and those that do but might
    not on other samples or seeds: the floor lies in the interval, or no further away than the
    seeds' standard deviation.
    """
    found = _beside_floors(results)
    sentences = [_sentence(beside) for beside in found if beside.metric in _SELECTION]
    others = [beside for beside in found if beside.metric not in _SELECTION]
    if lost := [c for c in others if c.gain <= 0]:
        sentences.append(f"No better than the floor on test: {_list_metrics(lost)}.")
    if unsure := [c for c in others if c.gain > 0 and c.doubt]:
        sentences.append(
            "Better than the floor on test, but not distinguishable from it (it lies in the "
            f"interval or within the seeds' sd): {_list_metrics(unsure)}."
        )
    return sentences


class _BesideFloor(NamedTuple):
    """Sets a mean beside its hardest floor; `doubt`, if any, says why the gain may be chance."""

    metric: str
    mean: float
    floor: Floor
    bound: float
    gain: float
    doubt: str


def _beside_floors(results: Mapping[str, Any]) -> list[_BesideFloor]:
    found = []
    for name, (floor, bound) in hardest_floors(results).items():
        test = results["test"][name]
        mean, sd, (low, high) = test["mean"], test["sd"], test["ci95"]
        if not is_number(mean):
            continue
        gain = mean - bound if legend.larger_is_better(name) else bound - mean
        doubts = []
        if is_number(low) and low <= bound <= high:
            doubts.append(f"the 95 % interval {interval(name, test)} includes it")
        if is_number(sd) and gain <= sd:
            doubts.append(f"the seeds' sd is {legend.show(name, sd)}")
        found.append(_BesideFloor(name, mean, floor, bound, gain, " and ".join(doubts)))
    return found


def _sentence(beside: _BesideFloor, subject: str = "") -> str:
    """Says whether a floor is beaten; `subject` stands for the bare mean."""
    metric, mean, floor, bound, gain, doubt = beside
    mean, bound = subject or legend.show(metric, mean), legend.show(metric, bound)
    bound = f"{bound} of the {floor.name}"
    if gain <= 0:
        return (
            f"Test {metric} {mean} does not beat the {bound}: by this measure, an answer that "
            "never changes is at least as good as the model."
        )
    if doubt:
        return (
            f"Test {metric} {mean} is better than the {bound}, but not distinguishable from it: "
            f"{doubt}."
        )
    return f"Test {metric} {mean} beats the {bound}."


def _list_metrics(found: list[_BesideFloor]) -> str:
    return ", ".join(
        f"{c.metric} {legend.show(c.metric, c.mean)} (floor {legend.show(c.metric, c.bound)})"
        for c in found
    )


def hardest_floors(results: Mapping[str, Any]) -> dict[str, tuple[Floor, float]]:
    """Finds each metric's hardest floor in a results.json or a folds.json: `(floor, value)`."""
    words = legend.task_of(results, results.get("test") or results["metrics"]).floor_words
    hardest: dict[str, tuple[Floor, float]] = {}
    for key, values in results["floors"].items():
        for name, value in values.items():
            sign = 1 if legend.larger_is_better(name) else -1
            if is_number(value) and (name not in hardest or sign * value > sign * hardest[name][1]):
                hardest[name] = words[key], value
    return hardest


def mean_sd(metric: str, values: Mapping[str, Any]) -> str:
    """Formats a "mean" and the "sd" over seeds, as `0.868 ± 0.029`; without one, the mean."""
    mean, sd = values["mean"], values["sd"]
    if sd is None:
        return legend.show(metric, mean)
    return legend.show(metric, mean, sd, form="{} ± {}")


def interval(metric: str, values: Mapping[str, Any]) -> str:
    """Formats a "ci95", as `[0.820, 0.922]`."""
    return legend.show(metric, *values["ci95"], form="[{}, {}]")


def is_number(value: float | None) -> bool:
    """Tells whether a value of results.json is defined."""
    return value is not None and math.isfinite(value)
