"""The order of an epoch: a pure function of (seed, epoch) that reads every row exactly once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msajax.data.batches import epoch_order

seeds, epochs = st.integers(0, 2**31 - 1), st.integers(0, 10**6)
sizes, batch_sizes = st.integers(1, 300), st.integers(1, 70)
QUICK = settings(max_examples=100, deadline=None)


@QUICK
@given(seed=seeds, epoch=epochs, size=sizes, batch_size=batch_sizes)
def test_every_row_is_read_exactly_once(seed, epoch, size, batch_size):
    rows, weights = epoch_order(seed, epoch, size=size, batch_size=batch_size)
    steps = (size + batch_size - 1) // batch_size
    assert rows.shape == weights.shape == (steps, batch_size)
    assert rows.dtype == np.int32 and weights.dtype == np.float32
    assert set(np.unique(weights)) <= {0.0, 1.0}
    assert sorted(rows[weights == 1].tolist()) == list(range(size))


@QUICK
@given(seed=seeds, epoch=epochs, size=sizes, batch_size=batch_sizes)
def test_only_the_end_of_the_last_batch_is_filled_with_a_row_that_exists(
    seed, epoch, size, batch_size
):
    rows, weights = epoch_order(seed, epoch, size=size, batch_size=batch_size)
    fill = -size % batch_size
    assert weights.ravel().tolist() == [1.0] * size + [0.0] * fill
    assert rows.ravel()[size:].tolist() == [0] * fill


@QUICK
@given(seed=seeds, epoch=epochs, size=sizes, batch_size=batch_sizes)
def test_the_order_is_a_function_of_its_arguments_alone(seed, epoch, size, batch_size):
    first = epoch_order(seed, epoch, size=size, batch_size=batch_size)
    np.random.seed(epoch % 1000)
    epoch_order(seed, epoch + 1, size=size, batch_size=batch_size)
    again = epoch_order(seed, epoch, size=size, batch_size=batch_size)
    np.testing.assert_array_equal(first, again)


@QUICK
@given(seed=seeds, epoch=epochs, batch_sizes=st.tuples(batch_sizes, batch_sizes))
def test_the_permutation_does_not_depend_on_the_batch_size(seed, epoch, batch_sizes):
    one, other = (epoch_order(seed, epoch, size=200, batch_size=b)[0] for b in batch_sizes)
    np.testing.assert_array_equal(one.ravel()[:200], other.ravel()[:200])


@QUICK
@given(one=st.tuples(seeds, epochs), other=st.tuples(seeds, epochs))
def test_another_seed_or_epoch_has_another_order(one, other):
    same = np.array_equal(*(epoch_order(*key, size=200, batch_size=32)[0] for key in (one, other)))
    assert same == (one == other)


def test_seed_and_epoch_do_not_stand_for_each_other():
    orders = {
        epoch_order(seed, epoch, size=50, batch_size=10)[0].tobytes()
        for seed in range(12)
        for epoch in range(12)
    }
    assert len(orders) == 144


def test_the_order_is_uniform():
    # Where row 0 comes in 4,000 epochs of 8 rows: 500 each, standard deviation 21.
    places = [
        int(np.flatnonzero(epoch_order(3, epoch, size=8, batch_size=8)[0][0] == 0)[0])
        for epoch in range(4000)
    ]
    assert np.bincount(places, minlength=8) == pytest.approx(np.full(8, 500), abs=105)


def test_the_order_is_this_one_for_ever():
    # What a checkpoint of an earlier version was trained on, and continues with.
    rows, weights = epoch_order(1, 2, size=7, batch_size=4)
    assert rows.tolist() == [[0, 6, 5, 1], [4, 3, 2, 0]]
    assert weights.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
