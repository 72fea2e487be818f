"""Opens HDF5 that comes from someone else, and reads the old folders of processed HDF5 files.

A file may not lead to other files, load code, or declare more than it stores: reading it would
then give away other files, run that code, or claim all memory.

    text_<split>_emb.h5  audio_<split>.h5  video_<split>.h5   (N, T, d) numbers
    X_<split>.h5   (N, T, 325): text 300, audio 5, video 20
                   or real numbers (N, d) and (N, 325), of one step
    y_<split>.h5   (N,) or (N, K) labels

Each file holds one dataset, `d1` or `data`. A modality may be missing from a split. The files hold
no ids: they are made of the split and the row.
"""

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import h5py
import numpy as np

from msajax.corpus.corpus import SPLIT_NAMES, SPLITS, Corpus, Source, Split, SplitHeader
from msajax.corpus.formats.arrays import in_one_sentence
from msajax.corpus.formats.pickled import list_folder, log_unread
from msajax.corpus.labels import read_labels
from msajax.errors import UserError

_EXPANSION = 1032  # bytes that deflate can make of one at most
_LZF = 32000  # the number of h5py's own filter
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, _LZF}
_FILE = re.compile(r"(text|audio|video|X|y)_(train|valid|val|dev|test)(?:_emb)?\.(?:h5|hdf5)")
_KEYS = ("d1", "data")
_JOINT = {"text": slice(0, 300), "audio": slice(300, 305), "video": slice(305, 325)}  # of X
_JOINT_WIDTH = 325
_LARGEST = 1 << 36  # bytes of one array
_DAMAGED = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)


@contextlib.contextmanager
def opened(path: str) -> Iterator[h5py.File]:
    """Opens a file; an error of HDF5, now or while it is open, becomes a `UserError`."""
    if not os.path.isfile(path):
        raise UserError(f"There is no file at {path}.")
    with in_one_sentence(f"{path} is damaged or not an HDF5 file", *_DAMAGED):
        with h5py.File(path, "r") as file:
            yield file


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
        raise UserError(f"{where} is {form_of(found)}; expected an array of numbers.")
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
    with in_one_sentence(f"{path}: {found.name} is damaged", *_DAMAGED):
        return found[()]


def form_of(found: h5py.Dataset) -> str:
    """Describes the type and shape of a dataset, for a message."""
    kind = "bytes" if found.dtype.kind == "S" else found.dtype.name
    return f"{kind} of shape {found.shape}"


# --- the old folders ---


class _Array(NamedTuple):
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype


def matches(path: str) -> bool:
    """Says whether `path` is a folder with HDF5 files of this format's names."""
    for _, _, file in _files(path) if os.path.isdir(path) else ():
        with contextlib.suppress(*_DAMAGED):
            if os.path.isfile(file) and h5py.is_hdf5(file):
                return True
    return False


def _files(folder: str) -> list[tuple[str, str, str]]:
    """Lists (part, split, path), sorted: the digest must not depend on what files call a split."""
    found = ((name, _FILE.fullmatch(name)) for name in list_folder(folder))
    return sorted((m[1], SPLIT_NAMES[m[2]], os.path.join(folder, n)) for n, m in found if m)


def open_old_hdf5(path: str) -> Corpus:
    """Opens a folder: reads every array once for the digest, and keeps labels only.

    Raises:
        UserError: for a damaged file, a wrong shape or type, two files of one array, or rows that
            differ between the files of a split.
    """
    # Every file, one array in memory at a time: its shape and type stay, and labels.
    arrays: dict[str, dict[str, _Array]] = {}  # by split and part
    labels: dict[str, np.ndarray] = {}
    digest, files = hashlib.sha256(), _files(path)
    log_unread(path, set(os.listdir(path)) - {os.path.basename(file) for _, _, file in files})
    for part, split, file in files:
        others = arrays.setdefault(split, {})
        if part in others:
            raise UserError(f"{file} and {others[part].path} are the same array.")
        values = _read(part, file)
        wanted = (1, 2) if part == "y" else (3,)
        if values.dtype.kind not in "fiu" or values.ndim not in wanted or 0 in values.shape:
            expected = "labels (N,) or (N, K)" if part == "y" else "numbers (N, T, d) or (N, d)"
            found = f"{values.dtype} of shape {values.shape}"
            raise UserError(f"{file} is {found}; expected {expected}.")
        if part == "X" and values.shape[2] != _JOINT_WIDTH:
            raise UserError(
                f"{file} is {values.shape[2]} wide; expected {_JOINT_WIDTH}: text 300, audio 5, "
                "video 20."
            )
        others[part] = _Array(file, values.shape, values.dtype)
        digest.update(f"{split}/{part} {values.dtype.str} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).data)
        if part == "y":
            labels[split] = values

    # Files of a split fit together: as many rows, and no modality twice.
    headers = {}
    for split in (name for name in SPLITS if name in arrays):
        parts = arrays[split]
        features = {part: array for part, array in parts.items() if part != "y"}
        if "X" in features and len(features) > 1:
            other = next(part for part in features if part != "X")
            raise UserError(f"{path}: split {split!r} has {other!r} twice, by itself and in X.")
        first = next(iter(parts.values()))
        size = first.shape[0]
        for array in parts.values():
            if array.shape[0] != size:
                raise UserError(
                    f"{array.path} has {array.shape[0]} rows, but {first.path} has {size}."
                )
        if joint := features.get("X"):
            features = {
                m: joint._replace(shape=(*joint.shape[:2], part.stop - part.start))
                for m, part in _JOINT.items()
            }
        headers[split] = SplitHeader(
            size=size,
            shapes={m: array.shape[1:] for m, array in features.items()},
            dtypes={m: array.dtype.name for m, array in features.items()},
            **read_labels(path, split, labels.get(split), _ids(split, size)),
        )

    def read(split: str) -> Split:
        features = {}
        for m in headers[split].shapes:
            joint = "X" in arrays[split]
            values = _read(m, arrays[split]["X" if joint else m].path)
            features[m] = values[..., _JOINT[m]] if joint else values
        y = labels.get(split)
        return Split(
            ids=_ids(split, headers[split].size),
            features=features,
            masks={},
            labels=None if y is None else y.astype(np.float64).reshape(len(y), -1),
        )

    corpus = Corpus(
        source=Source(path, "old processed HDF5 folder"),
        digest=digest.hexdigest(),
        headers=headers,
        ids={split: _ids(split, header.size) for split, header in headers.items()},
        read=read,
    )
    corpus.require_equal_steps()  # the format pads to a fixed length; another is a mix-up
    return corpus


def _read(part: str, file: str) -> np.ndarray:
    """Reads the array of a file; features of one step become `[N, 1, d]`."""
    with opened(file) as content:
        keys = list(content)
        if len(keys) != 1 or keys[0] not in _KEYS:
            found = ", ".join(map(repr, keys[:5])) or "nothing"
            raise UserError(f"{file} holds {found}; expected one dataset named d1 or data.")
        values = load(file, dataset(file, content, keys[0], _LARGEST))
    is_one_step = part != "y" and values.dtype.kind == "f" and values.ndim == 2
    return values[:, None] if is_one_step else values


def _ids(split: str, size: int) -> np.ndarray:
    return np.array([f"{split}_{i}" for i in range(size)])
