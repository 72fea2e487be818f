"""Reads and writes the mapped format: a folder of named arrays (`arrays.py`), one file each.

    corpus.json          the manifest: names of the arrays, and the digest of their content
    <split>/<array>.npy  one file each

It is for corpora that are larger than memory: opening reads ids, labels and the headers of other
arrays, which are read from disk as they are used. The digest in the manifest is that of the same
arrays in a native archive; it is checked before the corpus is trained on, evaluated, converted or
inspected.
"""

import hashlib
import json
import os
from collections.abc import Iterable

import numpy as np

from msajax.corpus.corpus import Corpus, Source
from msajax.corpus.formats import arrays
from msajax.corpus.formats.native import named_arrays
from msajax.errors import UserError

_MANIFEST, _FORMAT, _VERSION = "corpus.json", "msajax corpus", 1
_CHUNK = 1 << 20


def matches(path: str) -> bool:
    """Says whether `path` is a folder with a manifest."""
    return os.path.isfile(os.path.join(path, _MANIFEST))


def open_mapped(path: str) -> Corpus:
    """Opens a mapped folder; features stay on disk until they are used.

    Raises:
        UserError: for a damaged manifest, a missing or pickled array, a wrong name, type, shape or
            label.
    """
    names, digest = _read_manifest(path)
    headers = {}
    for name in names:
        headers[name] = _check(path, name, None)
    small = {n: _load(path, n) for n in names if n.rsplit("/", 1)[-1] in arrays.SMALL}
    for name, array in small.items():
        if array.dtype.kind == "U":
            _check_text(path, name, array)

    def load(name: str) -> np.ndarray:
        array = _load(path, name)
        if array.dtype.kind == "U":
            _check_text(path, name, array)
        return array

    source = Source(path, "mapped folder")
    corpus = arrays.make_corpus(
        source=source, digest=digest, arrays=headers, small=small, load=load
    )
    corpus.verify = lambda: _verify(path, names, corpus.digest)
    return corpus


def _verify(path: str, names: list[str], expected: str) -> None:
    """Reads every byte, and refuses arrays that do not fit the manifest's names and digest."""
    digest = hashlib.sha256()
    for folder, _, files in os.walk(path):
        for file in files:
            found = os.path.relpath(os.path.join(folder, file), path)
            if file.endswith(".npy") and found.removesuffix(".npy") not in names:
                raise UserError(
                    f"{path} holds {found}, which {_MANIFEST} does not name: write the folder anew "
                    "with --mode convert."
                )
    for name in sorted(names):
        _check(path, name, digest)
    if digest.hexdigest() != expected:
        raise UserError(f"{path} is damaged: its content does not match the digest in {_MANIFEST}.")


def save_mapped(path: str, corpus: Corpus) -> None:
    """Writes a corpus as a new mapped folder, a split at a time."""
    write_arrays(path, named_arrays(corpus))


def write_arrays(path: str, named: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes arrays, in the order of their names, as a new mapped folder; the manifest is last."""
    os.mkdir(path)
    names, digest = [], hashlib.sha256()
    for name, array in named:
        file_name = os.path.join(path, f"{name}.npy")
        os.makedirs(os.path.dirname(file_name), exist_ok=True)
        with open(file_name, "wb") as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
        _check(path, name, digest)
        names.append(name)
    manifest = {"format": _FORMAT, "version": _VERSION, "sha256": digest.hexdigest()}
    with open(os.path.join(path, _MANIFEST), "w", encoding="utf-8") as file:
        json.dump(manifest | {"arrays": names}, file, indent=2)


def _read_manifest(path: str) -> tuple[list[str], str]:
    where = os.path.join(path, _MANIFEST)
    try:
        with open(where, encoding="utf-8") as file:
            manifest = json.load(file)
        if manifest["format"] != _FORMAT or manifest["version"] != _VERSION:
            raise ValueError(f"format {manifest['format']!r}, version {manifest['version']!r}")
        names, digest = manifest["arrays"], manifest["sha256"]
        listed = isinstance(names, list) and len(set(names)) == len(names)
        if not isinstance(digest, str) or not listed:
            raise ValueError("its names or its digest are wrong")
        for name in names:
            arrays.array_name(path, f"{name}.npy")
    except UserError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{where} is no manifest: {arrays.reason(error)}.") from error
    return names, digest


def _check(path: str, name: str, digest: arrays.Hash | None) -> arrays.ArrayHeader:
    file_name = os.path.join(path, f"{name}.npy")
    try:
        if not os.path.isfile(file_name):
            raise UserError(f"{path}: {name}.npy is missing.")
        with open(file_name, "rb") as file:
            return arrays.check_array(path, file, os.path.getsize(file_name), name, digest)
    except OSError as error:
        raise UserError(f"{file_name} cannot be read: {error.strerror}.") from error


def _load(path: str, name: str) -> np.ndarray:
    """Maps an array on disk into memory."""
    file_name = os.path.join(path, f"{name}.npy")
    try:
        return np.load(file_name, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an empty array cannot be mapped
        return np.load(file_name, allow_pickle=False)


def _check_text(path: str, name: str, array: np.ndarray) -> None:
    for start in range(0, array.size, _CHUNK):
        block = np.ascontiguousarray(array.ravel()[start : start + _CHUNK])
        arrays.check_characters(path, name, block.tobytes(), array.dtype.byteorder)
