"""What each dispatch of an epoch reads: a corpus that lies on the devices, or one that streams."""

import concurrent.futures
import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from msajax.data.batches import RUN, EpochOrder, cut_lengths, fill_rows
from msajax.data.corpus import Split
from msajax.data.on_demand import OnDemand
from msajax.spec import CorpusSpec
from msajax.training.parallel import DeviceCorpus, DeviceOrders, Layout, put_orders

DISPATCH_SECONDS = 0.5  # aimed at: a dispatch cannot be interrupted


class Pace:
    """How many steps a dispatch takes; results do not depend on it."""

    def __init__(self) -> None:
        """Begins with one step."""
        self.steps = 1
        self.compiled: set[int] = set()  # buckets whose program has run

    def update(self, bucket: int, steps: int, seconds: float) -> None:
        """Learns from a dispatch; a bucket's first one measured the compiler."""
        if bucket in self.compiled:
            self.steps = max(1, int(DISPATCH_SECONDS * steps / max(seconds, 1e-6)))
        self.compiled.add(bucket)


class Dispatch(NamedTuple):
    """Neighbouring steps of an epoch that share a length bucket.

    Attributes:
        bucket: of all its steps.
        corpus: the rows that they read.
        orders: which rows, of steps from `offset` on.
        first: the first step, counted in `orders`.
        last: behind the last one.
        offset: the step of the epoch that `orders` begins with.
    """

    bucket: int
    corpus: DeviceCorpus
    orders: DeviceOrders
    first: int
    last: int
    offset: int


def streams(split: Split) -> bool:
    """Whether a prepared split is read from the host as it is needed."""
    return any(isinstance(x, OnDemand) for x in split.features.values())


def resident(
    corpus: DeviceCorpus, orders: DeviceOrders, quarters: np.ndarray, begin: int, pace: Pace
) -> Iterator[Dispatch]:
    """The dispatches of an epoch over a corpus that lies on the devices.

    Args:
        corpus: the whole of it.
        orders: of the whole epoch, on the devices.
        quarters: `[steps]`, the bucket of each step.
        begin: the first step to take.
        pace: how many steps to take at once.
    """
    for start, end in _stretches(quarters, begin):
        for first, last in _paced(start, end, pace):
            yield Dispatch(int(quarters[start]), corpus, orders, first, last, 0)


def streamed(
    split: Split,
    spec: CorpusSpec,
    orders: Sequence[EpochOrder],
    stopped: np.ndarray,
    layout: Layout,
    parts: int,
    begin: int,
    pace: Pace,
) -> Iterator[Dispatch]:
    """The same dispatches over a split that is read on demand: runs of at most `RUN` batches.

    While one run is trained on, the next one is read and put on the devices.

    Args:
        split: prepared.
        spec: of the corpus.
        orders: of every random seed.
        stopped: `[S]`, seeds whose rows are not needed.
        layout: where arrays are.
        parts: accumulation steps.
        begin: the first step to take.
        pace: how many steps to take at once.
    """
    quarters = orders[0].quarters
    runs = [
        (start, min(start + RUN, end))
        for first, end in _stretches(quarters, begin)
        for start in range(first, end, RUN)
    ]
    if not runs:
        return
    load = functools.partial(_load, split, spec, orders, stopped, layout, parts)
    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        following = reader.submit(load, *runs[0])
        for i, (start, end) in enumerate(runs):
            corpus, on_device = following.result()
            if i + 1 < len(runs):
                following = reader.submit(load, *runs[i + 1])
            for first, last in _paced(0, end - start, pace):
                yield Dispatch(int(quarters[start]), corpus, on_device, first, last, start)


def _stretches(quarters: np.ndarray, begin: int) -> Iterator[tuple[int, int]]:
    """Begin and end of every stretch of steps from `begin` on that share a bucket."""
    edges = begin + np.flatnonzero(np.diff(quarters[begin:], prepend=0, append=0))
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


def _paced(first: int, end: int, pace: Pace) -> Iterator[tuple[int, int]]:
    """Begin and end of every dispatch of some steps; the pace may change from one to the next."""
    while first < end:
        last = min(first + pace.steps, end)
        yield first, last
        first = last


def _load(
    split: Split,
    spec: CorpusSpec,
    orders: Sequence[EpochOrder],
    stopped: np.ndarray,
    layout: Layout,
    parts: int,
    start: int,
    end: int,
) -> tuple[DeviceCorpus, DeviceOrders]:
    """The rows of a run, seed after seed, and the order that reads them in turn."""
    shape = (RUN, orders[0].indices.shape[1])  # one for every run: one program
    lengths = cut_lengths(spec, int(orders[0].quarters[start]))
    needed, local = [], []
    for order, gone in zip(orders, stopped, strict=True):
        indices, weight = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        if not gone:
            wanted = order.indices[start:end]
            places = len(needed) * wanted.size + np.arange(wanted.size)
            indices[: end - start] = places.reshape(wanted.shape)
            weight[: end - start] = order.row_weight[start:end]
            needed.append(wanted.ravel())
        local.append(EpochOrder(order.quarters[start:end], indices, weight))
    rows, room = np.concatenate(needed), len(orders) * math.prod(shape)
    corpus = DeviceCorpus(
        {m: fill_rows(x[rows, : lengths[m]], room) for m, x in split.features.items()},
        {m: fill_rows(mask[rows, : lengths[m]], room) for m, mask in split.masks.items()},
        fill_rows(split.labels[rows].astype(np.float32), room),
    )
    return layout.put(corpus), put_orders(local, layout, parts)
