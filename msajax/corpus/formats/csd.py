"""Reads the CMU Multimodal SDK: a folder of `.csd` files, aligned to words and opinion segments.

A sample is a segment, named `video[i]` with i counted from 0 in time order, and its steps are the
words that start in it. Every modality has the same steps: text the word or its vector, the others
the mean of their rows during the word. A segment without words has one step, the segment as a
whole, and no text.
"""

import collections
import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping

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
from msajax.corpus.glove import WordVectors, read_vectors
from msajax.corpus.labels import MOST_OUTPUTS, clip_sentiment, describe_labels
from msajax.errors import UserError

logger = logging.getLogger(__name__)

_LONGER = 4.0  # rows of labels against the rows of anything else
_MOST_ROWS = 1 << 24  # of labels or words, which are kept in memory
_USUAL_NAMES = {
    "text": r"glove|word_?vectors?|(^|_)text($|_)",
    "audio": "covarep|acoustic|audio",
    "video": "facet|openface|visual|vision|video",
}
_RESERVED = re.compile(r"id|words|.*_mask|")  # names that mean something else in files, reports
_LONGEST_NAME = 95  # of a modality: in an archive its mask's name is five longer


@dataclasses.dataclass(frozen=True)
class CsdFolder:
    """Holds the files of a folder by what they are.

    Attributes:
        path: the folder.
        labels: numbers, a row per segment.
        words: bytes, a row per word or pause; None without.
        modalities: numbers, by the name of the modality.
        folds_file: path of the JSON file, or None.
    """

    path: str
    labels: ComputationalSequence
    words: ComputationalSequence | None
    modalities: dict[str, ComputationalSequence]
    folds_file: str | None

    @property
    def sequences(self) -> dict[str, ComputationalSequence]:
        """The files that are used, by name: labels, words, then the modalities."""
        words = {"words": self.words} if self.words else {}
        return {"labels": self.labels, **words, **self.modalities}


def files(folder: str, suffix: str) -> list[str]:
    """Lists the files of a folder whose names end in `suffix`, whatever their case, sorted."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}.") from error
    paths = [os.path.join(folder, name) for name in names if name.lower().endswith(suffix)]
    return [path for path in paths if os.path.isfile(path)]


def sort_out(folder: str) -> CsdFolder:
    """Checks every file of a folder and tells them apart.

    Raises:
        UserError: for a bad file, for two that claim one part, and for none that is the labels.
    """
    sequences = [read_csd(path) for path in files(folder, ".csd")]
    if not sequences:
        raise UserError(f"{folder} holds no .csd file.")
    folds_files = files(folder, ".json")
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
    return CsdFolder(folder, labels, words, modalities, next(iter(folds_files), None))


def _names(sequence: ComputationalSequence) -> tuple[str, str]:
    """Returns the names of a sequence: of its root group, then of its file."""
    stem = os.path.splitext(os.path.basename(sequence.path))[0]
    return _normalised(sequence.name), _normalised(stem)


def _named(sequence: ComputationalSequence, word: str) -> bool:
    return any(word in name for name in _names(sequence))


def _normalised(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _find_labels(folder: str, sequences: list[ComputationalSequence]) -> ComputationalSequence:
    numbers = [s for s in sequences if not s.is_bytes]
    named = [s for s in numbers if _named(s, "label")]
    if len(named) > 1:
        raise UserError(
            f"{folder} holds several files of labels, {named[0].path} and {named[1].path}; leave "
            "one of them in the folder."
        )
    if named:
        return named[0]
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
    words = [s for s in texts if not _named(s, "phone")]
    for sequence in texts:
        if sequence not in words:
            logger.info("%s holds phones and is not used.", sequence.path)
    if len(words) > 1:
        raise UserError(
            f"{folder} holds several files of words, {words[0].path} and {words[1].path}; leave "
            "one of them in the folder."
        )
    return words[0] if words else None


def _modality_name(sequence: ComputationalSequence) -> str:
    for called in _names(sequence):
        for name, pattern in _USUAL_NAMES.items():
            if re.search(pattern, called):
                return name
    name = _normalised(sequence.name)
    if _RESERVED.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UserError(
            f"{sequence.path}: the root group's name {sequence.name!r} cannot name a modality; "
            "rename it."
        )
    return name


_PAUSES = ("sp", "")
_MOSEI_LABELS = ("sentiment", "happy", "sad", "anger", "surprise", "disgust", "fear")


@dataclasses.dataclass(frozen=True)
class Steps:
    """Holds the S steps of one video's N segments, segment by segment in time order.

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


