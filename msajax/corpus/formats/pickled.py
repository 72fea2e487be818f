"""Finds the splits in the pickles of a corpus: one file, or a folder with one for each split.

    a file: {train, valid (or dev, val), test} -> the content of a split
    a file: the content of a split; of the one that the file is named for, else of all
    a folder: train.pkl, valid.pkl (or dev, val), test.pkl, each the content of a split

Each may be compressed with gzip, also by its name (train.pkl.gz). A pickle has no index, so all of
it is read into memory. The readers of the formats know what the content of a split means.
"""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Collection
from typing import Any

import numpy as np

from msajax.corpus.corpus import SPLIT_NAMES, SPLITS
from msajax.corpus.pickles import NoPickle, read_pickle
from msajax.errors import UserError

logger = logging.getLogger(__name__)

WHOLE = "all"
"""The name of all samples, in a corpus without splits."""

_SUFFIXES = (".pkl", ".pickle", ".pk", ".p")
_SHOWN = 6  # keys of a dict that a message quotes


@dataclasses.dataclass(frozen=True)
class Pickled:
    """Holds the content of a corpus's pickles.

    Attributes:
        path: the file or folder.
        trees: the content by split, in the order of `SPLITS`, or of all samples as `WHOLE`. A
            reader removes a split before it reads it, so that memory need not hold all twice.
    """

    path: str
    trees: dict[str, Any]

    def where(self, split: str) -> str:
        """Returns how the name of something in a split begins, for a message."""
        return f"{self.path}: " if split == WHOLE else f"{self.path}: {split}/"


def read_pickled(path: str, glove_path: str = "") -> Pickled | None:
    """Reads the pickles at a path, each once; returns None if there is none.

    Args:
        path: a file or a folder; files of a folder that are not read are logged.
        glove_path: word vectors, which may lie in the folder and are read by the formats.

    Raises:
        UserError: for a pickle that cannot be read, and for two of the same split.
    """
    if os.path.isdir(path):
        trees = _read_folder(path, glove_path)
        return Pickled(path, trees) if trees else None
    try:
        tree = read_pickle(path)
    except NoPickle:
        return None
    if splits := _splits(path, tree):
        return Pickled(path, splits)
    # A part of a corpus, as test.pkl, can then be predicted.
    stem, _ = _stem_and_suffix(path)
    return Pickled(path, {SPLIT_NAMES.get(stem, WHOLE): tree})


def _read_folder(folder: str, glove_path: str) -> dict[str, Any]:
    candidates: dict[str, list[str]] = {name: [] for name in SPLITS}
    others: list[str] = []
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}.") from error
    for name in names:
        stem, suffix = _stem_and_suffix(name)
        file = os.path.join(folder, name)
        if stem in SPLIT_NAMES and suffix in _SUFFIXES and os.path.isfile(file):
            candidates[SPLIT_NAMES[stem]].append(file)
        elif os.path.realpath(file) != os.path.realpath(glove_path):
            others.append(name)
    files: dict[str, str] = {}
    trees: dict[str, Any] = {}
    for split in SPLITS:
        for file in candidates[split]:
            if split in files:
                raise UserError(f"{files[split]} and {file} are both the split {split!r}.")
            with contextlib.suppress(NoPickle):
                trees[split] = read_pickle(file)
                files[split] = file
    if files:
        log_unread(folder, others)
    for split, tree in trees.items():
        if _splits(files[split], tree):
            raise UserError(
                f"{files[split]} holds splits, but in a folder it is itself the split {split!r}: "
                "name the file in data.path."
            )
    return trees


def _stem_and_suffix(path: str) -> tuple[str, str]:
    """Returns the parts of a file's name in lower case: `train`, `.pkl` for `Train.pkl.gz`."""
    return os.path.splitext(os.path.basename(path).lower().removesuffix(".gz"))


def _splits(path: str, tree: Any) -> dict[str, Any]:
    """Returns the content of each split, or {} if the pickle is not a dict of splits."""
    if not isinstance(tree, dict):
        return {}
    named: dict[str, str] = {}
    for key in tree:
        if isinstance(key, str) and (split := SPLIT_NAMES.get(key.lower())):
            if split in named:
                raise UserError(f"{path}: {named[split]!r} and {key!r} are both the split {split}.")
            named[split] = key
    if named and len(named) < len(tree):
        logger.info("%s: %d entries beside the splits are not read.", path, len(tree) - len(named))
    return {split: tree[named[split]] for split in SPLITS if split in named}


def describe(value: Any) -> str:
    """Describes a value of a pickle, for a message."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, dict):
        keys = [repr(key[:30]) for key in value if isinstance(key, str)]
        more = ", …" if len(value) > _SHOWN else ""
        return f"a dict of {', '.join(keys[:_SHOWN]) or len(value)}{more}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def log_unread(path: str, names: Collection[str]) -> None:
    """Logs the names of fields or files that are not read."""
    if names:
        shown = ", ".join(repr(name[:50]) for name in sorted(names)[:20])
        logger.info("%s: not read: %s.", path, shown)
