"""Checks paths before JAX is loaded: what is read, and where results go."""

import dataclasses
import os
import re

from msajax import announce
from msajax.checks import is_url
from msajax.config import Config, DataConfig, from_config_dict
from msajax.corpus.corpus import Corpus, modality_order
from msajax.corpus.demands import (
    require_corpus,
    require_glove,
    require_modalities,
    require_run,
    require_words,
)
from msajax.corpus.folds import without_folds
from msajax.corpus.formats import open_corpus
from msajax.encoders.folder import open_folder
from msajax.errors import UserError, first_line
from msajax.files import require_writable
from msajax.inference.description import read_description
from msajax.runs.claim import refuse_folds, refuse_other_run, require_ended, require_place
from msajax.runs.claim import require_corpus as require_corpus_of_run
from msajax.runs.manifest import refuse_in_run


def check_training(config: Config, workdir: str, profile: str | None, is_single: bool) -> None:
    """Raises `UserError` for what training cannot read, and a workdir that it cannot have.

    Args:
        config: the experiment, or what several runs have in common.
        workdir: a folder, or a URL, which is not looked at.
        is_single: says that the workdir is that of one run.
    """
    check_sources(config)
    if not is_url(workdir):
        require_place(workdir)
        if is_single:
            refuse_other_run(workdir, config, None, profile)
    if profile:
        require_writable(profile)


def open_for_training(config: Config) -> Corpus:
    """Opens the corpus of a run; raises `UserError` for a split, label or modality it lacks."""
    corpus = open_corpus(config.data.path, config.reading)
    require_run(corpus, config)
    require_words(corpus, config.data, config.model)
    reads_text = "text" in config.model.encoder_folders or config.data.text == "words"
    there = modality_order({*corpus.modalities, *(("text",) if reads_text else ())})
    require_modalities(corpus, there, config.reading, config.model)
    return corpus


def load_jax() -> None:
    """Loads JAX, and says so; raises `UserError` for a variable that JAX cannot read."""
    announce.now("Loading JAX")
    try:
        import jax  # noqa: F401
    except ValueError as error:
        found = re.search(r"(?i)\bJAX_[A-Z0-9_]+", str(error))
        name = found[0].upper() if found else "the environment"
        value = f" = {os.environ[name]!r}" if name in os.environ else ""
        raise UserError(
            f"JAX cannot be loaded: it does not take {name}{value} ({first_line(error)}). Unset "
            "the variable, or give it a value of JAX's."
        ) from error


def check_sources(config: Config) -> None:
    """Raises `UserError` for a corpus, word vectors, an encoder or a bundle that is not there."""
    require_corpus(config.data.path)
    require_glove(config.data.glove_path)
    for modality, path in config.model.encoder_folders.items():
        folder = open_folder(path)
        folder.check_weights()
        if modality == "text":
            folder.require_tokenizer()
    if config.model.init_from and not is_url(config.model.init_from):
        read_description(config.model.init_from)


def check_run(workdir: str, mode: str, *, reads_corpus: bool = True, writes: bool = True) -> None:
    """Raises `UserError` for a folder without a run that has ended, or whose corpus has gone.

    One in a bucket is not looked at, and folds are not taken. The corpus must be there for a mode
    that reads it, and the folder writable for one that writes.
    """
    if not is_url(workdir):
        refuse_folds(workdir, f"--mode={mode}")
        require_ended(workdir)
        if writes:
            require_place(workdir)
        if reads_corpus:
            require_corpus_of_run(workdir)
    load_jax()


def reading_of(bundle: str) -> DataConfig:
    """Says how a corpus is read that a bundle scores; raises `UserError` for an unusable bundle."""
    config = from_config_dict(read_description(bundle)["config"])
    return dataclasses.replace(without_folds(config.reading), format="auto")


def check_figures(folder: str) -> None:
    """Raises `UserError` for a place for figures that is a file, or lies in a run's folder."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UserError(f"--figures={folder} is a file: figures go to a folder.")
    refuse_in_run(os.path.join(folder, ""), "figures")
    require_writable(folder)
