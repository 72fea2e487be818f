"""Shows comparisons and tables of runs: on a terminal, as JSON, as CSV and as LaTeX."""

import csv
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from msajax.comparison.compare import ALIKE, BEST, EQUAL, FIRST, NOISE, SECOND, UNDEFINED, in_words
from msajax.errors import UserError, on_one_line
from msajax.files import (
    has_keys,
    refuse_inside,
    require_file_place,
    require_replaceable,
    write_json,
    write_text,
)
from msajax.metrics.table import row_of
from msajax.results import legend
from msajax.results.findings import mean_sd
from msajax.results.tables import (
    MetricTable,
    directions,
    metric_name,
    metric_table,
    print_sentences,
    terms_grid,
)
from msajax.runs.manifest import refuse_in_run

BETTER = {  # what a table of differences says of each verdict
    FIRST: "first",
    SECOND: "second",
    NOISE: "noise",
    EQUAL: "equal",
    UNDEFINED: "-",
}
_SIGNS = {BEST: " *", ALIKE: " †", "": ""}  # behind the numbers of a table of runs
_IN_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}
_IN_FORMULA = {"-": "$-$", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}


# --- two runs ---


def print_comparison(report: Mapping[str, Any], console: Console) -> None:
    """Prints the result of `compare`: a table for each pair, and what they mean."""
    for pair in report["pairs"]:
        seeds = " and ".join(map(str, pair["seeds"]))
        names = [on_one_line(pair[key]) for key in ("first", "second")]
        columns, rows = comparison_cells(report, pair)
        title = f"first: {names[0]}\nsecond: {names[1]}\n{_samples(report)}, {seeds} random seeds"
        console.print(metric_table(title, columns, rows))
        console.print()
    print_sentences(in_words(report), console)
    console.print()
    console.print(terms_grid(comparison_legend(report)))


def _samples(report: Mapping[str, Any]) -> str:
    of = f" of {report['groups']} videos" * (report["unit"] == "video")
    return f"{report['samples']} samples{of}"


def comparison_cells(
    report: Mapping[str, Any], pair: Mapping[str, Any]
) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the columns of a pair's table beside the metric, and their cells by metric."""
    several, found = len(report["pairs"]) > 1, {}
    columns = ["first", "second", "difference", f"over {report['unit']}s", "p"]
    for name, values in pair["metrics"].items():
        interval = values["ci95_videos"] or values["ci95_samples"]
        cells = [legend.show(name, values["first"]), legend.show(name, values["second"])]
        cells.append(legend.signed(name, values["difference"]))
        is_known = not math.isnan(interval[0])
        cells.append(legend.show(name, *interval, form="[{}, {}]") if is_known else "-")
        cells += [p_value(values["p"])] + ([p_value(values["p_holm"])] if several else [])
        found[name] = [*cells, BETTER[values["verdict"]]]
    return [*columns, *(["p Holm"] if several else []), "better"], found


