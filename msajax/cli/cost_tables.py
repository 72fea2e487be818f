"""Prints what a model costs, and what a run needs of memory and disk."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from msajax.results import legend


def print_model(report: Mapping[str, Any], console: Console) -> None:
    """Prints what `inspect` says of a model: its cost, and the plan of a run."""
    print_cost(report, console)
    console.print(describe_plan(report["plan"]))


def print_cost(report: Mapping[str, Any], console: Console) -> None:
    """Prints the cost report of a model: its parameters, and its FLOPs by stage."""
    sizes = {
        m: f"{m} {s['steps']} x {s['features'] or 'token ids'}"
        for m, s in report["sizes"].items()
    }
    reads = {f"{m}_{part}": size for m, size in sizes.items() for part in ("encoder", "embedding")}
    reads["total"] = ", ".join(sizes.values())
    table = Table(title="parameters", title_justify="left")
    table.add_column("module", overflow="fold")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("reads (steps x features)", overflow="fold")
    for module, count in report["parameters"].items():
        inner = "  " * module.count("/")
        table.add_row(Text(inner + module), f"{count:,}", Text(reads.get(module, "")))
    console.print(table)
    table = Table(title="matrix products of one sample, forward", title_justify="left")
    for column in ("stage", "part", "grows as"):
        table.add_column(column, overflow="fold")
    for column in ("FLOPs", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in report["stages"]:
        share = legend.percent(row["flops"] / report["flops"])
        part = row["part"] + " (*)" * row["counted_once"]
        cells = (row["stage"], part, row["grows_as"] or "-", f"{row['flops']:,}", share)
        table.add_row(*map(Text, cells))  # no markup: names of modules may hold [brackets]
    table.add_row("total", "", "", f"{report['flops']:,}", "")
    console.print(table)
    if maps := sum(row["flops"] for row in report["stages"] if row["part"] == "attention maps"):
        share = legend.percent(maps / report["flops"])
        console.print(
            "Attention maps (S^2 D), which source 002 says dominate the cost, take "
            f"{share} of these FLOPs."
        )
    if any(row["counted_once"] for row in report["stages"]):
        console.print("(*) in a loop of unknown length, of which one pass is counted")
    training, xla = (
        "unknown" if report[key] is None else f"{report[key]:,.0f}"
        for key in ("training_flops", "xla_flops")
    )
    console.print(
        f"Forward and backward: {training} FLOPs in matrix products. "
        f"XLA counts {xla} FLOPs forward, every operation but a loop's body once."
    )


def describe_plan(plan: Mapping[str, Any]) -> str:
    """Puts a plan of memory and disk into words."""
    counts, seeds = plan["parameters"], plan["seeds_at_once"]

    def mib(size: int) -> str:
        return f"{size / 2**20:,.0f} MiB"

    kinds = ", ".join(
        f"{name} {mib(size)}" for name, size in plan["memory"].items() if size and name != "total"
    )
    frozen = f"{counts['frozen']:,} frozen" if counts["frozen"] else "none frozen"
    shared = f", {counts['shared']:,} of them once for all seeds" if counts["shared"] else ""
    disk = plan["disk"]
    return (
        f"A run trains {counts['moving']:,} parameters a random seed ({frozen}{shared}), {seeds} "
        f"seed(s) at once: some {mib(plan['memory']['total'])} of memory ({kinds}) beside the "
        f"data. On disk its checkpoints take {mib(disk['checkpoints'])}, the bundle "
        f"{mib(disk['bundle'])}."
    )
