"""Reads the CMU Multimodal SDK: a folder of `.csd` files, aligned to words and opinion segments.

A sample is a segment, named `video[i]` with i counted from 0 in time order, and its steps are the
words that start in it. Every modality has the same steps: text the word or its vector, the others
the mean of their rows over the word's own interval. A segment without words has one step, the
segment as a whole, and no text. Times are seconds in float64.

The files of a folder are told apart by name and content; the metadata in them is not read:

    labels      the numbers whose root group or file name holds "label"; without such a name, those
                whose rows last the longest, four times as long as those of any other file
    words       the one file of bytes; a file of phones is ignored
    modalities  all other files: audio (covarep, acoustic), video (facet, openface, visual, vision),
                text (glove, word vectors), or the root group's name
    folds       the `.json` file, if there is one
"""

import collections
import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import (
    SPLITS,
    Corpus,
    Source,
    Split,
    SplitHeader,
    is_finite,
    modality_order,
    pad_words,
    require_modest_padding,
)
from msajax.corpus.folds import choose_folds, mosi_folds
from msajax.corpus.formats.csd_file import ComputationalSequence, Rows, read_csd
from msajax.corpus.formats.pickled import list_folder
from msajax.corpus.glove import WordVectors, read_vectors
from msajax.corpus.labels import MOST_OUTPUTS, clip_sentiment, describe_labels
from msajax.errors import UserError, reading
from msajax.files import digest_of

logger = logging.getLogger(__name__)

MOSI_WORD_SHIFT = -0.04
"""Seconds added to the words of CMU-MOSI to find their segments. Its word file is late against its
labels: most segments end where their last word starts, which would fall to the next one. With the
shift 178 of 229 transcripts agree with an aligned release, without it 54. In other corpora a shift
would move first words out of their segments."""

TOUCH = 1e-4
"""Seconds by which intervals may overlap and still only touch: time stamps in float32 are no finer
half an hour into a video, and a neighbour's row would be a third of a word's mean."""

_LONGER = 4.0  # rows of labels against the rows of anything else
_MOST_ROWS = 1 << 24  # of labels or words, which are kept in memory
_USUAL_NAMES = {
    "text": r"glove|word_?vectors?|(^|_)text($|_)",
    "audio": "covarep|acoustic|audio",
    "video": "facet|openface|visual|vision|video",
}
_RESERVED = re.compile(r"id|words|.*_mask|")  # names that mean something else in files, reports
_LONGEST_NAME = 95  # of a modality: in an archive its mask's name is five longer
_PAUSES = ("sp", "")
_MOSEI_LABELS = ("sentiment", "happy", "sad", "anger", "surprise", "disgust", "fear")


class _Files(NamedTuple):
    path: str  # the folder
    labels: ComputationalSequence  # numbers, a row per segment
    words: ComputationalSequence | None  # bytes, a row per word or pause
    modalities: dict[str, ComputationalSequence]  # numbers, by the name of the modality
    folds_file: str | None

    @property
    def sequences(self) -> dict[str, ComputationalSequence]:
        words = {"words": self.words} if self.words else {}
        return {"labels": self.labels, **words, **self.modalities}


class _Steps(NamedTuple):
    """Holds the S steps of one video's N segments, segment by segment in time order."""

    labels: np.ndarray  # `[N, K]` float64
    segment: np.ndarray  # `[S]`, the number of the segment that a step belongs to
    column: np.ndarray  # `[S]`, its place there
    intervals: np.ndarray  # `[S, 2]` seconds
    words: list[str | None]  # S words; None for a segment as a whole


def matches(path: str | os.PathLike) -> bool:
    """Says whether `path` is a folder with a `.csd` file in it."""
    return os.path.isdir(path) and bool(_list_files(os.fspath(path), ".csd"))


