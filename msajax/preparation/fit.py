"""Prepares splits: makes of what is stored what a model reads, for every mode.

Features, in this order: masks (the file's own, else derived from zeros), standardisation with
statistics of the valid training steps, values that are not finite or beyond 1e6 to 0, clipping,
compaction and truncation (see `steps.py`), zeros under the mask. Token ids: masks, ids that the
vocabulary lacks become padding, compaction, truncation. Text of a pretrained encoder: see
`pieces.py`. Labels: see `labels.py`.
"""

import dataclasses
import logging
import math
import operator

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Corpus, Split, describe_width, modality_order
from msajax.corpus.demands import require_modalities
from msajax.corpus.labels import as_targets, label_kind, require_two_classes
from msajax.corpus.on_demand import OnDemand, moments
from msajax.corpus.steps import (
    Chosen,
    choose_steps,
    find_groups,
    has_row,
    movers,
    readable_steps,
    step_mask,
    step_masks,
)
from msajax.encoders.tokens import NOTHING
from msajax.errors import UserError
from msajax.preparation.lost import (
    count_among,
    count_hidden,
    count_lost,
    count_without_any,
    nothing_read,
    require_little_lost,
)
from msajax.preparation.pieces import (
    Encoder,
    TextSource,
    find_source,
    measure,
    move,
    read_pieces,
    take_pieces,
)
from msajax.preparation.preparation import Preparation
from msajax.preparation.words import build_vocabulary, read_words, size_tables
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)


def fit(
    corpus: Corpus, data: DataConfig, model: ModelConfig, encoder: Encoder | None = None
) -> Preparation:
    """Chooses the run's modalities and measures them on the training split alone.

    Args:
        corpus: opened.
        data: how it is read and prepared.
        model: which modalities are read, and how.
        encoder: the opened folder of `model.text_encoder`; None if that is empty.

    Raises:
        UserError: for a modality that the corpus lacks, a training split without a valid step,
            modalities that cannot be aligned as `data.alignment` says, dRoFE positions of a
            modality that is standardised, one that would be lost as a whole, or a text that the
            encoder cannot read.
    """
    train, words, text = _read_train(corpus, data, model, encoder)
    there = modality_order({*corpus.modalities, *(("text",) if words or text else ())})
    wanted = model.modalities or there
    require_modalities(corpus, there, data, model)
    masks, _ = step_masks(train, [m for m in wanted if m in train.features], data.mask_from_zeros)
    masks = readable_steps(train, masks, {})
    used = tuple(m for m in wanted if m in masks and masks[m].any())
    for m in wanted:
        if m not in used:
            if m in train.features:
                require_little_lost(train.where, nothing_read(train, m), data.allow_loss)
            hidden = count_hidden(train, m)
            logger.warning(
                "Modality %r has no valid training step%s; the model leaves it out in every split.",
                m,
                f", as its mask hides {hidden} that are not zero" if hidden else "",
            )
    if not used:
        raise UserError(f"{corpus.path}: no modality has a valid training step.")
    if text and "text" not in used:
        why = "has a word in train" if "text" in wanted else "is among model.modalities"
        where = f"model.text_encoder = {model.text_encoder}"
        raise UserError(f"{where}: no text of {corpus.path} {why}.")

    tables = size_tables(corpus.path, train, {m: masks[m] for m in used}, words)
    if text:
        tables["text"] = text.architecture.vocabulary
    labels = label_kind(corpus, model)
    groups, _ = find_groups(corpus, used, data, text is not None)
    lengths, text_steps = measure(train, masks, movers(used, groups), model, text)
    spec = CorpusSpec(
        modalities=used,
        widths=tuple(0 if m in tables else corpus.width(m) for m in used),
        lengths=tuple(lengths[m] for m in used),
        label_kind=labels.kind,
        label_names=labels.names,
        vocabularies=tuple(tables.get(m, 0) for m in used) if tables else (),
        text_encoder=text.architecture if text else None,
        text_steps=text_steps,
    )
    standardized = _standardized(spec, data, model)
    has_features = "text" in spec.modalities and not spec.vocabulary("text")
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
        tokenizer=text.tokenizer if text else "",
        text_from=text.kind if text else "",
        text_pool=model.text_pool if text else "pieces",
        embedding=corpus.source.embedding if has_features else None,
        groups=groups,
        allow_loss=data.allow_loss,
    )


