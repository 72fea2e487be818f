"""Reads the pickles of MMSA, and of MulT and MultiBench: each split a dict of arrays.

    vision | visual | video | facet, audio | acoustic | covarep, text | glove
                    (N, T, d) numbers, (N, d) real numbers of one step, or (N, T) token ids
    label | labels | regression_labels | y
                    (N,), (N, 1), (N, 1, 1) or (N, K) numbers; optional
    id | ids        N of text, bytes, numbers or [video, start, end]; else made of split and row
    raw_text        N of text; optional

Features are kept in memory as float32. MulT and MultiBench pad before a sequence with steps of
zeros, which preparation turns into masks. MMSA has masks of its own:

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
import logging
from typing import Any

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, Source, Split, modality_order
from msajax.corpus.folds import rows_of_splits
from msajax.corpus.formats import pickled as values
from msajax.corpus.formats.pickled import WHOLE, Pickled, describe, log_unread
from msajax.corpus.in_memory import corpus_of
from msajax.corpus.labels import clip_sentiment, read_labels
from msajax.corpus.on_demand import take_rows
from msajax.corpus.steps import first_to_last, nonzero_steps
from msajax.errors import UserError

logger = logging.getLogger(__name__)

_LENGTHS = {f"{name}_lengths": f"{m}_lengths" for name, m in values.MODALITIES.items()}
_OWN = {"text_bert": "text_bert", **_LENGTHS}
_COMMON = {
    "id": values.read_ids,
    "raw_text": values.read_texts,
    "label": values.read_label_rows,
    **dict.fromkeys(values.MODALITIES.values(), values.read_features),
}
_MARKS = {*_OWN, "regression_labels", "classification_labels", "annotations"}


def matches(pickled: Pickled) -> bool:
    """Says whether the first split is a dict of a text or a modality and a name of MMSA's own."""
    names = _field_names(pickled)
    is_read = bool(names & {*values.MODALITIES, "raw_text", "text_bert"})
    return is_read and bool(names & _MARKS)


def matches_mult(pickled: Pickled) -> bool:
    """Says whether the first split is a dict with a modality in it."""
    return bool(_field_names(pickled) & values.MODALITIES.keys())


def _field_names(pickled: Pickled) -> set[str]:
    tree = next(iter(pickled.trees.values()))
    names = tree if isinstance(tree, dict) else ()
    return {name.lower() for name in names if isinstance(name, str)}


def open_mmsa(pickled: Pickled, data: DataConfig) -> Corpus:
    """Reads a pickle of MMSA.

    Args:
        pickled: loses its content as that is read.
        data: `text` = ids makes the token ids of text_bert the modality text, and so does pieces,
            where they are there; `split_seed` counts without splits.

    Raises:
        UserError: for values of wrong type or shape, labels that are not finite, splits that are
            empty or do not fit together, ids that tell no videos where there are no splits, and if
            there are no token ids where they are wanted.
    """
    notes = _Notes(pickled.path)
    corpus = _read_corpus(pickled, data, "MMSA pickle", notes)
    notes.say()
    return corpus


def open_mult(pickled: Pickled, data: DataConfig) -> Corpus:
    """Reads a pickle of MulT or MultiBench; raises `UserError` as `open_mmsa` does."""
    return _read_corpus(pickled, data, "MulT or MultiBench pickle", None)


@dataclasses.dataclass
class _Draft:
    """Holds what has been read of a split, which what is MMSA's own completes."""

    where: str  # the beginning of a name in the split, for a message
    size: int
    # `{kind: (the file's name, value)}` of all that has not been read yet
    values: dict[str, tuple[str, Any]]
    features: dict[str, np.ndarray]
    # The file's names of these modalities, ids, transcripts and labels, by kind
    names: dict[str, str]
    repairs: collections.Counter  # counts what was changed so far, over all splits
    # Valid steps by modality
    masks: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    # Says that the modalities share their steps; None if the format does not say
    aligned: bool | None = None
    # Modalities whose masks are made of lengths
    derived: set[str] = dataclasses.field(default_factory=set)
    segments: np.ndarray | None = None  # the segment ids of text that is token ids


