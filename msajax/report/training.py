"""Makes the panel of the training: learning curves, chosen epochs, what is unknown of them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from msajax.report import charts
from msajax.report.content import Content, selection
from msajax.report.page import Panel
from msajax.results import findings, legend
from msajax.runs.manifest import METRICS

_MOST_SEEDS = 50  # rows of a table by seed
_MOST_NAMED = 10  # seeds and epochs in a sentence


def training(content: Content) -> Panel:
    """Makes the panel of learning curves, which says what metrics.jsonl lacks of them."""
    found = content.results
    name, metric = selection(found), findings.headline(found)
    best = dict(zip(found["seeds"], found["best_epoch"], strict=True))
    of_run = {*best, *(failure["seed"] for failure in found["failed"])}
    lines = [line for line in content.lines if line["seed"] in of_run]
    drawn = [
        charts.curves(lines, f"valid_{name}", f"Validation {name}", best),
        charts.curves(lines, "train_loss", "Training loss", best),
    ]
    rows = [
        (seed, epoch, legend.show(metric, valid), legend.show(metric, test))
        for seed, epoch, valid, test in zip(
            found["seeds"],
            found["best_epoch"],
            found["valid"][metric]["seeds"],
            found["test"][metric]["seeds"],
            strict=True,
        )
    ]
    return Panel.of(
        "Training",
        "training.html",
        sentence=_sentence(found, name, lines),
        notes=_notes(content.lines, best, of_run),
        charts=[chart for chart in drawn if chart],
        metric=metric,
        rows=rows[:_MOST_SEEDS],
        left=max(0, len(rows) - _MOST_SEEDS),
    )


def _sentence(
    found: Mapping[str, Any], name: str, lines: Sequence[Mapping[str, Any]]
) -> str:
    """Says how long each random seed trained, and by which metric its epoch was chosen."""
    said = (
        f"Each random seed trained for at most {found.get('epochs', max(found['best_epoch']))} "
        f"epochs; the epoch of its best {name} on validation was chosen, which a mark shows."
    )
    seconds = found.get("timing", {}).get("train_seconds")
    if seconds is not None:
        said += f" All took {_duration(seconds)}."
    if skipped := sum(line["skipped"] for line in lines):
        said += f" {skipped} steps were skipped because their numbers were not finite."
    return said


def _notes(
    lines: Sequence[Mapping[str, Any]], best: Mapping[int, int], of_run: set[int]
) -> list[str]:
    """Says what metrics.jsonl lacks, as after a line was deleted, and what in it is left out.

    Args:
        lines: of the file.
        best: the chosen epoch of each random seed in the results.
        of_run: random seeds of the run, also those that have failed.
    """
    if not lines:
        return [f"{METRICS} is missing or empty: how the training went is not known any more."]
    there: dict[int, set[int]] = {}
    for line in lines:
        there.setdefault(line["seed"], set()).add(line["epoch"])
    said = []
    if without := [seed for seed in best if seed not in there]:
        said.append(f"{METRICS} has no line of random seed {_listed(without)}.")
    for seed in [seed for seed in best if seed in there][:_MOST_SEEDS]:
        last = max(best[seed], *there[seed])
        if lost := last - len(there[seed]):
            first = (epoch for epoch in range(1, last + 1) if epoch not in there[seed])
            named = _listed(list(itertools.islice(first, _MOST_NAMED)), lost)
            chosen = "" if best[seed] in there[seed] else f"; epoch {best[seed]} was chosen"
            said.append(f"{METRICS} has no line of epoch {named} of random seed {seed}{chosen}.")
    if others := [seed for seed in there if seed not in of_run]:
        said.append(
            f"{METRICS} has lines of random seed {_listed(others)}, which the results do not "
            "know: they are left out."
        )
    return said


def _listed(numbers: Sequence[int], count: int = 0) -> str:
    """Lists the first of some numbers, of which there are `count`, or as many as are given."""
    left = (count or len(numbers)) - len(numbers[:_MOST_NAMED])
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + f" and {left} more" * (left > 0)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 2:
        return f"{seconds:.0f} seconds"
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
