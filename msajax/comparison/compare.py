"""Compares runs on the same samples: differences of every metric, what chance gives, in words."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.comparison.contenders import open_runs
from msajax.comparison.statistics import (
    Pair,
    difference_intervals,
    holm,
    interval_over_seeds,
    paired_tests,
    smallest_p,
)
from msajax.errors import UserError
from msajax.metrics.measures import Metric
from msajax.results import legend

FIRST, SECOND, NOISE = "first is better", "second is better", "under the noise"
EQUAL, UNDEFINED = "equal", "undefined"

_LEVEL = 0.05


def compare(
    runs: Sequence[str], split: str = "test", convention: str = "", every_pair: bool = False
) -> dict[str, Any]:
    """Compares runs with the first of them, or each with each, on the same samples.

    Args:
        runs: folders of runs that have ended, also in a bucket, or files of predictions.
        split: valid or test, of the folders.
        convention: names of `conventions.CONVENTIONS`; "" for the metrics that suit the labels.
        every_pair: whether to compare each with each.

    Returns:
        `{"runs": [names], "split", "metric", "samples", "unit", "groups", "notes", "pairs"}`.
        A pair is `{"first", "second", "seeds": [S, R], "metrics": {name: values}}`; its values are
        `first` and `second`, the means over random seeds, their `difference`, the intervals
        `ci95_samples`, `ci95_videos` (None where ids name no videos; NaN for too few of them) and
        `ci95_seeds` (None for one seed), `p` of the paired test, `p_holm`, adjusted over all pairs,
        and the `verdict`.

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
    pairs = [
        {
            "first": runs[i],
            "second": runs[j],
            "seeds": [len(opened.scores[i]), len(opened.scores[j])],
            "metrics": measure_pair(opened.pair(i, j), opened.task.reported),
        }
        for i, j in combined
    ]
    for name, metric in opened.task.reported.items():
        judge([pair["metrics"][name] for pair in pairs], metric)
    return {
        "runs": list(runs),
        "split": split,
        "metric": opened.headline,
        "samples": len(opened.samples.labels),
        "unit": opened.unit,
        "groups": opened.groups,
        "notes": opened.notes,
        "pairs": pairs,
    }


