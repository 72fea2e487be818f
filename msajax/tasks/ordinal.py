"""Predicts which of several ordered levels a sample is of."""

from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.errors import UserError
from msajax.metrics import measures
from msajax.metrics.measures import Metric
from msajax.metrics.table import reported_by
from msajax.tasks.base import Loss, over_rows
from msajax.tasks.classification import LEAST, Classification, classes_of


def _thresholds(outputs: Any) -> tuple[Any, Any]:
    """Computes the logits `[B, K - 1]` of P(y > k), and how much each falls `[B, K - 2]`.

    The k-th is `o_1 - sum_{j = 2..k} softplus(o_j)`: they fall, whatever the outputs are.
    """
    import jax

    gaps = jax.nn.softplus(outputs[..., 1:])
    first = outputs[..., :1]
    return jax.numpy.concatenate([first, first - gaps.cumsum(axis=-1)], axis=-1), gaps


def _cumulative(_: Any) -> Loss:
    """Makes the loss of a binary cross-entropy for each threshold, their sum (Frank and Hall)."""
    import chex
    import jax.numpy as jnp
    import optax

    def of_rows(score: Any, label: Any) -> Any:
        chex.assert_shape(label, (score.shape[0], 1))
        above = label > jnp.arange(score.shape[-1])  # [B, K - 1]
        return optax.losses.sigmoid_binary_cross_entropy(_thresholds(score)[0], above).sum(axis=-1)

    return over_rows(of_rows)


def _of_level(metric: Metric) -> Metric:
    """Applies a metric of numbers to the expected level of probabilities p (..., K, N)."""

    def terms(p: NDArray, y: NDArray) -> Sequence[NDArray]:
        return metric.terms(expected(p, axis=-2), y)

    return metric._replace(terms=terms)


def expected(probabilities: NDArray, axis: int = -1) -> NDArray:
    """Computes the mean level, from 0 to K - 1, of probabilities with K levels along an axis."""
    levels = np.arange(probabilities.shape[axis])
    return np.moveaxis(probabilities, axis, -1) @ levels


class Ordinal(Classification):
    """Predicts levels: scores `[N, K]` are probabilities, labels `[N, 1]` the level, from 0.

    A model has K - 1 outputs, one for each threshold between two levels.
    """

    kind = "ordinal"
    reporters = ("levels", "classes")
    usual_selection = "mae"
    losses: dict[str, Callable[[Any], Loss]] = {"cumulative": _cumulative}

    @classmethod
    def of(cls, names: tuple[str, ...], train_labels: NDArray | None) -> "Ordinal":
        """Builds the task of levels of these names, the lowest first."""
        own = {"mae": _of_level(measures.mae), "corr": _of_level(measures.corr)}
        return cls(names, own | reported_by("classes"))

    @classmethod
    def reports(cls, names: Set[str]) -> bool:
        """Says whether metrics of these names are some of those of levels."""
        of_level = {"mae", "corr"}
        return of_level <= names and super().reports(names - of_level)

    @staticmethod
    def outputs(names: Sequence[str]) -> int:
        """Counts the thresholds between levels."""
        return len(names) - 1

    @staticmethod
    def scores(outputs: Any) -> Any:
        """Turns outputs `[B, K - 1]` into probabilities `[B, K]`."""
        import jax

        jnp = jax.numpy
        logits, gaps = _thresholds(outputs)
        above, below = jax.nn.sigmoid(logits), jax.nn.sigmoid(-logits)
        # s(a) - s(b) as a product, since the difference of two numbers near 1 keeps no digits.
        between = above[..., :-1] * below[..., 1:] * -jnp.expm1(-gaps)
        found = jnp.concatenate([below[..., :1], between, above[..., -1:]], axis=-1)
        # float32 has no smaller normal numbers: a probability of 0 would have no logarithm.
        return jnp.maximum(found, jnp.exp(LEAST))

    @classmethod
    def asked_for(cls, headers: Sequence[Any]) -> bool:
        """Says no: what is ordered looks like classes, or like scores."""
        return False

    @classmethod
    def learned(cls, path: str, headers: Sequence[Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names the levels of all splits together, which are whole numbers in one column."""
        if not classes_of(headers):
            raise UserError(
                f"model.task = ordinal: the labels of {path} are no levels, which are whole "
                "numbers in one column; round them, or take model.task = regression."
            )
        return super().learned(path, headers)

    @staticmethod
    def label_columns(names: Sequence[str]) -> list[str]:
        """Names the true level, the most probable one, and the expected one as a number."""
        return ["label", "predicted", "level"]

    @staticmethod
    def label_cells(
        label: NDArray | None, mean: NDArray, names: Sequence[str], number: Any
    ) -> list[str]:
        """Writes the names of the true and the most probable level, and the mean, from 0."""
        return [*Classification.label_cells(label, mean, names, number), number(expected(mean))]

    @classmethod
    def names_in(cls, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Reads the levels from `score_<level>` where there is a column of the expected one."""
        return super().names_in(columns) if "level" in columns else None

    def describe(self) -> str:
        """Says how many levels there are."""
        return f"{len(self.names)} ordered levels"

    def floors(self, train_labels: NDArray, labels: NDArray) -> dict[str, dict[str, float]]:
        """Computes those of classes, and the error of the median level of train."""
        median = np.median(train_labels[:, 0])
        error = float(np.abs(labels[:, 0] - median).mean())
        return {"train_median": {"mae": error}, **super().floors(train_labels, labels)}
