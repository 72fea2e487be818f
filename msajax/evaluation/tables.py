"""Prints results as tables for people, with units, terms and floors in words."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msajax import legend
from msajax.errors import on_one_line

_SELECTION = ("mae", "cross_entropy")  # what validation minimises by default, by task


def print_results(results: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a results.json: metrics over seeds beside the trivial floors."""
    console.print(results_table(results))
    console.print()
    _print_sentences(against_floors(results), console)
    _print_calibration(results, results["test"], console)
    console.print()
    console.print(terms_grid(results_legend(results)))


def _print_sentences(sentences: list[str], console: Console) -> None:
    for sentence in sentences:  # a line may not end between a number and its unit
        console.print(Text(sentence.replace(" %", "%"), style="bold"))


def _print_calibration(
    results: Mapping[str, Any], metrics: Mapping[str, Any], console: Console
) -> None:
    if sentence := legend.calibration(results, metrics):
        console.print()
        console.print(Text(sentence.replace(" %", "%")))


def print_folds(results: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a folds.json: metrics over the folds, and of all samples together."""
    pooled, seeds = results["pooled"], {seed for of_fold in results["seeds"] for seed in of_fold}
    several = [*(["sd of seeds"] if len(seeds) > 1 else []), "pooled", "95 % interval", "floor"]
    table = metric_table(
        f"{results['model']['name']}, {results['folds']} folds by video, {len(seeds)} random "
        f"seed{'s' * (len(seeds) > 1)}, {pooled['samples']} samples, each tested once",
        *("over folds", *several),
    )
    hardest = _hardest_floors(results)
    for name, values in results["metrics"].items():
        cells = [_mean_sd(name, {"mean": values["mean"], "sd": values["sd_folds"]})]
        cells += [legend.show(name, values["sd_seeds"])] if len(seeds) > 1 else []
        cells += [legend.show(name, pooled["metrics"][name]["value"])]
        cells += [_interval(name, pooled["metrics"][name]), _floor_cell(name, hardest)]
        table.add_row(metric_name(name), *map(Text, cells))
    console.print(table)
    console.print()
    together = {
        name: {"mean": values["value"], "sd": None, "ci95": values["ci95"], "seeds": [None]}
        for name, values in pooled["metrics"].items()
    }
    _print_sentences(
        against_floors({"test": together, "floors": results["floors"]}), console
    )
    first, values = next(iter(results["metrics"].items()))
    of_folds = ", ".join(legend.show(first, value) for value in values["folds"])
    console.print(f"{first} of the folds: {of_folds}")
    console.print()
    terms = [
        directions(together),
        ("±", "standard deviation over the folds, each the mean of its seeds"),
        ("sd of seeds", "standard deviation over random seeds, each the mean of its folds"),
        ("pooled", "of all samples; each has the mean score of models that never saw its video"),
        ("95 % interval", "of pooled, by bootstrap over samples"),
        _floor_term(hardest),
        *legend.metric_lines(together),
    ]
    terms = [term for term in terms if term[0] != "sd of seeds" or len(seeds) > 1]
    console.print(terms_grid(terms))


def print_summary(title: str, summary: Mapping[str, Any], console: Console) -> None:
    """Prints metrics over seeds of one split or file, and of the score averaged over seeds."""
    metrics, ensemble = summary["metrics"], summary["ensemble"]
    several = _seeds(metrics) > 1
    table = metric_table(title, "mean", "95 % interval", *(["ensemble"] if several else []))
    for name, values in metrics.items():
        cells = [_mean_sd(name, values), _interval(name, values)]
        cells += [legend.show(name, ensemble[name])] if several else []
        table.add_row(metric_name(name), *map(Text, cells))
    console.print(table)
    _print_calibration(summary, metrics, console)
    console.print()
    console.print(terms_grid(_terms(metrics)))


def results_table(results: Mapping[str, Any]) -> Table:
    """Makes the table of a results.json: a row for each metric, within 80 columns."""
    seeds, model, sizes = results["seeds"], results["model"], results["corpus"]["sizes"]
    calibration = results.get("calibration")
    held_out = 0 if calibration is None or calibration["optimistic"] else calibration["samples"]
    several = len(seeds) > 1
    trained = f"{len(seeds)} random seeds" if several else f"random seed {seeds[0]}"
    epochs = ", ".join(map(str, results["best_epoch"]))
    table = metric_table(
        f"{model['name']}, {model['parameters']:,} parameters, {trained}, "
        f"best epoch{'s' if several else ''} {epochs}; {sizes['valid'] - held_out} samples to "
        f"validate, {f'{held_out} to calibrate, ' * bool(held_out)}{sizes['test']} to test",
        *("valid", "test", "95 % interval"),
        *(["ensemble"] if several else []),
        "floor",
    )
    hardest = _hardest_floors(results)
    for name, test in results["test"].items():
        cells = [_mean_sd(name, results["valid"][name]), _mean_sd(name, test)]
        cells.append(_interval(name, test))
        if several:
            cells.append(legend.show(name, results["test_ensemble"][name]))
        table.add_row(metric_name(name), *map(Text, [*cells, _floor_cell(name, hardest)]))
    return table


def results_legend(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists the terms that a results table shows, each with its meaning."""
    return _terms(results["test"], [_floor_term(_hardest_floors(results))])


def against_floors(results: Mapping[str, Any]) -> list[str]:
    """Compares the test means of a results.json with the hardest floors, in sentences.

    They say what a table does not: that a model has learned nothing. They are not stored, as they
    follow from numbers that are. The metric that validation minimises by default has a sentence of
    its own. Of the others those are named that do not beat their floor, and those that do but might
    not on other samples or seeds: the floor lies in the interval, or no further away than the
    seeds' standard deviation.
    """
    found = _comparisons(results)
    sentences = [
        _sentence(comparison) for comparison in found if comparison.metric in _SELECTION
    ]
    others = [comparison for comparison in found if comparison.metric not in _SELECTION]
    if lost := [c for c in others if c.gain <= 0]:
        sentences.append(f"No better than the floor on test: {_listed(lost)}.")
    if unsure := [c for c in others if c.gain > 0 and c.doubt]:
        sentences.append(
            "Better than the floor on test, but not distinguishable from it (it lies in the "
            f"interval or within the seeds' sd): {_listed(unsure)}."
        )
    return sentences


class _Comparison(NamedTuple):
    """Holds a test mean and its hardest floor.

    Attributes:
        metric: the name of the metric.
        mean: its mean over seeds.
        floor: a key of `legend.FLOORS`.
        bound: what that floor reaches.
        gain: by how much the mean is better.
        doubt: why that may be chance; empty if there is no reason to think so.
    """

    metric: str
    mean: float
    floor: str
    bound: float
    gain: float
    doubt: str


def _comparisons(results: Mapping[str, Any]) -> list[_Comparison]:
    found = []
    for name, (floor, bound) in _hardest_floors(results).items():
        test = results["test"][name]
        mean, sd, (low, high) = test["mean"], test["sd"], test["ci95"]
        if not _is_number(mean):
            continue
        gain = mean - bound if legend.larger_is_better(name) else bound - mean
        doubts = []
        if _is_number(low) and low <= bound <= high:
            doubts.append(f"the 95 % interval {_interval(name, test)} includes it")
        if _is_number(sd) and gain <= sd:
            doubts.append(f"the seeds' sd is {legend.show(name, sd)}")
        found.append(_Comparison(name, mean, floor, bound, gain, " and ".join(doubts)))
    return found


def _sentence(comparison: _Comparison) -> str:
    metric, mean, floor, bound, gain, doubt = comparison
    mean, bound = legend.show(metric, mean), legend.show(metric, bound)
    bound = f"{bound} of the {legend.FLOORS[floor].name}"
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


def _listed(comparisons: list[_Comparison]) -> str:
    return ", ".join(
        f"{c.metric} {legend.show(c.metric, c.mean)} (floor {legend.show(c.metric, c.bound)})"
        for c in comparisons
    )


def _hardest_floors(results: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """Finds the floor that is hardest to beat of each metric: `{metric: (floor, value)}`."""
    hardest: dict[str, tuple[str, float]] = {}
    for floor, values in results["floors"].items():
        for name, value in values.items():
            sign = 1 if legend.larger_is_better(name) else -1
            if _is_number(value) and (
                name not in hardest or sign * value > sign * hardest[name][1]
            ):
                hardest[name] = floor, value
    return hardest


def _floor_cell(metric: str, hardest: Mapping[str, tuple[str, float]]) -> str:
    if metric not in hardest:
        return ""
    floor, value = hardest[metric]
    return f"{legend.show(metric, value)} ({legend.FLOORS[floor].mark})"


def _floor_term(hardest: Mapping[str, tuple[str, float]]) -> tuple[str, str]:
    """Explains the floors that a table shows."""
    used = [floor for floor, _ in hardest.values()]
    floors = [legend.FLOORS[floor] for floor in legend.FLOORS if floor in used]
    marks = "; ".join(f"({floor.mark}) {floor.meaning}" for floor in floors) or "unknown"
    return "floor", f"the best without a model: {marks}"


def directions(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Explains the arrows behind the names of metrics."""
    arrows = dict.fromkeys(_arrow(name) for name in metrics)
    meanings = {"↓": "smaller is better", "↑": "larger is better"}
    return ", ".join(arrows), ", ".join(meanings[arrow] for arrow in arrows)


def _terms(
    metrics: Mapping[str, Any], more: list[tuple[str, str]] | None = None
) -> list[tuple[str, str]]:
    """Lists the terms of a table of metrics over seeds, in the order of its columns and rows."""
    seeds = _seeds(metrics)
    terms = [directions(metrics)]
    if seeds > 1:
        terms += [
            ("±", f"standard deviation over the {seeds} random seeds"),
            ("95 % interval", "of the mean over seeds, by bootstrap over samples"),
            ("ensemble", "metrics of the score averaged over seeds"),
        ]
    else:
        terms.append(
            ("95 % interval", "by bootstrap over samples; of one random seed no spread is known")
        )
    terms += [*(more or []), *legend.metric_lines(metrics)]
    if not all(_is_number(values["mean"]) for values in metrics.values()):
        terms.append(("-", "undefined"))
    return terms


def _seeds(metrics: Mapping[str, Any]) -> int:
    return len(next(iter(metrics.values()))["seeds"])


def metric_table(title: str, *columns: str) -> Table:
    """Makes a table that fits 80 columns: long names of metrics are folded, numbers never cut."""
    table = Table(
        title=Text(title),  # no markup: names and paths may hold [brackets]
        title_justify="left",
        box=rich.box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    table.add_column("metric", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def terms_grid(terms: list[tuple[str, str]]) -> Table:
    """Makes a legend: terms and their meanings."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(max_width=30)
    grid.add_column()
    for term, meaning in terms:
        grid.add_row(Text(term, style="dim"), Text(meaning, style="dim"))
    return grid


def metric_name(metric: str) -> Text:
    """Writes a metric and an arrow in its better direction; its output's name may be anything."""
    metric = on_one_line(metric)
    return Text(f"{metric} {_arrow(metric)}")


def _arrow(metric: str) -> str:
    return "↑" if legend.larger_is_better(metric) else "↓"


def _mean_sd(metric: str, values: Mapping[str, Any]) -> str:
    mean, sd = values["mean"], values["sd"]
    if sd is None:
        return legend.show(metric, mean)
    return legend.show(metric, mean, sd, form="{} ± {}")


def _interval(metric: str, values: Mapping[str, Any]) -> str:
    return legend.show(metric, *values["ci95"], form="[{}, {}]")


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
