"""Prints results as tables for people, with units, terms and floors in words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import rich.box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from msajax.errors import on_one_line
from msajax.results import legend
from msajax.results.findings import against_floors, hardest_floors, interval, is_number, mean_sd
from msajax.tasks.base import Floor

# Characters that a column of names has at least: where all others stand beside it, and where not.
_LEAST_NAME, _NAME = 10, 24


class MetricTable:
    """Lays out values in rows whose names come first, and cuts nothing.

    Columns that the console has no room for stand below the others, behind the same names again;
    a name that is longer than its room goes on in the next line.

    Attributes:
        header: headings of the columns, that of the names included.
    """

    def __init__(self, title: str, header: Sequence[str]) -> None:
        """Makes a table without rows."""
        self._title = title
        self.header = list(header)
        self.rows: list[tuple[Text, ...]] = []

    def add_row(self, *cells: Text) -> None:
        """Adds a row: its name, and cells for the other columns; those left out are empty."""
        self.rows.append((*cells, *(Text() for _ in self.header[len(cells) :])))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields one table, or several below each other."""
        cells = [(Text(head), *of) for head, *of in zip(self.header, *self.rows, strict=True)]
        names, *widths = (max(cell.cell_len for cell in column) for column in cells)
        room = options.max_width - min(names, _LEAST_NAME)
        if sum(widths) + len(widths) > room:
            room = options.max_width - min(names, _NAME)
        block: list[int] = []
        for k, width in enumerate(widths, 1):
            if block and sum(widths[j - 1] + 1 for j in block) + width + 1 > room:
                yield self._block(block)
                yield ""
                block = []
            block.append(k)
        yield self._block(block)

    def _block(self, shown: Sequence[int]) -> Table:
        table = Table(
            # No markup: names and paths may hold [brackets].
            title=Text(self._title) if shown[0] == 1 else None,
            title_justify="left",
            box=rich.box.SIMPLE_HEAD,
            padding=0,
            show_edge=False,
        )
        table.add_column(Text(self.header[0]), overflow="fold")
        for k in shown:  # one alone may be wider than the console: then its cells are folded, too
            is_alone = len(shown) == 1
            heading = Text(self.header[k])
            table.add_column(heading, justify="right", no_wrap=not is_alone, overflow="fold")
        for row in self.rows:
            table.add_row(row[0], *(row[k] for k in shown))
        return table


