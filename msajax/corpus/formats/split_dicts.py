"""Reads pickles whose splits are dicts of arrays by name, as those of MMSA and MulT are.

    vision | visual | video | facet, audio | acoustic | covarep, text | glove
                    (N, T, d) numbers, (N, d) real numbers of one step, or (N, T) token ids
    label | labels | regression_labels | y
                    (N,), (N, 1), (N, 1, 1) or (N, K) numbers; optional
    id | ids        N of text, bytes, numbers or [video, start, end]; else made of split and row
    raw_text        N of text; optional

Features are kept in memory as float32.
"""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, Source, Split, modality_order
from msajax.corpus.folds import rows_of_splits
from msajax.corpus.formats import fields
from msajax.corpus.formats.pickled import WHOLE, Pickled, describe, log_unread
from msajax.corpus.in_memory import corpus_of
from msajax.corpus.labels import clip_sentiment, read_labels
from msajax.corpus.on_demand import take_rows
from msajax.errors import UserError


@dataclasses.dataclass
class Draft:
    """Holds what has been read of a split, for the reader of a format to complete.

    Attributes:
        where: how the name of something in the split begins, for a message.
        size: samples.
        values: what has not been read yet, by what it is, with the names of the file.
        features: by modality.
        names: what the file calls these modalities.
        masks: by modality.
        repairs: counts of what was changed so far, over all splits.
        aligned: whether the modalities share their steps; None if the format does not say.
        derived: modalities whose masks are made of lengths.
        segments: the segment ids of text that is token ids.
    """

    where: str
    size: int
    values: dict[str, tuple[str, Any]]
    features: dict[str, np.ndarray]
    names: dict[str, str]
    masks: dict[str, np.ndarray]
    repairs: collections.Counter
    aligned: bool | None = None
    derived: set[str] = dataclasses.field(default_factory=set)
    segments: np.ndarray | None = None


def has_modality(pickled: Pickled) -> bool:
    """Says whether the first split is a dict with a modality in it."""
    tree = next(iter(pickled.trees.values()))
    return isinstance(tree, dict) and any(
        isinstance(name, str) and name.lower() in fields.MODALITIES for name in tree
    )


def read_corpus(
    pickled: Pickled,
    data: DataConfig,
    format: str,
    own: dict[str, str] | None = None,
    complete: Callable[[Draft], None] = lambda draft: None,
) -> Corpus:
    """Reads a corpus whose splits are dicts of arrays.

    Args:
        pickled: the content, which is removed from it as it is read.
        data: `split_seed`, for a corpus without splits.
        format: its name.
        own: names, in lower case, of the fields that this format has beside the common ones, and
            what they are.
        complete: adds what these fields mean to a split.

    Raises:
        UserError: for values of wrong type or shape, labels that are not finite, splits that are
            empty or do not fit together, and ids that tell no videos where there are no splits.
    """
    splits: dict[str, Split] = {}
    repairs: collections.Counter = collections.Counter()
    unread: set[str] = set()
    integers, said = True, set()
    for name in list(pickled.trees):
        where, tree = pickled.where(name), pickled.trees.pop(name)
        if not isinstance(tree, dict):
            raise UserError(f"{where.rstrip('/: ')} is {describe(tree)}; expected a dict.")
        values, others = fields.sort_fields(where, tree, own or {})
        del tree
        splits[name], kind, aligned = _read_split(
            pickled.path, name, where, values, repairs, complete
        )
        integers &= kind in "biu"
        said.add(aligned)
        unread |= others
    log_unread(pickled.path, unread)
    if not integers and all(s.labels is None or s.labels.shape[1] == 1 for s in splits.values()):
        columns = [split.labels[:, 0] for split in splits.values() if split.labels is not None]
        repairs["clipped_labels"] = clip_sentiment(pickled.path, columns)
    if WHOLE in splits:
        whole = splits.pop(WHOLE)
        rows = rows_of_splits(pickled.path, whole.ids.tolist(), data)
        splits = {name: take_rows(whole, kept) for name, kept in rows.items()}
    modalities = modality_order({m for split in splits.values() for m in split.features})
    corpus = corpus_of(
        splits,
        source=Source(pickled.path, format, repairs),
        integers=integers,
        aligned=() if False in said else None if None in said else modalities,
    )
    corpus.require_equal_steps()  # these formats pad to a fixed length; another is a mix-up
    return corpus


def _read_split(
    path: str,
    name: str,
    where: str,
    values: dict[str, tuple[str, Any]],
    repairs: collections.Counter,
    complete: Callable[[Draft], None],
) -> tuple[Split, str, bool | None]:
    """Reads a split; returns it, the numpy kind of its labels, and whether it is aligned."""

    def take(kind: str, read: Callable[[Any, str], np.ndarray]) -> np.ndarray | None:
        if kind not in values:
            return None
        called, value = values.pop(kind)
        found = read(value, where + called)
        sizes[called] = found
        return found

    sizes: dict[str, np.ndarray] = {}
    ids = take("id", fields.read_ids)
    raw_text = take("raw_text", fields.read_texts)
    labels = take("label", fields.read_label_rows)
    names = {m: values[m][0] for m in fields.MODALITIES.values() if m in values}
    features = {m: take(m, fields.read_features) for m in names}
    if not sizes:
        raise UserError(f"{where.rstrip('/: ')} has neither ids nor features nor labels.")
    size = fields.same_size(sizes, where)
    draft = Draft(where, size, values, features, names, {}, repairs)
    complete(draft)
    if ids is None and name == WHOLE:
        raise UserError(f"{path} has neither splits nor ids by which to split it.")
    ids = np.array([f"{name}_{i}" for i in range(size)], np.str_) if ids is None else ids
    kind = "b"
    if labels is not None:
        read_labels(path, name, labels, ids)
        kind, labels = labels.dtype.kind, labels.astype(np.float64)
    derived = frozenset(draft.derived)
    split = Split(ids, draft.features, draft.masks, labels, raw_text, derived)
    return dataclasses.replace(split, segments=draft.segments), kind, draft.aligned
