"""The pickles of MMSA: `split_dicts.py` with masks of its own.

    {train, valid, test} -> raw_text, id, text, audio, vision, regression_labels, and
    text_bert                      (N, 3, T): token ids, attention mask and segment ids, as floats
    audio_lengths, vision_lengths  (N,): valid steps, padding after them; in unaligned files

The valid steps of text are those of the attention mask, for the rows of [PAD] are not zero. Files
without lengths are aligned: step i of every modality is of the same word.
Annotations, classes and the labels of single modalities are not read.
"""

import functools
import logging

import numpy as np

from msajax.config import DataConfig
from msajax.data.corpus import Corpus
from msajax.data.formats import fields
from msajax.data.formats.pickled import Pickled, describe
from msajax.data.formats.pickles import as_array
from msajax.data.formats.split_dicts import Draft, has_modality, read_corpus
from msajax.errors import UserError

logger = logging.getLogger(__name__)

_LENGTHS = {f"{name}_lengths": f"{m}_lengths" for name, m in fields.MODALITIES.items()}
_OWN = {"text_bert": "text_bert", **_LENGTHS}
_MARKS = {*_OWN, "regression_labels", "classification_labels", "annotations"}


def matches(pickled: Pickled) -> bool:
    """Whether the first split is a dict with a modality and a name that only MMSA uses."""
    tree = next(iter(pickled.trees.values()))
    names = tree if isinstance(tree, dict) else ()
    marks = {name.lower() for name in names if isinstance(name, str)} & _MARKS
    return "text_bert" in marks or (bool(marks) and has_modality(pickled))


def open_mmsa(pickled: Pickled, data: DataConfig) -> Corpus:
    """Reads a pickle of MMSA.

    Args:
        pickled: its content, which is taken out.
        data: `text`: ids makes the token ids of text_bert the modality text.

    Raises:
        UserError: as `read_corpus` does, and if there are no token ids where they are wanted.
    """
    complete = functools.partial(_complete, data.text)
    return read_corpus(pickled, data, "MMSA pickle", _OWN, complete)


def _complete(text: str, draft: Draft) -> None:
    """Adds the masks of a split, token ids if they are to be the text, and what is aligned."""
    if "text_bert" in draft.values:
        ids, mask = _read_bert(draft)
        if text == "ids":
            draft.features["text"], draft.masks["text"] = ids, mask
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
        # A modality of zeros alone was not recorded, whatever its length is.
        if m in draft.masks and x.ndim == 3:
            draft.masks[m] = draft.masks[m] & x.any(axis=(1, 2))[:, None]


def _read_bert(draft: Draft) -> tuple[np.ndarray, np.ndarray]:
    """Token ids `[N, T]` int32 and the mask of the valid ones."""
    name, value = draft.values["text_bert"]
    where = draft.where + name
    bert = as_array(value, where)
    if bert.ndim != 3 or bert.shape[:2] != (draft.size, 3):
        raise UserError(f"{where} is {describe(bert)}; expected numbers ({draft.size}, 3, T).")
    ids, mask = fields.to_whole(bert[:, 0], where), bert[:, 1]
    if bert.shape[2] == 0 or not np.isin(mask, (0, 1)).all():
        raise UserError(f"{where} has no step, or an attention mask of more than 0 and 1.")
    return ids, mask == 1


def _mask_by_lengths(draft: Draft, modality: str, x: np.ndarray) -> np.ndarray:
    name, value = draft.values[f"{modality}_lengths"]
    where = draft.where + name
    lengths = as_array(value, where)
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
    mask = np.arange(steps) < lengths[:, None]
    behind = int(((x.any(axis=2) if x.ndim == 3 else x != 0) & ~mask).any(axis=1).sum())
    if behind:
        logger.warning(
            "%s: %d of %d samples go on behind their length; those steps are padding.",
            where,
            behind,
            draft.size,
        )
    return mask
