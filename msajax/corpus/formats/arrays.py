"""Reads and writes corpora as named arrays, in the native archive and in the mapped folder.

    <split>/<modality>        (N, T, d) numbers, (N, d) float: one step, or (N, T) int: token ids
    <split>/<modality>_mask   (N, T) bool, or (N,) for one step; optional
    <split>/label             (N,) or (N, K) float, or (N,) int: classes; optional
    <split>/id                (N,) str
    <split>/raw_text          (N,) str, optional
    <split>/words             (N, T) str, the words step by step, "" for none, optional
    <split>/text_segments     (N, T) int, the segment ids of token ids as text, optional
    <split>/text_pieces       (N, T) str, the piece that each step of embedded text is, optional
    <split>/<modality>_times  (N, T, 2) float64, seconds from start to end of a step, optional
    <split>/word_origin       (N, T) int8, how the time of a word is known, optional
    label_name                (K,) str, names of the K labels or classes, optional
    aligned                   (A,) str, the modalities that share their steps, optional; A = 0: none
    embedding                 (E,) str, which pretrained encoders made features, optional
    manifest                  () str, JSON: how features of recordings were made, optional

Splits are train, valid and test. Each modality that is not aligned may have its own T. `label_name`
and `aligned` exist so that `convert` keeps what other formats say.
"""

import contextlib
import dataclasses
import json
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from msajax.corpus.corpus import (
    SPLIT_NAMES,
    SPLITS,
    Corpus,
    Embedding,
    Source,
    Split,
    SplitHeader,
    are_characters,
    count_transcripts,
)
from msajax.corpus.labels import read_labels, require_names
from msajax.errors import UserError

WORDS, SEGMENTS, PIECES, ORIGIN = "words", "text_segments", "text_pieces", "word_origin"
# By name: types, numbers of axes, what is expected.
_EXTRAS = {
    "id": ("U", (1,), "strings (N,)"),
    "label": ("biuf", (1, 2), "numbers (N,) or (N, K)"),
    "raw_text": ("U", (1,), "strings (N,)"),
    WORDS: ("U", (2,), "strings (N, T)"),
    ORIGIN: ("i", (2,), "whole numbers (N, T)"),
}
# By name: types, axes of the text that it goes with step by step, what such a text is, what it is.
_BESIDE_TEXT = {
    SEGMENTS: ("iu", 2, "token ids", "whole numbers"),
    PIECES: ("U", 3, "features", "strings"),
}
LABEL_NAME, ALIGNED, EMBEDDING, MANIFEST = "label_name", "aligned", "embedding", "manifest"
OF_CORPUS = (LABEL_NAME, ALIGNED, EMBEDDING, MANIFEST)
SMALL = ("label", "id", "raw_text", *OF_CORPUS)  # arrays that opening a corpus reads
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
# RuntimeError: an encrypted member, or a compression that zipfile does not know.
DAMAGED = (*_BROKEN, RuntimeError, ValueError)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}")
TIMES = "_times"  # how the names of the times of a modality end
_LABELS_ELSEWHERE = ("labels", "regression_labels")  # as other formats call them
_BESIDE_MODALITIES = (*_EXTRAS, *_BESIDE_TEXT)
RESERVED = {*_BESIDE_MODALITIES, *_LABELS_ELSEWHERE}  # no modality is called so
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class ArrayHeader:
    """Holds what the header of a `.npy` file declares."""

    shape: tuple[int, ...]
    column_major: bool
    dtype: np.dtype


def reason(error: Exception) -> str:
    """Shortens what a library found wrong, which may quote kilobytes, to a part of a sentence."""
    return " ".join(str(error).split())[:100].rstrip(".") or type(error).__name__


