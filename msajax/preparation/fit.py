"""Fits a preparation to a training split: which modalities are read, how long, how scaled."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.config.registry import registered
from msajax.corpus.corpus import Corpus, Embedding, modality_order
from msajax.corpus.demands import require_modalities, require_words
from msajax.corpus.labels import as_targets, label_kind
from msajax.corpus.on_demand import moments
from msajax.corpus.steps import Groups, find_groups, movers, readable_steps, step_masks, table_sizes
from msajax.encoders.folder import Folder
from msajax.encoders.speech_architecture import SpeechArchitecture
from msajax.errors import UserError
from msajax.preparation.lost import count_hidden, nothing_read, require_little_lost
from msajax.preparation.pieces import (
    Sizes,
    TextSource,
    find_source,
    has_ids,
    named,
    prepared_lengths,
    read_pieces,
)
from msajax.preparation.waveforms import read_waveforms
from msajax.preparation.words import build_vocabulary, read_words
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

logger = logging.getLogger(__name__)

MOST_TOKENS = 10**6  # rows of an embedding table


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Holds all that preparing a split needs, as training has fitted it; bundles hold it, too.

    Attributes:
        spec: modalities, widths and lengths after preparation.
        classes: the stored whole numbers that stand for the classes, in the order of their names;
            () for one-hot labels and for all that are no classes.
        statistics: `{modality: (mean, deviation)}`, each `[d]` float64, only of modalities that are
            standardised.
        clip: bound of standardised features, 0 for none.
        truncate: error, first, last or uniform.
        mask_from_zeros: derives masks that a file lacks from zero steps.
        words: the vocabulary by which transcripts become the text modality; () where they do not.
        tokenizer: the content of the tokenizer.json of a pretrained encoder; "" without one.
        text_from: names what a pretrained encoder was given in train: words (step by step),
            raw_text or ids; "" without an encoder.
        embeddings: the pretrained encoders that made features, each of its modality.
        groups: modalities that share their steps, and are shifted and cut as one; fixed by train.
        allow_loss: prepares a split although much of it is lost (see `lost.py`).
        manifest: says how features of recordings were made; None where that is not known.
    """

    spec: CorpusSpec
    classes: tuple[int, ...]
    statistics: Mapping[str, tuple[np.ndarray, np.ndarray]]
    clip: float
    truncate: str
    mask_from_zeros: bool
    words: tuple[str, ...] = ()
    tokenizer: str = ""
    text_from: str = ""
    text_pool: str = "pieces"
    embeddings: tuple[Embedding, ...] = ()
    groups: Groups = ()
    allow_loss: bool = False
    manifest: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        standardized = ", ".join(self.statistics) or "none"
        return f"Preparation({self.spec.describe()}; standardised: {standardized})"

    @property
    def text_source(self) -> TextSource | None:
        """Says how the text of a pretrained encoder is made; None without an encoder."""
        if not self.spec.is_pieces("text"):
            return None
        return TextSource(
            *(self.spec.encoder("text"), self.tokenizer, self.text_from),
            *(self.text_pool, self.mask_from_zeros),
        )

    @property
    def sound(self) -> dict[str, SpeechArchitecture]:
        """Returns the pretrained encoders of sound, by modality."""
        return {m: self.spec.encoder(m) for m in self.spec.modalities if self.spec.is_sound(m)}

    def embedding(self, modality: str) -> Embedding | None:
        """Returns which encoder made the features of a modality; None if none did."""
        return next((one for one in self.embeddings if one.modality == modality), None)

    def sizes_of(self, members: Sequence[str]) -> Sizes:
        """Returns how long the sequences of modalities that move as one may be."""
        spec, pieces, positions = self.spec, 0, 0
        steps = spec.length(members[0])
        if "text" in members and spec.is_pieces("text"):
            pieces, positions = spec.length("text"), spec.encoder("text").positions
            steps = spec.text_steps or pieces
        return Sizes(pieces, steps, positions, self.truncate)


