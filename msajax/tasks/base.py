"""Defines what a task decides: targets, requirements, scores, columns, metrics, floors."""

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.checks import number_of
from msajax.errors import UserError
from msajax.metrics.calibration import Basis, Calibration
from msajax.metrics.intervals import bootstrap
from msajax.metrics.measures import Metric
from msajax.metrics.table import reported_by
from msajax.tasks.views import SampleView, ScoredSamples, Views

_OF_SEEDS = re.compile(r"(.+)_(?:sd|seed\d+)", re.DOTALL)  # what `predictions.py` adds


class Floor(NamedTuple):
    """Says what scores without a model are called.

    Attributes:
        mark: a character that stands for the floor in a table.
        meaning: says how such a score answers.
    """

    mark: str
    name: str
    meaning: str


class Loss(NamedTuple):
    """Measures what training minimises of a task.

    Attributes:
        measure: (prediction, batch) -> (sum, weight), as of `msajax.Term`.
        compares_rows: the rows of a batch see each other.
    """

    measure: Callable[[Any, Any], tuple[Any, Any]]
    compares_rows: bool = False


def over_rows(of_rows: Callable[[Any, Any], Any]) -> Loss:
    """Makes a loss of a function (score `[B, K]`, label `[B, L]`) -> `[B]`: its mean over rows."""

    def measure(prediction: Any, batch: Any) -> tuple[Any, Any]:
        weight = batch.row_weight
        return (of_rows(prediction.score, batch.labels) * weight).sum(), weight.sum()

    return Loss(measure)


