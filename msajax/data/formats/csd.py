"""The CMU Multimodal SDK: a folder of `.csd` files, aligned to words and opinion segments.

A sample is a segment, named `video[i]` with i counted from 0 in time order, and its steps are the
words that start in it. Every modality has the same steps: text the vector of the word, the others
the mean of their rows during the word. A segment without words has one step, the segment as a
whole, and no text.
"""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping

import numpy as np

from msajax.config import DataConfig
from msajax.data.alignment import mean_rows, overlap_any, words_of_segments
from msajax.data.corpus import (
    SPLITS,
    Corpus,
    Source,
    Split,
    SplitHeader,
    is_finite,
    modality_order,
    require_modest_padding,
)
from msajax.data.folds import choose_folds, mosi_folds
from msajax.data.formats.csd_file import ComputationalSequence, Rows
from msajax.data.formats.csd_folder import CsdFolder, files, sort_out
from msajax.data.glove import WordVectors, read_glove
from msajax.data.labels import MOST_OUTPUTS, clip_sentiment, describe_labels
from msajax.errors import UserError

logger = logging.getLogger(__name__)

MOSI_WORD_SHIFT = -0.04
"""Seconds added to the words of CMU-MOSI to find their segments. Its word file is late against its
labels: most segments end where their last word starts, which would fall to the next one."""

_PAUSES = ("sp", "")
_MOSEI_LABELS = ("sentiment", "happy", "sad", "anger", "surprise", "disgust", "fear")


@dataclasses.dataclass(frozen=True)
class _Steps:
    """The steps of one video's segments: S of them, segment by segment in time order.

    Attributes:
        labels: `[N, K]` float64.
        segment: `[S]`, which of the N segments a step belongs to.
        column: `[S]`, its place there.
        intervals: `[S, 2]` seconds.
        words: S words; None for a segment as a whole.
    """

    labels: np.ndarray
    segment: np.ndarray
    column: np.ndarray
    intervals: np.ndarray
    words: list[str | None]


def matches(path: str | os.PathLike) -> bool:
    """Whether `path` is a folder with a `.csd` file in it."""
    return os.path.isdir(path) and bool(files(os.fspath(path), ".csd"))


def open_csd(folder: str | os.PathLike, data: DataConfig) -> Corpus:
    """Opens a folder of computational sequences.

    Every file is checked and read once. Labels and words stay in memory; other features are read
    and aligned when a split is asked for, one video at a time. The digest covers the files' bytes,
    the folds, the shift and the word vectors.

    Args:
        folder: with the `.csd` files, and at most one `.json` file with folds.
        data: `glove_path`, word vectors for the modality text; without them words are `raw_text`
            alone. `word_shift`; rows of other sequences are averaged over the word's own interval
            in any case. `split_seed`, for a corpus without folds.

    Raises:
        UserError: for a folder whose files do not make a corpus, and for files that are damaged.
    """
    folder = os.fspath(folder)
    glove_path = data.glove_path or None
    parts = sort_out(folder)
    labels, clipped = _read_labels(parts.labels)
    segments = {rows.video: rows for rows in labels}
    counts = {video: len(rows.intervals) for video, rows in segments.items()}
    if data.word_shift == "auto":
        word_shift = MOSI_WORD_SHIFT if mosi_folds(counts) else 0.0
    else:
        word_shift = float(data.word_shift)
    folds = choose_folds(folder, counts, parts.folds_file, data.split_seed)
    said = _read_words(parts.words, segments)
    videos = {
        video: _place_words(segments[video], words, spoken, word_shift)
        for video, (words, spoken) in said.items()
    }
    total = sum(len(words) for words, _ in said.values())
    _require_words(folder, videos, total, word_shift)
    vectors = _read_vectors(folder, parts, videos, glove_path)
    if not parts.modalities and vectors is None:
        raise UserError(
            f"{folder} has labels and {'words' if parts.words else 'nothing else'}, but no "
            "features: name a GloVe text file in data.glove_path, or add .csd files of features."
        )
    _report(folder, parts, videos, vectors, word_shift, total)

    widths = {m: sequence.width for m, sequence in parts.modalities.items()}
    if vectors is not None:
        widths["text"] = vectors.vectors.shape[1]
    headers = {}
    for name in filter(folds.__contains__, SPLITS):
        steps = [videos[video] for video in folds[name]]
        lengths = np.concatenate([np.bincount(s.segment, minlength=1) for s in steps])
        for m, width in widths.items():
            require_modest_padding(f"{folder}: {name}/{m}", lengths, lengths, width)
        longest = int(lengths.max())
        headers[name] = SplitHeader(
            size=sum(len(s.labels) for s in steps),
            shapes={m: (longest, width) for m, width in widths.items()},
            dtypes=dict.fromkeys(widths, "float32"),
            masked=frozenset(widths),
            has_raw_text=parts.words is not None,
            **describe_labels(
                np.concatenate([s.labels for s in steps]),
                integers=False,
                names=_label_names(parts.labels.width),
            ),
        )
    told: set[str] = set()

    def read(name: str) -> Split:
        steps = {video: videos[video] for video in folds[name]}
        try:
            return _read_split(folder, name, headers[name], steps, parts.modalities, vectors, told)
        except MemoryError as error:
            raise UserError(
                f"{folder}: split {name!r}, {headers[name].size} segments of up to "
                f"{headers[name].shapes} steps and features, does not fit into memory."
            ) from error

    return Corpus(
        source=Source(
            folder,
            "CMU Multimodal SDK",
            repairs={"clipped_labels": clipped},
            has_vectors=vectors is not None,
        ),
        digest=_digest(parts, folds, word_shift, vectors),
        headers=headers,
        ids={name: _ids({v: videos[v] for v in folds[name]}) for name in headers},
        read=read,
        aligned=modality_order(set(widths)),
    )


