"""Opening a corpus: finds the layout of a path by its content."""

import os

from msajax.config import SYNTHETIC, SyntheticConfig
from msajax.data import synthetic as synthetic_corpus
from msajax.data.corpus import Corpus
from msajax.data.formats import mapped, native, old_hdf5
from msajax.errors import UserError


def open_corpus(path: str | os.PathLike, synthetic: SyntheticConfig | None = None) -> Corpus:
    """Opens and checks a corpus without keeping any of its content.

    Args:
        path: a file, or "synthetic" for the embedded corpus.
        synthetic: sizes of the embedded corpus.

    Raises:
        UserError: saying what is wrong with the path or the file.
    """
    path = os.fspath(path)
    if not path:
        raise UserError(
            "data.path is empty: pass the corpus file, as in --config.data.path=corpus.npz, "
            f"or {SYNTHETIC!r} for the embedded corpus."
        )
    if path == SYNTHETIC:
        return synthetic_corpus.generate(synthetic or SyntheticConfig()).corpus
    if not os.path.exists(path):
        raise UserError(f"There is no corpus at {path}.")
    if native.matches(path):
        return native.open_native(path)
    if mapped.matches(path):
        return mapped.open_mapped(path)
    if old_hdf5.matches(path):
        return old_hdf5.open_old_hdf5(path)
    raise UserError(
        f"{path} is not a corpus: expected a native .npz archive "
        "(arrays named <split>/<modality>, <split>/label, <split>/id), or a folder of such arrays."
    )
