"""Lists every metric, a row each: what it computes, what it means, and how its values are shown.

Whoever reports metrics takes the rows that name it, in the order of the table: the tasks report
`sentiment` (one score, labels in [-3, 3]), `scores` (one score, any labels), `outputs` (several
scores), `classes`, `labels` (several of 0 and 1) and `tokens`; all other names, and `sentiment`,
are conventions of papers (`tasks/conventions.py`). Terminal, LaTeX, report and model card have
their words and units from here.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.metrics import measures
from msajax.metrics.measures import Metric, Rule, accuracy, clipped, f1_of, without_zero


class Row(NamedTuple):
    """Describes a metric.

    Attributes:
        meaning: its definition in some words, which stands in legends.
        reported_by: the tasks' metrics and conventions that it is one of.
        unit: "%" where a share in [0, 1] is shown in percent.
        hub: its name on the Hugging Face hub, if that knows it.
        beside: the metric whose line of a legend it shares.
        otherwise: how others report it, of scores in another form.
        meanings: what it means to some of these.
    """

    metric: Metric
    meaning: str
    reported_by: tuple[str, ...] = ()
    unit: str = ""
    hub: str = ""
    beside: str = ""
    otherwise: Mapping[str, Metric] = MappingProxyType({})
    meanings: Mapping[str, str] = MappingProxyType({})

    def means(self, reporters: Iterable[str]) -> str:
        """Returns what it means where the first of some names that knows it reports it."""
        return next((self.meanings[r] for r in reporters if r in self.meanings), self.meaning)


def _rounded(limit: int) -> Rule:
    # np.round rounds half to even. Integers, so that -0.0 and 0.0 are one class.
    return Rule(lambda scores: np.round(np.clip(scores, -limit, limit)).astype(np.int8))


def _away_from_zero(scores: NDArray) -> NDArray:
    """Rounds to ±3, halves away from zero."""
    scores = np.clip(scores, -3, 3)
    whole = np.trunc(scores)  # adding 0.5 first would round the number below 0.5 up
    return whole + np.sign(scores) * (np.abs(scores - whole) >= 0.5)


def _sims(*edges: float) -> Rule:
    """Makes the classes of scores that are clipped to ±1; an edge belongs to the class below it."""
    return Rule(lambda scores: np.digitize(np.clip(scores, -1, 1), edges, right=True))


_SCORE = ("sentiment", "scores")
_NONZERO = Rule(lambda scores: scores > 0, with_zero=False)
_HAS_ZERO = Rule(lambda scores: scores >= 0)
_MMMO = Rule(lambda scores: scores > 3.5)
_WHOLE = Rule(np.round)  # halves to the even number
_share = partial(Row, unit="%")

TABLE: Mapping[str, Row] = MappingProxyType(
    {
        "mae": Row(
            measures.mae,
            "mean absolute error",
            (*_SCORE, "outputs", "mmmo"),
            hub="mae",
            meanings={"levels": "mean absolute error of the expected level"},
        ),
        "corr": Row(
            measures.corr,
            "Pearson's correlation",
            (*_SCORE, "outputs", "mmmo"),
            hub="pearsonr",
            meanings={"levels": "Pearson's correlation of the expected level"},
        ),
        "acc7": _share(
            accuracy(_rounded(3)),
            "score and label are equal when clipped to ±3 and rounded",
            ("sentiment",),
            hub="accuracy",
        ),
        "acc5": _share(
            accuracy(_rounded(2)), "to ±2", ("sentiment",), hub="accuracy", beside="acc7"
        ),
        "acc3": _share(
            accuracy(_rounded(1)), "to ±1", ("sentiment",), hub="accuracy", beside="acc7"
        ),
        "acc2_nonzero": _share(
            accuracy(_NONZERO),
            "negative against positive, labels of 0 left out",
            ("sentiment",),
            hub="accuracy",
        ),
        "f1_nonzero": _share(
            f1_of(_NONZERO),
            "F1 of each class, weighted by its true count",
            ("sentiment",),
            hub="f1",
            beside="acc2_nonzero",
        ),
        "acc2_has0": _share(
            accuracy(_HAS_ZERO), "negative against zero or positive", ("sentiment",), hub="accuracy"
        ),
        "f1_has0": _share(
            f1_of(_HAS_ZERO), "F1 likewise", ("sentiment",), hub="f1", beside="acc2_has0"
        ),
        "mse": Row(measures.mse, "mean squared error", _SCORE, hub="mse", beside="mae"),
        "rmse": Row(measures.rmse, "its root", _SCORE, hub="rmse", beside="mae"),
        "r2": Row(
            measures.r2,
            "share of the labels' variance explained; below 0: worse than their mean",
            _SCORE,
            hub="r_squared",
        ),
        "spearman": Row(measures.spearman, "of ranks", _SCORE, hub="spearmanr", beside="corr"),
        "ccc": Row(
            measures.ccc,
            "concordance (1 only where scores are the labels)",
            (*_SCORE, "outputs"),
            beside="corr",
        ),
        # Of probabilities p (..., C, N) and true classes y (..., N), counted from 0.
        "accuracy": _share(
            measures.class_accuracy,
            "share of samples whose most probable class is the true one",
            ("classes", "youtube"),
            hub="accuracy",
            otherwise={"class_numbers": accuracy(_WHOLE), "labels": measures.label_accuracy},
            meanings={"labels": "share of samples said rightly, at 0.5, to have a label or not"},
        ),
        "f1_weighted": _share(
            measures.class_f1_weighted,
            "F1 of each class, weighted by its true count",
            ("classes", "youtube"),
            hub="f1",
            otherwise={"class_numbers": f1_of(_WHOLE), "labels": measures.label_f1},
            meanings={"labels": "F1 of each label at 0.5, weighted by how many samples have it"},
        ),
        "f1_macro": _share(
            measures.class_f1_macro,
            "the plain mean over classes",
            ("classes",),
            hub="f1",
            beside="f1_weighted",
            otherwise={"labels": measures.label_f1},
            meanings={"labels": "the plain mean over labels"},
        ),
        "balanced_accuracy": _share(
            measures.balanced_accuracy,
            "of those with a label and of those without, the mean of both",
            ("labels",),
            beside="accuracy",
        ),
        "auc": Row(
            measures.auc,
            "how often one with a label scores above one without",
            ("labels",),
            hub="roc_auc",
        ),
        "binary_cross_entropy": Row(
            measures.binary_cross_entropy,
            "-log of the probability of what is true of each label, mean in nats",
            ("labels",),
        ),
        "uar": _share(
            measures.class_recall,
            "recall of each class that labels have, the plain mean",
            ("classes",),
            beside="accuracy",
        ),
        "cross_entropy": Row(
            measures.cross_entropy,
            "-log of the probability given to what is true, mean in nats",
            ("classes",),
            otherwise={"tokens": measures.token_cross_entropy},
        ),
        "perplexity": Row(
            measures.token_perplexity,
            "its exponential",
            ("tokens",),
            hub="perplexity",
            beside="cross_entropy",
        ),
        # As some papers print them.
        "sims_mae": Row(
            clipped(measures.mae),
            "scores and labels clipped to ±1: mean absolute error",
            ("sims",),
        ),
        "sims_corr": Row(
            clipped(measures.corr), "Pearson's correlation", ("sims",), beside="sims_mae"
        ),
        "sims_acc2": _share(accuracy(_sims(0.0)), "above 0 or not", ("sims",), beside="sims_mae"),
        "sims_f1": _share(f1_of(_sims(0.0)), "F1 likewise", ("sims",), beside="sims_mae"),
        "sims_acc3": _share(
            accuracy(_sims(-0.1, 0.1)), "edges at ±0.1", ("sims",), beside="sims_mae"
        ),
        "sims_acc5": _share(
            accuracy(_sims(-0.7, -0.1, 0.1, 0.7)), "also at ±0.7", ("sims",), beside="sims_mae"
        ),
        "mmmo_acc2": _share(accuracy(_MMMO), "above 3.5 or not", ("mmmo",)),
        "mmmo_f1": _share(f1_of(_MMMO), "F1 likewise", ("mmmo",), beside="mmmo_acc2"),
        "pom_mae": Row(
            measures.mae, "mean over the 16 traits of the mean absolute error", ("pom",)
        ),
        "pom_corr": Row(measures.corr, "of the correlation", ("pom",), beside="pom_mae"),
        "pom_acc": _share(
            accuracy(_WHOLE), "of the share that is equal when rounded", ("pom",), beside="pom_mae"
        ),
        "mae_nonzero": Row(
            without_zero(measures.mae),
            "mean absolute error, labels of 0 left out",
            ("nonzero_mae",),
            hub="mae",
        ),
        "corr_nonzero": Row(
            without_zero(measures.corr),
            "correlation likewise",
            ("nonzero_mae",),
            hub="pearsonr",
            beside="mae_nonzero",
        ),
        "acc7_away_from_zero": _share(
            accuracy(Rule(_away_from_zero)),
            "as acc7, but halves are rounded away from 0",
            ("acc7_away_from_zero",),
            hub="accuracy",
        ),
        "f1_nonzero_by_prediction": _share(
            f1_of(_NONZERO, by="predicted"),
            "as f1_nonzero, but weighted by the predicted count",
            ("f1_by_prediction",),
            hub="f1",
        ),
        "f1_has0_by_prediction": _share(
            f1_of(_HAS_ZERO, by="predicted"),
            "as f1_has0, likewise",
            ("f1_by_prediction",),
            hub="f1",
            beside="f1_nonzero_by_prediction",
        ),
    }
)


def reported_by(reporter: str) -> dict[str, Metric]:
    """Returns the metrics by name that a name in the rows reports, in the order of the table."""
    return {
        name: row.otherwise.get(reporter, row.metric)
        for name, row in TABLE.items()
        if reporter in (*row.reported_by, *row.otherwise)
    }


SENTIMENT = tuple(reported_by("sentiment"))


def base_of(metric: str) -> str:
    """Returns the metric that a name begins with, `mae` of `mae_happy`, or raises `ValueError`."""
    return max((n for n in TABLE if metric == n or metric.startswith(f"{n}_")), key=len)


def row_of(metric: str) -> Row:
    """Returns the row of a metric, which may be named with its output."""
    return TABLE[base_of(metric)]


def report_sentiment(metrics: Iterable[str]) -> bool:
    """Tells whether metrics, by name, are those of sentiment: one that it alone has is there."""
    return any(row_of(metric).reported_by == ("sentiment",) for metric in metrics)


def is_sentiment(labels: NDArray) -> bool:
    """Tells whether labels `[N]` are on the scale of sentiment: all in [-3, 3]."""
    return bool(np.abs(labels).max() <= 3)
