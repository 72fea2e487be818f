"""Applies a preparation: makes of what is stored what a model reads, for every mode.

Features, in this order: masks (the file's own, else derived from zeros), standardisation with
statistics of the valid training steps, values that are not finite or beyond 1e6 to 0, clipping,
compaction and truncation (see `corpus/steps.py`), zeros under the mask. Token ids: masks, ids that
the vocabulary lacks become padding, compaction, truncation. Text of a pretrained encoder: see
`pieces.py`, sound: `waveforms.py`. Labels: see `corpus/labels.py`.
"""

import dataclasses
import logging
import math
import operator

import numpy as np

from msajax.corpus.corpus import Split, describe_width, pad_words
from msajax.corpus.labels import as_targets
from msajax.corpus.on_demand import OnDemand
from msajax.corpus.steps import (
    Chosen,
    choose_steps,
    has_row,
    movers,
    readable_steps,
    step_mask,
    step_masks,
)
from msajax.encoders.tokens import NOTHING, Tokenizer
from msajax.errors import UserError
from msajax.preparation.fit import Preparation
from msajax.preparation.lost import (
    count_among,
    count_hidden,
    count_lost,
    count_without_any,
    require_little_lost,
)
from msajax.preparation.pieces import move, read_pieces, take_pieces
from msajax.preparation.waveforms import read_waveforms, refuse_single_steps
from msajax.preparation.words import read_words, tokenize
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)


def prepare(
    split: Split, preparation: Preparation, budget: float = math.inf
) -> tuple[Split, dict[str, dict[str, int]]]:
    """Makes a split ready for the model.

    Prepared features that would take more than `budget` bytes are prepared whenever they are read.

    Returns:
        A split whose features are `{modality: [N, length_m, d_m]}` float32 (`OnDemand` over the
        budget), `[N, length_m]` int32 token ids, or what a pretrained encoder reads: pieces of text
        `[N, length_m, 3]` or steps of sound `[N, length_m, hop + 1]`; in the specification's order,
        with a mask for each; its labels as the model's task wants them; and the repairs made and
        the lost steps, `{modality: {kind: count}}`.

    Raises:
        UserError: for a wrong width, aligned modalities with different numbers of steps, a
            sequence longer than its table unless truncation is on, or a modality of which much is
            lost unless that is allowed.
    """
    spec = preparation.spec
    split, chosen, repairs = _choose(split, preparation)
    reads_text = preparation.words or spec.encoder("text") is not None
    if reads_text and "text" in spec.modalities and "text" not in split.features:
        logger.warning(
            "The split of %r has no raw_text; text is absent in all %d samples.",
            str(split.ids[0]),
            len(split),
        )
    # Features of each modality, in memory or prepared whenever they are read.
    features, masks = {}, {}
    numbers = sum(map(operator.mul, spec.lengths, spec.widths))
    keep = 4 * len(split) * numbers <= budget
    for m in spec.modalities:
        shape = (len(split), spec.length(m))
        if m not in split.features:  # padding alone
            masks[m] = np.zeros(shape, bool)
            if spec.is_pieces(m):
                features[m] = np.full((*shape, 3), NOTHING, np.int32)
            elif spec.vocabulary(m):
                features[m] = np.zeros(shape, np.int32)
            else:
                features[m] = np.zeros((*shape, spec.width(m)), np.float32)
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
    # Labels, or targets that are made of the inputs.
    task = TASKS[spec.label_kind]
    if task.reads_labels:
        labels = as_targets(split.labels, spec, preparation.classes)
    else:
        (m,) = spec.modalities
        labels = task.targets_from(features[m], masks[m])
    return dataclasses.replace(split, features=features, masks=masks, labels=labels), repairs


