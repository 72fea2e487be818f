"""Predicts which of several labels a sample has: none, some or all of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from msajax.errors import UserError
from msajax.metrics.calibration import FEWEST, Basis, Calibration
from msajax.metrics.measures import Metric, ratio
from msajax.metrics.table import reported_by
from msajax.tasks.base import Floor, Loss, Task, finite, over_rows
from msajax.tasks.regression import each_and_mean
from msajax.tasks.views import Counts, SampleView, ScoredSamples, ShareRow, Views

_USUAL = 0.5


@dataclasses.dataclass(frozen=True)
class Thresholds(Calibration):
    """Holds above which probability of the ensemble a sample has each of K labels."""

    kind: ClassVar[str] = "thresholds"
    thresholds: tuple[float, ...] = ()

    @classmethod
    def fit(cls, scores: NDArray, labels: NDArray, basis: Basis) -> "Thresholds | None":
        """Chooses the threshold of largest F1 for probabilities `[S, n, K]` and labels `[n, K]`.

        Candidates lie halfway between two neighbouring probabilities; of equally good ones that
        nearest to 0.5 is taken, and 0.5 for a label that no sample has. None of too few samples.
        """
        if len(labels) < FEWEST:
            return None
        found = []
        for p, y in zip(scores.mean(axis=0).T, labels.T > 0, strict=True):
            values = np.unique(p)
            candidates = np.append((values[1:] + values[:-1]) / 2, _USUAL)
            has = p > candidates[:, None]  # [candidates, n]
            f1 = 2 * (has & y).sum(axis=1) / np.maximum(has.sum(axis=1) + y.sum(), 1)
            best = candidates[f1 == f1.max()] if y.any() else np.array([_USUAL])
            found.append(float(best[np.abs(best - _USUAL).argmin()]))
        return cls(**dataclasses.asdict(basis), thresholds=tuple(found))

    def measure(self, scores: NDArray, labels: NDArray) -> dict[str, Any]:
        """Measures F1 at 0.5 and at these thresholds, for `[S, N, K]` and labels `[N, K]`.

        Returns:
            "f1_macro_at_half", "f1_macro" and "accuracy" at the thresholds, means over labels.
        """
        p, y = scores.mean(axis=0), labels > 0
        at_half, here = p > _USUAL, p > np.array(self.thresholds)
        return {
            "f1_macro_at_half": _f1_macro(at_half, y),
            "f1_macro": _f1_macro(here, y),
            "accuracy": float((here == y).mean()),
        }

    def applied(self, scores: NDArray) -> dict[str, NDArray]:
        """Returns "labels" `[N, K]` bool, which labels each sample has."""
        return {"labels": scores.mean(axis=0) > np.array(self.thresholds)}

    def told(self, test: Mapping[str, Any]) -> str:
        """Puts what `measure` found on test into a sentence."""
        half, here = (f"{100 * test[key]:.1f} %" for key in ("f1_macro_at_half", "f1_macro"))
        return (
            f"With a threshold of its own for each label the ensemble's macro F1 on test is "
            f"{here}, and {half} at 0.5 ({self.describe()})."
        )


def _f1_macro(has: NDArray, y: NDArray) -> float:
    both = (has.sum(axis=0) + y.sum(axis=0)).astype(float)
    return float(np.mean(2 * (has & y).sum(axis=0) / np.maximum(both, 1)))


def _binary_cross_entropy(_: Any) -> Loss:
    """Makes the loss of a binary cross-entropy for each label, their mean."""
    import chex
    import optax

    def of_rows(score: Any, label: Any) -> Any:
        chex.assert_equal_shape([score, label])
        return optax.losses.sigmoid_binary_cross_entropy(score, label).mean(axis=-1)

    return over_rows(of_rows)


def _label_metrics(names: tuple[str, ...]) -> dict[str, Metric]:
    """Makes the metrics of K labels: means over them, and those of each.

    Weighted F1 alone is weighted by how many samples have a label.
    """
    of_labels = reported_by("labels")
    weighted = of_labels.pop("f1_weighted")
    found = each_and_mean(of_labels, names)

    def over_labels(n: NDArray, hits: NDArray, true: NDArray, predicted: NDArray) -> NDArray:
        f1 = 2 * hits / np.maximum(true + predicted, 1)
        return ratio((true * f1).sum(axis=-2), true.sum(axis=-2))

    found["f1_weighted"] = weighted._replace(of_sums=over_labels)
    return {name: found[name] for name in (*reported_by("labels"), *found)}


class MultiLabel(Task):
    """Predicts labels: scores `[N, K]` are probabilities, each by itself, targets 0 or 1."""

    kind = "multi_label"
    reporters = ("labels",)
    usual_selection = "binary_cross_entropy"
    not_calibrated = "The labels have no thresholds of their own"
    scores_are = "the probabilities of the labels, each from 0 to 1"
    ranked = "by the probability of what is true, the mean over labels of its logarithm"
    floor_words = {
        **Task.floor_words,
        "majority": Floor(
            "c",
            "more frequent answer",
            "of each label always the more frequent answer of the samples measured",
        ),
    }
    losses = {"cross_entropy": _binary_cross_entropy}
    calibration = Thresholds

    @classmethod
    def of(cls, names: tuple[str, ...], train_labels: NDArray | None) -> "MultiLabel":
        """Builds the task of labels of these names."""
        return cls(names, _label_metrics(names))

    @staticmethod
    def scores(outputs: Any) -> Any:
        """Turns outputs `[B, K]` into probabilities."""
        import jax

        return jax.nn.sigmoid(outputs)

    @classmethod
    def asked_for(cls, headers: Sequence[Any]) -> bool:
        """Says whether labels are columns of 0 and 1, not one-hot in every split."""
        kinds = {header.label_kind for header in headers}
        return "binary" in kinds and kinds <= {"binary", "one_hot"}

    @classmethod
    def learned(cls, path: str, headers: Sequence[Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names the labels, whose columns hold 0 and 1."""
        if not {header.label_kind for header in headers} <= {"binary", "one_hot"}:
            raise UserError(
                f"model.task = multi_label: the labels of {path} are not several columns of 0 and "
                "1; --config.data.binarize=0 makes 1 of what lies above 0."
            )
        return headers[0].label_names, ()

    @staticmethod
    def from_stored(
        labels: NDArray, names: Sequence[str], numbers: Sequence[int]
    ) -> NDArray | None:
        """Takes columns of 0 and 1 as they are."""
        fits = labels.shape[1] == len(names) and np.isin(labels, (0, 1)).all()
        return labels if fits else None

    @classmethod
    def suspicions(
        cls, labels: Any, names: Any, numbers: Any, columns: Any, is_auto: bool
    ) -> list[str]:
        """Tells of labels that all samples of a split have, or none."""
        return [
            f"{split}: {'every sample has' if column[0] else 'no sample has'} the label {name}."
            for split, y in labels.items()
            for name, column in zip(names, y.T, strict=True)
            if len(column) > 1 and (column == column[0]).all()
        ]

    @staticmethod
    def label_columns(names: Sequence[str]) -> list[str]:
        """Names the true labels, and those that are more likely than not."""
        return [f"{what}_{name}" for what in ("label", "predicted") for name in names]

    @staticmethod
    def label_cells(
        label: NDArray | None, mean: NDArray, names: Sequence[str], number: Any
    ) -> list[str]:
        """Writes 0 or 1; nothing for labels that are not known."""
        true = [""] * len(names) if label is None else [number(y) for y in label]
        return true + [number(p > _USUAL) for p in mean]

    @classmethod
    def names_in(cls, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Reads the labels from `predicted_<name>`."""
        found = [c.removeprefix("predicted_") for c in columns if c.startswith("predicted_")]
        return tuple(found) or None

    @staticmethod
    def read_columns_of(names: Sequence[str]) -> list[str]:
        """Names the columns of the true labels."""
        return [f"label_{name}" for name in names]

    @staticmethod
    def read_label(text: str, names: Sequence[str]) -> float:
        """Reads whether a sample has a label."""
        value = finite(text)
        if value not in (0, 1):
            raise ValueError("neither 0 nor 1")
        return value

    @staticmethod
    def is_score(scores: NDArray) -> NDArray:
        """Says of which samples `[N]` all scores are probabilities."""
        return ((scores >= 0) & (scores <= 1)).all(axis=(0, 2))

    @staticmethod
    def errors(labels: NDArray, scores: NDArray) -> NDArray:
        """Measures the mean over labels of -log of the probability of what is true."""
        of_true = np.where(labels > 0, scores, 1 - scores)
        return -np.log(np.maximum(of_true, np.finfo(np.float64).tiny)).mean(axis=1)

    @staticmethod
    def views(scored: ScoredSamples, is_sentiment: bool) -> Views:
        """Counts of each label who has it and who is said to."""
        true, said = scored.labels > 0, scored.scores > _USUAL
        counts = [
            Counts(name, true[:, k].astype(int), said[:, k].astype(int), ("absent", "present"))
            for k, name in enumerate(scored.names)
        ]
        return Views(counts=counts, by=true.sum(axis=1).astype(float), sort="number of labels")

    @staticmethod
    def view_of(scored: ScoredSamples, i: int) -> SampleView:
        """Shows the likeliest labels, and which are true."""
        scores, true = scored.scores[i], scored.labels[i] > 0
        order = np.argsort(-scores, kind="stable")
        rows = [ShareRow(scored.names[k], float(scores[k]), bool(true[k])) for k in order]
        right = float(((scores > _USUAL) == true).mean())
        return SampleView("labels right:", right, as_share=True, rows=rows, left="labels")

    def describe(self) -> str:
        """Says how many labels there are."""
        return f"{len(self.names)} labels"

    def targets(self, labels: NDArray) -> NDArray:
        """Arranges labels `[N, K]` as `[K, N]`."""
        return labels.T

    def floors(self, train_labels: NDArray, labels: NDArray) -> dict[str, dict[str, float]]:
        """Computes the share of the more frequent answer, and the nats of the shares of train."""
        share, y = np.clip(train_labels.mean(axis=0), 1e-7, 1 - 1e-7), labels > 0
        nats = -np.log(np.where(y, share, 1 - share))
        present = y.mean(axis=0)
        return {
            "majority": {"accuracy": float(np.maximum(present, 1 - present).mean())},
            "train_shares": {"binary_cross_entropy": float(nats.mean())},
        }