def measure_pair(pair: Pair, chosen: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    """Measures the differences of two runs in some metrics: all but what `judge` adds."""
    tests = paired_tests(pair, chosen)
    of_samples = difference_intervals(pair, chosen)
    of_videos = {}
    if pair.unit == "video":
        of_videos = difference_intervals(pair, chosen, pair.group_of)
    found = {}
    for name, metric in chosen.items():
        first, second = pair.values(metric)
        is_defined = bool(np.isfinite(tests[name].difference))
        found[name] = {
            "first": float(first.mean()),
            "second": float(second.mean()),
            "difference": tests[name].difference,
            "ci95_samples": list(of_samples[name]),
            "ci95_videos": list(of_videos[name]) if of_videos else None,
            "ci95_seeds": interval_over_seeds(first, second),
            "p": tests[name].p if is_defined else math.nan,
        }
    return found


def judge(of_pairs: Sequence[dict[str, Any]], metric: Metric) -> None:
    """Adds the adjusted p and the verdict to what `measure_pair` says of one metric, by pair."""
    tested = [values for values in of_pairs if not math.isnan(values["p"])]
    adjusted = iter(holm([values["p"] for values in tested]))
    for values in of_pairs:
        values["p_holm"] = math.nan if math.isnan(values["p"]) else next(adjusted)
        values["verdict"] = _verdict(values, metric.larger_is_better)


def _verdict(values: Mapping[str, Any], larger_is_better: bool) -> str:
    difference = values["difference"]
    if math.isnan(difference):
        return UNDEFINED
    if difference == 0 and values["ci95_samples"] == [0, 0]:
        return EQUAL
    if doubts(values):
        return NOISE
    return FIRST if (difference > 0) == larger_is_better else SECOND


def doubts(values: Mapping[str, Any]) -> list[str]:
    """Lists why a difference might be chance; none where it is distinguishable.

    Args:
        values: those of a metric in the result of `compare`.
    """
    found = []
    if values["p_holm"] > _LEVEL:
        found.append(f"p = {values['p_holm']:.2g}")
    including = [
        name for name, (low, high) in _intervals(values).items() if low <= 0 <= high
    ]  # an undefined one says nothing
    if including:
        verb = "includes" if len(including) == 1 else "include"
        noun = "interval" if len(including) == 1 else "intervals"
        found.append(f"the 95 % {noun} over {' and '.join(including)} {verb} 0")
    return found


def _intervals(values: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """Returns the intervals of a difference that are known, by what varies in them."""
    named = {"samples": "samples", "videos": "videos", "seeds": "random seeds"}
    known = {name: values[f"ci95_{key}"] for key, name in named.items()}
    return {name: interval for name, interval in known.items() if interval is not None}


def resolution(values: Mapping[str, Any]) -> float:
    """Returns the difference under which nothing can be told: the widest interval's half width."""
    widths = [(high - low) / 2 for low, high in _intervals(values).values()]
    return max((width for width in widths if not math.isnan(width)), default=math.nan)


def with_first(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the result of `compare` with another name for the first run."""
    old, *others = report["runs"]
    pairs = [
        pair | {"first": name} if pair["first"] == old else pair for pair in report["pairs"]
    ]
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


def in_words(report: Mapping[str, Any]) -> list[str]:
    """Says what a result of `compare` means, in sentences."""
    several = len(report["pairs"]) > 1
    said = []
    for pair in report["pairs"]:
        of = f"{pair['first']} against {pair['second']}: " if several else ""
        said += [of + sentence for sentence in about_pair(report, pair)]
    return [*report["notes"], *said, *_about_pairing(report)]


def about_pair(report: Mapping[str, Any], pair: Mapping[str, Any]) -> list[str]:
    """Says what is known of one pair of runs."""
    said = [_main_sentence(report, pair), *_other_sentences(report, pair)]
    ones = [run for run, n in zip(_names(pair), pair["seeds"], strict=True) if n == 1]
    if len(ones) == 1:
        several = next(run for run in _names(pair) if run not in ones)
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


def about_all(report: Mapping[str, Any]) -> list[str]:
    """Says how samples were paired and p adjusted, which concerns every pair."""
    return [*report["notes"], *_about_pairing(report)]


def about_groups(report: Mapping[str, Any], tests: int) -> list[str]:
    """Says what limits the paired test of samples in groups.

    Args:
        report: has "groups", how many there are, and "unit", what a group is.
        tests: how many comparisons p is adjusted for.
    """
    said = []
    if tests and (least := smallest_p(report["groups"], tests)) > _LEVEL:
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


def _about_pairing(report: Mapping[str, Any]) -> list[str]:
    said, several = about_groups(report, len(report["pairs"])), len(report["pairs"]) > 1
    if len(report["runs"]) > 2 and len(report["pairs"]) == len(report["runs"]) - 1:
        said.append(
            f"All were compared with the first, {report['runs'][0]}; p is adjusted for "
            f"{len(report['pairs'])} comparisons of each metric (Holm)."
        )
    elif several:
        said.append(
            f"Each was compared with each; p is adjusted for {len(report['pairs'])} comparisons of "
            "each metric (Holm)."
        )
    return said


def _names(pair: Mapping[str, Any]) -> tuple[str, str]:
    return pair["first"], pair["second"]


def _main_sentence(report: Mapping[str, Any], pair: Mapping[str, Any]) -> str:
    """Says what is known of the metric that validation follows."""
    name = report["metric"]
    values = pair["metrics"][name]
    shown = legend.show(name, abs(values["difference"]))
    if values["verdict"] == UNDEFINED:
        return f"{name} is undefined for one of the two."
    if values["verdict"] == EQUAL:
        return f"{name} is the same for both."
    least = smallest_p(report["groups"], len(report["pairs"]))
    if values["verdict"] == NOISE and least > _LEVEL:
        return (
            f"{name}: a difference of {shown}, of which nothing can be shown: exchanging "
            f"{report['groups']} {report['unit']}(s) gives no p below about {least:.2g}."
        )
    if values["verdict"] == NOISE and abs(values["difference"]) >= resolution(values):
        return f"{name}: the difference of {shown} may be chance ({', '.join(doubts(values))})."
    if values["verdict"] == NOISE:
        return (
            f"{name}: the difference of {shown} is under the noise ({', '.join(doubts(values))}). "
            f"With these {report['samples']} samples and these random seeds, a difference under "
            f"about {legend.show(name, resolution(values))} cannot be told from chance."
        )
    better = pair["first"] if values["verdict"] == FIRST else pair["second"]
    which = ", which is more than the noise" if min(pair["seeds"]) > 1 else " on these samples"
    return f"{name}: {better} is better by {shown}{which} (p = {values['p_holm']:.2g})."


def _other_sentences(report: Mapping[str, Any], pair: Mapping[str, Any]) -> list[str]:
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
    return [
        f"{text} {', '.join(by_verdict[verdict])}."
        for verdict, text in texts.items()
        if verdict in by_verdict
    ]
