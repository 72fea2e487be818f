"""Lays out the report of a cross-validation: what its folds say together, and a link to each."""

from collections.abc import Mapping, Sequence
from typing import Any

from msajax.report import predicted, samples
from msajax.report.charts import value_rows
from msajax.report.content import Measured
from msajax.report.figures import Chart
from msajax.report.measured import metrics_panel
from msajax.report.page import Panel, render
from msajax.results import findings, legend
from msajax.results.tables import folds_cells, folds_legend, pooled_results


def panels_of_folds(
    results: Mapping[str, Any], pooled: Measured, last: Sequence[Panel], links: Sequence[str]
) -> list[Panel]:
    """Makes the panels of a report of folds.

    Args:
        results: folds.json.
        pooled: every sample, with the scores of the fold that tested it.
        last: panels that are the same for every fold, of its settings.
        links: to the report of each fold; "" where there is none.
    """
    is_sentiment = "acc7" in results["metrics"]
    panels = [
        _finding(results),
        metrics_panel(*folds_cells(results), folds_legend(results)),
        _folds(results, links),
        predicted.scatter(pooled),
        predicted.residuals(pooled, is_sentiment),
        predicted.confusion(pooled, is_sentiment),
        predicted.weights(pooled, is_sentiment),
        samples.best_and_worst(pooled),
        *last,
    ]
    return [panel for panel in panels if panel]


def page_of_folds(results: Mapping[str, Any], panels: Sequence[Panel]) -> str:
    """Returns a report of folds as HTML; the same folds give the same text."""
    return render(
        f"{results['model']['name']}, {results['folds']} folds",
        panels,
        eyebrow="msajax cross-validation",
        facts=[
            f"{results['pooled']['samples']:,} samples, each tested once",
            f"split_seed {results['split_seed']}",
        ],
    )


def _finding(results: Mapping[str, Any]) -> Panel:
    together = pooled_results(results)
    name = findings.headline(together)
    test, of_folds = together["test"][name], results["metrics"][name]
    over = f"of all {results['pooled']['samples']:,} samples, pooled over {results['folds']} folds"
    facts = [
        (f"pooled {name}", legend.show(name, test["mean"]), "of every sample, tested once"),
        ("95 % interval", findings.interval(name, test), "by bootstrap over samples"),
        (
            "over folds",
            legend.show(name, of_folds["mean"]),
            f"± {legend.show(name, of_folds['sd_folds'])}, the folds' deviation",
        ),
    ]
    rows = [("folds", [v for v in of_folds["folds"] if findings.is_number(v)], None)]
    if findings.is_number(test["mean"]):
        rows.append(("pooled, 95 % interval", [test["mean"]], test["ci95"]))
    ours = len(rows)
    for key, values in together["floors"].items():
        if findings.is_number(values.get(name)):
            rows.append((legend.FLOORS[key].name, [values[name]], None))
    hardest = findings.hardest_floors(together)
    if name in hardest:
        floor = legend.FLOORS[hardest[name][0]]
        facts.append((f"floor: {floor.name}", legend.show(name, hardest[name][1]), floor.meaning))
    notes = [s for s in findings.against_floors(together) if not s.startswith(f"Test {name} ")]
    better = "larger" if legend.larger_is_better(name) else "smaller"
    return Panel.of(
        "What was found",
        "finding.html",
        sentence=findings.finding(together, over),
        notes=notes,
        facts=facts,
        chart=Chart(f"Test {name}, {better} is better", value_rows(rows, ours)),
    )


def _folds(results: Mapping[str, Any], links: Sequence[str]) -> Panel:
    name = findings.headline(pooled_results(results))
    rows = [
        (
            f"fold {k}",
            links[k],
            f"{results['corpus'][k]['sizes']['test']:,}",
            ", ".join(map(str, results["best_epoch"][k])),
            legend.show(name, value),
        )
        for k, value in enumerate(results["metrics"][name]["folds"])
    ]
    return Panel.of("Folds", "folds.html", metric=name, rows=rows)
