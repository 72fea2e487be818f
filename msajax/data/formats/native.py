"""The native layout: one `.npz` archive, never a pickle.

    <split>/<modality>        (N, T, d) float, or (N, T) int: token ids
    <split>/<modality>_mask   (N, T) bool, optional
    <split>/label             (N,) or (N, K) float, or (N,) int: classes; optional
    <split>/id                (N,) str
    <split>/raw_text          (N,) str, optional
    label_name                (K,) str, names of the K labels or classes, optional

Splits are train, valid and test. Each modality may have its own T.
"""

import collections
import dataclasses
import hashlib
import io
import lzma
import math
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from msajax.data.corpus import SPLITS, Corpus, Split, SplitHeader
from msajax.data.labels import describe_labels
from msajax.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_LABEL_NAME = "label_name"
_CHUNK = 1 << 20
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
# RuntimeError: an encrypted member, or a compression that zipfile does not know.
_DAMAGED = (*_BROKEN, RuntimeError, ValueError)


@dataclasses.dataclass(frozen=True)
class _Header:
    """What an array's header declares."""

    shape: tuple[int, ...]
    column_major: bool
    dtype: np.dtype


def matches(path: str) -> bool:
    """Whether the file at `path` begins like a zip archive."""
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
            # After a damaged length an entry of the directory swallows those that follow, and
            # zipfile does not count: a mask would be gone without a word.
            if any(b"PK\1\2" in info.comment + info.extra for info in archive.infolist()):
                raise zipfile.BadZipFile("its directory is inconsistent")
            members = {_array_name(path, n): n for n in archive.namelist()}
            if len(members) != len(archive.namelist()):
                raise UserError(f"{path} holds two arrays of the same name.")
            arrays, digest = {}, hashlib.sha256()
            for name in sorted(members):
                arrays[name] = _check_member(path, archive, members[name], name, digest)
            small = {
                name: _load(archive, members[name])
                for name in arrays
                if name.rsplit("/", 1)[-1] in ("label", "id", _LABEL_NAME)
            }
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(f"{path} is damaged or not an .npz archive: {_reason(error)}.") from error

    headers = {s: _split_header(path, s, arrays, small) for s in SPLITS if _names_in(arrays, s)}
    ids = collections.Counter(i for s in headers for i in small[f"{s}/id"].tolist())
    return Corpus(
        path=path,
        layout="native npz",
        digest=digest.hexdigest(),
        headers=headers,
        repeated_ids=sum(times > 1 for times in ids.values()),
        read=lambda split: _read_split(path, split, headers[split]),
    )


