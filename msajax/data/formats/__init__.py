"""Opening a corpus: finds the layout of a path by its content."""

import os
from collections.abc import Callable
from typing import NamedTuple

from msajax.config import SYNTHETIC, DataConfig
from msajax.data import synthetic as synthetic_corpus
from msajax.data.corpus import Corpus
from msajax.data.formats import csd, mapped, native, old_hdf5
from msajax.errors import UserError


class Layout(NamedTuple):
    """A layout that can be read.

    Attributes:
        what: it is, for a message.
        why: a path is taken for it.
        matches: whether a path has it, by content.
        open: reads a path that has it.
    """

    what: str
    why: str
    matches: Callable[[str], bool]
    open: Callable[[str, DataConfig], Corpus]


LAYOUTS = {
    "native": Layout(
        "a native .npz archive (arrays named <split>/<modality>, <split>/label, <split>/id)",
        "the file begins as a zip archive does",
        native.matches,
        lambda path, data: native.open_native(path),
    ),
    "mapped": Layout(
        "a folder of such arrays",
        "the folder holds a manifest, corpus.json",
        mapped.matches,
        lambda path, data: mapped.open_mapped(path),
    ),
    "old_hdf5": Layout(
        "a folder of audio_<split>.h5, y_<split>.h5 …",
        "the folder holds HDF5 files named <modality>_<split>.h5",
        old_hdf5.matches,
        lambda path, data: old_hdf5.open_old_hdf5(path),
    ),
    "csd": Layout(
        "a folder of .csd files", "the folder holds .csd files", csd.matches, csd.open_csd
    ),
}


def open_corpus(path: str | os.PathLike, data: DataConfig | None = None) -> Corpus:
    """Opens and checks a corpus without keeping any of its content.

    Args:
        path: a file or a folder, or "synthetic" for the embedded corpus.
        data: which layout to insist on, and what some of them need beside the path.

    Raises:
        UserError: saying what is wrong with the path or the file.
    """
    path, data = os.fspath(path), data or DataConfig()
    if not path:
        raise UserError(
            "data.path is empty: pass the corpus file, as in --config.data.path=corpus.npz, "
            f"or {SYNTHETIC!r} for the embedded corpus."
        )
    if path == SYNTHETIC:
        return synthetic_corpus.generate(data.synthetic).corpus
    if not os.path.exists(path):
        raise UserError(f"There is no corpus at {path}.")
    wanted = LAYOUTS if data.format == "auto" else {data.format: LAYOUTS[data.format]}
    for layout in wanted.values():
        if layout.matches(path):
            corpus = layout.open(path, data)
            corpus.why = layout.why
            return corpus
    expected = ", or ".join(layout.what for layout in wanted.values())
    raise UserError(f"{path} is not a corpus: expected {expected}.")
