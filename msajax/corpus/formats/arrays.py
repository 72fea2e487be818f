"""Reads and writes corpora as named arrays, in the native archive and in the mapped folder.

    <split>/<modality>        (N, T, d) numbers, (N, d) float: one step, or (N, T) int: token ids
    <split>/<modality>_mask   (N, T) bool, or (N,) for one step; optional
    <split>/label             (N,) or (N, K) float, or (N,) int: classes; optional
    <split>/id                (N,) str
    <split>/raw_text          (N,) str, optional
    <split>/words             (N, T) str, the words step by step, "" for none, optional
    <split>/text_segments     (N, T) int, the segment ids of token ids as text, optional
    <split>/text_pieces       (N, T) str, the piece that each step of embedded text is, optional
    label_name                (K,) str, names of the K labels or classes, optional
    aligned                   (A,) str, the modalities that share their steps, optional; A = 0: none
    embedding                 (1,) str, by which text encoder the text was made, optional

Splits are train, valid and test. Each modality that is not aligned may have its own T. `label_name`
and `aligned` exist so that `convert` keeps what other formats say.
"""

import dataclasses
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np

from msajax.corpus.corpus import SPLIT_NAMES, SPLITS, Corpus, Source, Split, SplitHeader
from msajax.corpus.embedding import Embedding
from msajax.corpus.labels import read_labels, require_names
from msajax.errors import UserError

SEGMENTS, PIECES = "text_segments", "text_pieces"
# Types, axes of the text that they need, what such a text is, what they are.
_KINDS = {
    SEGMENTS: ("iu", 2, "token ids", "whole numbers"),
    PIECES: ("U", 3, "features", "strings"),
}
LABEL_NAME, ALIGNED, EMBEDDING = "label_name", "aligned", "embedding"
OF_CORPUS = (LABEL_NAME, ALIGNED, EMBEDDING)
WORDS, _BESIDE_TEXT = "words", {SEGMENTS, PIECES}
SMALL = ("label", "id", *OF_CORPUS)  # arrays that opening a corpus reads
BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
# RuntimeError: an encrypted member, or a compression that zipfile does not know.
DAMAGED = (*BROKEN, RuntimeError, ValueError)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}")
_LABELS_ELSEWHERE = ("labels", "regression_labels")  # as other formats call them
RESERVED = {"id", "label", "raw_text", WORDS, SEGMENTS, *_LABELS_ELSEWHERE}  # for no modality
_CHUNK = 1 << 20
_AXES = {"label": (1, 2), WORDS: (2,)}  # of arrays that are no modality
_EXPECTED = {"label": "numbers (N,) or (N, K)", WORDS: "strings (N, T)"}


class Hash(Protocol):
    """Stands for the type of `hashlib.sha256()`."""

    def update(self, data: bytes, /) -> None:
        """Adds bytes to the digest."""


@dataclasses.dataclass(frozen=True)
class ArrayHeader:
    """Holds what the header of a `.npy` file declares."""

    shape: tuple[int, ...]
    column_major: bool
    dtype: np.dtype


def reason(error: Exception) -> str:
    """Shortens what a library found wrong, which may quote kilobytes, to a part of a sentence."""
    return " ".join(str(error).split())[:100].rstrip(".") or type(error).__name__


def array_name(path: str, member: str) -> str:
    """Returns the name of an array, `train/text` for the member `train/text.npy`.

    Raises:
        UserError: for a name that the format does not know.
    """
    name = member.removesuffix(".npy")
    split, _, array = name.partition("/")
    if split not in SPLITS and split in SPLIT_NAMES:
        right = SPLIT_NAMES[split]
        raise UserError(f"{path}: {member[:40]!r} is of no split: rename {split}/… to {right}/….")
    known = name in OF_CORPUS or (split in SPLITS and NAME.fullmatch(array))
    if name == member or not known:
        raise UserError(
            f"{path}: {member[:40]!r} does not belong in a native archive, whose arrays are named "
            "<split>/<modality>, <split>/<modality>_mask, <split>/label, <split>/id, "
            "<split>/raw_text, <split>/words, <split>/text_segments or <split>/text_pieces with "
            f"split one of {', '.join(SPLITS)}, {', '.join(OF_CORPUS)}; or all without <split>/, "
            "id among them."
        )
    return name


