"""Disturbs prepared splits: hides modalities and single steps, and adds noise to features.

What is drawn follows PCG64 over the samples of a split in their order, before it is cut into
batches. Of one draw, what a smaller rate hides a larger one hides too.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from msajax.corpus.corpus import Split
from msajax.corpus.on_demand import OnDemand
from msajax.encoders.tokens import NOTHING
from msajax.preparation.pieces import mark
from msajax.spec import CorpusSpec


def hide_modalities(split: Split, modalities: Collection[str], rows: np.ndarray) -> Split:
    """Hides all steps of some modalities in some rows `[N]` bool, as if they were not there."""
    return _hide(split, {m: split.masks[m] & ~rows[:, None] for m in modalities})


def drop_steps(split: Split, spec: CorpusSpec, modality: str, rate: float, draw: int) -> Split:
    """Hides a share of the valid steps of a modality; what is left keeps its place.

    A step of a pretrained encoder's text is a piece, or where pieces are pooled a word with all its
    pieces. Special pieces, such as [CLS], stay as long as any other piece of the sample does.

    Args:
        rate: the share of the split's valid steps.
    """
    step, valid = steps_of(split, spec, modality)
    drawn = _generator(draw, spec.modalities.index(modality)).random(valid.shape)
    hidden = np.zeros(valid.shape, bool)
    hidden[valid] = smallest(drawn[valid], rate)
    ordinary = step >= 0  # of special pieces, and of padding, the step is -1
    gone = ordinary & np.take_along_axis(hidden, np.maximum(step, 0), axis=1)
    kept = split.masks[modality] & ~gone
    return _hide(split, {modality: kept & (kept & ordinary).any(axis=1)[:, None]})


def steps_of(split: Split, spec: CorpusSpec, modality: str) -> tuple[np.ndarray, np.ndarray]:
    """Finds the steps that can be hidden one by one.

    Returns:
        The step `[N, T]` that each position is of, -1 for none; and `[N, W]`, which of the steps 0
        to W - 1 there are.
    """
    mask = split.masks[modality]
    if not spec.is_pieces(modality):
        return np.where(mask, np.arange(mask.shape[1]), -1), mask
    step = np.where(mask, split.features[modality][..., 2], -1)
    words = max(mask.shape[1], int(step.max(initial=0)) + 1)
    return step, mark(step, step >= 0, words)


def smallest(drawn: np.ndarray, share: float) -> np.ndarray:
    """Finds the smallest share of `[n]` numbers: round(share * n) of them are True."""
    found = np.zeros(drawn.shape, bool)
    found[np.argsort(drawn, kind="stable")[: round(share * drawn.size)]] = True
    return found


def drawn_rows(samples: int, share: float, draw: int, modalities: Sequence[int]) -> np.ndarray:
    """Draws a share of the samples `[N]` bool, in which modalities of these numbers are lost."""
    return smallest(_generator(draw, *modalities).random(samples), share)


def add_noise(
    split: Split, spec: CorpusSpec, modality: str, deviation: np.ndarray, draw: int
) -> Split:
    """Adds normal noise to the features of valid steps, drawn sample by sample.

    Args:
        modality: one with features, no token ids.
        deviation: `[d]`, the size of the noise.
    """
    noisy = _Noisy(
        split.features[modality],
        split.masks[modality],
        deviation.astype(np.float32),
        (draw, spec.modalities.index(modality)),
    )
    return dataclasses.replace(split, features={**split.features, modality: noisy})


@dataclasses.dataclass(frozen=True)
class _Noisy:
    """Stands for features with noise: `noisy[rows, :steps]` is an array of them.

    Attributes:
        features: `[N, T, d]`, prepared.
        mask: `[N, T]`, the valid steps.
        deviation: `[d]` float32, the size of the noise.
        key: seeds a sample's noise, with the number of the sample.
    """

    features: np.ndarray | OnDemand
    mask: np.ndarray
    deviation: np.ndarray
    key: tuple[int, int]

    def __getitem__(self, key: tuple[np.ndarray | slice, slice]) -> np.ndarray:
        """Returns features `[n, t, d]` float32 of some rows, and of steps from the first on."""
        rows, steps = key
        x = self.features[rows, steps].copy()
        mask = self.mask[rows, steps]
        for i, row in enumerate(np.arange(len(self.mask))[rows]):
            # Steps are drawn from the first on: where a batch is cut changes none of them.
            noise = _generator(*self.key, row).standard_normal(x.shape[1:], np.float32)
            x[i] += np.where(mask[i][:, None], noise * self.deviation, 0)
        return x


def _generator(draw: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([draw, *key]))


def _hide(split: Split, kept: Mapping[str, np.ndarray]) -> Split:
    """Replaces masks `[N, T]` by smaller ones; what they hide becomes what padding is."""
    features = dict(split.features)
    for m, mask in kept.items():
        x = features[m]
        if isinstance(x, OnDemand):
            features[m] = dataclasses.replace(x, kept=mask)
            continue
        features[m] = x.copy()
        are_pieces = x.ndim == 3 and np.issubdtype(x.dtype, np.integer)
        features[m][~mask] = NOTHING if are_pieces else 0
    return dataclasses.replace(split, features=features, masks={**split.masks, **kept})
