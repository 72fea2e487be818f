"""Predicts which of several classes a sample is of."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.errors import UserError
from msajax.metrics.calibration import Temperature
from msajax.metrics.table import reported_by
from msajax.tasks.base import Loss, Task, named_by, over_rows
from msajax.tasks.views import Counts, SampleView, ScoredSamples, ShareRow, Shares, Views

logger = logging.getLogger(__name__)

_SHOWN = 8  # classes listed by name
_ROUNDED = 5e-3  # what a probability is off by that some tool prints with two digits
LEAST = -87.0  # the logarithm of the smallest probability


def are_one_hot(labels: NDArray) -> bool:
    """Says whether each row of labels `[N, K]` is one 1 among zeros."""
    ones = (labels == 1).sum(axis=1)
    return bool(((ones == 1) & ((labels != 0).sum(axis=1) == 1)).all())


def classes_of(headers: Iterable[Any]) -> dict[int, str]:
    """Returns the classes of all splits together, in order; {} unless each of them has some."""
    headers = list(headers)
    found = dict(item for header in headers for item in header.classes.items())
    return dict(sorted(found.items())) if all(header.classes for header in headers) else {}


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
    calibration = Temperature
    reporters = ("classes",)
    usual_selection = "cross_entropy"
    has_classes = True
    not_calibrated = "The probabilities have no temperature"
    scores_are = "the probabilities of the classes, from 0 to 1 and 1 in sum"
    ranked = "by the probability of the true class"

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
        return jax.numpy.exp(jax.numpy.maximum(nats, LEAST))

    @classmethod
    def asked_for(cls, headers: Sequence[Any]) -> bool:
        """Says whether labels are whole numbers of classes, or one-hot rows, in every split."""
        kinds = {header.label_kind for header in headers}
        return kinds in ({"one_hot"}, {"classes"})

    @classmethod
    def learned(cls, path: str, headers: Sequence[Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names the classes of all splits together: one that train lacks must not fail a run."""
        one_hot = all(header.label_kind == "one_hot" for header in headers)
        classes = classes_of(headers)
        if not one_hot and not classes:
            raise UserError(
                f"model.task = {cls.kind}: the labels of {path} are no classes, which are whole "
                "numbers in one column, or rows of one 1 among zeros."
            )
        numbers = () if one_hot else tuple(classes)
        names = headers[0].label_names if one_hot else tuple(classes.values())
        if len(names) < 2:
            raise UserError(
                f"{path}: every label is of the same class, {names[0]!r}: "
                "--config.model.task=regression learns it as a score."
            )
        return names, numbers

    @staticmethod
    def from_stored(
        labels: NDArray, names: Sequence[str], numbers: Sequence[int]
    ) -> NDArray | None:
        """Counts classes `[N, 1]` from 0."""
        if numbers:
            if labels.shape[1] != 1 or not np.isin(labels, numbers).all():
                return None
            return np.searchsorted(np.array(numbers), labels).astype(np.float64)
        if labels.shape[1] != len(names) or not are_one_hot(labels):
            return None
        return labels.argmax(axis=1).astype(np.float64)[:, None]

    @staticmethod
    def check_train(path: str, targets: NDArray, names: Sequence[str]) -> None:
        """Says which classes train lacks; refuses a training split of a single class."""
        seen = set(targets[:, 0].astype(int))
        missing = [name for k, name in enumerate(names) if k not in seen]
        if len(seen) < 2:
            raise UserError(
                f"{path}: every label of train is of the same class: "
                "--config.model.task=regression learns labels as scores."
            )
        if missing:
            logger.warning("No sample of train is of the class(es) %s.", ", ".join(missing))

    @classmethod
    def suspicions(
        cls,
        labels: Mapping[str, NDArray],
        names: Sequence[str],
        numbers: Sequence[int],
        columns: Sequence[str],
        is_auto: bool,
    ) -> list[str]:
        """Tells of splits of a single class, and of classes that train lacks."""
        told: list[str] = []
        found = {
            split: np.searchsorted(np.array(numbers), y[:, 0]) if numbers else y.argmax(axis=1)
            for split, y in labels.items()
        }
        for split, of in found.items():
            if len(of) > 1 and (of == of[0]).all():
                end = "there is nothing to learn"
                end = end if split == "train" else "none can be told from it there"
                told.append(
                    f"{split}: all {len(of)} samples are of the class {names[of[0]]}: {end}."
                )
        for split, of in found.items() if "train" in found else ():
            new = np.setdiff1d(of, found["train"])
            if new.size:
                more = ", …" if new.size > _SHOWN else ""
                told.append(
                    f"{split}: {np.isin(of, new).sum()} sample(s) are of class(es) that train "
                    f"lacks ({', '.join(names[k] for k in new[:_SHOWN])}{more}): nothing learns "
                    "them."
                )
        return told

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
