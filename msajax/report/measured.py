"""Makes the panels of what was found: the sentence, and the table of metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

from msajax.report import charts
from msajax.report.content import Content
from msajax.report.figures import Chart
from msajax.report.page import Panel, shortened
from msajax.results import findings, legend
from msajax.results.tables import results_cells, results_legend
from msajax.training.loop import failure_message


def finding(content: Content) -> Panel:
    """Makes the panel that says what was found."""
    results = content.results
    name = findings.headline(results)
    test = results["test"][name]
    several = len(test["seeds"]) > 1
    facts = [(f"test {name}", legend.show(name, test["mean"]), _spread(name, test))]
    facts.append(("95 % interval", findings.interval(name, test), "by bootstrap over samples"))
    if several:
        value = legend.show(name, results["test_ensemble"][name])
        facts.append(("ensemble", value, "of the score averaged over seeds"))
    if name in (hardest := findings.hardest_floors(results)):
        floor = legend.FLOORS[hardest[name][0]]
        facts.append((f"floor: {floor.name}", legend.show(name, hardest[name][1]), floor.meaning))
    notes = [s for s in findings.against_floors(results) if not s.startswith(f"Test {name} ")]
    if noise := findings.noise_of_seeds(results):
        notes.append(noise)
    if results["failed"]:
        notes.append(failure_message(results["failed"]))
    return Panel.of(
        "What was found",
        "finding.html",
        sentence=findings.finding(results),
        notes=notes,
        facts=facts,
        chart=_rows_chart(results, name),
    )


def _spread(name: str, values: Mapping[str, Any]) -> str:
    if values["sd"] is None:
        return "one random seed"
    return f"± {legend.show(name, values['sd'])} over {len(values['seeds'])} random seeds"


def _rows_chart(results: Mapping[str, Any], name: str) -> Chart | None:
    """Draws seeds, mean, ensemble and floors of one metric; None where the mean is undefined."""
    test = results["test"][name]
    if not findings.is_number(test["mean"]):
        return None
    interval = test["ci95"] if all(map(findings.is_number, test["ci95"])) else None
    rows = [("mean, 95 % interval", [test["mean"]], interval)]
    if len(test["seeds"]) > 1:
        rows.insert(0, ("random seeds", [v for v in test["seeds"] if v is not None], None))
        if findings.is_number(results["test_ensemble"][name]):
            rows.append(("ensemble", [results["test_ensemble"][name]], None))
    ours = len(rows)
    for key, values in results["floors"].items():
        if findings.is_number(values.get(name)):
            rows.append((legend.FLOORS[key].name, [values[name]], None))
    better = "larger" if legend.larger_is_better(name) else "smaller"
    return Chart(f"Test {name}, {better} is better", charts.value_rows(rows, ours))


def results(content: Content) -> Panel:
    """Makes the panel of all metrics."""
    return metrics_panel(*results_cells(content.results), results_legend(content.results))


def metrics_panel(
    columns: Sequence[str],
    cells: Mapping[str, Sequence[str]],
    terms: Sequence[tuple[str, str]],
) -> Panel:
    """Makes a panel of metrics: the columns beside their names, cells by metric, and a legend."""
    rows = [(shortened(name, 40), legend.arrow(name), of) for name, of in cells.items()]
    return Panel.of("Results", "results.html", columns=columns, rows=rows, terms=terms)
