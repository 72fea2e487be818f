"""Writes the reports of a run and of the folds of a cross-validation: panels in their order."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from msajax.files import as_strict, write_json, write_text
from msajax.metrics.table import report_sentiment
from msajax.report import behaviour, compared, predicted, provenance
from msajax.report.charts import Row, value_rows
from msajax.report.content import Content, read_content, read_folds, read_labelled
from msajax.report.figures import Chart
from msajax.report.page import Panel, draw_figures, render, shortened, write_figures
from msajax.results import findings, legend
from msajax.results.tables import (
    folds_cells,
    folds_legend,
    pooled_results,
    results_cells,
    results_legend,
)
from msajax.runs import manifest
from msajax.runs.claim import FOLDS, FOLDS_PREDICTIONS
from msajax.runs.folder import RunFolder
from msajax.training.loop import failure_message


def make(folder: RunFolder, comparison: Mapping[str, Any] | None = None, figures: str = "") -> None:
    """Writes report.html of a run that has ended, whole or not at all.

    Args:
        comparison: is kept in the folder in place of an earlier one; None changes nothing.
        figures: a folder for every chart as PDF and SVG; "" for none.

    Raises:
        UserError: if a file of the run is missing or damaged, or the report cannot be written.
    """
    content = read_content(folder)
    if comparison is not None:
        content = dataclasses.replace(content, comparison=as_strict(comparison))
    panels = panels_of(content)
    text = page(content, panels)
    if figures:
        write_figures(figures, draw_figures(panels))
    if comparison is not None:
        write_json(folder.file(manifest.COMPARISON), comparison)  # once it is known to have a page
    write_text(folder.file(manifest.REPORT), text)


def make_of_folds(workdir: str, folders: Sequence[RunFolder], figures: str = "") -> None:
    """Writes the report of a cross-validation that has ended, beside the folders of its folds.

    Args:
        figures: a folder for every chart as PDF and SVG; "" for none.

    Raises:
        UserError: if a file is missing or damaged, or the report cannot be written.
    """
    names = (FOLDS, FOLDS_PREDICTIONS, manifest.REPORT)
    results, predictions, report = (os.path.join(workdir, name) for name in names)
    content = read_content(folders[0])
    content.settings["data"].pop("fold", None)  # all other settings are those of every fold
    found = read_folds(results)
    pooled = read_labelled(
        predictions,
        found["pooled"]["samples"],
        f"{results} says. The train command of these folds writes both anew.",
    )
    is_sentiment = report_sentiment(found["metrics"])
    made = [
        _finding_of_folds(found),
        _results_panel(*folds_cells(found), folds_legend(found)),
        _folds_panel(found, folders),
        predicted.scatter(pooled),
        predicted.residuals(pooled, is_sentiment),
        predicted.confusion(pooled, is_sentiment),
        predicted.weights(pooled, is_sentiment),
        predicted.best_and_worst(pooled),
        provenance.settings(content),
        provenance.repeat(content),
    ]
    panels = [panel for panel in made if panel]
    text = render(
        f"{found['model']['name']}, {found['folds']} folds",
        panels,
        eyebrow="msajax cross-validation",
        facts=[
            f"{found['pooled']['samples']:,} samples, each tested once",
            f"split_seed {found['split_seed']}",
        ],
    )
    if figures:
        write_figures(figures, draw_figures(panels))
    write_text(report, text)


def panels_of(content: Content) -> list[Panel]:
    """Makes the panels of a run's report."""
    results, test = content.results, content.test
    is_sentiment = report_sentiment(results["test"])
    panels = [
        _finding_of_run(results),
        _results_panel(*results_cells(results), results_legend(results)),
        provenance.training(content),
        predicted.scatter(test),
        predicted.residuals(test, is_sentiment),
        predicted.confusion(test, is_sentiment),
        predicted.calibration(results, test),
        predicted.weights(test, is_sentiment),
        behaviour.robustness(content.robustness),
        behaviour.explanation(content.explanation, content.explanation_page),
        *compared.of_this_run(content.comparison),
        predicted.best_and_worst(test),
        provenance.corpus(content),
        provenance.settings(content),
        provenance.repeat(content),
    ]
    return [panel for panel in panels if panel]


