"""Makes the steps of sound that a pretrained encoder reads, of stored waveforms.

Stored sound is `[N, S, 1]` at 16 kHz, with a mask `[N, S]` or none. Prepared sound is
`[N, T, hop + 1]` float32: the `hop` samples of a step, as many as lie between two frames of the
encoder, and how many of them there are; and a mask that is True for every step with a sample.
Lengths, positions and quarters are counted in these steps. Sound is never standardised.
"""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from msajax.corpus.corpus import Split, describe_width
from msajax.corpus.steps import first_to_last, nonzero_steps, spans
from msajax.encoders.speech_architecture import SpeechArchitecture
from msajax.errors import UserError
from msajax.preparation.lost import count_hidden

_ROWS = 64  # samples looked at together


@dataclasses.dataclass(frozen=True)
class Steps:
    """Stands for the steps of stored waveforms: `steps[rows]` is an array of them."""

    stored: np.ndarray  # `[N, S, 1]`, as the corpus has it, on disk or in memory
    mask: np.ndarray | None  # `[N, S]` bool, True for samples that count; None if all do
    first: np.ndarray  # `[N]`, the first sample of each row that is read
    lengths: np.ndarray  # `[N]`, the number of samples that are read from there on
    hop: int  # samples of a step
    length: int  # steps of the longest row

    ndim = 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """Returns (N, T, hop + 1)."""
        return len(self.first), self.length, self.hop + 1

    @property
    def dtype(self) -> np.dtype:
        """Returns float32."""
        return np.dtype(np.float32)

    def __len__(self) -> int:
        """Returns the number of samples N."""
        return len(self.first)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Returns steps `[n, T, hop + 1]` float32 of some rows."""
        first, lengths = self.first[rows], self.lengths[rows]
        size = self.length * self.hop
        found = np.zeros((len(first), size), np.float32)
        for i, row in enumerate(np.arange(len(self))[rows]):
            part = slice(first[i], first[i] + lengths[i])
            samples = self.stored[row, part, 0]
            if self.mask is not None:  # a hole is silence
                samples = np.where(self.mask[row, part], samples, 0)
            found[i, : lengths[i]] = samples
        steps = found.reshape(len(first), self.length, self.hop)
        there = np.clip(lengths[:, None] - self.hop * np.arange(self.length), 0, self.hop)
        return np.concatenate([steps, there[..., None].astype(np.float32)], axis=2)


def read_waveforms(
    split: Split, architectures: Mapping[str, SpeechArchitecture], mask_from_zeros: bool
) -> tuple[Split, dict[str, dict[str, int]]]:
    """Makes steps of the waveforms of a split.

    A waveform is read from its first to its last sample that its mask, or where there is none a
    number that is not zero, says is there; holes between are silence. Padding is found of a file
    without masks if `mask_from_zeros`. A modality of `architectures` that the split lacks is passed
    over.

    Returns:
        The split with steps, and by modality counts by kind: samples that are not zero and that the
        mask of the file hides; waveforms that are encoded in parts of 30 seconds.

    Raises:
        UserError: for what is no waveform, and for one with a sample that is not finite.
    """
    here = [m for m in architectures if m in split.features]
    if not here:
        return split, {}
    features, masks, counts = dict(split.features), dict(split.masks), {}
    for m in here:
        require_waveform(split.where, m, split.features[m].shape)
        x, given = split.features[m], split.masks.get(m)
        if hidden := count_hidden(split, m):
            counts[m] = {"hidden_steps": hidden}
        first, lengths = np.zeros((2, len(split)), np.int64)
        for start in range(0, len(split), _ROWS):
            rows = slice(start, start + _ROWS)
            there = np.ones(x[rows].shape[:2], bool)
            if given is not None:
                there = given[rows]
            elif mask_from_zeros:
                there = first_to_last(nonzero_steps(x[rows]))
            first[rows], lengths[rows] = spans(there)
            finite = np.isfinite(x[rows]).all(axis=2) | ~there
            if not finite.all():
                row = start + int(np.flatnonzero(~finite.all(axis=1))[0])
                raise UserError(
                    f"{split.where}: the sound of {str(split.ids[row])!r} ({m}) has a sample that "
                    "is not a finite number."
                )
        hop = architectures[m].hop
        if in_parts := int((lengths > hop * architectures[m].most_steps).sum()):
            counts[m] = counts.get(m, {}) | {"in_parts": in_parts}
        steps = Steps(x, given, first, lengths, hop, max(1, -(-int(lengths.max()) // hop)))
        features[m] = steps
        masks[m] = np.arange(steps.length) < -(-lengths[:, None] // hop)
    # Their masks are ours: they hide nothing that is stored.
    derived = split.derived | set(here)
    return dataclasses.replace(split, features=features, masks=masks, derived=derived), counts


def require_waveform(where: str, modality: str, shape: Collection[int]) -> None:
    """Raises `UserError` unless features of this shape, `[N, S, 1]`, may be sound."""
    width = 0 if len(shape) == 2 else list(shape)[2]
    if width != 1:
        raise UserError(
            f"{where}: {modality} {describe_width(width)}, but its pretrained encoder reads sound: "
            "waveforms at 16 kHz, [N, S, 1] with a mask of their samples."
        )


def refuse_single_steps(split: Split, mask: np.ndarray, modality: str, length: int) -> None:
    """Refuses sound that is longer than a model's steps where it would be cut to single ones.

    Raises `UserError` for steps `[N, T]` of a modality, of which a row has more than `length`.
    """
    _, lengths = spans(mask)
    if (lengths > length).any():
        row = int(lengths.argmax())
        raise UserError(
            f"data.truncate = uniform: the sound of {str(split.ids[row])!r} ({modality}) has "
            f"{lengths[row]} steps, more than the model's {length}, and cannot be cut to single "
            "ones: choose first or last."
        )