def label_names(width: int) -> tuple[str, ...]:
    """Names the columns of labels: seven are those of CMU-MOSEI, one is sentiment."""
    if width == len(_MOSEI_LABELS):
        return _MOSEI_LABELS
    return ("sentiment",) if width == 1 else tuple(str(k) for k in range(width))


def read_labels(labels: ComputationalSequence) -> tuple[dict[str, Rows], int]:
    """Reads the segments of every video, by video, and clips labels of sentiment.

    Returns:
        The segments, labels as float64; and how many labels were clipped.

    Raises:
        UserError: for labels that are not finite, and for too many columns of them.
    """
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
    if label_names(labels.width)[0] != "sentiment":
        return found, 0
    return found, clip_sentiment(labels.path, [rows.features[:, 0] for rows in found.values()])


def read_words(
    words: ComputationalSequence | None, videos: Iterable[str]
) -> dict[str, tuple[list[str], np.ndarray]]:
    """Reads the words of each video, without pauses, and their intervals `[W, 2]`.

    Raises:
        UserError: for words that are not UTF-8 text.
    """
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


def place_words(segments: Rows, words: list[str], spoken: np.ndarray, shift: float) -> Steps:
    """Places the words of a video in its segments.

    Args:
        segments: their labels and intervals.
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
    return Steps(segments.features, segment, column, np.concatenate(intervals), placed)


def segment_ids(videos: Mapping[str, Steps]) -> list[str]:
    """Names the segments of the videos, in their order: `video[i]`, i counted from 0."""
    return [f"{v}[{i}]" for v, steps in videos.items() for i in range(len(steps.labels))]


def words_of(videos: Mapping[str, Steps]) -> list[list[str]]:
    """Returns the words of each segment, in their order; a segment without words has none."""
    found: list[list[str]] = []
    for steps in videos.values():
        of_video: list[list[str]] = [[] for _ in steps.labels]
        for k, word in zip(steps.segment, steps.words, strict=True):
            of_video[k] += [word] if word is not None else []
        found += of_video
    return found


def transcripts(videos: Mapping[str, Steps]) -> np.ndarray:
    """Joins the words of each segment: `[N]` str, N the segments of all videos."""
    return np.array([" ".join(words) for words in words_of(videos)])


MOSI_WORD_SHIFT = -0.04
"""Seconds added to the words of CMU-MOSI to find their segments. Its word file is late against its
labels: most segments end where their last word starts, which would fall to the next one. With the
shift 178 of 229 transcripts agree with an aligned release, without it 54. In other corpora a shift
would move first words out of their segments."""


@dataclasses.dataclass(frozen=True)
class _Content:
    """Holds what opening a folder has read of it.

    Attributes:
        parts: the files.
        videos: the steps of every video that has labels.
        vectors: of the words; None without.
        word_shift: seconds by which words were shifted to find their segments.
        said: splits and modalities whose unread rows have been logged, which happens once.
    """

    parts: CsdFolder
    videos: dict[str, Steps]
    vectors: WordVectors | None
    word_shift: float
    said: set[str] = dataclasses.field(default_factory=set)


def matches(path: str | os.PathLike) -> bool:
    """Says whether `path` is a folder with a `.csd` file in it."""
    return os.path.isdir(path) and bool(files(os.fspath(path), ".csd"))


def open_csd(folder: str | os.PathLike, data: DataConfig) -> Corpus:
    """Opens a folder of computational sequences.

    Every file is checked and read once. Labels and words stay in memory; other features are read
    and aligned when a split is asked for, one video at a time. The digest covers the files' bytes,
    the folds, the shift and the word vectors.

    Args:
        folder: with the `.csd` files, and at most one `.json` file with folds.
        data: `glove_path`, word vectors for the modality text; without them the words are
            transcripts alone. `word_shift`; rows of other sequences are averaged
            over the word's own interval in any case. `split_seed`, for a corpus without folds.

    Raises:
        UserError: for a folder whose files do not make a corpus, and for files that are damaged.
    """
    parts = sort_out(os.fspath(folder))
    segments, clipped = read_labels(parts.labels)
    counts = {video: len(rows.intervals) for video, rows in segments.items()}
    if data.word_shift == "auto":
        word_shift = MOSI_WORD_SHIFT if mosi_folds(counts) else 0.0
    else:
        word_shift = float(data.word_shift)
    folds = choose_folds(parts.path, counts, parts.folds_file, data)
    said = read_words(parts.words, segments)
    videos = {
        video: place_words(segments[video], words, spoken, word_shift)
        for video, (words, spoken) in said.items()
    }
    spoken = sum(len(words) for words, _ in said.values())
    placed = collections.Counter(w for steps in videos.values() for w in steps.words if w)
    if spoken and not placed:
        raise UserError(
            f"{parts.path}: none of {spoken} words lies in a labelled segment with "
            f"data.word_shift = {word_shift:g} s."
        )
    _log_parts(parts, videos, spoken, word_shift)
    vectors = _read_vectors(parts, placed, data.glove_path) if data.glove_path else None
    if not (parts.modalities or vectors is not None or parts.words is not None):
        raise UserError(
            f"{parts.path} has labels and nothing else: add .csd files of features or words."
        )
    content = _Content(parts, videos, vectors, word_shift)
    of_splits = {n: {v: videos[v] for v in folds[n]} for n in SPLITS if n in folds}
    headers = {name: _header(content, name, found) for name, found in of_splits.items()}

    def read(name: str) -> Split:
        try:
            return _read_split(content, name, headers[name], of_splits[name])
        except MemoryError as error:
            raise UserError(
                f"{parts.path}: split {name!r}, {headers[name].size} segments of up to "
                f"{headers[name].shapes} steps and features, does not fit into memory."
            ) from error

    return Corpus(
        source=Source(
            parts.path,
            "CMU Multimodal SDK",
            repairs={"clipped_labels": clipped},
            has_vectors=vectors is not None,
        ),
        digest=_digest(content, folds),
        headers=headers,
        ids={name: segment_ids(found) for name, found in of_splits.items()},
        read=read,
        aligned=modality_order({*_widths(content), *["text"] * (parts.words is not None)}),
    )


def _read_vectors(
    parts: CsdFolder, placed: collections.Counter[str], glove_path: str
) -> WordVectors:
    if "text" in parts.modalities:
        raise UserError(
            f"{parts.modalities['text'].path} and {glove_path} are both the modality 'text'; leave "
            "one of them out."
        )
    if parts.words is None:
        raise UserError(
            f"{parts.path} has no file of words that {glove_path} could have vectors of."
        )
    return read_vectors(parts.path, glove_path, placed)


def _log_parts(
    parts: CsdFolder, videos: Mapping[str, Steps], spoken: int, word_shift: float
) -> None:
    """Logs what was taken for what, and how well the parts fit; `spoken` counts all words."""
    found = parts.sequences
    logger.info(
        "%s: %s.", parts.path, ", ".join(f"{name} from {s.name!r}" for name, s in found.items())
    )
    for name, sequence in found.items():
        missing = len(set(videos) - set(sequence.videos))
        if missing:
            logger.warning("%s: %s lacks %d of %d videos.", parts.path, name, missing, len(videos))
    if parts.words is None:
        return
    words = [word for steps in videos.values() for word in steps.words]
    silent = sum(word is None for word in words)
    logger.info(
        "%s: %d words placed, of %d in these videos, with word_shift %g s; the others lie in no "
        "labelled segment; %d segment(s) without words.",
        *(parts.path, len(words) - silent, spoken, word_shift, silent),
    )


def _widths(content: _Content) -> dict[str, int]:
    """Returns the features of a step, by modality."""
    widths = {m: sequence.width for m, sequence in content.parts.modalities.items()}
    if content.vectors is not None:
        widths["text"] = content.vectors.vectors.shape[1]
    return widths


def _digest(content: _Content, folds: dict[str, list[str]]) -> str:
    digest = hashlib.sha256(json.dumps([folds, content.word_shift], sort_keys=True).encode())
    for name, sequence in sorted(content.parts.sequences.items()):
        try:
            with open(sequence.path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"{sequence.path} cannot be read: {error.strerror}.") from error
        digest.update(f"\n{name} {found}".encode())
    if (vectors := content.vectors) is not None:
        order = np.argsort(vectors.words)
        digest.update(json.dumps(np.array(vectors.words)[order].tolist()).encode())
        digest.update(vectors.vectors[order].astype("<f4").tobytes())
    return digest.hexdigest()


# --- one split ---


def _header(content: _Content, name: str, videos: Mapping[str, Steps]) -> SplitHeader:
    widths = _widths(content)
    lengths = np.concatenate([np.bincount(s.segment, minlength=1) for s in videos.values()])
    for m, width in widths.items():
        require_modest_padding(f"{content.parts.path}: {name}/{m}", lengths, lengths, width)
    longest = int(lengths.max())
    labels = np.concatenate([steps.labels for steps in videos.values()])
    return SplitHeader(
        size=len(labels),
        shapes={m: (longest, width) for m, width in widths.items()},
        dtypes=dict.fromkeys(widths, "float32"),
        masked=frozenset(widths),
        has_raw_text=content.parts.words is not None,
        words=longest if content.parts.words is not None else 0,
        **describe_labels(labels, integers=False, names=label_names(labels.shape[1])),
    )


def _read_split(
    content: _Content, name: str, header: SplitHeader, videos: Mapping[str, Steps]
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

    for m, sequence in content.parts.modalities.items():
        total = left_out = outside = 0
        for rows in sequence.rows(videos):
            intervals = videos[rows.video].intervals
            means, present, bad = mean_rows(rows.features, rows.intervals, intervals)
            place(m, rows.video, means, present)
            total, left_out = total + len(rows.intervals), left_out + bad
            outside += int((~overlap_any(rows.intervals, intervals)).sum())
        if f"{name}/{m}" not in content.said:
            content.said.add(f"{name}/{m}")
            _log_unread_rows(f"{name}/{m}", content.parts.path, total, outside, left_out)
    if (vectors := content.vectors) is not None:
        row_of = {word: k for k, word in enumerate(vectors.words)}
        table = np.concatenate([vectors.vectors, np.zeros_like(vectors.vectors[:1])])
        for video, steps in videos.items():
            values = table[[row_of.get(word, -1) for word in steps.words]]
            place("text", video, values, np.array([word is not None for word in steps.words], bool))
    return Split(
        ids=np.array(segment_ids(videos)),
        features=features,
        masks=masks,
        labels=np.concatenate([steps.labels for steps in videos.values()]),
        raw_text=transcripts(videos) if header.has_raw_text else None,
        derived=frozenset(masks),
        words=pad_words(words_of(videos), header.words) if header.words else None,
    )


def _log_unread_rows(modality: str, path: str, total: int, outside: int, left_out: int) -> None:
    if outside:
        logger.info(
            "%s: %d of %d rows of %s lie in no step, which is a word of a labelled segment or a "
            "segment without words, and are not read.",
            *(path, outside, total, modality),
        )
    if left_out:
        logger.warning(
            "%s: %d of %d rows of %s hold a value that is not finite and are left out of the "
            "means.",
            *(path, left_out, total, modality),
        )


TOUCH = 1e-4
"""Seconds by which intervals may overlap and still only touch: time stamps in float32 are no finer
half an hour into a video, and a neighbour's row would be a third of a word's mean."""


def words_of_segments(
    starts: np.ndarray, segments: np.ndarray, shift: float
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the words that start in each segment: `segment start <= word start + shift < end`.

    Args:
        starts: `[W]`, of the words, ascending.
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
    left_out = int((~usable).sum())
    if left_out:
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
