"""Counts steps that are stored, hidden by nothing and yet not read; puts repairs into words.

Two things may hide a step: the file's own mask, whose hidden steps are counted by themselves, and a
truncation that was asked for. What a split stores is compared with the steps that are really read
of it, not with the rules for masks and compaction that led there, so that a mistake in these rules
is found as well.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from msajax.corpus.corpus import Split
from msajax.corpus.steps import (
    Groups,
    choose_steps,
    movers,
    nonzero_steps,
    readable_steps,
    spans,
    union,
)
from msajax.errors import UserError

logger = logging.getLogger(__name__)

_ROWS = 1024  # samples looked at together
_PADDING = -1  # the token id that files pad with beside 0, and no loss
# Share of the samples that have a modality. A few token ids that train lacks are usual; more are
# another tokeniser, or a mask that fits something else.
_MOST_EMPTIED = 0.1


class Lost(NamedTuple):
    """Says what is lost of one modality of a split."""

    steps: int  # stored steps that are not zero, that nothing hid and that are not read
    samples: int  # counts those that have such a step
    emptied: int  # counts those of them that have no step that is read and not zero
    of: int  # counts those that have a step that is read or lost

    def is_refused(self, allowed: bool) -> bool:
        """Says whether training refuses the loss: more than a tenth of the samples are emptied."""
        return self.emptied > _MOST_EMPTIED * self.of and not allowed

    @property
    def counts(self) -> dict[str, int]:
        """Returns the counts that stand among the repairs of a run."""
        return {"lost_steps": self.steps, "emptied_samples": self.emptied}

    def describe(self, where: str, allowed: bool) -> str:
        """Puts the loss into words, before anything is prepared."""
        needed = ": training needs data.allow_loss = true" if self.is_refused(allowed) else ""
        return (
            f"{where}: {self.steps} stored step(s) that are not zero would not be read, which "
            f"would leave {self.emptied} of {self.of} samples without it{needed}."
        )


def count_lost(
    split: Split,
    masks: Mapping[str, np.ndarray],
    chosen: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    truncates: bool = False,
    nonzero: Mapping[str, np.ndarray] | None = None,
    cut: np.ndarray | None = None,
) -> dict[str, Lost]:
    """Counts what is lost of modalities of a stored split that move as one.

    Args:
        masks: the readable steps `[N, T]` of each modality.
        chosen: the result of `choose_steps` for these masks.
        truncates: says that longer sequences are cut. Then a sample that is longer than its table
            may leave out steps of `masks`, but not all of them.
        nonzero: the result of `nonzero_steps` for modalities where it is known already.
        cut: further valid steps `[N, T]` or `[N, 1]` that a truncation may leave out.

    Returns:
        What is lost, by modality; only where something is.
    """
    source = next(iter(chosen.values()))[0]  # the same for all
    steps = next(iter(masks.values())).shape[1]
    if truncates and steps > source.shape[1]:
        is_read = np.any([kept.any(axis=1) for _, kept in chosen.values()], axis=0)
        too_long = ((spans(union(masks.values()))[1] > source.shape[1]) & is_read)[:, None]
        cut = too_long if cut is None else too_long | cut
    # By modality, of each sample: how many steps are lost, and whether one is read and not zero.
    lost: dict[str, np.ndarray] = {}
    is_left: dict[str, np.ndarray] = {}
    for start in range(0, len(split), _ROWS):
        rows = slice(start, start + _ROWS)
        # Which stored steps prepared ones read, of every modality: `[M, n, T]`.
        member, row, step = np.array([kept[rows] for _, kept in chosen.values()]).nonzero()
        read = np.zeros((len(chosen), len(source[rows]), steps), bool)
        read[member, row, source[rows][row, step]] = True
        unread = ~read
        for m, candidates in zip(chosen, unread, strict=True):
            if cut is not None:
                candidates &= ~(masks[m][rows] & cut[rows])
            if m in split.masks and m not in split.derived:
                candidates &= split.masks[m][rows]
        if not np.count_nonzero(unread):
            continue  # features are looked at only where they may be lost
        for k, m in enumerate(chosen):
            known = (nonzero or {}).get(m)
            stored = _stored_steps(split.features[m][rows], known if known is None else known[rows])
            unread[k] &= stored
            if np.count_nonzero(unread[k]):
                lost.setdefault(m, np.zeros(len(split), int))[rows] = unread[k].sum(axis=1)
                left = is_left.setdefault(m, np.zeros(len(split), bool))
                left[rows] = (read[k] & stored).any(axis=1)
    found = {}
    for m, of_sample in lost.items():
        emptied, there = (of_sample > 0) & ~is_left[m], (of_sample > 0) | chosen[m][1].any(axis=1)
        counts = of_sample.sum(), (of_sample > 0).sum(), emptied.sum(), there.sum()
        found[m] = Lost(*map(int, counts))
    return found


def count_among(split: Split, modality: str, steps: np.ndarray) -> int:
    """Counts the stored steps among some that are not zero and that no mask hides.

    `steps` is `[N, T]`, or `[N, 1]` for all steps of a sample.
    """
    x = split.features[modality]
    if modality in split.masks and modality not in split.derived:
        steps = steps & split.masks[modality]
    return _count_stored(x, np.broadcast_to(steps, x.shape[:2]))


def count_hidden(split: Split, modality: str) -> int:
    """Counts the steps that are not zero and that the file's own mask hides; 0 without one."""
    if modality not in split.masks or modality in split.derived:
        return 0
    return _count_stored(split.features[modality], ~split.masks[modality])


