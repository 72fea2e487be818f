"""Reads what a run's folder holds that a report shows."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msajax.corpus.predictions import read_columns, read_predictions
from msajax.errors import UserError
from msajax.files import read_json
from msajax.report.forms import check_lines, check_results, check_settings
from msajax.results import findings
from msajax.runs import manifest
from msajax.runs.folder import RunFolder
from msajax.tasks import TASKS


@dataclasses.dataclass(frozen=True)
class Measured:
    """Holds samples with labels and what a run says of them: N samples, K outputs or classes.

    Attributes:
        kind: a name in `msajax.tasks.TASKS`.
        names: of the outputs or classes.
        ids: `[N]`.
        labels: `[N, K]`; of classes `[N, 1]`, counted from 0.
        scores: `[N, K]`, means over random seeds.
        sd: `[N, K]`, their deviation over seeds; NaN for one seed.
        low: `[N, K]`, where a 90 % interval begins; None where there are no intervals.
        high: `[N, K]`, where it ends.
        weights: of each modality, `{modality: [N]}`.
        texts: `[N]` transcripts; None where there are none.
    """

    kind: str
    names: tuple[str, ...]
    ids: NDArray
    labels: NDArray
    scores: NDArray
    sd: NDArray
    low: NDArray | None
    high: NDArray | None
    weights: Mapping[str, NDArray]
    texts: NDArray | None

    @functools.cached_property
    def errors(self) -> NDArray:
        """How wrong each score is, `[N]`, and NaN where that is unknown.

        It is the distance from the label, of several outputs their mean; of a class -log of its
        probability; of a sequence its nats per token.
        """
        if self.kind == "classification":
            true = self.labels[:, 0].astype(int)
            with np.errstate(divide="ignore"):
                return -np.log(self.scores[np.arange(len(true)), true])
        if self.kind == "next_token":
            nats, tokens = self.scores.T
            return np.where(tokens > 0, nats / np.maximum(tokens, 1), np.nan)
        return np.abs(self.scores - self.labels).mean(axis=1)


def read_measured(path: str, size: int, otherwise: str) -> Measured:
    """Reads a file of predictions with labels.

    Args:
        path: the file.
        size: how many samples it must hold.
        otherwise: how the message ends if it does not: who says so, and what to do.

    Raises:
        UserError: if it cannot be read, lacks a label or a score, or is not of that size.
    """
    read, columns = read_predictions(path, of_seeds=False), read_columns(path)
    if len(read.ids) != size:
        raise UserError(f"{path} has {len(read.ids)} samples, not {size} as {otherwise}")
    outputs = TASKS[read.kind].score_columns(read.names)

    sd = _stacked(columns, [f"{column}_sd" for column in outputs])
    return Measured(
        kind=read.kind,
        names=read.names,
        ids=read.ids,
        labels=read.labels,
        scores=read.scores[0],
        sd=np.full(read.scores[0].shape, np.nan) if sd is None else sd,
        low=_stacked(columns, [f"low{column.removeprefix('score')}" for column in outputs]),
        high=_stacked(columns, [f"high{column.removeprefix('score')}" for column in outputs]),
        weights={
            name.removeprefix("weight_"): np.nan_to_num(values)  # empty: a fold without it
            for name, values in columns.items()
            if name.startswith("weight_") and values.dtype.kind == "f"
        },
        texts=columns.get("raw_text"),
    )


def _stacked(columns: Mapping[str, NDArray], names: Sequence[str]) -> NDArray | None:
    """Stacks columns of numbers, `[N, K]`; None if one is not there."""
    if not all(name in columns and columns[name].dtype.kind == "f" for name in names):
        return None
    return np.stack([columns[name] for name in names], axis=1)


@dataclasses.dataclass(frozen=True)
class Content:
    """Holds what a report of a run is made of.

    Attributes:
        results: results.json.
        run: run.json.
        settings: config.json.
        lines: metrics.jsonl, a line per random seed and epoch.
        test: predictions of the test split.
        robustness: robustness.json; None if it is not there.
        explanation: explanation.json; None if it is not there.
        explanation_page: the name of the page where samples are stepped through; "" without.
        comparison: comparison.json; None if it is not there.
    """

    results: Mapping[str, Any]
    run: Mapping[str, Any]
    settings: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    test: Measured
    robustness: Mapping[str, Any] | None
    explanation: Mapping[str, Any] | None
    explanation_page: str
    comparison: Mapping[str, Any] | None


def read_content(folder: RunFolder) -> Content:
    """Reads what a report shows of a run that has ended.

    Raises:
        UserError: if a file is missing or damaged, or is of another run than the others.
    """
    page, path = manifest.EXPLANATION_PAGE, folder.file(manifest.RESULTS)
    results, settings = folder.read_results(), read_json(folder.file(manifest.CONFIG))
    check_results(results, path)
    check_settings(settings, folder.file(manifest.CONFIG))
    return Content(
        results=results,
        run=read_json(folder.file(manifest.RUN)),
        settings=settings,
        lines=_read_lines(folder, results),
        test=read_measured(
            folder.file(manifest.PREDICTIONS, "test.csv"),
            results["corpus"]["sizes"]["test"],
            f"{path} says. Delete results.json: the run's train command then writes both anew.",
        ),
        robustness=_optional(folder.file(manifest.ROBUSTNESS)),
        explanation=_optional(folder.file(manifest.EXPLANATION)),
        explanation_page=page if os.path.exists(folder.file(page)) else "",
        comparison=_optional(folder.file(manifest.COMPARISON)),
    )


def _read_lines(folder: RunFolder, results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reads the lines of metrics.jsonl, whose curves follow a metric of results.json."""
    path = folder.file(manifest.METRICS)
    try:
        lines = folder.read_metrics()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    check_lines(lines, ("train_loss", f"valid_{selection(results)}"), path)
    return lines


def selection(results: Mapping[str, Any]) -> str:
    """Names the metric of validation that chose epochs; runs of older versions do not say it."""
    return results.get("selection") or findings.headline(results)


def _optional(path: str) -> Any:
    if not os.path.exists(path):
        return None
    if (found := read_json(path)) is None:
        raise UserError(f"{path} holds nothing but null: make it anew, or move it away.")
    return found


@contextlib.contextmanager
def reading(name: str, how: str = "make it anew, or move it away") -> Iterator[None]:
    """Raises `UserError` where a panel finds that a file of the run is not what it should be.

    Args:
        name: of the file.
        how: it is set right.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"{name} of the run is not of the form that this version reads "
            f"({type(error).__name__}: {error}): {how}."
        ) from error