def _read_corpus(pickled: Pickled, data: DataConfig, format: str, notes: "_Notes | None") -> Corpus:
    """Reads a corpus whose splits are dicts of arrays; with `notes` also what is MMSA's own."""
    path = pickled.path
    splits: dict[str, Split] = {}
    repairs: collections.Counter = collections.Counter()
    unread: set[str] = set()
    integers, said = True, set()
    for name in list(pickled.trees):
        where, tree = pickled.where(name), pickled.trees.pop(name)
        if not isinstance(tree, dict):
            raise UserError(f"{where.rstrip('/: ')} is {describe(tree)}; expected a dict.")
        # Fields are sorted by what they are; None is no value.
        kinds = {"id": "id", "ids": "id", "raw_text": "raw_text"}
        kinds |= dict.fromkeys(values.LABELS, "label") | values.MODALITIES | (_OWN if notes else {})
        fields: dict[str, tuple[str, Any]] = {}
        for called, value in tree.items():
            kind = kinds.get(called.lower()) if isinstance(called, str) else None
            if kind is None:
                unread.add(str(called) if isinstance(called, str) else describe(called))
            elif kind in fields:
                first = fields[kind][0]
                raise UserError(f"{where}{first} and {where}{called} are both the {kind}.")
            elif value is not None:
                fields[kind] = called, value
        tree = value = None  # so that memory need not hold all twice

        # What all these formats have: every field has as many samples.
        called = {kind: fields[kind][0] for kind in _COMMON if kind in fields}
        read = {m: _COMMON[m](fields.pop(m)[1], where + called[m]) for m in called}
        if not read:
            raise UserError(f"{where.rstrip('/: ')} has neither ids nor features nor labels.")
        first = next(iter(read))
        size = len(read[first])
        for kind, array in read.items():
            if len(array) != size:
                raise UserError(
                    f"{where}{called[kind]} has {len(array)} rows, but {where}{called[first]} has "
                    f"{size}."
                )
        ids, raw_text, labels = (read.pop(kind, None) for kind in ("id", "raw_text", "label"))

        # What MMSA alone has, then ids and labels.
        draft = _Draft(where, size, fields, read, called, repairs)
        if notes:
            _complete(data.text, notes, draft)
        if ids is None and name == WHOLE:
            raise UserError(f"{path} has neither splits nor ids by which to split it.")
        ids = np.array([f"{name}_{i}" for i in range(size)], np.str_) if ids is None else ids
        if labels is not None:
            read_labels(path, name, labels, ids)
            integers &= labels.dtype.kind in "biu"
            labels = labels.astype(np.float64)
        splits[name] = Split(
            ids=ids,
            features=draft.features,
            masks=draft.masks,
            labels=labels,
            raw_text=raw_text,
            derived=frozenset(draft.derived),
            segments=draft.segments,
        )
        said.add(draft.aligned)
    # All splits together: labels of sentiment, splits of a whole, and the same steps.
    log_unread(path, unread)
    if not integers and all(s.labels is None or s.labels.shape[1] == 1 for s in splits.values()):
        columns = [split.labels[:, 0] for split in splits.values() if split.labels is not None]
        repairs["clipped_labels"] = clip_sentiment(path, columns)
    if WHOLE in splits:
        whole = splits.pop(WHOLE)
        rows = rows_of_splits(path, whole.ids.tolist(), data)
        splits = {name: take_rows(whole, kept) for name, kept in rows.items()}
    modalities = modality_order({m for split in splits.values() for m in split.features})
    corpus = corpus_of(
        splits,
        source=Source(path, format, repairs),
        integers=integers,
        aligned=() if False in said else None if None in said else modalities,
    )
    corpus.require_equal_steps()  # these formats pad to a fixed length; another is a mix-up
    return corpus


