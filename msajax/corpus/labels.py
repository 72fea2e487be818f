"""Says what labels are: how they are stored, which task they ask for, what a model predicts."""

import dataclasses
import logging
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from msajax.config import ModelConfig
from msajax.corpus.corpus import Corpus, Split, is_finite
from msajax.errors import UserError
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS
from msajax.tasks.base import named_by
from msajax.tasks.classification import are_one_hot
from msajax.tasks.regression import Regression

logger = logging.getLogger(__name__)

MOST_CLASSES = 1000
MOST_OUTPUTS = 1000  # labels of a sample: more are features that were put in their place
_LARGEST_CLASS = 2**53  # labels are kept as float64, which cannot tell larger ones apart
_SENTIMENT = 3.0  # its largest value
_STRAY_SHARE = 0.1


class LabelKind(NamedTuple):
    """Says what the labels of a run are."""

    kind: str  # a name in `msajax.tasks.TASKS`
    names: tuple[str, ...]  # of the model's outputs
    # The stored whole numbers that stand for the classes, in the order of their names; () for
    # one-hot labels and for all that are no classes
    classes: tuple[int, ...] = ()


def describe_labels(
    labels: np.ndarray, *, integers: bool, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Describes finite labels `[N, K]` float64 by entries of a `SplitHeader`.

    Labels are classes only where they are stored as whole numbers (`integers`) from 0 in one
    column, or every row is one-hot: scores from -3 to 3, and ratings stored as floats, stay scores.
    `names` are, where known, those of the K columns, or of the classes 0, 1, … in a single column.

    Raises:
        ValueError: if the number of names fits neither columns nor classes, or a column of
            predictions could belong to two names.
    """
    columns = labels.shape[1]
    kind, classes = "scores", {}
    if columns > 1:
        if np.isin(labels, (0, 1)).all():
            kind = "one_hot" if are_one_hot(labels) else "binary"
    else:
        found = np.unique(labels)
        whole = (found == np.round(found)) & (np.abs(found) < _LARGEST_CLASS)
        if 0 < len(found) <= MOST_CLASSES and whole.all():
            classes = {int(value): str(int(value)) for value in found}
            kind = "classes" if integers and found[0] >= 0 else kind
        # A single name is the column's, even where every label of a split is 0: one class alone
        # would be nothing to learn.
        if kind == "classes" and len(names) > 1 and found[-1] < len(names):
            classes, names = dict(enumerate(names)), ("class",)
    if names and len(names) != columns:
        raise ValueError(f"{len(names)} label name(s) for {columns} column(s) of labels")
    taken = (*names, *classes.values())
    for name in taken:
        stem = name
        while stem := named_by(stem):
            if stem in taken:
                raise ValueError(f"a name {name!r}, which in predictions is a column of {stem!r}")
    usual = ("sentiment",) if columns == 1 else tuple(str(k) for k in range(columns))
    return {"label_names": tuple(names) or usual, "label_kind": kind, "classes": classes}


def read_labels(
    path: str, split: str, labels: np.ndarray | None, ids: np.ndarray, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Checks labels as a file has them, (N,) or (N, K), and describes them by `describe_labels`.

    Path and split, and the `[N]` ids, are for messages; without labels there is nothing to say.

    Raises:
        UserError: for labels that are not finite, none or more than `MOST_OUTPUTS` of a sample, or
            names that do not fit.
    """
    if labels is None:
        return {}
    values = labels.astype(np.float64).reshape(len(labels), math.prod(labels.shape[1:]))
    if values.shape[1] == 0:
        raise UserError(f"{path}: {split}/label has no column.")
    if values.shape[1] > MOST_OUTPUTS:
        raise UserError(
            f"{path}: {split}/label has {values.shape[1]} columns; at most {MOST_OUTPUTS} are read."
        )
    bad = np.flatnonzero(~is_finite(values).all(axis=1))
    if bad.size:
        raise UserError(
            f"{path}: {bad.size} label(s) of split {split!r} are not finite float32 numbers, "
            f"the first that of {str(ids[bad[0]])!r} (row {bad[0]})."
        )
    try:
        return describe_labels(values, integers=labels.dtype.kind in "biu", names=names)
    except ValueError as error:
        raise UserError(f"{path}: {split}/label has {error}.") from error


def require_names(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Returns names of labels or classes; raises `UserError` for one that tables cannot show."""
    if not all(re.fullmatch(r"\S(.*\S)?", name) and name.isprintable() for name in names):
        raise UserError(f"{where} has a name that is empty, ends in space or is not printable.")
    return tuple(names)


def clip_sentiment(where: str, columns: Sequence[np.ndarray]) -> int:
    """Brings the few sentiment labels outside of [-3, 3] to its bounds, in place, and says so.

    A few of CMU-MOSEI, from a fourth annotator, lie there. Where they are more than a tenth of all
    labels, these are taken for another scale than sentiment's and left as they are.

    The columns have a finite label per sample, in the parts of one corpus; the log calls it
    `where`. Returns how many labels were clipped.
    """
    size = sum(map(len, columns))
    stray = sum(int((np.abs(column) > _SENTIMENT).sum()) for column in columns)
    if stray > _STRAY_SHARE * size:
        logger.warning(
            "%s: %d of %d labels lie outside [-3, 3]: taken for another scale than sentiment's and "
            "left as they are.",
            *(where, stray, size),
        )
        return 0
    if stray:
        logger.warning(
            "%s: %d of %d sentiment labels lie outside [-3, 3] and were clipped.",
            *(where, stray, size),
        )
        for column in columns:
            np.clip(column, -_SENTIMENT, _SENTIMENT, out=column)
    return stray


def binarized(corpus: Corpus, threshold: float) -> Corpus:
    """Makes the same corpus whose labels are 1 above a threshold, else 0."""

    def read(name: str) -> Split:
        split = corpus.split(name)
        labels = None if split.labels is None else (split.labels > threshold).astype(np.float64)
        return dataclasses.replace(split, labels=labels)

    headers = {}
    for name, header in corpus.headers.items():
        if (labels := read(name).labels) is not None:
            about = describe_labels(labels, integers=True, names=header.label_names)
            headers[name] = dataclasses.replace(header, **about)
    return corpus.with_changes(read, headers)


def reads_labels(model: ModelConfig) -> bool:
    """Says whether a model learns labels, and not its own inputs, as next_token does."""
    return not model.own_task or TASKS[model.own_task].reads_labels


def label_kind(corpus: Corpus, model: ModelConfig) -> LabelKind:
    """Says what a model is to predict of a corpus; raises `UserError` if labels do not suit it."""
    if not reads_labels(model):
        return LabelKind(model.own_task, TASKS[model.own_task].own_names)
    labelled = [header for header in corpus.headers.values() if header.label_names]
    if not labelled:
        return LabelKind(Regression.kind, ("sentiment",))
    task = TASKS.get(model.task)
    if task is None:  # auto
        task = next((one for one in TASKS.values() if one.asked_for(labelled)), Regression)
        if task is Regression and len({header.label_kind for header in labelled}) > 1:
            found = (f"{s} {h.label_kind}" for s, h in corpus.headers.items() if h.label_names)
            logger.warning(
                "%s: splits store labels differently (%s): learned as scores; model.task decides "
                "otherwise.",
                *(corpus.path, ", ".join(found)),
            )
    return LabelKind(task.kind, *task.learned(corpus.path, labelled))


def as_targets(
    labels: np.ndarray | None, spec: CorpusSpec, classes: Sequence[int]
) -> np.ndarray | None:
    """Brings stored labels `[N, L]` into the form of the task; warns of others, which are None."""
    if labels is None:
        return None
    found = TASKS[spec.label_kind].from_stored(labels, spec.label_names, classes)
    if found is None:
        wanted = f"{spec.label_kind} of {', '.join(spec.label_names)}"
        logger.warning("Labels that do not suit the model's %s are left out.", wanted)
    return found
