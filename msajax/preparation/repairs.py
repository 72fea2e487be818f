"""Puts into words what reading and preparation changed or left out."""

import logging
from collections.abc import Mapping

from msajax.corpus.corpus import Split
from msajax.preparation.lost import count_without_any

logger = logging.getLogger(__name__)

_REPAIRS = {
    "non_finite": "{count} value(s) that were not finite, or beyond 1e6, are 0",
    "clipped": "{count} value(s) beyond +-{clip:g} standard deviations are clipped",
    "unknown_ids": "{count} token id(s) that the model has no row for are padding",
    "cut_lengths": "{count} length(s) beyond the stored steps count as all of them",
    "length_disagrees": "{count} length(s) end before steps that are not zero, which are kept",
    "hidden_steps": "{count} stored step(s) that are not zero are left out, as its mask says",
    "empty_transcripts": "{count} transcript(s) are empty, where text is absent",
    "cut_pieces": "{count} piece(s) of transcripts that are too long are cut",
    "one_sided_matrices": "{count} matrices are not symmetric, and read above the diagonal alone",
    "clipped_labels": "{count} label(s) outside [-3, 3] are clipped",
}
_LOSSES = {
    "lost_steps": "{count} stored step(s) that are not zero are not read",
    "emptied_samples": "which leaves {count} sample(s) without it",
    "wordless_steps": "{count} stored step(s) at no word are not read",
}


def describe_repairs(made: Mapping[str, Mapping[str, int]], clip: float) -> str:
    """Says what was repaired: "audio: 3 value(s) that were not finite, or beyond 1e6, are 0".

    Args:
        made: `{modality: {kind: count}}`, as `prepare` returns it.
        clip: bound of standardised features.

    Returns:
        A sentence without its full stop; "" if nothing was repaired.
    """
    return _describe(made, _REPAIRS, clip)


def describe_losses(made: Mapping[str, Mapping[str, int]]) -> str:
    """Says what is not read, as `describe_repairs` says what was repaired; "" if all is."""
    return _describe(made, _LOSSES, 0)


def describe_reading(made: Mapping[str, int]) -> str:
    """Says what the reader of a file repaired, `{kind: count}`; "" if nothing."""
    return _clauses(made, _REPAIRS, 0)


def say_repairs(split: str, made: Mapping[str, Mapping[str, int]], clip: float) -> None:
    """Logs what was repaired in a split, if anything was."""
    if told := describe_repairs(made, clip):
        logger.warning("Repaired in %s: %s.", split, told)


def say_prepared(
    name: str, split: Split, made: Mapping[str, Mapping[str, int]], clip: float
) -> None:
    """Logs what was repaired in a prepared split, and what it loses.

    Args:
        name: of the split.
        split: prepared.
        made: as `prepare` returns it.
        clip: bound of standardised features.
    """
    say_repairs(name, made, clip)
    say_lost(name, made, count_without_any(split.masks), len(split))


def say_lost(
    split: str, made: Mapping[str, Mapping[str, int]], without_any: int, size: int
) -> None:
    """Logs what a split loses, and how many of its samples have no modality at all.

    Args:
        split: its name.
        made: as `prepare` returns it.
        without_any: samples without a valid step in any modality, of `size`.
        size: samples.
    """
    if told := describe_losses(made):
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


def _describe(
    made: Mapping[str, Mapping[str, int]], phrases: Mapping[str, str], clip: float
) -> str:
    found = {m: _clauses(counts, phrases, clip) for m, counts in made.items()}
    return "; ".join(f"{m}: {told}" for m, told in found.items() if told)


def _clauses(counts: Mapping[str, int], phrases: Mapping[str, str], clip: float) -> str:
    told = []
    for kind, count in counts.items():
        words = (_REPAIRS | _LOSSES)[kind]  # a KeyError for a kind that no phrase was written for
        if count and kind in phrases:
            told.append(words.format(count=count, clip=clip))
    return ", ".join(told)
