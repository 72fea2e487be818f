"""Predicts which of several classes a sample is of."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.metrics.calibration import Basis, Temperature
from msajax.metrics.table import reported_by
from msajax.tasks.base import Loss, Task, named_by, over_rows
from msajax.tasks.views import Counts, SampleView, ScoredSamples, ShareRow, Shares, Views

_ROUNDED = 5e-3  # what a probability is off by that some tool prints with two digits
_LEAST = -87.0  # the logarithm of the smallest probability


def _nats(score: Any, label: Any) -> Any:
    """Computes -log p `[B]` of logits `[B, C]` and classes `[B, 1]` counted from 0."""
    import chex
    import optax

    chex.assert_shape(label, (score.shape[0], 1))
    classes = label[:, 0].astype("int32")
    return optax.losses.softmax_cross_entropy_with_integer_labels(score, classes)


def _focal(train: Any) -> Loss:
    """Makes the loss `(1 - p)^gamma * -log p`, p of the true class (Lin et al., 2017)."""
    import jax.numpy as jnp

    def of_rows(score: Any, label: Any) -> Any:
        nats = _nats(score, label)
        wrong = -jnp.expm1(-nats)  # 1 - p
        # For gamma < 1 the slope of the power is infinite at 0; the loss is 0 there anyway.
        return jnp.where(wrong > 0, wrong, 1) ** train.focal_gamma * nats

    return over_rows(of_rows if train.focal_gamma else _nats)


class Classification(Task):
    """Predicts classes: scores `[N, C]` are probabilities, labels `[N, 1]` the class, from 0."""

    kind = "classification"
    losses = {"cross_entropy": lambda _: over_rows(_nats), "focal": _focal}
    reporters = ("classes",)
    usual_selection = "cross_entropy"
    has_classes = True
    not_calibrated = "The probabilities have no temperature"

    @classmethod
    def of(cls, names: tuple[str, ...], train_labels: NDArray | None) -> "Classification":
        """Builds the task of classes of these names."""
        return cls(names, reported_by("classes"))

    @staticmethod
    def scores(outputs: Any) -> Any:
        """Turns logits `[B, C]` into probabilities."""
        import jax  # what reads files alone does without

        nats = jax.nn.log_softmax(outputs, axis=-1)
        # float32 has no smaller normal numbers: a probability of 0 would have no logarithm.
        return jax.numpy.exp(jax.numpy.maximum(nats, _LEAST))

    @staticmethod
    def label_width(names: Sequence[str]) -> int:
        """Counts one column: the number of the class."""
        return 1

    @staticmethod
    def label_columns(names: Sequence[str]) -> list[str]:
        """Names the true class and the most probable one."""
        return ["label", "predicted"]

    @staticmethod
    def label_cells(
        label: NDArray | None, mean: NDArray, names: Sequence[str], number: Any
    ) -> list[str]:
        """Writes the names of the true class, empty if it is not known, and the most probable."""
        return ["" if label is None else names[int(label[0])], names[int(mean.argmax())]]

    @classmethod
    def names_in(cls, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Reads the classes from `score_<class>`, without the columns of a class's seeds."""
        if "predicted" not in columns:
            return None
        scores = [c for c in columns if c.startswith("score_")]
        return tuple(c.removeprefix("score_") for c in scores if named_by(c) not in scores)

    @staticmethod
    def read_columns_of(names: Sequence[str]) -> list[str]:
        """Names the column of the true class."""
        return ["label"]

    @staticmethod
    def read_label(text: str, names: Sequence[str]) -> float:
        """Reads the number of a class from its name."""
        if text not in names:
            raise ValueError(f"not one of the classes {', '.join(names)}")
        return float(names.index(text))

    @staticmethod
    def is_score(scores: NDArray) -> NDArray:
        """Says of which samples `[N]` all scores are probabilities, as printed by any tool."""
        off = np.abs(scores.sum(axis=2) - 1).max(axis=0)
        inside = ((scores >= 0) & (scores <= 1 + _ROUNDED)).all(axis=(0, 2))
        return inside & (off <= min(_ROUNDED * scores.shape[2], 0.5))

    @staticmethod
    def comparable(labels: NDArray, scores: NDArray, names: Sequence[str]) -> NDArray:
        """Returns the names of the true classes, which two runs may number otherwise."""
        return np.array(names, object)[labels.astype(int)]

    @staticmethod
    def errors(labels: NDArray, scores: NDArray) -> NDArray:
        """Measures -log of the probability of the true class."""
        with np.errstate(divide="ignore"):
            return -np.log(scores[np.arange(len(scores)), labels[:, 0].astype(int)])

    @staticmethod
    def ranked(names: Sequence[str]) -> str:
        """Says by what samples are ranked."""
        return "by the probability of the true class"

    @staticmethod
    def views(scored: ScoredSamples, is_sentiment: bool) -> Views:
        """Spreads the probability of the true class, and counts what is taken for what."""
        names, true = scored.names, scored.labels[:, 0].astype(int)
        of_true = scored.scores[np.arange(len(true)), true]
        text = (
            "The probability that the model gives to the true class, by that class. Probabilities "
            "are means over random seeds."
        )
        return Views(
            shares=Shares(true, names, of_true, "probability", text),
            counts=[Counts("", true, scored.scores.argmax(axis=1), names)],
            by=true,
            names=names,
        )

    @staticmethod
    def view_of(scored: ScoredSamples, i: int) -> SampleView:
        """Shows the likeliest classes, and always the true one."""
        scores, true = scored.scores[i], int(scored.labels[i, 0])
        order = np.argsort(-scores, kind="stable").tolist()
        rows = [ShareRow(scored.names[k], float(scores[k]), k == true) for k in order]
        left = "classes that are less likely"
        return SampleView("the true class has", scores[true], as_share=True, rows=rows, left=left)

    def describe(self) -> str:
        """Says how many classes there are."""
        return f"{len(self.names)} classes"

    def calibrate(self, scores: NDArray, labels: NDArray, basis: Basis) -> Temperature | None:
        """Fits the temperature of the probabilities; None of too few samples."""
        return Temperature.fit(scores, labels, basis)

    def floors(self, train_labels: NDArray, labels: NDArray) -> dict[str, dict[str, float]]:
        """Computes the largest class's share, and the cross-entropy of the training shares."""
        train, y = train_labels[:, 0].astype(int), labels[:, 0].astype(int)
        shares = np.bincount(train, minlength=len(self.names)) / len(train)
        with np.errstate(divide="ignore"):
            of_label = -np.log(shares[y]).mean()
        return {
            "majority": {"accuracy": float(np.bincount(y).max() / len(y))},
            "train_shares": {"cross_entropy": float(of_label)},
        }
