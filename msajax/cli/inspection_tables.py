"""Prints the report of `inspect` for people."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from msajax.corpus.steps import describe_groups
from msajax.preparation.repairs import describe_reading
from msajax.results import legend

_ROWS = {
    "dtype": "stored as",
    "steps": "stored steps",
    "mask": "mask",
    "named_by": "each step is known by its",
    "absent": "samples without it",
    "all_zero": "samples of zeros",
    "valid_steps": "valid steps (*)",
    "span": "first to last one (*)",
    "leading_padding": "samples padded before",
    "trailing_padding": "samples padded after",
    "inner_holes": "samples with holes",
    "padded_steps": "padded steps",
    "range": "smallest, largest",
    "non_finite": "non-finite values",
    "first_non_finite_columns": "first columns with one",
    "constant_columns": "constant columns",
}


def render(report: dict[str, Any], console: Console) -> None:
    """Prints a report of `inspect_corpus` in plain characters."""

    def say(text: str) -> None:  # Text, so that [brackets] in a path are no markup
        console.print(Text(text))

    splits, known = report["splits"], report["known_corpus"]
    say(f"{report['path']}: {report['format']}\nsha256 {report['digest']}")
    found = ", ".join(f"{size} {name}" for name, size in report["sizes"].items())
    say(f"samples: {found} ({f'the counts of {known}' if known else 'not counts we know'})")
    if report["why"]:
        say(f"format found because {report['why']}")
    if task := report["task"]:
        say(f"labels: {task['kind']} of {', '.join(task['names'])}")
    for what, key in (("repeated ids", "repeated_ids_in"), ("identical samples", "identical")):
        say(f"{what}: {', '.join(f'{count} in {where}' for where, count in report[key].items())}")
    if repaired := describe_reading(report["repairs"]):
        say(f"repaired as it was read: {repaired}")
    aligned = report["alignment"]
    say(f"aligned modalities: {describe_groups(aligned['groups'], aligned['why'])}")
    if aligned["groups"]:
        apart = ", ".join(f"{split['begin_apart']} in {name}" for name, split in splits.items())
        say(f"samples in which they begin at different steps: {apart}")
    stored, prepared = (report["memory"][k] / 2**20 for k in ("stored", "prepared"))
    say(f"memory: {stored:.1f} MiB as stored, {prepared:.1f} MiB prepared")
    for m, width in report["widths"].items():
        facts = {name: split["modalities"].get(m, {}) for name, split in splits.items()}
        cells = {n: {_ROWS[k]: _show(f.get(k)) for k in _ROWS} for n, f in facts.items()}
        kind = f"{width} feature(s) per step" if width else "token ids"
        _print_table(f"{m}: {kind}", cells, console)
    say(
        "(*) min, median, mean, max over the samples that have the modality\n"
        "valid steps are those that the mask keeps; padding before the first and after the last "
        "of them, holes between"
    )
    labels = {name: split["labels"] for name, split in splits.items() if split["labels"]}
    for label in next(iter(labels.values()), ()):
        columns = {name: facts[label] for name, facts in labels.items()}
        bins = sorted({int(b) for f in columns.values() for b in f["histogram"] or ()})
        cells = {name: _label_cells(facts, bins) for name, facts in columns.items()}
        _print_table(f"label: {label}", cells, console)
    for line in _label_legend([facts for split in labels.values() for facts in split.values()]):
        say(line)
    for note in report["notes"]:
        say(f"\nnote: {note}")
    for warning in report["warnings"] or ["none"]:
        say(f"\nwarning: {warning}")


def _show(value: Any) -> str:
    """Puts a fact about a modality into words; every bare float among them is a share."""
    if isinstance(value, dict):
        return ", ".join(f"{v:.4g}" for v in value.values())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return legend.percent(value)
    return "" if value is None else str(value)


def _label_cells(facts: dict[str, Any], bins: list[int]) -> dict[str, str]:
    cells = {"count": str(facts["count"])}
    cells |= {key: f"{facts[key]:.4g}" for key in ("min", "median", "mean", "max", "sd")}
    cells |= {f"rounds to {b}": str((facts["histogram"] or {}).get(str(b), 0)) for b in bins}
    for floor, values in (facts["floors"] or {}).items():
        for metric, value in values.items():
            row = f"floor of {metric}: {legend.FLOORS[floor].name}"
            cells[row] = "" if value is None else legend.show(metric, value)
    return cells


def _label_legend(labels: list[dict[str, Any]]) -> list[str]:
    """Explains the terms that the tables of labels show."""
    lines = []
    if any(facts["histogram"] for facts in labels):
        lines.append("labels are rounded to whole numbers, halves to the even one")
    shown = {floor for facts in labels for floor, found in (facts["floors"] or {}).items() if found}
    meanings = [f"{f.name}: {f.meaning}" for key, f in legend.FLOORS.items() if key in shown]
    if meanings:
        lines.append(f"floors, reached without a model: {'; '.join(meanings)}")
    return lines


def _print_table(title: str, columns: dict[str, dict[str, str]], console: Console) -> None:
    """Prints one column per split; a row that no split fills is left out."""
    table = Table(title=Text(f"\n{title}"), title_justify="left", title_style="bold", box=None)
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in dict.fromkeys(row for cells in columns.values() for row in cells):
        values = [cells.get(row, "") for cells in columns.values()]
        if any(values):
            table.add_row(Text(row), *(Text(value or "-") for value in values))
    console.print(table)
