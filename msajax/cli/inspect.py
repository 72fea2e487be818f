"""Runs --mode=inspect: describes what a corpus holds, or what a model costs."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from msajax import announce
from msajax.cli.early_checks import check_sources, load_jax
from msajax.cli.options import Options
from msajax.config import Config, DataConfig, ModelConfig
from msajax.corpus.corpus import describe_making
from msajax.corpus.demands import require_words, say_unread_transcripts, say_what_is_idle
from msajax.corpus.formats import open_own_or_fold
from msajax.corpus.steps import describe_groups
from msajax.errors import OK, UserError
from msajax.preparation import inspection
from msajax.preparation.lost import describe_counts
from msajax.results import legend
from msajax.runtime.targets import Target, parse_target
from msajax.tasks import Task

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


def print_corpus(report: dict[str, Any], console: Console) -> None:
    """Prints a report of `inspect_corpus` in plain characters."""

    def say(text: str) -> None:  # Text, so that [brackets] in a path are no markup
        console.print(Text(text))

    # The corpus as a whole: where it comes from, what is odd, what is aligned, how large it is.
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
    if repaired := describe_counts(report["repairs"]):
        say(f"repaired as it was read: {repaired}")
    if manifest := report["manifest"]:
        say(f"made of {len(manifest['sources'])} recordings by {describe_making(manifest)}")
        for m, columns in manifest["columns"].items():
            units = (f" ({c['unit']})" if c["unit"] else "" for c in columns)
            names = (f"{c['name']}{unit}" for c, unit in zip(columns, units, strict=True))
            say(f"columns of {m}: {', '.join(names)}")
    aligned = report["alignment"]
    say(f"aligned modalities: {describe_groups(aligned['groups'], aligned['why'])}")
    if aligned["groups"]:
        apart = ", ".join(f"{split['begin_apart']} in {name}" for name, split in splits.items())
        say(f"samples in which they begin at different steps: {apart}")
    stored, prepared = (report["memory"][k] / 2**20 for k in ("stored", "prepared"))
    say(f"memory: {stored:.1f} MiB as stored, {prepared:.1f} MiB prepared")
    # A table for each modality, then one for each label, a column a split.
    for m, width in report["widths"].items():
        facts = {name: split["modalities"].get(m, {}) for name, split in splits.items()}
        cells = {n: {_ROWS[k]: _in_words(f.get(k)) for k in _ROWS} for n, f in facts.items()}
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
        cells = {}
        for name, facts in columns.items():
            cells[name] = {"count": str(facts["count"])}
            for key in ("min", "median", "mean", "max", "sd"):
                cells[name][key] = f"{facts[key]:.4g}"
            for b in bins:
                cells[name][f"rounds to {b}"] = str((facts["histogram"] or {}).get(str(b), 0))
            for floor, values in (facts["floors"] or {}).items():
                for metric, value in values.items():
                    row = f"floor of {metric}: {Task.floor_words[floor].name}"
                    cells[name][row] = "" if value is None else legend.show(metric, value)
        _print_table(f"label: {label}", cells, console)
    # The terms that the tables of labels show.
    facts_of_labels = [facts for split in labels.values() for facts in split.values()]
    if any(facts["histogram"] for facts in facts_of_labels):
        say("labels are rounded to whole numbers, halves to the even one")
    floors = [facts["floors"] or {} for facts in facts_of_labels]
    shown = {name for found in floors for name, values in found.items() if values}
    words = Task.floor_words.items()
    if meanings := [f"{f.name}: {f.meaning}" for key, f in words if key in shown]:
        say(f"floors, reached without a model: {'; '.join(meanings)}")
    for note in report["notes"]:
        say(f"\nnote: {note}")
    for warning in report["warnings"] or ["none"]:
        say(f"\nwarning: {warning}")


def _in_words(value: Any) -> str:
    """Puts a fact about a modality into words; every bare float among them is a share."""
    if isinstance(value, dict):
        return ", ".join(f"{v:.4g}" for v in value.values())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return legend.percent(value)
    return "" if value is None else str(value)


def _print_table(title: str, columns: dict[str, dict[str, str]], console: Console) -> None:
    table = Table(title=Text(f"\n{title}"), title_justify="left", title_style="bold", box=None)
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in dict.fromkeys(row for cells in columns.values() for row in cells):
        values = [cells.get(row, "") for cells in columns.values()]
        if any(values):
            table.add_row(Text(row), *(Text(value or "-") for value in values))
    console.print(table)


def print_cost(report: Mapping[str, Any], console: Console) -> None:
    """Prints the cost report of a model: its parameters, and its FLOPs by stage."""
    # Parameters by module, beside the sequences that a module reads.
    sizes = {
        m: f"{m} {s['steps']} x {s['features'] or 'token ids'}" for m, s in report["sizes"].items()
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
    # FLOPs by stage, and what they grow with.
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
    counts, seeds, mib = plan["parameters"], plan["seeds_at_once"], _mib
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


def describe_target(found: Mapping[str, Any]) -> str:
    """Puts into words whether a run fits devices that it is planned for."""
    needed, mib = dict(found["needed"]), _mib
    total = needed.pop("total")
    kinds = ", ".join(f"{name} {mib(size)}" for name, size in needed.items() if size)
    over = ", ".join(f"{name} over {n}" for name, n in found["mesh"].items() if n > 1)
    devices = f"{found['devices']} device(s)" + (f" ({over})" if over else "")
    return (
        f"On {found['target']} the run uses {devices}: each of them holds about {mib(total)} "
        f"({kinds}) of {mib(found['memory'])}. "
        f"The run {'fits' if found['fits'] else 'does not fit'}."
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def run(options: Options, console: Console) -> int:
    """Describes and prints; returns the exit code."""
    options.check_output(("digest", "splits", "memory"), ("parameters", "stages", "plan"))
    config, target = options.config, options["target"]
    target = None if target is None else parse_target(target)
    if options["input"]:
        if target:
            raise UserError("--target asks what a run would need: give --config, not --input.")
        report = inspect(options["input"], config.data, config.model)
    else:
        report = inspect_model(config, target)
    announce.now()
    options.write_output(report)
    if options["input"]:
        print_corpus(report, console)
    else:
        print_cost(report, console)
        console.print(describe_plan(report["plan"]))
        if target:
            console.print(describe_target(report["plan"]["on_target"]))
    return OK


def inspect(
    path: str, data: DataConfig, model: ModelConfig = inspection.ANY_MODEL
) -> dict[str, Any]:
    """Describes a corpus as `inspect_corpus` does; raises `UserError` if it cannot be used."""
    corpus = open_own_or_fold(path, data)
    corpus.verify()
    say_what_is_idle(corpus, Config(data=data), False)
    return inspection.inspect_corpus(corpus, data, model)


def inspect_model(config: Config, target: Target | None = None) -> dict[str, Any]:
    """Describes what a configuration's model costs on its corpus, and on devices of a target.

    The description is strict-JSON-ready. Raises `UserError` if the corpus cannot be used.
    """
    check_sources(config)
    corpus = open_own_or_fold(config.data.path, config.reading)
    require_words(corpus, config.data, config.model)
    load_jax()
    # Imported here: describing a corpus need not wait for JAX.
    from msajax.experiment.run import open_encoders
    from msajax.models.build import build_model
    from msajax.models.cost import cost_report
    from msajax.preparation.apply import check_split
    from msajax.preparation.fit import fit
    from msajax.results import measure
    from msajax.runtime import devices
    from msajax.training.plan import plan, plan_on

    devices.require_devices()
    preparation = fit(corpus, config.reading, config.model, open_encoders(config))
    spec = preparation.spec
    # What training would refuse is refused here, too.
    if "valid" in corpus.headers:
        check_split(corpus.split("valid"), preparation)
    if "test" in corpus.headers:
        measure.check_test(corpus, preparation)
    say_what_is_idle(corpus, config, bool(spec.vocabularies))
    say_unread_transcripts(corpus, config)
    planned = plan(config, spec)
    if target:
        planned["on_target"] = plan_on(target, config, spec, corpus.headers["train"].size)
    return cost_report(build_model(config.model, spec), spec) | {"plan": planned}
