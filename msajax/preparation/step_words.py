"""Says which words the steps of a prepared text are, where that is known."""

import numpy as np

from msajax.corpus.corpus import Split, pad_words
from msajax.encoders.tokens import Tokenizer
from msajax.preparation.fit import choose
from msajax.preparation.preparation import Preparation
from msajax.preparation.words import tokenize


def words_of_steps(
    stored: Split, prepared: Split, preparation: Preparation
) -> list[list[str]] | None:
    """Finds the word of each step of the text that a model reads.

    Args:
        stored: as it was before preparation.
        prepared: the same samples.
        preparation: of the model; it must not refuse lost steps.

    Returns:
        For each sample a list as long as its prepared text: words, pieces of a pretrained encoder
        (see `Tokenizer.names`), also of one that made the text's features, or token ids as #17; ""
        at a step without one. None where nothing
        says what the steps are.
    """
    spec = preparation.spec
    if "text" not in spec.modalities:
        return None
    x, mask = prepared.features["text"], prepared.masks["text"]
    if spec.is_pieces("text") and preparation.tokenizer:
        tokenizer = Tokenizer.from_json(preparation.tokenizer, "The tokenizer of the text encoder")
        names = [tokenizer.names(row) for row in x[..., 0]]
        return [
            [name if there else "" for name, there in zip(*of_sample, strict=True)]
            for of_sample in zip(names, mask, strict=True)
        ]
    words = stored.words if stored.pieces is None else stored.pieces
    if preparation.words and stored.raw_text is not None:
        words = pad_words([tokenize(text) for text in stored.raw_text.tolist()])
    elif "text" not in stored.features or words is None:
        words = None
    elif words.shape[1] != stored.features["text"].shape[1]:
        words = None
    if words is not None:
        _, chosen, _ = choose(stored, preparation)
        words = np.take_along_axis(words, chosen["text"][0], axis=1)
        return np.where(mask, words, "").tolist()
    if spec.vocabulary("text"):
        ids = x[..., 0] if spec.is_pieces("text") else x
        return [[f"#{i}" if there else "" for i, there in zip(*both, strict=True)]
                for both in zip(ids.tolist(), mask.tolist(), strict=True)]
    return None


def named_by(stored: Split) -> str | None:
    """Says what is known of each stored step of text features or ids: pieces, words, or nothing."""
    if stored.pieces is not None:
        return "pieces"
    steps = stored.features["text"].shape[1]
    return "words" if stored.words is not None and stored.words.shape[1] == steps else None
