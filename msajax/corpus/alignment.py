"""Brings rows with start and end times onto the words and segments of one video.

Times are seconds in float64. A word belongs to the segments in which it starts; whatever else was
recorded is averaged over a word's own interval.
"""

import numpy as np

from msajax.corpus.corpus import is_finite

TOUCH = 1e-4
"""Seconds by which intervals may overlap and still only touch: time stamps in float32 are no finer
half an hour into a video, and a neighbour's row would be a third of a word's mean."""


def words_of_segments(
    starts: np.ndarray, segments: np.ndarray, shift: float
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the words that start in each segment: `segment start <= word start + shift < end`.

    Args:
        starts: `[W]`, of the words, ascending.
        segments: `[N, 2]`, start and end; they may overlap, and share words then.
        shift: seconds added to the words' starts; negative when words come late. It is between
            words and labels: what else was recorded shares the words' clock.

    Returns:
        The first word of each segment, and one behind its last; equal without any. `[N]` each.
    """
    first = np.searchsorted(starts + shift, segments[:, 0], "left")
    return first, np.searchsorted(starts + shift, segments[:, 1], "left")


def overlap_any(rows: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Says which rows `[n, 2]` overlap one of the steps `[S, 2]` by more than `TOUCH` at an end."""
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    before = np.searchsorted(steps[:, 0] + TOUCH, rows[:, 1], "left")  # steps that begin in time
    latest = np.concatenate([[-np.inf], np.maximum.accumulate(steps[:, 1] - TOUCH)])
    return latest[before] > rows[:, 0]


def mean_rows(
    features: np.ndarray, intervals: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Averages the rows that overlap each step.

    The mean is the plain one that the field's own toolkit takes: a row counts in full however
    little of it lies in the step, but for `TOUCH` seconds at either end. A row without length
    counts where it lies inside. Rows that hold a value which is not a finite float32 number are
    left out as a whole.

    Args:
        features: `[n, d]` numbers, in the order of their starts.
        intervals: `[n, 2]`, start and end of each row.
        steps: `[S, 2]`, start and end of each step, in any order.

    Returns:
        The means `[S, d]` float64, exact up to the rounding of a sum, zero for a step without any
        row; whether a step has a row, `[S]` bool; and how many of the n rows were left out.
    """
    usable = is_finite(features).all(axis=1)
    left_out = int((~usable).sum())
    if left_out:
        features, intervals = features[usable], intervals[usable]
    means, present = np.zeros((len(steps), features.shape[1])), np.zeros(len(steps), bool)
    begin, end = steps[:, 0] + TOUCH, steps[:, 1] - TOUCH
    ends = intervals[:, 1]
    # Rows before `low` have ended by then, rows from `high` on start too late. Between them lie
    # all that overlap and, after a row longer than those that follow, some that do not.
    low = np.searchsorted(np.maximum.accumulate(ends), begin, "right")
    high = np.searchsorted(intervals[:, 0], end, "left")
    # A step at a time, so that memory is bounded whatever overlaps; one reduction over the pairs
    # of all steps would take two thirds of the time.
    for k in np.flatnonzero(low < high):
        rows = slice(low[k], high[k])
        overlapping = features[rows][ends[rows] > begin[k]]
        if len(overlapping):
            means[k], present[k] = overlapping.mean(axis=0, dtype=np.float64), True
    return means, present, left_out
