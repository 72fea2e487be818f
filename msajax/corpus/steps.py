"""Chooses which stored steps a model reads: valid ones, after compaction and truncation.

The first valid step moves to 0, holes inside stay. Modalities that share their steps move as one,
by the steps that are valid in any of them: step i of each stays of the same moment, which positions
and cross-modal attention rely on.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, Split
from msajax.errors import UserError

Groups = tuple[tuple[str, ...], ...]
"""Modalities that share their steps, two or more in each group and each in one at most."""

Chosen = dict[str, tuple[np.ndarray, np.ndarray]]
"""By modality: which stored step each prepared step reads, `[N, length]`, and which are valid."""


# --- valid steps ---


def nonzero_steps(x: np.ndarray) -> np.ndarray:
    """Finds the steps `[N, T]` of features or token ids that are not zero; NaN counts as such."""
    # The reduction makes no copy of that size, and of one sample takes half as long as x.any().
    return np.logical_or.reduce(x, axis=2) if x.ndim == 3 else x != 0


def step_mask(
    split: Split, modality: str, mask_from_zeros: bool, nonzero: np.ndarray | None = None
) -> np.ndarray:
    """Returns the valid steps `[N, T]` of one modality: the split's own mask, or a derived one.

    A derived mask is true from the first to the last non-zero step, zero steps between them
    included. `nonzero` is the result of `nonzero_steps`, if it is known already.
    """
    if modality in split.masks:
        return split.masks[modality]
    x = split.features[modality]
    if not mask_from_zeros:
        return np.ones(x.shape[:2], bool)
    return first_to_last(nonzero_steps(x) if nonzero is None else nonzero)


def first_to_last(mask: np.ndarray) -> np.ndarray:
    """Fills a mask: the steps `[N, T]` from the first to the last one of each row of a mask."""
    if np.count_nonzero(mask) == mask.size:
        return mask
    begun = np.logical_or.accumulate(mask, axis=1)
    return begun & np.logical_or.accumulate(mask[:, ::-1], axis=1)[:, ::-1]


def has_row(x: np.ndarray, rows: float) -> np.ndarray | bool:
    """Says which token ids `[N, T]` have a row in a table of `rows` rows; True for features."""
    return (x >= 0) & (x < rows) if x.ndim == 2 else True


def step_masks(
    split: Split, modalities: Iterable[str], mask_from_zeros: bool
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Finds the valid steps of modalities that a split has.

    Returns:
        The `step_mask` `[N, T]` of each; and the `nonzero_steps` `[N, T]` of those whose mask was
        derived from them, so that the features need not be looked at again.
    """
    masks, nonzero = {}, {}
    for m in modalities:
        if mask_from_zeros and m not in split.masks:
            nonzero[m] = nonzero_steps(split.features[m])
        masks[m] = step_mask(split, m, mask_from_zeros, nonzero.get(m))
    return masks, nonzero


