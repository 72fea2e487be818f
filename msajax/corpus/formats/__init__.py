"""Opens a corpus: finds the format of a path by its content; and writes one."""

import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from msajax import announce
from msajax.config import SYNTHETIC, DataConfig
from msajax.corpus import synthetic as synthetic_corpus
from msajax.corpus.corpus import Corpus
from msajax.corpus.demands import require_corpus
from msajax.corpus.folds import cut_fold, require_one_fold, without_folds
from msajax.corpus.formats import connectome, csd, hdf5, misa, mmsa, native
from msajax.corpus.formats.pickled import describe, read_pickled
from msajax.corpus.glove import with_word_vectors
from msajax.corpus.labels import binarized
from msajax.errors import UserError, writing
from msajax.files import as_path, put_in_place, scratch_folder

logger = logging.getLogger(__name__)


class Format(NamedTuple):
    """Describes a format that can be read."""

    what: str  # names a corpus of this format, in a message
    why: str  # says by what a path was recognised, in a message
    matches: Callable[[Any], bool]  # says whether a path has the format, by its content
    open: Callable[[Any, DataConfig], Corpus]
    # Says that `matches` and `open` take a `Pickled` instead of a path. A pickle is read once
    # before its format is known, because it has no index to look into.
    pickled: bool = False


# Formats are tried in this order, and the first that matches is taken.
FORMATS = {
    "native": Format(
        "a native .npz archive (arrays named <split>/<modality>, <split>/label, <split>/id)",
        "the file begins as a zip archive does",
        native.matches,
        native.open_native,
    ),
    "mapped": Format(
        "a folder of such arrays",
        "the folder holds a manifest, corpus.json",
        native.matches_folder,
        lambda path, data: native.open_mapped(path),
    ),
    "old_hdf5": Format(
        "a folder of audio_<split>.h5, y_<split>.h5 …",
        "the folder holds HDF5 files named <modality>_<split>.h5",
        hdf5.matches,
        lambda path, data: hdf5.open_old_hdf5(path),
    ),
    "connectome": Format(
        "a folder of samples.csv, bands.csv …",
        "the folder holds samples.csv and bands.csv",
        connectome.matches,
        connectome.open_connectome,
    ),
    "csd": Format(
        "a folder of .csd files", "the folder holds .csd files", csd.matches, csd.open_csd
    ),
    "mmsa": Format(
        "a pickle of MMSA",
        "its pickle holds dicts of arrays, with names that only MMSA uses",
        mmsa.matches,
        mmsa.open_mmsa,
        pickled=True,
    ),
    "mult": Format(
        "a pickle of MulT or MultiBench (splits with text, audio, vision, labels, id)",
        "its pickle holds dicts of arrays named vision, audio, text",
        mmsa.matches_mult,
        mmsa.open_mult,
        pickled=True,
    ),
    "misa": Format(
        "a pickle of MISA or MAG (splits as lists of samples)",
        "its pickle holds lists of samples ((words, visual, acoustic), label, id)",
        misa.matches,
        misa.open_misa,
        pickled=True,
    ),
}


def open_corpus(path: str | os.PathLike, data: DataConfig | None = None) -> Corpus:
    """Opens and checks a corpus; its features stay on disk, but for those of pickles.

    Every byte is read once, but for a mapped folder: a damaged test split is then found before
    training.

    Args:
        path: a file or a folder, or "synthetic" for the embedded corpus.
        data: says which format to insist on, what some formats need beside the path, and which fold
            of a cross-validation takes the place of the splits.

    Raises:
        UserError: saying what is wrong with the path or the file.
    """
    path = os.path.expanduser(as_path(path, "path", "a corpus"))
    data = data or DataConfig()
    require_one_fold(data)
    corpus = open_own(path, data)
    if not data.folds:
        return corpus
    cut = cut_fold(corpus, data)
    sizes = ", ".join(f"{header.size} {name}" for name, header in cut.headers.items())
    logger.info(
        "%s: fold %d of %d (from 0), by video with seed %d: %s segments; its own splits are not "
        "used.",
        *(path, data.fold, data.folds, data.split_seed, sizes),
    )
    return cut


def open_own_or_fold(path: str, data: DataConfig) -> Corpus:
    """Opens a corpus with the splits of the chosen fold, or with its own if none is chosen."""
    return open_corpus(path, data if data.fold >= 0 else without_folds(data))


def save(corpus: Corpus, output: str) -> None:
    """Writes a corpus, whole or not at all; raises `UserError` if it cannot be written.

    An output that ends in .npz is a native archive, and replaced if it is there; else it is a new
    mapped folder.
    """
    # Under a temporary name first: a fixed one may be a file of the user's, or the corpus itself.
    parent = os.path.dirname(output) or "."
    with writing(output), scratch_folder(parent) as folder:
        temporary = os.path.join(folder, "corpus")
        if output.endswith(".npz"):
            native.save_native(temporary, corpus)
        else:
            native.save_mapped(temporary, corpus)
        put_in_place(temporary, output)


def open_own(path: str, data: DataConfig) -> Corpus:
    """Opens a corpus as `open_corpus` does, with its own splits, whatever folds are asked for."""
    path = os.path.expanduser(path)
    require_corpus(path)
    announce.now(f"Reading {path}")
    if path == SYNTHETIC:
        return synthetic_corpus.generate(data.synthetic).corpus
    if data.format not in ("auto", *FORMATS):
        raise UserError(
            f"data.format = {data.format!r}: must be one of auto, {', '.join(FORMATS)}."
        )
    formats = list(FORMATS.values()) if data.format == "auto" else [FORMATS[data.format]]
    found, source = path, path
    for format in formats:
        # A pickle has no index to look into: it is read once, after all others, which are no
        # pickles, did not match.
        if format.pickled and source is path:
            source = read_pickled(path, data.glove_path)
            if source is None:
                break
            found = f"{path}, a pickle of {describe(next(iter(source.trees.values())))},"
            formats = [format for format in formats if format.pickled]
        if format.matches(source):
            corpus = with_word_vectors(format.open(source, data), data)
            corpus.why = format.why
            return corpus if data.binarize == "none" else binarized(corpus, float(data.binarize))
    expected = ", or ".join(format.what for format in formats)
    raise UserError(f"{found} is not a corpus: expected {expected}.")
