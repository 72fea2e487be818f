"""Reads and writes named arrays (`arrays.py`), never pickled: in a `.npz` archive, or in a folder.

    <archive>.npz        the native format; without names of splits (text, label, id …) its arrays
                         are one set of samples, which are split by video

    corpus.json          the mapped format, a folder: the names of the arrays, the digest of all
    <split>/<array>.npy  one file each

The folder is for corpora that are larger than memory: opening reads ids, labels and the headers of
other arrays, which are read from disk as they are used. Its digest is that of the same arrays in an
archive; it is checked before the corpus is trained on, evaluated, converted or inspected.
"""

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, Source
from msajax.corpus.folds import rows_of_splits
from msajax.corpus.formats import arrays
from msajax.corpus.formats.arrays import (
    ALIGNED,
    EMBEDDING,
    LABEL_NAME,
    MANIFEST,
    ORIGIN,
    PIECES,
    SEGMENTS,
    TIMES,
    WORDS,
)
from msajax.corpus.labels import describe_labels
from msajax.corpus.on_demand import take_rows
from msajax.errors import UserError, reading

_LARGEST_WORDS = 1 << 33  # bytes
_MANIFEST, _FORMAT, _VERSION = "corpus.json", "msajax corpus", 1
_CHUNK = 1 << 20
_DEFAULT = DataConfig()


# --- what is written ---


def named_arrays(corpus: Corpus) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and content of every array of a corpus, in the order of names.

    One split is in memory at a time. Classes are stored as whole numbers, so that they are classes
    when they are read again. Words become an array of text, in which each takes as much as the
    longest.

    Raises:
        UserError: if words take more than a few gigabytes.
    """
    if corpus.aligned is not None:
        yield ALIGNED, np.array(corpus.aligned, np.str_)
    if corpus.source.embeddings:
        yield EMBEDDING, np.array([one.to_json() for one in corpus.source.embeddings])
    if names := _stored_label_names(corpus):
        yield LABEL_NAME, np.array(names)
    if corpus.source.manifest is not None:
        yield MANIFEST, np.array(json.dumps(corpus.source.manifest))
    for name in sorted(corpus.headers):
        split, header = corpus.split(name), corpus.headers[name]
        found = {"id": split.ids, **split.features}
        found |= {f"{m}_mask": mask for m, mask in split.masks.items()}
        found |= {f"{m}{TIMES}": times for m, times in split.times.items()}
        others = {"raw_text": split.raw_text, SEGMENTS: split.segments, PIECES: split.pieces}
        others[ORIGIN] = split.word_origin
        found |= {key: array for key, array in others.items() if array is not None}
        if split.labels is not None:
            kind = np.int64 if header.label_kind == "classes" else np.float64
            labels = split.labels.astype(kind)
            found["label"] = labels[:, 0] if labels.shape[1] == 1 else labels
        if (words := split.words) is not None and words.dtype.kind != "U":
            longest = max(map(len, words.flat), default=0)
            if 4 * longest * words.size > _LARGEST_WORDS:
                raise UserError(
                    f"{split.where}: {words.size} words take over {_LARGEST_WORDS} bytes when each "
                    f"has room for the {longest} letters of the longest: leave that one out."
                )
            words = words.astype(np.str_)
        if words is not None:
            found[WORDS] = words
        for key in sorted(found):
            yield f"{name}/{key}", np.ascontiguousarray(found[key])


def _stored_label_names(corpus: Corpus) -> tuple[str, ...]:
    """Returns the names of the labels or classes, or () if reading would give them the same."""
    header = next((h for h in corpus.headers.values() if h.label_names), None)
    if header is None:
        return ()
    if header.label_kind == "classes":
        own = any(name != str(value) for value, name in header.classes.items())
        if own:
            return tuple(header.classes.values())
    usual = describe_labels(np.zeros((1, len(header.label_names))), integers=False)
    return () if header.label_names == usual["label_names"] else header.label_names


def save_native(path: str | os.PathLike, corpus: Corpus) -> None:
    """Writes a corpus as a native archive, compressed, at `path` exactly, a split at a time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in named_arrays(corpus):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


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
        _check_file(path, name, digest)
        names.append(name)
    manifest = {"format": _FORMAT, "version": _VERSION, "sha256": digest.hexdigest()}
    with open(os.path.join(path, _MANIFEST), "w", encoding="utf-8") as file:
        json.dump(manifest | {"arrays": names}, file, indent=2)


# --- the archive ---