def _choose(
    split: Split, preparation: Preparation
) -> tuple[Split, Chosen, dict[str, dict[str, int]]]:
    """Chooses the steps of a split that a model reads; raises `UserError` as `prepare` does.

    Returns:
        The split, its transcripts as text where the model reads words; the steps by modality, as
        `choose_steps` returns them; and the lost steps, `{modality: {kind: count}}`.
    """
    # Words, pieces and sound take the place of what is stored.
    spec = preparation.spec
    if preparation.words:
        split = read_words(split, preparation.words)
    counts: dict[str, dict[str, int]] = {}
    if (source := preparation.text_source) is not None:
        split, counts["text"] = read_pieces(split, source)
    split, of_sound = read_waveforms(split, preparation.sound, preparation.mask_from_zeros)
    counts |= of_sound
    here = [m for m in spec.modalities if m in split.features]
    for m in here:
        x, trained = split.features[m], spec.width(m)
        width = 0 if x.ndim == 2 else x.shape[2]
        if width != trained and not spec.is_pieces(m):
            raise UserError(
                f"Modality {m!r} {describe_width(width)} here, but the model was trained on "
                f"{f'{trained} features' if trained else 'token ids'}."
            )
    # Modalities that share their steps move as one, and with text as its pieces do.
    chosen, lost = {}, {}
    for members in movers(here, preparation.groups):
        present = [m for m in members if m in here]
        masks, nonzero = step_masks(split, present, preparation.mask_from_zeros)
        masks = readable_steps(split, masks, {m: spec.vocabulary(m) for m in present})
        sizes = preparation.sizes_of(members)
        if preparation.truncate == "uniform" and any(map(spec.is_sound, present)):
            refuse_single_steps(split, masks[members[0]], members[0], sizes.steps)
        if any(map(spec.is_pieces, present)):
            moved = move(split, masks, preparation.text_pool, sizes)
            split, found = moved.split, moved.chosen
            counts["text"] |= {"cut_pieces": moved.cut_pieces} if moved.cut_pieces else {}
            others = {m: mask for m, mask in masks.items() if not spec.is_pieces(m)}
            if others:
                of_others = {m: found[m] for m in others}
                lost |= count_lost(split, others, of_others, nonzero=nonzero, cut=moved.cut)
            for m in others:
                if wordless := count_among(split, m, moved.wordless):
                    counts[m] = {"wordless_steps": wordless}
        else:
            found = choose_steps(masks, sizes.steps, preparation.truncate, split.ids)
            cuts = preparation.truncate != "error"
            lost |= count_lost(split, masks, found, truncates=cuts, nonzero=nonzero)
        chosen |= found
    require_little_lost(split.where, lost, preparation.allow_loss)
    # Steps at no word are lost for a reason that is said by itself.
    for m, loss in lost.items():
        wordless = counts.setdefault(m, {}).get("wordless_steps", 0)
        rest = loss.counts | {"lost_steps": loss.steps - wordless}
        counts[m] |= rest if any(rest.values()) else {}
    return split, chosen, {m: found for m, found in counts.items() if found}


def check_split(split: Split, preparation: Preparation) -> tuple[dict[str, dict[str, int]], int]:
    """Refuses, before any training, a split that could not be prepared after it, as `prepare` does.

    So no run fails after its last epoch. Only which steps are read is looked at, by the masks or by
    which features are zero, so that nothing else is learned of a test split.

    Returns:
        The lost steps, `{modality: {kind: count}}`, and how many samples have no modality at all.
    """
    _, chosen, lost = _choose(split, preparation)
    masks = {m: kept for m, (_, kept) in chosen.items()}
    return lost, count_without_any(masks) if masks else len(split)


def words_of_steps(
    stored: Split, prepared: Split, preparation: Preparation
) -> list[list[str]] | None:
    """Finds the word of each step of the text that a model reads.

    The samples are given as they are stored and as they are prepared, by a preparation that does
    not refuse lost steps.

    Returns:
        For each sample a list as long as its prepared text: words, pieces of a pretrained encoder
        (see `Tokenizer.names`), also of one that made the text's features, or token ids as #17; ""
        at a step without one. None where nothing says what the steps are.
    """
    spec = preparation.spec
    if "text" not in spec.modalities:
        return None
    x, mask = prepared.features["text"], prepared.masks["text"]
    if spec.is_pieces("text") and preparation.tokenizer:
        tokenizer = Tokenizer.from_json(preparation.tokenizer, "The tokenizer of the text encoder")
        return _where_there([tokenizer.names(row) for row in x[..., 0]], mask)
    words = stored.words if stored.pieces is None else stored.pieces
    if preparation.words and stored.raw_text is not None:
        words = pad_words([tokenize(text) for text in stored.raw_text.tolist()])
    elif "text" not in stored.features or words is None:
        words = None
    elif words.shape[1] != stored.features["text"].shape[1]:
        words = None
    if words is not None:
        _, chosen, _ = _choose(stored, preparation)
        words = np.take_along_axis(words, chosen["text"][0], axis=1)
        return np.where(mask, words, "").tolist()
    if spec.vocabulary("text"):
        ids = x[..., 0] if spec.is_pieces("text") else x
        return _where_there([[f"#{i}" for i in row] for row in ids.tolist()], mask)
    return None


def _where_there(names: list[list[str]], mask: np.ndarray) -> list[list[str]]:
    return [
        [name if there else "" for name, there in zip(*of_sample, strict=True)]
        for of_sample in zip(names, mask.tolist(), strict=True)
    ]