def print_results(results: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a results.json: metrics over seeds beside the trivial floors."""
    console.print(results_table(results))
    console.print()
    print_sentences(against_floors(results), console)
    _print_calibration(results, results["test"], console)
    console.print()
    console.print(terms_grid(results_legend(results)))


def print_sentences(sentences: Iterable[str], console: Console) -> None:
    """Prints what results mean, a sentence or more a line."""
    for sentence in sentences:  # a line may not end between a number and its unit
        console.print(Text(on_one_line(sentence).replace(" %", "%"), style="bold"))


def _print_calibration(
    results: Mapping[str, Any], metrics: Mapping[str, Any], console: Console
) -> None:
    if sentence := legend.calibration(results, metrics):
        console.print()
        console.print(Text(sentence.replace(" %", "%")))


def print_folds(results: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a folds.json: metrics over the folds, and of all samples together."""
    seeds = len(_seeds_of_folds(results))
    columns, rows = folds_cells(results)
    table = metric_table(
        f"{results['model']['name']}, {results['folds']} folds by video, {seeds} random "
        f"seed{'s' * (seeds > 1)}, {results['pooled']['samples']} samples, each tested once",
        columns,
        rows,
    )
    console.print(table)
    console.print()
    print_sentences(against_floors(pooled_results(results)), console)
    first, values = next(iter(results["metrics"].items()))
    of_folds = ", ".join(legend.show(first, value) for value in values["folds"])
    console.print(f"{first} of the folds: {of_folds}")
    console.print()
    console.print(terms_grid(folds_legend(results)))


def _seeds_of_folds(results: Mapping[str, Any]) -> set[int]:
    return {seed for of_fold in results["seeds"] for seed in of_fold}


def pooled_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """Arranges what a folds.json says of all samples together as a results.json does of test."""
    metrics = results["pooled"]["metrics"]
    together = {
        name: {"mean": values["value"], "sd": None, "ci95": values["ci95"], "seeds": [None]}
        for name, values in metrics.items()
    }
    return {key: results[key] for key in ("task", "floors") if key in results} | {"test": together}


def folds_cells(results: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the columns of a table of folds beside the metric, and their cells by metric."""
    several, hardest = len(_seeds_of_folds(results)) > 1, hardest_floors(results)
    columns, rows = ["over folds", *(["sd of seeds"] if several else [])], {}
    for name, values in results["metrics"].items():
        together = results["pooled"]["metrics"][name]
        cells = [mean_sd(name, {"mean": values["mean"], "sd": values["sd_folds"]})]
        cells += [legend.show(name, values["sd_seeds"])] if several else []
        cells += [legend.show(name, together["value"]), interval(name, together)]
        rows[name] = [*cells, _floor_cell(name, hardest)]
    return [*columns, "pooled", "95 % interval", "floor"], rows


def folds_legend(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists the terms that a table of folds shows, each with its meaning."""
    terms = [
        directions(results["metrics"]),
        ("±", "standard deviation over the folds, each the mean of its seeds"),
        ("sd of seeds", "standard deviation over random seeds, each the mean of its folds"),
        ("pooled", "of all samples; each has the mean score of models that never saw its video"),
        ("95 % interval", "of pooled, by bootstrap over samples"),
        _floor_term(hardest_floors(results)),
        *legend.metric_lines(results["metrics"], legend.task_of(results, results["metrics"])),
    ]
    several = len(_seeds_of_folds(results)) > 1
    return [term for term in terms if term[0] != "sd of seeds" or several]


def print_summary(title: str, summary: Mapping[str, Any], console: Console) -> None:
    """Prints metrics over seeds of one split or file, and of the score averaged over seeds."""
    metrics, ensemble = summary["metrics"], summary["ensemble"]
    several = _seeds(metrics) > 1
    rows = {}
    for name, values in metrics.items():
        rows[name] = [mean_sd(name, values), interval(name, values)]
        rows[name] += [legend.show(name, ensemble[name])] if several else []
    columns = ["mean", "95 % interval", *(["ensemble"] if several else [])]
    console.print(metric_table(title, columns, rows))
    _print_calibration(summary, metrics, console)
    console.print()
    console.print(terms_grid(_terms(summary, metrics)))


def results_table(results: Mapping[str, Any]) -> MetricTable:
    """Makes the table of a results.json: a row for each metric."""
    seeds, model, sizes = results["seeds"], results["model"], results["corpus"]["sizes"]
    calibration = results.get("calibration")
    held_out = 0 if calibration is None or calibration["optimistic"] else calibration["samples"]
    several = len(seeds) > 1
    trained = f"{len(seeds)} random seeds" if several else f"random seed {seeds[0]}"
    epochs = ", ".join(map(str, results["best_epoch"]))
    columns, rows = results_cells(results)
    return metric_table(
        f"{model['name']}, {model['parameters']:,} parameters, {trained}, "
        f"best epoch{'s' if several else ''} {epochs}; {sizes['valid'] - held_out} samples to "
        f"validate, {f'{held_out} to calibrate, ' * bool(held_out)}{sizes['test']} to test",
        columns,
        rows,
    )


def results_cells(results: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the columns of a table of results beside the metric, and their cells by metric."""
    several, hardest = len(results["seeds"]) > 1, hardest_floors(results)
    columns, rows = ["valid", "test", "95 % interval", *(["ensemble"] if several else [])], {}
    for name, test in results["test"].items():
        cells = [mean_sd(name, results["valid"][name]), mean_sd(name, test)]
        cells.append(interval(name, test))
        cells += [legend.show(name, results["test_ensemble"][name])] if several else []
        rows[name] = [*cells, _floor_cell(name, hardest)]
    return [*columns, "floor"], rows


def results_legend(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lists the terms that a results table shows, each with its meaning."""
    return _terms(results, results["test"], [_floor_term(hardest_floors(results))])


def _floor_cell(metric: str, hardest: Mapping[str, tuple[Floor, float]]) -> str:
    if metric not in hardest:
        return ""
    floor, value = hardest[metric]
    return f"{legend.show(metric, value)} ({floor.mark})"


def _floor_term(hardest: Mapping[str, tuple[Floor, float]]) -> tuple[str, str]:
    floors = dict.fromkeys(floor for floor, _ in hardest.values())
    marks = "; ".join(f"({floor.mark}) {floor.meaning}" for floor in floors) or "unknown"
    return "floor", f"the best without a model: {marks}"


def directions(metrics: Iterable[str]) -> tuple[str, str]:
    """Explains the arrows behind the names of metrics."""
    arrows = dict.fromkeys(map(legend.arrow, metrics))
    meanings = {"↓": "smaller is better", "↑": "larger is better"}
    return ", ".join(arrows), ", ".join(meanings[arrow] for arrow in arrows)


def _terms(
    results: Mapping[str, Any],
    metrics: Mapping[str, Any],
    more: list[tuple[str, str]] | None = None,
) -> list[tuple[str, str]]:
    seeds = _seeds(metrics)
    terms = [directions(metrics)]
    if seeds > 1:
        terms += [
            ("±", f"standard deviation over the {seeds} random seeds"),
            ("95 % interval", "of the mean over seeds, by bootstrap over samples"),
            ("ensemble", "metrics of the score averaged over seeds"),
        ]
    else:
        terms.append(
            ("95 % interval", "by bootstrap over samples; of one random seed no spread is known")
        )
    terms += [*(more or []), *legend.metric_lines(metrics, legend.task_of(results, metrics))]
    if not all(is_number(values["mean"]) for values in metrics.values()):
        terms.append(("-", "undefined"))
    return terms


def _seeds(metrics: Mapping[str, Any]) -> int:
    return len(next(iter(metrics.values()))["seeds"])


def metric_table(
    title: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]
) -> MetricTable:
    """Makes a table of cells by metric."""
    table = MetricTable(title, ["metric", *columns])
    for name, cells in rows.items():
        table.add_row(metric_name(name), *map(Text, cells))
    return table


def terms_grid(terms: list[tuple[str, str]]) -> Table:
    """Makes a legend: terms and their meanings."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(max_width=30, overflow="fold")
    grid.add_column(overflow="fold")
    for term, meaning in terms:
        grid.add_row(Text(term, style="dim"), Text(meaning, style="dim"))
    return grid


def metric_name(metric: str) -> Text:
    """Writes a metric and an arrow in its better direction; its output's name may be anything."""
    metric = on_one_line(metric)
    return Text(f"{metric} {legend.arrow(metric)}")
