"""Defines the one in-memory form of data, on the host: a Corpus of Splits."""

import collections
import copy
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from msajax.config import SYNTHETIC
from msajax.errors import UserError

SPLITS = ("train", "valid", "test")
SPLIT_NAMES = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
"""What files call the splits."""

_POOLS = ("pieces", "words", "first")
_FREE_PADDING = 1 << 28  # bytes
_MOST_PADDING = 64  # times what sequences take without it; in real corpora it is up to 20


def is_finite(values: np.ndarray) -> np.ndarray:
    """Says which float64 values are finite, and will be as float32."""
    return np.abs(values) <= np.finfo(np.float32).max


def are_characters(data: bytes | bytearray, byteorder: str) -> bool:
    """Says whether text as numpy stores it, four bytes each, is of characters of Unicode."""
    codes = np.frombuffer(data, np.dtype(np.uint32).newbyteorder(byteorder))
    return not ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any()


def require_modest_padding(
    where: str, lengths: np.ndarray, padded_to: np.ndarray, width: int
) -> None:
    """Refuses sequences of which one is so long that padding the others to it takes all memory.

    Args:
        where: the beginning of the message: file, split and modality.
        padded_to: lengths of which the longest is what all are padded to: `lengths`, or, where
            modalities are aligned, those of the samples as a whole.
        width: numbers of 4 bytes per step; 0 for token ids.
    """
    padded = 4 * max(width, 1) * len(lengths) * int(padded_to.max())
    if padded > _FREE_PADDING and padded > _MOST_PADDING * 4 * max(width, 1) * int(lengths.sum()):
        raise UserError(
            f"{where} takes {padded} bytes when its {len(lengths)} sequences are padded to the "
            f"{padded_to.max()} steps of the longest, number {padded_to.argmax()}, over "
            f"{_MOST_PADDING} times as much as without: leave that one out, or cut it."
        )


def describe_width(width: int) -> str:
    """Says how wide a modality is: "is 74 wide", or "holds token ids" where that is 0."""
    return f"is {width} wide" if width else "holds token ids"


def modality_order(names: set[str]) -> tuple[str, ...]:
    """Orders modalities: text, audio, video, then the others alphabetically."""
    usual = ("text", "audio", "video")
    return tuple(m for m in usual if m in names) + tuple(sorted(names - set(usual)))


def pad_words(samples: Sequence[Sequence[str]], steps: int = 0) -> np.ndarray:
    """Makes `Split.words` of the words of each sample, at least `steps` long.

    Returns:
        `[N, T]` Python strings, "" behind the last word: in an array of numpy's text every one
        would take as much memory as the longest.
    """
    words = np.full((len(samples), max(1, steps, *map(len, samples))), "", object)
    for row, sample in zip(words, samples, strict=True):
        row[: len(sample)] = sample
    return words


