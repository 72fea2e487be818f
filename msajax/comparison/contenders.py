"""Opens what is to be compared, runs and files of predictions, and pairs their samples."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from msajax.checks import is_url
from msajax.comparison.statistics import Pair, groups_of
from msajax.corpus.predictions import Predictions, read_predictions
from msajax.errors import UserError, on_one_line, printable
from msajax.files import meant
from msajax.metrics.measures import Metric
from msajax.runs.claim import FOLDS, FOLDS_PREDICTIONS, require_ended
from msajax.tasks import TASKS, Task, make_task
from msajax.tasks.conventions import by_convention

_NAMED = 3  # samples that a sentence names
_SAME_LABEL = 1e-6  # relative: labels are stored as float32, and printed with other digits


@dataclasses.dataclass(frozen=True)
class Contender:
    """Holds the predictions of a run or a file, by the name that the user gave it."""

    name: str
    predictions: Predictions

    @property
    def has_ids(self) -> bool:
        """Says whether the samples are named."""
        return bool(self.predictions.ids.astype(bool).any())


class Opened(NamedTuple):
    """Holds the predictions of runs for the same N samples.

    Attributes:
        samples: labels, ids and names of outputs.
        scores: `[S, N, K]` for each run, a row for each random seed.
        group_of: `[N]`, the number of each sample's group, which the paired test exchanges as one.
        unit: video, or sample where ids name no videos.
    """

    samples: Predictions
    scores: Sequence[NDArray]
    task: Task
    notes: Sequence[str]
    group_of: NDArray
    unit: str

    @property
    def headline(self) -> str:
        """Names the metric that validation follows by default, else the first."""
        usual = self.task.usual_selection
        return usual if usual in self.task.reported else next(iter(self.task.reported))

    @property
    def groups(self) -> int:
        """Counts the groups."""
        return int(self.group_of.max()) + 1

    def values(self, place: int, metric: Metric) -> NDArray:
        """Computes a metric of every random seed of a run, by its place: `[S]`."""
        with np.errstate(all="ignore"):
            scores = np.moveaxis(self.scores[place], 1, 2)
            return metric.value(scores, self.task.targets(self.samples.labels))

    def pair(self, first: int, second: int) -> Pair:
        """Arranges the scores of two runs, by their places, for the paired test."""
        arranged = [np.moveaxis(self.scores[place], 1, 2) for place in (first, second)]
        targets = self.task.targets(self.samples.labels)
        return Pair(*arranged, targets, self.group_of, self.unit)


def open_runs(runs: Sequence[str], split: str, convention: str = "") -> Opened:
    """Opens the predictions of runs and brings their samples into the same order.

    The arguments are those of `compare.compare`.

    Raises:
        UserError: if one is named twice or cannot be read, or they are not of the same samples.
    """
    if split not in ("valid", "test"):
        raise UserError(f"A run leaves predictions of valid and test, not of {split!r}.")
    places = [run.rstrip("/") if is_url(run) else os.path.realpath(run) for run in runs]
    if twice := [run for k, run in enumerate(runs) if places[k] in places[:k]]:
        raise UserError(f"{twice[0]} is named twice.")
    contenders = [open_contender(run, split) for run in runs]
    samples, scores, notes = pair_samples(contenders)
    task = make_task(samples.kind, samples.names, samples.labels)
    task = by_convention(convention, task, samples.labels)
    # Without ids there are numbers, which name no videos.
    ids = samples.ids.tolist() if samples.ids[0] else list(map(str, range(len(samples.ids))))
    return Opened(samples, scores, task, notes, *groups_of(ids))


def short_names(paths: Sequence[str], shown: Callable[[str], str] = on_one_line) -> dict[str, str]:
    """Names runs and files by the fewest last parts of their paths that tell all of them apart.

    Args:
        shown: makes a name of the parts, which stays the name if all of them differ.
    """
    parts = {path: path.rstrip("/").split("/") for path in paths}
    for count in range(1, max(map(len, parts.values())) + 1):
        names = {path: shown("/".join(of[-count:]) or path) for path, of in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: on_one_line(path) for path in paths}


def open_contender(path: str, split: str) -> Contender:
    """Reads the predictions of a run, also in a bucket, of folds, or of a file, or refuses them."""
    if is_url(path):
        from msajax.runs.mirror import Mirror

        with Mirror(path) as mirror:
            predictions = read_predictions(_file_of(mirror.path, split))
    else:
        predictions = read_predictions(_file_of(path, split))
    has_id = predictions.ids.astype(bool)
    if has_id.any() and not has_id.all():
        row = int(np.flatnonzero(~has_id)[0]) + 1
        raise UserError(f"{path}, row {row}: the id is empty, though others are not.")
    unique, counts = np.unique(predictions.ids, return_counts=True)
    if has_id.any() and (counts > 1).any():
        raise UserError(f"{path} has the id {_quote(unique[counts > 1])} more than once.")
    return Contender(path, predictions)


def _file_of(path: str, split: str) -> str:
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise UserError(f"There is no run and no file {path}{meant(path) or '.'}")
        return path
    if os.path.isfile(os.path.join(path, FOLDS)):
        if split != "test":
            raise UserError(f"{path} holds folds, whose predictions are those of test.")
        return os.path.join(path, FOLDS_PREDICTIONS)
    require_ended(path)
    return os.path.join(path, "predictions", f"{split}.csv")


def pair_samples(
    contenders: Sequence[Contender],
) -> tuple[Predictions, list[np.ndarray], list[str]]:
    """Brings the scores of all into the order of one.

    Samples are paired by their ids. A file without ids is paired by order, if labels in that order
    are those of the others.

    Returns:
        The predictions whose samples, labels and names of outputs count, which are those of the
        first contender that has ids, else of the first; the scores `[S, N, K]` of each contender;
        and what a reader must know of the pairing, in sentences.

    Raises:
        UserError: if samples, labels or outputs differ, naming those that do.
    """
    chief = next((c for c in contenders if c.has_ids), contenders[0])
    scores, notes = [], []
    for contender in contenders:
        columns = _columns(chief, contender)
        if chief.has_ids and contender.has_ids:
            rows = _rows_by_id(chief, contender)
        else:
            a, b = len(chief.predictions.labels), len(contender.predictions.labels)
            if a != b:
                without = contender if chief.has_ids else chief
                raise UserError(
                    f"{without.name} has no ids, and cannot be paired by order: {chief.name} has "
                    f"{a} rows, {contender.name} {b}."
                )
            rows = np.arange(a)
            if contender is not chief:
                notes.append(
                    f"{contender.name} has no ids: its rows were paired with those of {chief.name} "
                    "by their order, in which all labels agree."
                )
        _require_labels(chief, contender, rows, columns)
        scores.append(contender.predictions.scores[:, rows][:, :, columns])
    if not chief.has_ids:
        notes = ["No file has ids: rows were paired by their order, in which all labels agree."]
    return chief.predictions, scores, notes


def _columns(chief: Contender, other: Contender) -> list[int]:
    """Finds the outputs of the chief among those of another."""
    a, b = chief.predictions, other.predictions
    if a.kind != b.kind:
        raise UserError(
            f"{chief.name} holds predictions of {a.kind}, and {other.name} of {b.kind}: they do "
            "not compare."
        )
    if set(a.names) != set(b.names):
        alone = sorted(set(a.names) ^ set(b.names))
        raise UserError(
            f"{chief.name} and {other.name} do not predict the same: {_quote(alone)} in one alone."
        )
    return [b.names.index(name) for name in a.names]


def _rows_by_id(chief: Contender, other: Contender) -> np.ndarray:
    """Finds the chief's samples in another; if no id is the same, `video$_$3` is `video_3`."""
    ids, others = chief.predictions.ids.tolist(), other.predictions.ids.tolist()
    if not set(ids) & set(others):
        a, b = ([id_.replace("$_$", "_") for id_ in each] for each in (ids, others))
        if (len(set(a)), len(set(b))) == (len(a), len(b)) and set(a) & set(b):
            ids, others = a, b
    row_of = {id_: row for row, id_ in enumerate(others)}
    there = set(ids)
    missing, more = [i for i in ids if i not in row_of], [i for i in row_of if i not in there]
    if len(missing) == len(ids):
        raise UserError(
            f"{chief.name} and {other.name} have no id in common, as {_quote(missing[:1])} and "
            f"{_quote(more[:1])} show: compare runs on the same split of the same corpus."
        )
    if missing or more:
        parts = [
            f"{len(alone)} in {name} alone ({_quote(alone)})"
            for name, alone in ((chief.name, missing), (other.name, more))
            if alone
        ]
        raise UserError(
            f"{chief.name} and {other.name} do not hold the same samples: {' and '.join(parts)}."
        )
    return np.array([row_of[id_] for id_ in ids])


