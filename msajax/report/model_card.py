"""Writes the model card of a bundle: its README.md, with the metadata of the Hugging Face hub.

Everything in it follows from bundle.json, results.json and run.json, so that the same run has the
same card. Names come from files of others: they are escaped for Markdown and YAML.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from msajax.files import read_json, write_text
from msajax.metrics.table import base_of, row_of
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
_UNPRINTABLE = "\ufffd"


def make(folder: RunFolder) -> None:
    """Writes the card of a run that has ended, beside the bundle's other files.

    Raises:
        UserError: if a file of the run is damaged, or the card cannot be written.
    """
    bundle = read_json(os.path.join(folder.bundle, DESCRIPTION))
    run = read_json(folder.file(manifest.RUN))
    write_text(folder.file(manifest.CARD), model_card(folder.read_results(), bundle, run))


def model_card(
    results: Mapping[str, Any], bundle: Mapping[str, Any], run: Mapping[str, Any]
) -> str:
    """Writes a model card.

    Args:
        results: the content of results.json.
        bundle: the content of bundle.json.
        run: the content of run.json.
    """
    spec = CorpusSpec.from_dict(bundle["preparation"]["spec"])
    title = f"{bundle['model']['name']} of {' and '.join(spec.modalities)}"
    parts = [
        f"---\n{yaml(_metadata(title, results, spec))}---\n",
        f"# {markdown(title)}\n",
        _summary(results, bundle, spec),
        *("## Scores\n", _scores(results)),
        *("## Data\n", _listed(_data(results, bundle, run, spec))),
        *("## Limits\n", _listed(_limits(results, bundle, spec))),
        *("## How to load it\n", _loading(bundle, spec)),
    ]
    return "\n".join(parts)


# --- escaping ---


def markdown(text: Any) -> str:
    """Escapes text for one line of Markdown: it shows as it is, whatever it holds."""
    text = _printable(" ".join(str(text).split()))
    text = re.sub(r"([\\`*_\[\]|~$!#])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def yaml(value: Any, depth: int = 0) -> str:
    """Writes mappings, lists, strings and finite numbers as YAML, in lines."""
    indent, lines = "  " * depth, []
    items = value.items() if isinstance(value, Mapping) else ((None, one) for one in value)
    for key, one in items:
        begin = f"{indent}- " if key is None else f"{indent}{key}:"
        if isinstance(one, Mapping | list):
            nested = yaml(one, depth + 1)
            lines.append(f"{begin}{nested.lstrip()}" if key is None else f"{begin}\n{nested}")
        else:
            lines.append(f"{begin.rstrip()} {_scalar(one)}\n")
    return "".join(lines)


def _scalar(value: str | float) -> str:
    if not isinstance(value, str):
        return f"{value:.6f}"  # never with an exponent, which some readers take for a word
    escaped = _printable(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _printable(text: str) -> str:
    """Replaces what has no glyph: control characters, marks of direction, halves of pairs."""
    return "".join(c if c.isprintable() else _UNPRINTABLE for c in text)


def _listed(sentences: list[str]) -> str:
    return "".join(f"- {sentence}\n" for sentence in sentences)


# --- what the card says ---


def _metadata(title: str, results: Mapping[str, Any], spec: CorpusSpec) -> dict[str, Any]:
    """Makes the metadata that the hub reads: see its specification of model cards."""
    corpus, seeds = _corpus_name(results), len(results["seeds"])
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
    result = {
        "task": {"type": spec.label_kind, "name": f"{spec.label_kind} of {_labels(spec)}"},
        "dataset": {"type": corpus, "name": corpus, "split": "test"},
        "metrics": measured,
    }
    metrics = sorted({one["type"] for one in measured})
    return {
        "library_name": "msajax",
        "license": "unknown",
        "tags": ["msajax", "jax", "flax", "multimodal", spec.label_kind, *spec.modalities],
        **({"metrics": metrics} if metrics else {}),
        "model-index": [{"name": title, "results": [result]}],
    }


def _corpus_name(results: Mapping[str, Any]) -> str:
    """Returns the file name of the corpus, without folders: a card may be published."""
    return os.path.basename(str(results["corpus"]["path"]).rstrip("/\\")) or "unknown"


def _labels(spec: CorpusSpec) -> str:
    return ", ".join(spec.label_names)


def _summary(
    results: Mapping[str, Any], bundle: Mapping[str, Any], spec: CorpusSpec
) -> str:
    model, seeds = results["model"], results["seeds"]
    trained = f"{len(seeds)} random seed{'s' * (len(seeds) > 1)} ({_numbers(seeds)})"
    sentences = [
        f"A model of {markdown(spec.describe())}, which predicts {markdown(_labels(spec))} "
        f"({spec.label_kind.replace('_', ' ')}): {model['parameters']:,} parameters, trained by "
        f"msajax {bundle['msajax']} with {trained}, best epochs "
        f"{_numbers(results['best_epoch'])} of {results['epochs']}.",
        *map(markdown, against_floors(results)),
    ]
    if results["failed"]:
        failed = _numbers([failure["seed"] for failure in results["failed"]])
        sentences.append(f"Random seeds {failed} became non-finite and count nowhere.")
    return "".join(f"{sentence}\n" for sentence in sentences)


def _numbers(values: list[Any]) -> str:
    return ", ".join(map(str, values))


def _scores(results: Mapping[str, Any]) -> str:
    """Makes the table of results: the one that a terminal shows."""
    table = results_table(results)
    shown = [f"| {' | '.join(map(markdown, line))} |\n" for line in (table.header, *table.rows)]
    shown.insert(1, f"|{'---|' * len(table.header)}\n")
    how = (
        f"Epochs were chosen by {markdown(results['selection'])} on the validation split; the "
        "test split was read once, afterwards.\n"
    )
    terms = [f"**{markdown(a)}**: {markdown(b)}" for a, b in results_legend(results)]
    return "\n".join([how, "".join(shown), _listed(terms)])


def _data(
    results: Mapping[str, Any],
    bundle: Mapping[str, Any],
    run: Mapping[str, Any],
    spec: CorpusSpec,
) -> list[str]:
    corpus, preparation = results["corpus"], bundle["preparation"]
    sizes = ", ".join(f"{markdown(name)} {n}" for name, n in corpus["sizes"].items())
    said = [
        f"Corpus {markdown(_corpus_name(results))} ({markdown(corpus['format'])}), samples: "
        f"{sizes}; digest {corpus['digest']}.",
        f"Read: {markdown(spec.describe())}.",
    ]
    if left := [m for m in corpus.get("widths", {}) if m not in spec.modalities]:
        said.append(f"Not read: {markdown(', '.join(left))}.")
    standardized = markdown(", ".join(preparation["statistics"])) or "none"
    said.append(f"Standardised by the training split: {standardized}.")
    if spec.text_encoder is not None:
        said.append(f"Text is read by a pretrained encoder ({markdown(spec.text_encoder.kind)}).")
    if embedding := preparation["embedding"]:
        said.append(
            f"Text features were made by a pretrained encoder ({markdown(embedding['kind'])}, "
            f"digest {markdown(embedding['digest'])}): those of other encoders mean nothing here."
        )
    for split, by_modality in run["repairs"].items():
        for m, counts in by_modality.items():
            found = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in counts.items() if n)
            if found:
                said.append(f"Repaired in {markdown(split)}, {markdown(m)}: {markdown(found)}.")
    return said


def _limits(
    results: Mapping[str, Any], bundle: Mapping[str, Any], spec: CorpusSpec
) -> list[str]:
    config = bundle["config"]
    longest = ", ".join(
        f"{markdown(m)} {n}" for m, n in zip(spec.modalities, spec.lengths, strict=True)
    )
    said = [
        "It has learned from one corpus: its language, speakers, topics and recordings. What it "
        "scores elsewhere was not measured.",
        f"Sequences longer than its own ({longest} steps) {_CUTS[config['data']['truncate']]}.",
    ]
    if len(spec.modalities) > 1:
        said.append(
            "A sample may lack modalities; how much worse its score then is was not measured for "
            "this card. A weight says how much of the score's vector a modality is, not that it "
            "causes the score."
        )
    else:
        said.append("A sample without a valid step gets the same score whatever it is.")
    said += [_calibration(results.get("calibration"))]
    said += ["The license is for whoever publishes the model to state: it is unknown here."]
    return said


def _calibration(found: Mapping[str, Any] | None) -> str:
    """Says what is known of the certainty of scores, from the calibration in results.json."""
    if not found:
        return (
            "Nothing is calibrated: `score_sd` is the spread of the random seeds, and says nothing "
            "of how far the truth may be."
        )
    optimistic = " It is optimistic: the same samples chose the epochs." * found["optimistic"]
    if found["kind"] == "interval":
        coverage = ", ".join(f"{100 * x:.1f} %" for x in found["test"]["coverage"])
        text = f"Intervals of {100 * found['level']:g} % covered {coverage} of the test split."
    else:
        text = (
            f"Probabilities are calibrated by temperature ({found['temperature']:.3f}): expected "
            f"calibration error on test {found['test']['ece_before']:.3f} before, "
            f"{found['test']['ece_after']:.3f} after."
        )
    return f"{text}{optimistic} On other data nothing is promised."


def _loading(bundle: Mapping[str, Any], spec: CorpusSpec) -> str:
    preparation, shapes, given = bundle["preparation"], [], []
    from_text = preparation["words"] or preparation["text_from"]
    for m in spec.modalities:
        if m == "text" and from_text:
            continue
        given.append(f"{_code(m)}: x_{len(given)}")
        shapes.append(f"x_{len(shapes)} {f'[N, T, {spec.width(m)}]' if spec.width(m) else 'ids'}")
    arguments = [f"{{{', '.join(given)}}}"] if given else []
    arguments += ["raw_text=transcripts"] if "text" in spec.modalities and from_text else []
    model, own = bundle["model"], ""
    if model["file"]:
        file = os.path.basename(model["file"])
        own = (
            f"\nThe model is {markdown(model['module'])} of {markdown(file)} (SHA-256 "
            f"{model['file_sha256']}), which has to be imported first.\n"
        )
    lines = [
        "```python",
        "import msajax",
        'bundle = msajax.load("bundle")',
        f"scores = bundle.predict({', '.join(arguments)})",
        "```",
    ]
    says = f"Arrays: {', '.join(shapes)}. " if shapes else ""
    return (
        "\n".join(lines) + f"\n{own}\n{says}`scores.score` is the mean over random seeds, "
        "`scores.score_sd` their deviation, `scores.weights` the modalities' weights.\n"
    )


def _code(text: str) -> str:
    """Writes a name as a Python string that cannot end a block of code."""
    return ascii(_printable(text)).replace("`", "\\x60").replace("<", "\\x3c")
