"""Makes the panels of the samples that a run predicts best and worst."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from msajax.report.content import Measured
from msajax.report.page import Panel, shortened, signed
from msajax.results import legend

_SHOWN = 10
_TEXT, _ID, _NAME = 400, 80, 40  # characters
_MOST_BARS = 6  # outputs or classes of one sample

_RANKED = {
    "regression": "by the distance of the score from the label",
    "classification": "by the probability of the true class",
    "next_token": "by nats per token",
}


def best_and_worst(test: Measured) -> Panel | None:
    """Makes the panel of ten samples each; None if no sample can be ranked."""
    known = np.flatnonzero(~np.isnan(test.errors))
    order = known[np.argsort(test.errors[known], kind="stable")]
    if not len(order):
        return None
    shown = min(_SHOWN, len(order) // 2 or 1)
    ends = _scale(test)
    groups = [
        ("Worst", [_sample(test, i, ends) for i in order[: -shown - 1 : -1]]),
        ("Best", [_sample(test, i, ends) for i in order[:shown]]),
    ]
    ranked = _RANKED[test.kind]
    if test.kind == "regression" and len(test.names) > 1:
        ranked = "by the distance of scores from labels, the mean over outputs"
    text = f"Of {len(order)} test samples, {ranked}; scores are means over random seeds."
    if test.texts is None:
        text += " The corpus has no transcripts."
    return Panel.of(
        "Best and worst samples",
        "samples.html",
        groups=groups,
        text=text,
        kind=test.kind,
        ends=[signed(end) for end in ends],
    )


def _scale(test: Measured) -> tuple[float, float]:
    """Returns the ends of the axis on which labels and scores of all samples lie."""
    both = np.concatenate([test.labels.ravel(), test.scores.ravel()])
    return float(both.min()), float(both.max())


def _sample(test: Measured, i: int, ends: tuple[float, float]) -> dict[str, Any]:
    text = None if test.texts is None else str(test.texts[i])
    return {
        "id": shortened(str(test.ids[i]), _ID),
        "text": None if text is None else shortened(text, _TEXT),
        **_FORMS[test.kind](test, i, ends),
    }


def _of_scores(test: Measured, i: int, ends: tuple[float, float]) -> dict[str, Any]:
    """Describes a sample of one score or several: labels, scores, and where they lie."""
    order = np.argsort(-np.abs(test.scores[i] - test.labels[i]), kind="stable")
    rows = [_score(test, i, k, ends) for k in order[:_MOST_BARS]]
    left = len(order) - len(rows)
    return {"rows": rows, "left": left, "value": f"{test.errors[i]:.2f}", "what": "off by"}


def _score(test: Measured, i: int, k: int, ends: tuple[float, float]) -> dict[str, Any]:
    label, score, sd = test.labels[i, k], test.scores[i, k], test.sd[i, k]
    bounds = None if test.low is None else (test.low[i, k], test.high[i, k])
    return {
        "name": shortened(test.names[k], _NAME) if len(test.names) > 1 else "",
        "label": signed(label),
        "score": signed(score) + (f" ± {sd:.2f}" if np.isfinite(sd) else ""),
        "interval": bounds and f"[{signed(bounds[0])}, {signed(bounds[1])}]",
        "at": [_place(value, ends) for value in (label, score)],
        "band": bounds and [_place(value, ends) for value in bounds],
    }


def _place(value: float, ends: tuple[float, float]) -> float:
    """Returns where a value lies between the ends, in percent."""
    low, high = ends
    return round(float(np.clip(100 * (value - low) / ((high - low) or 1), 0, 100)), 1)


def _of_classes(test: Measured, i: int, ends: tuple[float, float]) -> dict[str, Any]:
    """Describes a sample of a class: the true one, and the probabilities of the likeliest."""
    del ends
    true = int(test.labels[i, 0])
    order = np.argsort(-test.scores[i], kind="stable")
    shown = [int(k) for k in order[:_MOST_BARS]]
    if true not in shown:
        shown[-1] = true
    rows = [
        {
            "name": shortened(test.names[k], _NAME),
            "share": round(100 * float(test.scores[i, k]), 1),
            "is_true": k == true,
            "text": legend.percent(test.scores[i, k]),
        }
        for k in shown
    ]
    value = legend.percent(test.scores[i, true])
    left = len(order) - len(rows)
    return {"rows": rows, "left": left, "value": value, "what": "the true class has"}


def _of_tokens(test: Measured, i: int, ends: tuple[float, float]) -> dict[str, Any]:
    """Describes a sequence of tokens."""
    del ends
    what = f"nats per token, of {test.scores[i, 1]:.0f} tokens"
    return {"rows": [], "left": 0, "value": f"{test.errors[i]:.2f}", "what": what}


_FORMS: Mapping[str, Any] = {
    "regression": _of_scores,
    "classification": _of_classes,
    "next_token": _of_tokens,
}