def _read_train(
    corpus: Corpus, data: DataConfig, model: ModelConfig, encoder: Encoder | None
) -> tuple[Split, tuple[str, ...], TextSource | None]:
    """Reads the training split, and builds the vocabulary of its transcripts if they are the text.

    Returns:
        The split, with the words' token ids as text, or the pieces of a pretrained encoder; the
        vocabulary, () without one; and how pieces are made, None without an encoder.

    Raises:
        UserError: if text is to be what the split does not hold.
    """
    train, words = corpus.split("train"), ()
    if encoder is not None:
        text = find_source(corpus.path, train, data, model, encoder)
        return read_pieces(train, text)[0], words, text
    if data.text == "words":
        if train.raw_text is None:
            raise UserError(f"data.text = words: {corpus.path} has no raw_text in train.")
        words = build_vocabulary(train.raw_text, data.min_count)
        train = read_words(train, words)
    if data.text == "ids" and ("text" not in train.features or train.features["text"].ndim != 2):
        raise UserError(f"data.text = ids: {corpus.path} has no token ids as text in train.")
    return train, words, None


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
        budget), `[N, length_m]` int32 token ids, or `[N, length_m, 3]` pieces of a pretrained
        encoder's text, in the specification's order, with a mask for each; its labels as the
        model's task wants them; and the repairs made and the lost steps,
        `{modality: {kind: count}}`.

    Raises:
        UserError: for a wrong width, aligned modalities with different numbers of steps, a
            sequence longer than its table unless truncation is on, or a modality of which much is
            lost unless that is allowed.
    """
    spec = preparation.spec
    split, chosen, repairs = choose(split, preparation)
    reads_text = preparation.words or spec.text_encoder is not None
    if reads_text and "text" in spec.modalities and "text" not in split.features:
        logger.warning(
            "The split of %r has no raw_text; text is absent in all %d samples.",
            str(split.ids[0]),
            len(split),
        )
    features, masks = {}, {}
    numbers = sum(map(operator.mul, spec.lengths, spec.widths))
    keep = 4 * len(split) * numbers <= budget
    for m in spec.modalities:
        shape = (len(split), spec.length(m))
        if m not in split.features:
            features[m], masks[m] = _blank(shape, spec, m), np.zeros(shape, bool)
            continue
        x, (source, masks[m]) = split.features[m], chosen[m]
        if spec.is_pieces(m):
            features[m] = take_pieces(x, source, masks[m], preparation.text_pool)
            made = {}
        elif x.ndim == 2:
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
        if not spec.is_pieces(m) and (hidden := count_hidden(split, m)):
            made = made | {"hidden_steps": hidden}
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


def choose(
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
    counts: dict[str, dict[str, int]] = {}
    if (source := preparation.text_source) is not None:
        split, counts["text"] = read_pieces(split, source)
    here = [m for m in spec.modalities if m in split.features]
    for m in here:
        if not spec.is_pieces(m):
            _require_width(m, split.features[m], spec)
    chosen, lost = {}, {}
    for members in movers(here, preparation.groups):
        present = [m for m in members if m in here]
        masks, nonzero = step_masks(split, present, preparation.mask_from_zeros)
        masks = readable_steps(split, masks, {m: spec.vocabulary(m) for m in present})
        sizes = preparation.sizes_of(members)
        if any(map(spec.is_pieces, present)):
            moved = move(split, masks, preparation.text_pool, sizes)
            split, found = moved.split, moved.chosen
            counts["text"] |= {"cut_pieces": moved.cut_pieces} if moved.cut_pieces else {}
            others = {m: mask for m, mask in masks.items() if not spec.is_pieces(m)}
            if others:
                of_others = {m: found[m] for m in others}
                lost |= count_lost(split, others, of_others, nonzero=nonzero, cut=moved.cut)
            for m in others:
                if wordless := count_among(split, m, moved.wordless, nonzero.get(m)):
                    counts[m] = {"wordless_steps": wordless}
        else:
            found = choose_steps(masks, sizes.steps, preparation.truncate, split.ids)
            cuts = preparation.truncate != "error"
            lost |= count_lost(split, masks, found, truncates=cuts, nonzero=nonzero)
        chosen |= found
    require_little_lost(split.where, lost, preparation.allow_loss)
    for m, loss in lost.items():
        wordless = counts.setdefault(m, {}).get("wordless_steps", 0)
        rest = loss.counts | {"lost_steps": loss.steps - wordless}
        counts[m] |= rest if any(rest.values()) else {}
    return split, chosen, {m: found for m, found in counts.items() if found}


def _blank(shape: tuple[int, int], spec: CorpusSpec, modality: str) -> np.ndarray:
    """Returns padding alone: zeros `[N, T, d]`, token ids `[N, T]`, or pieces `[N, T, 3]`."""
    if spec.is_pieces(modality):
        return np.full((*shape, 3), NOTHING, np.int32)
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
    _, chosen, lost = choose(split, preparation)
    masks = {m: kept for m, (_, kept) in chosen.items()}
    return lost, count_without_any(masks) if masks else len(split)
