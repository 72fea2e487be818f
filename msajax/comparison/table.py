"""Measures many runs for one table, and marks the best where the paired test tells them apart."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from msajax.comparison.compare import FIRST, about_groups, judge, measure_pair
from msajax.comparison.contenders import Opened, open_runs, short_names
from msajax.comparison.output import Forms, csv_text, latex, require_output
from msajax.errors import UserError, on_one_line
from msajax.files import write_json, write_text
from msajax.results import legend
from msajax.results.findings import mean_sd
from msajax.results.tables import MetricTable, directions, metric_name, terms_grid

BEST, ALIKE = "best", "not told from the best"


def tabulate(
    runs: Sequence[str], split: str = "test", convention: str = "", metrics: Sequence[str] = ()
) -> dict[str, Any]:
    """Measures runs on the same samples, and tests which of them are best in each metric.

    Of every metric the run with the best mean is compared with each other run, as
    `comparison.compare` compares two; p is adjusted over these comparisons (Holm).

    Args:
        runs: folders of runs that have ended, also in a bucket, or files of predictions.
        split: valid or test, of the folders.
        convention: names of `conventions.CONVENTIONS`; "" for the metrics that suit the labels.
        metrics: names of those that are shown, in their order; () for all.

    Returns:
        `{"split", "samples", "unit", "groups", "comparisons", "metrics": [names], "rows",
        "notes"}`, with the largest number of comparisons that a p is adjusted for. A row is
        `{"run", "path", "seeds", "metrics": {name: values}}`: the path as given, and its last parts
        that tell it from the others; the number of random seeds; and of each metric `mean` and `sd`
        over them (None for one seed), `p_holm`, against the best run (None for that run and where
        the metric is undefined), and `mark`: `BEST` of a run that is distinguishably better than
        every other; else `ALIKE` of the best and of those that cannot be told from it; "" of all
        others.

    Raises:
        UserError: if no run is named, a metric is unknown, or the runs are not of the same samples.
    """
    if not runs:
        raise UserError("A table needs runs: name their folders, or files of predictions.")
    opened = open_runs(runs, split, convention)
    reported = opened.task.reported
    if unknown := [name for name in metrics if name not in reported]:
        raise UserError(
            f"metrics = {unknown[0]!r} is none of those of these runs: {', '.join(reported)}."
        )
    measured = {name: _over_seeds(opened, name) for name in metrics or reported}
    comparisons = _mark(opened, measured)
    names = short_names(runs)
    content = {
        "split": split,
        "samples": len(opened.samples.labels),
        "unit": opened.unit,
        "groups": opened.groups,
        "comparisons": comparisons,
        "metrics": list(measured),
        "rows": [
            {
                "run": names[run],
                "path": run,
                "seeds": len(opened.scores[k]),
                "metrics": {name: of_runs[k] for name, of_runs in measured.items()},
            }
            for k, run in enumerate(runs)
        ],
    }
    return content | {"notes": [*opened.notes, *about_groups(content, comparisons)]}


def _over_seeds(opened: Opened, name: str) -> list[dict[str, Any]]:
    """Measures a metric of every run: mean and deviation over random seeds, without marks."""
    found = []
    for place in range(len(opened.scores)):
        values, _ = opened.pair(place, place).values(opened.task.reported[name])
        sd = float(values.std(ddof=1)) if len(values) > 1 else None
        found.append({"mean": float(values.mean()), "sd": sd, "p_holm": None, "mark": ""})
    return found


def _mark(opened: Opened, measured: dict[str, list[dict[str, Any]]]) -> int:
    """Marks the best runs of every metric; returns the most comparisons that one needed."""
    best_of: dict[str, int] = {}
    needed: dict[tuple[int, int], list[str]] = {}  # metrics by the pairs that are compared in them
    for name, of_runs in measured.items():
        known = [k for k, values in enumerate(of_runs) if math.isfinite(values["mean"])]
        if len(known) < 2:
            continue
        sign = 1 if opened.task.reported[name].larger_is_better else -1
        best_of[name] = max(known, key=lambda k: sign * of_runs[k]["mean"])
        for other in known:
            if other != best_of[name]:
                needed.setdefault((best_of[name], other), []).append(name)
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in best_of}
    for (best, other), names in needed.items():
        chosen = {name: opened.task.reported[name] for name in names}
        for name, values in measure_pair(opened.pair(best, other), chosen).items():
            found[name][other] = values
    for name, by_other in found.items():
        judge(list(by_other.values()), opened.task.reported[name])
        for other, values in by_other.items():
            measured[name][other]["p_holm"] = values["p_holm"]
        alike = [other for other, values in by_other.items() if values["verdict"] != FIRST]
        for place in (best_of[name], *alike):
            measured[name][place]["mark"] = ALIKE if alike else BEST
    return max(map(len, found.values()), default=0)


_FIRST_LINE = r"% A table of msajax; it needs \usepackage{booktabs}."
FORMS = Forms(
    "table of runs", ("rows", "comparisons"), "run,path,seeds,", {".tex": _FIRST_LINE}
)
_MARKS = {BEST: " *", ALIKE: " †", "": ""}
_LATEX_ARROWS = {True: r"$\uparrow$", False: r"$\downarrow$"}


def print_run_table(content: Mapping[str, Any], console: Console) -> None:
    """Prints the result of `run_table.tabulate`, what its marks mean, and its terms."""
    seeds = {row["seeds"] for row in content["rows"]}
    header = ["run", *(["seeds"] if len(seeds) > 1 else [])]
    names = [metric_name(name).plain for name in content["metrics"]]
    table = MetricTable(f"{_samples(content)}{_of_seeds(seeds)}", [*header, *names])
    columns = {name: _cells(content, name) for name in content["metrics"]}
    for k, row in enumerate(content["rows"]):
        cells = [row["run"], *([str(row["seeds"])] if len(seeds) > 1 else [])]
        table.add_row(*map(Text, cells), *(columns[name][k] for name in columns))
    console.print(table)
    console.print()
    for sentence in content["notes"]:
        console.print(Text(on_one_line(sentence).replace(" %", "%"), style="bold"))
    console.print(terms_grid(_terms(content, max(seeds))))


def _samples(content: Mapping[str, Any]) -> str:
    """Says which samples the metrics are of."""
    of = f" of {content['groups']} videos" * (content["unit"] == "video")
    return f"{content['split']}, {content['samples']} samples{of}"


def _of_seeds(seeds: set[int]) -> str:
    """Says how many random seeds every run has, if all have as many."""
    (count, *others) = sorted(seeds)
    return "" if others else f", {count} random seed{'s' * (count > 1)}"


def _cells(content: Mapping[str, Any], name: str) -> list[Text]:
    """Writes a column, in which marks do not move the numbers that stand above each other."""
    values = [row["metrics"][name] for row in content["rows"]]
    marks = [_MARKS[of["mark"]] for of in values]
    room = max(map(len, marks))
    return [
        Text(mean_sd(name, of) + mark.ljust(room), style="bold" if of["mark"] == BEST else "")
        for of, mark in zip(values, marks, strict=True)
    ]


def _terms(content: Mapping[str, Any], seeds: int) -> list[tuple[str, str]]:
    """Lists the terms that the table shows, each with its meaning."""
    terms = [directions(content["metrics"])]
    if seeds > 1:
        terms.append(("±", "standard deviation over random seeds"))
    marks = _marks(content)
    terms += [("*", "the best, told apart from all others")] if BEST in marks else []
    terms += [("†", "the best, and what is not told apart from it")] if ALIKE in marks else []
    terms += [("told apart", _how(content))] if marks & {BEST, ALIKE} else []
    terms += legend.metric_lines(content["metrics"])
    if any(math.isnan(of["mean"]) for row in content["rows"] for of in row["metrics"].values()):
        terms.append(("-", "undefined"))
    return terms


def _how(content: Mapping[str, Any]) -> str:
    """Says by which test the best of a column is told from the others."""
    count, unit = content["comparisons"], content["unit"]
    holm = f", adjusted for {count} comparisons of a metric (Holm)" * (count > 1)
    return (
        "two runs are told apart if a test that exchanges their predictions "
        f"{unit} by {unit} gives a p of 0.05 or less{holm}, and no 95 % interval of "
        "their difference holds 0"
    )


def run_rows(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists a table's values, a row for each run, ready for a data frame."""
    found = []
    for row in content["rows"]:
        listed = {key: row[key] for key in ("run", "path", "seeds")}
        for name, values in row["metrics"].items():
            listed |= {f"{name}_{key}": values[key] for key in ("mean", "sd", "p_holm", "mark")}
        found.append(listed)
    return found


