"""Fits a preparation to a training split: which modalities are read, how long, how scaled."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import Corpus, Embedding, modality_order
from msajax.corpus.demands import require_modalities
from msajax.corpus.labels import as_targets, label_kind
from msajax.corpus.on_demand import moments
from msajax.corpus.steps import (
    Groups,
    find_groups,
    movers,
    readable_steps,
    step_masks,
    table_sizes,
)
from msajax.errors import UserError
from msajax.preparation.lost import count_hidden, nothing_read, require_little_lost
from msajax.preparation.pieces import (
    Encoder,
    Sizes,
    TextSource,
    find_source,
    has_ids,
    prepared_lengths,
    read_pieces,
)
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
        mask_from_zeros: whether masks that a file lacks are derived from zero steps.
        words: the vocabulary by which transcripts become the text modality; () where they do not.
        tokenizer: the content of the tokenizer.json of a pretrained encoder; "" without one.
        text_from: what a pretrained encoder was given in train: words (step by step), raw_text or
            ids; "" without an encoder.
        embedding: the text encoder that made the features of text; None if none did.
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
    tokenizer: str = ""
    text_from: str = ""
    text_pool: str = "pieces"
    embedding: Embedding | None = None
    groups: Groups = ()
    allow_loss: bool = False

    def __repr__(self) -> str:
        standardized = ", ".join(self.statistics) or "none"
        return f"Preparation({self.spec.describe()}; standardised: {standardized})"

    @property
    def text_source(self) -> TextSource | None:
        """How the text of a pretrained encoder is made; None without an encoder."""
        if self.spec.text_encoder is None:
            return None
        return TextSource(
            *(self.spec.text_encoder, self.tokenizer, self.text_from),
            *(self.text_pool, self.mask_from_zeros),
        )

    def sizes_of(self, members: Sequence[str]) -> Sizes:
        """Returns how long the sequences of modalities that move as one may be."""
        spec, pieces, positions = self.spec, 0, 0
        steps = spec.length(members[0])
        if "text" in members and spec.text_encoder is not None:
            pieces, positions = spec.length("text"), spec.text_encoder.positions
            steps = spec.text_steps or pieces
        return Sizes(pieces, steps, positions, self.truncate)


def fit(
    corpus: Corpus, data: DataConfig, model: ModelConfig, encoder: Encoder | None = None
) -> Preparation:
    """Chooses the run's modalities and measures them on the training split alone.

    Args:
        corpus: only its train split is read.
        data: how it is read and prepared.
        model: which modalities are read, and how.
        encoder: the opened folder that `model.text_encoder` names; None if that is empty.

    Raises:
        UserError: for a modality or a text that the corpus lacks, a training split without a valid
            step, modalities that cannot be aligned as `data.alignment` says, dRoFE positions of a
            modality that is standardised, one that would be lost as a whole, an embedding table of
            more than `MOST_TOKENS` rows, or a text that the encoder cannot read.
    """
    # The text is the file's own, pieces of a pretrained encoder, or words by a vocabulary.
    train, words, text = corpus.split("train"), (), None
    if encoder is not None:
        text = find_source(corpus.path, train, data, model, encoder)
        train, _ = read_pieces(train, text)
    elif data.text == "words":
        if train.raw_text is None:
            raise UserError(f"data.text = words: {corpus.path} has no raw_text in train.")
        words = build_vocabulary(train.raw_text, data.min_count)
        train = read_words(train, words)
    elif data.text == "ids" and not has_ids(train):
        raise UserError(f"data.text = ids: {corpus.path} has no token ids as text in train.")

    # Which modalities are used: those that are wanted and have a valid training step.
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

    labels = label_kind(corpus, model)
    task = TASKS[labels.kind]
    groups, _ = find_groups(corpus, used, data, text is not None)
    lengths, text_steps = prepared_lengths(train, masks, movers(used, groups), model, text)
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
        embedding=corpus.source.embedding if has_features else None,
        groups=groups,
        allow_loss=data.allow_loss,
    )


def _standardized(spec: CorpusSpec, data: DataConfig, model: ModelConfig) -> list[str]:
    """Returns the modalities that `data.standardize` standardises; auto: all features but text."""
    found = []
    for m in spec.modalities:
        if spec.vocabulary(m):
            if m in data.standardize:
                raise UserError(f"data.standardize names {m!r}, whose token ids have no deviation.")
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
