"""Reads samples of the pickles of MISA and MAG, `(parts, label, id)`, and joins what they hold."""

from typing import Any, NamedTuple

import numpy as np

from msajax.corpus.formats import fields
from msajax.corpus.formats.pickled import describe
from msajax.errors import UserError

_EXPECTED = "expected ((words, visual, acoustic[, words]), label, id)"


class Sample(NamedTuple):
    """Holds a sample as the file has it; `words` and word `ids` [L] are None where it has none."""

    where: str
    words: list[str] | None
    ids: np.ndarray | None
    visual: Any
    acoustic: Any
    label: Any
    id: Any


def are_samples(tree: Any) -> bool:
    """Says whether a split is a list, of samples as far as its first entry tells."""
    if not _is_list(tree) or len(tree) == 0:
        return _is_list(tree)
    return _is_list(tree[0]) and len(tree[0]) == 3 and _is_list(tree[0][0])


def read_samples(where: str, tree: Any) -> list[Sample]:
    """Reads the samples of a split; features, labels and ids stay as they are.

    Args:
        where: how a sentence about the split begins.
        tree: what the pickle holds of it.

    Raises:
        UserError: for samples of another form, and for a split without any.
    """
    if not _is_list(tree):
        raise UserError(f"{where} is {describe(tree)}; expected a list of samples.")
    if len(tree) == 0:
        raise UserError(f"{where} is empty; expected a list of samples.")
    return [_sample(f"{where}[{k}]", entry) for k, entry in enumerate(tree)]


class Rows(NamedTuple):
    """Holds a modality of a split: the steps of all samples `[sum of lengths, …]`, and lengths.

    A step of words that become vectors is the row of its vector in a table.
    """

    steps: np.ndarray
    lengths: np.ndarray


def read_rows(samples: list[Sample], part: str, values: list[np.ndarray]) -> Rows | None:
    """Joins the rows of all samples; returns None if none has any.

    A sample without rows lacks the modality.
    """
    recorded = [(s.where, x) for s, x in zip(samples, values, strict=True) if x.size]
    if not recorded:
        return None
    for where, x in recorded:
        if x.ndim != 2 or x.dtype.kind not in "fiu":
            raise UserError(f"{where}, {part}, is {describe(x)}; expected numbers (L, d).")
        first, width = recorded[0][0], recorded[0][1].shape[1]
        if x.shape[1] != width:
            raise UserError(
                f"{where}, {part}, is {x.shape[1]} wide, but {first}, {part}, is {width}."
            )
    steps = np.concatenate([fields.to_float32(x) for _, x in recorded])
    return Rows(steps, np.array([len(x) if x.size else 0 for x in values]))


def read_label_rows(samples: list[Sample]) -> np.ndarray | None:
    """Reads labels `[N, K]`, of the type stored; returns None if no sample has any."""
    if all(sample.label is None for sample in samples):
        return None
    labels = [fields.as_array(s.label, f"{s.where}, label").reshape(1, -1) for s in samples]
    for sample, label in zip(samples, labels, strict=True):
        if label.shape != labels[0].shape or label.size == 0:
            raise UserError(
                f"{sample.where} has {label.size} label(s), but {samples[0].where} has "
                f"{labels[0].size}; expected as many, and one at least."
            )
    return np.concatenate(labels)


def _sample(where: str, entry: Any) -> Sample:
    if not _is_list(entry) or len(entry) != 3:
        raise UserError(f"{where} is {describe(entry)}; {_EXPECTED}.")
    parts, label, id_ = entry
    if not _is_list(parts) or len(parts) not in (3, 4):
        raise UserError(f"{where} begins with {describe(parts)}; {_EXPECTED}.")
    text, visual, acoustic = parts[0], parts[1], parts[2]
    words, ids = fields.read_words(text, where), None
    if not words:
        ids = fields.to_whole(fields.as_array(text, f"{where}, word ids"), f"{where}, word ids")
        if ids.ndim != 1:
            raise UserError(f"{where} has {describe(ids)} as its words; expected word ids (L,).")
    if len(parts) == 4:
        words = fields.read_words(parts[3], where)
        if words is None:
            raise UserError(f"{where} has {describe(parts[3])} as its words; {_EXPECTED}.")
    return Sample(where, words, ids, visual, acoustic, label, id_)


def _is_list(value: Any) -> bool:
    is_objects = isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 0
    return is_objects or type(value) in (list, tuple)
