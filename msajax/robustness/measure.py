"""Measures on the test split what is left of a finished run's metrics as its inputs get worse.

A curve is the test metrics at rates of 0 to 0.9 of

    drop_modality, drop_pair   the share of samples that lose a modality, or both of two
    drop_steps                 the share of a modality's valid steps that are hidden
    noise                      normal noise on a modality's features, in deviations of training

What a missing modality means is the model's own affair (`model.missing_modality`). The area under
a curve is that of the trapezoids between its points, divided by the range of the rates: the mean of
the metric over them. Undivided it is the AUILC of Yuan et al. (ACM MM 2021).
"""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from msajax.corpus.corpus import Split
from msajax.corpus.on_demand import moments
from msajax.errors import UserError
from msajax.preparation.apply import prepare
from msajax.results import legend
from msajax.results.findings import interval
from msajax.results.finished import Finished, largest_difference
from msajax.results.measure import deviation, summarize, summarize_with_intervals
from msajax.results.tables import MetricTable
from msajax.robustness import disturbances
from msajax.tasks import Task

RATES = tuple(k / 10 for k in range(10))
DRAWS = 3  # what three draws leave to chance is far less than what the samples do
_ROUNDING = 1e-2  # more than that between results.json and the bundle is no rounding
_SHOWN = (0.0, 0.3, 0.6, 0.9)
_WORDS = {
    "drop_modality": "{} lost",
    "drop_pair": "{} lost",
    "drop_steps": "steps of {} lost",
    "noise": "noise on {}",
}