@dataclasses.dataclass
class _Notes:
    """Collects over all splits what is said once of the file."""

    path: str
    # Names of features of text whose real steps text_bert's attention mask says
    by_bert: list[str] = dataclasses.field(default_factory=list)
    # Counts steps that are not zero and that the mask would hide, by the name of other features
    by_zeros: dict[str, int] = dataclasses.field(default_factory=dict)
    # Counts samples of these without zeros at their ends of which the mask hides steps; and steps
    unpadded: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    hidden: int = 0  # counts the steps of `by_bert` that are not zero and that the mask hides
    # Counts, by the name of lengths, those that end before a step that is not zero, and all lengths
    disagree: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    in_front: int = 0  # counts those of `disagree` that are of sequences padded in front
    # Counts those that exceed the stored steps, and all lengths, as `disagree` does
    too_long: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def name(self, draft: _Draft, what: str) -> str:
        """Returns what to call something in a split, in a sentence that begins with the file."""
        return f"{draft.where}{what}".removeprefix(f"{self.path}: ")

    def say(self) -> None:
        # The mask of text: the same in all splits, or a warning.
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
        if self.unpadded and not (self.by_bert and hidden):
            logger.warning(
                "%s: the attention mask of text_bert hides steps of samples that have no zeros at "
                "their ends (%s). They are read, since others of their split are padded with "
                "zeros; if an encoder wrote them at padding, they are no words: pad all samples "
                "with zeros.",
                self.path,
                ", ".join(f"{n} steps of {of} in {x}" for x, (of, n) in self.unpadded.items()),
            )
        # Lengths, all in one sentence.
        told = []
        if self.disagree:
            total = sum(count for count, _ in self.disagree.values())
            told.append(
                f"{total} length(s) end before a step that is not zero ({_counts(self.disagree)}) "
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
                f"{total} length(s) exceed the steps that are stored ({_counts(self.too_long)}) "
                "and count as all of them"
            )
        if told:
            logger.warning("%s: %s.", self.path, "; ".join(told))


def _counts(found: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{count} of {of} in {name}" for name, (count, of) in found.items())


def _complete(text: str, notes: _Notes, draft: _Draft) -> None:
    """Adds the masks of a split, token ids if they are to be the text, and what is aligned."""
    if (x := draft.features.get("text")) is not None and x.ndim == 3:
        draft.features["text"], cleared = _without_nan_padding(x)
        draft.repairs["nan_padding"] += cleared
    if "text_bert" in draft.values:
        if text in ("ids", "pieces"):
            draft.features["text"], draft.masks["text"], segments = _read_bert(draft)
            segments = values.to_whole(segments, draft.where + draft.values["text_bert"][0])
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


def _without_nan_padding(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Zeros steps of NaN alone at both ends of sequences `[N, T, d]`, not inside; counts them."""
    is_nan = np.isnan(x).all(axis=2)
    padding = is_nan & ~first_to_last(nonzero_steps(x) & ~is_nan)
    if padding.any():
        x = np.where(padding[..., None], 0, x)
    return x, int(padding.sum())


def _mask_text(draft: _Draft, notes: _Notes) -> None:
    """Masks features of text by text_bert's attention mask if they are not padded with zeros.

    A sample of zeros alone was not recorded, and does not tell how the others are padded. Steps of
    NaN alone are padding as zeros are.
    """
    x, name = draft.features["text"], draft.names["text"]
    nonzero = nonzero_steps(x)
    if x.ndim == 3:
        nonzero &= ~np.isnan(x).all(axis=2)
    recorded = nonzero.any(axis=1)
    is_full = nonzero[:, 0] & nonzero[:, -1]
    is_padded = not is_full[recorded].all()
    if is_padded:
        with contextlib.suppress(UserError):  # of a text_bert that is not needed
            mask = _read_bert(draft)[1]
            if mask.shape == nonzero.shape:
                hidden = int((nonzero & ~mask).sum())
                notes.by_zeros[notes.name(draft, name)] = hidden
                short = (~mask).sum(axis=1) * is_full
                if short.any():
                    found = int((short > 0).sum()), int(short.sum())
                    notes.unpadded[notes.name(draft, name)] = found
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


def _read_bert(draft: _Draft) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads token ids `[N, T]` int32 and their mask; segment ids stay as they are."""
    name, value = draft.values["text_bert"]
    where = draft.where + name
    bert = values.as_array(value, where)
    if bert.ndim != 3 or bert.shape[:2] != (draft.size, 3):
        raise UserError(f"{where} is {describe(bert)}; expected numbers ({draft.size}, 3, T).")
    ids, mask = values.to_whole(bert[:, 0], where), bert[:, 1]
    if bert.shape[2] == 0 or not np.isin(mask, (0, 1)).all():
        raise UserError(f"{where} has no step, or an attention mask of more than 0 and 1.")
    return ids, mask == 1, bert[:, 2]


def _mask_by_lengths(draft: _Draft, modality: str, x: np.ndarray, notes: _Notes) -> np.ndarray:
    name, value = draft.values[f"{modality}_lengths"]
    where = draft.where + name
    lengths = values.as_array(value, where)
    if lengths.ndim not in (1, 2) or lengths.size != draft.size:
        raise UserError(f"{where} is {describe(lengths)}; expected {draft.size} numbers of steps.")
    lengths = values.to_whole(lengths.reshape(-1), where)
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