def comparison_legend(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists the terms that a table of differences shows, each with its meaning."""
    metrics, unit = report["pairs"][0]["metrics"], report["unit"]
    terms = [
        directions(metrics),
        ("difference", "first less second, each the mean over its random seeds"),
        (f"over {unit}s", f"95 % interval of the difference, by bootstrap over {unit}s"),
        (
            "p",
            f"share of 10,000 exchanges of the two runs' predictions of a {unit}, all seeds "
            "together, that give a difference as large",
        ),
    ]
    if len(report["pairs"]) > 1:
        terms.append(("p Holm", "p, adjusted for the number of comparisons of a metric"))
    better = "noise: p is above 0.05, or an interval (over samples, videos or random seeds) holds 0"
    task = legend.task_of(report, metrics)
    return [*terms, ("better", better), *legend.metric_lines(metrics, task)]


def p_value(value: float) -> str:
    """Formats a p-value with four decimals; an undefined one is a dash."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def comparison_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists a comparison's values, a row for each pair and metric, ready for a data frame."""
    found = []
    for pair in report["pairs"]:
        for name, values in pair["metrics"].items():
            row = {"first": pair["first"], "second": pair["second"], "metric": name}
            row |= {"first_mean": values["first"], "second_mean": values["second"]}
            row["difference"] = values["difference"]
            for key in ("ci95_samples", "ci95_videos", "ci95_seeds"):
                low, high = values[key] or (math.nan, math.nan)
                row |= {f"{key}_low": low, f"{key}_high": high}
            row |= {key: values[key] for key in ("p", "p_holm", "verdict")}
            found.append(row)
    return found


_TABULAR = r"metric & first & second & difference & 95\,\% interval over "


def comparison_latex(report: Mapping[str, Any]) -> str:
    """Writes a comparison as a tabular environment of plain LaTeX, each pair a block of rows."""
    lines = [
        *(f"% {on_one_line(sentence)}" for sentence in in_words(report)),
        r"\begin{tabular}{lrrrrr}",
        r"\hline",
        rf"{_TABULAR}{report['unit']}s & $p$ \\",
    ]
    for pair in report["pairs"]:
        against = f"{latex(pair['first'])} against {latex(pair['second'])}"
        lines += [r"\hline", rf"\multicolumn{{6}}{{l}}{{{against}}} \\"]
        for name, values in pair["metrics"].items():
            interval = values["ci95_videos"] or values["ci95_samples"]
            cells = [legend.show(name, values[key]) for key in ("first", "second")]
            cells += [legend.signed(name, values["difference"])]
            cells += [legend.show(name, *interval, form="[{}, {}]"), p_value(values["p_holm"])]
            numbers = list(map(_formula, cells))
            if values["verdict"] in (FIRST, SECOND):
                column = (FIRST, SECOND).index(values["verdict"])
                numbers[column] = rf"\textbf{{{numbers[column]}}}"
            lines.append(_latex_row(latex(name), *numbers))
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


# --- a table of runs ---


def print_run_table(content: Mapping[str, Any], console: Console) -> None:
    """Prints the result of `tabulate`, what its marks mean, and its terms."""
    counts, metrics = {row["seeds"] for row in content["rows"]}, content["metrics"]
    several = len(counts) > 1  # then a column says how many seeds a run has
    seeds = "" if several else f", {max(counts)} random seed{'s' * (max(counts) > 1)}"
    names = [metric_name(name).plain for name in metrics]
    table = MetricTable(
        f"{content['split']}, {_samples(content)}{seeds}",
        ["run", *(["seeds"] if several else []), *names],
    )
    signs = {
        name: [_SIGNS[row["metrics"][name]["mark"]] for row in content["rows"]] for name in metrics
    }
    for k, row in enumerate(content["rows"]):
        cells = [Text(row["run"]), *([Text(str(row["seeds"]))] if several else [])]
        for name in metrics:
            values, room = row["metrics"][name], max(map(len, signs[name]))
            # Marks do not move the numbers that stand above each other.
            text = mean_sd(name, values) + signs[name][k].ljust(room)
            cells.append(Text(text, style="bold" if values["mark"] == BEST else ""))
        table.add_row(*cells)
    console.print(table)
    console.print()
    print_sentences(content["notes"], console)
    terms, marks = [directions(metrics)], _marks(content)
    if max(counts) > 1:
        terms.append(("±", "standard deviation over random seeds"))
    terms += [("*", "the best, told apart from all others")] if BEST in marks else []
    terms += [("†", "the best, and what is not told apart from it")] if ALIKE in marks else []
    terms += [("told apart", _how(content))] if marks else []
    terms += legend.metric_lines(metrics, legend.task_of(content, metrics))
    if any(math.isnan(of["mean"]) for row in content["rows"] for of in row["metrics"].values()):
        terms.append(("-", "undefined"))
    console.print(terms_grid(terms))


def _marks(content: Mapping[str, Any]) -> set[str]:
    return {of["mark"] for row in content["rows"] for of in row["metrics"].values()} - {""}


def _how(content: Mapping[str, Any]) -> str:
    count, unit = content["comparisons"], content["unit"]
    holm = f", adjusted for {count} comparisons of a metric (Holm)" * (count > 1)
    return (
        "two runs are told apart if a test that exchanges their predictions "
        f"{unit} by {unit} gives a p of 0.05 or less{holm}, and no 95 % interval of "
        "their difference holds 0"
    )


def run_table_rows(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists a table's values, a row for each run, ready for a data frame."""
    found = []
    for row in content["rows"]:
        listed = {key: row[key] for key in ("run", "path", "seeds")}
        for name, values in row["metrics"].items():
            listed |= {f"{name}_{key}": values[key] for key in ("mean", "sd", "p_holm", "mark")}
        found.append(listed)
    return found


_FIRST_LINE = r"% A table of msajax; it needs \usepackage{booktabs}."


def run_table_latex(content: Mapping[str, Any]) -> str:
    """Writes a table of runs as an environment of LaTeX with a caption, in the form of booktabs."""
    names, lines = content["metrics"], []
    units = {name: row_of(name).unit for name in names}
    heads = [
        f"{latex(f'{name} ({unit})' if unit else name)} {_IN_FORMULA[legend.arrow(name)]}"
        for name, unit in units.items()
    ]
    for row in content["rows"]:
        cells = []
        for name in names:  # a mean and its deviation without the unit, which stands above
            values = row["metrics"][name]
            shown = _formula(mean_sd(name, values).removesuffix(f" {units[name]}"))
            if values["mark"] == BEST:
                shown = rf"\textbf{{{shown}}}"
            cells.append(shown + r"\rlap{$^{\dagger}$}" * (values["mark"] == ALIKE))
        lines.append(_latex_row(latex(row["run"]), *cells))
    return "\n".join(
        [
            _FIRST_LINE,
            *(f"% {on_one_line(note)}" for note in content["notes"]),
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_caption(content)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(names)}}}",
            r"\toprule",
            _latex_row("", *heads),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _caption(content: Mapping[str, Any]) -> str:
    counts = [row["seeds"] for row in content["rows"]]
    over = f"mean and standard deviation over {counts[0]} random seeds"
    if len(set(counts)) > 1:
        each = ", ".join(f"{row['run']} {row['seeds']}" for row in content["rows"])
        over = f"mean and standard deviation over random seeds ({each})"
    elif counts[0] == 1:
        over = "of one random seed"
    marks = _marks(content)
    said = [latex(f"Metrics on {content['split']}, {_samples(content)}: {over}.")]
    said += ["Bold: the best, told apart from all others."] if BEST in marks else []
    if ALIKE in marks:
        said.append(r"$^{\dagger}$: the best, and what is not told apart from it.")
    said += [latex(f"T{_how(content)[1:]}.")] if marks else []
    return " ".join(said)


# --- files ---


class OutputKind(NamedTuple):
    """Describes the files that hold a comparison, or a table of runs.

    Attributes:
        keys: stand at the top of its JSON.
        csv: the beginning of its CSV.
        markers: text by which files of other forms are known, by their endings.
    """

    what: str
    rows: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    latex: Callable[[Mapping[str, Any]], str]
    # By these a file that was written before is known: it may be replaced.
    keys: tuple[str, ...]
    csv: str
    markers: Mapping[str, str]

    @property
    def endings(self) -> tuple[str, ...]:
        """Returns the endings of such files."""
        return ".json", ".csv", *self.markers

    def wrote(self, path: str) -> bool:
        """Says whether a file is such a one, of the form that its ending says."""
        ending = os.path.splitext(path)[1]
        if ending == ".json":
            return has_keys(path, self.keys)
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            if ending == ".csv":
                return file.read(len(self.csv)) == self.csv
            return self.markers[ending] in file.read()


COMPARISON = OutputKind(
    "comparison",
    comparison_rows,
    comparison_latex,
    ("runs", "pairs"),
    "first,second,metric,first_mean,second_mean,difference,",
    {".tex": _TABULAR, ".html": '<p class="eyebrow">msajax compare</p>'},
)
RUN_TABLE = OutputKind(
    "table of runs",
    run_table_rows,
    run_table_latex,
    ("rows", "comparisons"),
    "run,path,seeds,",
    {".tex": _FIRST_LINE},
)


def require_output(path: str, runs: Sequence[str], kind: OutputKind) -> None:
    """Raises `UserError` for a file of no known ending, in a run, or that holds something else."""
    *endings, last = kind.endings
    if os.path.splitext(path)[1] not in kind.endings:
        raise UserError(f"--output={path} must end in {', '.join(endings)} or {last}.")
    for run in runs:
        refuse_inside(path, run, "run")
    refuse_in_run(path)
    require_file_place(path)
    require_replaceable(path, kind.what, kind.wrote)


def write(
    path: str,
    content: Mapping[str, Any],
    kind: OutputKind,
    page: Callable[[Mapping[str, Any]], str] | None = None,
) -> None:
    """Writes the result of `compare` or of `tabulate` in the form that the file's ending says.

    Args:
        page: writes HTML, for a kind that has it.

    Raises:
        UserError: for another ending, or a file that cannot be written.
    """
    require_output(path, (), kind)
    ending = os.path.splitext(path)[1]
    if ending == ".json":
        write_json(path, content)
    elif ending == ".csv":
        write_text(path, csv_text(kind.rows(content)))
    else:
        write_text(path, (kind.latex if ending == ".tex" else page)(content))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes rows of the same keys as CSV (RFC 4180, 9 significant digits, undefined empty)."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows[0])
    for row in rows:
        cells = ["" if v is None or v != v else v for v in row.values()]  # NaN is undefined
        writer.writerow([v if isinstance(v, str) else f"{v:.9g}" for v in cells])
    return text.getvalue()


def latex(text: str) -> str:
    """Escapes text for LaTeX."""
    return "".join(_IN_LATEX.get(character, character) for character in on_one_line(text))


def _formula(number: str) -> str:
    return "".join(_IN_FORMULA.get(character, character) for character in latex(number))


def _latex_row(*cells: str) -> str:
    return " & ".join(cells) + r" \\"
