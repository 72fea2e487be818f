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
from collections.abc import Mapping

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.alignment import mean_rows, overlap_any
from msajax.corpus.corpus import (
    SPLITS,
    Corpus,
    Source,
    Split,
    SplitHeader,
    modality_order,
    pad_words,
    require_modest_padding,
)
from msajax.corpus.folds import choose_folds, mosi_folds
from msajax.corpus.formats.csd_folder import CsdFolder, files, sort_out
from msajax.corpus.formats.csd_steps import (
    Steps,
    label_names,
    place_words,
    read_labels,
    read_words,
    segment_ids,
    transcripts,
    words_of,
)
from msajax.corpus.formats.word_vectors import read_vectors
from msajax.corpus.glove import WordVectors
from msajax.corpus.labels import describe_labels
from msajax.errors import UserError

logger = logging.getLogger(__name__)

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
