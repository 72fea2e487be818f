"""Tells the files of a CMU Multimodal SDK folder apart.

    labels      the numbers whose root group or file name holds "label"; without such a name, those
                whose rows last the longest, four times as long as those of any other file
    words       the one file of bytes; a file of phones is ignored
    modalities  all other files: audio (covarep, acoustic), video (facet, openface, visual, vision),
                text (glove, word vectors), or the root group's name
    folds       the `.json` file, if there is one

The metadata in the files is not read.
"""

import dataclasses
import logging
import os
import re

from msajax.corpus.formats.csd_file import ComputationalSequence, read_csd
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