def print_robustness(report: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a robustness.json: a row for each curve."""
    metric, seeds = report["metric"], len(report["seeds"])
    arrow = legend.arrow(metric)
    table = MetricTable(
        f"test {metric} {arrow} as inputs get worse: {seeds} random seed{'s' * (seeds > 1)}, "
        f"{report['samples']} samples",
        ["rate", *(f"{rate:g}" for rate in _SHOWN), "95 % interval", "area"],
    )
    for curve in report["curves"]:
        points = {point["rate"]: point["metrics"][metric] for point in curve["points"]}
        cells = [legend.show(metric, points[rate]["mean"]) for rate in _SHOWN]
        cells += [interval(metric, points[_SHOWN[-1]])]
        cells += [legend.show(metric, curve["area"][metric])]
        said = _WORDS[curve["kind"]].format(" and ".join(curve["modalities"]))
        table.add_row(Text(said), *map(Text, cells))
    console.print(table)
    console.print()
    kinds = {curve["kind"] for curve in report["curves"]}
    rate = "rate: the share of samples that lose the modality"
    rate += ", or of its valid steps that are lost" * ("drop_steps" in kinds)
    rate += "; of noise, its deviation in deviations of training" * ("noise" in kinds)
    console.print(Text(rate, style="dim"))
    means = (
        f"means over random seeds and {report['draws']} draws; 95 % interval: at rate "
        f"{_SHOWN[-1]:g}, by bootstrap over samples; area: the mean over rates of 0 to 0.9"
    )
    console.print(Text(means, style="dim"))


class Curve(NamedTuple):
    """Names a curve: drop_modality, drop_pair, drop_steps or noise, and the modalities it is of."""

    kind: str
    modalities: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Robustness:
    """Measures the curves of one run.

    Attributes:
        split: the test split, prepared.
        intact: the scores of that split as it is, `[S, N, K]`.
        deviations: `{modality: [d]}`, the noise on features that counts as 1.
    """

    run: Finished
    split: Split
    intact: np.ndarray
    curves: tuple[Curve, ...]
    deviations: dict[str, np.ndarray]

    def report(self, track: Callable[[Iterable[Any], int], Iterable[Any]]) -> dict[str, Any]:
        """Measures every curve and makes the content of robustness.json.

        Args:
            track: passes through the rates of all curves, of which there are so many, and shows
                how far it is.
        """
        run, spec, samples = self.run, self.run.bundle.preparation.spec, len(self.split)
        # At rate 0 nothing is drawn: it has the results of the run itself.
        at_rest = {
            name: {key: run.results["test"][name][key] for key in ("mean", "sd", "ci95")}
            for name in run.task.reported
        }
        measured = {curve: [{"rate": 0.0, "metrics": at_rest}] for curve in self.curves}
        points = ((curve, rate) for curve in self.curves for rate in RATES[1:])
        without: dict[Curve, np.ndarray] = {}  # scores of samples that all lose a modality
        for curve, rate in track(points, len(self.curves) * (len(RATES) - 1)):
            if curve.kind in ("drop_modality", "drop_pair"):
                # No score depends on other samples, so that two scores of each, with the modality
                # and without, serve all rates and draws.
                if curve not in without:
                    everywhere = np.ones(samples, bool)
                    lost = disturbances.hide_modalities(self.split, curve.modalities, everywhere)
                    without = {curve: self._score(lost)}
                numbers = [spec.modalities.index(m) for m in curve.modalities]
                drawn = [disturbances.drawn_rows(samples, rate, k, numbers) for k in range(DRAWS)]
                scores = [np.where(rows[:, None], without[curve], self.intact) for rows in drawn]
            elif curve.kind == "noise":
                (m,) = curve.modalities
                noise = rate * self.deviations[m]
                scores = [
                    self._score(disturbances.add_noise(self.split, spec, m, noise, k))
                    for k in range(DRAWS)
                ]
            else:
                (m,) = curve.modalities
                scores = [
                    self._score(disturbances.drop_steps(self.split, spec, m, rate, k))
                    for k in range(DRAWS)
                ]
            metrics = metrics_of_draws(np.stack(scores), self.split.labels, run.task)
            measured[curve].append({"rate": rate, "metrics": metrics})
        return {
            "metric": run.results["selection"],
            "metrics": list(run.task.reported),
            "samples": samples,
            "rates": list(RATES),
            "curves": [
                {
                    "kind": curve.kind,
                    "modalities": list(curve.modalities),
                    "points": points,
                    "area": {name: area(points, name) for name in run.task.reported},
                }
                for curve, points in measured.items()
            ],
            "seeds": run.results["seeds"],
            "draws": DRAWS,
        }

    def _score(self, disturbed: Split) -> np.ndarray:
        return self.run.bundle.scorer.score(disturbed, "test", like=self.split)[0]


def begin(run: Finished) -> Robustness:
    """Prepares and scores the test split of a run that has ended, and lists its curves.

    Raises:
        UserError: for a task without labels, and for results that are not the bundle's.
    """
    spec, metric = run.bundle.preparation.spec, run.task.usual_selection
    if not run.task.reads_labels:
        raise UserError(
            f"{run.folder.path} holds a model of the {spec.label_kind} task, whose tokens are what "
            "it is measured by: --mode=robustness is for models of labels."
        )
    split, intact, _, _ = run.score("test")
    measured = summarize(intact, split.labels, run.task)
    largest_difference(run, measured, "test")  # refuses results of other seeds or metrics
    here, there = measured[metric]["mean"], run.results["test"][metric]["mean"]
    if there is None or not abs(here - there) <= _ROUNDING * max(abs(there), 1):
        raise UserError(
            f"{run.folder.file('results.json')} says test {metric} {there}, but the bundle beside "
            f"it gives {here:.6g}: they are not of one run. Delete results.json: the run's train "
            "command then writes it anew."
        )
    curves = [Curve("drop_modality", (m,)) for m in spec.modalities]
    curves += [Curve("drop_pair", pair) for pair in itertools.combinations(spec.modalities, 2)]
    for m in spec.modalities:
        # With one step in each sample, losing steps is losing the modality.
        if disturbances.steps_of(split, spec, m)[1].sum(axis=1).max() > 1:
            curves.append(Curve("drop_steps", (m,)))
    curves += [Curve("noise", (m,)) for m in spec.modalities if spec.has_features(m)]
    return Robustness(run, split, intact, tuple(curves), _deviations(run))


def _deviations(run: Finished) -> dict[str, np.ndarray]:
    """Returns the deviation `[d]` over training of every prepared feature; 1 if standardised."""
    preparation = run.bundle.preparation
    spec, found = preparation.spec, {}
    for m in spec.modalities:
        if m in preparation.statistics:
            found[m] = np.ones(spec.width(m))
    others = [m for m in spec.modalities if m not in found and spec.has_features(m)]
    if others:
        budget = run.bundle.config.data.device_memory_budget
        train, _ = prepare(run.corpus.split("train"), preparation, budget)
        for m in others:
            found[m] = moments(train.features[m], train.masks[m])[1]
    return found


def metrics_of_draws(
    scores: np.ndarray, labels: np.ndarray, task: Task
) -> dict[str, dict[str, Any]]:
    """Computes metrics of several draws.

    Args:
        scores: `[D, S, N, K]`.
        labels: `[N, L]`.

    Returns:
        `{metric: {"mean", "sd", "ci95"}}`: the mean over draws and seeds; the deviation over seeds
        of their means over draws (ddof 1, None for one seed); and the 95 % interval of the mean, by
        bootstrap over samples. NaN where undefined.
    """
    draws, seeds = scores.shape[:2]
    with warnings.catch_warnings():
        # Scores without any input are constant, and have no correlation: null in the file.
        warnings.simplefilter("ignore", RuntimeWarning)
        rows = summarize_with_intervals(scores.reshape(-1, *scores.shape[2:]), labels, task)
    found = {}
    for name, values in rows.items():
        of_seeds = np.mean(np.reshape(values["seeds"], (draws, seeds)), axis=0)
        found[name] = {"mean": values["mean"], "sd": deviation(of_seeds), "ci95": values["ci95"]}
    return found


def area(points: Sequence[dict[str, Any]], metric: str) -> float:
    """Averages a metric over the rates of a curve, by trapezoids; NaN if a value is undefined."""
    rates = [point["rate"] for point in points]
    values = np.array([point["metrics"][metric]["mean"] for point in points], float)
    return float(np.trapezoid(values, rates) / (rates[-1] - rates[0]))
