"""From a split as stored to what a model reads: the one place, for every mode.

Features, in this order: masks (the file's own, else derived from zeros), standardisation with
statistics of the valid training steps, values that are not finite or beyond 1e6 to 0, clipping,
compaction and truncation (see `steps.py`), zeros under the mask. Token ids: masks, ids that the
vocabulary lacks become padding, compaction, truncation. Labels: see `labels.py`.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.data.corpus import Corpus, Split, is_finite, modality_order
from msajax.data.labels import as_targets, label_kind
from msajax.data.lost import (
    count_lost,
    count_without_any,
    nothing_read,
    require_little_lost,
)
from msajax.data.on_demand import OnDemand
from msajax.data.steps import (
    Groups,
    choose_steps,
    find_groups,
    has_row,
    movers,
    nonzero_steps,
    spans,
    step_mask,
    union,
    valid_steps,
)
from msajax.data.vocabulary import build_vocabulary, read_words
from msajax.errors import UserError
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)

MOST_TOKENS = 10**6  # rows of an embedding table

_ROWS = 1024  # samples standardised at once, so that float64 copies stay small

Chosen = dict[str, tuple[np.ndarray, np.ndarray]]
"""By modality, which stored step each prepared step reads, and which are valid: `choose_steps`."""


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Everything that preparing a split needs; it travels in the bundle.

    Attributes:
        spec: modalities, widths and lengths after preparation.
        classes: the stored whole numbers that stand for the classes, in the order of their names;
            () for one-hot labels and for all that are no classes.
        statistics: `{modality: (mean, deviation)}`, each `[d]` float64, of standardised ones.
        clip: bound of standardised features, 0 for none.
        truncate: error, first, last or uniform.
        mask_from_zeros: whether masks that a file lacks are derived from zero steps.
        words: the vocabulary by which transcripts become the text modality; () where they do not.
        groups: modalities that share their steps, and are shifted and cut as one.
        allow_loss: whether a split is prepared although much of it is lost (see `lost.py`).
    """

    spec: CorpusSpec
    classes: tuple[int, ...]
    statistics: Mapping[str, tuple[np.ndarray, np.ndarray]]
    clip: float
    truncate: str
    mask_from_zeros: bool
    words: tuple[str, ...] = ()
    groups: Groups = ()
    allow_loss: bool = False

    def __repr__(self) -> str:
        standardized = ", ".join(self.statistics) or "none"
        return f"Preparation({self.spec.describe()}; standardised: {standardized})"


