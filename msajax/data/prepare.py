"""From a split as stored to what a model reads: the one place, for every mode.

In this order: masks (the file's own, else derived from zeros), standardisation with statistics of
the valid training steps, values that are not finite or beyond 1e6 to 0, clipping, compaction (the
first valid step moves to 0, holes inside stay), truncation, zeros under the mask.
"""

import dataclasses
import logging
from collections.abc import Mapping

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.data.corpus import Corpus, Split
from msajax.errors import UserError
from msajax.spec import CorpusSpec

logger = logging.getLogger(__name__)

# What is larger, after standardisation, is no measurement, and its square would leave float32.
LARGEST_FEATURE = 1e6

_ROWS = 1024  # samples standardised at once, so that float64 copies stay small


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Everything that preparing a split needs; it travels in the bundle.

    Attributes:
        spec: modalities, widths and lengths after preparation.
        statistics: `{modality: (mean, deviation)}`, each `[d]` float64, of standardised ones.
        clip: bound of standardised features, 0 for none.
        truncate: error, first, last or uniform.
        mask_from_zeros: whether masks that a file lacks are derived from zero steps.
    """

    spec: CorpusSpec
    statistics: Mapping[str, tuple[np.ndarray, np.ndarray]]
    clip: float
    truncate: str
    mask_from_zeros: bool


def fit(corpus: Corpus, data: DataConfig, model: ModelConfig) -> Preparation:
    """Chooses the run's modalities and measures them on the training split alone.

    Raises:
        UserError: for a modality that the corpus lacks, a training split without a valid step, or
            dRoFE positions of a modality that is standardised.
    """
    train = corpus.split("train")
    wanted = model.modalities or corpus.modalities
    for key, names in (("model.modalities", wanted), ("data.standardize", data.standardize)):
        for m in names:
            if m not in corpus.modalities and not (key == "data.standardize" and m == "auto"):
                raise UserError(
                    f"{key} names {m!r}, which {corpus.path} does not have: "
                    f"it has {', '.join(corpus.modalities)}."
                )
    masks = {m: step_mask(train, m, data.mask_from_zeros) for m in wanted if m in train.features}
    used = tuple(m for m in wanted if m in masks and masks[m].any())
    for m in wanted:
        if m not in used:
            logger.warning(
                "Modality %r has no valid training step; the model leaves it out in every split.",
                m,
            )
    if not used:
        raise UserError(f"{corpus.path}: no modality has a valid training step.")

    longest = {m: spans(masks[m])[1].max() for m in used}
    spec = CorpusSpec(
        modalities=used,
        widths=tuple(corpus.width(m) for m in used),
        lengths=tuple(model.max_len or int(longest[m]) for m in used),
        label_names=corpus.headers["train"].label_names,
    )
    standardized = [
        m for m in used if m in data.standardize or ("auto" in data.standardize and m != "text")
    ]
    for m in standardized:
        if model.encoder_of(m).positions == "drofe":
            raise UserError(
                f"data.standardize = {data.standardize!r} covers {m!r}, whose first features "
                "model.positions = 'drofe' reads in Hz and years: name the modalities to "
                f"standardise without {m!r}, or none."
            )
    return Preparation(
        spec=spec,
        statistics={m: _moments(train.features[m], masks[m]) for m in standardized},
        clip=data.clip,
        truncate=data.truncate,
        mask_from_zeros=data.mask_from_zeros,
    )


def prepare(split: Split, preparation: Preparation) -> tuple[Split, dict[str, dict[str, int]]]:
    """Makes a split ready for the model.

    Args:
        split: as read.
        preparation: from `fit`, or from a bundle.

    Returns:
        A split whose features are `{modality: [N, length_m, d_m]}` float32 in the specification's
        order, with a mask for each; and the repairs made, `{modality: {kind: count}}`.

    Raises:
        UserError: for a wrong width, or a sequence longer than its table unless truncation is on.
    """
    spec = preparation.spec
    features, masks, repairs = {}, {}, {}
    for m in spec.modalities:
        if m not in split.features:
            features[m] = np.zeros((len(split), spec.length(m), spec.width(m)), np.float32)
            masks[m] = np.zeros(features[m].shape[:2], bool)
            continue
        x = split.features[m]
        if x.shape[2] != spec.width(m):
            raise UserError(
                f"Modality {m!r} is {x.shape[2]} wide here, but the model was trained on "
                f"{spec.width(m)} features."
            )
        mask = step_mask(split, m, preparation.mask_from_zeros)
        source, kept = _compaction(mask, spec.length(m), preparation.truncate, m, split.ids)
        out = np.zeros((len(split), spec.length(m), spec.width(m)), np.float32)
        counts = dict.fromkeys(("non_finite", "clipped"), 0)
        for start in range(0, len(split), _ROWS):
            rows = slice(start, start + _ROWS)
            values = np.take_along_axis(
                x[rows].astype(np.float64), source[rows, :, None], axis=1
            )  # [rows, length, width]
            if m in preparation.statistics:
                mean, deviation = preparation.statistics[m]
                values = (values - mean) / deviation
            usable = np.abs(values) <= LARGEST_FEATURE  # False for NaN
            counts["non_finite"] += int((~usable & kept[rows, :, None]).sum())
            values = np.where(usable & kept[rows, :, None], values, 0)
            if m in preparation.statistics and preparation.clip:
                counts["clipped"] += int((np.abs(values) > preparation.clip).sum())
                values = values.clip(-preparation.clip, preparation.clip)
            out[rows] = values
        features[m], masks[m] = out, kept
        if any(counts.values()):
            repairs[m] = counts
    return dataclasses.replace(split, features=features, masks=masks), repairs


def check_lengths(corpus: Corpus, preparation: Preparation) -> None:
    """Refuses, before any training, a split that could not be prepared after it.

    Where a header alone leaves the question open, which steps of the split are valid answers it:
    its mask or, without one, whether its features are zero. Nothing is kept.

    Raises:
        UserError: naming the modality, a sample and the way out.
    """
    if preparation.truncate != "error":
        return
    for name, header in corpus.headers.items():
        too_long = [
            m
            for m in preparation.spec.modalities
            if m in header.shapes and header.shapes[m][0] > preparation.spec.length(m)
        ]
        if too_long:
            split = corpus.split(name)
            for m in too_long:
                mask = step_mask(split, m, preparation.mask_from_zeros)
                _compaction(mask, preparation.spec.length(m), "error", m, split.ids)


def step_mask(split: Split, modality: str, mask_from_zeros: bool) -> np.ndarray:
    """The valid steps `[N, T]` of one modality: the split's own mask, or derived from the features.

    Derived: valid from the first to the last step that holds a non-zero value (NaN counts as one),
    zero steps between them included.
    """
    if modality in split.masks:
        return split.masks[modality]
    x = split.features[modality]
    if not mask_from_zeros:
        return np.ones(x.shape[:2], bool)
    first, lengths = spans(x.any(axis=2))  # unlike x != 0, without a copy of that size
    steps = np.arange(x.shape[1])[None, :]
    return (steps >= first[:, None]) & (steps < (first + lengths)[:, None])


def is_finite(values: np.ndarray) -> np.ndarray:
    """Whether float64 values are finite, and will be as float32."""
    return np.abs(values) <= np.finfo(np.float32).max


def spans(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First valid step and length up to the last one, per row of `[N, T]`; (0, 0) without any."""
    first = mask.argmax(axis=1)
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return first, np.where(mask.any(axis=1), last - first + 1, 0)