def _read_split(path: str, split: str, header: SplitHeader) -> Split:
    try:
        with zipfile.ZipFile(path) as archive:
            stored = {_array_name(path, n): n for n in archive.namelist()}

            def load(name: str) -> np.ndarray:
                return _load(archive, stored[f"{split}/{name}"])

            return Split(
                ids=load("id"),
                features={m: load(m) for m in header.shapes},
                masks={m: load(f"{m}_mask") for m in header.masked},
                labels=_as_labels(load("label")) if header.label_names else None,
                raw_text=load("raw_text") if header.has_raw_text else None,
            )
    except (KeyError, *_DAMAGED) as error:
        raise UserError(f"{path} changed or went bad while in use: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """What a library found wrong, as a part of our sentence: it may quote kilobytes of the file."""
    return " ".join(str(error).split())[:100].rstrip(".") or type(error).__name__


def _array_name(path: str, member: str) -> str:
    """`train/text.npy` -> `train/text`, refusing whatever the layout does not know."""
    name = member.removesuffix(".npy")
    split, _, array = name.partition("/")
    known = name == _LABEL_NAME or (split in SPLITS and _NAME.fullmatch(array))
    if name == member or not known:
        raise UserError(
            f"{path}: {member!r} does not belong in a native archive, whose arrays are named "
            "<split>/<modality>, <split>/<modality>_mask, <split>/label, <split>/id or "
            f"<split>/raw_text with split one of {', '.join(SPLITS)}, and {_LABEL_NAME}."
        )
    return name


def _check_member(path: str, archive: zipfile.ZipFile, member: str, name: str, digest) -> _Header:
    """Reads a header, checks it against the stored size, and feeds the bytes to the digest."""
    with archive.open(member) as file:
        try:
            header = _read_header(file)
        except _BROKEN:
            raise
        except Exception as error:  # numpy evaluates the text of a header: anything can go wrong
            raise UserError(f"{path}: array {name!r} has no readable .npy header.") from error
        if header.dtype.hasobject:
            raise UserError(
                f"{path}: array {name!r} holds Python objects, which only a pickle can store and "
                "opening could run code; store numbers or strings."
            )
        declared = math.prod(header.shape) * header.dtype.itemsize
        stored = archive.getinfo(member).file_size - file.tell()
        if declared != stored:
            raise UserError(
                f"{path}: array {name!r} declares {declared} bytes but {stored} are stored."
            )
        # The same bytes in another order are other content.
        order = "columns first " if header.column_major else ""
        digest.update(f"{name} {header.dtype.str} {order}{header.shape}\n".encode())
        while block := file.read(_CHUNK):
            digest.update(block)
            stored -= len(block)
            if header.dtype.kind == "U":
                _check_characters(path, name, block, header.dtype.byteorder)
        if stored:  # the archive's own directory can lie as well
            raise UserError(f"{path}: array {name!r} ends {stored} bytes too early.")
    return header


def _read_header(file: io.BufferedIOBase) -> _Header:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        header = _Header(*np.lib.format.read_array_header_1_0(file))
    elif version == (2, 0):
        header = _Header(*np.lib.format.read_array_header_2_0(file))
    else:
        raise ValueError(f"unknown .npy version {version}")
    if min(header.shape, default=0) < 0:
        raise ValueError(f"negative size in {header.shape}")
    return header


def _check_characters(path: str, name: str, block: bytes, byteorder: str) -> None:
    """Refuses what could not be written as UTF-8: Python trips over it far from here."""
    codes = np.frombuffer(block, np.dtype(np.uint32).newbyteorder(byteorder))
    if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any():
        raise UserError(f"{path}: array {name!r} holds characters that Unicode does not have.")


def _load(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _names_in(arrays: dict[str, _Header], split: str) -> list[str]:
    return [name.removeprefix(f"{split}/") for name in arrays if name.startswith(f"{split}/")]


def _split_header(
    path: str, split: str, arrays: dict[str, _Header], small: dict[str, np.ndarray]
) -> SplitHeader:
    names = _names_in(arrays, split)
    if "id" not in names:
        raise UserError(f"{path}: split {split!r} has no ids ({split}/id is missing).")
    extras = {"id", "label", "raw_text"}
    masks = {n for n in names if n.endswith("_mask")}
    modalities = [n for n in names if n not in extras | masks]
    size = arrays[f"{split}/id"].shape[0] if arrays[f"{split}/id"].shape else 0

    for name in sorted(extras & set(names)):
        header = arrays[f"{split}/{name}"]
        wanted = "biuf" if name == "label" else "U"
        fits = header.dtype.kind in wanted and header.dtype.itemsize > 0
        if not fits or not 1 <= len(header.shape) <= 1 + (name == "label"):
            raise UserError(
                f"{path}: {split}/{name} is {header.dtype} of shape {header.shape}; expected "
                + ("numbers (N,) or (N, K)." if name == "label" else "strings (N,).")
            )
    for m in modalities:
        header = arrays[f"{split}/{m}"]
        is_tokens = header.dtype.kind in "iu" and len(header.shape) == 2
        if not is_tokens and (header.dtype.kind not in "fiu" or len(header.shape) != 3):
            raise UserError(
                f"{path}: {split}/{m} is {header.dtype} of shape {header.shape}; "
                "expected numbers of shape (N, T, d), or token ids: whole numbers (N, T)."
            )
        if 0 in header.shape[1:] and not is_tokens:
            raise UserError(
                f"{path}: {split}/{m} has {header.shape[1]} steps of {header.shape[2]} features; "
                "both must be 1 or more."
            )
    for name in sorted(masks):
        m = name.removesuffix("_mask")
        if m not in modalities:
            raise UserError(f"{path}: {split}/{name} masks no modality of that split.")
        header, features = arrays[f"{split}/{name}"], arrays[f"{split}/{m}"]
        if header.dtype != np.bool_ or header.shape != features.shape[:2]:
            raise UserError(
                f"{path}: {split}/{name} is {header.dtype} of shape {header.shape}; "
                f"expected bool of shape {features.shape[:2]}."
            )
    for name in names:
        rows = arrays[f"{split}/{name}"].shape[0]
        if rows != size:
            raise UserError(f"{path}: {split}/{name} has {rows} rows, but {split}/id has {size}.")

    described: dict[str, Any] = {"label_names": ()}
    if "label" in names:
        labels = _as_labels(small[f"{split}/label"])
        if labels.shape[1] == 0:
            raise UserError(f"{path}: {split}/label has no column.")
        usable = np.abs(labels) <= np.finfo(np.float32).max  # False for NaN
        bad = np.flatnonzero(~usable.all(axis=1))
        if bad.size:
            raise UserError(
                f"{path}: {bad.size} label(s) of split {split!r} are not finite float32 numbers, "
                f"the first that of {str(small[f'{split}/id'][bad[0]])!r} (row {bad[0]})."
            )
        integers = arrays[f"{split}/label"].dtype.kind in "iu"
        given = _label_names(path, small)
        try:
            described = describe_labels(labels, integers=integers, names=given)
        except ValueError as error:
            raise UserError(f"{path}: {split}/label has {error}.") from error
    return SplitHeader(
        size=size,
        shapes={m: (*arrays[f"{split}/{m}"].shape[1:], 0)[:2] for m in modalities},
        dtypes={m: arrays[f"{split}/{m}"].dtype.name for m in modalities},
        masked=frozenset(n.removesuffix("_mask") for n in masks),
        has_raw_text="raw_text" in names,
        **described,
    )


def _label_names(path: str, small: dict[str, np.ndarray]) -> tuple[str, ...]:
    names = small.get(_LABEL_NAME, np.empty(0, "U1"))
    if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) < len(names):
        raise UserError(f"{path}: {_LABEL_NAME} must be different strings of shape (K,).")
    if not all(re.fullmatch(r"\S(.*\S)?", name) for name in names.tolist()):
        raise UserError(f"{path}: {_LABEL_NAME} has a name that is empty or ends in space.")
    return tuple(names.tolist())


def _as_labels(labels: np.ndarray) -> np.ndarray:
    return labels.astype(np.float64).reshape(len(labels), math.prod(labels.shape[1:]))


def save_native(
    path: str | os.PathLike, splits: dict[str, Split], label_names: Sequence[str] = ()
) -> None:
    """Writes splits as a native archive, compressed, at `path` exactly."""
    arrays = {_LABEL_NAME: np.array(label_names)} if label_names else {}
    for name, split in splits.items():
        arrays[f"{name}/id"] = split.ids
        arrays |= {f"{name}/{m}": x for m, x in split.features.items()}
        arrays |= {f"{name}/{m}_mask": mask for m, mask in split.masks.items()}
        if split.labels is not None:
            arrays[f"{name}/label"] = split.labels
        if split.raw_text is not None:
            arrays[f"{name}/raw_text"] = split.raw_text
    with open(path, "wb") as file:  # given a name, numpy would append .npz to it
        np.savez_compressed(file, allow_pickle=False, **arrays)
