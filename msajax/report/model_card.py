"""Writes the model card of a bundle: its README.md, with the metadata of the Hugging Face hub.

Everything in it follows from bundle.json, results.json and run.json, so that the same run has the
same card: `templates/model_card.md`. Names come from files of others: the template escapes them for
Markdown or YAML.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from msajax.files import read_json, write_text
from msajax.metrics.table import base_of, row_of
from msajax.report.page import fill
from msajax.results.findings import against_floors
from msajax.results.tables import results_legend, results_table
from msajax.runs import manifest
from msajax.runs.folder import RunFolder
from msajax.runs.manifest import DESCRIPTION
from msajax.spec import CorpusSpec

_CUTS = {
    "error": "are refused",
    "first": "are cut to their first steps",
    "last": "are cut to their last steps",
    "uniform": "are thinned to steps at equal distances",
}


def make(folder: RunFolder) -> None:
    """Writes a run's card; raises `UserError` for a damaged file, or if it cannot be written."""
    bundle = read_json(os.path.join(folder.bundle, DESCRIPTION))
    run = read_json(folder.file(manifest.RUN))
    write_text(folder.file(manifest.CARD), model_card(folder.read_results(), bundle, run))


def model_card(
    results: Mapping[str, Any], bundle: Mapping[str, Any], run: Mapping[str, Any]
) -> str:
    """Writes a model card from the content of results.json, bundle.json and run.json."""
    preparation, corpus = bundle["preparation"], results["corpus"]
    spec = CorpusSpec.from_dict(preparation["spec"])

    # What the metadata says of scores: see the hub's specification of model cards.
    seeds = len(results["seeds"])
    measured = []
    for name, values in results["test"].items():
        found = {f"{name}, mean of {seeds} seed(s)": values["mean"]}
        if seeds > 1:
            found[f"{name} of the ensemble"] = results["test_ensemble"][name]
        measured += [
            {"type": row_of(name).hub or base_of(name), "name": text, "value": float(value)}
            for text, value in found.items()
            if value is not None
        ]

    repairs = []
    for split, by_modality in run["repairs"].items():
        for m, counts in by_modality.items():
            counted = [f"{n} {kind.replace('_', ' ')}" for kind, n in counts.items() if n]
            if counted:
                repairs.append((split, m, ", ".join(counted)))

    # What `predict` is called with, and the shapes of the arrays among it.
    from_text = preparation["words"] or preparation["text_from"]
    arrays = [m for m in spec.modalities if m != "text" or not from_text]
    given = [f"{_code(m)}: x_{k}" for k, m in enumerate(arrays)]
    arguments = [f"{{{', '.join(given)}}}"] if given else []
    arguments += ["raw_text=transcripts"] if "text" in spec.modalities and from_text else []
    shapes = [
        f"x_{k} {f'[N, T, {spec.stored_width(m)}]' if spec.stored_width(m) else 'ids'}"
        for k, m in enumerate(arrays)
    ]
    return fill(
        "model_card.md",
        markdown=markdown,
        quoted=lambda text: json.dumps(_visible(text), ensure_ascii=False),  # YAML has such strings
        title=f"{bundle['model']['name']} of {' and '.join(spec.modalities)}",
        tags=["msajax", "jax", "flax", "multimodal", spec.label_kind, *spec.modalities],
        measured=measured,
        results=results,
        bundle=bundle,
        preparation=preparation,
        spec=spec,
        labels=", ".join(spec.label_names),
        seeds=results["seeds"],
        # The name of the corpus's file, without folders: a card may be published.
        corpus=os.path.basename(str(corpus["path"]).rstrip("/\\")) or "unknown",
        against_floors=against_floors(results),
        table=results_table(results),
        terms=results_legend(results),
        sizes=[f"{markdown(name)} {n}" for name, n in corpus["sizes"].items()],
        unread=[m for m in corpus.get("widths", {}) if m not in spec.modalities],
        repairs=repairs,
        longest=[f"{markdown(m)} {n}" for m, n in zip(spec.modalities, spec.lengths, strict=True)],
        cut=_CUTS[bundle["config"]["data"]["truncate"]],
        calibration=_calibration(results.get("calibration")),
        arguments=arguments,
        own_file=os.path.basename(bundle["model"]["file"]),
        shapes=shapes,
    )


def _calibration(found: Mapping[str, Any] | None) -> str:
    if not found:
        return (
            "Nothing is calibrated: `score_sd` is the spread of the random seeds, and says nothing "
            "of how far the truth may be."
        )
    optimistic = " It is optimistic: the same samples chose the epochs." * found["optimistic"]
    if found["kind"] == "interval":
        coverage = ", ".join(f"{100 * x:.1f} %" for x in found["test"]["coverage"])
        text = f"Intervals of {100 * found['level']:g} % covered {coverage} of the test split."
    elif found["kind"] == "thresholds":
        text = (
            "Each label has a threshold of its own: macro F1 on test is "
            f"{100 * found['test']['f1_macro']:.1f} % with them, and "
            f"{100 * found['test']['f1_macro_at_half']:.1f} % at 0.5."
        )
    else:
        text = (
            f"Probabilities are calibrated by temperature ({found['temperature']:.3f}): expected "
            f"calibration error on test {found['test']['ece_before']:.3f} before, "
            f"{found['test']['ece_after']:.3f} after."
        )
    return f"{text}{optimistic} On other data nothing is promised."


# --- escaping ---


def _visible(text: str) -> str:
    """Replaces what has no glyph: control characters, marks of direction, halves of pairs."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def markdown(text: Any) -> str:
    """Escapes text for one line of Markdown: it shows as it is, whatever it holds."""
    text = _visible(" ".join(str(text).split()))
    text = re.sub(r"([\\`*_\[\]|~$!#])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    """Writes a name as a Python string that cannot end a block of code."""
    return ascii(_visible(text)).replace("`", "\\x60").replace("<", "\\x3c")
