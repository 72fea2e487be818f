"""Says what labels are: how they are stored, which task they ask for, what a model predicts."""

import logging
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from msajax.config import ModelConfig
from msajax.corpus.corpus import Corpus, SplitHeader, is_finite
from msajax.errors import UserError
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS
from msajax.tasks.base import named_by

logger = logging.getLogger(__name__)

MOST_CLASSES = 1000
MOST_OUTPUTS = 1000  # labels of a sample: more are features that were put in their place
_LARGEST_CLASS = 2**53  # labels are kept as float64, which cannot tell larger ones apart
_SENTIMENT = 3.0  # its largest value
_STRAY_SHARE = 0.1


class LabelKind(NamedTuple):
    """Says what the labels of a run are.

    Attributes:
        kind: a name in `msajax.tasks.TASKS`.
        names: what the model's outputs are called.
        classes: the stored whole numbers that stand for the classes, in the order of their names;
            () for one-hot labels and for all that are no classes.
    """

    kind: str
    names: tuple[str, ...]
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
        kind = "one_hot" if _are_one_hot(labels) else kind
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


def _are_one_hot(labels: np.ndarray) -> bool:
    ones = (labels == 1).sum(axis=1)
    return bool(((ones == 1) & ((labels != 0).sum(axis=1) == 1)).all())


def classes_of(headers: Iterable[SplitHeader]) -> dict[int, str]:
    """Returns the classes of all splits together, in order; {} unless each of them has some."""
    headers = list(headers)
    found = dict(item for header in headers for item in header.classes.items())
    return dict(sorted(found.items())) if all(header.classes for header in headers) else {}


def label_kind(corpus: Corpus, model: ModelConfig) -> LabelKind:
    """Says what a model is to predict of a corpus, from its headers and `model.task`.

    The classes of all labelled splits count: one that train lacks must not fail a run at its end.

    Raises:
        UserError: if classes are asked for and there are none.
    """
    if model.own_task and not TASKS[model.own_task].reads_labels:
        return LabelKind(model.own_task, TASKS[model.own_task].own_names)
    labelled = [header for header in corpus.headers.values() if header.label_names]
    if not labelled:
        return LabelKind("regression", ("sentiment",))
    one_hot = all(header.label_kind == "one_hot" for header in labelled)
    numbered = all(header.label_kind == "classes" for header in labelled)
    if model.task == "auto" and len({header.label_kind for header in labelled}) > 1:
        found = ", ".join(f"{s} {h.label_kind}" for s, h in corpus.headers.items() if h.label_names)
        logger.warning(
            "%s: splits store labels differently (%s): learned as scores; model.task decides "
            "otherwise.",
            *(corpus.path, found),
        )
    if model.task == "regression" or (model.task == "auto" and not (one_hot or numbered)):
        return LabelKind("regression", labelled[0].label_names)
    classes = classes_of(labelled)
    if not one_hot and not classes:
        raise UserError(
            f"model.task = classification: the labels of {corpus.path} are no classes, which are "
            "whole numbers in one column, or rows of one 1 among zeros."
        )
    numbers = () if one_hot else tuple(classes)
    names = labelled[0].label_names if one_hot else tuple(classes.values())
    if len(names) < 2:
        raise UserError(
            f"{corpus.path}: every label is of the same class, {names[0]!r}: "
            "--config.model.task=regression learns it as a score."
        )
    return LabelKind("classification", names, numbers)


def as_targets(
    labels: np.ndarray | None, spec: CorpusSpec, classes: Sequence[int]
) -> np.ndarray | None:
    """Brings stored labels `[N, L]` into the task's form: classes counted from 0, or as they are.

    Returns:
        None, with a warning, for labels of another kind than the model's.
    """
    if labels is None:
        return None
    columns = 1 if classes else len(spec.label_names)
    fits = labels.shape[1] == columns
    if fits and classes:
        fits = bool(np.isin(labels, classes).all())
    elif fits and spec.label_kind == "classification":
        fits = _are_one_hot(labels)
    if not fits:
        wanted = f"{spec.label_kind} of {', '.join(spec.label_names)}"
        logger.warning("Labels that do not suit the model's %s are left out.", wanted)
        return None
    if classes:
        return np.searchsorted(np.array(classes), labels).astype(np.float64)
    if spec.label_kind == "classification":
        return labels.argmax(axis=1).astype(np.float64)[:, None]
    return labels


def require_two_classes(path: str, targets: np.ndarray | None, spec: CorpusSpec) -> None:
    """Says which classes train lacks; refuses a training split of a single class."""
    if targets is None:
        return
    seen = set(targets[:, 0].astype(int))
    missing = [name for k, name in enumerate(spec.label_names) if k not in seen]
    if len(seen) < 2:
        raise UserError(
            f"{path}: every label of train is of the same class: --config.model.task=regression "
            "learns labels as scores."
        )
    if missing:
        logger.warning("No sample of train is of the class(es) %s.", ", ".join(missing))
