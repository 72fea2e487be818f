"""Writes reports: of a run, and of the folds of a cross-validation."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from msajax.files import as_strict, read_json, write_json, write_text
from msajax.metrics.table import report_sentiment
from msajax.report import (
    behaviour,
    compared,
    measured,
    predicted,
    provenance,
    samples,
    training,
    uncertainty,
)
from msajax.report.charts import value_rows
from msajax.report.content import Content, Measured, read_content, read_measured
from msajax.report.figures import Chart
from msajax.report.forms import check_folds
from msajax.report.measured import metrics_panel
from msajax.report.page import Panel, draw_figures, render, write_figures
from msajax.results import findings, legend
from msajax.results.tables import folds_cells, folds_legend, pooled_results
from msajax.runs import manifest
from msajax.runs.folder import RunFolder


def make(
    folder: RunFolder, comparison: Mapping[str, Any] | None = None, figures: str = ""
) -> None:
    """Writes report.html of a run that has ended, whole or not at all.

    Args:
        folder: of the run.
        comparison: with other runs, to be kept in the folder in place of an earlier one.
        figures: a folder for every chart as PDF and SVG; "" for none.

    Raises:
        UserError: if a file of the run is missing or damaged, or the report cannot be written.
    """
    content = read_content(folder)
    if comparison is not None:
        content = dataclasses.replace(content, comparison=as_strict(comparison))
    panels = panels_of(content)
    text = _laid_out(content.results, panels)
    if figures:
        write_figures(figures, draw_figures(panels))
    if comparison is not None:
        write_json(folder.file(manifest.COMPARISON), comparison)  # once it is known to have a page
    write_text(folder.file(manifest.REPORT), text)


def make_of_folds(
    workdir: str, folders: Sequence[RunFolder], names: Sequence[str], figures: str = ""
) -> None:
    """Writes the report of a cross-validation that has ended, beside the folders of its folds.

    Args:
        workdir: of the cross-validation.
        folders: of the folds.
        names: of its results, its predictions and its report.
        figures: a folder for every chart as PDF and SVG; "" for none.

    Raises:
        UserError: if a file is missing or damaged, or the report cannot be written.
    """
    results, predictions, report = (os.path.join(workdir, name) for name in names)
    content = read_content(folders[0])
    content.settings["data"].pop("fold", None)  # all other settings are those of every fold
    links = [
        f"{os.path.basename(folder.path)}/{manifest.REPORT}"
        if os.path.exists(folder.file(manifest.REPORT))
        else ""
        for folder in folders
    ]
    last = [provenance.settings(content), provenance.repeat(content)]
    found = read_json(results)
    check_folds(found, results)
    pooled = read_measured(
        predictions,
        found["pooled"]["samples"],
        f"{results} says. The train command of these folds writes both anew.",
    )
    panels = panels_of_folds(found, pooled, last, links)
    text = page_of_folds(found, panels)
    if figures:
        write_figures(figures, draw_figures(panels))
    write_text(report, text)


def page(content: Content) -> str:
    """Returns the report of a run as HTML; the same content gives the same text."""
    return _laid_out(content.results, panels_of(content))


def panels_of(content: Content) -> list[Panel]:
    """Makes the panels of a run's report."""
    results, test = content.results, content.test
    is_sentiment = report_sentiment(results["test"])
    panels = [
        measured.finding(content),
        measured.results(content),
        training.training(content),
        predicted.scatter(test),
        predicted.residuals(test, is_sentiment),
        predicted.confusion(test, is_sentiment),
        uncertainty.calibration(results, test),
        predicted.weights(test, is_sentiment),
        behaviour.robustness(content.robustness),
        behaviour.explanation(content.explanation, content.explanation_page),
        *compared.of_this_run(content.comparison),
        samples.best_and_worst(test),
        provenance.corpus(content),
        provenance.settings(content),
        provenance.repeat(content),
    ]
    return [panel for panel in panels if panel]


def _laid_out(results: Mapping[str, Any], panels: Sequence[Panel]) -> str:
    return render(
        f"{results['model']['name']} on {_name(results['corpus'])}",
        panels,
        eyebrow="msajax run",
        facts=_facts(results),
    )


def _name(corpus: Mapping[str, Any]) -> str:
    """Names a corpus by its file."""
    return os.path.basename(corpus["path"].rstrip("/")) or corpus["path"]


def _facts(results: Mapping[str, Any]) -> list[str]:
    sizes, seeds = results["corpus"]["sizes"], results["seeds"]
    return [
        f"{results['model']['parameters']:,} parameters",
        f"{len(seeds)} random seeds" if len(seeds) > 1 else f"random seed {seeds[0]}",
        "reads " + ", ".join(results["corpus"]["modalities"]),
        " / ".join(f"{sizes[name]:,} {name}" for name in ("train", "valid", "test")),
    ]


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
    is_sentiment = report_sentiment(results["metrics"])
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
