"""Counts samples that occur more than once, and puts the counts into words."""

import itertools
from collections.abc import Hashable, Mapping, Sequence


def count_repeated(contents: Mapping[str, Sequence[Hashable | None]]) -> dict[str, int]:
    """Counts samples that are equal to others.

    Args:
        contents: by split, what stands for each sample; None equals nothing.

    Returns:
        By split (`train`), those equal to an earlier one of it; by pair of splits (`train/test`),
        those of the second that are equal to one of the first.
    """
    known = {name: set(all_of) - {None} for name, all_of in contents.items()}
    found = {
        name: sum(content is not None for content in all_of) - len(known[name])
        for name, all_of in contents.items()
    }
    for first, second in itertools.combinations(contents, 2):
        found[f"{first}/{second}"] = sum(content in known[first] for content in contents[second])
    return found


def describe_repeated(counts: Mapping[str, int], equal: str, consequence: str = "") -> list[str]:
    """Puts the counts of `count_repeated` into words, a sentence each.

    Args:
        counts: those of 0 get no sentence.
        equal: the predicate, such as "are identical to".
        consequence: the end of a sentence on equal samples in two splits.
    """
    told = []
    for where, count in counts.items():
        first, _, second = where.partition("/")
        if count:
            another = f"one of {first}{consequence}" if second else "an earlier one"
            told.append(f"{count} sample(s) of {second or first} {equal} {another}.")
    return told


def describe_repeated_ids(counts: Mapping[str, int]) -> list[str]:
    """Puts `Corpus.repeated_ids_in`, or some of it, into words, a sentence each."""
    return describe_repeated(counts, "have the id of", ": samples may leak")
