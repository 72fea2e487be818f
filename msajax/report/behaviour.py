"""Makes the panels of robustness and explanation, where their modes have been run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.report import charts
from msajax.report.content import reading
from msajax.report.figures import Chart, Drawing, Key, colour, dash, mark
from msajax.report.page import Panel, shortened, with_sign
from msajax.results import legend
from msajax.runs.manifest import EXPLANATION, ROBUSTNESS

_KINDS = {
    "drop_modality": "A modality is removed",
    "drop_pair": "Two modalities are removed",
    "drop_steps": "Random steps are removed",
    "noise": "Noise is added",
}
_MOST_CURVES = 12
_MOST_SAMPLES = 3  # with their words
_MOST_WORDS = 60
_MOST_OUTPUTS = 6


def robustness(found: Mapping[str, Any] | None) -> Panel | None:
    """Makes the panel of metrics as parts of the input are removed or disturbed."""
    if found is None:
        return None
    with reading(f"{ROBUSTNESS} of the run"):
        metric, drawn, rows = found["metric"], [], []
        # The ends of the vertical axis, which charts that are compared share.
        values = [p["metrics"][metric] for curve in found["curves"] for p in curve["points"]]
        known = [x for v in values for x in (v["mean"], *(v.get("ci95") or ())) if x is not None]
        room = 0.05 * (max(known) - min(known)) or 0.1
        limits = min(known) - room, max(known) + room
        for kind in dict.fromkeys(curve["kind"] for curve in found["curves"]):
            of_kind = [curve for curve in found["curves"] if curve["kind"] == kind]
            title = _KINDS.get(kind, shortened(kind, 40))
            drawn.append(_curves(title, metric, of_kind[:_MOST_CURVES], limits))
            for curve in of_kind:
                ends = _ends(curve, metric)
                area = legend.show(metric, curve["area"][metric])
                rows.append((title, _modalities(curve), *ends, area))
        text = (
            f"Test {metric} as a part of the input is removed or disturbed at a growing rate; the "
            "band is the 95 % interval. The area under a curve sums it up, to compare models by."
        )
        return Panel.of(
            "Robustness",
            "robustness.html",
            charts=drawn,
            text=text,
            rows=rows,
            last=f"{100 * found['rates'][-1]:.0f} %",
        )


def _modalities(curve: Mapping[str, Any]) -> str:
    return shortened(" + ".join(curve["modalities"]), 60) or "all"


def _ends(curve: Mapping[str, Any], metric: str) -> list[str]:
    points = curve["points"]
    return [legend.show(metric, p["metrics"][metric]["mean"]) for p in (points[0], points[-1])]


def _curves(
    title: str, metric: str, curves: Sequence[Mapping[str, Any]], limits: tuple[float, float]
) -> Chart:
    def paint(axes: Any) -> None:
        for k, curve in enumerate(curves):
            rates = np.array([100 * point["rate"] for point in curve["points"]], float)
            of = [point["metrics"][metric] for point in curve["points"]]
            mean = np.array([m["mean"] for m in of], float)  # None becomes NaN
            low, high = np.array([m.get("ci95") or (None, None) for m in of], float).T
            axes.fill_between(rates, low, high, color=colour(k), alpha=0.13, linewidth=0)
            axes.plot(rates, mean, linestyle=dash(k), **mark(k))
        axes.margins(x=0.03)
        axes.set_ylim(limits)

    told = []
    for curve in curves:
        first, last = _ends(curve, metric)
        told.append(f"{_modalities(curve)}: {first} at first, {last} at last")
    unit = "deviation, in % of that of training" if curves[0]["kind"] == "noise" else "rate in %"
    description = f"{title}. Test {metric} of {'; '.join(told)}."
    drawing = Drawing(description, paint, labels=(unit, f"test {metric}"))
    keys = [Key(_modalities(curve), k) for k, curve in enumerate(curves)]
    return Chart(title, drawing, keys)


def explanation(found: Mapping[str, Any] | None, page: str) -> Panel | None:
    """Makes the panel of what scores are made of; `page` is the file of samples, or "" for none."""
    if found is None:
        return None
    with reading(f"{EXPLANATION} of the run"):
        summary = found["summary"]
        shares = summary["mean_absolute_contribution"]
        most = max(shares.values(), default=0) or 1
        bars = [
            (shortened(m, 40), f"{value:.3f}", round(100 * value / most, 1))
            for m, value in shares.items()
        ]
        samples = []
        for sample in found["samples"]:
            words, parts = sample.get("words"), sample["contributions"].get("text")
            is_known = words and parts and len(words) == len(parts)
            if is_known and len(samples) < _MOST_SAMPLES:
                samples.append(_shaded(sample, list(zip(words, parts, strict=True))))
        return Panel.of(
            "Explanation",
            "explanation.html",
            [charts.contributions(bars)] if bars else (),
            bars=bars,
            median=f"{summary['completeness']['median']:.2g}",
            largest=f"{summary['completeness']['max']:.2g}",
            samples=samples,
            count=len(found["samples"]),
            split=found["split"],
            page=page,
        )


def _shaded(sample: Mapping[str, Any], pairs: Sequence[tuple[str, float]]) -> dict[str, Any]:
    most = max(abs(value) for _, value in pairs) or 1
    words = [
        (shortened(word, 40), "up" if value > 0 else "down", round(abs(value) / most, 2), value)
        for word, value in pairs[:_MOST_WORDS]
    ]
    return {
        "id": shortened(sample["id"], 80),
        "label": _value(sample["label"]),
        "score": _value(sample["score"]),
        "words": words,
        "cut": len(pairs) > _MOST_WORDS,
    }


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value[:_MOST_OUTPUTS])) + ", …" * (len(value) > _MOST_OUTPUTS)
    return with_sign(value) if isinstance(value, int | float) else shortened(str(value), 40)
