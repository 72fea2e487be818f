"""Makes the panels that set predictions beside labels, down to single samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.report import charts
from msajax.report.content import LabelledScores, reading
from msajax.report.figures import MUTED, Chart, Drawing, Key, colour
from msajax.report.page import Panel, shortened, with_sign
from msajax.results import legend
from msajax.tasks.views import OutputRow, ShareRow

_MOST_OUTPUTS = 12  # charts of several outputs
_OF_MEAN = "Scores are means over random seeds."


def scatter(test: LabelledScores) -> Panel | None:
    """Makes the panel of predicted against true; None for what has no score of a label."""
    views = test.task.views(test.scored, False)
    if views.shares is not None:
        of = views.shares
        drawn = [charts.spreads("", charts.of_classes(of.classes, of.names), of.values, of.unit)]
        return Panel.of("Predicted against true", "charts.html", charts=drawn, text=of.text)
    if not views.pairs:
        return None
    drawn = [
        charts.predicted_true(shortened(name, 60), labels, scores)
        for name, labels, scores in views.pairs[:_MOST_OUTPUTS]
    ]
    text = f"On the dashed line a score equals its label. {_left(test)}"
    return Panel.of("Predicted against true", "charts.html", charts=drawn, text=text)


def residuals(test: LabelledScores, is_sentiment: bool) -> Panel | None:
    """Makes the panel of errors by label; None for what has no error of this kind."""
    views = test.task.views(test.scored, is_sentiment)
    if not views.pairs:
        return None
    drawn = []
    for name, labels, scores in views.pairs[:_MOST_OUTPUTS]:
        bins = charts.of_values(labels, is_sentiment)
        drawn.append(charts.spreads(shortened(name, 60), bins, scores - labels, "score − label"))
    text = (
        "Above 0 a score is too high, below too low. A model that is unsure answers near the "
        f"middle: too high for low labels, too low for high ones. {_left(test)}"
    )
    return Panel.of("Residuals by label", "charts.html", charts=drawn, text=text)


def _left(test: LabelledScores) -> str:
    left = len(test.names) - _MOST_OUTPUTS
    return _OF_MEAN + (f" The first {_MOST_OUTPUTS} of {len(test.names)} outputs." * (left > 0))


def confusion(test: LabelledScores, is_sentiment: bool) -> Panel | None:
    """Makes the panel of which classes are taken for which; None for what has no classes."""
    counts = test.task.views(test.scored, is_sentiment).counts
    if not counts:
        return None
    tables = [_confusion(*one) for one in counts]
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


def weights(test: LabelledScores, is_sentiment: bool) -> Panel | None:
    """Makes the panel of modality weights by label; None for a single modality."""
    if len(test.weights) < 2:
        return None
    views = test.task.views(test.scored, is_sentiment)
    if views.by is None:
        return None
    if views.names:
        bins = charts.of_classes(views.by, views.names)
    else:
        bins = charts.of_values(views.by, is_sentiment)
        bins = bins._replace(sort=views.sort or bins.sort)
    shown = {shortened(name, 30): values for name, values in test.weights.items()}
    chart = charts.means_by_bin("", bins, shown, "weight")
    text = (
        "How much each modality counts in a score, by the model's own gate: the weights of a "
        "sample sum to 1, and a modality that is absent has none. A weight says what the model "
        "listens to, not what it would lose without it."
    )
    rows = [(name, f"{of.mean():.3f}", f"{of.std():.3f}") for name, of in shown.items()]
    return Panel.of("Modality weights", "weights.html", charts=[chart], text=text, rows=rows)


# --- calibration ---

_MOST_INTERVALS = 120  # samples whose intervals are drawn

# Sentences, charts, and the columns and rows of a table.
_Told = tuple[list[str], list[Chart], Sequence[str], list[Sequence[str]]]


def calibration(results: Mapping[str, Any], test: LabelledScores) -> Panel | None:
    """Makes the panel of what scores say of their certainty; None for a run without results."""
    if "calibration" not in results or test.task.calibration is None:
        return None
    found = results["calibration"]
    with reading('"calibration" in results.json of the run'):
        if found is None:
            nothing = "Validation has too few scores for a 90 % interval, or to fit a temperature."
            sentences, drawn, columns, rows = [nothing], [], (), []
        elif found["kind"] == "interval":
            sentences, drawn, columns, rows = _intervals(found, test)
        elif found["kind"] == "temperature":
            sentences, drawn, columns, rows = _temperature(found)
        else:
            sentences, drawn, columns, rows = _thresholds(found, test)
        return Panel.of(
            "Calibration and coverage",
            "calibration.html",
            sentences=sentences,
            charts=drawn,
            columns=columns,
            rows=rows,
        )


def _source(found: Mapping[str, Any]) -> str:
    told = f"Calibrated on {found['samples']} samples of validation"
    told += f", by {found['by']}" if "by" in found else ""
    if found["optimistic"]:
        told += ". Optimistic: those samples chose the epoch, too"
    return f"{told}."


def _intervals(found: Mapping[str, Any], test: LabelledScores) -> _Told:
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
    return sentences, drawn, ("output", "coverage", "mean width", "quantile"), rows


def _band(test: LabelledScores) -> Chart:
    order = np.argsort(test.scores[:, 0], kind="stable")
    places = np.linspace(0, len(order) - 1, min(_MOST_INTERVALS, len(order)))
    shown = order[places.round().astype(int)]
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


def _temperature(found: Mapping[str, Any]) -> _Told:
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

    told = ", ".join(f"{c:.2f}: {a:.2f}" for c, a in zip(confidence, accuracy, strict=True))
    drawing = Drawing(
        f"Accuracy by confidence: {told}.", paint, height=320, labels=("confidence", "accuracy")
    )
    note = (
        "Before the temperature. On the dashed line confidence is right; larger dots hold more "
        "samples."
    )
    rows = [(f"{b['confidence']:.3f}", f"{b['accuracy']:.3f}", f"{b['count']:,}") for b in full]
    columns = ("confidence", "accuracy", "samples")
    return sentences, [Chart("", drawing, (), note)], columns, rows


def _thresholds(found: Mapping[str, Any], test: LabelledScores) -> _Told:
    half, here = (legend.percent(found["test"][key]) for key in ("f1_macro_at_half", "f1_macro"))
    told = (
        "A label is said to be there above a threshold of its own, that of largest F1 on "
        f"validation. Macro F1 on test is {here} with them, and {half} at 0.5."
    )
    rows = [
        (shortened(name, 40), f"{value:.3f}")
        for name, value in zip(test.names, found["thresholds"], strict=True)
    ]
    return [told, _source(found)], [], ("label", "threshold"), rows


# --- single samples ---

_MOST_SAMPLES = 10
_TEXT, _ID, _NAME = 400, 80, 40  # characters
_MOST_BARS = 6  # outputs or classes of one sample


def best_and_worst(test: LabelledScores) -> Panel | None:
    """Makes the panel of ten samples each; None if no sample can be ranked."""
    known = np.flatnonzero(~np.isnan(test.errors))
    order = known[np.argsort(test.errors[known], kind="stable")]
    if not len(order):
        return None
    shown = min(_MOST_SAMPLES, len(order) // 2 or 1)
    # The axis on which labels and scores of all samples lie.
    both = np.concatenate([test.labels.ravel(), test.scores.ravel()])
    ends = float(both.min()), float(both.max())
    groups = [
        ("Worst", [_sample(test, i, ends) for i in order[: -shown - 1 : -1]]),
        ("Best", [_sample(test, i, ends) for i in order[:shown]]),
    ]
    ranked = (len(test.names) > 1 and test.task.ranked_of_several) or test.task.ranked
    text = f"Of {len(order)} test samples, {ranked}; scores are means over random seeds."
    if test.texts is None:
        text += " The corpus has no transcripts."
    return Panel.of(
        "Best and worst samples",
        "samples.html",
        groups=groups,
        text=text,
        ends=[with_sign(end) for end in ends],
    )


def _sample(test: LabelledScores, i: int, ends: tuple[float, float]) -> dict[str, Any]:
    view = test.task.view_of(test.scored, i)
    shown = list(view.rows[:_MOST_BARS])
    if true := [row for row in view.rows[_MOST_BARS:] if isinstance(row, ShareRow) and row.is_true]:
        shown[-1:] = true
    text = None if test.texts is None else shortened(str(test.texts[i]), _TEXT)
    return {
        "id": shortened(str(test.ids[i]), _ID),
        "text": text,
        "before": view.before,
        "value": legend.percent(view.value) if view.as_share else f"{view.value:.2f}",
        "after": view.after,
        "rows": [_row(row, ends) for row in shown],
        "more": f"{len(view.rows) - len(shown)} more {view.left}"
        if len(view.rows) > len(shown)
        else "",
    }


def _row(row: OutputRow | ShareRow, ends: tuple[float, float]) -> dict[str, Any]:
    name = shortened(row.name, _NAME)
    if isinstance(row, ShareRow):
        share = round(100 * row.share, 1)
        text = legend.percent(row.share)
        return {"name": name, "share": share, "is_true": row.is_true, "text": text}
    bounds = row.interval
    return {
        "name": name,
        "label": with_sign(row.label),
        "score": with_sign(row.score) + (f" ± {row.sd:.2f}" if np.isfinite(row.sd) else ""),
        "interval": bounds and f"[{with_sign(bounds[0])}, {with_sign(bounds[1])}]",
        "at": [_place(x, ends) for x in (row.label, row.score)],
        "band": bounds and [_place(x, ends) for x in bounds],
    }


def _place(value: float, ends: tuple[float, float]) -> float:
    """Returns where a value lies between the ends, in percent."""
    low, high = ends
    return round(float(np.clip(100 * (value - low) / ((high - low) or 1), 0, 100)), 1)
