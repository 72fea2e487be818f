"""Makes the embedded corpora: the same settings give the same bytes.

sentiment: every sample has a score and, per modality, a reliability in [0.1, 1] that sets
    how much noise hides the score. A third of a modality's steps carry the score along one
    direction, and say so along another; the others carry a random score that a model must learn to
    pass over. Sequences have random lengths, padding on the side that is usual for the modality,
    and some modalities are absent.

sign, stress: the score needs what two modalities say at the same step. Both are noise but for
    column 0: the first one's is a valence `v_t ~ N(0, 1)` at every step, the second one's says
    which valence counts, and how. Alone, no modality says anything about a sign score; of a stress
    score the valences know a little, the stress nothing.

        sign:   a sign s_t = +-1 at every step;     y = 1.2 sum_t v_t s_t / sqrt(T)
        stress: 3 at one random step k, else noise; y = 1.2 v_k

connectome: EEG bands of people in three groups. A time step is a frequency band. Its first four
    features are the band's edges (Hz), the person's age (years) and gender (0 or 1), as
    `model.positions = drofe` reads them; the others stand for the band's connectivity. Each group
    differs from the controls in a few bands. Age and gender shift every band as well, so that a
    model must tell the one from the other.
"""

import dataclasses
import zlib

import numpy as np

from msajax.config import SYNTHETIC, SyntheticConfig
from msajax.corpus.corpus import SPLITS, Corpus, Source, Split
from msajax.corpus.in_memory import corpus_of

GROUPS = ("control", "group_a", "group_b")
DEMOGRAPHICS = 4  # lo, hi, age, gender

_WORDS = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima".split()
_STRESS = 3.0
_FEATURE_NOISE = 0.3
_LABEL_NOISE = 0.1
_SCALE = 1.2
_BANDS_PER_GROUP = 2  # in which a group differs
_EFFECT, _NOISE = 0.5, 1.0


@dataclasses.dataclass(frozen=True)
class SyntheticCorpus:
    """Holds the corpus, and what only its maker knows."""

    corpus: Corpus
    # `{split: {modality: [N]}}` in [0.1, 1]; 0 where the modality is absent. The task sentiment
    # alone has it.
    reliability: dict[str, dict[str, np.ndarray]]
    # `{split: [N]}`, scores without the noise on them; of sign and stress alone
    clean: dict[str, np.ndarray]


def generate(config: SyntheticConfig) -> SyntheticCorpus:
    """Makes the corpus that `config` sizes; the same settings give the same bytes."""
    splits, reliability, clean = {}, {}, {}
    for name in SPLITS:
        if config.task == "connectome":
            splits[name] = _make_connectome(name, config)
        elif config.task in ("sign", "stress"):
            splits[name], clean[name] = _make_coincidence(name, config)
        else:
            splits[name], reliability[name] = _make_split(name, config)
    groups = GROUPS if config.task == "connectome" else ()
    corpus = corpus_of(
        splits,
        source=Source(SYNTHETIC, "embedded synthetic corpus"),
        label_names=groups,
        integers=bool(groups),
        # Of sentiment, every modality has a clock of its own.
        aligned=config.modalities if clean else (),
    )
    return SyntheticCorpus(corpus, reliability, clean)


def _make_split(name: str, config: SyntheticConfig) -> tuple[Split, dict[str, np.ndarray]]:
    size = getattr(config, name)
    rng = _generator(config, name)
    # Scores like means of five annotators: two-humped, in [-3, 3], multiples of 0.2.
    hump = np.where(rng.random(size) < 0.55, 1.2, -1.2)
    labels = np.round(np.clip(rng.normal(hump, 1.0), -3, 3) * 5) / 5 + 0.0  # no -0.0
    absent = rng.random((size, len(config.modalities))) < config.absent_share
    absent[absent.all(axis=1), rng.integers(len(config.modalities))] = False
    features, masks, reliability = {}, {}, {}
    for k, m in enumerate(config.modalities):
        features[m], masks[m], reliability[m] = _make_modality(
            config, k, name, labels, absent[:, k]
        )
    return (
        Split(
            ids=np.array([f"{name}{i // 10:04d}_{i % 10}" for i in range(size)]),
            features=features,
            masks=masks,
            labels=labels[:, None],
            raw_text=np.array([" ".join(rng.choice(_WORDS, 5)) for _ in range(size)]),
        ),
        reliability,
    )


