"""Length quarters, and the order of an epoch: a pure function of (seed, epoch)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msajax.corpus.corpus import Split
from msajax.preparation.batches import (
    BLOCK,
    QUARTERS,
    cut_lengths,
    epoch_order,
    quarters_of,
    steps_per_epoch,
)
from msajax.spec import CorpusSpec

seeds, epochs = st.integers(0, 2**31 - 1), st.integers(0, 10**6)
batch_sizes = st.integers(1, 70)
all_quarters = st.lists(st.integers(1, QUARTERS), min_size=1, max_size=300).map(np.array)
QUICK = settings(max_examples=100, deadline=None)


def make_split(spec: CorpusSpec, lengths: dict[str, list[int]], holes: bool = False) -> Split:
    """A prepared split whose sequences have these lengths."""
    size = len(next(iter(lengths.values())))
    masks = {}
    for m, of_rows in lengths.items():
        steps, last = np.arange(spec.length(m)), np.array(of_rows)[:, None] - 1
        masks[m] = (steps <= last) & (~np.bool_(holes) | (steps == 0) | (steps == last))
    features = {m: np.zeros((size, spec.length(m), spec.width(m)), np.float32) for m in lengths}
    return Split(ids=np.array([str(i) for i in range(size)]), features=features, masks=masks)


@QUICK
@given(one=seeds, other=seeds, epoch=epochs, quarters=all_quarters, batch_size=batch_sizes)
def test_epoch_order_holds_every_row_once(one, other, epoch, quarters, batch_size):
    order = epoch_order(one, epoch, quarters=quarters, batch_size=batch_size)
    steps = steps_per_epoch(quarters, batch_size)
    assert order.indices.shape == order.row_weight.shape == (steps, batch_size)
    assert order.quarters.shape == (steps,)
    # Every row is read exactly once with weight 1, and in its quarter; fillers have its shape.
    assert set(np.unique(order.row_weight)) <= {0.0, 1.0}
    assert sorted(order.indices[order.row_weight == 1].tolist()) == list(range(len(quarters)))
    assert (quarters[order.indices] == order.quarters[:, None]).all()
    # A quarter has one batch at most that is not full.
    for quarter in np.unique(quarters):
        filled = order.row_weight[order.quarters == quarter].sum(axis=1)
        assert (filled < batch_size).sum() <= 1 and (filled >= 1).all()
    # Batches of a quarter follow one another in blocks.
    stretches = 1 + np.count_nonzero(np.diff(order.quarters))
    _, batches = np.unique(order.quarters, return_counts=True)
    assert stretches <= np.ceil(batches / BLOCK).sum()
    # The order of quarters is the same for all seeds, and a function of the arguments alone.
    np.random.seed(epoch % 1000)
    of_other = epoch_order(other, epoch, quarters=quarters, batch_size=batch_size)
    np.testing.assert_array_equal(order.quarters, of_other.quarters)
    again = epoch_order(one, epoch, quarters=quarters, batch_size=batch_size)
    for a, b in zip(vars(order).values(), vars(again).values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_order_of_quarters_differs_between_epochs():
    quarters = np.repeat([1, 2, 3, 4], 40)
    orders = {
        epoch_order(0, epoch, quarters=quarters, batch_size=8).quarters.tobytes()
        for epoch in range(20)
    }
    assert len(orders) == 20


def test_epoch_order_is_uniform():
    # Where row 0 comes in 4,000 epochs of 8 rows: 500 each, standard deviation 21.
    places = [
        int(
            np.flatnonzero(
                epoch_order(3, epoch, quarters=np.full(8, 4), batch_size=8).indices[0] == 0
            )[0]
        )
        for epoch in range(4000)
    ]
    assert np.bincount(places, minlength=8) == pytest.approx(np.full(8, 500), abs=105)


def test_epoch_order_is_pinned():
    # What a checkpoint of an earlier version was trained on, and continues with.
    order = epoch_order(1, 2, quarters=np.array([4, 4, 4, 4, 4, 4, 4]), batch_size=4)
    assert order.indices.tolist() == [[0, 6, 5, 1], [4, 3, 2, 4]]
    assert order.row_weight.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_a_row_falls_into_the_quarter_of_its_relatively_longest_sequence():
    spec = CorpusSpec(("text", "audio"), (2, 3), (20, 8))
    split = make_split(
        spec,
        {"text": [1, 5, 6, 0, 10, 20, 0, 16], "audio": [1, 2, 2, 5, 2, 1, 0, 0]},
    )
    assert quarters_of(split, spec).tolist() == [1, 1, 2, 3, 2, 4, 1, 4]


@QUICK
@given(
    tables=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    shares=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30),
    holes=st.booleans(),
)
def test_no_valid_step_is_cut_off_and_no_smaller_quarter_would_hold_the_row(tables, shares, holes):
    spec = CorpusSpec(("text", "audio"), (1, 1), tables)
    lengths = {
        m: [round(share[k] * tables[k]) for share in shares] for k, m in enumerate(spec.modalities)
    }
    split = make_split(spec, lengths, holes)
    quarters = quarters_of(split, spec)
    assert set(quarters) <= {1, 2, 3, 4}
    for row, quarter in enumerate(quarters):
        cut, smaller = cut_lengths(spec, quarter), cut_lengths(spec, quarter - 1)
        assert all(lengths[m][row] <= cut[m] <= spec.length(m) for m in lengths)
        # A quarter below might hold it only because lengths are rounded up to whole steps.
        assert quarter == 1 or any(
            lengths[m][row] > spec.length(m) * (quarter - 1) / 4 for m in lengths
        )
        assert all(smaller[m] <= cut[m] for m in lengths)