def open_csd(folder: str | os.PathLike, data: DataConfig) -> Corpus:
    """Opens a folder of computational sequences.

    Every file is checked and read once. Labels and words stay in memory; other features are read
    and aligned when a split is asked for, one video at a time. The digest covers the files' bytes,
    the folds, the shift and the word vectors.

    Args:
        data: `glove_path` names word vectors for the modality text, without which the words are
            transcripts alone; `word_shift` moves words, but not the intervals over which rows of
            other sequences are averaged; `split_seed` counts for a corpus without folds.

    Raises:
        UserError: for a folder whose files do not make a corpus, and for files that are damaged.
    """
    # The labelled segments come first: they say which splits there are.
    path = os.fspath(folder)
    files = _sort_out(path)
    segments, clipped = _read_segments(files.labels)
    counts = {video: len(rows.intervals) for video, rows in segments.items()}
    if data.word_shift == "auto":
        word_shift = MOSI_WORD_SHIFT if mosi_folds(counts) else 0.0
    else:
        word_shift = float(data.word_shift)
    folds = choose_folds(path, counts, files.folds_file, data)

    # Words are placed in segments before anything else is read: they make the steps.
    words_of = _read_words(files.words, segments)
    videos = {
        video: _place_words(segments[video], words, spoken, word_shift)
        for video, (words, spoken) in words_of.items()
    }
    spoken = sum(len(words) for words, _ in words_of.values())
    placed = collections.Counter(w for steps in videos.values() for w in steps.words if w)
    if spoken and not placed:
        raise UserError(
            f"{path}: none of {spoken} words lies in a labelled segment with "
            f"data.word_shift = {word_shift:g} s."
        )

    # What was found, and what does not fit together.
    parts = files.sequences
    logger.info("%s: %s.", path, ", ".join(f"{name} from {s.name!r}" for name, s in parts.items()))
    for name, sequence in parts.items():
        if missing := len(set(videos) - set(sequence.videos)):
            logger.warning("%s: %s lacks %d of %d videos.", path, name, missing, len(videos))
    if files.words is not None:
        silent = sum(word is None for steps in videos.values() for word in steps.words)
        inside = sum(len(steps.words) for steps in videos.values()) - silent
        logger.info(
            "%s: %d words placed, of %d in these videos, with word_shift %g s; the others lie in "
            "no labelled segment; %d segment(s) without words.",
            *(path, inside, spoken, word_shift, silent),
        )

    vectors = None
    widths = {m: sequence.width for m, sequence in files.modalities.items()}
    if data.glove_path:
        if "text" in files.modalities:
            raise UserError(
                f"{files.modalities['text'].path} and {data.glove_path} are both the modality "
                "'text'; leave one of them out."
            )
        if files.words is None:
            raise UserError(
                f"{path} has no file of words that {data.glove_path} could have vectors of."
            )
        vectors = read_vectors(path, data.glove_path, placed)
        widths["text"] = vectors.vectors.shape[1]
    if not widths and files.words is None:
        raise UserError(f"{path} has labels and nothing else: add .csd files of features or words.")

    # Splits are read when they are asked for; the digest covers all that they are made of.
    of_splits = {n: {v: videos[v] for v in folds[n]} for n in SPLITS if n in folds}
    has_words = files.words is not None
    headers = {
        n: _split_header(path, n, widths, has_words, found) for n, found in of_splits.items()
    }
    digest = hashlib.sha256(json.dumps([folds, word_shift], sort_keys=True).encode())
    for name, sequence in sorted(parts.items()):
        with reading(sequence.path):
            digest.update(f"\n{name} {digest_of(sequence.path)}".encode())
    if vectors is not None:
        vectors.add_to(digest)
    said: set[str] = set()
    return Corpus(
        source=Source(
            path,
            "CMU Multimodal SDK",
            repairs={"clipped_labels": clipped},
            has_vectors=vectors is not None,
        ),
        digest=digest.hexdigest(),
        headers=headers,
        ids={name: _segment_ids(found) for name, found in of_splits.items()},
        read=lambda name: _read_split(name, files, vectors, headers[name], of_splits[name], said),
        aligned=modality_order({*widths, *["text"] * has_words}),
    )


def _split_header(
    path: str, name: str, widths: Mapping[str, int], has_words: bool, videos: Mapping[str, _Steps]
) -> SplitHeader:
    lengths = np.concatenate([np.bincount(s.segment, minlength=1) for s in videos.values()])
    for m, width in widths.items():
        require_modest_padding(f"{path}: {name}/{m}", lengths, lengths, width)
    longest = int(lengths.max())
    labels = np.concatenate([steps.labels for steps in videos.values()])
    names = _MOSEI_LABELS if labels.shape[1] == len(_MOSEI_LABELS) else ()
    return SplitHeader(
        size=len(labels),
        shapes={m: (longest, width) for m, width in widths.items()},
        dtypes=dict.fromkeys(widths, "float32"),
        masked=frozenset(widths),
        has_raw_text=has_words,
        transcripts=len(labels) if has_words else 0,
        words=longest if has_words else 0,
        **describe_labels(labels, integers=False, names=names),
    )


