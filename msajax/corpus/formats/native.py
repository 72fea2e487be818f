"""Reads and writes the native format: named arrays (`arrays.py`) in one `.npz`, never pickled.

Arrays without the names of splits (text, label, id …) are one set of samples, split by video.
"""

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Iterator, Sequence

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import Corpus, Source, Split
from msajax.corpus.folds import rows_of_splits
from msajax.corpus.formats import arrays
from msajax.corpus.formats.arrays import ALIGNED, EMBEDDING, LABEL_NAME, PIECES, SEGMENTS, WORDS
from msajax.corpus.labels import describe_labels
from msajax.corpus.on_demand import take_rows
from msajax.errors import UserError

_LARGEST_WORDS = 1 << 33  # bytes


def named_arrays(corpus: Corpus) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and content of every array of a corpus, in the order of names.

    One split is in memory at a time. Classes are stored as whole numbers, so that they are classes
    when they are read again.
    """
    if corpus.aligned is not None:
        yield ALIGNED, np.array(corpus.aligned, np.str_)
    if corpus.source.embedding is not None:
        yield EMBEDDING, np.array([corpus.source.embedding.to_json()])
    if names := _stored_label_names(corpus):
        yield LABEL_NAME, np.array(names)
    for name in sorted(corpus.headers):
        split, header = corpus.split(name), corpus.headers[name]
        arrays = {"id": split.ids, **split.features}
        arrays |= {f"{m}_mask": mask for m, mask in split.masks.items()}
        if split.labels is not None:
            kind = np.int64 if header.label_kind == "classes" else np.float64
            labels = split.labels.astype(kind)
            arrays["label"] = labels[:, 0] if labels.shape[1] == 1 else labels
        if split.raw_text is not None:
            arrays["raw_text"] = split.raw_text
        if split.words is not None:
            arrays[WORDS] = _as_text(split)
        if split.segments is not None:
            arrays[SEGMENTS] = split.segments
        if split.pieces is not None:
            arrays[PIECES] = split.pieces
        for key in sorted(arrays):
            yield f"{name}/{key}", np.ascontiguousarray(arrays[key])


def _as_text(split: Split) -> np.ndarray:
    """Returns the words of a split as an array of text, in which each takes as much as the longest.

    Raises:
        UserError: if that is more than a few gigabytes.
    """
    words = split.words
    if words.dtype.kind == "U":
        return words
    longest = max(map(len, words.flat), default=0)
    if 4 * longest * words.size > _LARGEST_WORDS:
        raise UserError(
            f"{split.where}: {words.size} words take over {_LARGEST_WORDS} bytes when each has "
            f"room for the {longest} letters of the longest: leave that one out."
        )
    return words.astype(np.str_)


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


_DEFAULT = DataConfig()


def matches(path: str) -> bool:
    """Says whether the file at `path` begins like a zip archive."""
    if not os.path.isfile(path):  # opening a pipe would wait for its writer
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def open_native(path: str, data: DataConfig = _DEFAULT) -> Corpus:
    """Opens a native archive: reads every byte once for the digest, and keeps headers only.

    Args:
        path: of the archive.
        data: `split_seed` and `folds`, for an archive without splits.

    Raises:
        UserError: for a damaged archive, a pickled array, a wrong name, type, shape or label.
    """
    try:
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
            members = {arrays.array_name(path, _in_split(file, is_whole)): file for file in files}
            if len(members) != len(files):
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
            return _load(archive, members[name])

    corpus = arrays.make_corpus(
        source=Source(path, "native npz"),
        digest=digest.hexdigest(),
        arrays=headers,
        small=small,
        load=load,
    )
    return split_by_video(corpus, small["train/id"].tolist(), data) if is_whole else corpus


def _in_split(file: str, is_whole: bool) -> str:
    """Returns the name of a member as an archive with splits would have it."""
    is_of_split = is_whole and file.removesuffix(".npy") not in arrays.OF_CORPUS
    return f"train/{file}" if is_of_split else file


def split_by_video(corpus: Corpus, ids: Sequence[str], data: DataConfig) -> Corpus:
    """Makes the splits of a corpus whose samples are all in train; none is in memory twice.

    Args:
        corpus: with that split alone.
        ids: of the samples.
        data: as `rows_of_splits` takes it.

    Raises:
        UserError: if the ids tell no videos, or too few.
    """
    rows = rows_of_splits(corpus.path, ids, data)
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


def _load(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def save_native(path: str | os.PathLike, corpus: Corpus) -> None:
    """Writes a corpus as a native archive, compressed, at `path` exactly, a split at a time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in named_arrays(corpus):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
