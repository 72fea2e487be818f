"""Prepares splits: makes of what is stored what a model reads, for every mode.

Features, in this order: masks (the file's own, else derived from zeros), standardisation with
statistics of the valid training steps, values that are not finite or beyond 1e6 to 0, clipping,
compaction and truncation (see `steps.py`), zeros under the mask. Token ids: masks, ids that the
vocabulary lacks become padding, compaction, truncation. Labels: see `labels.py`.
"""

import dataclasses
import logging
import math
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.data.corpus import Corpus, Split, describe_width, modality_order
from msajax.data.labels import as_targets, label_kind, require_two_classes
from msajax.data.lost import count_lost, count_without_any, nothing_read, require_little_lost
from msajax.data.on_demand import OnDemand, moments
from msajax.data.steps import (
    Chosen,
    Groups,
    choose_steps,
    find_groups,
    has_row,
    movers,
    readable_steps,
    spans,
    step_mask,
    step_masks,
    table_sizes,
    union,
)
from msajax.data.vocabulary import build_vocabulary, read_words
from msajax.errors import UserError
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)

MOST_TOKENS = 10**6  # rows of an embedding table


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Holds everything that preparing a split needs; it travels in the bundle.

    Attributes:
        spec: modalities, widths and lengths after preparation.
        classes: the stored whole numbers that stand for the classes, in the order of their names;
            () for one-hot labels and for all that are no classes.
        statistics: `{modality: (mean, deviation)}`, each `[d]` float64, of the standardised
            modalities.
        clip: bound of standardised features, 0 for none.
        truncate: error, first, last or uniform.
        mask_from_zeros: whether masks that a file lacks are derived from zero steps.
        words: the vocabulary by which transcripts become the text modality; () where they do not.
        groups: modalities that share their steps, and are shifted and cut as one; fixed by train.
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
    train, words = _read_train(corpus, data)
    there = modality_order({*corpus.modalities, *(("text",) if words else ())})
    wanted = model.modalities or there
    _require_modalities("model.modalities", wanted, corpus.path, there)
    named = [m for m in data.standardize if m != "auto"]
    _require_modalities("data.standardize", named, corpus.path, there)
    masks, _ = step_masks(train, [m for m in wanted if m in train.features], data.mask_from_zeros)
    masks = readable_steps(train, masks, {})
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

    tables = _size_tables(corpus.path, train, {m: masks[m] for m in used}, words)
    labels = label_kind(corpus, model)
    groups, _ = find_groups(corpus, used, data)
    longest = {}
    for members in movers(used, groups):
        length = int(spans(union(masks[m] for m in members))[1].max())
        longest |= dict.fromkeys(members, length)
    spec = CorpusSpec(
        modalities=used,
        widths=tuple(0 if m in tables else corpus.width(m) for m in used),
        lengths=tuple(model.max_len or longest[m] for m in used),
        label_kind=labels.kind,
        label_names=labels.names,
        vocabularies=tuple(tables.get(m, 0) for m in used) if tables else (),
    )
    standardized = _standardized(spec, data, model)
    if spec.label_kind == "classification":
        require_two_classes(corpus.path, as_targets(train.labels, spec, labels.classes), spec)
    return Preparation(
        spec=spec,
        classes=labels.classes,
        statistics={m: moments(train.features[m], masks[m]) for m in standardized},
        clip=data.clip,
        truncate=data.truncate,
        mask_from_zeros=data.mask_from_zeros,
        words=words,
        groups=groups,
        allow_loss=data.allow_loss,
    )


def _read_train(corpus: Corpus, data: DataConfig) -> tuple[Split, tuple[str, ...]]:
    """Reads the training split, and builds the vocabulary of its transcripts if they are the text.

    Returns:
        The split, with the words' token ids as text; and the vocabulary, () without one.

    Raises:
        UserError: if text is to be what the split does not hold.
    """
    train, words = corpus.split("train"), ()
    if data.text == "words":
        if train.raw_text is None:
            raise UserError(f"data.text = words: {corpus.path} has no raw_text in train.")
        words = build_vocabulary(train.raw_text, data.min_count)
        train = read_words(train, words)
    if data.text == "ids" and ("text" not in train.features or train.features["text"].ndim != 2):
        raise UserError(f"data.text = ids: {corpus.path} has no token ids as text in train.")
    return train, words


def _require_modalities(key: str, named: Sequence[str], path: str, there: Sequence[str]) -> None:
    """Raises `UserError` unless a corpus has the modalities that a setting names."""
    for m in named:
        if m not in there:
            raise UserError(
                f"{key} names {m!r}, which {path} does not have: it has {', '.join(there)}."
            )