def fit(corpus: Corpus, data: DataConfig, model: ModelConfig) -> Preparation:
    """Chooses the run's modalities and measures them on the training split alone.

    Raises:
        UserError: for a modality that the corpus lacks, a training split without a valid step,
            modalities that cannot be aligned as `data.alignment` says, dRoFE positions of a
            modality that is standardised, or one that would be lost as a whole.
    """
    train, words = corpus.split("train"), ()
    there = set(corpus.modalities)
    if data.text == "words":
        if train.raw_text is None:
            raise UserError(f"data.text = words: {corpus.path} has no raw_text in train.")
        words = build_vocabulary(train.raw_text, data.min_count)
        train, there = read_words(train, words), there | {"text"}
    if data.text == "ids" and ("text" not in train.features or train.features["text"].ndim != 2):
        raise UserError(f"data.text = ids: {corpus.path} has no token ids as text in train.")
    wanted = model.modalities or modality_order(there)
    for key, names in (("model.modalities", wanted), ("data.standardize", data.standardize)):
        for m in names:
            if m not in there and not (key == "data.standardize" and m == "auto"):
                raise UserError(
                    f"{key} names {m!r}, which {corpus.path} does not have: "
                    f"it has {', '.join(modality_order(there))}."
                )
    masks = {m: valid_steps(train, m, data.mask_from_zeros) for m in wanted if m in train.features}
    used = tuple(m for m in wanted if m in masks and masks[m].any())
    for m in wanted:
        if m not in used:
            if m in train.features:
                require_little_lost(train.where, nothing_read(train, m), data.allow_loss)
            logger.warning(
                "Modality %r has no valid training step; the model leaves it out in every split.",
                m,
            )
    if not used:
        raise UserError(f"{corpus.path}: no modality has a valid training step.")

    tokens = [m for m in used if train.features[m].ndim == 2]
    sizes = {m: int(train.features[m][masks[m]].max()) + 1 for m in tokens}
    if data.text == "words" and "text" in sizes:
        sizes["text"] = len(words)
    for m, size in sizes.items():
        if size > MOST_TOKENS:
            raise UserError(
                f"{corpus.path}: token ids of {m!r} reach {size - 1}; an embedding table has "
                f"{MOST_TOKENS} rows at most."
            )
    labels = label_kind(corpus, model)
    groups, _ = find_groups(corpus, used, data)
    longest = {}
    for members in movers(used, groups):
        length = int(spans(union(masks[m] for m in members))[1].max())
        longest |= dict.fromkeys(members, length)
    spec = CorpusSpec(
        modalities=used,
        widths=tuple(0 if m in tokens else corpus.width(m) for m in used),
        lengths=tuple(model.max_len or longest[m] for m in used),
        label_kind=labels.kind,
        label_names=labels.names,
        vocabularies=tuple(sizes.get(m, 0) for m in used) if tokens else (),
    )
    for m in tokens:
        if m in data.standardize:
            raise UserError(f"data.standardize names {m!r}, whose token ids have no deviation.")
    if spec.label_kind == "classification":
        _check_classes(corpus.path, as_targets(train.labels, spec, labels.classes), spec)
    standardized = [
        m
        for m in used
        if m in data.standardize
        or ("auto" in data.standardize and m != "text" and m not in tokens)
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
        classes=labels.classes,
        statistics={m: _moments(train.features[m], masks[m]) for m in standardized},
        clip=data.clip,
        truncate=data.truncate,
        mask_from_zeros=data.mask_from_zeros,
        words=words,
        groups=groups,
        allow_loss=data.allow_loss,
    )


def _check_classes(path: str, targets: np.ndarray | None, spec: CorpusSpec) -> None:
    """Says which classes train lacks; refuses a training split of a single class."""
    if targets is None:
        return
    seen = set(targets[:, 0].astype(int))
    missing = [name for k, name in enumerate(spec.label_names) if k not in seen]
    if len(seen) < 2:
        raise UserError(
            f"{path}: every label of train is of the same class: --config.model.task=regression "
            "learns labels as scores."
        )
    if missing:
        logger.warning("No sample of train is of the class(es) %s.", ", ".join(missing))


def prepare(
    split: Split, preparation: Preparation, budget: float = math.inf
) -> tuple[Split, dict[str, dict[str, int]]]:
    """Makes a split ready for the model.

    Args:
        split: as read.
        preparation: from `fit`, or from a bundle.
        budget: bytes that prepared features may take; if they took more, they are prepared
            whenever they are read.

    Returns:
        A split whose features are `{modality: [N, length_m, d_m]}` float32 (`OnDemand` over the
        budget), or `[N, length_m]` int32 token ids, in the specification's order, with a mask for
        each; its labels as the model's task wants them; and the repairs made and the lost steps,
        `{modality: {kind: count}}`.

    Raises:
        UserError: for a wrong width, aligned modalities with different numbers of steps, a
            sequence longer than its table unless truncation is on, or a modality of which much is
            lost unless that is allowed.
    """
    spec = preparation.spec
    if preparation.words and split.raw_text is None and "text" in spec.modalities:
        logger.warning(
            "The split of %r has no raw_text; text is absent in all %d samples.",
            str(split.ids[0]),
            len(split),
        )
    split, chosen, repairs = _choose(split, preparation)
    features, masks = {}, {}
    steps = sum(spec.length(m) * spec.width(m) for m in spec.modalities)
    keep = 4 * len(split) * steps <= budget
    for m in spec.modalities:
        shape = (len(split), spec.length(m))
        if m not in split.features:
            features[m] = _blank(shape, spec, m)
            masks[m] = np.zeros(shape, bool)
            continue
        x, (source, kept) = split.features[m], chosen[m]
        if x.ndim == 2:
            ids = np.take_along_axis(x, source, axis=1)
            features[m], masks[m] = np.where(kept, ids, 0).astype(np.int32), kept
            unknown = ~has_row(x, spec.vocabulary(m))
            if count := int((step_mask(split, m, preparation.mask_from_zeros) & unknown).sum()):
                repairs[m] = {"unknown_ids": count} | repairs.get(m, {})
            continue
        statistics = preparation.statistics.get(m)
        on_demand = OnDemand(x, source, kept, statistics, preparation.clip)
        out = _blank(shape, spec, m) if keep else None
        counts = dict.fromkeys(("non_finite", "clipped"), 0)
        for start in range(0, len(split), _ROWS):
            rows = slice(start, start + _ROWS)
            values, repaired = on_demand.read(rows, slice(None))
            counts = {kind: counts[kind] + repaired[kind] for kind in counts}
            if keep:
                out[rows] = values
        features[m], masks[m] = out if keep else on_demand, kept
        if any(counts.values()):
            repairs[m] = counts | repairs.get(m, {})
    task = TASKS[spec.label_kind]
    if task.reads_labels:
        labels = as_targets(split.labels, spec, preparation.classes)
    else:
        (m,) = spec.modalities
        labels = task.targets_from(features[m], masks[m])
    return dataclasses.replace(split, features=features, masks=masks, labels=labels), repairs


