"""Opens HDF5 that comes from someone else.

A file may not lead to other files, load code, or declare more than it stores: reading it would
then give away other files, run that code, or claim all memory.
"""

import contextlib
import math
import os
from collections.abc import Iterator

import h5py
import numpy as np

from msajax.corpus.formats.arrays import reason
from msajax.errors import UserError

_EXPANSION = 1032  # bytes that deflate can make of one at most
_LZF = 32000  # the number of h5py's own filter
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, _LZF}
_DAMAGED = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)


@contextlib.contextmanager
def opened(path: str) -> Iterator[h5py.File]:
    """Opens a file; an error of HDF5, now or while it is open, becomes a `UserError`."""
    if not os.path.isfile(path):
        raise UserError(f"There is no file at {path}.")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(f"{path} is damaged or not an HDF5 file: {reason(error)}.") from error


def is_hdf5(path: str) -> bool:
    """Says whether a file begins as HDF5 does."""
    try:
        return os.path.isfile(path) and bool(h5py.is_hdf5(path))
    except _DAMAGED:
        return False


def member(path: str, group: h5py.Group, name: str, kind: type) -> h5py.Group | h5py.Dataset:
    """Returns a member of a group; refuses links, which may lead to other files or in a circle."""
    where = f"{path}: {group.name.rstrip('/')}/{name}"
    link = group.get(name, getlink=True)
    if link is None:
        raise UserError(f"{where} is missing.")
    if not isinstance(link, h5py.HardLink):
        raise UserError(f"{where} is a link, which is not followed.")
    found = group[name]
    if not isinstance(found, kind):
        raise UserError(f"{where} is no {kind.__name__.lower()}.")
    return found


def dataset(path: str, group: h5py.Group, name: str, largest: int) -> h5py.Dataset:
    """Returns a dataset that is safe to read: in this file, at most `largest` bytes."""
    found = member(path, group, name, h5py.Dataset)
    where = f"{path}: {found.name}"
    if found.is_virtual or found.external:
        raise UserError(f"{where} takes its values from other files, which are not opened.")
    if found.shape is None or found.dtype.hasobject:
        raise UserError(f"{where} is {describe(found)}; expected an array of numbers.")
    properties = found.id.get_create_plist()
    filters = {properties.get_filter(k)[0] for k in range(properties.get_nfilters())}
    if not filters <= _FILTERS:  # HDF5 would search for plugins and load them
        raise UserError(f"{where} is compressed in another way than gzip or lzf; store it anew.")
    declared = math.prod(found.shape) * found.dtype.itemsize
    stored = found.id.get_storage_size()
    chunk = math.prod(found.chunks or ()) * found.dtype.itemsize
    if declared > stored * (1 if found.chunks is None else _EXPANSION):
        raise UserError(f"{where} declares {declared} bytes, but only {stored} are stored.")
    if max(declared, chunk) > largest:
        raise UserError(f"{where} declares {max(declared, chunk)} bytes; at most {largest} fit.")
    return found


def load(path: str, found: h5py.Dataset) -> np.ndarray:
    """Reads a whole dataset."""
    try:
        return found[()]
    except _DAMAGED as error:
        raise UserError(f"{path}: {found.name} is damaged: {reason(error)}.") from error


def describe(found: h5py.Dataset) -> str:
    """Describes the type and shape of a dataset, for a message."""
    kind = "bytes" if found.dtype.kind == "S" else found.dtype.name
    return f"{kind} of shape {found.shape}"
