"""Explains samples of a split, chosen by fixed rules, so that nobody picks the nice ones."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from msajax.corpus.corpus import Split
from msajax.corpus.on_demand import take_rows
from msajax.corpus.predictions import Scored
from msajax.errors import UserError
from msajax.inference.bundle import Bundle
from msajax.preparation.apply import words_of_steps
from msajax.report.explanation.integrate import CellMap, Tell, asking_and_answering, ends, integrate
from msajax.report.explanation.page import attention_in_words, completeness_in_words
from msajax.results.tables import MetricTable
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

_DIGITS = 5  # of a contribution, significant ones


def explain(
    bundle: Bundle,
    name: str,
    scored: Scored,
    stored: Callable[[np.ndarray], Split],
    output: int | None,
    count: int,
    tell: Tell,
) -> dict[str, Any]:
    """Explains the scores of some samples.

    Args:
        stored: reads samples `[n]` of the split as they are before preparation.
        output: the number of the explained output; None is each sample's most probable class.

    Returns:
        The content of explanation.json.

    Raises:
        UserError: for a model that cannot be explained.
    """
    # Choose samples by rules, which the scores of all samples rank.
    spec, split = bundle.preparation.spec, scored.split
    is_classes = TASKS[spec.label_kind].has_classes
    scores = scored.scores.mean(axis=0)  # [N, K]
    outputs = explained_outputs(scores, output)
    rankings = rank_samples(scores, outputs, split.labels, is_classes)
    if len(spec.modalities) > 1:
        for m in spec.modalities:  # how much each score changes without the modality
            masks = {**split.masks, m: np.zeros_like(split.masks[m])}
            without, _ = bundle.scorer.score(dataclasses.replace(split, masks=masks), name)
            change = (scores - without.mean(axis=0))[np.arange(len(scores)), outputs]
            rankings[f"most moved by {m}"] = np.argsort(-np.abs(change), kind="stable")
    chosen = choose_samples(rankings, count)

    # Explain those alone: contributions, the words of their steps, and which steps attend.
    rows = np.array([row for row, _ in chosen])
    few = take_rows(split, rows)
    explained = integrate(bundle, few, outputs[rows], tell)
    # The split was accepted as a whole; whether much of these few is lost says nothing.
    lenient = dataclasses.replace(bundle.preparation, allow_loss=True)
    words = words_of_steps(stored(rows), few, lenient)
    there = asking_and_answering(
        spec, few.features, few.masks, bundle.config.model.text_special, explained.attention
    )
    steps_of_maps = {key: tuple(map(ends, masks)) for key, masks in there.items()}
    error = explained.completeness_error

    # Write each sample as the page reads it; what is padding is left out.
    samples = []
    for i, (row, why) in enumerate(chosen):
        label = None
        if few.labels is not None:
            label = few.labels[i]
            if is_classes:
                label = spec.label_names[int(label[0])]
            else:
                label = float(label[outputs[row]])
        lengths = {m: int(ends(few.masks[m][i : i + 1])[0]) for m in spec.modalities}
        maps = []
        for key, cells in explained.attention.items():
            steps = [int(of_samples[i]) for of_samples in steps_of_maps[key]]
            if all(steps):  # else there is none to attend to
                one = {"part": key.part, "layer": key.layer, "from": key.asks, "to": key.answers}
                maps.append(one | _cells_of_sample(cells, i, steps))
        sample = {
            "id": str(few.ids[i]),
            "why": why,
            "label": label,
            "output": spec.label_names[outputs[row]],
            "score": float(scores[row, outputs[row]]),
            "baseline": float(explained.baseline[i]),
            "text": None if few.raw_text is None else str(few.raw_text[i]),
            "words": None if words is None else words[i][: lengths["text"]],
            "contributions": {
                m: [float(f"{x:.{_DIGITS}g}") for x in explained.contributions[m][i, :length]]
                for m, length in lengths.items()
            },
            "attention": maps,
            "completeness_error": float(error[i]),
        }
        if is_classes:
            sample["predicted"] = spec.label_names[int(scores[row].argmax())]
        if spec.text_steps:
            sample["word_of_piece"] = few.features["text"][i, : lengths["text"], 2].tolist()
        weights = scored.weights.mean(axis=0)[row]
        sample["weights"] = dict(zip(spec.modalities, map(float, weights), strict=True))
        samples.append(sample)

    sums = {m: np.abs(explained.contributions[m]).sum(axis=1) for m in spec.modalities}
    with_text = [group for group in bundle.preparation.groups if "text" in group]
    return {
        "split": name,
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


def _cells_of_sample(cells: CellMap, i: int, steps: Sequence[int]) -> dict[str, Any]:
    """Writes a sample's part of a map: whole thousandths take a third of the room of fractions."""
    sizes = cells.steps_of_cells
    rows, columns = (-(-n // size) for n, size in zip(steps, sizes, strict=True))

    def thousandths(x: np.ndarray) -> list:
        return (1000 * x).round().astype(int).tolist()

    found = {"steps_of_cells": sizes, "thousandths": thousandths(cells.mean[i, :rows, :columns])}
    if cells.heads is not None:
        found["heads"] = thousandths(cells.heads[i, :, :rows, :columns])
    return found


# --- what is explained ---


def output_of(spec: CorpusSpec, target: str) -> int | None:
    """Returns the number of the output or class that is explained; "" is the first output.

    None stands for each sample's most probable class.

    Raises:
        UserError: for a name that the model does not have, or a model of the next token.
    """
    task = TASKS[spec.label_kind]
    if not task.explains:
        raise UserError(
            f"--mode=explain explains scores and classes; this model's task is {task.kind}."
        )
    if not target:
        return None if task.has_classes else 0
    if target not in spec.label_names:
        raise UserError(
            f"--target={target} is no output of this model; it has {', '.join(spec.label_names)}."
        )
    return spec.label_names.index(target)


def explained_outputs(scores: np.ndarray, output: int | None) -> np.ndarray:
    """Returns which output of each sample is explained, `[N]`, for mean scores `[N, K]`."""
    return scores.argmax(1) if output is None else np.full(len(scores), output)


def rank_samples(
    scores: np.ndarray, outputs: np.ndarray, labels: np.ndarray | None, is_classes: bool
) -> dict[str, np.ndarray]:
    """Ranks samples by how well they are predicted; without labels, by what is predicted.

    Args:
        scores: `[N, K]`, means over random seeds.
        outputs: `[N]`, which of the K are explained.
        labels: `[N, L]`, or None.
        is_classes: whether labels are classes, and scores their probabilities.

    Returns:
        `{rule: [N]}`, the numbers of the samples, the most fitting one first.
    """
    rows = np.arange(len(scores))
    if labels is None:
        values = -scores[rows, outputs]
        rules = ("most certain", "least certain") if is_classes else ("highest", "lowest")
    else:
        rules = ("best predicted", "worst predicted")
        if is_classes:
            values = 1 - scores[rows, labels[:, 0].astype(int)]
        else:
            values = np.abs(scores[rows, outputs] - labels[rows, outputs])
    both_ends = np.argsort(values, kind="stable"), np.argsort(-values, kind="stable")
    return dict(zip(rules, both_ends, strict=True))


def choose_samples(rankings: Mapping[str, Sequence[int]], count: int) -> list[tuple[int, str]]:
    """Takes samples from the rankings in turn, each once, until there are `count`.

    Returns:
        The number of each sample and the rule that chose it, by rule and then by rank.
    """
    taken: dict[int, str] = {}
    left = {rule: iter(np.asarray(ranking).tolist()) for rule, ranking in rankings.items()}
    samples = len(next(iter(rankings.values())))
    while len(taken) < min(count, samples):
        for rule, ranking in left.items():
            row = next((row for row in ranking if row not in taken), None)
            if row is not None and len(taken) < count:
                taken[row] = rule
    return [(row, why) for rule in rankings for row, why in taken.items() if why == rule]


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
