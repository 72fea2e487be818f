"""Makes the labels and words of a CMU Multimodal SDK folder into segments and their steps.

A segment is a row of the labels. Its steps are the words that start in it, or, without any, one
step as long as the segment.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from msajax.corpus.alignment import words_of_segments
from msajax.corpus.corpus import is_finite
from msajax.corpus.formats.csd_file import ComputationalSequence, Rows
from msajax.corpus.labels import MOST_OUTPUTS, clip_sentiment
from msajax.errors import UserError

_PAUSES = ("sp", "")
_MOSEI_LABELS = ("sentiment", "happy", "sad", "anger", "surprise", "disgust", "fear")


@dataclasses.dataclass(frozen=True)
class Steps:
    """Holds the S steps of one video's N segments, segment by segment in time order.

    Attributes:
        labels: `[N, K]` float64.
        segment: `[S]`, which of the N segments a step belongs to.
        column: `[S]`, its place there.
        intervals: `[S, 2]` seconds.
        words: S words; None for a segment as a whole.
    """

    labels: np.ndarray
    segment: np.ndarray
    column: np.ndarray
    intervals: np.ndarray
    words: list[str | None]


def label_names(width: int) -> tuple[str, ...]:
    """Names the columns of labels: seven are those of CMU-MOSEI, one is sentiment."""
    if width == len(_MOSEI_LABELS):
        return _MOSEI_LABELS
    return ("sentiment",) if width == 1 else tuple(str(k) for k in range(width))


def read_labels(labels: ComputationalSequence) -> tuple[dict[str, Rows], int]:
    """Reads the segments of every video, by video, and clips labels of sentiment.

    Returns:
        The segments, labels as float64; and how many labels were clipped.

    Raises:
        UserError: for labels that are not finite, and for too many columns of them.
    """
    if labels.width > MOST_OUTPUTS:
        raise UserError(
            f"{labels.path}: labels have {labels.width} columns; at most {MOST_OUTPUTS} are read."
        )
    found = {}
    for rows in labels.rows(labels.videos):
        values = rows.features.astype(np.float64)
        usable = is_finite(values).all(axis=1)
        if not usable.all():
            raise UserError(
                f"{labels.path}: the labels of '{rows.video}[{np.argmin(usable)}]' are not finite "
                "float32 numbers."
            )
        found[rows.video] = dataclasses.replace(rows, features=values)
    if label_names(labels.width)[0] != "sentiment":
        return found, 0
    return found, clip_sentiment(labels.path, [rows.features[:, 0] for rows in found.values()])


def read_words(
    words: ComputationalSequence | None, videos: Iterable[str]
) -> dict[str, tuple[list[str], np.ndarray]]:
    """Reads the words of each video, without pauses, and their intervals `[W, 2]`.

    Raises:
        UserError: for words that are not UTF-8 text.
    """
    found = {video: ([], np.zeros((0, 2))) for video in videos}
    for rows in words.rows(found) if words else ():
        try:
            tokens = [" ".join(token.decode().split()) for token in rows.features[:, 0].tolist()]
        except UnicodeDecodeError as error:
            raise UserError(
                f"{words.path}: the words of video {rows.video!r} are not UTF-8 text."
            ) from error
        kept = [k for k, token in enumerate(tokens) if token not in _PAUSES]
        found[rows.video] = [tokens[k] for k in kept], rows.intervals[kept]
    return found


def place_words(segments: Rows, words: list[str], spoken: np.ndarray, shift: float) -> Steps:
    """Places the words of a video in its segments.

    Args:
        segments: their labels and intervals.
        words: W words in the order of their starts.
        spoken: `[W, 2]`, start and end of each word in seconds.
        shift: seconds added to a word's start to find its segment. The interval of its step stays
            the word's own, because other recordings share the clock of the words.
    """
    first, last = words_of_segments(spoken[:, 0], segments.intervals, shift)
    # A segment without words keeps a step, so that no sample is dropped: the other modalities
    # still say something.
    steps, intervals, placed = np.maximum(last - first, 1), [np.zeros((0, 2))], []
    for k, (start, stop) in enumerate(zip(first, last, strict=True)):
        intervals.append(spoken[start:stop] if start < stop else segments.intervals[k : k + 1])
        placed += words[start:stop] or [None]
    segment = np.repeat(np.arange(len(steps)), steps)
    column = np.arange(len(segment)) - np.repeat(np.cumsum(steps) - steps, steps)
    return Steps(segments.features, segment, column, np.concatenate(intervals), placed)


def segment_ids(videos: Mapping[str, Steps]) -> list[str]:
    """Names the segments of the videos, in their order: `video[i]`, i counted from 0."""
    return [f"{v}[{i}]" for v, steps in videos.items() for i in range(len(steps.labels))]


def words_of(videos: Mapping[str, Steps]) -> list[list[str]]:
    """Returns the words of each segment, in their order; a segment without words has none."""
    found: list[list[str]] = []
    for steps in videos.values():
        of_video: list[list[str]] = [[] for _ in steps.labels]
        for k, word in zip(steps.segment, steps.words, strict=True):
            of_video[k] += [word] if word is not None else []
        found += of_video
    return found


def transcripts(videos: Mapping[str, Steps]) -> np.ndarray:
    """Joins the words of each segment: `[N]` str, N the segments of all videos."""
    return np.array([" ".join(words) for words in words_of(videos)])