@dataclasses.dataclass(frozen=True)
class Task:
    """Turns a model's outputs into scores, and measures these against labels.

    Attributes:
        kind: its name, as in `CorpusSpec.label_kind`.
        choosable: whether `model.task` may name it.
        has_scale: whether labels are real numbers.
        reads_labels: whether targets are the labels of a corpus; else they are made of the inputs.
        own_names: names of outputs where no labels are read.
        has_classes: whether scores are probabilities of classes of which one is true.
        explains: whether a score can be taken apart.
        continues_text: whether a model's outputs say what follows a text.
        calibration: the class that is fitted to scores of validation; None for nothing.
        not_calibrated: begins a sentence about too few scores to calibrate.
        scores_are: says what `is_score` asks of the columns of scores.
        ranked: says by what samples are ranked from best to worst.
        ranked_of_several: says so of several outputs, where that is something else.
        floor_words: what `floors` returns, in words.
        reporters: the names by which `metrics.table` knows what the task reports.
        losses: what training may minimise by its name in `train.loss`, the usual one first:
            functions (`config.train`) -> `Loss`, which import JAX when they are called.
        usual_selection: the metric that validation follows unless `train.select_by` names another:
            what the default loss trains.
        names: the K outputs or classes.
        reported: metrics by name, in the order of reports.
    """

    kind: ClassVar[str]
    choosable: ClassVar[bool] = True
    has_scale: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = True
    own_names: ClassVar[tuple[str, ...]] = ()
    has_classes: ClassVar[bool] = False
    explains: ClassVar[bool] = True
    continues_text: ClassVar[bool] = False
    calibration: ClassVar[Any] = None
    not_calibrated: ClassVar[str] = ""
    scores_are: ClassVar[str] = "finite numbers"
    ranked: ClassVar[str]
    ranked_of_several: ClassVar[str] = ""
    floor_words: ClassVar[Mapping[str, Floor]] = MappingProxyType(
        {
            "train_median": Floor(
                "m", "training median", "always the median of the training labels"
            ),
            "constant_0": Floor("0", "constant 0", "always 0"),
            "majority": Floor(
                "c", "majority class", "always the most frequent class of the labels measured"
            ),
            "train_shares": Floor(
                "s", "training shares", "always the frequencies in the training labels"
            ),
        }
    )
    losses: ClassVar[Mapping[str, Callable[[Any], Loss]]]
    reporters: ClassVar[tuple[str, ...]]
    usual_selection: ClassVar[str]

    names: tuple[str, ...]
    reported: Mapping[str, Metric]

    @classmethod
    def of(cls, names: tuple[str, ...], train_labels: NDArray | None) -> "Task":
        """Builds the task for outputs of these names, and training labels `[M, L]`."""
        raise NotImplementedError

    @staticmethod
    def scores(outputs: Any) -> Any:
        """Turns a model's outputs `[B, K]` into scores, inside a compiled program."""
        return outputs

    @staticmethod
    def targets_from(features: NDArray, mask: NDArray) -> NDArray:
        """Makes the targets `[N, T]` of a task that reads no labels, from `[N, T]` token ids."""
        raise NotImplementedError

    @staticmethod
    def require_targets(labels: NDArray, where: str) -> None:
        """Raises `UserError` if a prepared split's targets `[N, L]` leave nothing to learn."""

    @classmethod
    def asked_for(cls, headers: Sequence[Any]) -> bool:
        """Says whether labels, as the headers of all labelled splits have them, ask for the task.

        That decides where `model.task` is auto; the first task that is asked for is taken.
        """
        return False

    @classmethod
    def reports(cls, names: Set[str]) -> bool:
        """Says whether metrics of these names are some of those that the task reports."""
        return any(names <= reported_by(reporter).keys() for reporter in cls.reporters)

    @classmethod
    def learned(cls, path: str, headers: Sequence[Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names the outputs or classes of a corpus, by the headers of its labelled splits.

        Returns:
            The names, and the stored whole numbers that stand for classes in their order; () where
            there are no such numbers.

        Raises:
            UserError: if the labels do not suit the task.
        """
        return headers[0].label_names, ()

    @staticmethod
    def from_stored(
        labels: NDArray, names: Sequence[str], numbers: Sequence[int]
    ) -> NDArray | None:
        """Brings stored labels `[N, L]` into the task's form; None if they are of another kind."""
        return labels if labels.shape[1] == len(names) else None

    @staticmethod
    def check_train(path: str, targets: NDArray, names: Sequence[str]) -> None:
        """Raises `UserError` for targets that are all the same; tells of other doubtful ones."""

    @staticmethod
    def suspicions(
        labels: Mapping[str, NDArray],
        names: Sequence[str],
        numbers: Sequence[int],
        columns: Sequence[str],
        is_auto: bool,
    ) -> list[str]:
        """Tells of labels that do not vary, and of those that may be meant otherwise.

        Args:
            labels: `[N, L]` by split, as stored.
            numbers: as `learned` returns them.
            is_auto: `model.task` leaves open what they are learned as.
        """
        return []

    @staticmethod
    def outputs(names: Sequence[str]) -> int:
        """Counts the outputs of a model for scores of these names."""
        return len(names)

    @staticmethod
    def begins_at(labels: NDArray) -> NDArray | None:
        """Returns outputs `[K]` that a model of labels `[M, L]` begins with; None changes none."""
        return None

    @staticmethod
    def label_columns(names: Sequence[str]) -> list[str]:
        """Names the columns of a CSV of predictions that `label_cells` fills, if there are any."""
        return []

    @staticmethod
    def label_cells(
        label: NDArray | None, mean: NDArray, names: Sequence[str], number: Any
    ) -> list[str]:
        """Fills the columns of one sample.

        Args:
            label: `[L]`; None where it is not known.
            mean: `[K]`, the scores averaged over random seeds.
        """
        return []

    @staticmethod
    def score_columns(names: Sequence[str]) -> list[str]:
        """Names the K columns of scores."""
        return [f"score_{name}" for name in names]

    @classmethod
    def names_in(cls, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Reads the names of outputs from a CSV's columns; None if another task wrote them."""
        raise NotImplementedError

    @staticmethod
    def read_columns_of(names: Sequence[str]) -> list[str]:
        """Names the columns of a CSV that labels are read from."""
        return []

    @staticmethod
    def read_label(text: str, names: Sequence[str]) -> float:
        """Reads a label from its cell; raises `ValueError` saying what the cell is not."""
        return finite(text)

    @staticmethod
    def is_score(scores: NDArray) -> NDArray:
        """Says which samples' scores `[S, N, K]` can be some, `[N]` bool."""
        return np.ones(scores.shape[1], bool)

    @staticmethod
    def comparable(labels: NDArray, scores: NDArray, names: Sequence[str]) -> NDArray:
        """Returns what two runs on the same samples must have in common, `[N, L]`."""
        return labels

    @staticmethod
    def errors(labels: NDArray, scores: NDArray) -> NDArray:
        """Measures how wrong scores `[N, K]` are against labels `[N, L]`; NaN where unknown."""
        raise NotImplementedError

    @staticmethod
    def views(scored: ScoredSamples, is_sentiment: bool) -> Views:
        """Describes what a page shows of many samples."""
        return Views()

    @staticmethod
    def view_of(scored: ScoredSamples, i: int) -> SampleView:
        """Describes what a page shows of sample i; the report leaves out rows behind the first."""
        raise NotImplementedError

    def compute(self, scores: NDArray, labels: NDArray) -> dict[str, float]:
        """Computes metrics of scores `[N, K]` on labels `[N, L]`; undefined ones warn, are NaN."""
        p, y = scores.T, self.targets(labels)
        result = {name: float(metric.value(p, y)) for name, metric in self.reported.items()}
        for name, value in result.items():
            if np.isnan(value):
                warnings.warn(
                    f"{name} is undefined (NaN) because {self.reported[name].undefined_when}; "
                    f"N = {p.shape[-1]}, prediction in [{p.min()}, {p.max()}], label in "
                    f"[{y.min()}, {y.max()}]",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return result

    def intervals(self, scores: NDArray, labels: NDArray) -> dict[str, tuple[float, float]]:
        """Bootstraps 95 % intervals of each metric's mean over seeds, for scores `[S, N, K]`."""
        stacked = np.moveaxis(scores, 1, 2)  # [S, K, N]
        return bootstrap(stacked, self.targets(labels), self.reported)

    def calibrate(self, scores: NDArray, labels: NDArray, basis: Basis) -> Calibration | None:
        """Calibrates the mean over seeds of scores `[S, N, K]`, by labels `[N, L]`.

        Returns None if there are too few samples, or nothing to calibrate.
        """
        return self.calibration and self.calibration.fit(scores, labels, basis)

    def describe(self) -> str:
        """Says what is predicted of a sample."""
        raise NotImplementedError

    def targets(self, labels: NDArray) -> NDArray:
        """Arranges labels `[N, L]` as metrics take them."""
        return labels[:, 0]

    def floors(self, train_labels: NDArray, labels: NDArray) -> dict[str, dict[str, float]]:
        """Computes what scores without a model reach on labels `[N, L]`; train has `[M, L]`.

        Returns:
            `{floor: {metric: value}}`, NaN where undefined.
        """
        raise NotImplementedError

    def selection(self, select_by: str) -> str:
        """Returns the metric that validation follows; raises `UserError` if it is not reported."""
        if select_by == "auto":
            return self.usual_selection
        if select_by not in self.reported:
            raise UserError(
                f"train.select_by = {select_by!r}: must be auto or one of the metrics of these "
                f"labels, {', '.join(self.reported)}."
            )
        return select_by


def named_by(column: str) -> str | None:
    """Returns the name that a column of predictions has before `_sd` or `_seed0`; None without."""
    found = _OF_SEEDS.fullmatch(column)
    return found and found[1]


def finite(text: str) -> float:
    """Reads a finite number; raises `ValueError` for anything else."""
    value = number_of(text)
    if not np.isfinite(value):
        has_comma = re.fullmatch(r"\s*[-+]?\d+,\d+\s*", text or "")
        raise ValueError(f"not a finite number{': decimals have a point' if has_comma else ''}")
    return value