def _make_modality(
    config: SyntheticConfig, k: int, split: str, labels: np.ndarray, absent: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes modality number `k` of a split with scores `[N]`; samples that are `absent` lack it.

    Returns:
        Features `[N, T, d]` float32, their mask `[N, T]` and their reliability `[N]`.
    """
    modality, width, length = config.modalities[k], config.widths[k], config.lengths[k]
    shared = _generator(config, modality)  # the same directions in every split
    score_direction, mark_direction = shared.normal(size=(2, width))
    offset, scale = shared.normal(size=width), np.exp(shared.normal(size=width))
    rng = _generator(config, split, modality)
    size = len(labels)

    reliability = np.where(absent, 0.0, rng.uniform(0.1, 1.0, size))
    carries = rng.random((size, length)) < 1 / 3  # [N, T]
    shown = np.where(carries, labels[:, None], rng.permutation(labels)[:, None])  # [N, T]
    noise = rng.normal(size=(size, length, width)) * (1.1 - reliability)[:, None, None]
    x = 0.5 * (
        reliability[:, None, None] * shown[..., None] * score_direction
        + np.where(carries, 1.0, -1.0)[..., None] * mark_direction
    )
    x = x + noise
    if modality != "text":  # like real acoustic and visual features: every scale is another
        x = x * scale + offset

    drawn = rng.integers((length + 1) // 2, length + 1, size)
    # One full sequence in every split, so that none is longer than the longest in train.
    full = np.argmin(absent)
    drawn[full] = length
    lengths = np.where(absent, 0, drawn)
    steps = np.arange(length)
    if modality == "text":  # leading padding
        mask = steps[None, :] >= length - lengths[:, None]
    else:  # trailing padding
        mask = steps[None, :] < lengths[:, None]
    holes = (rng.random((size, length)) < 0.05) & (rng.random(size) < 0.2)[:, None]
    holes[full] = False
    holes[(mask <= holes).all(axis=1)] = False  # never the last valid step
    mask = mask & ~holes
    x = np.where(mask[..., None], x, 0).astype(np.float32)
    return x, mask, reliability


def _make_coincidence(name: str, config: SyntheticConfig) -> tuple[Split, np.ndarray]:
    """Makes a split of the task sign or stress, and its scores without noise `[N]`."""
    size, steps = getattr(config, name), config.lengths[0]
    rng = _generator(config, config.task, name)
    first, second = (rng.normal(0, _FEATURE_NOISE, (size, steps, width)) for width in config.widths)
    first[..., 0] = valence = rng.normal(size=(size, steps))
    if config.task == "sign":
        second[..., 0] = sign = rng.choice([-1.0, 1.0], (size, steps))
        clean = _SCALE * (valence * sign).sum(axis=1) / np.sqrt(steps)
    else:
        rows, stressed = np.arange(size), rng.integers(0, steps, size)
        second[rows, stressed, 0] = _STRESS
        clean = _SCALE * valence[rows, stressed]
    labels = np.clip(clean + rng.normal(0, _LABEL_NOISE, size), -3, 3)
    features = dict(zip(config.modalities, (first, second), strict=True))
    return (
        Split(
            ids=np.array([f"{name}{i:06d}" for i in range(size)]),
            features={m: x.astype(np.float32) for m, x in features.items()},
            masks={m: np.ones((size, steps), bool) for m in config.modalities},
            labels=labels[:, None],
        ),
        np.clip(clean, -3, 3),
    )


def _make_connectome(name: str, config: SyntheticConfig) -> Split:
    (modality,), (width,), (bands,) = config.modalities, config.widths, config.lengths
    size, channels = getattr(config, name), width - DEMOGRAPHICS
    shared = _generator(config, modality)  # the same effects in every split
    usual, of_age, of_gender = 0.3 * shared.normal(size=(3, bands, channels))
    effects = np.zeros((len(GROUPS), bands, channels))
    for effect in effects[1:]:
        changed = shared.permutation(bands)[:_BANDS_PER_GROUP]
        effect[changed] = _EFFECT * shared.normal(size=(len(changed), channels))

    rng = _generator(config, name, modality)
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


def _generator(config: SyntheticConfig, *purpose: str) -> np.random.Generator:
    """Returns random numbers of an embedded corpus, a stream of their own for every purpose."""
    words = [zlib.crc32(word.encode()) for word in purpose]
    return np.random.Generator(np.random.PCG64([config.seed, *words]))