def _compaction(
    mask: np.ndarray, length: int, truncate: str, modality: str, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which stored step each prepared step reads, `[N, length]`, and which of those are valid."""
    first, lengths = spans(mask)
    too_long = np.flatnonzero(lengths > length)
    if too_long.size and truncate == "error":
        row = too_long[0]
        raise UserError(
            f"{too_long.size} sequence(s) of modality {modality!r} are longer than the model's "
            f"{length} steps, the first that of {str(ids[row])!r} with {lengths[row]}: "
            "train with data.truncate = first, last or uniform, or with a larger model.max_len."
        )
    step = np.arange(length)[None, :]
    source = first[:, None] + step  # [N, length]
    end = first + lengths
    if truncate == "last" and too_long.size:
        # Begin at the first valid step inside the last `length` ones.
        late = mask & (np.arange(mask.shape[1])[None, :] >= (end - length)[:, None])
        source = late.argmax(axis=1)[:, None] + step
    elif truncate == "uniform" and too_long.size:
        spread = np.round(step * (lengths[:, None] - 1) / max(length - 1, 1)).astype(int)
        source = np.where((lengths > length)[:, None], first[:, None] + spread, source)
    inside = source < end[:, None]
    source = np.minimum(source, mask.shape[1] - 1)
    return source, inside & np.take_along_axis(mask, source, axis=1)


def _moments(x: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and ddof-0 deviation per feature in float64, over finite values of valid steps.

    A feature without spread gets deviation 1, and one without any finite value mean 0.
    """
    count = np.zeros(x.shape[2])
    total, squares = np.zeros(x.shape[2]), np.zeros(x.shape[2])
    blocks = [slice(start, start + _ROWS) for start in range(0, len(x), _ROWS)]

    def finite_values(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        values = x[rows][mask[rows]].astype(np.float64)  # [valid steps, width]
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
