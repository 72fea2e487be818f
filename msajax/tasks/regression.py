"""Predicts real numbers: one sentiment score, or several scores."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.metrics import measures
from msajax.metrics.calibration import Intervals
from msajax.metrics.measures import Metric, ratio
from msajax.metrics.table import is_sentiment, reported_by
from msajax.tasks.base import Loss, Task, over_rows
from msajax.tasks.views import Counts, OutputRow, Pairs, SampleView, ScoredSamples, Views

_MOST_CLASSES = 20  # more whole numbers from 0 are counts or grades
_FEW = 3  # so few values are classes wherever they begin; -3 to 3 and 1 to 5 are degrees
_REPEATED = 3  # times that a class occurs, on average; fewer labels are whole by chance
_SEVEN = tuple("−3 −2 −1 0 +1 +2 +3".split())


def _of_error(penalty: Callable[[Any], Any]) -> Loss:
    """Makes a loss of a penalty of errors `score - label`: its mean over rows and K outputs."""
    import chex

    def of_rows(score: Any, label: Any) -> Any:
        chex.assert_equal_shape([score, label])  # [B] against [B, 1] would broadcast to [B, B]
        return penalty(score - label).mean(axis=-1)

    return over_rows(of_rows)


def _huber(train: Any) -> Loss:
    import optax

    return _of_error(lambda error: optax.losses.huber_loss(error, delta=train.huber_delta))


def _ccc(_: Any) -> Loss:
    """Makes the loss 1 - concordance correlation (Lin, 1989) of a batch, the mean over outputs.

    Its weight is the batch's number of rows: in an epoch's value larger batches count more.
    """
    import chex
    import jax.numpy as jnp

    def measure(prediction: Any, batch: Any) -> tuple[Any, Any]:
        chex.assert_equal_shape([prediction.score, batch.labels])
        weight = batch.row_weight[:, None]
        rows = weight.sum()

        def mean(x: Any) -> Any:
            return (x * weight).sum(axis=0) / jnp.maximum(rows, 1)

        mean_p, mean_y = mean(prediction.score), mean(batch.labels)
        p, y = prediction.score - mean_p, batch.labels - mean_y
        spread = mean(p * p) + mean(y * y) + jnp.square(mean_p - mean_y)
        # Where scores and labels are one constant (0 / 0) the loss is 1, without a gradient.
        concordance = 2 * mean(p * y) / jnp.where(spread > 0, spread, 1)
        return (1 - concordance).mean() * rows, rows

    return Loss(measure, compares_rows=True)


class Regression(Task):
    """Predicts real numbers: scores and labels are `[N, K]`."""

    kind = "regression"
    has_scale = True
    losses = {
        "l1": lambda _: _of_error(abs),
        "mse": lambda _: _of_error(lambda error: error * error),
        "huber": _huber,
        "ccc": _ccc,
    }
    calibration = Intervals
    reporters = ("sentiment", "scores", "outputs")
    usual_selection = "mae"
    not_calibrated = "The scores have no 90 % interval"
    ranked = "by the distance of the score from the label"
    ranked_of_several = "by the distance of scores from labels, the mean over outputs"

    @classmethod
    def of(cls, names: tuple[str, ...], train_labels: NDArray | None) -> "Regression":
        """Builds the task; the range of a single score's labels decides which metrics suit it."""
        if len(names) == 1:
            reporter = "sentiment" if is_sentiment(train_labels[:, 0]) else "scores"
            return cls(names, of_one_output(reporter))
        return cls(names, each_and_mean(reported_by("outputs"), names))

    @staticmethod
    def suspicions(
        labels: Mapping[str, NDArray],
        names: Sequence[str],
        numbers: Sequence[int],
        columns: Sequence[str],
        is_auto: bool,
    ) -> list[str]:
        """Tells of columns that are constant, and of numbers that look like those of classes."""
        told = [
            f"{split}: the label {name} is {column[0]:g} in all {len(column)} samples: "
            + ("there is nothing to learn." if split == "train" else "it has no correlation there.")
            for split, y in labels.items()
            for name, column in zip(columns, y.T, strict=True)
            if len(column) > 1 and (column == column[0]).all()
        ]
        if not is_auto or len(columns) != 1:
            return told
        every = np.concatenate([*labels.values()])
        values = np.unique(every)
        whole = (values == np.round(values)).all()
        from_0 = len(values) <= _MOST_CLASSES and np.array_equal(values, np.arange(len(values)))
        is_few = 2 <= len(values) and (len(values) <= _FEW or from_0)
        if whole and is_few and len(every) >= _REPEATED * len(values):
            told.append(
                f"{columns[0]} takes the values {', '.join(f'{v:g}' for v in values)} alone, which "
                "are learned as scores: if they are classes, --config.model.task=classification "
                "learns them as such."
            )
        return told

    @staticmethod
    def begins_at(labels: NDArray) -> NDArray | None:
        """Returns the medians, unless labels are sentiment around 0.

        From 0, ratings of 1 to 7 would take thousands of small steps to reach their scale.
        """
        if labels.shape[1] == 1 and is_sentiment(labels[:, 0]):
            return None
        return np.median(labels, axis=0)

    @staticmethod
    def label_columns(names: Sequence[str]) -> list[str]:
        """Names `label`, or `label_<name>` for each of several outputs."""
        return [f"label_{name}" for name in names] if len(names) > 1 else ["label"]

    @staticmethod
    def label_cells(
        label: NDArray | None, mean: NDArray, names: Sequence[str], number: Any
    ) -> list[str]:
        """Writes the labels; empty where they are not known."""
        return [""] * len(names) if label is None else [number(y) for y in label]

    @staticmethod
    def score_columns(names: Sequence[str]) -> list[str]:
        """Names `score`, or `score_<name>` for each of several outputs."""
        return ["score"] if len(names) == 1 else [f"score_{name}" for name in names]

    @classmethod
    def names_in(cls, columns: Sequence[str]) -> tuple[str, ...]:
        """Reads the names of several outputs from `label_<name>`; every CSV may be of scores."""
        several = [c for c in columns if c.startswith("label_")]
        if not several or "label" in columns:
            return ("label",)
        return tuple(c.removeprefix("label_") for c in several)

    @staticmethod
    def read_columns_of(names: Sequence[str]) -> list[str]:
        """Names the columns of labels; a single output's is `label`, as `names_in` returns it."""
        return ["label"] if tuple(names) == ("label",) else [f"label_{name}" for name in names]

    @staticmethod
    def errors(labels: NDArray, scores: NDArray) -> NDArray:
        """Measures the distance from the label, a mean over several outputs."""
        return np.abs(scores - labels).mean(axis=1)

    @staticmethod
    def views(scored: ScoredSamples, is_sentiment: bool) -> Views:
        """Sets scores beside labels; those of sentiment also as 7 and as 2 classes."""
        labels, scores = scored.labels, scored.scores
        several = len(scored.names) > 1
        pairs = [
            Pairs(name if several else "", labels[:, k], scores[:, k])
            for k, name in enumerate(scored.names)
        ]
        counts = []
        if is_sentiment:
            both = labels[:, 0], scores[:, 0]
            seven = (np.round(np.clip(x, -3, 3)).astype(int) + 3 for x in both)
            kept = labels[:, 0] != 0
            two = ((x[kept] > 0).astype(int) for x in both)
            counts = [
                Counts("Seven classes: clipped to ±3 and rounded", *seven, _SEVEN),
                Counts("Two classes: labels of 0 left out", *two, ("negative", "positive")),
            ]
        sort = "mean label" if several else ""
        return Views(pairs=pairs, counts=counts, by=labels.mean(axis=1), sort=sort)

    @staticmethod
    def view_of(scored: ScoredSamples, i: int) -> SampleView:
        """Shows the outputs that are furthest off, each with its label and score."""
        labels, scores = scored.labels[i], scored.scores[i]
        bounded, several = scored.low is not None, len(scored.names) > 1
        rows = [
            OutputRow(
                scored.names[k] if several else "",
                labels[k],
                scores[k],
                scored.sd[i, k],
                (scored.low[i, k], scored.high[i, k]) if bounded else None,
            )
            for k in np.argsort(-np.abs(scores - labels), kind="stable")
        ]
        error = np.abs(scores - labels).mean()
        return SampleView("off by", error, rows=rows, left="outputs that are nearer")

    def describe(self) -> str:
        """Says how many scores there are."""
        return f"{len(self.names)} score(s) a sample"

    def floors(self, train_labels: NDArray, labels: NDArray) -> dict[str, dict[str, float]]:
        """Computes what scores without a model reach.

        Returns:
            `train_median`: the `mae` of that constant. For one score also `constant_0`, and
            `majority`: for each accuracy the largest share of one class among the labels measured,
            by its own classes and samples; NaN with a RuntimeWarning if it has no samples.
        """
        median = np.median(train_labels, axis=0)  # [K]
        if len(self.names) == 1:
            y, majority = labels[:, 0], {}
            for name, rule in ((name, metric.rule) for name, metric in self.reported.items()):
                if rule is None:
                    continue
                kept = rule.kept(y)
                _, counts = np.unique(rule.classes(y[kept]), return_counts=True)
                majority[name] = float(ratio(counts.max(initial=0), kept.sum()))
                if np.isnan(majority[name]):
                    warnings.warn(
                        f"the majority share of {name} is undefined (NaN) because "
                        f"{measures.NO_SAMPLES}",
                        RuntimeWarning,
                        stacklevel=2,
                    )
            constants = {"constant_0": 0.0, "train_median": median[0]}
            errors = {
                floor: {"mae": float(measures.mae.value(np.full_like(y, constant), y))}
                for floor, constant in constants.items()
            }
            return errors | {"majority": majority}
        errors = np.abs(labels - median).mean(axis=0)
        each = {f"mae_{name}": float(e) for name, e in zip(self.names, errors, strict=True)}
        return {"train_median": {"mae": float(errors.mean()), **each}}

    def targets(self, labels: NDArray) -> NDArray:
        """Arranges labels `[N, K]` as `[K, N]`."""
        return labels.T


def of_output(metric: Metric, k: int) -> Metric:
    """Applies a metric to output k of p (..., K, N) and y (..., K, N)."""
    return metric._replace(part=lambda x: x[..., k, :])


def of_one_output(reporter: str) -> dict[str, Metric]:
    """Makes the metrics that a name in `metrics.table` reports, for the only output."""
    return {name: of_output(metric, 0) for name, metric in reported_by(reporter).items()}


def mean_over_outputs(metric: Metric, outputs: Sequence[int]) -> Metric:
    """Averages a metric over some outputs of p (..., K, N) and y (..., K, N)."""
    chosen = list(outputs)
    return metric._replace(
        part=lambda x: x[..., chosen, :],
        of_sums=lambda n, *sums: metric.of_sums(n, *sums).mean(axis=-2),
    )


def each_and_mean(chosen: Mapping[str, Metric], names: Sequence[str]) -> dict[str, Metric]:
    """Makes each metric of K outputs: first the means over the outputs, then those of each."""
    every = range(len(names))
    reported = {name: mean_over_outputs(metric, every) for name, metric in chosen.items()}
    for name, metric in chosen.items():
        reported |= {f"{name}_{of}": of_output(metric, k) for k, of in enumerate(names)}
    return reported
