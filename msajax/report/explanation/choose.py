"""Chooses the samples that are explained: by fixed rules, so that nobody picks the nice ones."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from msajax.errors import UserError
from msajax.spec import CorpusSpec

USUAL, MOST = 20, 1000  # samples


class Chosen(NamedTuple):
    """Says that a sample is explained, and why.

    Attributes:
        row: its number in the split.
        why: the rule that chose it.
    """

    row: int
    why: str


class Aim(NamedTuple):
    """Says which output is explained.

    Attributes:
        spec: of the model.
        output: number of the output or class; None for each sample's most probable class.
    """

    spec: CorpusSpec
    output: int | None

    @classmethod
    def of(cls, spec: CorpusSpec, target: str | None) -> "Aim":
        """Reads the name of an output or class; without one it is the first, or the predicted.

        Raises:
            UserError: for a name that the model does not have, or a model of the next token.
        """
        if spec.label_kind == "next_token":
            raise UserError(
                "--mode=explain explains scores and classes; this model predicts the next token."
            )
        if not target:
            return cls(spec, None if spec.label_kind == "classification" else 0)
        if target not in spec.label_names:
            raise UserError(
                f"--target={target} is no output of this model; it has "
                f"{', '.join(spec.label_names)}."
            )
        return cls(spec, spec.label_names.index(target))

    def outputs(self, scores: np.ndarray) -> np.ndarray:
        """Returns which output of each sample is explained, `[N]`, for mean scores `[N, K]`."""
        return scores.argmax(1) if self.output is None else np.full(len(scores), self.output)

    def rankings(self, scores: np.ndarray, labels: np.ndarray | None) -> dict[str, np.ndarray]:
        """Ranks samples by how well they are predicted; without labels, by what is predicted.

        Args:
            scores: `[N, K]`, means over random seeds.
            labels: `[N, L]`, or None.

        Returns:
            `{rule: [N]}`, the numbers of the samples, the most fitting one first.
        """
        rows, is_classes = np.arange(len(scores)), self.spec.label_kind == "classification"
        if labels is None:
            explained = scores[rows, self.outputs(scores)]
            rules = ("most certain", "least certain") if is_classes else ("highest", "lowest")
            return dict(zip(rules, _both_ends(-explained), strict=True))
        if is_classes:
            error = 1 - scores[rows, labels[:, 0].astype(int)]
        else:
            error = np.abs(scores[:, self.output] - labels[:, self.output])
        return dict(zip(("best predicted", "worst predicted"), _both_ends(error), strict=True))


def _both_ends(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks samples from the smallest value on, and from the largest; equal ones by number."""
    return np.argsort(values, kind="stable"), np.argsort(-values, kind="stable")


def ranked_by_change(changes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Ranks samples by how much their score changes `[N]` without each modality."""
    return {
        f"most moved by {m}": np.argsort(-np.abs(change), kind="stable")
        for m, change in changes.items()
    }


def choose_samples(rankings: Mapping[str, Sequence[int]], count: int) -> list[Chosen]:
    """Takes samples from the rankings in turn, each once, until there are `count`.

    Returns:
        The samples, by rule and then by rank.
    """
    taken: dict[int, str] = {}
    left = {rule: iter(np.asarray(ranking).tolist()) for rule, ranking in rankings.items()}
    samples = len(next(iter(rankings.values())))
    while len(taken) < min(count, samples):
        for rule, ranking in left.items():
            row = next((row for row in ranking if row not in taken), None)
            if row is not None and len(taken) < count:
                taken[row] = rule
    return [Chosen(row, why) for rule in rankings for row, why in taken.items() if why == rule]