def _count_stored(x: np.ndarray, steps: np.ndarray) -> int:
    """Counts the steps among some `[N, T]` that are neither zero nor a file's padding."""
    count = 0
    for start in range(0, len(x), _ROWS):
        rows = slice(start, start + _ROWS)
        among = x[rows][steps[rows]]  # `[n, d]`, or token ids `[n]`
        count += int(np.count_nonzero(_stored_steps(among[:, None])))
    return count


def _stored_steps(x: np.ndarray, nonzero: np.ndarray | None = None) -> np.ndarray:
    """Finds the steps `[N, T]` that are neither zero nor padding; `nonzero` as `nonzero_steps`."""
    stored = nonzero_steps(x) if nonzero is None else nonzero
    return stored & (x != _PADDING) if x.ndim == 2 else stored


def count_in_full(
    split: Split,
    masks: Mapping[str, np.ndarray],
    groups: Groups,
    rows: Mapping[str, int],
    nonzero: Mapping[str, np.ndarray],
) -> dict[str, Lost]:
    """Counts what would be lost of a stored split if every sequence fitted its table.

    `masks` are the valid steps `[N, T]` of each modality, `rows` the sizes of embedding tables, as
    far as they are known, and `nonzero` the result of `nonzero_steps`.
    """
    found = {}
    for members in movers(masks, groups):
        valid = readable_steps(split, {m: masks[m] for m in members if m in masks}, rows)
        steps = max(mask.shape[1] for mask in valid.values())
        chosen = choose_steps(valid, steps, "error", split.ids)
        found |= count_lost(split, valid, chosen, nonzero=nonzero)
    return found


def nothing_read(split: Split, modality: str) -> dict[str, Lost]:
    """Counts what is lost of a modality that is left out as a whole."""
    nothing = np.zeros((len(split), 0), int)
    masks = {modality: np.zeros(split.features[modality].shape[:2], bool)}
    return count_lost(split, masks, {modality: (nothing, nothing.astype(bool))})


def require_little_lost(where: str, lost: Mapping[str, Lost], allowed: bool) -> None:
    """Raises `UserError`, unless `allowed`, if over a tenth of a modality's samples lose it all."""
    for m, loss in lost.items():
        if loss.is_refused(allowed):
            raise UserError(
                f"{where}: {loss.steps} stored steps of {m!r} that are not zero would not be read, "
                f"which would leave {loss.emptied} of {loss.of} samples without it: look for a "
                "mistake in its masks, lengths or token ids, or accept it with "
                "--config.data.allow_loss=true."
            )


