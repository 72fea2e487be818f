"""What each dispatch of an epoch reads: a corpus that lies on the devices, or one that streams."""

import concurrent.futures
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from msajax.data.batches import RUN, Batch, EpochOrder, cut_lengths
from msajax.data.corpus import Split
from msajax.data.on_demand import OnDemand, streams
from msajax.runtime.devices import Layout
from msajax.spec import CorpusSpec
from msajax.training.programs import DeviceCorpus, Programs

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
        batches: `[S, RUN, B, …]`, of steps from `offset` on.
        first: the first step, counted in `batches`.
        last: behind the last one.
        offset: the step of the epoch that `batches` begin with.
    """

    bucket: int
    batches: Batch
    first: int
    last: int
    offset: int


class Feed:
    """The training split of a run, wherever it is: the same batches, in the same order."""

    def __init__(
        self, split: Split, spec: CorpusSpec, programs: Programs, layout: Layout, parts: int
    ) -> None:
        """Puts the split on the devices, unless it streams.

        Args:
            split: prepared, with labels.
            spec: of the corpus.
            programs: of the run.
            layout: where arrays are.
            parts: accumulation steps.
        """
        self._split, self._spec, self._programs = split, spec, programs
        self._layout, self._parts = layout, parts
        self._labels = split.labels.astype(np.float32)
        self._corpus = None if streams(split) else DeviceCorpus.put(split, layout)

    def epoch(
        self, orders: Sequence[EpochOrder], stopped: np.ndarray, begin: int, pace: Pace
    ) -> Iterator[Dispatch]:
        """The dispatches of an epoch; of a split that streams, each is read during the one before.

        Args:
            orders: of every random seed.
            stopped: `[S]`, seeds whose rows are not needed.
            begin: the first step to take.
            pace: how many steps to take at once.
        """
        quarters = orders[0].quarters
        indices, weights = _filled(orders, self._layout.data_devices * self._parts)
        indices[stopped], weights[stopped] = 0, 0
        edges = begin + np.flatnonzero(np.diff(quarters[begin:], prepend=0, append=0))
        runs = [  # of at most RUN steps, all of one bucket
            (start, min(start + RUN, end))
            for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            for start in range(first, end, RUN)
        ]

        def load(start: int, end: int) -> Batch:
            rest = [(0, 0), (0, RUN - (end - start)), (0, 0)]  # one shape: one program
            arrays = (np.pad(x[:, start:end], rest) for x in (indices, weights))
            return self._load(int(quarters[start]), *arrays)

        for (start, end), batches in zip(runs, self._in_turn(load, runs), strict=True):
            first = 0
            while first < end - start:
                last = min(first + pace.steps, end - start)
                yield Dispatch(int(quarters[start]), batches, first, last, start)
                first = last

    def _in_turn(self, load, runs: list[tuple[int, int]]) -> Iterator[Batch]:
        if self._corpus is not None:
            yield from (load(*run) for run in runs)
            return
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            following = reader.submit(load, *runs[0]) if runs else None
            for i in range(len(runs)):
                batches = following.result()
                if i + 1 < len(runs):
                    following = reader.submit(load, *runs[i + 1])
                yield batches

    def _load(self, bucket: int, indices: np.ndarray, weights: np.ndarray) -> Batch:
        """Batches `[S, RUN, B, …]`; every process reads those of its own devices."""
        row_weight = self._layout.assemble(weights.shape, weights.__getitem__)
        if self._corpus is not None:
            rows = self._layout.assemble(indices.shape, indices.__getitem__)
            return self._programs.gather(bucket, self._corpus, rows, row_weight)

        def rows_of(x: np.ndarray | OnDemand, steps: int | None = None) -> jax.Array:
            def read(part: tuple[slice, ...]) -> np.ndarray:
                rows = indices[part[:3]]
                found = x[rows.ravel()] if steps is None else x[rows.ravel(), :steps]
                return found.reshape(*rows.shape, *found.shape[1:])

            tail = x.shape[1:] if steps is None else (steps, *x.shape[2:])
            return self._layout.assemble((*indices.shape, *tail), read)

        lengths = cut_lengths(self._spec, bucket)
        return Batch(
            features={m: rows_of(x, lengths[m]) for m, x in self._split.features.items()},
            masks={m: rows_of(x, lengths[m]) for m, x in self._split.masks.items()},
            labels=rows_of(self._labels),
            row_weight=row_weight,
        )


def _filled(orders: Sequence[EpochOrder], multiple: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and weights of every seed's steps, `[S, steps, B]`.

    Rows of weight 0 fill every batch up to a multiple of the devices and accumulation steps.
    """
    indices = np.stack([order.indices for order in orders])
    weights = np.stack([order.row_weight for order in orders])
    fill = [(0, 0), (0, 0), (0, -indices.shape[2] % multiple)]
    return np.pad(indices, fill, mode="edge"), np.pad(weights, fill)
