"""Puts metrics and calibrations into words and units, which people read with numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

from msajax.metrics.calibration import FEWEST, from_dict
from msajax.metrics.table import TABLE, base_of, row_of
from msajax.tasks import TASKS, Task, task_that_reports


def task_of(results: Mapping[str, Any], metrics: Iterable[str]) -> type[Task]:
    """Returns the task that results name; in those of older versions its metrics tell it."""
    named = results.get("task")
    return (TASKS.get(named) if isinstance(named, str) else None) or task_that_reports(metrics)


def larger_is_better(metric: str) -> bool:
    """Tells whether a metric, which may be named with its output, rises as scores improve."""
    return row_of(metric).metric.larger_is_better


def arrow(metric: str) -> str:
    """Returns the arrow in a metric's better direction."""
    return "↑" if larger_is_better(metric) else "↓"


def percent(share: float) -> str:
    """Formats a share of 1 in percent."""
    return f"{100 * share:.1f} %"


def show(metric: str, *values: float | None, form: str = "{}") -> str:
    """Formats values of a metric: shares in percent with one decimal, all else with three.

    Args:
        metric: may be named with its output.
        values: None and NaN, which stand for the undefined, become a dash.
        form: text with one `{}` for each value; the unit follows it.
    """
    unit, texts = row_of(metric).unit, []
    known = [value is not None and value == value for value in values]
    for value, is_known in zip(values, known, strict=True):
        text = "-" if not is_known else f"{100 * value:.1f}" if unit else f"{value:.3f}"
        texts.append(text if text.strip("-0.") or text == "-" else text.removeprefix("-"))
    return form.format(*texts) + (f" {unit}" if unit and any(known) else "")


def signed(metric: str, difference: float) -> str:
    """Formats a difference in a metric with its sign, as `+0.079`."""
    return "+" * (difference > 0) + show(metric, difference)


def metric_lines(metrics: Iterable[str], task: type[Task]) -> list[tuple[str, str]]:
    """Explains metrics of a task: names that belong together, and their meanings, a line each."""
    shown = {base_of(metric) for metric in metrics}
    lines: dict[str, list[str]] = {}
    for name, row in TABLE.items():
        if name in shown:
            lines.setdefault(row.beside or name, []).append(name)

    def order(line: list[str]) -> bool:
        """Puts the errors and correlations of a score before its shares."""
        row = TABLE[line[0]]
        return bool(row.unit) or "sentiment" not in row.reported_by

    return [
        (", ".join(names), "; ".join(TABLE[name].means(task.reporters) for name in names))
        for names in sorted(lines.values(), key=order)
    ]


def calibration(results: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Puts the calibration of a results.json into words; "" for what has none."""
    found, task = results.get("calibration"), task_of(results, metrics)
    if found is None:
        said = task.not_calibrated if "calibration" in results else ""
        return said and f"{said}: fewer than {FEWEST} validation samples."
    return from_dict(found, task.calibration).told(found["test"])