def fit(
    corpus: Corpus,
    data: DataConfig,
    model: ModelConfig,
    encoders: Mapping[str, Folder] = MappingProxyType({}),
) -> Preparation:
    """Chooses the run's modalities and measures them on the training split alone.

    `encoders` has, by modality, the opened folders that `model.encoders` and `model.text_encoder`
    name.

    Raises:
        UserError: for a modality or a text that the corpus lacks, a training split without a valid
            step, modalities that cannot be aligned as `data.alignment` says, dRoFE positions of a
            modality that is standardised, one that would be lost as a whole, an embedding table of
            more than `MOST_TOKENS` rows, or a text that the encoder cannot read.
    """
    # The text is the file's own, pieces of a pretrained encoder, or words by a vocabulary.
    require_words(corpus, data, model)
    train, words, text = corpus.split("train"), (), None
    require_suited(encoders)
    if data.text == "ids" and not has_ids(train):
        raise UserError(f"data.text = ids: {corpus.path} has no token ids as text in train.")
    if "text" in encoders:
        text = find_source(corpus.path, train, data, model, encoders["text"])
        train, _ = read_pieces(train, text)
    elif data.text == "words":
        words = build_vocabulary(train.raw_text, data.min_count)
        train = read_words(train, words)

    found = {m: folder.architecture for m, folder in encoders.items()}
    sound = {m: one for m, one in found.items() if one.reads == "waveform"}
    train, _ = read_waveforms(train, sound, data.mask_from_zeros)

    # Which modalities are used: those that are wanted and have a valid training step.
    there = modality_order({*corpus.modalities, *(("text",) if words or text else ())})
    if own := () if model.modalities else registered()[model.name].modalities:
        model = dataclasses.replace(model, modalities=own)
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
    for m, folder in encoders.items():
        if m not in used:
            what = "a word" if m == "text" else "sound"
            why = f"no {m} of {corpus.path} has {what} in train"
            if m not in train.features:
                why = f"{corpus.path} has no {m}"
            elif m not in wanted:
                why = f"{m} is not among model.modalities"
            raise UserError(f"{named(m, folder.path)}: {why}.")

    # The rows of the embedding table of each modality of token ids.
    tables = table_sizes(train, {m: masks[m] for m in used})
    if words and "text" in tables:
        tables["text"] = len(words)
    for m, size in tables.items():
        if size > MOST_TOKENS:
            raise UserError(
                f"{corpus.path}: token ids of {m!r} reach {size - 1}; an embedding table has "
                f"{MOST_TOKENS} rows at most."
            )
    if text:
        tables["text"] = text.architecture.vocabulary

    # The specification: what the model reads and predicts, and how long it is.
    labels = label_kind(corpus, model)
    task = TASKS[labels.kind]
    groups, _ = find_groups(corpus, used, data, encoders)
    lengths, text_steps = prepared_lengths(train, masks, movers(used, groups), model, text)
    spec = CorpusSpec(
        modalities=used,
        widths=tuple(
            sound[m].step_width if m in sound else 0 if m in tables else corpus.width(m)
            for m in used
        ),
        lengths=tuple(lengths[m] for m in used),
        label_kind=labels.kind,
        label_names=labels.names,
        vocabularies=tuple(tables.get(m, 0) for m in used) if tables else (),
        encoders=tuple(
            encoders[m].architecture if m in encoders else None for m in used if encoders
        ),
        text_steps=text_steps,
        groups=groups,
    )
    # What is left to fit by the training split: statistics, and labels that the task checks.
    standardized = _standardized(spec, data, model)
    targets = as_targets(train.labels, spec, labels.classes) if task.reads_labels else None
    if targets is not None:
        task.check_train(corpus.path, targets, spec.label_names)
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
        embeddings=tuple(
            one
            for one in corpus.source.embeddings
            if one.modality in used and not spec.vocabulary(one.modality)
        ),
        groups=groups,
        allow_loss=data.allow_loss,
        manifest=corpus.source.recipe,
    )


def require_suited(encoders: Mapping[str, Folder]) -> None:
    """Raises `UserError` for an encoder of sound for the text, or one of text for another modality.

    It says which key names the folder.
    """
    for m, folder in encoders.items():
        reads_pieces = folder.architecture.reads == "pieces"
        if reads_pieces != (m == "text"):
            what = "text" if reads_pieces else "sound"
            kind = folder.architecture.kind
            raise UserError(f"{named(m, folder.path)}: {kind} is an encoder of {what}, not of {m}.")


def _standardized(spec: CorpusSpec, data: DataConfig, model: ModelConfig) -> list[str]:
    """Returns the modalities that `data.standardize` standardises; auto: all features but text."""
    found = []
    for m in spec.modalities:
        if spec.vocabulary(m):
            if m in data.standardize:
                raise UserError(f"data.standardize names {m!r}, whose token ids have no deviation.")
        elif spec.is_sound(m):
            if m in data.standardize:
                raise UserError(f"data.standardize names {m!r}, which is sound for an encoder.")
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