def page(content: Content, panels: Sequence[Panel] | None = None) -> str:
    """Returns the report of a run as HTML; the same content gives the same text.

    `panels` are those of `panels_of`, if they are made already.
    """
    results, corpus, seeds = content.results, content.results["corpus"], content.results["seeds"]
    file = os.path.basename(corpus["path"].rstrip("/")) or corpus["path"]
    sizes = (f"{corpus['sizes'][name]:,} {name}" for name in ("train", "valid", "test"))
    return render(
        f"{results['model']['name']} on {file}",
        panels_of(content) if panels is None else panels,
        eyebrow="msajax run",
        facts=[
            f"{results['model']['parameters']:,} parameters",
            f"{len(seeds)} random seeds" if len(seeds) > 1 else f"random seed {seeds[0]}",
            "reads " + ", ".join(corpus["modalities"]),
            " / ".join(sizes),
        ],
    )


# --- what was found ---


def _finding_of_run(results: Mapping[str, Any]) -> Panel:
    name = findings.headline(results)
    test = results["test"][name]
    if test["sd"] is None:
        spread = "one random seed"
    else:
        spread = f"± {legend.show(name, test['sd'])} over {len(test['seeds'])} random seeds"
    facts = [
        (f"test {name}", legend.show(name, test["mean"]), spread),
        ("95 % interval", findings.interval(name, test), "by bootstrap over samples"),
    ]
    interval = test["ci95"] if all(map(findings.is_number, test["ci95"])) else None
    rows: list[Row] = [("mean, 95 % interval", [test["mean"]], interval)]
    if len(test["seeds"]) > 1:
        ensemble = results["test_ensemble"][name]
        value = legend.show(name, ensemble)
        facts.append(("ensemble", value, "of the score averaged over seeds"))
        rows.insert(0, ("random seeds", [v for v in test["seeds"] if v is not None], None))
        if findings.is_number(ensemble):
            rows.append(("ensemble", [ensemble], None))
    notes = []
    if noise := findings.noise_of_seeds(results):
        notes.append(noise)
    if results["failed"]:
        notes.append(failure_message(results["failed"]))
    # Nothing is drawn where the mean is undefined.
    rows = rows if findings.is_number(test["mean"]) else []
    return _finding(results, findings.finding(results), facts, rows, notes)


def _finding_of_folds(results: Mapping[str, Any]) -> Panel:
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
    return _finding(together, findings.finding(together, over), facts, rows, [])


def _finding(
    results: Mapping[str, Any],
    sentence: str,
    facts: Sequence[tuple[str, str, str]],
    rows: Sequence[Row],
    notes: Sequence[str],
) -> Panel:
    """Makes the panel of what was found, and adds the floors that it is measured by.

    Args:
        facts: a term, its value and its meaning each.
        rows: the model's values in the chart; without any there is no chart.
    """
    name, drawn = findings.headline(results), list(rows)
    if name in (hardest := findings.hardest_floors(results)):
        floor, value = hardest[name][0], legend.show(name, hardest[name][1])
        facts = [*facts, (f"floor: {floor.name}", value, floor.meaning)]
    words = legend.task_of(results, results["test"]).floor_words
    for key, values in results["floors"].items():
        if findings.is_number(values.get(name)):
            drawn.append((words[key].name, [values[name]], None))
    others = [s for s in findings.against_floors(results) if not s.startswith(f"Test {name} ")]
    better = "larger" if legend.larger_is_better(name) else "smaller"
    title = f"Test {name}, {better} is better"
    return Panel.of(
        "What was found",
        "finding.html",
        sentence=sentence,
        notes=[*others, *notes],
        facts=facts,
        chart=Chart(title, value_rows(drawn, len(rows))) if rows else None,
    )


def _results_panel(
    columns: Sequence[str], cells: Mapping[str, Sequence[str]], terms: Sequence[tuple[str, str]]
) -> Panel:
    rows = [(shortened(name, 40), legend.arrow(name), of) for name, of in cells.items()]
    return Panel.of("Results", "results.html", columns=columns, rows=rows, terms=terms)


def _folds_panel(results: Mapping[str, Any], folders: Sequence[RunFolder]) -> Panel:
    """Makes the panel of single folds, with links to those reports that are there."""
    name = findings.headline(pooled_results(results))
    rows = []
    for k, value in enumerate(results["metrics"][name]["folds"]):
        there = os.path.exists(folders[k].file(manifest.REPORT))
        link = f"{os.path.basename(folders[k].path)}/{manifest.REPORT}" if there else ""
        size = f"{results['corpus'][k]['sizes']['test']:,}"
        epochs = ", ".join(map(str, results["best_epoch"][k]))
        rows.append((f"fold {k}", link, size, epochs, legend.show(name, value)))
    return Panel.of("Folds", "folds.html", metric=name, rows=rows)