def check_array(
    path: str, file: BinaryIO, size: int, name: str, digest: Hash | None
) -> ArrayHeader:
    """Reads a `.npy` header, checks it against the stored size, and adds the content to a digest.

    The digest covers arrays and not the file, so that a renamed or recompressed copy is the same
    corpus.

    Args:
        path: of the corpus, for messages.
        file: at the beginning of the array.
        size: stored bytes, header included.
        name: of the array.
        digest: updated with header and content; None leaves the content unread.

    Raises:
        UserError: for an array that is damaged, or that only a pickle could hold.
    """
    try:
        header = _read_header(file)
    except BROKEN:
        raise
    except Exception as error:  # numpy evaluates the text of a header: anything can go wrong
        raise UserError(f"{path}: array {name!r} has no readable .npy header.") from error
    if header.dtype.hasobject:
        raise UserError(
            f"{path}: array {name!r} holds Python objects, which only a pickle can store and "
            "opening could run code; store numbers or strings. In Python, msajax.save_corpus pads "
            "lists of sequences and writes them as such an archive."
        )
    declared = math.prod(header.shape) * header.dtype.itemsize
    stored = size - file.tell()
    if declared != stored:
        raise UserError(
            f"{path}: array {name!r} declares {declared} bytes but {stored} are stored."
        )
    if digest is None:
        return header
    # Equal bytes in column-major order are another content.
    order = "columns first " if header.column_major else ""
    digest.update(f"{name} {header.dtype.str} {order}{header.shape}\n".encode())
    while block := file.read(_CHUNK):
        digest.update(block)
        stored -= len(block)
        if header.dtype.kind == "U":
            check_characters(path, name, block, header.dtype.byteorder)
    if stored:  # the size came from an archive's directory, which can be wrong
        raise UserError(f"{path}: array {name!r} ends {stored} bytes too early.")
    return header


def _read_header(file: BinaryIO) -> ArrayHeader:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        header = ArrayHeader(*np.lib.format.read_array_header_1_0(file))
    elif version == (2, 0):
        header = ArrayHeader(*np.lib.format.read_array_header_2_0(file))
    else:
        raise ValueError(f"unknown .npy version {version}")
    if min(header.shape, default=0) < 0:
        raise ValueError(f"negative size in {header.shape}")
    return header


def check_characters(path: str, name: str, block: bytes, byteorder: str) -> None:
    """Refuses code points that Python could not write as UTF-8 later."""
    codes = np.frombuffer(block, np.dtype(np.uint32).newbyteorder(byteorder))
    if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any():
        raise UserError(f"{path}: array {name!r} holds characters that Unicode does not have.")


def _names_in(arrays: dict[str, ArrayHeader], split: str) -> list[str]:
    return [name.removeprefix(f"{split}/") for name in arrays if name.startswith(f"{split}/")]


