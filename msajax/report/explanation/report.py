"""Explains samples of a split, and writes down what was found: explanation.json."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from msajax.corpus.corpus import Split
from msajax.corpus.on_demand import take_rows
from msajax.inference.bundle import Bundle
from msajax.preparation.step_words import words_of_steps
from msajax.report.explanation.choose import Aim, Chosen, choose_samples, ranked_by_change
from msajax.report.explanation.integrate import EXACT, Explained, Tell, integrate
from msajax.report.explanation.maps import asking_and_answering, ends
from msajax.results.tables import MetricTable

_DIGITS = 5  # of a contribution, significant ones


class Material(NamedTuple):
    """Holds a split that was scored, to be explained.

    Attributes:
        name: of the split.
        split: prepared.
        scores: `[S, N, K]`.
        weights: `[S, N, M]`, of the modalities.
        stored: reads samples `[n]` of the split as they were before preparation.
    """

    name: str
    split: Split
    scores: np.ndarray
    weights: np.ndarray
    stored: Callable[[np.ndarray], Split]


def explain(
    bundle: Bundle, material: Material, aim: Aim, count: int, tell: Tell
) -> dict[str, Any]:
    """Explains the scores of some samples.

    Args:
        bundle: the model.
        material: the split.
        aim: which output is explained.
        count: how many samples.
        tell: is called with the share that is done, from 0 to 1.

    Returns:
        The content of explanation.json.

    Raises:
        UserError: for a model that cannot be explained.
    """
    spec, split = bundle.preparation.spec, material.split
    scores = material.scores.mean(axis=0)  # [N, K]
    outputs = aim.outputs(scores)
    rankings = aim.rankings(scores, split.labels)
    if len(spec.modalities) > 1:
        rankings |= ranked_by_change(_changes(bundle, material, scores, outputs))
    chosen = choose_samples(rankings, count)
    rows = np.array([sample.row for sample in chosen])
    few = take_rows(split, rows)
    explained = integrate(bundle, few, outputs[rows], tell)
    # The split was accepted as a whole; whether much of these few is lost says nothing.
    lenient = dataclasses.replace(bundle.preparation, allow_loss=True)
    words = words_of_steps(material.stored(rows), few, lenient)
    writer = _Writer(bundle, few, words, explained)
    samples = [
        writer.sample(i, sample, outputs[sample.row], scores[sample.row])
        | {"weights": dict(zip(spec.modalities, map(float, weights), strict=True))}
        for i, (sample, weights) in enumerate(
            zip(chosen, material.weights.mean(axis=0)[rows], strict=True)
        )
    ]
    sums = {m: np.abs(explained.contributions[m]).sum(axis=1) for m in spec.modalities}
    error = explained.completeness_error
    with_text = [group for group in bundle.preparation.groups if "text" in group]
    return {
        "split": material.name,
        "samples_in_split": len(split),
        "seeds": len(bundle.seeds),
        "task": spec.label_kind,
        "outputs": list(spec.label_names),
        "modalities": list(spec.modalities),
        "with_words": [m for group in with_text for m in group if m != "text"],
        "samples": samples,
        "attention": {
            "cells": explained.detail.cells,
            "heads": explained.detail.heads,
            "heads_of_seed": bundle.seeds[0],
        },
        "summary": {
            "mean_absolute_contribution": {m: float(x.mean()) for m, x in sums.items()},
            "completeness": {
                "median": float(np.median(error)),
                "max": float(error.max()),
                "relative_median": explained.relative_error,
                "points": explained.points,
            },
        },
    }


def _changes(
    bundle: Bundle, material: Material, scores: np.ndarray, outputs: np.ndarray
) -> dict[str, np.ndarray]:
    """Computes how the explained output of each sample changes `[N]` without each modality."""
    split, rows, changes = material.split, np.arange(len(scores)), {}
    for m in bundle.preparation.spec.modalities:
        masks = {**split.masks, m: np.zeros_like(split.masks[m])}
        without, _ = bundle.scorer.score(dataclasses.replace(split, masks=masks), material.name)
        changes[m] = (scores - without.mean(axis=0))[rows, outputs]
    return changes


class _Writer:
    """Makes of arrays what explanation.json says of a sample."""

    def __init__(
        self, bundle: Bundle, split: Split, words: list[list[str]] | None, explained: Explained
    ) -> None:
        self._spec, self._split, self._words = bundle.preparation.spec, split, words
        self._explained = explained
        there = asking_and_answering(
            *(self._spec, split.features, split.masks, bundle.config.model.text_special),
            explained.attention,
        )
        self._ends = {key: tuple(map(ends, masks)) for key, masks in there.items()}

    def sample(self, i: int, chosen: Chosen, output: int, scores: np.ndarray) -> dict[str, Any]:
        """Describes sample number i of those that are explained."""
        spec, split, explained = self._spec, self._split, self._explained
        is_classes = spec.label_kind == "classification"
        label = None
        if split.labels is not None:
            label = split.labels[i]
            label = spec.label_names[int(label[0])] if is_classes else float(label[output])
        lengths = {m: int(ends(split.masks[m][i : i + 1])[0]) for m in spec.modalities}
        found = {
            "id": str(split.ids[i]),
            "why": chosen.why,
            "label": label,
            "output": spec.label_names[output],
            "score": float(scores[output]),
            "baseline": float(explained.baseline[i]),
            "text": None if split.raw_text is None else str(split.raw_text[i]),
            "words": None if self._words is None else self._words[i][: lengths["text"]],
            "contributions": {
                m: [_rounded(x) for x in explained.contributions[m][i, :length]]
                for m, length in lengths.items()
            },
            "attention": self._attention(i),
            "completeness_error": float(explained.completeness_error[i]),
        }
        if is_classes:
            found["predicted"] = spec.label_names[int(scores.argmax())]
        if spec.text_steps:
            found["word_of_piece"] = split.features["text"][i, : lengths["text"], 2].tolist()
        return found

    def _attention(self, i: int) -> list[dict[str, Any]]:
        """Writes a sample's maps, but for those without a step to attend to.

        Weights are whole thousandths, which take a third of the room that fractions do.
        """
        found = []
        for key, shown in self._explained.attention.items():
            steps = [int(of_samples[i]) for of_samples in self._ends[key]]
            if not all(steps):
                continue
            sizes = shown.steps_of_cells
            rows, columns = (-(-n // size) for n, size in zip(steps, sizes, strict=True))
            one = {"part": key.part, "layer": key.layer, "from": key.asks, "to": key.answers}
            one |= {"steps_of_cells": sizes}
            one["thousandths"] = _thousandths(shown.mean[i, :rows, :columns])
            if shown.heads is not None:
                one["heads"] = _thousandths(shown.heads[i, :, :rows, :columns])
            found.append(one)
        return found


def _thousandths(x: np.ndarray) -> list:
    return (1000 * x).round().astype(int).tolist()


def _rounded(x: float) -> float:
    return float(f"{x:.{_DIGITS}g}")


def print_explanation(found: Mapping[str, Any], console: Console) -> None:
    """Prints what each modality contributes, over the samples that were explained."""
    samples, split = found["samples"], found["split"]
    title = f"{len(samples)} of {found['samples_in_split']} samples of {split}"
    table = MetricTable(title, ["modality", "mean absolute contribution", "mean weight"])
    for m, size in found["summary"]["mean_absolute_contribution"].items():
        weight = sum(sample["weights"][m] for sample in samples) / len(samples)
        table.add_row(*map(Text, (m, f"{size:.3f}", f"{weight:.3f}")))
    console.print(table)
    for said in (completeness_in_words(found), attention_in_words(found)[1]):
        if said:
            console.print(said, highlight=False, soft_wrap=True)


def completeness_in_words(found: Mapping[str, Any]) -> str:
    """Says how well the contributions of a sample sum to its score."""
    error = found["summary"]["completeness"]
    share, points = 100 * error["relative_median"], error["points"]
    said = (
        f"Contributions sum to the score minus that of the baseline with a median error of "
        f"{share:.2g} % of that difference (at most {error['max']:.2g}), by {points} points "
        "of the path."
    )
    if error["relative_median"] >= EXACT:
        said += " That is not exact: read single contributions with care."
    return said


def attention_in_words(found: Mapping[str, Any]) -> tuple[str, str]:
    """Says what the maps of attention are, and what of them is left out; "" and "" without maps."""
    maps = [one for sample in found["samples"] for one in sample["attention"]]
    if not maps:
        return "", ""
    detail, seeds, left_out = found["attention"], found["seeds"], []
    said = "Attention is the mean over heads" + (f" and {seeds} random seeds" if seeds > 1 else "")
    if detail["heads"] and seeds > 1:
        said += (
            f"; a single head is that of random seed {detail['heads_of_seed']}, for heads of "
            "different seeds do not correspond"
        )
    if not detail["heads"]:
        left_out.append(
            "Single heads of attention are left out, which would make the page too large: a "
            "smaller number of --samples shows them."
        )
    if any(max(one["steps_of_cells"]) > 1 for one in maps):
        left_out.append(
            f"Maps of attention have at most {detail['cells']} cells a side: a cell of several "
            "steps is the mean of those that attend, and the sum over those attended to."
        )
    return f"{said}.", " ".join(left_out)
