"""Reads the pickles of MMSA: `split_dicts.py` with masks of its own.

    {train, valid, test} -> raw_text, id, text, audio, vision, regression_labels, and
    text_bert                      (N, 3, T): token ids, attention mask and segment ids, as floats
    audio_lengths, vision_lengths  (N,): how many steps are valid; in unaligned files

A length is a count, not an end: padding follows the valid steps as a rule, but some files pad in
front. The valid steps are the first `length` ones, unless a step behind them is not zero: then they
are the `length` ones that end at the last non-zero step, if all others are zero, else those from
the first non-zero step to the last. A length beyond the stored steps counts as all of them:
sometimes steps were counted before they were cut.

Features of text are read by their own zeros, like those of any file: text_bert's attention mask is
one of token ids, which may be padded on the other side. Only where no sample of a split has a step
of zeros before or behind the others, because an encoder ran over the padding, does that mask say
which steps of the features are real. Token ids are always read by it. Files without lengths are
aligned: step i of every modality is of the same word. Annotations, classes and the labels of single
modalities are not read: a sample's label is `regression_labels`.
"""

import collections
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, Source, Split, modality_order
from msajax.corpus.folds import rows_of_splits
from msajax.corpus.formats import pickled as fields
from msajax.corpus.formats.pickled import WHOLE, Pickled, describe, log_unread
from msajax.corpus.in_memory import corpus_of
from msajax.corpus.labels import clip_sentiment, read_labels
from msajax.corpus.on_demand import take_rows
from msajax.corpus.steps import first_to_last, nonzero_steps
from msajax.errors import UserError

logger = logging.getLogger(__name__)

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


_LENGTHS = {f"{name}_lengths": f"{m}_lengths" for name, m in fields.MODALITIES.items()}
_OWN = {"text_bert": "text_bert", **_LENGTHS}
_MARKS = {*_OWN, "regression_labels", "classification_labels", "annotations"}


def matches(pickled: Pickled) -> bool:
    """Says whether the first split is a dict of a text or a modality and a name of MMSA's own."""
    tree = next(iter(pickled.trees.values()))
    names = tree if isinstance(tree, dict) else ()
    known = {name.lower() for name in names if isinstance(name, str)}
    is_read = has_modality(pickled) or bool(known & {"raw_text", "text_bert"})
    return is_read and bool(known & _MARKS)


@dataclasses.dataclass
class _Notes:
    """Collects over all splits what is said once of the file.

    Attributes:
        path: of the file.
        by_bert: the features of text whose real steps are those of text_bert's attention mask.
        by_zeros: the other features of text, and how many of their steps that are not zero that
            mask would hide.
        hidden: how many of their other steps are not zero.
        disagree: by the name of lengths, how many end before a step that is not zero, and of how
            many.
        in_front: how many of these are of sequences that are padded in front.
        too_long: likewise, how many exceed the stored steps.
    """

    path: str
    by_bert: list[str] = dataclasses.field(default_factory=list)
    by_zeros: dict[str, int] = dataclasses.field(default_factory=dict)
    hidden: int = 0
    disagree: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    in_front: int = 0
    too_long: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def name(self, draft: Draft, what: str) -> str:
        """Returns what to call something in a split, in a sentence that begins with the file."""
        return f"{draft.where}{what}".removeprefix(f"{self.path}: ")

    def say(self) -> None:
        """Logs one line about the mask of text and one about lengths, if there is any to say."""
        if self.by_bert:
            logger.info(
                "%s: no sample of %s is padded with steps of zeros, so the attention mask of "
                "text_bert says which of its steps are real%s.",
                self.path,
                ", ".join(self.by_bert),
                f": it hides {self.hidden}, which are not zero" if self.hidden else "",
            )
        hidden = {name: count for name, count in self.by_zeros.items() if count}
        if self.by_bert and hidden:
            logger.warning(
                "%s: %s has samples that are padded with zeros, and is read from the first to the "
                "last step that is not zero. If they are padded otherwise, too, as %s is, steps of "
                "padding are read as words: text_bert's attention mask hides %d that are not zero. "
                "Pad all splits in the same way.",
                self.path,
                ", ".join(hidden),
                ", ".join(self.by_bert),
                sum(hidden.values()),
            )
        told = []
        if self.disagree:
            total = sum(count for count, _ in self.disagree.values())
            told.append(
                f"{total} length(s) end before a step that is not zero ({_listed(self.disagree)}) "
                "and are read as numbers of steps, wherever these lie"
            )
        if self.in_front:
            told.append(
                f"{self.in_front} of these sequences are padded in front, and as many steps as the "
                "length says are read, up to the last that is not zero"
            )
        if self.disagree and (longer := total - self.in_front):
            told.append(
                f"{longer} of them have more steps than their length, and all are read, from the "
                "first to the last that is not zero"
            )
        if self.too_long:
            total = sum(count for count, _ in self.too_long.values())
            told.append(
                f"{total} length(s) exceed the steps that are stored ({_listed(self.too_long)}) "
                "and count as all of them"
            )
        if told:
            logger.warning("%s: %s.", self.path, "; ".join(told))