def _split_header(
    path: str, split: str, arrays: dict[str, ArrayHeader], small: dict[str, np.ndarray]
) -> SplitHeader:
    names = _names_in(arrays, split)
    if "id" not in names:
        raise UserError(f"{path}: split {split!r} has no ids ({split}/id is missing).")
    extras = {"id", "label", "raw_text", WORDS}
    masks = {n for n in names if n.endswith("_mask")}
    modalities = [n for n in names if n not in extras | masks | _BESIDE_TEXT]
    size = arrays[f"{split}/id"].shape[0] if arrays[f"{split}/id"].shape else 0

    for name in sorted(extras & set(names)):
        header = arrays[f"{split}/{name}"]
        wanted = "biuf" if name == "label" else "U"
        fits = header.dtype.kind in wanted and header.dtype.itemsize > 0
        if not fits or len(header.shape) not in _AXES.get(name, (1,)) or (
            name == WORDS and 0 in header.shape
        ):
            raise UserError(
                f"{path}: {split}/{name} is {header.dtype} of shape {header.shape}; expected "
                f"{_EXPECTED.get(name, 'strings (N,)')}."
            )
    for m in modalities:
        if m.lower() in _LABELS_ELSEWHERE:
            raise UserError(
                f"{path}: {split}/{m} would be a modality, which models read: labels are named "
                f"{split}/label."
            )
        header = arrays[f"{split}/{m}"]
        is_tokens = header.dtype.kind in "iu" and len(header.shape) == 2
        shape = _shape_in_steps(header)
        if not is_tokens and (header.dtype.kind not in "fiu" or len(shape) != 3):
            raise UserError(
                f"{path}: {split}/{m} is {header.dtype} of shape {header.shape}; "
                "expected numbers of shape (N, T, d) or (N, d), or token ids: whole numbers (N, T)."
            )
        if 0 in shape[1:] and not is_tokens:
            raise UserError(
                f"{path}: {split}/{m} has {shape[1]} steps of {shape[2]} features; both must be 1 "
                "or more."
            )
    for name in sorted(masks):
        m = name.removesuffix("_mask")
        if m not in modalities:
            raise UserError(f"{path}: {split}/{name} masks no modality of that split.")
        header, wanted = arrays[f"{split}/{name}"], _shape_in_steps(arrays[f"{split}/{m}"])[:2]
        fits = header.shape == wanted or (*header.shape, 1) == wanted
        if header.dtype != np.bool_ or not fits:
            raise UserError(
                f"{path}: {split}/{name} is {header.dtype} of shape {header.shape}; "
                f"expected bool of shape {wanted}."
            )
    for name in _BESIDE_TEXT & set(names):
        header, text = arrays[f"{split}/{name}"], arrays.get(f"{split}/text")
        steps = () if text is None else _shape_in_steps(text)
        require_beside_text(f"{path}: {split}/{name}", header.dtype, header.shape, steps)
    for name in names:
        rows = arrays[f"{split}/{name}"].shape[0]
        if rows != size:
            raise UserError(f"{path}: {split}/{name} has {rows} rows, but {split}/id has {size}.")

    described: dict[str, Any] = {"label_names": ()}
    if "label" in names:
        given = _label_names(path, small)
        described = read_labels(path, split, small[f"{split}/label"], small[f"{split}/id"], given)
    return SplitHeader(
        size=size,
        shapes={m: (*_shape_in_steps(arrays[f"{split}/{m}"])[1:], 0)[:2] for m in modalities},
        dtypes={m: arrays[f"{split}/{m}"].dtype.name for m in modalities},
        masked=frozenset(n.removesuffix("_mask") for n in masks),
        has_raw_text="raw_text" in names,
        words=arrays[f"{split}/{WORDS}"].shape[1] if WORDS in names else 0,
        **described,
    )


def _shape_in_steps(features: ArrayHeader | np.ndarray) -> tuple[int, ...]:
    """Returns the shape in which features are read: real numbers (N, d) are a step, (N, 1, d).

    Features that were pooled over time are passed around without their axis of steps; whole
    numbers of two axes are token ids.
    """
    shape = features.shape
    return (shape[0], 1, shape[1]) if features.dtype.kind == "f" and len(shape) == 2 else shape


def _label_names(path: str, small: dict[str, np.ndarray]) -> tuple[str, ...]:
    names = small.get(LABEL_NAME, np.empty(0, "U1"))
    if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) < len(names):
        raise UserError(f"{path}: {LABEL_NAME} must be different strings of shape (K,).")
    return require_names(names.tolist(), f"{path}: {LABEL_NAME}")