def readable_steps(
    split: Split, masks: Mapping[str, np.ndarray], rows: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Keeps of valid steps those that a model can read: of token ids, those with a row.

    `masks` are the valid steps `[N, T]` of each modality of a stored split; `rows` the sizes of the
    embedding tables, without which a modality has a row for every id but negative ones.
    """
    readable = dict(masks)
    for m, mask in masks.items():
        if split.features[m].ndim == 2:
            readable[m] = mask & has_row(split.features[m], rows.get(m, math.inf))
    return readable


def table_sizes(split: Split, masks: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Returns the rows that embedding tables need for the token ids of a stored split, by modality.

    `masks` are the readable steps `[N, T]` of each; a modality without any gets no table.
    """
    ids = {m: split.features[m][mask] for m, mask in masks.items() if split.features[m].ndim == 2}
    return {m: int(found.max()) + 1 for m, found in ids.items() if found.size}


def spans(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first valid step and the length up to the last, per row; (0, 0) without any."""
    first = mask.argmax(axis=1)
    end = mask.shape[1] - mask[:, ::-1].argmax(axis=1)
    return first, (end - first) * np.logical_or.reduce(mask, axis=1)


# --- modalities that share their steps ---


def find_groups(
    corpus: Corpus, modalities: Sequence[str], data: DataConfig, encoded: Collection[str] = ()
) -> tuple[Groups, str]:
    """Finds which of a run's modalities share their steps, by `data.alignment`; and says why.

    Text that is made of transcripts shares its steps with nothing: they are words. Where a
    pretrained encoder reads the text, it shares those of the words, if the corpus knows them step
    by step. The sound of one shares its steps with nothing either. `encoded` names the modalities
    that pretrained encoders read.

    Raises:
        UserError: if modalities are to be aligned whose numbers of stored steps differ.
    """
    encodes_text = "text" in encoded
    reads_words = encodes_text and data.text != "ids" and corpus.has_words
    alone = not reads_words if encodes_text else data.text == "words"
    stored = [m for m in modalities if not (alone if m == "text" else m in encoded)]
    steps = {}
    for name, header in corpus.headers.items():
        steps[name] = header.steps(m for m in stored if m != "text" or not reads_words)
        if reads_words and "text" in stored and header.words:
            steps[name] = {"text": header.words} | steps[name]
    if len(stored) < 2:
        return (), "fewer than two could be"
    if data.alignment == "unaligned":
        return (), "data.alignment = unaligned"
    if data.alignment == "aligned":
        for name, of_split in steps.items():
            if len(set(of_split.values())) > 1:
                raise UserError(
                    f"data.alignment = aligned: {corpus.path}: {name}: {_describe_steps(of_split)} "
                    "steps; auto aligns only what shares its steps, unaligned nothing."
                )
        found, why = [stored], "data.alignment = aligned"
    elif corpus.aligned is not None:
        found, why = [[m for m in stored if m in corpus.aligned]], "as the corpus says"
    else:
        found = _of_same_steps(stored, list(steps.values()))
        why = "by their numbers of stored steps"
    return tuple(tuple(group) for group in found if len(group) > 1), why


def _of_same_steps(
    modalities: Sequence[str], steps: Sequence[Mapping[str, int]]
) -> list[list[str]]:
    """Groups modalities with as many stored steps, above 1, in every split that has both."""

    def agree(one: str, other: str) -> bool:
        both = {(found[one], found[other]) for found in steps if one in found and other in found}
        return bool(both) and all(a == b > 1 for a, b in both)

    groups: list[list[str]] = []
    for m in modalities:
        for group in groups:
            if all(agree(m, other) for other in group):
                group.append(m)
                break
        else:
            groups.append([m])
    return groups


def describe_groups(groups: Groups, why: str) -> str:
    """Puts the result of `find_groups` into words: "text + audio (as the corpus says)"."""
    return f"{'; '.join(' + '.join(group) for group in groups) or 'none'} ({why})"


def movers(modalities: Iterable[str], groups: Groups) -> list[tuple[str, ...]]:
    """Returns what moves as one: the groups, and alone each modality that is in none."""
    group_of = {m: group for group in groups for m in group}
    return list(dict.fromkeys(group_of.get(m, (m,)) for m in modalities))


def without(groups: Groups, modality: str) -> Groups:
    """Returns the groups that are left when a modality moves alone."""
    rest = (tuple(m for m in group if m != modality) for group in groups)
    return tuple(group for group in rest if len(group) > 1)


def union(masks: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the steps `[N, T]` that are valid in any member of a group; all are of one shape."""
    return np.logical_or.reduce(np.array(list(masks)))


def begin_apart(masks: Iterable[np.ndarray]) -> np.ndarray:
    """Finds samples `[N]` in which members of a group that are there begin at different steps."""
    masks = list(masks)
    first = union(masks).argmax(axis=1)
    return np.any([mask.any(axis=1) & (mask.argmax(axis=1) != first) for mask in masks], axis=0)


# --- compaction and truncation ---


def choose_steps(
    masks: Mapping[str, np.ndarray], length: int, truncate: str, ids: np.ndarray
) -> Chosen:
    """Compacts modalities that move as one.

    Args:
        masks: the readable steps `[N, T]` of each.
        length: rows of their position tables.
        truncate: error, first, last or uniform.

    Returns:
        For each modality, the stored step that each prepared step reads, `[N, length]`, the same
        for all; and which of them are valid in it.

    Raises:
        UserError: if members of a group have different numbers of steps, or for a sequence that is
            longer than the table unless truncation is on.
    """
    require_same_length(masks)
    valid = np.array(list(masks.values()))  # [M, N, T], all members at once
    members, samples, stored = valid.shape
    if stored <= length and np.count_nonzero(valid) == valid.size:  # every step stays in its place
        source = np.empty((samples, length), np.int64)
        source[:] = np.minimum(np.arange(length), stored - 1)
        kept = np.zeros((members, samples, length), bool)
        kept[..., :stored] = True
    else:
        together = np.logical_or.reduce(valid)
        source, inside = _compaction(together, length, truncate, tuple(masks), ids)
        kept = inside & valid[:, np.arange(samples)[:, None], source]
    return {m: (source, of_member) for m, of_member in zip(masks, kept, strict=True)}


def require_same_length(masks: Mapping[str, np.ndarray]) -> None:
    """Raises `UserError` if members of a group have different numbers of stored steps."""
    steps = {m: mask.shape[1] for m, mask in masks.items()}
    if len(set(steps.values())) > 1:
        raise UserError(
            f"Modalities {_describe_steps(steps)} steps here, but the model was trained with them "
            "aligned, step by step: give it a corpus that is, or train with data.alignment = "
            "unaligned."
        )


def _describe_steps(steps: Mapping[str, int]) -> str:
    return f"{', '.join(steps)} have {', '.join(map(str, steps.values()))}"


def _compaction(
    mask: np.ndarray, length: int, truncate: str, modalities: tuple[str, ...], ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the stored step that each prepared step reads, `[N, length]`, and which read one.

    Those that do may read a hole of the mask.
    """
    first, lengths = spans(mask)
    (too_long,) = (lengths > length).nonzero()
    if too_long.size and truncate == "error":
        row = too_long[0]
        called = ", ".join(map(repr, modalities))
        what = f"modality {called}" if len(modalities) == 1 else f"{called}, aligned,"
        raise UserError(
            f"{too_long.size} sequence(s) of {what} are longer than the model's "
            f"{length} steps, the first that of {str(ids[row])!r} with {lengths[row]}: "
            "--config.data.truncate=first, last or uniform keeps as many of each, at prediction "
            "too (in Python bundle.with_data(truncate='last')); a model that is trained with a "
            "larger model.max_len reads more."
        )
    step = np.arange(length)[None, :]
    source = first[:, None] + step  # [N, length]
    end = first + lengths
    if truncate == "last" and too_long.size:
        # Begin at the first valid step inside the last `length` ones.
        late = mask & (np.arange(mask.shape[1])[None, :] >= (end - length)[:, None])
        source = late.argmax(axis=1)[:, None] + step
    inside = source < end[:, None]
    if truncate == "uniform" and too_long.size:
        # At most `length` valid steps at equal distances.
        valid = np.argsort(~mask[too_long], axis=1, kind="stable")  # their numbers first, in order
        count = mask[too_long].sum(axis=1)[:, None]
        kept = np.minimum(count, length)
        rank = np.round(step * (count - 1) / np.maximum(kept - 1, 1)).astype(int)
        source[too_long] = np.take_along_axis(valid, np.minimum(rank, count - 1), axis=1)
        inside[too_long] = step < kept
    return np.minimum(source, mask.shape[1] - 1), inside