@dataclasses.dataclass(frozen=True)
class Embedding:
    """Holds what makes features of a modality: it travels in the corpus, the run and the bundle.

    Attributes:
        digest: stands for the content of the encoder's folder.
        kind: the family of the encoder, as bert or wavlm.
        width: features per step.
        pool: makes a step of each piece (pieces), of the mean of a word's pieces (words), or of its
            first piece (first).
        special: makes steps of special pieces, such as [CLS] and [SEP], too.
        max_len: the most pieces of a transcript, special ones included; 0 for as many as the
            encoder takes.
        truncate: error, first, last or uniform, for a longer one.
        modality: made by the encoder. `pool` to `truncate` count for text alone.
    """

    digest: str
    kind: str
    width: int
    pool: str = "pieces"
    special: bool = True
    max_len: int = 0
    truncate: str = "error"
    modality: str = "text"

    def to_json(self) -> str:
        """Returns what a corpus stores of it; `from_json` reverses it."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> "Embedding":
        """Reads what `to_json` wrote; raises `UserError` for anything else, which `where` names."""
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(
                f"{where} does not say how a modality was embedded: write the corpus anew with "
                "--mode embed."
            ) from error

    @classmethod
    def from_dict(cls, values: Any) -> "Embedding":
        """Makes an embedding of its fields by name; raises `ValueError` or `TypeError`."""
        made = cls(**values)
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        if any(type(getattr(made, name)) is not kind for name, kind in kinds.items()):
            raise TypeError("a field is of another type")
        if made.pool not in _POOLS or made.width < 1 or made.max_len < 0:
            raise ValueError("a field is out of range")
        return made

    def describe(self) -> str:
        """Puts it into words: "bert, 384 wide, pieces (a1b2c3d4e5f6)"."""
        steps = self.pool if self.modality == "text" else self.modality
        return f"{self.kind}, {self.width} wide, {steps} ({self.digest[:12]})"


@dataclasses.dataclass(frozen=True)
class Split:
    """Holds one split of a corpus.

    Attributes:
        ids: `[N]` str.
        features: `{modality: [N, T_m, d_m]}`, or token ids `[N, T_m]`; modalities may be missing.
        masks: `{modality: [N, T_m]}` bool, True for a real time step; as read from a file, only
            the masks that the file brings.
        labels: `[N, K]` float64, or None when unknown.
        raw_text: `[N]` str, or None.
        derived: modalities whose mask the reader made, of lengths or of its own rows. Such a mask
            may be wrong, so it hides nothing from the check for lost steps.
        where: the corpus and the split's name, for a message.
        words: `[N, T]` str, or None: the words step by step; "" at a step without one.
        segments: `[N, T]` whole numbers, or None: the segment ids of text that is token ids.
        pieces: `[N, T]` str, or None: the piece that each step of embedded text is, for people.
        times: `{modality: [N, T_m, 2]}` float64, start and end of each step in seconds, NaN where
            there is none; those of the words are the text's. Modalities may be missing.
        word_origin: `[N, T]` int8, or None: how the time of each word is known
            (`recordings/pronunciation.py`), -1 where it is not.
    """

    ids: np.ndarray
    features: Mapping[str, np.ndarray]
    masks: Mapping[str, np.ndarray]
    labels: np.ndarray | None = None
    raw_text: np.ndarray | None = None
    derived: frozenset[str] = frozenset()
    where: str = "the split"
    words: np.ndarray | None = None
    segments: np.ndarray | None = None
    pieces: np.ndarray | None = None
    times: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    word_origin: np.ndarray | None = None

    def __len__(self) -> int:
        """Returns the number of samples N."""
        return len(self.ids)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{m} {list(x.shape)}" for m, x in self.features.items())
        labels = "no labels" if self.labels is None else f"labels {list(self.labels.shape)}"
        return f"Split({len(self)} samples: {shapes}, {labels})"


@dataclasses.dataclass(frozen=True)
class SplitHeader:
    """Says what is known of a split before it is read.

    Attributes:
        size: samples.
        shapes: `{modality: (T_m, d_m)}`; d_m is 0 for token ids.
        dtypes: `{modality: numpy type name}` as stored.
        masked: modalities that bring a mask of their own.
        label_names: a name for each label of a sample; empty without labels.
        transcripts: samples whose transcript is not blank, as far as opening the corpus can tell.
        label_kind: scores; classes (one column of whole numbers from 0, of an integer type); or
            one_hot (each row has one 1 among zeros); or binary (several columns of 0 and 1).
        classes: names of the whole numbers in a single column of labels; empty if there are others.
        words: steps of the words; 0 if they are not known step by step.
    """

    size: int
    shapes: Mapping[str, tuple[int, int]]
    dtypes: Mapping[str, str]
    masked: frozenset[str] = frozenset()
    label_names: tuple[str, ...] = ()
    has_raw_text: bool = False
    transcripts: int = 0
    label_kind: str = "scores"
    classes: Mapping[int, str] = dataclasses.field(default_factory=dict)
    words: int = 0

    def steps(self, modalities: Iterable[str]) -> dict[str, int]:
        """Returns the stored steps T_m of those of some modalities that the split has."""
        return {m: self.shapes[m][0] for m in modalities if m in self.shapes}


@dataclasses.dataclass(frozen=True)
class Source:
    """Says what a corpus was made of, and what reading it changed.

    Attributes:
        path: a path, or a name for what has none.
        repairs: `{kind: count}` of changes to what the files hold, made as they were read.
        has_vectors: says that text is vectors from `data.glove_path`.
        embeddings: pretrained encoders that made features, each of its modality.
        manifest: says how features of recordings were made (`recordings/settings.py`); None where
            that is not known.
    """

    path: str
    format: str
    repairs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    has_vectors: bool = False
    embeddings: tuple[Embedding, ...] = ()
    manifest: Mapping[str, Any] | None = None

    @property
    def recipe(self) -> dict[str, Any] | None:
        """Returns the manifest without its list of recordings, as a run and its bundle keep it."""
        if self.manifest is None:
            return None
        return {key: value for key, value in self.manifest.items() if key != "sources"}

    def embedding(self, modality: str) -> Embedding | None:
        """Returns which encoder made the features of a modality; None if none did."""
        return next((one for one in self.embeddings if one.modality == modality), None)


class Corpus:
    """Holds what opening found and checked of a corpus; reads its splits when asked for.

    Opening checks headers, ids and the finiteness of labels, and keeps no statistic.

    Attributes:
        path: `source.path`.
        repairs: `source.repairs`, each count 1 or more.
        why: says by what the format was recognised; "" for a corpus not opened from a path.
        verify: reads whatever opening did not, and raises `UserError` if it is not what the digest
            says.
        digest: SHA-256 of the content, hexadecimal; part of a run's identity.
        headers: `{split: SplitHeader}`, in the order train, valid, test.
        repeated_ids: counts the ids that occur more than once, over all splits.
        repeated_ids_in: counts samples that have the id of another one, as `count_repeated` does.
        aligned: modalities that share their steps: step i of each is of the same moment; () if
            none do, None if the source does not say. If text is one of them, the words are of
            these steps, too, where the corpus has words.
    """

    def __init__(
        self,
        *,
        source: Source,
        digest: str,
        headers: Mapping[str, SplitHeader],
        ids: Mapping[str, Iterable[str]],
        read: Callable[[str], Split],
        aligned: Sequence[str] | None = None,
    ) -> None:
        """Keeps what the reader of a format found, which has logged its repairs; checks headers.

        Ids are counted, not kept; `read` reads a split by its name.

        Raises:
            UserError: if splits are empty or disagree in width or number of labels, or if
                modalities that share their steps are not there, or differ in number of steps.
        """
        self.source = source
        self.path = source.path
        self.repairs = {kind: count for kind, count in source.repairs.items() if count}
        self.why = ""
        self.verify: Callable[[], None] = lambda: None
        self.digest = digest
        self.headers = {name: headers[name] for name in SPLITS if name in headers}
        ids = {name: list(ids.get(name, ())) for name in self.headers}
        times = collections.Counter(itertools.chain.from_iterable(ids.values()))
        self.repeated_ids = sum(count > 1 for count in times.values())
        self.repeated_ids_in = count_repeated(ids)
        self.aligned = None if aligned is None else tuple(aligned)
        self._read = read
        self._check()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{header.size} {name}" for name, header in self.headers.items())
        widths = ", ".join(f"{m} ({self.width(m) or 'token ids'})" for m in self.modalities)
        return f"Corpus({self.path!r}, {self.source.format}: {sizes}; {widths})"

    def with_changes(
        self, read: Callable[[str], Split], headers: Mapping[str, SplitHeader], **attributes: Any
    ) -> "Corpus":
        """Makes a corpus of the same samples, with headers and attributes in place of its own."""
        made = copy.copy(self)
        vars(made).update(attributes, headers={**self.headers, **headers}, _read=read)
        made._check()
        return made

    @property
    def modalities(self) -> tuple[str, ...]:
        """Lists every modality of any split: text, audio, video, then alphabetical."""
        return modality_order({m for h in self.headers.values() for m in h.shapes})

    @property
    def has_words(self) -> bool:
        """Says whether the training split knows its words step by step."""
        return "train" in self.headers and self.headers["train"].words > 0

    def width(self, modality: str) -> int:
        """Returns the features per time step of one modality; 0 for token ids."""
        return next(h.shapes[modality][1] for h in self.headers.values() if modality in h.shapes)

    def split(self, name: str) -> Split:
        """Reads one split.

        Raises `UserError` if the corpus has no such split, its file went bad since it was opened,
        or memory is too small for it.
        """
        self.require_splits(name)
        try:
            return dataclasses.replace(self._read(name), where=f"{self.path}: {name}")
        except MemoryError as error:
            header = self.headers[name]
            raise UserError(
                f"{self.path}: split {name!r}, {header.size} samples of up to "
                f"{dict(header.shapes)} steps and features, does not fit into memory."
            ) from error

    def require_splits(self, *names: str) -> None:
        """Raises `UserError` unless the corpus has every one of the splits."""
        for name in names:
            if name not in self.headers:
                raise UserError(
                    f"{self.path} has no split {name!r}; it has {', '.join(self.headers)}."
                )

    def require_labels(self, *names: str) -> None:
        """Raises `UserError` unless every one of the splits is there with labels."""
        self.require_splits(*names)
        for name in names:
            if not self.headers[name].label_names:
                raise UserError(f"{self.path}: split {name!r} has no labels, which it needs.")

    def require_equal_steps(self) -> None:
        """Raises `UserError` unless every split of a modality is padded to the same length."""
        for m in self.modalities:
            steps = {name: h.shapes[m][0] for name, h in self.headers.items() if m in h.shapes}
            first = next(iter(steps))
            for name, count in steps.items():
                if count != steps[first]:
                    raise UserError(
                        f"{self.path}: {name}/{m} has {count} steps, but {first}/{m} has "
                        f"{steps[first]}."
                    )

    def describe_shared_ids(self) -> list[str]:
        """Returns sentences on ids that occur in more than one split, by pair of splits."""
        shared = {where: n for where, n in self.repeated_ids_in.items() if "/" in where}
        return describe_repeated_ids(shared)

    def summary(self) -> dict[str, Any]:
        """Returns facts about the corpus for `results.json` and `run.json`."""
        facts = {
            "path": self.path if self.path == SYNTHETIC else os.path.abspath(self.path),
            "format": self.source.format,
            "digest": self.digest,
            "sizes": {name: header.size for name, header in self.headers.items()},
            "widths": {m: self.width(m) for m in self.modalities},
        }
        if self.source.embeddings:
            facts["embeddings"] = [dataclasses.asdict(one) for one in self.source.embeddings]
        if self.source.manifest:
            facts["manifest"] = self.source.recipe
        return facts

    def _check(self) -> None:
        if not self.headers:
            raise UserError(
                f"{self.path} holds no split; its arrays must be named like 'train/text'."
            )
        # Each split has samples and something to read, and widths and numbers of labels agree.
        first_seen: dict[str, tuple[str, int]] = {}
        for name, header in self.headers.items():
            if header.size == 0:
                raise UserError(f"{self.path}: split {name!r} is empty.")
            if not (header.shapes or header.has_raw_text or header.words):
                raise UserError(f"{self.path}: split {name!r} has no modality and no raw_text.")
            for m, (length, width) in header.shapes.items():
                if length < 1:
                    raise UserError(f"{self.path}: {name}/{m} has no steps.")
                other, expected = first_seen.setdefault(m, (name, width))
                if width != expected:
                    raise UserError(
                        f"{self.path}: {name}/{m} {describe_width(width)}, but {other}/{m} "
                        f"{describe_width(expected)}."
                    )
        labelled = {name: len(h.label_names) for name, h in self.headers.items() if h.label_names}
        if len(set(labelled.values())) > 1:
            found = ", ".join(f"{count} in {name}" for name, count in labelled.items())
            raise UserError(f"{self.path}: the number of labels per sample differs: {found}.")

        # Modalities that are said to share their steps are there, with as many steps.
        names = self.aligned or ()
        has_words = any(header.words for header in self.headers.values())
        known = modality_order({*self.modalities, *["text"] * has_words})
        for m in names:
            if m not in known or names.count(m) > 1:
                raise UserError(
                    f"{self.path}: aligned names {m[:40]!r}; expected some of "
                    f"{', '.join(known)}, each once."
                )
        for split, header in self.headers.items():
            steps = header.steps(names)
            if "text" in names and header.words:
                steps["words"] = header.words
            if len(set(steps.values())) > 1:
                raise UserError(
                    f"{self.path}: {', '.join(steps)} of {split} have "
                    f"{', '.join(map(str, steps.values()))} steps, but are said to be aligned."
                )


def describe_making(manifest: Mapping[str, Any]) -> str:
    """Says by which tools, of which versions, and settings features of recordings were made."""
    parts = (manifest["tools"] | manifest["settings"]).items()
    return ", ".join(f"{name} {value}" for name, value in parts if value)


def count_transcripts(raw_text: np.ndarray | None) -> int:
    """Returns how many of `[N]` transcripts are not blank; 0 where there are none."""
    return 0 if raw_text is None else int((np.char.strip(raw_text) != "").sum())


def count_repeated(contents: Mapping[str, Sequence[Hashable | None]]) -> dict[str, int]:
    """Counts samples that are equal to others, by what stands for each, where None equals nothing.

    Returns:
        By split (`train`), those equal to an earlier one of it; by pair of splits (`train/test`),
        those of the second that are equal to one of the first.
    """
    known = {name: set(all_of) - {None} for name, all_of in contents.items()}
    found = {
        name: sum(content is not None for content in all_of) - len(known[name])
        for name, all_of in contents.items()
    }
    for first, second in itertools.combinations(contents, 2):
        found[f"{first}/{second}"] = sum(content in known[first] for content in contents[second])
    return found


def describe_repeated(counts: Mapping[str, int], equal: str, consequence: str = "") -> list[str]:
    """Puts the counts of `count_repeated` that are not 0 into words, a sentence each.

    `equal` is the predicate, such as "are identical to"; `consequence` ends a sentence on equal
    samples in two splits.
    """
    told = []
    for where, count in counts.items():
        first, _, second = where.partition("/")
        if count:
            another = f"one of {first}{consequence}" if second else "an earlier one"
            told.append(f"{count} sample(s) of {second or first} {equal} {another}.")
    return told


def describe_repeated_ids(counts: Mapping[str, int]) -> list[str]:
    """Puts `Corpus.repeated_ids_in`, or some of it, into words, a sentence each."""
    return describe_repeated(counts, "have the id of", ": samples may leak")


class ClosedCorpus(Corpus):
    """Holds a corpus whose test split cannot be read, whoever asks."""

    def __init__(self, corpus: Corpus) -> None:
        """Takes over what opening found."""
        self.__dict__.update(vars(corpus))

    def split(self, name: str) -> Split:
        """Reads one split; `RuntimeError` for test is a bug, and ends the program."""
        if name == "test":
            raise RuntimeError("A trial of a sweep asked for the test split.")
        return super().split(name)