def _read_split(
    name: str,
    files: _Files,
    vectors: WordVectors | None,
    header: SplitHeader,
    videos: Mapping[str, _Steps],
    said: set[str],
) -> Split:
    """Reads and aligns the features of a split; logs once what was not read, as `said` tells."""
    shapes = {m: (header.size, *shape) for m, shape in header.shapes.items()}
    features = {m: np.zeros(shape, np.float32) for m, shape in shapes.items()}
    masks = {m: np.zeros(shape[:2], bool) for m, shape in shapes.items()}
    sizes = [len(steps.labels) for steps in videos.values()]
    offsets = dict(zip(videos, np.cumsum(sizes) - sizes, strict=True))

    def place(m: str, video: str, values: np.ndarray, present: np.ndarray) -> None:
        steps = videos[video]
        features[m][offsets[video] + steps.segment, steps.column] = values
        masks[m][offsets[video] + steps.segment, steps.column] = present

    # Means over the steps, video by video, so that a video's rows are in memory at a time.
    for m, sequence in files.modalities.items():
        total = left_out = outside = 0
        for rows in sequence.rows(videos):
            intervals = videos[rows.video].intervals
            means, present, bad = mean_rows(rows.features, rows.intervals, intervals)
            place(m, rows.video, means, present)
            total, left_out = total + len(rows.intervals), left_out + bad
            outside += int((~overlap_any(rows.intervals, intervals)).sum())
        if outside and f"{name}/{m}" not in said:
            logger.info(
                "%s: %d of %d rows of %s lie in no step, which is a word of a labelled segment or "
                "a segment without words, and are not read.",
                *(files.path, outside, total, f"{name}/{m}"),
            )
        if left_out and f"{name}/{m}" not in said:
            logger.warning(
                "%s: %d of %d rows of %s hold a value that is not finite and are left out of the "
                "means.",
                *(files.path, left_out, total, f"{name}/{m}"),
            )
        said.add(f"{name}/{m}")
    # Vectors of words as text; the last row of the table is for words without one.
    if vectors is not None:
        row_of = {word: k for k, word in enumerate(vectors.words)}
        table = np.concatenate([vectors.vectors, np.zeros_like(vectors.vectors[:1])])
        for video, steps in videos.items():
            values = table[[row_of.get(word, -1) for word in steps.words]]
            place("text", video, values, np.array([word is not None for word in steps.words], bool))

    # Transcripts, and words step by step.
    raw_text = words = None
    if header.words:
        of_segments: list[list[str]] = []
        for steps in videos.values():
            of_video: list[list[str]] = [[] for _ in steps.labels]
            for k, word in zip(steps.segment, steps.words, strict=True):
                of_video[k] += [word] if word is not None else []
            of_segments += of_video
        raw_text = np.array([" ".join(found) for found in of_segments])
        words = pad_words(of_segments, header.words)
    return Split(
        ids=np.array(_segment_ids(videos)),
        features=features,
        masks=masks,
        labels=np.concatenate([steps.labels for steps in videos.values()]),
        raw_text=raw_text,
        derived=frozenset(masks),
        words=words,
    )


def _segment_ids(videos: Mapping[str, _Steps]) -> list[str]:
    return [f"{v}[{i}]" for v, steps in videos.items() for i in range(len(steps.labels))]


# --- the files of a folder ---


def _list_files(folder: str, suffix: str) -> list[str]:
    names = [name for name in list_folder(folder) if name.lower().endswith(suffix)]
    return [path for name in names if os.path.isfile(path := os.path.join(folder, name))]