def run_table_latex(content: Mapping[str, Any]) -> str:
    """Writes a table of runs as an environment of LaTeX with a caption, in the form of booktabs."""
    names, lines = content["metrics"], []
    for row in content["rows"]:
        cells = [_latex_cell(name, row["metrics"][name]) for name in names]
        lines.append(" & ".join([latex(row["run"]), *cells]) + r" \\")
    heads = [_latex_head(name) for name in names]
    return "\n".join(
        [
            _FIRST_LINE,
            *(f"% {on_one_line(note)}" for note in content["notes"]),
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_caption(content)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(names)}}}",
            r"\toprule",
            " & ".join(["", *heads]) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_head(name: str) -> str:
    unit = r" (\%)" if legend.show(name, 0.5).endswith("%") else ""
    return f"{latex(name)}{unit} {_LATEX_ARROWS[legend.larger_is_better(name)]}"


def _latex_cell(name: str, values: Mapping[str, Any]) -> str:
    """Writes a mean and its deviation without the unit, bold or with a dagger where marked."""
    shown = latex(mean_sd(name, values).removesuffix(" %"))
    shown = shown.replace("-", "$-$").replace("±", r"$\pm$")
    if values["mark"] == BEST:
        return rf"\textbf{{{shown}}}"
    return rf"{shown}\rlap{{$^{{\dagger}}$}}" if values["mark"] == ALIKE else shown