def matches(path: str) -> bool:
    """Says whether the file at `path` begins like a zip archive."""
    if not os.path.isfile(path):  # opening a pipe would wait for its writer
        return False
    with reading(path), open(path, "rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def open_native(path: str, data: DataConfig = _DEFAULT) -> Corpus:
    """Opens a native archive: reads every byte once for the digest, and keeps headers only.

    `data` says by `split_seed` and `folds` how an archive without splits is split.

    Raises:
        UserError: for a damaged archive, a pickled array, a wrong name, type, shape or label; for
            an archive without splits, if the ids tell no videos, or too few.
    """
    with arrays.in_one_sentence(f"{path} is damaged or not an .npz archive", *arrays.DAMAGED):
        with zipfile.ZipFile(path) as archive:
            # After a damaged length an entry of the directory contains those that follow, and
            # zipfile does not count entries: a mask would be missing without an error.
            if any(b"PK\1\2" in info.comment + info.extra for info in archive.infolist()):
                raise zipfile.BadZipFile("its directory is inconsistent")
            files = archive.namelist()
            # An archive without splits is read as train alone, which is split by video below.
            is_whole = "id.npy" in files and not any("/" in file for file in files)
            if files and not is_whole and not any("/" in file for file in files):
                raise UserError(
                    f"{path}: none of its arrays is of a split, as train/audio, and there is no "
                    "'id' among them: without splits it needs id, which names the video of each "
                    "sample, as in 'video[0]'."
                )
            members = {}
            for file in files:
                is_of_split = is_whole and file.removesuffix(".npy") not in arrays.OF_CORPUS
                members[arrays.array_name(path, f"train/{file}" if is_of_split else file)] = file
            if len(members) != len(files):
                raise UserError(f"{path} holds two arrays of the same name.")
            headers, digest = {}, hashlib.sha256()
            for name in sorted(members):
                size = archive.getinfo(members[name]).file_size
                with archive.open(members[name]) as file:
                    headers[name] = arrays.check_array(path, file, size, name, digest)
            small = {
                name: _load_member(archive, members[name])
                for name in headers
                if name.rsplit("/", 1)[-1] in arrays.SMALL
            }

    def load(name: str) -> np.ndarray:
        with zipfile.ZipFile(path) as archive:
            return _load_member(archive, members[name])

    source = Source(path, "native npz")
    corpus = arrays.make_corpus(
        source=source, digest=digest.hexdigest(), arrays=headers, small=small, load=load
    )
    if not is_whole:
        return corpus

    # All samples are in train: they are split by video, and none is in memory twice.
    ids = small["train/id"].tolist()
    rows = rows_of_splits(path, ids, data)
    digest = hashlib.sha256(corpus.digest.encode())
    for name, chosen in rows.items():
        digest.update(f"{name} {chosen.tolist()}".encode())
    (header,) = corpus.headers.values()
    return Corpus(
        source=corpus.source,
        digest=digest.hexdigest(),
        headers={s: dataclasses.replace(header, size=len(chosen)) for s, chosen in rows.items()},
        ids={name: [ids[row] for row in chosen] for name, chosen in rows.items()},
        read=lambda name: take_rows(corpus.split("train"), rows[name]),
        aligned=corpus.aligned,
    )


def _load_member(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


# --- the folder ---


def matches_folder(path: str) -> bool:
    """Says whether `path` is a folder with a manifest."""
    return os.path.isfile(os.path.join(path, _MANIFEST))


def open_mapped(path: str) -> Corpus:
    """Opens a mapped folder; features stay on disk until used. Raises `UserError` for a bad one."""
    names, digest = _read_index(path)
    headers = {name: _check_file(path, name, None) for name in names}

    def load(name: str) -> np.ndarray:
        file_name = os.path.join(path, f"{name}.npy")
        try:
            array = np.load(file_name, mmap_mode="r", allow_pickle=False)
        except ValueError:  # an empty array cannot be mapped
            array = np.load(file_name, allow_pickle=False)
        for start in range(0, array.size if array.dtype.kind == "U" else 0, _CHUNK):
            block = np.ascontiguousarray(array.ravel()[start : start + _CHUNK])
            arrays.check_characters(path, name, block.tobytes(), array.dtype.byteorder)
        return array

    corpus = arrays.make_corpus(
        source=Source(path, "mapped folder"),
        digest=digest,
        arrays=headers,
        small={name: load(name) for name in names if name.rsplit("/", 1)[-1] in arrays.SMALL},
        load=load,
    )
    corpus.verify = lambda: _verify(path, names, corpus.digest)
    return corpus


def _verify(path: str, names: list[str], expected: str) -> None:
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
        _check_file(path, name, digest)
    if digest.hexdigest() != expected:
        raise UserError(f"{path} is damaged: its content does not match the digest in {_MANIFEST}.")


def _read_index(path: str) -> tuple[list[str], str]:
    where = os.path.join(path, _MANIFEST)
    wrong = (OSError, ValueError, LookupError, TypeError, RecursionError)
    with arrays.in_one_sentence(f"{where} is no manifest", *wrong):
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
    return names, digest


def _check_file(path: str, name: str, digest: Any) -> arrays.ArrayHeader:
    file_name = os.path.join(path, f"{name}.npy")
    with reading(file_name):
        if not os.path.isfile(file_name):
            raise UserError(f"{path}: {name}.npy is missing.")
        with open(file_name, "rb") as file:
            return arrays.check_array(path, file, os.path.getsize(file_name), name, digest)
