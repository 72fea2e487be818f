"""Prints a sweep as tables for people: its best trials, its winner, what mattered."""

import math
from collections.abc import Mapping
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msajax.results import legend
from msajax.results.tables import metric_name, print_results

_SHOWN = 10  # trials
_MEANINGS = {
    "epochs": "ran to the end",
    "patience": "no seed improved",
    "median": "stopped by the median",
    "failed": "not finite",
    "refused": "refused",
}


def print_sweep(content: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a sweep.json."""
    trials, metric = content["trials"], content["metric"]
    if metric is not None:
        console.print(_trials_table(content))
        console.print()
    counts = {how: sum(t["ended"] == how for t in trials) for how in _MEANINGS}
    told = [f"{count} {_MEANINGS[how]}" for how, count in counts.items() if count]
    console.print(f"{len(trials)} trials: {', '.join(told)}.")
    if content["rank_correlations"]:
        found = content["rank_correlations"].items()
        ordered = sorted(found, key=lambda item: -abs(item[1]))
        text = ", ".join(f"{key} {value:+.2f}" for key, value in ordered)
        console.print(Text(f"Rank correlation of settings with valid {metric}: {text}."))
    winner = content["winner"]
    if winner is None:
        return
    console.print(Text(winner["sentence"], style="bold"))
    if results := winner.get("results"):
        fresh = results["valid"][metric]["mean"]
        console.print(
            f"On fresh seeds its valid {metric} is {legend.show(metric, fresh)}, where the trial "
            f"had {legend.show(metric, winner['score'])}. The winner's run:"
        )
        console.print()
        print_results(results, console)


def _trials_table(content: Mapping[str, Any]) -> Table:
    """Makes the table of the best trials; those that were stopped stand below the others."""
    metric, sign = content["metric"], -1 if content["larger_is_better"] else 1
    table = Table(
        title=Text(f"the best of {len(content['trials'])} trials, on validation"),
        title_justify="left",
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("trial", justify="right")
    table.add_column("settings", overflow="fold", ratio=1, min_width=16)
    table.add_column(metric_name(metric), justify="right", overflow="fold", max_width=26)
    for column in ("epochs", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", overflow="fold", max_width=16)
    winner = content["winner"]

    def order(trial: Mapping[str, Any]) -> tuple[bool, float]:
        score = trial["score"]
        is_stopped = trial["ended"] not in ("epochs", "patience")
        return is_stopped, math.inf if score is None else sign * score

    for trial in sorted(content["trials"], key=order)[:_SHOWN]:
        settings = ", ".join(
            f"{key.partition('.')[2]} {_value(v)}" for key, v in trial["settings"].items()
        )
        remark = _MEANINGS[trial["ended"]] if order(trial)[0] else ""
        if winner and trial["trial"] == winner["trial"]:
            remark = "the best"
        elif trial["told_apart"] is False:
            remark = "not told apart"
        form = "{}" if trial["sd"] is None else "{} ± {}"
        values = (trial["score"],) if trial["sd"] is None else (trial["score"], trial["sd"])
        cells = [legend.show(metric, *values, form=form), str(trial["epochs"])]
        cells += [f"{trial['seconds']:.0f}", remark]
        table.add_row(str(trial["trial"]), Text(settings or "nothing changed"), *map(Text, cells))
    return table


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
