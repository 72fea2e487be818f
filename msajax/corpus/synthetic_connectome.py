"""Makes the embedded connectome corpus: EEG bands of people in three groups.

A time step is a frequency band. Its first four features are the band's edges (Hz), the person's age
(years) and gender (0 or 1), as `model.positions = drofe` reads them; the others stand for the
band's connectivity. Each group differs from the controls in a few bands. Age and gender shift every
band as well, so that a model must tell the one from the other.
"""

import zlib

import numpy as np

from msajax.config import SyntheticConfig
from msajax.corpus.corpus import Split

GROUPS = ("control", "group_a", "group_b")
DEMOGRAPHICS = 4  # lo, hi, age, gender
_BANDS_PER_GROUP = 2  # in which a group differs
_EFFECT, _NOISE = 0.5, 1.0


def make_split(name: str, config: SyntheticConfig) -> Split:
    """Makes a split; the same settings give the same bytes.

    Args:
        name: of the split.
        config: one modality of `widths[0]` features, `lengths[0]` bands.
    """
    (modality,), (width,), (bands,) = config.modalities, config.widths, config.lengths
    size, channels = getattr(config, name), width - DEMOGRAPHICS
    shared = generator(config, modality)  # the same effects in every split
    usual, of_age, of_gender = 0.3 * shared.normal(size=(3, bands, channels))
    effects = np.zeros((len(GROUPS), bands, channels))
    for effect in effects[1:]:
        changed = shared.permutation(bands)[:_BANDS_PER_GROUP]
        effect[changed] = _EFFECT * shared.normal(size=(len(changed), channels))

    rng = generator(config, name, modality)
    group = rng.integers(0, len(GROUPS), size)
    age, gender = rng.uniform(18, 90, size), rng.integers(0, 2, size)
    connectivity = usual + effects[group] + _NOISE * rng.normal(size=(size, bands, channels))
    connectivity += ((age - 54) / 21)[:, None, None] * of_age
    connectivity += (gender - 0.5)[:, None, None] * of_gender

    edges = np.geomspace(1, 45, bands + 1)
    x = np.empty((size, bands, width), np.float32)
    x[..., 0], x[..., 1] = edges[:-1], edges[1:]
    x[..., 2], x[..., 3] = age[:, None], gender[:, None]
    x[..., DEMOGRAPHICS:] = connectivity
    return Split(
        ids=np.array([f"{name}{i:05d}" for i in range(size)]),
        features={modality: x},
        masks={modality: np.ones((size, bands), bool)},
        labels=group[:, None].astype(np.float64),
    )


def generator(config: SyntheticConfig, *purpose: str) -> np.random.Generator:
    """Returns random numbers of an embedded corpus, a stream of their own for every purpose."""
    words = [zlib.crc32(word.encode()) for word in purpose]
    return np.random.Generator(np.random.PCG64([config.seed, *words]))
