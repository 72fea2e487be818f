"""Reads the pickles of MMSA: `split_dicts.py` with masks of its own.

    {train, valid, test} -> raw_text, id, text, audio, vision, regression_labels, and
    text_bert                      (N, 3, T): token ids, attention mask and segment ids, as floats
    audio_lengths, vision_lengths  (N,): how many steps are valid; in unaligned files

A length is a count, not an end: padding follows the valid steps as a rule, but some files pad in
front. The valid steps are the first `length` ones, unless a step behind them is not zero: then they
are the `length` ones that end at the last non-zero step, if all others are zero, else those from
the first non-zero step to the last. A length beyond the stored steps counts as all of them:
sometimes steps were counted before they were cut.

The valid steps of text are those of the attention mask, for the rows of [PAD] are not zero. Files
without lengths are aligned: step i of every modality is of the same word. Annotations, classes and
the labels of single modalities are not read: a sample's label is `regression_labels`.
"""

import functools
import logging

import numpy as np

from msajax.config import DataConfig
from msajax.data.corpus import Corpus
from msajax.data.formats import fields
from msajax.data.formats.pickled import Pickled, describe
from msajax.data.formats.split_dicts import Draft, has_modality, read_corpus
from msajax.data.steps import first_to_last, nonzero_steps
from msajax.errors import UserError

logger = logging.getLogger(__name__)

_LENGTHS = {f"{name}_lengths": f"{m}_lengths" for name, m in fields.MODALITIES.items()}
_OWN = {"text_bert": "text_bert", **_LENGTHS}
_MARKS = {*_OWN, "regression_labels", "classification_labels", "annotations"}


def matches(pickled: Pickled) -> bool:
    """Says whether the first split is a dict with a modality and a name that only MMSA uses."""
    tree = next(iter(pickled.trees.values()))
    names = tree if isinstance(tree, dict) else ()
    marks = {name.lower() for name in names if isinstance(name, str)} & _MARKS
    return "text_bert" in marks or (bool(marks) and has_modality(pickled))


def open_mmsa(pickled: Pickled, data: DataConfig) -> Corpus:
    """Reads a pickle of MMSA.

    Args:
        pickled: the content, which is removed from it as it is read.
        data: `text`; ids makes the token ids of text_bert the modality text, and so does pieces,
            where they are there.

    Raises:
        UserError: as `read_corpus` does, and if there are no token ids where they are wanted.
    """
    complete = functools.partial(_complete, data.text)
    return read_corpus(pickled, data, "MMSA pickle", _OWN, complete)


def _complete(text: str, draft: Draft) -> None:
    """Adds the masks of a split, token ids if they are to be the text, and what is aligned."""
    if "text_bert" in draft.values:
        ids, mask, segments = _read_bert(draft)
        if text in ("ids", "pieces"):
            draft.features["text"], draft.masks["text"] = ids, mask
            segments = fields.to_whole(segments, draft.where + draft.values["text_bert"][0])
            draft.segments = segments if segments.any() else None
        elif "text" not in draft.features:
            logger.warning(
                "%stext_bert is there without text: data.text = ids reads its token ids.",
                draft.where,
            )
        elif draft.features["text"].shape[1] != mask.shape[1]:
            raise UserError(
                f"{draft.where}{draft.names['text']} has {draft.features['text'].shape[1]} steps, "
                f"but {draft.where}text_bert has {mask.shape[1]}."
            )
        else:
            draft.masks["text"] = mask
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
            draft.masks[m] = _mask_by_lengths(draft, m, x)
            draft.derived.add(m)
        # A sample's modality of zeros alone was not recorded, whatever its length says.
        if m in draft.masks and x.ndim == 3:
            draft.masks[m] = draft.masks[m] & x.any(axis=(1, 2))[:, None]


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


def _mask_by_lengths(draft: Draft, modality: str, x: np.ndarray) -> np.ndarray:
    name, value = draft.values[f"{modality}_lengths"]
    where = draft.where + name
    lengths = fields.as_array(value, where)
    if lengths.ndim not in (1, 2) or lengths.size != draft.size:
        raise UserError(f"{where} is {describe(lengths)}; expected {draft.size} numbers of steps.")
    lengths = fields.to_whole(lengths.reshape(-1), where)
    steps = x.shape[1]
    if too_long := int((lengths > steps).sum()):
        logger.warning(
            "%s: %d of %d exceed the %d steps that are there, and count as all of them.",
            where,
            too_long,
            draft.size,
            steps,
        )
        draft.repairs["cut_lengths"] += too_long
    return _place_lengths(where, np.minimum(lengths, steps), nonzero_steps(x), draft)


def _place_lengths(
    where: str, lengths: np.ndarray, nonzero: np.ndarray, draft: Draft
) -> np.ndarray:
    """Makes masks `[N, T]` of lengths `[N]` and of the steps that are not zero, `[N, T]`.

    Logs and counts the samples in which a step at or beyond the length is not zero.
    """
    steps = np.arange(nonzero.shape[1])
    mask = steps < lengths[:, None]
    disagrees = (nonzero & ~mask).any(axis=1)
    if not disagrees.any():
        return mask
    span = first_to_last(nonzero)
    end = steps.size - span[:, ::-1].argmax(axis=1)  # behind the last step that is not zero
    at_end = (steps < end[:, None]) & (steps >= (end - lengths)[:, None])
    in_front = disagrees & ~(nonzero & ~at_end).any(axis=1)
    mask[in_front] = at_end[in_front]
    whole = disagrees & ~in_front
    mask[whole] = span[whole]
    logger.warning(
        "%s: length disagrees in %d of %d samples, whose steps beyond it are not all zero: %d are "
        "padded in front and keep as many steps at their end, %d keep all steps from the first to "
        "the last that is not zero.",
        where,
        disagrees.sum(),
        len(lengths),
        in_front.sum(),
        whole.sum(),
    )
    draft.repairs["length_disagrees"] += int(disagrees.sum())
    return mask
