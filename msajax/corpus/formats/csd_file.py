"""Reads one file of the CMU Multimodal SDK: `.csd`, HDF5 inside.

    <root>/data/<video>/features    (n, d) numbers, or (n, 1) fixed-width bytes: words
    <root>/data/<video>/intervals   (n, 2) start and end of each row in seconds

The one root group may have any name, `metadata` beside `data` is not read, and rows come in any
order. A file comes from someone else: it may not lead to other files, nor declare sizes that it
does not store.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator

import h5py
import numpy as np

from msajax.corpus.formats import hdf5
from msajax.errors import UserError

LARGEST = 1 << 30  # bytes of one video's features, or of one compressed chunk
_LONGEST_NAME = 200
_WIDEST = 1 << 16  # features of one row


@dataclasses.dataclass(frozen=True)
class Rows:
    """Holds the rows of one video, in the order of their starts."""

    video: str
    features: np.ndarray  # `[n, d]` numbers, or `[n, 1]` bytes, as stored
    intervals: np.ndarray  # `[n, 2]` float64, start and end in seconds; no end precedes its start


@dataclasses.dataclass(frozen=True)
class ComputationalSequence:
    """Describes a file that has been checked, and reads its rows one video at a time."""

    path: str
    name: str  # the name of the root group
    videos: tuple[str, ...]  # ids, sorted by code points
    size: int  # rows of all videos
    width: int  # features per row
    is_bytes: bool  # tells bytes, as words are, from numbers
    # The median over videos of the median length of a row in seconds, 0 without rows
    duration: float

    def rows(self, videos: Iterable[str]) -> Iterator[Rows]:
        """Yields the rows of `videos` that there are; raises `UserError` if the file went bad."""
        known = set(self.videos)
        with _open_videos(self.path) as data:
            for video in filter(known.__contains__, videos):
                dataset = _features(self.path, data, video)
                intervals = _read_intervals(self.path, data, video, len(dataset))
                features = hdf5.load(self.path, dataset)
                order = np.argsort(intervals[:, 0], kind="stable")
                if (order[1:] < order[:-1]).any():
                    features, intervals = features[order], intervals[order]
                if _form(features) != (self.width, self.is_bytes):
                    raise UserError(f"{self.path} changed while in use.")
                yield Rows(video, features, intervals)


def read_csd(path: str | os.PathLike) -> ComputationalSequence:
    """Checks a file: reads every interval and every dataset in chunks, and keeps none of them.

    Raises:
        UserError: for a file that is damaged, no HDF5, or of another structure; for intervals that
            are not finite or end before they start, links, and sizes that it cannot hold.
    """
    path = os.fspath(path)
    with _open_videos(path) as data:
        name = data.name.split("/")[1]
        for video in data:
            _check_name(path, video)
        videos = sorted(data)
        if not videos:
            raise UserError(f"{path}: {data.name} holds no video.")
        first = _features(path, data, videos[0])
        durations, size = [], 0
        for video in videos:
            features = _features(path, data, video)
            if _form(features) != _form(first):
                raise UserError(
                    f"{path}: the features of {video!r} are {hdf5.form_of(features)}, but those "
                    f"of {videos[0]!r} are {hdf5.form_of(first)}."
                )
            intervals = _read_intervals(path, data, video, len(features))
            if features.chunks is not None:
                hdf5.load(path, features)  # a damaged chunk is found now, not after training
            size += len(intervals)
            if len(intervals):
                durations.append(np.median(intervals[:, 1] - intervals[:, 0]))
        return ComputationalSequence(
            path=path,
            name=name,
            videos=tuple(videos),
            size=size,
            width=first.shape[1],
            is_bytes=first.dtype.kind == "S",
            duration=float(np.median(durations)) if durations else 0.0,
        )


@contextlib.contextmanager
def _open_videos(path: str) -> Iterator[h5py.Group]:
    with hdf5.opened(path) as file:
        names = list(file)
        if len(names) != 1:
            raise UserError(
                f"{path}: {len(names)} objects at the top; a computational sequence has one root "
                "group."
            )
        _check_name(path, names[0])
        root = hdf5.member(path, file, names[0], h5py.Group)
        yield hdf5.member(path, root, "data", h5py.Group)


def _check_name(path: str, name: str | bytes) -> None:
    """Refuses names that cannot be ids in a file of predictions."""
    # h5py returns a name that is no UTF-8 as bytes.
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise UserError(
            f"{path}: the name {name[:_LONGEST_NAME]!r} is not UTF-8 of at most {_LONGEST_NAME} "
            "characters."
        )


def _dataset(path: str, data: h5py.Group, video: str, name: str) -> h5py.Dataset:
    group = hdf5.member(path, data, video, h5py.Group)
    dataset = hdf5.dataset(path, group, name, LARGEST)
    if dataset.dtype.kind not in ("fiuS" if name == "features" else "fiu") or dataset.ndim != 2:
        wanted = "numbers or bytes (n, d)" if name == "features" else "numbers (n, 2)"
        raise UserError(f"{path}: {dataset.name} is {hdf5.form_of(dataset)}; expected {wanted}.")
    return dataset


def _features(path: str, data: h5py.Group, video: str) -> h5py.Dataset:
    features = _dataset(path, data, video, "features")
    is_bytes = features.dtype.kind == "S"
    if not 1 <= features.shape[1] <= (1 if is_bytes else _WIDEST):
        limit = "one column" if is_bytes else f"1 to {_WIDEST} columns"
        raise UserError(f"{path}: {features.name} is {hdf5.form_of(features)}; expected {limit}.")
    return features


def _read_intervals(path: str, data: h5py.Group, video: str, rows: int) -> np.ndarray:
    dataset = _dataset(path, data, video, "intervals")
    if dataset.shape != (rows, 2):
        raise UserError(
            f"{path}: {dataset.name} is {hdf5.form_of(dataset)}; expected {rows} rows of start "
            "and end, as many as there are features."
        )
    intervals = hdf5.load(path, dataset).astype(np.float64)
    usable = np.isfinite(intervals).all(axis=1) & (intervals[:, 0] <= intervals[:, 1])
    if not usable.all():
        row = int(np.argmin(usable))
        raise UserError(
            f"{path}: row {row} of {dataset.name} is {intervals[row].tolist()}; expected finite "
            "seconds, the end not before the start."
        )
    return intervals


def _form(features: h5py.Dataset | np.ndarray) -> tuple[int, bool]:
    """Returns what all videos share: columns, and whether they hold bytes, of whatever width."""
    return features.shape[1], features.dtype.kind == "S"
