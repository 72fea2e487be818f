"""Prints an ablation for people: every subset of modalities, and what each modality is worth."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from msajax.comparison.output import p_value, signed
from msajax.comparison.statistics import smallest_p
from msajax.results import legend
from msajax.results.findings import interval, mean_sd
from msajax.results.tables import metric_table


def print_ablation(report: Mapping[str, Any], console: Console) -> None:
    """Prints the content of an ablation.json: a row for each subset, a sentence a modality."""
    metric = report["metric"]
    arrow = "↑" if legend.larger_is_better(metric) else "↓"
    seeds = max(len(subset["seeds"]) for subset in report["subsets"])
    table = metric_table(
        f"{report['model']}: {metric} {arrow} of every subset of modalities, {seeds} random "
        f"seed{'s' * (seeds > 1)}, {report['samples']} test samples",
        *("valid", "test", "all - it", "95 % interval", "p", "p (Holm)"),
        first="modalities",
    )
    for subset in report["subsets"]:
        cells = [mean_sd(metric, subset[split][metric]) for split in ("valid", "test")]
        if pair := subset["all_against_it"]:
            cells += [signed(metric, pair["difference"])]
            cells += [interval(metric, pair), p_value(pair["p"]), p_value(pair["p_holm"])]
        table.add_row(Text(" + ".join(subset["modalities"])), *map(Text, cells))
    console.print(table)
    console.print()
    for sentence in sentences(report):
        console.print(Text(sentence, style="bold"))
    console.print()
    for line in _terms(report):
        console.print(Text(line, style="dim"))


def sentences(report: Mapping[str, Any]) -> list[str]:
    """Says of each modality whether it helps at all: all modalities against all others."""
    metric, answers = report["metric"], {"better": "yes", "worse": "no, it harms"}
    test = {subset["folder"]: subset["test"][metric]["mean"] for subset in report["subsets"]}
    with_all = legend.show(metric, next(iter(test.values())))
    found = []
    for m, pair in report["modality"].items():
        without = "+".join(other for other in report["modalities"] if other != m)
        answer = answers.get(pair["verdict"], "no difference that these samples can show")
        found.append(
            f"Does {m} help at all? By test {metric}, {answer}: {with_all} with it, "
            f"{legend.show(metric, test[without])} without it (difference "
            f"{signed(metric, pair['difference'])}, 95 % interval {interval(metric, pair)}, "
            f"p = {p_value(pair['p'])}, {p_value(pair['p_holm'])} after Holm)."
        )
    return found


def _terms(report: Mapping[str, Any]) -> list[str]:
    count, unit = len(report["subsets"]) - 1, report["unit"]
    tests = f"{count} tests" if count > 1 else "one test"
    least = smallest_p(report["groups"], count)
    few = [
        f"Only {report['groups']} {unit}s: the smallest p that can come out is {least:.2g}, and "
        "nothing can be shown.",
    ]
    return [
        *(few if least > 0.05 else []),
        f"all - it: the test {report['metric']} of all modalities less that of the subset; its "
        f"interval by bootstrap over {unit}s; p by exchanging whole {unit}s; Holm: for {tests}",
        "Which modalities to use is for validation to say: choosing by the test column is choosing "
        "on test.",
    ]