# --- labels, words and their vectors ---


def _label_names(width: int) -> tuple[str, ...]:
    if width == len(_MOSEI_LABELS):
        return _MOSEI_LABELS
    return ("sentiment",) if width == 1 else tuple(str(k) for k in range(width))


def _read_labels(labels: ComputationalSequence) -> tuple[list[Rows], int]:
    """The segments of every video, labels in float64, and how many of sentiment were clipped."""
    if labels.width > MOST_OUTPUTS:
        raise UserError(
            f"{labels.path}: labels have {labels.width} columns; at most {MOST_OUTPUTS} are read."
        )
    found = []
    for rows in labels.rows(labels.videos):
        values = rows.features.astype(np.float64)
        usable = is_finite(values).all(axis=1)
        if not usable.all():
            raise UserError(
                f"{labels.path}: the labels of '{rows.video}[{np.argmin(usable)}]' are not finite "
                "float32 numbers."
            )
        found.append(dataclasses.replace(rows, features=values))
    if _label_names(labels.width)[0] != "sentiment":
        return found, 0
    return found, clip_sentiment(labels.path, [rows.features[:, 0] for rows in found])


def _read_words(
    words: ComputationalSequence | None, videos: Iterable[str]
) -> dict[str, tuple[list[str], np.ndarray]]:
    """The words of each video, without pauses, and their intervals `[W, 2]`."""
    found = {video: ([], np.zeros((0, 2))) for video in videos}
    for rows in words.rows(found) if words else ():
        try:
            tokens = [" ".join(token.decode().split()) for token in rows.features[:, 0].tolist()]
        except UnicodeDecodeError as error:
            raise UserError(
                f"{words.path}: the words of video {rows.video!r} are not UTF-8 text."
            ) from error
        kept = [k for k, token in enumerate(tokens) if token not in _PAUSES]
        found[rows.video] = [tokens[k] for k in kept], rows.intervals[kept]
    return found


def _place_words(segments: Rows, words: list[str], spoken: np.ndarray, shift: float) -> _Steps:
    first, last = words_of_segments(spoken[:, 0], segments.intervals, shift)
    steps, intervals, placed = np.maximum(last - first, 1), [np.zeros((0, 2))], []
    for k, (start, stop) in enumerate(zip(first, last, strict=True)):
        intervals.append(spoken[start:stop] if start < stop else segments.intervals[k : k + 1])
        placed += words[start:stop] or [None]
    segment = np.repeat(np.arange(len(steps)), steps)
    column = np.arange(len(segment)) - np.repeat(np.cumsum(steps) - steps, steps)
    return _Steps(segments.features, segment, column, np.concatenate(intervals), placed)


def _require_words(
    folder: str, videos: Mapping[str, _Steps], total: int, word_shift: float
) -> None:
    placed = any(word is not None for steps in videos.values() for word in steps.words)
    if total and not placed:
        raise UserError(
            f"{folder}: none of {total} words lies in a labelled segment with data.word_shift = "
            f"{word_shift:g} s."
        )


def _read_vectors(
    folder: str,
    parts: CsdFolder,
    videos: Mapping[str, _Steps],
    glove_path: str | os.PathLike | None,
) -> WordVectors | None:
    if not glove_path:
        return None
    if "text" in parts.modalities:
        raise UserError(
            f"{parts.modalities['text'].path} and {glove_path} are both the modality 'text'; leave "
            "one of them out."
        )
    if parts.words is None:
        raise UserError(f"{folder} has no file of words that {glove_path} could have vectors of.")
    vocabulary = {word for steps in videos.values() for word in steps.words if word is not None}
    vectors = read_glove(glove_path, vocabulary)
    if not vectors.words:
        raise UserError(f"{glove_path} has none of the {len(vocabulary)} words of {folder}.")
    return vectors


