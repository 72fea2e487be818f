"""Defines what preparing a split needs, as training has fitted it."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from msajax.corpus.corpus import Embedding
from msajax.corpus.steps import Groups
from msajax.preparation.pieces import Sizes, TextSource
from msajax.spec import CorpusSpec


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
        tokenizer: the content of the tokenizer.json of a pretrained encoder; "" without one.
        text_from: what a pretrained encoder was given in train: words (step by step), raw_text or
            ids; "" without an encoder.
        text_pool: model.text_pool.
        embedding: by which text encoder the features of text were made; None if by none.
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
