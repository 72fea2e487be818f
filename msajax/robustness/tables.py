"""Prints robustness curves for people: one metric, at some of the rates."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from msajax.results import legend
from msajax.results.tables import metric_table

_SHOWN = (0.0, 0.3, 0.6, 0.9)
_WORDS = {
    "drop_modality": "{} lost",
    "drop_pair": "{} lost",
    "drop_steps": "steps of {} lost",
    "noise": "noise on {}",
}


def describe(curve: Mapping[str, Any]) -> str:
    """Puts what a curve is of into words."""
    return _WORDS[curve["kind"]].format(" and ".join(curve["modalities"]))


def print_robustness(report: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a robustness.json: a row for each curve."""
    metric, seeds = report["metric"], len(report["seeds"])
    arrow = "↑" if legend.larger_is_better(metric) else "↓"
    table = metric_table(
        f"test {metric} {arrow} as inputs get worse: {seeds} random seed{'s' * (seeds > 1)}, "
        f"{report['samples']} samples",
        *(*(f"{rate:g}" for rate in _SHOWN), "95 % interval", "area"),
        first="rate",
    )
    for curve in report["curves"]:
        points = {point["rate"]: point["metrics"][metric] for point in curve["points"]}
        cells = [legend.show(metric, points[rate]["mean"]) for rate in _SHOWN]
        cells += [legend.show(metric, *points[_SHOWN[-1]]["ci95"], form="[{}, {}]")]
        cells += [legend.show(metric, curve["area"][metric])]
        table.add_row(Text(describe(curve)), *map(Text, cells))
    console.print(table)
    console.print()
    for line in _terms(report["curves"], report["draws"]):
        console.print(Text(line, style="dim"))


def _terms(curves: Sequence[Mapping[str, Any]], draws: int) -> list[str]:
    kinds = {curve["kind"] for curve in curves}
    lines = ["rate: the share of samples that lose the modality"]
    lines[0] += ", or of its valid steps that are lost" * ("drop_steps" in kinds)
    lines[0] += "; of noise, its deviation in deviations of training" * ("noise" in kinds)
    lines.append(
        f"means over random seeds and {draws} draws; 95 % interval: at rate {_SHOWN[-1]:g}, by "
        "bootstrap over samples; area: the mean over rates of 0 to 0.9"
    )
    return lines
