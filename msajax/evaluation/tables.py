"""Results as tables for people."""

from collections.abc import Mapping
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_results(results: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a results.json: metrics over seeds beside the trivial floors."""
    seeds = results["seeds"]
    model, sizes = results["model"], results["corpus"]["sizes"]
    title = (
        f"{model['name']}, {model['parameters']:,} parameters, {len(seeds)} random seed(s), "
        f"best epochs {results['best_epoch']}"
    )
    columns = (f"valid (n={sizes['valid']})", f"test (n={sizes['test']})")
    table = _table(title, *columns, "95 % interval", "ensemble", "floor")
    floor_of = _hardest(results["floors"])
    for name, test in results["test"].items():
        low, high = test["ci95"]
        table.add_row(
            Text(name),
            _mean_sd(results["valid"][name]),
            _mean_sd(test),
            f"\\[{_number(low)}, {_number(high)}]",
            _number(results["test_ensemble"][name]),
            _number(floor_of.get(name)) if name in floor_of else "",
        )
    console.print(table)


def print_folds(results: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a folds.json: metrics over the folds, and of all samples together."""
    pooled, seeds = results["pooled"], {seed for of_fold in results["seeds"] for seed in of_fold}
    title = (
        f"{results['model']['name']}, {results['folds']} folds by video, {len(seeds)} random "
        f"seed(s), test splits (n={pooled['samples']} in all)"
    )
    table = _table(title, "over folds", "sd of seeds", "all pooled", "95 % interval", "floor")
    floor_of = _hardest(results["floors"])
    for name, values in results["metrics"].items():
        low, high = pooled["metrics"][name]["ci95"]
        table.add_row(
            Text(name),
            _mean_sd({"mean": values["mean"], "sd": values["sd_folds"]}),
            "" if values["sd_seeds"] is None else _number(values["sd_seeds"]),
            _number(pooled["metrics"][name]["value"]),
            f"\\[{_number(low)}, {_number(high)}]",
            _number(floor_of.get(name)) if name in floor_of else "",
        )
    console.print(table)
    first, values = next(iter(results["metrics"].items()))
    console.print("All pooled: each sample's score is the mean of models that never saw its video.")
    console.print(f"{first} of the folds: {', '.join(map(_number, values['folds']))}")


def _hardest(floors: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    """The floor of each metric; errors alone have several, of which the hardest to beat counts."""
    found: dict[str, float] = {}
    for values in floors.values():
        for name, value in values.items():
            if value is not None:
                found[name] = min(value, found.get(name, value))
    return found


def print_summary(title: str, summary: Mapping[str, Any], console: Console) -> None:
    """Prints metrics over seeds of one split or file, and of the score averaged over seeds."""
    table = _table(title, "mean", "95 % interval", "ensemble")
    for name, values in summary["metrics"].items():
        low, high = values["ci95"]
        table.add_row(
            Text(name),
            _mean_sd(values),
            f"\\[{_number(low)}, {_number(high)}]",
            _number(summary["ensemble"][name]),
        )
    console.print(table)


def print_cost(report: Mapping[str, Any], console: Console) -> None:
    """Prints the cost report of a model: its parameters, and its FLOPs by stage."""
    sizes = {
        m: f"{m} {s['steps']} x {s['features'] or 'token ids'}"
        for m, s in report["sizes"].items()
    }
    reads = {f"{m}_{part}": size for m, size in sizes.items() for part in ("encoder", "embedding")}
    reads["total"] = ", ".join(sizes.values())
    table = Table(title="parameters", title_justify="left")
    table.add_column("module")
    table.add_column("parameters", justify="right")
    table.add_column("reads (steps x features)")
    for module, count in report["parameters"].items():
        inner = "  " * module.count("/")
        table.add_row(Text(inner + module), f"{count:,}", Text(reads.get(module, "")))
    console.print(table)
    table = Table(title="matrix products of one sample, forward", title_justify="left")
    for column in ("stage", "part", "grows as"):
        table.add_column(column)
    table.add_column("FLOPs", justify="right")
    table.add_column("share", justify="right")
    for row in report["stages"]:
        share = f"{row['flops'] / report['flops']:.1%}"
        table.add_row(row["stage"], row["part"], row["grows_as"], f"{row['flops']:,}", share)
    table.add_row("total", "", "", f"{report['flops']:,}", "")
    console.print(table)
    xla = "unknown" if report["xla_flops"] is None else f"{report['xla_flops']:,.0f}"
    console.print(
        f"Forward and backward: {report['training_flops']:,} FLOPs in matrix products. "
        f"XLA counts {xla} FLOPs forward, every operation but a loop's body once."
    )


def _table(title: str, *columns: str) -> Table:
    """A table that fits 80 columns."""
    table = Table(
        title=Text(title),  # no markup: names and paths may hold [brackets]
        title_justify="left",
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("metric", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _mean_sd(values: Mapping[str, Any]) -> str:
    sd = values["sd"]
    return _number(values["mean"]) + ("" if sd is None else f" ± {_number(sd)}")


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.3f}"