@contextlib.contextmanager
def in_one_sentence(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of some kinds into a `UserError` that says what is wrong, and the reason."""
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(f"{what}: {reason(error)}.") from error


def array_name(path: str, member: str) -> str:
    """Returns an array's name, `train/text` of `train/text.npy`; raises `UserError` if unknown."""
    name = member.removesuffix(".npy")
    split, _, array = name.partition("/")
    if split not in SPLITS and split in SPLIT_NAMES:
        right = SPLIT_NAMES[split]
        raise UserError(f"{path}: {member[:40]!r} is of no split: rename {split}/… to {right}/….")
    known = name in OF_CORPUS or (split in SPLITS and NAME.fullmatch(array))
    if name == member or not known:
        raise UserError(
            f"{path}: {member[:40]!r} does not belong in a native archive, whose arrays are named "
            "<split>/<modality>, <split>/<modality>_mask or _times, <split>/label, <split>/id, "
            "<split>/raw_text, <split>/words, <split>/word_origin, <split>/text_segments or "
            "<split>/text_pieces with "
            f"split one of {', '.join(SPLITS)}, {', '.join(OF_CORPUS)}; or all without <split>/, "
            "id among them."
        )
    return name


def check_array(path: str, file: BinaryIO, size: int, name: str, digest: Any) -> ArrayHeader:
    """Reads a `.npy` header, checks it against the stored size, and adds the content to a digest.

    The digest covers arrays and not the file, so that a renamed or recompressed copy is the same
    corpus.

    Args:
        path: the file or folder, for messages.
        file: stands where the array begins.
        size: stored bytes, header included.
        digest: one of `hashlib`, to which header and content are added under the array's name;
            None leaves the content unread.

    Raises:
        UserError: for an array that is damaged, or that only a pickle could hold.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            header = ArrayHeader(*np.lib.format.read_array_header_1_0(file))
        elif version == (2, 0):
            header = ArrayHeader(*np.lib.format.read_array_header_2_0(file))
        else:
            raise ValueError(f"unknown .npy version {version}")
        if min(header.shape, default=0) < 0:
            raise ValueError(f"negative size in {header.shape}")
    except _BROKEN:
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


def check_characters(path: str, name: str, block: bytes, byteorder: str) -> None:
    """Refuses code points that Python could not write as UTF-8 later."""
    if not are_characters(block, byteorder):
        raise UserError(f"{path}: array {name!r} holds characters that Unicode does not have.")


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
        source: lacks the embeddings and the manifest, which arrays hold.
        arrays: every array's header.
        small: the arrays that `SMALL` names.
        load: reads an array by name; an error of `DAMAGED` that it raises becomes one sentence.

    Raises:
        UserError: for wrong names, types, shapes or labels.
    """
    # What is of the corpus as a whole, then a header for each split.
    path = source.path
    if (stored := small.get(EMBEDDING)) is not None:
        texts = stored.tolist() if stored.dtype.kind == "U" and stored.ndim == 1 else [""]
        found = tuple(Embedding.from_json(str(text), f"{path}: {EMBEDDING}") for text in texts)
        source = dataclasses.replace(source, embeddings=found)
    if (stored := small.get(MANIFEST)) is not None:
        source = dataclasses.replace(source, manifest=_read_manifest(path, stored))
    there = {name.partition("/")[0] for name in arrays}
    headers = {s: _split_header(path, s, arrays, small) for s in SPLITS if s in there}
    aligned = small.get(ALIGNED)
    if aligned is not None and (aligned.dtype.kind != "U" or aligned.ndim != 1):
        raise UserError(
            f"{path}: {ALIGNED} is {aligned.dtype} of shape {aligned.shape}; expected names of "
            "modalities, strings (A,)."
        )

    def read(split: str) -> Split:
        header = headers[split]
        try:
            features = {m: load(f"{split}/{m}") for m in header.shapes}
            features = {m: x.reshape(_shape_in_steps(x)) for m, x in features.items()}
            masks = {m: load(f"{split}/{m}_mask") for m in header.masked}
            masks = {m: mask.reshape(features[m].shape[:2]) for m, mask in masks.items()}
            names = [n for n in _BESIDE_MODALITIES if f"{split}/{n}" in arrays]
            found = {n: load(f"{split}/{n}") for n in names}
            timed = [n for n in arrays if n.startswith(f"{split}/") and n.endswith(TIMES)]
            times = {n.partition("/")[2].removesuffix(TIMES): load(n) for n in timed}
            if (labels := found.get("label")) is not None:
                labels = labels.astype(np.float64).reshape(len(labels), math.prod(labels.shape[1:]))
        except (KeyError, *DAMAGED) as error:
            raise UserError(f"{path} changed or went bad while in use: {reason(error)}.") from error
        return Split(
            ids=found["id"],
            features=features,
            masks=masks,
            labels=labels,
            raw_text=found.get("raw_text"),
            words=found.get(WORDS),
            segments=found.get(SEGMENTS),
            pieces=found.get(PIECES),
            times=times,
            word_origin=found.get(ORIGIN),
        )

    return Corpus(
        source=source,
        digest=digest,
        headers=headers,
        ids={split: small[f"{split}/id"].tolist() for split in headers},
        read=read,
        aligned=None if aligned is None else tuple(aligned.tolist()),
    )


def _read_manifest(path: str, stored: np.ndarray) -> dict[str, Any]:
    try:
        manifest = json.loads(str(stored[()])) if stored.dtype.kind == "U" else None
    except (ValueError, RecursionError, TypeError):
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("columns"), dict):
        raise UserError(
            f"{path}: {MANIFEST} does not say how features were made: write the corpus anew with "
            "--mode extract."
        )
    return manifest


