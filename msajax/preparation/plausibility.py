"""Finds what the makers of a corpus have probably not meant; says it in a sentence each."""

import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.corpus.folds import is_part, video_of
from msajax.corpus.labels import LabelKind
from msajax.corpus.repeated import count_repeated, describe_repeated
from msajax.errors import printable

_APART = 100  # times: units that were mixed up, or features that were scaled in one split alone
_MOST_CLASSES = 20  # more whole numbers from 0 are counts or grades
_FEW = 3  # so few values are classes wherever they begin; -3 to 3 and 1 to 5 are degrees
_REPEATED = 3  # times that a class occurs, on average; fewer labels are whole by chance
_SHOWN = 8  # classes listed by name


def suspect_ids(ids: Mapping[str, Sequence[str]]) -> list[str]:
    """Tells of samples whose ids differ in their Unicode form alone, as those of "é" may.

    Args:
        ids: by split.
    """
    composed = {s: [unicodedata.normalize("NFC", id_) for id_ in of] for s, of in ids.items()}
    equal = count_repeated(ids)
    found = {where: count - equal[where] for where, count in count_repeated(composed).items()}
    equals = "have, but for its Unicode form (NFC or NFD), the id of"
    return describe_repeated(found, equals, ": samples may leak")


def suspect_videos(ids: Mapping[str, Sequence[str]]) -> list[str]:
    """Tells of videos that have samples in more than one split.

    Args:
        ids: by split; one that names a video as a whole is told of where ids are repeated.
    """
    parts = {name: {video_of(id_) for id_ in of if is_part(id_)} for name, of in ids.items()}
    videos = {name: found - {None} for name, found in parts.items()}
    shared = [
        f"{len(both)} in {one} and {other}, as {printable(min(both))!r}"
        for one, other in itertools.combinations(videos, 2)
        if (both := videos[one] & videos[other])
    ]
    if not shared:
        return []
    return [
        f"By their ids, videos or persons have samples in two splits ({'; '.join(shared)}): what a "
        "model learns of a speaker in one helps it in the other."
    ]


def suspect_labels(
    labels: Mapping[str, np.ndarray | None], kind: LabelKind, names: Sequence[str], *, is_auto: bool
) -> list[str]:
    """Tells of labels that do not vary, of classes that are learned as scores or not at all.

    Args:
        labels: `[N, K]` by split; None for one without.
        kind: what they are learned as.
        names: of the K columns.
        is_auto: whether `model.task` leaves open what they are learned as.
    """
    known = {split: y for split, y in labels.items() if y is not None}
    if kind.kind == "classification":
        found = {split: _classes(y, kind) for split, y in known.items()}
        return _constant_classes(found, kind.names) + _classes_without_train(found, kind.names)
    if kind.kind != "regression":
        return []
    told = [
        f"{split}: {name} is {column[0]:g} in all {len(column)} samples: "
        + ("there is nothing to learn." if split == "train" else "it has no correlation there.")
        for split, y in known.items()
        for name, column in zip(names, y.T, strict=True)
        if len(column) > 1 and (column == column[0]).all()
    ]
    if is_auto and len(names) == 1 and (values := _like_classes(np.concatenate([*known.values()]))):
        told.append(
            f"{names[0]} takes the values {', '.join(f'{v:g}' for v in values)} alone, which are "
            "learned as scores: if they are classes, --config.model.task=classification learns "
            "them as such."
        )
    return told


def suspect_scales(splits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Tells of modalities whose values are many times as large in one split as in another.

    Args:
        splits: as the report of `inspect_corpus` has them.
    """
    told = []
    for m in dict.fromkeys(m for split in splits.values() for m in split["modalities"]):
        facts = {name: split["modalities"].get(m, {}) for name, split in splits.items()}
        scales = {name: found["scale"] for name, found in facts.items() if found.get("scale")}
        if scales and max(scales.values()) >= _APART * min(scales.values()):
            of_each = ", ".join(f"{scale:.3g} in {name}" for name, scale in scales.items())
            told.append(
                f"The values of {m} differ in scale: a step's root mean square is typically "
                f"{of_each}. Were they made in the same way?"
            )
    return told


def _classes(labels: np.ndarray, kind: LabelKind) -> np.ndarray:
    """Returns the class `[N]` of each sample, counted from 0."""
    if kind.classes:
        return np.searchsorted(np.array(kind.classes), labels[:, 0])
    return labels.argmax(axis=1)


def _constant_classes(found: Mapping[str, np.ndarray], names: Sequence[str]) -> list[str]:
    return [
        f"{split}: all {len(of)} samples are of the class {names[of[0]]}: "
        + ("there is nothing to learn." if split == "train" else "none can be told from it there.")
        for split, of in found.items()
        if len(of) > 1 and (of == of[0]).all()
    ]


def _classes_without_train(found: Mapping[str, np.ndarray], names: Sequence[str]) -> list[str]:
    if "train" not in found:
        return []
    told = []
    for split, of in found.items():
        new = np.setdiff1d(of, found["train"])
        if new.size:
            more = ", …" if new.size > _SHOWN else ""
            told.append(
                f"{split}: {np.isin(of, new).sum()} sample(s) are of class(es) that train lacks "
                f"({', '.join(names[k] for k in new[:_SHOWN])}{more}): nothing learns them."
            )
    return told


def _like_classes(labels: np.ndarray) -> list[float]:
    """Returns the values of labels `[N, 1]` if they look like numbers of classes, else []."""
    values = np.unique(labels)
    whole = (values == np.round(values)).all()
    from_0 = len(values) <= _MOST_CLASSES and np.array_equal(values, np.arange(len(values)))
    is_few = 2 <= len(values) and (len(values) <= _FEW or from_0)
    return values.tolist() if whole and is_few and len(labels) >= _REPEATED * len(values) else []


def suspect_range(splits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Says in one sentence in which splits a single score leaves the scale of sentiment.

    Args:
        splits: `{split: facts}`, as `inspect` describes them; `labels` is `{label: facts}` or None.
    """
    wide = {
        name: (label, facts["min"], facts["max"])
        for name, split in splits.items()
        for label, facts in (split["labels"] or {}).items()
        if len(split["labels"]) == 1 and (facts["min"] < -3 or facts["max"] > 3)
    }
    if not wide:
        return []
    labels, low, high = zip(*wide.values(), strict=True)
    return [
        f"{', '.join(wide)}: {labels[0]} reaches from {min(low):g} to {max(high):g}, outside "
        "[-3, 3]: the accuracies and F1 of sentiment do not suit it."
    ]