def count_without_any(masks: Mapping[str, np.ndarray]) -> int:
    """Counts samples without a valid step `[N, T]` in any modality; 0 if there is no modality."""
    if not masks:
        return 0
    has_any = np.logical_or.reduce([mask.any(axis=1) for mask in masks.values()])
    return len(has_any) - int(np.count_nonzero(has_any))


REPAIRS = {
    "non_finite": "{count} value(s) that were not finite, or beyond 1e6, are 0",
    "clipped": "{count} value(s) beyond +-{clip:g} standard deviations are clipped",
    "nan_padding": "{count} step(s) of NaN alone before or behind their sequence are padding",
    "unknown_ids": "{count} token id(s) that the model has no row for are padding",
    "cut_lengths": "{count} length(s) beyond the stored steps count as all of them",
    "length_disagrees": "{count} length(s) end before steps that are not zero, which are kept",
    "hidden_steps": "{count} stored step(s) that are not zero are left out, as its mask says",
    "empty_transcripts": "{count} transcript(s) are empty, where text is absent",
    "in_parts": "{count} waveform(s) are longer than 30 s, and encoded in parts of it",
    "cut_pieces": "{count} piece(s) of transcripts that are too long are cut",
    "one_sided_matrices": "{count} matrices are not symmetric, and read above the diagonal alone",
    "clipped_labels": "{count} label(s) outside [-3, 3] are clipped",
}
LOSSES = {
    "lost_steps": "{count} stored step(s) that are not zero are not read",
    "emptied_samples": "which leaves {count} sample(s) without it",
    "wordless_steps": "{count} stored step(s) at no word are not read",
}


Counts = Mapping[str, Mapping[str, int]]  # {modality: {kind: count}}, as `prepare` returns them


def describe(made: Counts, phrases: Mapping[str, str], clip: float = 0) -> str:
    """Says what there is of `REPAIRS`, or of `LOSSES`.

    "audio: 3 value(s) that were not finite, or beyond 1e6, are 0" lacks its full stop; it is "" if
    there is nothing. `clip` is the bound of standardised features.
    """
    found = {m: describe_counts(counts, phrases, clip) for m, counts in made.items()}
    return "; ".join(f"{m}: {told}" for m, told in found.items() if told)


def describe_counts(
    counts: Mapping[str, int], phrases: Mapping[str, str] = REPAIRS, clip: float = 0
) -> str:
    """Says the same of `{kind: count}`, as of what the reader of a file repaired."""
    told = []
    for kind, count in counts.items():
        words = (REPAIRS | LOSSES)[kind]  # a KeyError for a kind that no phrase was written for
        if count and kind in phrases:
            told.append(words.format(count=count, clip=clip))
    return ", ".join(told)


def say_repairs(split: str, made: Counts, clip: float) -> None:
    """Logs what was repaired in a split, if anything was."""
    if told := describe(made, REPAIRS, clip):
        logger.warning("Repaired in %s: %s.", split, told)


def say_prepared(name: str, split: Split, made: Counts, clip: float) -> None:
    """Logs what was repaired in a prepared split, and what it loses."""
    say_repairs(name, made, clip)
    say_lost(name, made, count_without_any(split.masks), len(split))


def say_lost(split: str, made: Counts, without_any: int, size: int) -> None:
    """Logs what a split loses, and how many of its `size` samples have no modality at all."""
    if told := describe(made, LOSSES):
        logger.warning("Lost in %s: %s.", split, told)
    if without_any:
        logger.warning("%s", describe_empty(split, without_any, size))


def describe_empty(split: str, empty: int, size: int) -> str:
    """Returns the sentence on samples without any modality."""
    verb, whose = ("has", "its") if empty == 1 else ("have", "their")
    return (
        f"{split}: {empty} of {size} {verb} no valid step in any modality: {whose} score is that "
        "of an empty input."
    )
