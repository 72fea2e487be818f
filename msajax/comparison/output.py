"""Shows comparisons of runs: on a terminal, as CSV, as a table of LaTeX, and as a page."""

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from msajax.comparison import compare
from msajax.errors import UserError, on_one_line
from msajax.files import (
    has_keys,
    refuse_inside,
    require_file_place,
    require_replaceable,
)
from msajax.results import legend
from msajax.results.tables import directions, metric_name, metric_table, terms_grid
from msajax.runs.manifest import refuse_in_run

# By these a comparison that was written before is known: it may be replaced.
_CSV = "first,second,metric,first_mean,second_mean,difference,"
_TABULAR = r"metric & first & second & difference & 95\,\% interval over "
_MARKERS = {".tex": _TABULAR, ".html": '<p class="eyebrow">msajax compare</p>'}
_MARKS = {
    compare.FIRST: "first",
    compare.SECOND: "second",
    compare.NOISE: "noise",
    compare.EQUAL: "equal",
    compare.UNDEFINED: "-",
}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def print_comparison(report: Mapping[str, Any], console: Console) -> None:
    """Prints the result of `comparison.compare`: a table for each pair, and what they mean."""
    for pair in report["pairs"]:
        console.print(_table(report, pair))
        console.print()
    for sentence in compare.in_words(report):
        console.print(Text(on_one_line(sentence).replace(" %", "%"), style="bold"))
    console.print()
    console.print(terms_grid(comparison_legend(report)))


def comparison_legend(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists the terms that a table of differences shows, each with its meaning."""
    metrics = report["pairs"][0]["metrics"]
    return [directions(metrics), *_terms(report), *legend.metric_lines(metrics)]


def _table(report: Mapping[str, Any], pair: Mapping[str, Any]) -> Any:
    seeds = " and ".join(map(str, pair["seeds"]))
    samples = f"{report['samples']} samples"
    if report["unit"] == "video":
        samples += f" of {report['groups']} videos"
    names = [on_one_line(pair[key]) for key in ("first", "second")]
    columns, rows = comparison_cells(report, pair)
    title = f"first: {names[0]}\nsecond: {names[1]}\n{samples}, {seeds} random seeds"
    table = metric_table(title, *columns)
    for name, cells in rows.items():
        table.add_row(metric_name(name), *map(Text, cells))
    return table


def comparison_cells(
    report: Mapping[str, Any], pair: Mapping[str, Any]
) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the columns of a pair's table beside the metric, and their cells by metric."""
    several, found = len(report["pairs"]) > 1, {}
    columns = ["first", "second", "difference", f"over {report['unit']}s", "p"]
    for name, values in pair["metrics"].items():
        interval = values["ci95_videos"] or values["ci95_samples"]
        cells = [legend.show(name, values["first"]), legend.show(name, values["second"])]
        cells.append(signed(name, values["difference"]))
        is_known = not math.isnan(interval[0])
        cells.append(legend.show(name, *interval, form="[{}, {}]") if is_known else "-")
        cells += [p_value(values["p"])] + ([p_value(values["p_holm"])] if several else [])
        found[name] = [*cells, _MARKS[values["verdict"]]]
    return [*columns, *(["p Holm"] if several else []), "better"], found


def _terms(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Explains the columns of the tables."""
    unit = report["unit"]
    terms = [
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
    return [
        *terms,
        (
            "better",
            "noise: p is above 0.05, or an interval (over samples, videos or random seeds) holds 0",
        ),
    ]


def signed(metric: str, value: float) -> str:
    """Formats a difference in a metric with its sign, as `+0.079`."""
    sign = "+" if value > 0 else ""
    return sign + legend.show(metric, value)


def p_value(value: float) -> str:
    """Formats a p-value with four decimals; an undefined one is a dash."""
    return "-" if math.isnan(value) else f"{value:.4f}"


class Forms(NamedTuple):
    """Describes the files that hold what runs on the same samples amount to.

    Attributes:
        what: such a file holds.
        keys: at the top of its JSON.
        csv: how its CSV begins.
        markers: what the text of other forms holds, by their endings.
    """

    what: str
    keys: tuple[str, ...]
    csv: str
    markers: Mapping[str, str]

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of such files."""
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


FORMS = Forms("comparison", ("runs", "pairs"), _CSV, _MARKERS)


def require_output(path: str, runs: Sequence[str], forms: Forms = FORMS) -> None:
    """Refuses a file whose ending says no form, that lies in a run, or that holds something else.

    Raises:
        UserError: naming it.
    """
    *endings, last = forms.endings
    if os.path.splitext(path)[1] not in forms.endings:
        raise UserError(f"--output={path} must end in {', '.join(endings)} or {last}.")
    for run in runs:
        refuse_inside(path, run, "run")
    refuse_in_run(path)
    require_file_place(path)
    require_replaceable(path, forms.what, forms.wrote)


def rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
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


def as_csv(report: Mapping[str, Any]) -> str:
    """Writes the rows of a comparison as CSV (RFC 4180, 9 significant digits, undefined empty)."""
    return csv_text(rows(report))


def csv_text(listed: Sequence[Mapping[str, Any]]) -> str:
    """Writes rows of the same keys as CSV; an undefined number, NaN or None, is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(listed[0])
    for row in listed:
        writer.writerow([_cell(value) for value in row.values()])
    return text.getvalue()


def _cell(value: str | float | None) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or math.isnan(value) else f"{value:.9g}"


def as_latex(report: Mapping[str, Any]) -> str:
    """Writes a comparison as a tabular environment of plain LaTeX, each pair a block of rows."""
    unit = report["unit"]
    lines = [
        *(f"% {on_one_line(sentence)}" for sentence in compare.in_words(report)),
        r"\begin{tabular}{lrrrrr}",
        r"\hline",
        rf"{_TABULAR}{unit}s & $p$ \\",
    ]
    for pair in report["pairs"]:
        against = f"{latex(pair['first'])} against {latex(pair['second'])}"
        lines += [r"\hline", rf"\multicolumn{{6}}{{l}}{{{against}}} \\"]
        for name, values in pair["metrics"].items():
            interval = values["ci95_videos"] or values["ci95_samples"]
            cells = [legend.show(name, values[key]) for key in ("first", "second")]
            cells += [signed(name, values["difference"])]
            cells += [legend.show(name, *interval, form="[{}, {}]"), p_value(values["p_holm"])]
            numbers = [latex(cell).replace("-", "$-$") for cell in cells]
            is_better = values["verdict"] in (compare.FIRST, compare.SECOND)
            if is_better:
                column = 0 if values["verdict"] == compare.FIRST else 1
                numbers[column] = rf"\textbf{{{numbers[column]}}}"
            lines.append(" & ".join([latex(name), *numbers]) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def latex(text: str) -> str:
    """Escapes text for LaTeX."""
    return "".join(_LATEX.get(character, character) for character in on_one_line(text))