def _sort_out(folder: str) -> _Files:
    sequences = [read_csd(path) for path in _list_files(folder, ".csd")]
    if not sequences:
        raise UserError(f"{folder} holds no .csd file.")
    folds_files = _list_files(folder, ".json")
    if len(folds_files) > 1:
        raise UserError(f"{folder} holds {len(folds_files)} .json files; expected one with folds.")
    labels = _find_labels(folder, sequences)
    words = _find_words(folder, sequences)
    modalities: dict[str, ComputationalSequence] = {}
    for sequence in sequences:
        if sequence.is_bytes or sequence is labels:
            continue
        name = _modality_name(sequence)
        if name in modalities:
            raise UserError(
                f"{modalities[name].path} and {sequence.path} are both the modality {name!r}; "
                "leave one of them in the folder."
            )
        modalities[name] = sequence
    for sequence in (*modalities.values(), *filter(None, [words])):
        if not set(sequence.videos) & set(labels.videos):
            raise UserError(f"{sequence.path} and {labels.path} have no video in common.")
    for sequence in filter(None, (labels, words)):
        if sequence.size > _MOST_ROWS:
            raise UserError(
                f"{sequence.path} has {sequence.size} rows of labels or words; at most "
                f"{_MOST_ROWS} can be held."
            )
    return _Files(folder, labels, words, modalities, next(iter(folds_files), None))


def _names_of(sequence: ComputationalSequence) -> list[str]:
    stem = os.path.splitext(os.path.basename(sequence.path))[0]
    return [re.sub(r"[^a-z0-9]+", "_", n.lower()).strip("_") for n in (sequence.name, stem)]


def _has_in_name(sequence: ComputationalSequence, word: str) -> bool:
    return any(word in name for name in _names_of(sequence))


def _find_labels(folder: str, sequences: list[ComputationalSequence]) -> ComputationalSequence:
    """Finds labels by name; else numbers whose rows last much longer than those of all others."""
    numbers = [s for s in sequences if not s.is_bytes]
    if named := _only(folder, "labels", [s for s in numbers if _has_in_name(s, "label")]):
        return named
    longest = max(numbers, key=lambda s: s.duration, default=None)
    others = [s.duration for s in sequences if s is not longest]
    if longest is None or longest.duration <= _LONGER * max(others, default=0.0):
        found = ", ".join(f"{s.name!r} ({s.duration:.3g} s a row)" for s in sequences)
        raise UserError(
            f"{folder}: none of {found} can be told to be the labels: give the root group or the "
            "file a name with 'label' in it."
        )
    return longest


def _find_words(
    folder: str, sequences: list[ComputationalSequence]
) -> ComputationalSequence | None:
    texts = [s for s in sequences if s.is_bytes]
    words = [s for s in texts if not _has_in_name(s, "phone")]
    for sequence in texts:
        if sequence not in words:
            logger.info("%s holds phones and is not used.", sequence.path)
    return _only(folder, "words", words)


def _only(
    folder: str, what: str, found: list[ComputationalSequence]
) -> ComputationalSequence | None:
    if len(found) > 1:
        raise UserError(
            f"{folder} holds several files of {what}, {found[0].path} and {found[1].path}; leave "
            "one of them in the folder."
        )
    return next(iter(found), None)


def _modality_name(sequence: ComputationalSequence) -> str:
    """Returns text, audio or video for the names of the field's toolkits, else the group's own."""
    names = _names_of(sequence)
    for called in names:
        for name, pattern in _USUAL_NAMES.items():
            if re.search(pattern, called):
                return name
    if _RESERVED.fullmatch(names[0]) or len(names[0]) > _LONGEST_NAME:
        raise UserError(
            f"{sequence.path}: the root group's name {sequence.name!r} cannot name a modality; "
            "rename it."
        )
    return names[0]


# --- the words and segments of a video ---


def _read_segments(labels: ComputationalSequence) -> tuple[dict[str, Rows], int]:
    """Returns the segments by video, sentiment labels clipped, and how many labels were clipped."""
    if labels.width > MOST_OUTPUTS:
        raise UserError(
            f"{labels.path}: labels have {labels.width} columns; at most {MOST_OUTPUTS} are read."
        )
    found = {}
    for rows in labels.rows(labels.videos):
        values = rows.features.astype(np.float64)
        usable = is_finite(values).all(axis=1)
        if not usable.all():
            raise UserError(
                f"{labels.path}: the labels of '{rows.video}[{np.argmin(usable)}]' are not finite "
                "float32 numbers."
            )
        found[rows.video] = dataclasses.replace(rows, features=values)
    if labels.width not in (1, len(_MOSEI_LABELS)):  # then no column is sentiment
        return found, 0
    return found, clip_sentiment(labels.path, [rows.features[:, 0] for rows in found.values()])


