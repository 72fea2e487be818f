"""Decides about trials from their validation scores: which are stopped, which is the best.

Nothing here trains, and nothing reads a split: scores come from the lines of metrics.jsonl.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST_BEFORE = 3  # trials that must have run before one is stopped by their median
LEVEL = 0.95  # of the intervals of differences between trials


@dataclasses.dataclass(frozen=True)
class SelectionMetric:
    """Names the validation metric of a sweep."""

    name: str
    larger_is_better: bool

    def cost(self, value: float | None) -> float:
        """Turns a value into what is to be small; infinite if it is undefined."""
        if value is None or math.isnan(value):
            return math.inf
        return -value if self.larger_is_better else value

    def shown(self, cost: float) -> str:
        """Writes the value that has this cost."""
        value = -cost if self.larger_is_better else cost
        return f"{value:.4g}" if math.isfinite(value) else "undefined"


@dataclasses.dataclass(frozen=True)
class Ended:
    """Says how a trial has ended.

    Attributes:
        how: epochs (all of them), patience (every random seed has stopped), median (stopped by the
            rule), or failed (numbers that are not finite).
        epoch: the last one, from 1.
    """

    how: str
    epoch: int
    why: str


def best_so_far(
    lines: Sequence[Mapping[str, Any]], seeds: Sequence[int], metric: str
) -> NDArray[np.float64]:
    """Computes the best validation value of every random seed up to every epoch.

    Returns:
        `[S, E]`, for the E epochs that every seed has finished, or has stopped before; NaN where
        the metric is undefined. A seed that has stopped keeps its best value.
    """
    of_seed = {seed: [line for line in lines if line["seed"] == seed] for seed in seeds}
    if not all(of_seed.values()):
        return np.empty((len(seeds), 0))
    lasts = [(own[-1]["epoch"], own[-1]["stopped"]) for own in of_seed.values()]
    running = [epoch for epoch, stopped in lasts if not stopped]
    epochs = min(running) if running else max(epoch for epoch, _ in lasts)
    best = np.full((len(seeds), epochs), np.nan)
    for k, own in enumerate(of_seed.values()):
        for line in own:
            if line["best"] and line["epoch"] <= epochs:
                value = line[f"valid_{metric}"]
                best[k, line["epoch"] - 1 :] = np.nan if value is None else value
    return best


def how_it_ended(
    lines: Sequence[Mapping[str, Any]],
    best: NDArray[np.float64],
    metric: SelectionMetric,
    epochs: int,
    before: Sequence[Sequence[float | None]] | None,
) -> Ended | None:
    """Says how a trial has ended by its lines; None if it has not.

    The median rule (Golovin et al. 2017, Google Vizier) at epoch e: the trial is stopped if the
    mean over its seeds of the best value so far is strictly worse than the median of the same mean
    over the trials before it. A trial that ended before e counts there with its last value, also
    one that the rule has stopped: otherwise the median would be that of the survivors, and the rule
    would become harder with every trial. The first third of the epochs decides nothing, nor do
    fewer than three trials.

    Args:
        best: `[S, E]`, of `best_so_far`.
        epochs: the number that is planned.
        before: the curves of the trials before this one; None turns the rule off.
    """
    stops = {line["seed"]: line["epoch"] for line in lines if line["stopped"]}
    for epoch in range(1, best.shape[1] + 1):
        here = [line for line in lines if line["epoch"] == epoch]
        if failed := [line for line in here if line["failed"]]:
            told = ", ".join(str(line["seed"]) for line in failed)
            why = f"the numbers of random seed {told} are no longer finite in epoch {epoch}"
            return Ended("failed", epoch, why)
        if len(stops) == len(best) and max(stops.values()) <= epoch:
            if epoch >= epochs:
                return Ended("epochs", epoch, f"all {epochs} epochs")
            return Ended("patience", epoch, f"no random seed improved any more at epoch {epoch}")
        if before is None or len(before) < FEWEST_BEFORE or 3 * epoch < epochs:
            continue
        costs = [metric.cost(curve[min(epoch, len(curve)) - 1]) for curve in before]
        own, median = metric.cost(mean(best[:, epoch - 1])), float(np.median(costs))
        if own > median:
            return Ended(
                "median",
                epoch,
                f"{metric.name} {metric.shown(own)} after epoch {epoch}, where the median of the "
                f"{len(before)} trials before it has {metric.shown(median)}",
            )
    return None


def mean(values: NDArray[np.float64]) -> float | None:
    """Averages values; None if one of them is undefined."""
    value = float(np.mean(values))
    return value if math.isfinite(value) else None


def ranked(
    records: Sequence[Mapping[str, Any]], metric: SelectionMetric
) -> list[Mapping[str, Any]]:
    """Sorts the trials that ran to their end from the best to the worst.

    Trials that were stopped or failed are left out; of equal ones the earlier one comes first.
    """
    finished = [
        record
        for record in records
        if record["ended"] in ("epochs", "patience") and record["score"] is not None
    ]
    return sorted(finished, key=lambda record: metric.cost(record["score"]))


def told_apart(winner: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Says whether the random seeds tell a trial from the winner.

    They do if the 95 % interval of the mean difference, paired by seed (Student's t with S - 1
    degrees of freedom), does not hold 0. One seed tells nothing.
    """
    from scipy.special import stdtrit  # here: it takes a while to load

    difference = np.array(other["seeds"], float) - np.array(winner["seeds"], float)
    count = len(difference)
    if count < 2:
        return False
    half = stdtrit(count - 1, (1 + LEVEL) / 2) * np.std(difference, ddof=1) / math.sqrt(count)
    return bool(abs(np.mean(difference)) > half)


