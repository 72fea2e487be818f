"""Shows comparisons of runs: a panel for each pair, and a page of them alone."""

import math
from collections.abc import Mapping
from typing import Any

from msajax.comparison import compare
from msajax.comparison.contenders import short_names
from msajax.comparison.output import COMPARISON, comparison_cells, comparison_legend, write
from msajax.report import charts
from msajax.report.content import reading
from msajax.report.figures import Chart
from msajax.report.page import Panel, render, shortened
from msajax.results.legend import arrow, larger_is_better
from msajax.runs import manifest


def comparison_page(report: Mapping[str, Any]) -> str:
    """Returns the result of `comparison.compare` as a page of its own."""
    facts = [f"{report['samples']} samples", f"{report['groups']} {report['unit']}s"]
    return render("Comparison", panels(report), eyebrow="msajax compare", facts=facts)


def write_comparison(path: str, report: Mapping[str, Any]) -> None:
    """Writes a comparison in the form of the file's ending; raises `UserError` if it cannot."""
    write(path, report, COMPARISON, comparison_page)


def panels(report: Mapping[str, Any]) -> list[Panel]:
    """Makes a panel for each pair of a comparison; what concerns all of them stands in the last."""
    found, names = [], short_names(report["runs"], lambda name: shortened(name, 60))
    for pair in report["pairs"]:
        columns, cells = comparison_cells(report, pair)
        is_last = pair is report["pairs"][-1]
        panel = Panel.of(
            f"{names[pair['first']]} against {names[pair['second']]}",
            "compared.html",
            sentences=compare.about_pair(report, pair),
            charts=[chart] if (chart := _chart(report["metric"], pair)) else [],
            columns=["metric", *columns],
            rows=[(f"{shortened(name, 40)} {arrow(name)}", *of) for name, of in cells.items()],
            notes=[*report["notes"], *compare.about_pairing(report)] if is_last else [],
            terms=comparison_legend(report) if is_last else [],
        )
        found.append(panel)
    return found


def of_this_run(report: Mapping[str, Any] | None) -> list[Panel]:
    """Makes the panels of comparison.json in the folder of the first run; [] without."""
    if report is None:
        return []
    with reading(f"{manifest.COMPARISON} of the run"):
        if not report["pairs"]:
            raise ValueError("it compares nothing")
        return panels(compare.with_first(compare.read_back(report), "This run"))


def _chart(metric: str, pair: Mapping[str, Any]) -> Chart | None:
    values = pair["metrics"][metric]
    if math.isnan(values["difference"]):
        return None
    rows = [
        (f"over {name}", [values["difference"]], interval)
        for name, interval in compare.known_intervals(values).items()
        if not math.isnan(interval[0])
    ]
    better = "above" if larger_is_better(metric) else "below"
    return Chart(
        f"Difference in {metric} with its 95 % intervals",
        charts.value_rows([*rows, ("no difference", [0.0], None)], len(rows)),
        note=f"The first run is better {better} 0.",
    )
