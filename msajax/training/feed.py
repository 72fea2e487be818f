"""What each dispatch of an epoch reads: a corpus that lies on the devices, or one that streams."""

import concurrent.futures
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from msajax.data.batches import RUN, EpochOrder, cut_lengths
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
        self._compiled: set[int] = set()

    def update(self, bucket: int, steps: int, seconds: float) -> None:
        """Learns from a dispatch; a bucket's first one measured the compiler."""
        if bucket in self._compiled:
            self.steps = max(1, int(DISPATCH_SECONDS * steps / max(seconds, 1e-6)))
        self._compiled.add(bucket)


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
    corpus: DeviceCorpus, orders: DeviceOrders, quarters: np.ndarray, pace: Pace
) -> Iterator[Dispatch]:
    """The dispatches of an epoch over a corpus that lies on the devices.

    Args:
        corpus: the whole of it.
        orders: of the whole epoch, on the devices.
        quarters: `[steps]`, the bucket of each step.
        pace: how many steps to take.
    """
    for start, end in _stretches(quarters):
        while start < end:
            last = min(start + pace.steps, end)
            yield Dispatch(int(quarters[start]), corpus, orders, start, last, 0)
            start = last


def streamed(
    split: Split,
    spec: CorpusSpec,
    orders: Sequence[EpochOrder],
    stopped: np.ndarray,
    layout: Layout,
    parts: int,
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
        pace: how many steps to take.
    """
    quarters = orders[0].quarters
    runs = [
        (start, min(start + RUN, end))
        for begin, end in _stretches(quarters)
        for start in range(begin, end, RUN)
    ]
    load = functools.partial(_load, split, spec, orders, stopped, layout, parts)
    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        following = reader.submit(load, *runs[0])
        for i, (start, end) in enumerate(runs):
            corpus, on_device = following.result()
            if i + 1 < len(runs):
                following = reader.submit(load, *runs[i + 1])
            first = 0
            while first < end - start:
                last = min(first + pace.steps, end - start)
                yield Dispatch(int(quarters[start]), corpus, on_device, first, last, start)
                first = last


def _stretches(quarters: np.ndarray) -> Iterator[tuple[int, int]]:
    """Begin and end of every stretch of steps that share a bucket."""
    edges = np.flatnonzero(np.diff(quarters, prepend=0, append=0))
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


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
    steps, batch_size = RUN, orders[0].indices.shape[1]
    lengths = cut_lengths(spec, int(orders[0].quarters[start]))
    rows = np.concatenate(
        [
            order.indices[start:end].ravel()
            for order, gone in zip(orders, stopped, strict=True)
            if not gone
        ]
    )
    local, taken = [], 0
    for order, gone in zip(orders, stopped, strict=True):
        indices = np.zeros((steps, batch_size), np.int32)
        weight = np.zeros((steps, batch_size), np.float32)
        if not gone:
            count = (end - start) * batch_size
            indices[: end - start] = taken + np.arange(count).reshape(-1, batch_size)
            weight[: end - start] = order.row_weight[start:end]
            taken += count
        local.append(EpochOrder(order.quarters[start:end], indices, weight))
    room = len(orders) * steps * batch_size  # one shape for every run: one program

    def put(x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, room - len(x))] + [(0, 0)] * (x.ndim - 1))

    corpus = DeviceCorpus(
        {m: put(x[rows, : lengths[m]]) for m, x in split.features.items()},
        {m: put(mask[rows, : lengths[m]]) for m, mask in split.masks.items()},
        put(split.labels[rows].astype(np.float32)),
    )
    return layout.put(corpus), put_orders(local, layout, parts)