def _caption(content: Mapping[str, Any]) -> str:
    """Says in LaTeX what a table is of, and what its marks mean."""
    counts = [row["seeds"] for row in content["rows"]]
    over = f"mean and standard deviation over {counts[0]} random seeds"
    if len(set(counts)) > 1:
        each = ", ".join(f"{row['run']} {row['seeds']}" for row in content["rows"])
        over = f"mean and standard deviation over random seeds ({each})"
    elif counts[0] == 1:
        over = "of one random seed"
    said = [latex(f"Metrics on {_samples(content)}: {over}.")]
    marks = _marks(content)
    said += ["Bold: the best, told apart from all others."] if BEST in marks else []
    if ALIKE in marks:
        said.append(r"$^{\dagger}$: the best, and what is not told apart from it.")
    said += [latex(f"T{_how(content)[1:]}.")] if marks & {BEST, ALIKE} else []
    return " ".join(said)


def _marks(content: Mapping[str, Any]) -> set[str]:
    """Returns the marks that are there."""
    return {of["mark"] for row in content["rows"] for of in row["metrics"].values()}


def write_run_table(path: str, content: Mapping[str, Any]) -> None:
    """Writes the result of `run_table.tabulate` as .json, .csv or .tex, which the ending says.

    Raises:
        UserError: for another ending, or a file that cannot be written.
    """
    require_output(path, (), FORMS)
    ending = os.path.splitext(path)[1]
    if ending == ".json":
        write_json(path, content)
    else:
        write_text(
            path, csv_text(run_rows(content)) if ending == ".csv" else run_table_latex(content)
        )