def _require_width(modality: str, x: np.ndarray, spec: CorpusSpec) -> None:
    """Raises `UserError` unless features are as wide as those that were trained on."""
    width = 0 if x.ndim == 2 else x.shape[2]
    if width != spec.width(modality):
        here = f"is {width} wide" if width else "holds token ids"
        trained = f"{spec.width(modality)} features" if spec.width(modality) else "token ids"
        raise UserError(
            f"Modality {modality!r} {here} here, but the model was trained on {trained}."
        )


def _choose(
    split: Split, preparation: Preparation
) -> tuple[Split, Chosen, dict[str, dict[str, int]]]:
    """Chooses the steps of a split that a model reads.

    Returns:
        The split, its transcripts as text where the model reads words; the steps by modality, as
        `choose_steps` returns them; and the lost steps, `{modality: {kind: count}}`.

    Raises:
        UserError: as `prepare` does.
    """
    spec, from_zeros = preparation.spec, preparation.mask_from_zeros
    if preparation.words:
        split = read_words(split, preparation.words)
    here = [m for m in spec.modalities if m in split.features]
    for m in here:
        _require_width(m, split.features[m], spec)
    chosen, lost = {}, {}
    for members in movers(here, preparation.groups):
        features = {m: split.features[m] for m in members if m in here}
        unmasked = features.keys() - split.masks.keys() if from_zeros else ()
        nonzero = {m: nonzero_steps(features[m]) for m in unmasked}
        masks = {
            m: valid_steps(split, m, from_zeros, spec.vocabulary(m), nonzero.get(m))
            for m in features
        }
        found = choose_steps(masks, spec.length(members[0]), preparation.truncate, split.ids)
        cuts = preparation.truncate != "error"
        lost |= count_lost(split, masks, found, truncates=cuts, nonzero=nonzero)
        chosen |= found
    require_little_lost(split.where, lost, preparation.allow_loss)
    return split, chosen, {m: loss.counts for m, loss in lost.items()}


def _blank(shape: tuple[int, int], spec: CorpusSpec, modality: str) -> np.ndarray:
    """Padding alone: zeros `[N, T, d]`, or token ids `[N, T]`."""
    if spec.vocabulary(modality):
        return np.zeros(shape, np.int32)
    return np.zeros((*shape, spec.width(modality)), np.float32)


def check_split(split: Split, preparation: Preparation) -> tuple[dict[str, dict[str, int]], int]:
    """Refuses, before any training, a split that could not be prepared after it.

    Only which of its steps are read is looked at: its masks, or whether its features are zero.

    Returns:
        The lost steps, `{modality: {kind: count}}`, and how many samples have no modality at all.

    Raises:
        UserError: as `prepare` does.
    """
    _, chosen, lost = _choose(split, preparation)
    absent = {"": np.zeros((len(split), 0), bool)}
    return lost, count_without_any(absent | {m: kept for m, (_, kept) in chosen.items()})


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
