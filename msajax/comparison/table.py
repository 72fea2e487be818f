"""Measures many runs for one table, and marks the best where the paired test tells them apart."""

import math
from collections.abc import Sequence
from typing import Any

from msajax.comparison.compare import FIRST, about_groups, judge, measure_pair
from msajax.comparison.contenders import Opened, open_runs, short_names
from msajax.errors import UserError

BEST, ALIKE = "best", "not told from the best"


def tabulate(
    runs: Sequence[str], split: str = "test", convention: str = "", metrics: Sequence[str] = ()
) -> dict[str, Any]:
    """Measures runs on the same samples, and tests which of them are best in each metric.

    Of every metric the run with the best mean is compared with each other run, as
    `comparison.compare` compares two; p is adjusted over these comparisons (Holm).

    Args:
        runs: folders of runs that have ended, also in a bucket, or files of predictions.
        split: valid or test, of the folders.
        convention: names of `conventions.CONVENTIONS`; "" for the metrics that suit the labels.
        metrics: names of those that are shown, in their order; () for all.

    Returns:
        `{"split", "samples", "unit", "groups", "comparisons", "metrics": [names], "rows",
        "notes"}`, with the largest number of comparisons that a p is adjusted for. A row is
        `{"run", "path", "seeds", "metrics": {name: values}}`: the path as given, and its last parts
        that tell it from the others; the number of random seeds; and of each metric `mean` and `sd`
        over them (None for one seed), `p_holm`, against the best run (None for that run and where
        the metric is undefined), and `mark`: `BEST` of a run that is distinguishably better than
        every other; else `ALIKE` of the best and of those that cannot be told from it; "" of all
        others.

    Raises:
        UserError: if no run is named, a metric is unknown, or the runs are not of the same samples.
    """
    if not runs:
        raise UserError("A table needs runs: name their folders, or files of predictions.")
    opened = open_runs(runs, split, convention)
    reported = opened.task.reported
    if unknown := [name for name in metrics if name not in reported]:
        raise UserError(
            f"metrics = {unknown[0]!r} is none of those of these runs: {', '.join(reported)}."
        )
    measured = {name: _over_seeds(opened, name) for name in metrics or reported}
    comparisons = _mark(opened, measured)
    names = short_names(runs)
    content = {
        "split": split,
        "samples": len(opened.samples.labels),
        "unit": opened.unit,
        "groups": opened.groups,
        "comparisons": comparisons,
        "metrics": list(measured),
        "rows": [
            {
                "run": names[run],
                "path": run,
                "seeds": len(opened.scores[k]),
                "metrics": {name: of_runs[k] for name, of_runs in measured.items()},
            }
            for k, run in enumerate(runs)
        ],
    }
    return content | {"notes": [*opened.notes, *about_groups(content, comparisons)]}


def _over_seeds(opened: Opened, name: str) -> list[dict[str, Any]]:
    """Measures a metric of every run: mean and deviation over random seeds, without marks."""
    found = []
    for place in range(len(opened.scores)):
        values, _ = opened.pair(place, place).values(opened.task.reported[name])
        sd = float(values.std(ddof=1)) if len(values) > 1 else None
        found.append({"mean": float(values.mean()), "sd": sd, "p_holm": None, "mark": ""})
    return found


def _mark(opened: Opened, measured: dict[str, list[dict[str, Any]]]) -> int:
    """Marks the best runs of every metric; returns the most comparisons that one needed."""
    best_of: dict[str, int] = {}
    needed: dict[tuple[int, int], list[str]] = {}  # metrics by the pairs that are compared in them
    for name, of_runs in measured.items():
        known = [k for k, values in enumerate(of_runs) if math.isfinite(values["mean"])]
        if len(known) < 2:
            continue
        sign = 1 if opened.task.reported[name].larger_is_better else -1
        best_of[name] = max(known, key=lambda k: sign * of_runs[k]["mean"])
        for other in known:
            if other != best_of[name]:
                needed.setdefault((best_of[name], other), []).append(name)
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in best_of}
    for (best, other), names in needed.items():
        chosen = {name: opened.task.reported[name] for name in names}
        for name, values in measure_pair(opened.pair(best, other), chosen).items():
            found[name][other] = values
    for name, by_other in found.items():
        judge(list(by_other.values()), opened.task.reported[name])
        for other, values in by_other.items():
            measured[name][other]["p_holm"] = values["p_holm"]
        alike = [other for other, values in by_other.items() if values["verdict"] != FIRST]
        for place in (best_of[name], *alike):
            measured[name][place]["mark"] = ALIKE if alike else BEST
    return max(map(len, found.values()), default=0)
