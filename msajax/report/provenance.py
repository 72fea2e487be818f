"""Makes the panels of how results came about: training, corpus, settings, versions, command."""

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msajax.config.reading import changed_settings
from msajax.corpus.corpus import describe_making
from msajax.preparation.lost import LOSSES, REPAIRS, describe, describe_counts
from msajax.report import charts
from msajax.report.content import Content, reading, selection
from msajax.report.page import Panel, shortened
from msajax.results import findings, legend
from msajax.runs.manifest import METRICS, RUN

_MOST_SEEDS = 50  # rows of a table by seed
_MOST_NAMED = 10  # seeds and epochs in a sentence
_VALUE = 300  # characters of a setting
_RUN_FILE, _RESTORE = f"{RUN} of the run", "Restore it from a copy."


def training(content: Content) -> Panel:
    """Makes the panel of learning curves, which says what metrics.jsonl lacks of them."""
    found = content.results
    name, metric = selection(found), findings.headline(found)
    best = dict(zip(found["seeds"], found["best_epoch"], strict=True))
    of_run = {*best, *(failure["seed"] for failure in found["failed"])}
    lines = [line for line in content.lines if line["seed"] in of_run]

    # In words how long the run trained, then curves, and what every seed has reached.
    said = (
        f"Each random seed trained for at most {found.get('epochs', max(found['best_epoch']))} "
        f"epochs; the epoch of its best {name} on validation was chosen, which a mark shows."
    )
    seconds = found.get("timing", {}).get("train_seconds")
    if seconds is not None:
        said += f" All took {_duration(seconds)}."
    if skipped := sum(line["skipped"] for line in lines):
        said += f" {skipped} steps were skipped because their numbers were not finite."

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
        sentence=said,
        notes=_missing_lines(content.lines, best, of_run),
        charts=[chart for chart in drawn if chart],
        metric=metric,
        rows=rows[:_MOST_SEEDS],
        left=max(0, len(rows) - _MOST_SEEDS),
    )


def _missing_lines(
    lines: Sequence[Mapping[str, Any]], best: Mapping[int, int], of_run: set[int]
) -> list[str]:
    """Says what metrics.jsonl lacks, as after a line was deleted, and what in it is left out.

    Args:
        best: the chosen epoch of each random seed in the results.
        of_run: the run's random seeds, also those that have failed.
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
    left = (count or len(numbers)) - len(numbers[:_MOST_NAMED])
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + f" and {left} more" * (left > 0)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 2:
        return f"{seconds:.0f} seconds"
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


def corpus(content: Content) -> Panel:
    """Makes the panel of the corpus: what was repaired in each split, which steps are not read."""
    of_run = content.results["corpus"]
    clip, repaired = content.settings["data"]["clip"], []
    with reading(_RUN_FILE, _RESTORE):
        for where, counts in content.run["repairs"].items():
            if where == "corpus":
                where, said = "the file", describe_counts(counts)
            else:
                parts = (describe(counts, REPAIRS, clip), describe(counts, LOSSES))
                said = "; ".join(filter(None, parts))
            if said:
                repaired.append((where, said))
    facts = [("path", of_run["path"]), ("format", of_run["format"]), ("SHA-256", of_run["digest"])]
    for embedded in of_run.get("embeddings", []):
        told = ", ".join(f"{key} {value}" for key, value in embedded.items() if key != "modality")
        facts.append((f"{embedded['modality']} embedded by", told))
    if manifest := of_run.get("manifest"):
        facts.append(("made of recordings by", describe_making(manifest)))
    return Panel.of(
        "Corpus",
        "corpus.html",
        facts=facts,
        sizes=[(name, f"{size:,}") for name, size in of_run["sizes"].items()],
        modalities=[
            (name, width or "token ids", "read" if name in of_run["modalities"] else "left out")
            for name, width in of_run["widths"].items()
        ],
        repaired=repaired,
    )


def settings(content: Content) -> Panel:
    """Makes the panel of settings that differ from the defaults."""
    rows = [
        (key, _shown(value), _shown(default))
        for key, (value, default) in changed_settings(content.settings).items()
    ]
    return Panel.of("Settings", "settings.html", rows=rows)


def _shown(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return shortened(", ".join(map(str, value)) or "none", _VALUE)
    if isinstance(value, bool):
        return str(value).lower()
    return shortened(str(value), _VALUE) or "none"


def repeat(content: Content) -> Panel:
    """Makes the panel of versions, of the machine, and of the command that repeats the run."""
    run = content.run
    with reading(_RUN_FILE, _RESTORE):
        versions = [("msajax", run["msajax"]), ("Python", run["python"]), *run["packages"].items()]
        machine = f"{run['devices']} × {run['device_kind']}"
        machine += f" ({run['backend']})" * (run["backend"] != run["device_kind"])
        machine += f", {run['processes']} processes" if run["processes"] > 1 else ""
        machine += f", {run['cpus']} CPU cores" if run["cpus"] else ""
        versions += [("version of the numerics", run["numerics"]), ("devices", machine)]
        for name, of in (run.get("initial") or {}).items():
            told = ", ".join(f"{key} {value}" for key, value in of.items())
            versions.append((f"began from: {name}", shortened(told, _VALUE)))
        # A run that a Python program has started has no command.
        program, *arguments = run["command"] or [""]
        command = ""
        if os.path.basename(program) in ("main.py", "__main__.py", "msajax"):
            command = shlex.join(["python", "-m", "msajax.main", *arguments])
    return Panel.of("Repeat it", "repeat.html", versions=versions, command=command)
