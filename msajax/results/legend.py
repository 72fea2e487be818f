"""Puts metrics, floors and calibrations into words and units, which people read with numbers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from msajax import tasks
from msajax.metrics import table
from msajax.metrics.calibration import FEWEST, from_dict
from msajax.tasks import conventions


class Floor(NamedTuple):
    """Says what scores without a model are called.

    Attributes:
        mark: a character that stands for the floor in a table.
        name: of the floor in words.
        meaning: how such a score answers.
    """

    mark: str
    name: str
    meaning: str


FLOORS: Mapping[str, Floor] = MappingProxyType(
    {
        "train_median": Floor("m", "training median", "always the median of the training labels"),
        "constant_0": Floor("0", "constant 0", "always 0"),
        "majority": Floor(
            "c", "majority class", "always the most frequent class of the labels measured"
        ),
        "train_shares": Floor(
            "s", "training shares", "always the frequencies in the training labels"
        ),
    }
)

# Every metric that some task reports, by its base name.
_METRICS: Mapping[str, table.Metric] = {
    **table.METRICS,
    **table.CLASSES,
    **conventions.METRICS,
    **tasks.make_task("next_token", (), None).reported,  # reads no training labels
}
_LINES = (  # metrics that share a line of a legend
    {"mae": "mean absolute error", "mse": "mean squared error", "rmse": "its root"},
    {
        "corr": "Pearson's correlation",
        "spearman": "of ranks",
        "ccc": "concordance (1 only where scores are the labels)",
    },
    {"r2": "share of the labels' variance explained; below 0: worse than their mean"},
    {
        "acc7": "score and label are equal when clipped to ±3 and rounded",
        "acc5": "to ±2",
        "acc3": "to ±1",
    },
    {
        "acc2_nonzero": "negative against positive, labels of 0 left out",
        "f1_nonzero": "F1 of each class, weighted by its true count",
    },
    {"acc2_has0": "negative against zero or positive", "f1_has0": "F1 likewise"},
    {"accuracy": "share of samples whose most probable class is the true one"},
    {
        "f1_weighted": "F1 of each class, weighted by its true count",
        "f1_macro": "the plain mean over classes",
    },
    {
        "cross_entropy": "-log of the probability given to what is true, mean in nats",
        "perplexity": "its exponential",
    },
    {
        "sims_mae": "scores and labels clipped to ±1: mean absolute error",
        "sims_corr": "Pearson's correlation",
        "sims_acc2": "above 0 or not",
        "sims_f1": "F1 likewise",
        "sims_acc3": "edges at ±0.1",
        "sims_acc5": "also at ±0.7",
    },
    {"mmmo_acc2": "above 3.5 or not", "mmmo_f1": "F1 likewise"},
    {
        "pom_mae": "mean over the 16 traits of the mean absolute error",
        "pom_corr": "of the correlation",
        "pom_acc": "of the share that is equal when rounded",
    },
    {
        "mae_nonzero": "mean absolute error, labels of 0 left out",
        "corr_nonzero": "correlation likewise",
    },
    {"acc7_away_from_zero": "as acc7, but halves are rounded away from 0"},
    {
        "f1_nonzero_by_prediction": "as f1_nonzero, but weighted by the predicted count",
        "f1_has0_by_prediction": "as f1_has0, likewise",
    },
)


def base_of(metric: str) -> str:
    """Returns the metric itself, of one that is named with its output: `mae` of `mae_happy`."""
    found = [name for name in _METRICS if metric == name or metric.startswith(f"{name}_")]
    return max(found, key=len)


def larger_is_better(metric: str) -> bool:
    """Tells whether a metric, which may be named with its output, rises as scores improve."""
    return _METRICS[base_of(metric)].larger_is_better


def percent(share: float) -> str:
    """Formats a share of 1 in percent."""
    return f"{100 * share:.1f} %"


def show(metric: str, *values: float | None, form: str = "{}") -> str:
    """Formats values of a metric: shares in percent with one decimal, all else with three.

    Args:
        metric: the name of the metric.
        values: None and NaN, which stand for the undefined, become a dash.
        form: where they go, with one `{}` for each; the unit follows.
    """
    is_share = re.search("(^|_)(acc|f1)", base_of(metric)) is not None
    known = [value is not None and value == value for value in values]
    texts = [
        _unsigned_zero(f"{100 * value:.1f}" if is_share else f"{value:.3f}") if here else "-"
        for value, here in zip(values, known, strict=True)
    ]
    return form.format(*texts) + (" %" if is_share and any(known) else "")


def _unsigned_zero(text: str) -> str:
    return text.removeprefix("-") if not text.strip("-0.") else text


def metric_lines(metrics: Iterable[str]) -> list[tuple[str, str]]:
    """Explains metrics: names that belong together, and their meanings, a line each."""
    shown = {base_of(metric) for metric in metrics}
    lines = [{k: v for k, v in line.items() if k in shown} for line in _LINES]
    return [(", ".join(line), "; ".join(line.values())) for line in lines if line]


def calibration(results: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Puts the calibration of a results.json into words; "" for what has none.

    Args:
        results: has "calibration", unless it is of a task that knows none.
        metrics: of the same results, by name.
    """
    found = results.get("calibration")
    if found is None:
        too_few = f"fewer than {FEWEST} validation samples"
        if "calibration" not in results or "perplexity" in metrics:
            return ""
        if "accuracy" in metrics:
            return f"The probabilities have no temperature: {too_few}."
        return f"The scores have no 90 % interval: {too_few}."
    basis, test = from_dict(found).describe(), found["test"]
    if found["kind"] == "temperature":
        before, after = (percent(test[key]) for key in ("ece_before", "ece_after"))
        return (
            f"The ensemble's probabilities have an expected calibration error of {before} on test, "
            f"{after} at temperature {found['temperature']:.3f} (predictions are not scaled by it; "
            f"{basis})."
        )
    coverage = _range([100 * share for share in test["coverage"]], "{:.1f}")
    width, each = _range(test["width"], "{:.3f}"), " of each output" * (len(test["width"]) > 1)
    return (
        f"The 90 % intervals of the ensemble's score{each} hold {coverage} % of the test labels, "
        f"and are {width} wide in the mean ({basis})."
    )


def _range(values: Sequence[float], form: str) -> str:
    ends = dict.fromkeys(form.format(end) for end in (min(values), max(values)))
    return " to ".join(ends)