def _read_words(
    words: ComputationalSequence | None, videos: Iterable[str]
) -> dict[str, tuple[list[str], np.ndarray]]:
    """Reads the words of each video, without pauses, and their intervals `[W, 2]`."""
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
    """Places the words of a video in its segments.

    Args:
        words: W words in the order of their starts.
        spoken: `[W, 2]`, start and end of each word in seconds.
        shift: seconds added to a word's start to find its segment. The interval of its step stays
            the word's own, because other recordings share the clock of the words.
    """
    first, last = words_of_segments(spoken[:, 0], segments.intervals, shift)
    # A segment without words keeps a step, so that no sample is dropped: the other modalities
    # still say something.
    steps, intervals, placed = np.maximum(last - first, 1), [np.zeros((0, 2))], []
    for k, (start, stop) in enumerate(zip(first, last, strict=True)):
        intervals.append(spoken[start:stop] if start < stop else segments.intervals[k : k + 1])
        placed += words[start:stop] or [None]
    segment = np.repeat(np.arange(len(steps)), steps)
    column = np.arange(len(segment)) - np.repeat(np.cumsum(steps) - steps, steps)
    return _Steps(segments.features, segment, column, np.concatenate(intervals), placed)


def words_of_segments(
    starts: np.ndarray, segments: np.ndarray, shift: float
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the words that start in each segment: `segment start <= word start + shift < end`.

    Args:
        starts: starts of the words, `[W]`, ascending.
        segments: `[N, 2]`, start and end; they may overlap, and share words then.
        shift: seconds added to the words' starts; negative when words come late. It is between
            words and labels: what else was recorded shares the words' clock.

    Returns:
        The first word of each segment, and one behind its last; equal without any. `[N]` each.
    """
    first = np.searchsorted(starts + shift, segments[:, 0], "left")
    return first, np.searchsorted(starts + shift, segments[:, 1], "left")


def overlap_any(rows: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Says which rows `[n, 2]` overlap one of the steps `[S, 2]` by more than `TOUCH` at an end."""
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    before = np.searchsorted(steps[:, 0] + TOUCH, rows[:, 1], "left")  # steps that begin in time
    latest = np.concatenate([[-np.inf], np.maximum.accumulate(steps[:, 1] - TOUCH)])
    return latest[before] > rows[:, 0]


def mean_rows(
    features: np.ndarray, intervals: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Averages the rows that overlap each step.

    The mean is the plain one that the field's own toolkit takes: a row counts in full however
    little of it lies in the step, but for `TOUCH` seconds at either end. A row without length
    counts where it lies inside. Rows that hold a value which is not a finite float32 number are
    left out as a whole.

    Args:
        features: `[n, d]` numbers, in the order of their starts.
        intervals: `[n, 2]`, start and end of each row.
        steps: `[S, 2]`, start and end of each step, in any order.

    Returns:
        The means `[S, d]` float64, exact up to the rounding of a sum, zero for a step without any
        row; whether a step has a row, `[S]` bool; and how many of the n rows were left out.
    """
    usable = is_finite(features).all(axis=1)
    if left_out := int((~usable).sum()):
        features, intervals = features[usable], intervals[usable]
    means, present = np.zeros((len(steps), features.shape[1])), np.zeros(len(steps), bool)
    begin, end = steps[:, 0] + TOUCH, steps[:, 1] - TOUCH
    ends = intervals[:, 1]
    # Rows before `low` have ended by then, rows from `high` on start too late. Between them lie
    # all that overlap and, after a row longer than those that follow, some that do not.
    low = np.searchsorted(np.maximum.accumulate(ends), begin, "right")
    high = np.searchsorted(intervals[:, 0], end, "left")
    # A step at a time, so that memory is bounded whatever overlaps; one reduction over the pairs
    # of all steps would take two thirds of the time.
    for k in np.flatnonzero(low < high):
        rows = slice(low[k], high[k])
        overlapping = features[rows][ends[rows] > begin[k]]
        if len(overlapping):
            means[k], present[k] = overlapping.mean(axis=0, dtype=np.float64), True
    return means, present, left_out
