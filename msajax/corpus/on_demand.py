"""Prepares features as they are read, for corpora that do not fit into memory prepared."""

import dataclasses

import numpy as np

from msajax.corpus.corpus import Split, is_finite

# What is larger, after standardisation, is no measurement, and its square would leave float32.
LARGEST = 1e6
_BLOCK = 1 << 16  # numbers that are prepared at once: they stay in the processor's cache
_ROWS = 1024  # samples read at once, so that float64 copies stay small


@dataclasses.dataclass(frozen=True)
class OnDemand:
    """Stands for a modality's prepared features: `features[rows, :steps]` is an array of them."""

    stored: np.ndarray  # `[N, T', d]`, as the corpus has it, on disk or in memory
    source: np.ndarray  # `[N, T]`, which stored step each prepared step reads
    kept: np.ndarray  # `[N, T]` bool, True for a valid one
    # Mean and deviation, each `[d]` float64, of a standardised modality
    statistics: tuple[np.ndarray, np.ndarray] | None
    clip: float  # bound of standardised features, 0 for none
    # `[N]`, which stored sample each sample is; None if they are the same
    rows: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Returns (N, T, d)."""
        return (*self.kept.shape, self.stored.shape[2])

    @property
    def dtype(self) -> np.dtype:
        """Returns float32."""
        return np.dtype(np.float32)

    def __len__(self) -> int:
        """Returns the number of samples N."""
        return len(self.kept)

    def __getitem__(self, key: tuple[np.ndarray | slice, slice]) -> np.ndarray:
        """Returns features `[n, t, d]` float32 of some rows, and of steps from the first on."""
        rows, steps = key
        stored = self.stored[rows if self.rows is None else self.rows[rows]]
        chosen = dataclasses.replace(
            self, stored=stored, source=self.source[key], kept=self.kept[key], rows=None
        )
        out = np.empty(chosen.shape, np.float32)
        chosen.read_all(out)
        return out

    def read_all(self, out: np.ndarray | None) -> dict[str, int]:
        """Prepares all rows, into `out` `[N, T, d]` if given; counts what was repaired, by kind."""
        counts = {"non_finite": 0, "clipped": 0}
        samples, length, width = self.shape
        # Behind the last valid step of all samples is padding, which is not read.
        (used,) = np.logical_or.reduce(self.kept).nonzero()
        read = int(used[-1]) + 1 if used.size else 0
        if out is not None:
            out[:, read:] = 0
        block = max(1, _BLOCK // max(length * width, 1))  # rows at a time
        for start in range(0, samples, block):
            part = slice(start, start + block)
            x, source = self.stored[part], self.source[part, :read]
            if np.count_nonzero(source != np.arange(read)):
                x = np.take_along_axis(x, source[..., None], axis=1)
            else:
                x = x[:, :read]
            values = None if out is None else out[part, :read]
            self._prepare(x, self.kept[part, :read], values, counts)
        return counts

    def _prepare(
        self, x: np.ndarray, kept: np.ndarray, out: np.ndarray | None, counts: dict[str, int]
    ) -> None:
        """Prepares a block of steps, into `out` if given, and adds to the counts."""
        if self.statistics is not None:
            mean, deviation = self.statistics
            values = np.subtract(x, mean, dtype=np.float64)
            values /= deviation
        else:  # float32 is what comes out, so it needs no copy
            values = x if x.dtype == np.float32 else x.astype(np.float64)
        largest = np.maximum.reduce(np.abs(values), axis=None, initial=0)
        if not largest <= LARGEST:  # or NaN
            usable = np.abs(values) <= LARGEST
            counts["non_finite"] += int((~usable & kept[..., None]).sum())
            values = np.where(usable, values, 0)
            largest = LARGEST
        # The bound is in deviations, so it holds for standardised features alone.
        if self.statistics is not None and 0 < self.clip < largest:
            beyond = np.abs(values) > self.clip
            counts["clipped"] += int((beyond & kept[..., None]).sum())
            np.clip(values, -self.clip, self.clip, out=values)
        if out is None:
            return
        out[:] = values
        if np.count_nonzero(kept) < kept.size:
            out[~kept] = 0


def take_rows(split: Split, chosen: np.ndarray) -> Split:
    """Returns samples of a split, by `[N]` bool or by number; what streams still streams."""
    if chosen.dtype == bool and chosen.all():
        return split
    rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
    features = {}
    for m, x in split.features.items():
        if isinstance(x, OnDemand):
            stored = rows if x.rows is None else x.rows[rows]
            features[m] = dataclasses.replace(
                x, source=x.source[rows], kept=x.kept[rows], rows=stored
            )
        else:
            features[m] = x[rows]
    names = ("ids", "labels", "raw_text", "words", "segments", "pieces", "word_origin")
    arrays = {name: getattr(split, name) for name in names}
    return dataclasses.replace(
        split,
        features=features,
        masks={m: mask[rows] for m, mask in split.masks.items()},
        times={m: times[rows] for m, times in split.times.items()},
        **{name: None if x is None else x[rows] for name, x in arrays.items()},
    )


def streams(split: Split) -> bool:
    """Says whether a prepared split is read from the host as it is needed."""
    return any(isinstance(x, OnDemand) for x in split.features.values())


def moments(x: np.ndarray | OnDemand, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes mean and ddof-0 deviation `[d]` float64, over finite values of valid steps.

    A feature without spread gets deviation 1, and one without any finite value mean 0.
    """
    count = np.zeros(x.shape[2])
    total, squares = np.zeros(x.shape[2]), np.zeros(x.shape[2])
    blocks = [slice(start, start + _ROWS) for start in range(0, len(mask), _ROWS)]

    def finite_values(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        values = x[rows, :][mask[rows]].astype(np.float64)  # [valid steps, width]
        return values, is_finite(values)

    for rows in blocks:
        values, finite = finite_values(rows)
        count += finite.sum(axis=0)
        total += np.where(finite, values, 0).sum(axis=0)
    mean = total / np.maximum(count, 1)
    for rows in blocks:
        values, finite = finite_values(rows)
        squares += np.square(np.where(finite, values - mean, 0)).sum(axis=0)
    deviation = np.sqrt(squares / np.maximum(count, 1))
    # Rounding leaves a constant column a deviation of about 1e-16 times its size.
    constant = deviation <= 1e-7 * np.maximum(np.abs(mean), 1e-7)
    return mean, np.where(constant, 1.0, deviation)
