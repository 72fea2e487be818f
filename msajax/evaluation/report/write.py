"""Writes reports: of a run, and of the folds of a cross-validation."""

import os
from typing import Any

from msajax.evaluation.report import (
    behaviour,
    measured,
    predicted,
    provenance,
    samples,
    uncertainty,
)
from msajax.evaluation.report.content import Content, read_content
from msajax.evaluation.report.page import render
from msajax.files import write_text
from msajax.runs import manifest
from msajax.runs.folder import RunFolder
from msajax.runtime import processes


def make(folder: RunFolder) -> None:
    """Writes report.html of a run that has ended, whole or not at all, in the first process.

    Raises:
        UserError: if a file of the run is missing or damaged, or the report cannot be written.
    """
    if processes.is_first():
        write_text(folder.file(manifest.REPORT), page(read_content(folder)))


def page(content: Content) -> str:
    """Returns the report of a run as HTML; the same run gives the same text."""
    results, test = content.results, content.test
    is_sentiment = "acc7" in results["test"]
    panels = [
        measured.finding(content),
        measured.results(content),
        measured.training(content),
        predicted.scatter(test, is_sentiment),
        predicted.residuals(test, is_sentiment),
        predicted.confusion(test, is_sentiment),
        uncertainty.calibration(results, test),
        predicted.weights(test, is_sentiment),
        behaviour.robustness(content.robustness),
        behaviour.explanation(content.explanation, content.explanation_page),
        samples.best_and_worst(test),
        provenance.corpus(content),
        provenance.settings(content),
        provenance.repeat(content),
    ]
    return render(
        f"{results['model']['name']} on {_name(results['corpus'])}",
        [panel for panel in panels if panel],
        eyebrow="msajax run",
        facts=_facts(results),
    )


def _name(corpus: dict[str, Any]) -> str:
    """Names a corpus by its file."""
    return os.path.basename(corpus["path"].rstrip("/")) or corpus["path"]


def _facts(results: dict[str, Any]) -> list[str]:
    sizes, seeds = results["corpus"]["sizes"], results["seeds"]
    return [
        f"{results['model']['parameters']:,} parameters",
        f"{len(seeds)} random seeds" if len(seeds) > 1 else f"random seed {seeds[0]}",
        "reads " + ", ".join(results["corpus"]["modalities"]),
        " / ".join(f"{sizes[name]:,} {name}" for name in ("train", "valid", "test")),
    ]
