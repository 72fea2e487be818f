"""Reads and writes the native format: named arrays (`arrays.py`) in one `.npz`, never pickled."""

import hashlib
import os
import zipfile

import numpy as np

from msajax.data.corpus import Corpus, Source
from msajax.data.formats import arrays
from msajax.data.formats.to_arrays import named_arrays
from msajax.errors import UserError


def matches(path: str) -> bool:
    """Says whether the file at `path` begins like a zip archive."""
    if not os.path.isfile(path):  # opening a pipe would wait for its writer
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def open_native(path: str) -> Corpus:
    """Opens a native archive: reads every byte once for the digest, and keeps headers only.

    Raises:
        UserError: for a damaged archive, a pickled array, a wrong name, type, shape or label.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # After a damaged length an entry of the directory contains those that follow, and
            # zipfile does not count entries: a mask would be missing without an error.
            if any(b"PK\1\2" in info.comment + info.extra for info in archive.infolist()):
                raise zipfile.BadZipFile("its directory is inconsistent")
            members = {arrays.array_name(path, n): n for n in archive.namelist()}
            if len(members) != len(archive.namelist()):
                raise UserError(f"{path} holds two arrays of the same name.")
            headers, digest = {}, hashlib.sha256()
            for name in sorted(members):
                size = archive.getinfo(members[name]).file_size
                with archive.open(members[name]) as file:
                    headers[name] = arrays.check_array(path, file, size, name, digest)
            small = {
                name: _load(archive, members[name])
                for name in headers
                if name.rsplit("/", 1)[-1] in arrays.SMALL
            }
    except UserError:
        raise
    except arrays.DAMAGED as error:
        raise UserError(
            f"{path} is damaged or not an .npz archive: {arrays.reason(error)}."
        ) from error

    def load(name: str) -> np.ndarray:
        with zipfile.ZipFile(path) as archive:
            return _load(archive, f"{name}.npy")

    return arrays.make_corpus(
        source=Source(path, "native npz"),
        digest=digest.hexdigest(),
        arrays=headers,
        small=small,
        load=load,
    )


def _load(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def save_native(path: str | os.PathLike, corpus: Corpus) -> None:
    """Writes a corpus as a native archive, compressed, at `path` exactly, a split at a time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in named_arrays(corpus):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
