"""Alignment against slow loops that ask every row about every step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msajax.corpus.formats.csd import TOUCH, mean_rows, overlap_any, words_of_segments

RANDOM = settings(max_examples=150, deadline=None)
EPSILON = np.finfo(np.float64).eps


def slow_means(features, intervals, steps):
    """For each step the exact mean of its rows, rounded once, or None."""
    found = []
    for begin, end in steps.tolist():
        rows = [
            row
            for row, (start, stop) in zip(features.tolist(), intervals.tolist(), strict=True)
            if start < end - TOUCH and stop > begin + TOUCH and all(map(math.isfinite, row))
        ]
        found.append([math.fsum(c) / len(rows) for c in zip(*rows, strict=True)] if rows else None)
    return found


def check_means(features, intervals, steps):
    means, present, left_out = mean_rows(features, intervals, steps)
    assert means.shape == (len(steps), features.shape[1]) and means.dtype == np.float64
    assert left_out == int((~np.isfinite(features)).any(axis=1).sum())
    wanted = slow_means(features, intervals, steps)
    assert present.tolist() == [row is not None for row in wanted]
    finite = np.abs(np.where(np.isfinite(features), features, 0))
    bound = (len(features) + 1) * EPSILON * finite.max(initial=0)
    for found, row in zip(means, wanted, strict=True):
        np.testing.assert_allclose(found, row or [0.0] * len(found), rtol=0, atol=bound)


@st.composite
def rows(draw, most: int, sort: bool):
    """Intervals on a coarse grid, so that they touch, nest, repeat and have no length."""
    grid = st.integers(0, 24)
    pairs = draw(st.lists(st.tuples(grid, grid), max_size=most))
    pairs = [(min(pair), max(pair)) for pair in pairs]
    intervals = np.array(sorted(pairs) if sort else pairs, np.float64).reshape(-1, 2)
    return intervals * draw(st.sampled_from([1.0, 0.01, 1 / 3])) - draw(st.sampled_from([0, 5.5]))


@RANDOM
@given(rows(20, True), rows(8, False), st.integers(0, 2**32 - 1), st.booleans())
def test_means_are_those_of_every_overlapping_row(intervals, steps, seed, spoil):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(len(intervals), 3)) * 10.0 ** rng.integers(-6, 7, 3)
    if spoil:
        features[rng.random(features.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    check_means(features, intervals, steps)


def test_a_large_value_elsewhere_costs_no_digit():
    features = np.array([[1e30], [1.0], [2.0], [-1e30], [3.0]])
    intervals = np.arange(5)[:, None] + np.array([[0.0, 1.0]])
    means, _, _ = mean_rows(features, intervals, np.array([[1.0, 3.0], [4.0, 5.0]]))
    np.testing.assert_array_equal(means, [[1.5], [3.0]])  # a running sum would give 0


@pytest.mark.parametrize("late", [0.0, 100.0, 1000.0])
def test_time_stamps_rounded_to_float32_still_only_touch(late):
    ends = late + np.cumsum(np.random.default_rng(0).uniform(0.05, 0.9, 200))
    words = np.stack([np.append(late, ends[:-1]), ends], axis=1)
    vectors = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    means, present, _ = mean_rows(vectors, words.astype(np.float32).astype(np.float64), words)
    assert present.all()
    np.testing.assert_array_equal(means, vectors)  # each word's own row, and no neighbour's


def test_a_row_with_a_value_that_float32_lacks_is_left_out_as_a_whole():
    for bad in (np.nan, np.inf, -np.inf, 1e39):
        features = np.array([[1.0, 2.0], [bad, 4.0], [5.0, 6.0], [7.0, bad]])
        intervals = np.array([[0, 1], [1, 2], [2, 3], [3, 4.0]])
        means, present, left_out = mean_rows(features, intervals, np.array([[0, 3], [3, 4.0]]))
        np.testing.assert_array_equal(means, [[3.0, 4.0], [0.0, 0.0]])
        np.testing.assert_array_equal(present, [True, False])
        assert left_out == 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint16, ">f4"])
def test_numbers_of_any_type_are_averaged_in_float64(dtype):
    features = np.array([[100], [100], [101]]).astype(dtype)
    intervals = np.array([[0, 1], [1, 2], [2, 3.0]])
    means, _, left_out = mean_rows(features, intervals, np.array([[0, 3.0]]))
    assert means.tolist() == [[301 / 3]] and left_out == 0


# --- words ---


@RANDOM
@given(rows(20, True), rows(6, False), st.sampled_from([0.0, -0.04, 0.3, -1.0]))
def test_a_word_belongs_to_every_segment_that_it_starts_in(words, segments, shift):
    first, last = words_of_segments(words[:, 0], segments, shift)
    for k, (start, end) in enumerate(segments.tolist()):
        wanted = [w for w, begin in enumerate(words[:, 0]) if start <= begin + shift < end]
        assert list(range(first[k], last[k])) == wanted


def test_rows_that_overlap_no_step_are_found():
    rng = np.random.default_rng(4)
    for _ in range(50):
        rows, steps = (
            np.sort(rng.uniform(0, 10, (n, 2)).round(1), axis=1) for n in rng.integers(0, 9, 2)
        )
        wanted = [
            any(begin + TOUCH < row[1] and row[0] < end - TOUCH for begin, end in steps)
            for row in rows
        ]
        assert overlap_any(rows, steps).tolist() == wanted
