"""Makes the panels that set predictions beside labels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.report import charts
from msajax.report.content import Measured
from msajax.report.page import Panel, shortened
from msajax.results import legend

_MOST_OUTPUTS = 12  # charts of several outputs
_OF_MEAN = "Scores are means over random seeds."
_SEVEN = tuple("−3 −2 −1 0 +1 +2 +3".split())


def scatter(test: Measured) -> Panel | None:
    """Makes the panel of predicted against true; None for tokens, of which no score is kept."""
    if test.kind == "next_token":
        return None
    if test.kind == "classification":
        return _probabilities(test)
    shown = range(min(len(test.names), _MOST_OUTPUTS))
    drawn = [
        charts.predicted_true(_title(test, k), test.labels[:, k], test.scores[:, k]) for k in shown
    ]
    text = f"On the dashed line a score equals its label. {_left(test)}"
    return Panel.of("Predicted against true", "charts.html", charts=drawn, text=text)


def residuals(test: Measured, is_sentiment: bool) -> Panel | None:
    """Makes the panel of errors by label; None for what has no error of this kind."""
    if test.kind != "regression":
        return None
    drawn = []
    for k in range(min(len(test.names), _MOST_OUTPUTS)):
        labels = test.labels[:, k]
        sorted_ = charts.of_values(labels, is_sentiment)
        of = test.scores[:, k] - labels
        drawn.append(charts.spreads(_title(test, k), sorted_, of, "score − label"))
    text = (
        "Above 0 a score is too high, below too low. A model that is unsure answers near the "
        f"middle: too high for low labels, too low for high ones. {_left(test)}"
    )
    return Panel.of("Residuals by label", "charts.html", charts=drawn, text=text)


def _title(test: Measured, k: int) -> str:
    return "" if len(test.names) == 1 else shortened(test.names[k], 60)


def _left(test: Measured) -> str:
    left = len(test.names) - _MOST_OUTPUTS
    return _OF_MEAN + (f" The first {_MOST_OUTPUTS} of {len(test.names)} outputs." * (left > 0))


def _probabilities(test: Measured) -> Panel:
    """Makes the panel of the probability that each class's samples give to it."""
    true = test.labels[:, 0].astype(int)
    of_true = test.scores[np.arange(len(true)), true]
    chart = charts.spreads("", charts.of_classes(true, test.names), of_true, "probability")
    text = (
        "The probability that the model gives to the true class, by that class. Probabilities are "
        "means over random seeds."
    )
    return Panel.of("Predicted against true", "charts.html", charts=[chart], text=text)


def confusion(test: Measured, is_sentiment: bool) -> Panel | None:
    """Makes the panel of 7 and 2 classes of sentiment, or of a task's classes."""
    if test.kind == "classification":
        tables = [_confusion("", test.labels[:, 0], test.scores.argmax(axis=1), test.names)]
    elif is_sentiment:
        labels, scores = test.labels[:, 0], test.scores[:, 0]
        seven = (np.round(np.clip(x, -3, 3)).astype(int) + 3 for x in (labels, scores))
        kept = labels != 0
        two = ((x[kept] > 0).astype(int) for x in (labels, scores))
        tables = [
            _confusion("Seven classes: clipped to ±3 and rounded", *seven, _SEVEN),
            _confusion(
                "Two classes: labels of 0 left out", *two, ("negative", "positive")
            ),
        ]
    else:
        return None
    drawn = [charts.confusion(**of) for of in tables]
    return Panel.of("Confusion", "confusion.html", drawn, tables=tables, text=_OF_MEAN)


def _confusion(
    title: str, true: NDArray, predicted: NDArray, names: tuple[str, ...]
) -> dict[str, Any]:
    """Counts which class is taken for which; rare ones of many classes are put together."""
    true, predicted = true.astype(int), predicted.astype(int)
    # Of the classes themselves: one that is put together with others may be taken for another.
    right = legend.percent(np.mean(true == predicted) if len(true) else 0)
    group_of, groups = charts.grouped(true, names)
    whole = len(groups) - (len(groups) < len(names))  # rows of a single class
    true, predicted = group_of[true], group_of[predicted]
    counts = np.zeros((len(groups), len(groups)), int)
    np.add.at(counts, (true, predicted), 1)
    sums = counts.sum(axis=1)
    shares = counts / np.maximum(sums, 1)[:, None]
    rows = [
        (shortened(name, 24), int(total), list(zip(of, share, strict=True)))
        for name, total, of, share in zip(
            groups, sums, counts.tolist(), shares.round(3).tolist(), strict=True
        )
    ]
    columns = [shortened(name, 24) for name in groups]
    return {"title": title, "columns": columns, "rows": rows, "right": right, "whole": whole}


def weights(test: Measured, is_sentiment: bool) -> Panel | None:
    """Makes the panel of modality weights by label; None for a single modality."""
    if len(test.weights) < 2:
        return None
    if test.kind == "classification":
        sorted_ = charts.of_classes(test.labels[:, 0].astype(int), test.names)
    elif test.kind == "regression":
        sorted_ = charts.of_values(test.labels.mean(axis=1), is_sentiment)
        if len(test.names) > 1:
            sorted_ = sorted_._replace(sort="mean label")
    else:
        return None
    shown = {shortened(name, 30): values for name, values in test.weights.items()}
    chart = charts.means_by_bin("", sorted_, shown, "weight")
    text = (
        "How much each modality counts in a score, by the model's own gate: the weights of a "
        "sample sum to 1, and a modality that is absent has none. A weight says what the model "
        "listens to, not what it would lose without it."
    )
    rows = [(name, f"{of.mean():.3f}", f"{of.std():.3f}") for name, of in shown.items()]
    return Panel.of("Modality weights", "weights.html", charts=[chart], text=text, rows=rows)