def _report(
    folder: str,
    parts: CsdFolder,
    videos: Mapping[str, _Steps],
    vectors: WordVectors | None,
    word_shift: float,
    total: int,
) -> None:
    """Says what was taken for what, and how well the parts fit; `total` counts all words."""
    found = parts.sequences
    logger.info(
        "%s: %s.", folder, ", ".join(f"{name} from {s.name!r}" for name, s in found.items())
    )
    for name, sequence in found.items():
        missing = len(set(videos) - set(sequence.videos))
        if missing:
            logger.warning("%s: %s lacks %d of %d videos.", folder, name, missing, len(videos))
    if parts.words is None:
        return
    words = [word for steps in videos.values() for word in steps.words]
    silent = sum(word is None for word in words)
    logger.info(
        "%s: %d words placed, of %d in these videos, with word_shift %g s; the others lie in no "
        "labelled segment; %d segment(s) without words.",
        folder,
        len(words) - silent,
        total,
        word_shift,
        silent,
    )
    if vectors is not None:
        known = set(vectors.words)
        unknown = sum(word is not None and word not in known for word in words)
        logger.info(
            "%s: %d of %d words (%.1f %%) have no vector and stay valid steps of zeros.",
            folder,
            unknown,
            len(words) - silent,
            100 * unknown / (len(words) - silent),
        )


def _digest(
    parts: CsdFolder, folds: dict[str, list[str]], word_shift: float, vectors: WordVectors | None
) -> str:
    digest = hashlib.sha256(json.dumps([folds, word_shift], sort_keys=True).encode())
    for name, sequence in sorted(parts.sequences.items()):
        try:
            with open(sequence.path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"{sequence.path} cannot be read: {error.strerror}.") from error
        digest.update(f"\n{name} {content}".encode())
    if vectors is not None:
        order = np.argsort(vectors.words)
        digest.update(json.dumps(np.array(vectors.words)[order].tolist()).encode())
        digest.update(vectors.vectors[order].astype("<f4").tobytes())
    return digest.hexdigest()


# --- one split ---


def _read_split(
    folder: str,
    name: str,
    header: SplitHeader,
    videos: Mapping[str, _Steps],
    sequences: Mapping[str, ComputationalSequence],
    vectors: WordVectors | None,
    told: set[str],
) -> Split:
    shapes = {m: (header.size, *shape) for m, shape in header.shapes.items()}
    features = {m: np.zeros(shape, np.float32) for m, shape in shapes.items()}
    masks = {m: np.zeros(shape[:2], bool) for m, shape in shapes.items()}
    sizes = [len(steps.labels) for steps in videos.values()]
    offsets = dict(zip(videos, np.cumsum(sizes) - sizes, strict=True))

    def place(m: str, video: str, values: np.ndarray, present: np.ndarray) -> None:
        steps = videos[video]
        features[m][offsets[video] + steps.segment, steps.column] = values
        masks[m][offsets[video] + steps.segment, steps.column] = present

    for m, sequence in sequences.items():
        rows_read = left_out = outside = 0
        for rows in sequence.rows(videos):
            *means, bad = mean_rows(rows.features, rows.intervals, videos[rows.video].intervals)
            place(m, rows.video, *means)
            rows_read, left_out = rows_read + len(rows.intervals), left_out + bad
            outside += int((~overlap_any(rows.intervals, videos[rows.video].intervals)).sum())
        if outside and f"{name}/{m} outside" not in told:
            told.add(f"{name}/{m} outside")
            logger.info(
                "%s: %d of %d rows of %s/%s lie in no step, which is a word of a labelled segment "
                "or a segment without words, and are not read.",
                *(folder, outside, rows_read, name, m),
            )
        if left_out and f"{name}/{m}" not in told:
            told.add(f"{name}/{m}")
            logger.warning(
                "%s: %d of %d rows of %s/%s hold a value that is not finite and are left out of "
                "the means.",
                folder,
                left_out,
                rows_read,
                name,
                m,
            )
    if vectors is not None:
        row_of = {word: k for k, word in enumerate(vectors.words)}
        table = np.concatenate([vectors.vectors, np.zeros_like(vectors.vectors[:1])])
        for video, steps in videos.items():
            values = table[[row_of.get(word, -1) for word in steps.words]]
            place("text", video, values, np.array([word is not None for word in steps.words], bool))
    return Split(
        ids=np.array(_ids(videos)),
        features=features,
        masks=masks,
        labels=np.concatenate([steps.labels for steps in videos.values()]),
        raw_text=_transcripts(videos) if header.has_raw_text else None,
        derived=frozenset(masks),
    )


def _ids(videos: Mapping[str, _Steps]) -> list[str]:
    return [f"{v}[{i}]" for v, steps in videos.items() for i in range(len(steps.labels))]


def _transcripts(videos: Mapping[str, _Steps]) -> np.ndarray:
    texts = []
    for steps in videos.values():
        spoken: list[list[str]] = [[] for _ in steps.labels]
        for k, word in zip(steps.segment, steps.words, strict=True):
            spoken[k] += [word] if word is not None else []
        texts += [" ".join(words) for words in spoken]
    return np.array(texts)
