"""Compares runs on the same samples: every metric, what chance gives, and what that means.

`compare` sets runs beside each other two by two, `tabulate` all in one table whose best are marked.
Both open, pair and test in the same way.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.comparison.contenders import Opened, open_runs, short_names
from msajax.comparison.statistics import (
    LEVEL,
    difference_intervals,
    holm,
    interval_over_seeds,
    paired_tests,
    smallest_p,
)
from msajax.errors import UserError
from msajax.results import legend
from msajax.results.measure import deviation

FIRST, SECOND, NOISE = "first is better", "second is better", "under the noise"
EQUAL, UNDEFINED = "equal", "undefined"
BEST, ALIKE = "best", "not told from the best"  # marks of a table


def compare(
    runs: Sequence[str], split: str = "test", convention: str = "", every_pair: bool = False
) -> dict[str, Any]:
    """Compares runs with the first of them, or each with each, on the same samples.

    Args:
        runs: folders of runs that have ended, also in a bucket, or files of predictions.
        split: valid or test, of the folders.
        convention: names of `conventions.CONVENTIONS`; "" for the metrics that suit the labels.

    Returns:
        `{"runs": [names], "split", "task", "metric", "samples", "unit", "groups", "notes",
        "pairs"}`. A pair is `{"first", "second", "seeds": [S, R], "metrics": {name: values}}`, with
        the values of `compare_pairs`.

    Raises:
        UserError: if fewer than two runs are named, or they are not of the same samples.
    """
    if len(runs) < 2:
        raise UserError(
            "Comparing needs two runs or more: folders of runs, or files of predictions."
        )
    opened = open_runs(runs, split, convention)
    combined = list(itertools.combinations(range(len(runs)), 2))
    if not every_pair:
        combined = combined[: len(runs) - 1]
    compared = compare_pairs(opened, dict.fromkeys(combined, list(opened.task.reported)))
    return {
        "runs": list(runs),
        "split": split,
        "task": opened.task.kind,
        "metric": opened.headline,
        "samples": len(opened.samples.labels),
        "unit": opened.unit,
        "groups": opened.groups,
        "notes": opened.notes,
        "pairs": [
            {
                "first": runs[i],
                "second": runs[j],
                "seeds": [len(opened.scores[i]), len(opened.scores[j])],
                "metrics": metrics,
            }
            for (i, j), metrics in compared.items()
        ],
    }


def compare_pairs(
    opened: Opened, wanted: Mapping[tuple[int, int], Sequence[str]]
) -> dict[tuple[int, int], dict[str, dict[str, Any]]]:
    """Compares runs two by two.

    Args:
        wanted: the metrics in which two runs, by their places, are compared.

    Returns:
        `{pair: {metric: values}}`. The values are `first` and `second`, the means over random
        seeds, their `difference`, the intervals `ci95_samples`, `ci95_videos` (None where ids name
        no videos; NaN for too few of them) and `ci95_seeds` (None for one seed), `p` of the paired
        test, `p_holm`, adjusted over the pairs that are compared in the metric, and the `verdict`.
    """
    found: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for places, names in wanted.items():
        pair = opened.pair(*places)
        chosen = {name: opened.task.reported[name] for name in names}
        tests = paired_tests(pair, chosen)
        of_samples, of_videos = difference_intervals(pair, chosen), {}
        if pair.unit == "video":
            of_videos = difference_intervals(pair, chosen, pair.group_of)
        found[places] = {}
        for name, metric in chosen.items():
            first, second = pair.values(metric)
            difference = tests[name].difference
            found[places][name] = {
                "first": float(first.mean()),
                "second": float(second.mean()),
                "difference": difference,
                "ci95_samples": list(of_samples[name]),
                "ci95_videos": list(of_videos[name]) if of_videos else None,
                "ci95_seeds": interval_over_seeds(first, second),
                "p": tests[name].p if np.isfinite(difference) else math.nan,
            }
    for name, metric in opened.task.reported.items():
        of_pairs = [metrics[name] for metrics in found.values() if name in metrics]
        adjusted = iter(holm([of["p"] for of in of_pairs if not math.isnan(of["p"])]))
        for values in of_pairs:
            values["p_holm"] = math.nan if math.isnan(values["p"]) else next(adjusted)
            values["verdict"] = _verdict(values, metric.larger_is_better)
    return found


def _verdict(values: Mapping[str, Any], larger_is_better: bool) -> str:
    difference = values["difference"]
    if math.isnan(difference):
        return UNDEFINED
    if difference == 0 and values["ci95_samples"] == [0, 0]:
        return EQUAL
    if _doubts(values):
        return NOISE
    return FIRST if (difference > 0) == larger_is_better else SECOND


def _doubts(values: Mapping[str, Any]) -> list[str]:
    """Lists why a difference might be chance; none where it is distinguishable."""
    found = []
    if values["p_holm"] > LEVEL:
        found.append(f"p = {values['p_holm']:.2g}")
    including = [
        name for name, (low, high) in known_intervals(values).items() if low <= 0 <= high
    ]  # an undefined one says nothing
    if including:
        verb = "includes" if len(including) == 1 else "include"
        noun = "interval" if len(including) == 1 else "intervals"
        found.append(f"the 95 % {noun} over {' and '.join(including)} {verb} 0")
    return found


def known_intervals(values: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """Returns the intervals of a difference that are known, by what varies in them."""
    named = {"samples": "samples", "videos": "videos", "seeds": "random seeds"}
    known = {name: values[f"ci95_{key}"] for key, name in named.items()}
    return {name: interval for name, interval in known.items() if interval is not None}


def tabulate(
    runs: Sequence[str], split: str = "test", convention: str = "", metrics: Sequence[str] = ()
) -> dict[str, Any]:
    """Measures runs on the same samples, and tests which of them are best in each metric.

    In every metric the run with the best mean is compared with each other run, as `compare`
    compares two; p is adjusted over these comparisons (Holm).

    Args:
        runs: folders of runs that have ended, also in a bucket, or files of predictions.
        split: valid or test, of the folders.
        convention: names of `conventions.CONVENTIONS`; "" for the metrics that suit the labels.
        metrics: names of those that are shown, in their order; () for all.

    Returns:
        `{"split", "task", "samples", "unit", "groups", "comparisons", "metrics": [names], "rows",
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
    # Measure every run, and find the best of each metric, with which all others are compared.
    measured: dict[str, list[dict[str, Any]]] = {}  # a metric of every run
    best: dict[str, int] = {}
    wanted: dict[tuple[int, int], list[str]] = {}  # metrics by the pairs that are compared in them
    for name in metrics or reported:
        measured[name] = []
        for place in range(len(runs)):
            values = opened.values(place, reported[name])
            of_run = {"mean": float(values.mean()), "sd": deviation(values)}
            measured[name].append(of_run | {"p_holm": None, "mark": ""})
        sign = 1 if reported[name].larger_is_better else -1
        means = {k: sign * of["mean"] for k, of in enumerate(measured[name])}
        means = {k: mean for k, mean in means.items() if math.isfinite(mean)}
        if len(means) < 2:
            continue
        best[name] = max(means, key=means.get)
        for other in means:
            if other != best[name]:
                wanted.setdefault((best[name], other), []).append(name)
    # A best run is marked as such unless one of the others cannot be told from it.
    comparisons, told_apart = dict.fromkeys(best, 0), dict.fromkeys(best, True)
    for (first, second), compared in compare_pairs(opened, wanted).items():
        for name, values in compared.items():
            comparisons[name] += 1
            measured[name][second]["p_holm"] = values["p_holm"]
            if values["verdict"] != FIRST:
                told_apart[name] = False
                measured[name][first]["mark"] = measured[name][second]["mark"] = ALIKE
    for name, place in best.items():
        if told_apart[name]:
            measured[name][place]["mark"] = BEST
    names = short_names(runs)
    content = {
        "split": split,
        "task": opened.task.kind,
        "samples": len(opened.samples.labels),
        "unit": opened.unit,
        "groups": opened.groups,
        "comparisons": max(comparisons.values(), default=0),
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
    return content | {"notes": [*opened.notes, *about_groups(content, content["comparisons"])]}


def with_first(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the result of `compare` with another name for the first run."""
    old, *others = report["runs"]
    pairs = [pair | {"first": name} if pair["first"] == old else pair for pair in report["pairs"]]
    return {**report, "runs": [name, *others], "pairs": pairs}


def read_back(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of `compare` from JSON, where what is undefined has become null."""

    def known(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [math.nan if end is None else end for end in value]
        return math.nan if value is None and not key.startswith("ci95") else value

    pairs = [
        pair
        | {
            "metrics": {
                name: {key: known(key, value) for key, value in values.items()}
                for name, values in pair["metrics"].items()
            }
        }
        for pair in report["pairs"]
    ]
    return {**report, "pairs": pairs}


# --- in words ---


def in_words(report: Mapping[str, Any]) -> list[str]:
    """Says what a result of `compare` means, in sentences."""
    several = len(report["pairs"]) > 1
    said = []
    for pair in report["pairs"]:
        of = f"{pair['first']} against {pair['second']}: " if several else ""
        said += [of + sentence for sentence in about_pair(report, pair)]
    return [*report["notes"], *said, *about_pairing(report)]


def about_pair(report: Mapping[str, Any], pair: Mapping[str, Any]) -> list[str]:
    """Says what is known of one pair of runs."""
    said = [_main_sentence(report, pair)]
    by_verdict: dict[str, list[str]] = {}
    for name, values in pair["metrics"].items():
        if name != report["metric"]:
            by_verdict.setdefault(values["verdict"], []).append(name)
    texts = {
        FIRST: f"{pair['first']} is better in",
        SECOND: f"{pair['second']} is better in",
        NOISE: "Under the noise:",
        EQUAL: "Equal:",
        UNDEFINED: "Undefined:",
    }
    said += [
        f"{text} {', '.join(by_verdict[verdict])}."
        for verdict, text in texts.items()
        if verdict in by_verdict
    ]
    names = pair["first"], pair["second"]
    ones = [run for run, n in zip(names, pair["seeds"], strict=True) if n == 1]
    if len(ones) == 1:
        several = next(run for run in names if run not in ones)
        said.append(
            f"{several} is the mean over its random seeds, each measured alone. If the scores in "
            f"{ones[0]} are means over seeds, they are an ensemble, which is usually better than "
            f"its members: compare it with that of {several}, the column score of its predictions."
        )
    if ones:
        said.append(
            f"Of one random seed ({' and '.join(ones)}) it is not known how much training again "
            "would change."
        )
    return said


def _main_sentence(report: Mapping[str, Any], pair: Mapping[str, Any]) -> str:
    name = report["metric"]
    values = pair["metrics"][name]
    verdict, size = values["verdict"], abs(values["difference"])
    if verdict == UNDEFINED:
        return f"{name} is undefined for one of the two."
    if verdict == EQUAL:
        return f"{name} is the same for both."
    shown, doubts = legend.show(name, size), ", ".join(_doubts(values))
    if verdict != NOISE:
        better = pair["first"] if verdict == FIRST else pair["second"]
        which = ", which is more than the noise" if min(pair["seeds"]) > 1 else " on these samples"
        return f"{name}: {better} is better by {shown}{which} (p = {values['p_holm']:.2g})."
    least = smallest_p(report["groups"], len(report["pairs"]))
    if least > LEVEL:
        return (
            f"{name}: a difference of {shown}, of which nothing can be shown: exchanging "
            f"{report['groups']} {report['unit']}(s) gives no p below about {least:.2g}."
        )
    # Nothing can be told under half the width of the widest interval.
    widths = [(high - low) / 2 for low, high in known_intervals(values).values()]
    widest = max((width for width in widths if not math.isnan(width)), default=math.nan)
    if size >= widest:
        return f"{name}: the difference of {shown} may be chance ({doubts})."
    return (
        f"{name}: the difference of {shown} is under the noise ({doubts}). "
        f"With these {report['samples']} samples and these random seeds, a difference under "
        f"about {legend.show(name, widest)} cannot be told from chance."
    )


def about_pairing(report: Mapping[str, Any]) -> list[str]:
    """Says what samples were exchanged, and how p was adjusted, which concerns every pair."""
    pairs = len(report["pairs"])
    said = about_groups(report, pairs)
    if len(report["runs"]) > 2 and pairs == len(report["runs"]) - 1:
        said.append(
            f"All were compared with the first, {report['runs'][0]}; p is adjusted for "
            f"{pairs} comparisons of each metric (Holm)."
        )
    elif pairs > 1:
        said.append(
            f"Each was compared with each; p is adjusted for {pairs} comparisons of each metric "
            "(Holm)."
        )
    return said


def about_groups(report: Mapping[str, Any], tests: int) -> list[str]:
    """Says what limits the paired test in groups, by the number of tests that p is adjusted for."""
    said = []
    if tests and (least := smallest_p(report["groups"], tests)) > LEVEL:
        said.append(
            f"Only {report['groups']} {report['unit']}(s): the smallest p that can come out is "
            f"about {least:.2g}, and nothing can be shown."
        )
    if report["unit"] == "video" and report["groups"] == 1:
        said.append(
            "By their ids all samples are of one video, as name[3], name$_$3 and name_3 say; of no "
            "video are bare numbers, and numbers behind train, valid or test."
        )
    if report["unit"] == "sample":
        said.append("The ids name no videos: samples were exchanged one by one.")
    return said