def rank_correlations(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Computes Spearman's rank correlation of every setting that is a number with the score.

    A trial that was stopped counts with the score that it had then; a key that not every one of
    these trials sets, or that has one value, is left out, and so are all for fewer than 4 trials.
    """
    from scipy.stats import spearmanr  # here: it takes a while to load

    known = [record for record in records if record["score"] is not None]
    if len(known) < 4:
        return {}
    scores, found = [record["score"] for record in known], {}
    if len(set(scores)) == 1:
        return {}
    for key in known[0]["settings"]:
        values = [record["settings"].get(key) for record in known]
        if all(isinstance(value, int | float) for value in values) and len(set(values)) > 1:
            found[key] = float(spearmanr(values, scores).statistic)
    return found


def trial_line(record: Mapping[str, Any]) -> str:
    """Says in one line how a trial has ended."""
    shown = {
        key: f"{value:.4g}" if isinstance(value, float) else str(value)
        for key, value in record["settings"].items()
    }
    settings = ", ".join(f"{key} {value}" for key, value in shown.items())
    score = ""
    if record["score"] is not None:
        spread = "" if record["sd"] is None else f" ± {record['sd']:.4f}"
        score = f"{record['metric']} {record['score']:.4f}{spread}, "
    return f"trial {record['trial']} ({settings or 'nothing changed'}): {score}{record['why']}"


def winner_sentence(
    best: Mapping[str, Any], apart: Mapping[int, bool], metric: SelectionMetric
) -> str:
    """Says in words which trial is best, and which ones its random seeds do not tell from it."""
    count, spread = len(best["seeds"]), "" if best["sd"] is None else f" ± {best['sd']:.4f}"
    of_seeds = f"{count} random seeds" if count > 1 else "one random seed"
    text = (
        f"Trial {best['trial']} is the best on validation, {metric.name} {best['score']:.4f}"
        f"{spread} with {of_seeds}."
    )
    if not apart:
        return f"{text} No other trial ran to its end."
    if count < 2:
        return f"{text} One seed cannot tell it from any other trial: take --trial_seeds=3 or more."
    same = sorted(number for number, is_apart in apart.items() if not is_apart)
    of_all = f"the {len(apart)} other trials that ran to their end"
    if len(apart) == 1:
        of_all = "the other trial that ran to its end"
    each = f"each of {of_all}" if len(apart) > 1 else of_all
    if not same:
        return f"{text} Its lead over {each} is more than a change of random seeds explains."
    if len(same) < len(apart):
        named = f"trial{'s' * (len(same) > 1)} {', '.join(map(str, same))}"
        each = f"{len(same)} of {of_all} ({named})"
    return (
        f"{text} Its lead over {each} may be chance: the difference changes as much from one "
        "random seed to another."
    )