def _require_labels(
    chief: Contender, other: Contender, rows: np.ndarray, columns: list[int]
) -> None:
    """Raises `UserError` where the labels of the same samples differ, naming the samples."""
    a, b, task = chief.predictions, other.predictions, TASKS[chief.predictions.kind]
    here = task.comparable(a.labels, a.scores[0], a.names)
    there = task.comparable(b.labels, b.scores[0], b.names)[rows]
    if here.dtype == object:
        differ = (here != there).any(axis=1)
    else:
        there = there[:, columns] if there.shape[1] == len(columns) else there
        tolerance = _SAME_LABEL * np.maximum(1, np.abs(here))
        differ = (np.abs(here - there) > tolerance).any(axis=1)
    if not differ.any():
        return
    said = []
    for row in np.flatnonzero(differ)[:_NAMED]:
        column = int(np.flatnonzero(here[row] != there[row])[0])
        name = _quote([a.ids[row]]) if a.ids[row] else f"row {row + 1}"
        both = (
            repr(printable(x)) if isinstance(x, str) else f"{x:.9g}"
            for x in (here[row, column], there[row, column])
        )
        said.append(f"{name} {' against '.join(both)}")
    raise UserError(
        f"{chief.name} and {other.name} differ in the labels of {differ.sum()} sample(s): "
        f"{', '.join(said)}{', …' * (int(differ.sum()) > _NAMED)}."
    )


def _quote(names: Sequence[str]) -> str:
    shown = ", ".join(repr(printable(str(name))) for name in names[:_NAMED])
    return shown + ", …" * (len(names) > _NAMED)
