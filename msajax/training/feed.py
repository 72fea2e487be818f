"""Feeds the dispatches of an epoch, from a split that lies on the devices or one that streams."""

import concurrent.futures
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from msajax.corpus.corpus import Split
from msajax.corpus.on_demand import OnDemand, streams
from msajax.preparation.batches import BLOCK, Batch, EpochOrder, cut_lengths, row_numbers
from msajax.runtime.devices import Layout
from msajax.spec import CorpusSpec
from msajax.training.programs import DeviceCorpus, Programs

DISPATCH_SECONDS = 0.5  # aimed at: a dispatch cannot be interrupted


class Pace:
    """Chooses how many steps a dispatch takes; results do not depend on it."""

    def __init__(self) -> None:
        """Begins with one step."""
        self.steps = 1
        self.compiled: set[int] = set()  # length quarters whose program has run

    def update(self, quarter: int, steps: int, seconds: float) -> None:
        """Adapts to a dispatch's time, unless it is its quarter's first, which had to compile."""
        if quarter in self.compiled:
            self.steps = max(1, int(DISPATCH_SECONDS * steps / max(seconds, 1e-6)))
        self.compiled.add(quarter)


class Dispatch(NamedTuple):
    """Holds neighbouring steps of an epoch that share a length quarter.

    Attributes:
        batches: `[S, BLOCK, B, …]`, of the epoch's steps from `offset` on.
        first: the first step to take, counted from `offset`.
        last: the step behind the last one to take, counted alike.
        offset: the epoch's step that `batches` begin with.
    """

    quarter: int
    batches: Batch
    first: int
    last: int
    offset: int


class Feed:
    """Reads the training split of a run: wherever it lies, the same batches in the same order.

    Attributes:
        corpus: the split on the devices; None if it streams.
    """

    def __init__(
        self, split: Split, spec: CorpusSpec, programs: Programs, layout: Layout, parts: int
    ) -> None:
        """Puts the split on the devices, unless it streams."""
        self._split, self._spec, self._programs = split, spec, programs
        self._layout, self._multiple = layout, layout.data_devices * parts
        self._labels = split.labels.astype(np.float32)
        self.corpus = None if streams(split) else DeviceCorpus.put(split, layout)

    def epoch(
        self, orders: Sequence[EpochOrder], stopped: np.ndarray, begin: int, pace: Pace
    ) -> Iterator[Dispatch]:
        """Yields the dispatches of an epoch; a split that streams is read one block ahead.

        Args:
            orders: one per random seed.
            stopped: `[S]`, seeds whose rows are not needed.
            begin: the first step to take.
        """
        quarters = orders[0].quarters

        # Rows of weight 0 fill every batch up to a multiple of the devices and accumulation steps:
        # a batch of any size runs on any layout, with the same order and the same dropout masks.
        indices = np.stack([order.indices for order in orders])  # [seeds, steps, batch]
        weights = np.stack([order.row_weight for order in orders])
        fill = [(0, 0), (0, 0), (0, -indices.shape[2] % self._multiple)]
        indices, weights = np.pad(indices, fill, mode="edge"), np.pad(weights, fill)
        indices[stopped], weights[stopped] = 0, 0

        # Every length quarter has a program of its own.
        edges = begin + np.flatnonzero(np.diff(quarters[begin:], prepend=0, append=0))
        blocks = [  # of at most BLOCK steps, all of one length quarter
            (start, min(start + BLOCK, end))
            for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            for start in range(first, end, BLOCK)
        ]

        def load(start: int, end: int) -> Batch:
            rest = [(0, 0), (0, BLOCK - (end - start)), (0, 0)]  # one shape: one program
            arrays = (np.pad(x[:, start:end], rest) for x in (indices, weights))
            return self._load(int(quarters[start]), *arrays)

        for (start, end), batches in zip(blocks, self._in_turn(load, blocks), strict=True):
            first = 0
            while first < end - start:
                last = min(first + pace.steps, end - start)
                yield Dispatch(int(quarters[start]), batches, first, last, start)
                first = last

    def shapes(self, quarter: int, seeds: int, batch_size: int) -> Batch:
        """Returns the shapes, types and shardings of the batches `[S, BLOCK, B, …]` of a dispatch.

        `batch_size` counts the rows of a step before it is filled up.
        """
        rows = (seeds, BLOCK, batch_size + -batch_size % self._multiple)
        lengths = cut_lengths(self._spec, quarter)

        def lies(dtype: np.dtype, *tail: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(
                (*rows, *tail),
                jax.dtypes.canonicalize_dtype(dtype),
                sharding=self._layout.batch_sharding,
            )

        features, masks = (
            {m: lies(x.dtype, lengths[m], *x.shape[2:]) for m, x in of_split.items()}
            for of_split in (self._split.features, self._split.masks)
        )
        return Batch(
            features=features,
            masks=masks,
            labels=lies(np.float32, *self._labels.shape[1:]),
            row_weight=lies(np.float32),
            row=lies(np.int32),
        )

    def _in_turn(self, load, blocks: list[tuple[int, int]]) -> Iterator[Batch]:
        if self.corpus is not None:
            yield from (load(*block) for block in blocks)
            return
        # The order is given, and a run may go on at any step of it: a loader library would bring an
        # order and a state of its own.
        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            following = reader.submit(load, *blocks[0]) if blocks else None
            for i in range(len(blocks)):
                batches = following.result()
                if i + 1 < len(blocks):
                    following = reader.submit(load, *blocks[i + 1])
                yield batches

    def _load(self, quarter: int, indices: np.ndarray, weights: np.ndarray) -> Batch:
        """Loads batches `[S, BLOCK, B, …]`; every process reads those of its own devices."""
        row_weight = self._layout.assemble(weights.shape, weights.__getitem__)
        if self.corpus is not None:
            rows = self._layout.assemble(indices.shape, indices.__getitem__)
            return self._programs.gather(quarter, self.corpus, rows, row_weight)

        def rows_of(x: np.ndarray | OnDemand, steps: int | None = None) -> jax.Array:
            def read(part: tuple[slice, ...]) -> np.ndarray:
                rows = indices[part[:3]]
                found = x[rows.ravel()] if steps is None else x[rows.ravel(), :steps]
                return found.reshape(*rows.shape, *found.shape[1:])

            tail = x.shape[1:] if steps is None else (steps, *x.shape[2:])
            return self._layout.assemble((*indices.shape, *tail), read)

        lengths = cut_lengths(self._spec, quarter)
        return Batch(
            features={m: rows_of(x, lengths[m]) for m, x in self._split.features.items()},
            masks={m: rows_of(x, lengths[m]) for m, x in self._split.masks.items()},
            labels=rows_of(self._labels),
            row_weight=row_weight,
            row=self._layout.assemble(
                weights.shape, row_numbers(indices, weights, len(self._labels)).__getitem__
            ),
        )
