"""Features that are prepared as they are read, for corpora that do not fit into memory prepared."""

import dataclasses

import numpy as np

# What is larger, after standardisation, is no measurement, and its square would leave float32.
LARGEST_FEATURE = 1e6


@dataclasses.dataclass(frozen=True)
class OnDemand:
    """One modality of a split. `features[rows, :steps]` is an array, as of one that is prepared.

    Attributes:
        stored: `[N, T', d]`, as the corpus has it, on disk or in memory.
        source: `[N, T]`, which stored step each prepared step reads.
        kept: `[N, T]` bool, the valid ones.
        statistics: mean and deviation, each `[d]` float64, of a standardised modality.
        clip: bound of standardised features, 0 for none.
    """

    stored: np.ndarray
    source: np.ndarray
    kept: np.ndarray
    statistics: tuple[np.ndarray, np.ndarray] | None
    clip: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, T, d)."""
        return (*self.kept.shape, self.stored.shape[2])

    def __len__(self) -> int:
        """The number of samples N."""
        return len(self.kept)

    def __getitem__(self, key: tuple[np.ndarray | slice, slice]) -> np.ndarray:
        """Prepared features `[n, t, d]` float32 of some rows, and of steps from the first on."""
        return self.read(*key)[0]

    def read(self, rows: np.ndarray | slice, steps: slice) -> tuple[np.ndarray, dict[str, int]]:
        """Prepares rows; also counts what was repaired in them, by kind."""
        source, kept = self.source[rows, steps, None], self.kept[rows, steps, None]
        values = np.take_along_axis(self.stored[rows].astype(np.float64), source, axis=1)
        if self.statistics is not None:
            mean, deviation = self.statistics
            values = (values - mean) / deviation
        usable = np.abs(values) <= LARGEST_FEATURE  # False for NaN
        counts = {"non_finite": int((~usable & kept).sum()), "clipped": 0}
        values = np.where(usable & kept, values, 0)
        if self.statistics is not None and self.clip:
            counts["clipped"] = int((np.abs(values) > self.clip).sum())
            values = values.clip(-self.clip, self.clip)
        return values.astype(np.float32), counts