def _aligned(path: str, small: dict[str, np.ndarray]) -> tuple[str, ...] | None:
    """Returns the modalities that are said to share their steps; None if nothing is said."""
    names = small.get(ALIGNED)
    if names is None:
        return None
    if names.dtype.kind != "U" or names.ndim != 1:
        raise UserError(
            f"{path}: {ALIGNED} is {names.dtype} of shape {names.shape}; expected names of "
            "modalities, strings (A,)."
        )
    return tuple(names.tolist())


def _embedding(path: str, small: dict[str, np.ndarray]) -> Embedding | None:
    """Returns by which text encoder the text was made; None if none is named."""
    stored = small.get(EMBEDDING)
    if stored is None:
        return None
    text = stored[0] if stored.dtype.kind == "U" and stored.shape == (1,) else ""
    return Embedding.from_json(str(text), f"{path}: {EMBEDDING}")


def _as_labels(labels: np.ndarray) -> np.ndarray:
    return labels.astype(np.float64).reshape(len(labels), math.prod(labels.shape[1:]))


def make_corpus(
    *,
    source: Source,
    digest: str,
    arrays: dict[str, ArrayHeader],
    small: dict[str, np.ndarray],
    load: Callable[[str], np.ndarray],
) -> Corpus:
    """Makes a corpus of named arrays, which are read when a split is asked for.

    Args:
        source: what the corpus is made of.
        digest: of its content.
        arrays: every array's header.
        small: the arrays that `SMALL` names.
        load: reads an array by name; an error of `DAMAGED` that it raises becomes one sentence.

    Raises:
        UserError: for wrong names, types, shapes or labels.
    """
    path = source.path
    source = dataclasses.replace(source, embedding=_embedding(path, small))
    headers = {s: _split_header(path, s, arrays, small) for s in SPLITS if _names_in(arrays, s)}

    def read(split: str) -> Split:
        header = headers[split]
        try:
            features = {m: load(f"{split}/{m}") for m in header.shapes}
            features = {m: x.reshape(_shape_in_steps(x)) for m, x in features.items()}
            masks = {m: load(f"{split}/{m}_mask") for m in header.masked}
            return Split(
                ids=load(f"{split}/id"),
                features=features,
                masks={m: mask.reshape(features[m].shape[:2]) for m, mask in masks.items()},
                labels=_as_labels(load(f"{split}/label")) if header.label_names else None,
                raw_text=load(f"{split}/raw_text") if header.has_raw_text else None,
                words=load(f"{split}/{WORDS}") if header.words else None,
                segments=load(segments) if (segments := f"{split}/{SEGMENTS}") in arrays else None,
                pieces=load(pieces) if (pieces := f"{split}/{PIECES}") in arrays else None,
            )
        except (KeyError, *DAMAGED) as error:
            raise UserError(f"{path} changed or went bad while in use: {reason(error)}.") from error

    return Corpus(
        source=source,
        digest=digest,
        headers=headers,
        ids={split: small[f"{split}/id"].tolist() for split in headers},
        read=read,
        aligned=_aligned(path, small),
    )


def require_beside_text(
    where: str, dtype: np.dtype, shape: Sequence[int], text: Sequence[int]
) -> None:
    """Refuses an array that does not fit the text step by step.

    Args:
        where: the file, then `<split>/text_segments` or `<split>/text_pieces`, for the message.
        dtype: of the array.
        shape: of the array.
        text: the shape of the text, `(N, T, d)` or for token ids `(N, T)`; () without text.

    Raises:
        UserError: for another kind of text, type or shape.
    """
    split, _, name = where.rpartition("/")
    kinds, axes, of, wanted = _KINDS[name]
    if len(text) != axes:
        split = split.rpartition(" ")[2]
        raise UserError(f"{where} is there, but {split}/text is no {of}.")
    if dtype.kind not in kinds or tuple(shape) != tuple(text[:2]):
        raise UserError(
            f"{where} is {dtype} of shape {shape}; expected {wanted} of shape {tuple(text[:2])}."
        )