def _split_header(
    path: str, split: str, arrays: dict[str, ArrayHeader], small: dict[str, np.ndarray]
) -> SplitHeader:
    found = {
        name.removeprefix(f"{split}/"): header
        for name, header in arrays.items()
        if name.startswith(f"{split}/")
    }
    if "id" not in found:
        raise UserError(f"{path}: split {split!r} has no ids ({split}/id is missing).")
    masks = {n for n in found if n.endswith("_mask")}
    times = {n for n in found if n.endswith(TIMES)}
    modalities = [n for n in found if n not in {*_BESIDE_MODALITIES, *masks, *times}]
    shapes = {m: _shape_in_steps(found[m]) for m in modalities}
    size = found["id"].shape[0] if found["id"].shape else 0

    # What is of a sample, and features: types and axes.
    def misfit(name: str, expected: str) -> UserError:
        header = found[name]
        where = f"{path}: {split}/{name} is {header.dtype} of shape {header.shape}"
        return UserError(f"{where}; expected {expected}.")

    for name in sorted(_EXTRAS.keys() & found.keys()):
        kinds, axes, expected = _EXTRAS[name]
        dtype, shape = found[name].dtype, found[name].shape
        fits = dtype.kind in kinds and dtype.itemsize > 0 and len(shape) in axes
        if not fits or (name == WORDS and 0 in shape):
            raise misfit(name, expected)
    for m, shape in shapes.items():
        if m.lower() in _LABELS_ELSEWHERE:
            raise UserError(
                f"{path}: {split}/{m} would be a modality, which models read: labels are named "
                f"{split}/label."
            )
        dtype = found[m].dtype
        is_tokens = dtype.kind in "iu" and len(shape) == 2
        if not is_tokens and (dtype.kind not in "fiu" or len(shape) != 3):
            expected = "numbers of shape (N, T, d) or (N, d), or token ids: whole numbers (N, T)"
            raise misfit(m, expected)
        if 0 in shape[1:] and not is_tokens:
            raise UserError(
                f"{path}: {split}/{m} has {shape[1]} steps of {shape[2]} features; both must be 1 "
                "or more."
            )
    # What goes with a modality step by step: masks, times, and what stands beside text.
    for name in sorted(masks):
        m = name.removesuffix("_mask")
        if m not in shapes:
            raise UserError(f"{path}: {split}/{name} masks no modality of that split.")
        header, wanted = found[name], shapes[m][:2]
        if header.dtype != np.bool_ or wanted not in (header.shape, (*header.shape, 1)):
            raise misfit(name, f"bool of shape {wanted}")
    words = found[WORDS].shape if WORDS in found else None
    steps_of = {f"{m}{TIMES}": (*shape[:2], 2) for m, shape in shapes.items()}
    steps_of |= {f"text{TIMES}": (*words, 2), ORIGIN: words} if words else {}
    for name in sorted({*times, *({ORIGIN} & found.keys())}):
        if name not in steps_of:
            raise UserError(f"{path}: {split}/{name} is of no modality, or words, of that split.")
        header, kind = found[name], "i" if name == ORIGIN else "f"
        if header.dtype.kind != kind or header.shape != steps_of[name]:
            numbers = "whole numbers" if kind == "i" else "real numbers"
            raise misfit(name, f"{numbers} of shape {steps_of[name]}")
    for name, (kinds, axes, kind_of_text, expected) in _BESIDE_TEXT.items():
        if name not in found:
            continue
        header, steps = found[name], shapes.get("text", ())
        if len(steps) != axes:
            raise UserError(
                f"{path}: {split}/{name} is there, but {split}/text is no {kind_of_text}."
            )
        if header.dtype.kind not in kinds or header.shape != steps[:2]:
            raise misfit(name, f"{expected} of shape {steps[:2]}")
    # Every array has a row for each sample.
    for name, header in found.items():
        if header.shape[0] != size:
            raise UserError(
                f"{path}: {split}/{name} has {header.shape[0]} rows, but {split}/id has {size}."
            )

    described: dict[str, Any] = {}
    if "label" in found:
        names = small.get(LABEL_NAME, np.empty(0, "U1"))
        if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) < len(names):
            raise UserError(f"{path}: {LABEL_NAME} must be different strings of shape (K,).")
        given = require_names(names.tolist(), f"{path}: {LABEL_NAME}")
        described = read_labels(path, split, small[f"{split}/label"], small[f"{split}/id"], given)
    return SplitHeader(
        size=size,
        shapes={m: (*shape[1:], 0)[:2] for m, shape in shapes.items()},
        dtypes={m: found[m].dtype.name for m in modalities},
        masked=frozenset(n.removesuffix("_mask") for n in masks),
        has_raw_text="raw_text" in found,
        transcripts=count_transcripts(small.get(f"{split}/raw_text")),
        words=found[WORDS].shape[1] if WORDS in found else 0,
        **described,
    )


def _shape_in_steps(features: ArrayHeader | np.ndarray) -> tuple[int, ...]:
    """Returns (N, 1, d) for real numbers (N, d), pooled over time; token ids (N, T) stay."""
    shape = features.shape
    return (shape[0], 1, shape[1]) if features.dtype.kind == "f" and len(shape) == 2 else shape
