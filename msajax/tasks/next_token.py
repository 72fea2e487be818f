"""Predicts each token of a sequence from those before it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.errors import UserError
from msajax.metrics.table import reported_by
from msajax.tasks.base import Loss, Task
from msajax.tasks.views import SampleView, ScoredSamples


def _cross_entropy(_: Any) -> Loss:
    """Makes the loss of nats per token over a batch, from scores (nats, tokens) `[B, 2]`."""
    import chex
    import jax.numpy as jnp

    def measure(prediction: Any, batch: Any) -> tuple[Any, Any]:
        chex.assert_shape(prediction.score, (batch.labels.shape[0], 2))
        # By masks and not by labels: a transform may have hidden steps.
        (mask,) = batch.masks.values()
        tokens = (mask[:, :-1] & mask[:, 1:]).sum(-1).astype(jnp.float32)
        nats = prediction.score[:, 0] / jnp.maximum(prediction.score[:, 1], 1)
        weight = batch.row_weight * tokens
        return (nats * batch.row_weight * tokens).sum(), weight.sum()

    return Loss(measure)


class NextToken(Task):
    """Predicts tokens: scores `[N, 2]` are a sequence's nats, and how many steps are predicted.

    The nats are the negative log-likelihood of these steps. Targets `[N, T]` are the token to
    predict at each step, -1 where there is none; they come from the token ids, and no label is
    read.
    """

    kind = "next_token"
    losses = {"cross_entropy": _cross_entropy}
    reporters = ("tokens",)
    usual_selection = "cross_entropy"
    choosable = False
    reads_labels = False
    explains = False
    continues_text = True
    own_names = ("negative_log_likelihood", "tokens")
    ranked = "by nats per token"

    @classmethod
    def of(cls, names: tuple[str, ...], train_labels: NDArray | None) -> "NextToken":
        """Builds the task."""
        return cls(names, reported_by("tokens"))

    @staticmethod
    def targets_from(features: NDArray, mask: NDArray) -> NDArray:
        """Takes the token that follows each step: `[N, T]` float64, -1 if either is padding.

        The first token is not predicted, and nothing marks the end, so that positions mean the same
        in a model that begins from this one's parameters.
        """
        targets = np.full(features.shape, -1.0)
        follows = mask[:, :-1] & mask[:, 1:]
        targets[:, :-1][follows] = features[:, 1:][follows]
        return targets

    @staticmethod
    def require_targets(labels: NDArray, where: str) -> None:
        """Raises `UserError` unless there is a token to predict."""
        if (labels < 0).all():
            raise UserError(
                f"{where}: no sequence has two steps in a row: there is no next token to predict."
            )

    @classmethod
    def names_in(cls, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Recognises the column of the log-likelihood."""
        return cls.own_names if f"score_{cls.own_names[0]}" in columns else None

    @staticmethod
    def comparable(labels: NDArray, scores: NDArray, names: Sequence[str]) -> NDArray:
        """Returns the numbers of tokens, `[N, 1]`."""
        return scores[:, 1:]

    @staticmethod
    def errors(labels: NDArray, scores: NDArray) -> NDArray:
        """Measures nats per token."""
        nats, tokens = scores.T
        return np.where(tokens > 0, nats / np.maximum(tokens, 1), np.nan)

    @staticmethod
    def view_of(scored: ScoredSamples, i: int) -> SampleView:
        """Shows nats per token."""
        nats, tokens = scored.scores[i]
        after = f"nats per token, of {tokens:.0f} tokens"
        return SampleView("", nats / max(tokens, 1), after=after)

    def describe(self) -> str:
        """Says that these are tokens."""
        return "tokens"

    def floors(self, train_labels: NDArray, labels: NDArray) -> dict[str, dict[str, float]]:
        """Scores by the token frequencies of train, each counted once more than it occurs."""
        targets, train = labels[labels >= 0].astype(int), train_labels[train_labels >= 0]
        counts = np.bincount(train.astype(int), minlength=targets.max(initial=0) + 1) + 1
        nats = -np.log(counts[targets] / counts.sum())
        entropy = float(nats.mean()) if nats.size else float("nan")
        return {"train_shares": {"cross_entropy": entropy, "perplexity": float(np.exp(entropy))}}
