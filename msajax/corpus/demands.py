"""Checks a corpus and its settings before they are used."""

import logging
import os
from collections.abc import Sequence

from msajax.config import SYNTHETIC, Config, DataConfig, ModelConfig, idle_settings
from msajax.corpus.corpus import SPLITS, Corpus
from msajax.corpus.folds import advise_folds
from msajax.corpus.labels import reads_labels
from msajax.errors import UserError, nearest
from msajax.files import meant

logger = logging.getLogger(__name__)

_READS_WORDS = "model.text_encoder=FOLDER reads them"


def require_corpus(path: str) -> None:
    """Raises `UserError` for the path of a corpus that is empty, or where nothing is."""
    if not path:
        raise UserError(
            "data.path is empty: pass your corpus, as in --config.data.path=corpus.npz; or train "
            f"on the embedded toy corpus with --config.data.path={SYNTHETIC} --workdir runs/toy."
        )
    if path != SYNTHETIC and not os.path.exists(path):
        raise UserError(f"There is no corpus at {path}{meant(path) or '.'}")


def require_glove(path: str) -> None:
    """Raises `UserError` for a file of word vectors that is named and not there."""
    if path and not os.path.isfile(path):
        raise UserError(f"data.glove_path: there is no file at {path}{meant(path) or '.'}")


def require_words(corpus: Corpus, data: DataConfig, model: ModelConfig) -> None:
    """Raises `UserError` where words are to be read of transcripts that train lacks."""
    reads_words = data.text == "words" and "text" not in model.encoder_folders
    if reads_words and "train" in corpus.headers and not corpus.headers["train"].has_raw_text:
        raise UserError(f"data.text = words: {corpus.path} has no raw_text in train.")


def say_what_is_idle(corpus: Corpus, config: Config, reads_tokens: bool) -> None:
    """Warns of settings that were changed and that nothing reads."""
    reads_vectors = corpus.source.has_vectors or config.data.text == "words"
    for phrase in idle_settings(config, reads_tokens=reads_tokens, reads_vectors=reads_vectors):
        logger.warning("Nothing reads %s.", phrase)


def say_unread_transcripts(corpus: Corpus, config: Config) -> None:
    """Logs `describe_unread_transcripts`: a warning where there is no other text."""
    if unread := describe_unread_transcripts(corpus, config.data, config.model):
        level = logging.INFO if "text" in corpus.modalities else logging.WARNING
        logger.log(level, "%s", unread)


def describe_unread_transcripts(corpus: Corpus, data: DataConfig, model: ModelConfig) -> str:
    """Says how many transcripts nothing reads, and what would read them; "" if they are read.

    They are also read where the features of text were made of them by a pretrained encoder, or of
    their words by `data.glove_path`. Those of the embedded corpus are nobody's, and passed over.
    Words without transcripts are told of where no features of text go with them.
    """
    made_of_them = corpus.source.embedding("text") is not None or corpus.source.has_vectors
    if corpus.path == SYNTHETIC or made_of_them:
        return ""
    if "text" in model.encoder_folders or data.text == "words":
        return ""
    headers = corpus.headers.values()
    if found := sum(header.transcripts for header in headers):
        return f"{found} transcripts found; not read: data.text=words or {_READS_WORDS}"
    found = sum(h.size for h in headers if h.words and "text" not in h.shapes)
    return f"words of {found} samples found; not read: {_READS_WORDS}" if found else ""


def require_modalities(
    corpus: Corpus, there: Sequence[str], data: DataConfig, model: ModelConfig
) -> None:
    """Raises `UserError` unless a corpus has any modality, and those that settings name.

    Its modalities that are `there` have text among them if transcripts or words are read.
    """
    unread = describe_unread_transcripts(corpus, data, model) if "text" not in there else ""
    if not there:
        raise UserError(f"{corpus.path}: {unread or 'it has nothing that a model reads'}.")
    standardized = [m for m in data.standardize if m != "auto"]
    for key, names in (("model.modalities", model.modalities), ("data.standardize", standardized)):
        for m in names:
            if m not in there:
                why = f"; {unread}" if m == "text" and unread else ""
                raise UserError(
                    f"{key} names {m!r}, which {corpus.path} does not have: it has "
                    f"{', '.join(there)}{why}.{nearest(m, there)}"
                )


def require_run(corpus: Corpus, config: Config) -> None:
    """Raises `UserError` unless a run has what it trains on, chooses by and is tested on."""
    try:
        require_targets(corpus, config, *SPLITS)
    except UserError as error:
        pooled = splits_for_folds(corpus, config.model)
        if not pooled:
            raise
        ids = [id_ for name in pooled for id_ in corpus.split(name).ids.tolist()]
        raise UserError(f"{error} {advise_folds(ids)}") from error


def splits_for_folds(corpus: Corpus, model: ModelConfig) -> list[str]:
    """Returns the splits of which `data.folds` makes others: those with what a model learns."""
    if not reads_labels(model):
        return list(corpus.headers)
    return [name for name, header in corpus.headers.items() if header.label_names]


def require_targets(corpus: Corpus, config: Config, *splits: str) -> None:
    """Raises `UserError` unless the splits are there with what the model is to predict."""
    if reads_labels(config.model):
        corpus.require_labels(*splits)
    else:
        corpus.require_splits(*splits)