def _size_tables(
    path: str, train: Split, masks: Mapping[str, np.ndarray], words: Sequence[str]
) -> dict[str, int]:
    """Returns the rows of the embedding table of each modality of token ids.

    Args:
        path: of the corpus, for a message.
        train: the training split.
        masks: the readable steps `[N, T]` of the modalities that are used.
        words: the vocabulary of the text, () if it is not made of transcripts.

    Raises:
        UserError: for a table with more than `MOST_TOKENS` rows.
    """
    sizes = table_sizes(train, masks)
    if words and "text" in sizes:
        sizes["text"] = len(words)
    for m, size in sizes.items():
        if size > MOST_TOKENS:
            raise UserError(
                f"{path}: token ids of {m!r} reach {size - 1}; an embedding table has "
                f"{MOST_TOKENS} rows at most."
            )
    return sizes


def _standardized(spec: CorpusSpec, data: DataConfig, model: ModelConfig) -> list[str]:
    """Returns the modalities that `data.standardize` standardises; auto: all features but text.

    Raises:
        UserError: if they hold token ids, or what dRoFE positions read in Hz and years.
    """
    found = []
    for m in spec.modalities:
        if spec.vocabulary(m):
            if m in data.standardize:
                raise UserError(
                    f"data.standardize names {m!r}, whose token ids have no deviation."
                )
        elif m in data.standardize or ("auto" in data.standardize and m != "text"):
            found.append(m)
            # Other features of such a modality can be scaled in the file.
            if model.encoder_of(m).positions == "drofe":
                raise UserError(
                    f"data.standardize = {data.standardize!r} covers {m!r}, whose first features "
                    "model.positions = 'drofe' reads in Hz and years: name the modalities to "
                    f"standardise without {m!r}, or none."
                )
    return found


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
    numbers = sum(map(operator.mul, spec.lengths, spec.widths))
    keep = 4 * len(split) * numbers <= budget
    for m in spec.modalities:
        shape = (len(split), spec.length(m))
        if m not in split.features:
            features[m], masks[m] = _blank(shape, spec, m), np.zeros(shape, bool)
            continue
        x, (source, masks[m]) = split.features[m], chosen[m]
        if x.ndim == 2:
            ids = np.take_along_axis(x, source, axis=1)
            features[m] = np.where(masks[m], ids, 0).astype(np.int32)
            # Ids of another tokeniser: no unknown token could stand for them, so they are padding.
            unknown = ~has_row(x, spec.vocabulary(m))
            there = step_mask(split, m, preparation.mask_from_zeros)
            made = {"unknown_ids": int((there & unknown).sum())}
        else:
            statistics = preparation.statistics.get(m)
            on_demand = OnDemand(x, source, masks[m], statistics, preparation.clip)
            out = np.empty((*shape, x.shape[2]), np.float32) if keep else None
            features[m], made = out if keep else on_demand, on_demand.read_all(out)
        if any(made.values()):
            repairs[m] = made | repairs.get(m, {})
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
        trained = f"{spec.width(modality)} features" if spec.width(modality) else "token ids"
        raise UserError(
            f"Modality {modality!r} {describe_width(width)} here, but the model was trained on "
            f"{trained}."
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
    spec = preparation.spec
    if preparation.words:
        split = read_words(split, preparation.words)
    here = [m for m in spec.modalities if m in split.features]
    for m in here:
        _require_width(m, split.features[m], spec)
    chosen, lost = {}, {}
    for members in movers(here, preparation.groups):
        present = [m for m in members if m in here]
        masks, nonzero = step_masks(split, present, preparation.mask_from_zeros)
        masks = readable_steps(split, masks, {m: spec.vocabulary(m) for m in present})
        found = choose_steps(masks, spec.length(members[0]), preparation.truncate, split.ids)
        cuts = preparation.truncate != "error"
        lost |= count_lost(split, masks, found, truncates=cuts, nonzero=nonzero)
        chosen |= found
    require_little_lost(split.where, lost, preparation.allow_loss)
    return split, chosen, {m: loss.counts for m, loss in lost.items()}


def _blank(shape: tuple[int, int], spec: CorpusSpec, modality: str) -> np.ndarray:
    """Returns padding alone: zeros `[N, T, d]`, or token ids `[N, T]`."""
    if spec.vocabulary(modality):
        return np.zeros(shape, np.int32)
    return np.zeros((*shape, spec.width(modality)), np.float32)


def check_split(split: Split, preparation: Preparation) -> tuple[dict[str, dict[str, int]], int]:
    """Refuses, before any training, a split that could not be prepared after it.

    So no run fails after its last epoch. Only which steps are read is looked at, by the masks or by
    which features are zero, so that nothing else is learned of a test split.

    Returns:
        The lost steps, `{modality: {kind: count}}`, and how many samples have no modality at all.

    Raises:
        UserError: as `prepare` does.
    """
    _, chosen, lost = _choose(split, preparation)
    masks = {m: kept for m, (_, kept) in chosen.items()}
    return lost, count_without_any(masks) if masks else len(split)
