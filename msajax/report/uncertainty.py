"""Makes the panel of what scores say of their own certainty: intervals, or calibration."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.report.content import Measured, reading
from msajax.report.figures import MUTED, Chart, Drawing, Key, colour
from msajax.report.page import Panel, shortened
from msajax.results import legend

_SHOWN = 120  # samples whose intervals are drawn


def calibration(results: Mapping[str, Any], test: Measured) -> Panel | None:
    """Makes the panel of calibration and coverage; None for a run that has no such results."""
    if "calibration" not in results or test.kind == "next_token":
        return None
    found = results["calibration"]
    with reading('"calibration" in results.json'):
        if found is None:
            told = "Validation has too few scores for a 90 % interval, or to fit a temperature."
            return _panel([told], [], (), [])
        return _intervals(found, test) if found["kind"] == "interval" else _temperature(found)


def _panel(
    sentences: Sequence[str],
    charts: Sequence[Chart],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> Panel:
    return Panel.of(
        "Calibration and coverage",
        "calibration.html",
        sentences=sentences,
        charts=charts,
        columns=columns,
        rows=rows,
    )


def _source(found: Mapping[str, Any]) -> str:
    told = f"Calibrated on {found['samples']} samples of validation"
    told += f", by {found['by']}" if "by" in found else ""
    if found["optimistic"]:
        told += ". Optimistic: those samples chose the epoch, too"
    return f"{told}."


def _intervals(found: Mapping[str, Any], test: Measured) -> Panel:
    level = found["level"]
    covered, width = found["test"]["coverage"], found["test"]["width"]
    names = test.names if len(test.names) > 1 else ("score",)
    of_spread = "grows with the seeds' spread" if found["normalised"] else "has one width for all"
    sentences = [
        f"Each score has an interval that is to hold the label of {100 * level:.0f} % of "
        f"samples like those of validation; it {of_spread}. On test "
        + (
            f"it held {legend.percent(covered[0])}, at a mean width of {width[0]:.3f}."
            if len(names) == 1
            else f"the intervals of {len(names)} outputs held {legend.percent(min(covered))} to "
            f"{legend.percent(max(covered))}."
        ),
        _source(found),
    ]
    rows = [
        (shortened(name, 40), legend.percent(share), f"{of:.3f}", f"{quantile:.3f}")
        for name, share, of, quantile in zip(names, covered, width, found["quantile"], strict=True)
    ]
    drawn = [_band(test)] if len(names) == 1 and test.low is not None else []
    return _panel(sentences, drawn, ("output", "coverage", "mean width", "quantile"), rows)


def _band(test: Measured) -> Chart:
    """Draws intervals of samples in the order of their scores, and where the labels lie."""
    order = np.argsort(test.scores[:, 0], kind="stable")
    shown = order[np.linspace(0, len(order) - 1, min(_SHOWN, len(order))).round().astype(int)]
    low, high, labels = test.low[shown, 0], test.high[shown, 0], test.labels[shown, 0]
    inside = (low <= labels) & (labels <= high)
    at = np.arange(len(shown))

    def paint(axes: Any) -> None:
        axes.vlines(at, low, high, color=colour(0), alpha=0.3, linewidth=2)
        axes.plot(at[inside], labels[inside], "o", color=colour(0), markersize=3.5)
        axes.plot(at[~inside], labels[~inside], "X", color=colour(1), markersize=6.5,
                  markeredgewidth=0)  # fmt: skip
        axes.set_xticks([])

    share = legend.percent(inside.mean())
    drawing = Drawing(
        f"Intervals of {len(shown)} test samples in the order of their scores; {share} of the "
        "labels lie inside.",
        paint,
        height=280,
        labels=("samples, by score", "label"),
    )
    keys = [
        Key("90 % interval", 0, "band"),
        Key("label inside", 0, "dot"),
        Key("label outside", 1, "cross"),
    ]
    left = len(shown) < len(order)
    note = f"{len(shown)} of {len(order)} samples, evenly by score." if left else ""
    return Chart("", drawing, keys, note)


def _temperature(found: Mapping[str, Any]) -> Panel:
    test = found["test"]
    sentences = [
        f"A temperature of {found['temperature']:.3f} divides the logits. The expected calibration "
        f"error on test, by how much confidence misses accuracy, was {test['ece_before']:.3f} and "
        f"is {test['ece_after']:.3f} with it.",
        _source(found),
    ]
    full = [b for b in test["bins"] if b["count"] and b["confidence"] is not None]
    confidence, accuracy, counts = (
        np.array([b[key] for b in full], float) for key in ("confidence", "accuracy", "count")
    )

    def paint(axes: Any) -> None:
        axes.plot((0, 1), (0, 1), color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(confidence, accuracy, color=colour(0))
        sizes = 25 + 150 * counts / counts.sum()
        axes.scatter(confidence, accuracy, s=sizes, color=colour(0), linewidths=0)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(-0.04, 1.04)
        axes.grid(axis="x")

    told = ", ".join(
        f"{c:.2f}: {a:.2f}" for c, a in zip(confidence, accuracy, strict=True)
    )
    drawing = Drawing(
        f"Accuracy by confidence: {told}.", paint, height=320, labels=("confidence", "accuracy")
    )
    note = (
        "Before the temperature. On the dashed line confidence is right; larger dots hold more "
        "samples."
    )
    rows = [
        (f"{b['confidence']:.3f}", f"{b['accuracy']:.3f}", f"{b['count']:,}") for b in full
    ]
    columns = ("confidence", "accuracy", "samples")
    return _panel(sentences, [Chart("", drawing, (), note)], columns, rows)