def _listed(found: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{count} of {of} in {name}" for name, (count, of) in found.items())


def open_mmsa(pickled: Pickled, data: DataConfig) -> Corpus:
    """Reads a pickle of MMSA.

    Args:
        pickled: the content, which is removed from it as it is read.
        data: `text`; ids makes the token ids of text_bert the modality text, and so does pieces,
            where they are there.

    Raises:
        UserError: as `read_corpus` does, and if there are no token ids where they are wanted.
    """
    notes = _Notes(pickled.path)
    complete = functools.partial(_complete, data.text, notes)
    corpus = read_corpus(pickled, data, "MMSA pickle", _OWN, complete)
    notes.say()
    return corpus


def _complete(text: str, notes: _Notes, draft: Draft) -> None:
    """Adds the masks of a split, token ids if they are to be the text, and what is aligned."""
    if "text_bert" in draft.values:
        if text in ("ids", "pieces"):
            draft.features["text"], draft.masks["text"], segments = _read_bert(draft)
            segments = fields.to_whole(segments, draft.where + draft.values["text_bert"][0])
            draft.segments = segments if segments.any() else None
        elif "text" not in draft.features:
            logger.warning(
                "%stext_bert is there without text: data.text = ids reads its token ids.",
                draft.where,
            )
        else:
            _mask_text(draft, notes)
    elif text == "ids":
        raise UserError(f"data.text = ids: {draft.where}text_bert is missing.")
    # Equal steps do not tell: unaligned files of CMU-MOSEI have 500 of audio and of vision.
    steps = {x.shape[1] for x in draft.features.values()}
    if any(f"{m}_lengths" in draft.values for m in ("audio", "video")):
        draft.aligned = False
    elif len(steps) == 1 and steps != {1}:
        draft.aligned = True
    for m, x in draft.features.items():
        if m not in draft.masks and f"{m}_lengths" in draft.values:
            draft.masks[m] = _mask_by_lengths(draft, m, x, notes)
            draft.derived.add(m)
        # A sample's modality of zeros alone was not recorded, whatever its length says.
        if m in draft.masks and x.ndim == 3:
            draft.masks[m] = draft.masks[m] & x.any(axis=(1, 2))[:, None]


def _mask_text(draft: Draft, notes: _Notes) -> None:
    """Masks features of text by text_bert's attention mask if they are not padded with zeros.

    A sample of zeros alone was not recorded, and does not tell how the others are padded.
    """
    x, name = draft.features["text"], draft.names["text"]
    nonzero = nonzero_steps(x)
    recorded = nonzero.any(axis=1)
    is_padded = not (nonzero[:, 0] & nonzero[:, -1])[recorded].all()
    if is_padded:
        with contextlib.suppress(UserError):  # of a text_bert that is not needed
            mask = _read_bert(draft)[1]
            if mask.shape == nonzero.shape:
                hidden = int((nonzero & ~mask).sum())
                notes.by_zeros[notes.name(draft, name)] = hidden
    if x.shape[1] == 1 or is_padded:
        return
    mask = _read_bert(draft)[1]
    if mask.shape[1] != x.shape[1]:
        raise UserError(
            f"{draft.where}{name} has {x.shape[1]} steps, no sample padded with zeros, but "
            f"{draft.where}text_bert has {mask.shape[1]}, so that its attention mask cannot say "
            "which steps are real: pad text with zeros, or leave text_bert out of the file."
        )
    draft.masks["text"] = mask
    notes.by_bert.append(notes.name(draft, name))
    notes.hidden += int((nonzero & ~mask).sum())


def _read_bert(draft: Draft) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads token ids `[N, T]` int32 and their mask; segment ids stay as they are."""
    name, value = draft.values["text_bert"]
    where = draft.where + name
    bert = fields.as_array(value, where)
    if bert.ndim != 3 or bert.shape[:2] != (draft.size, 3):
        raise UserError(f"{where} is {describe(bert)}; expected numbers ({draft.size}, 3, T).")
    ids, mask = fields.to_whole(bert[:, 0], where), bert[:, 1]
    if bert.shape[2] == 0 or not np.isin(mask, (0, 1)).all():
        raise UserError(f"{where} has no step, or an attention mask of more than 0 and 1.")
    return ids, mask == 1, bert[:, 2]


def _mask_by_lengths(draft: Draft, modality: str, x: np.ndarray, notes: _Notes) -> np.ndarray:
    name, value = draft.values[f"{modality}_lengths"]
    where = draft.where + name
    lengths = fields.as_array(value, where)
    if lengths.ndim not in (1, 2) or lengths.size != draft.size:
        raise UserError(f"{where} is {describe(lengths)}; expected {draft.size} numbers of steps.")
    lengths = fields.to_whole(lengths.reshape(-1), where)
    if too_long := int((lengths > x.shape[1]).sum()):
        notes.too_long[notes.name(draft, name)] = too_long, draft.size
        draft.repairs["cut_lengths"] += too_long
    mask, disagrees, in_front = _place_lengths(np.minimum(lengths, x.shape[1]), nonzero_steps(x))
    if disagreeing := int(disagrees.sum()):
        notes.disagree[notes.name(draft, name)] = disagreeing, draft.size
        notes.in_front += int(in_front.sum())
        draft.repairs["length_disagrees"] += disagreeing
    return mask


def _place_lengths(
    lengths: np.ndarray, nonzero: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes masks `[N, T]` of lengths `[N]` and of the steps that are not zero, `[N, T]`.

    Returns:
        The masks; the samples `[N]` in which a step at or beyond the length is not zero; and those
        of them that are padded in front.
    """
    steps = np.arange(nonzero.shape[1])
    mask = steps < lengths[:, None]
    disagrees = (nonzero & ~mask).any(axis=1)
    span = first_to_last(nonzero)
    end = steps.size - span[:, ::-1].argmax(axis=1)  # behind the last step that is not zero
    at_end = (steps < end[:, None]) & (steps >= (end - lengths)[:, None])
    in_front = disagrees & ~(nonzero & ~at_end).any(axis=1)
    mask[in_front] = at_end[in_front]
    whole = disagrees & ~in_front
    mask[whole] = span[whole]
    return mask, disagrees, in_front


def matches_mult(pickled: Pickled) -> bool:
    """Says whether the first split is a dict with a modality in it."""
    return has_modality(pickled)


def open_mult(pickled: Pickled, data: DataConfig) -> Corpus:
    """Reads a pickle of MulT or MultiBench.

    Raises:
        UserError: as `read_corpus` does.
    """
    return read_corpus(pickled, data, "MulT or MultiBench pickle")
