"""Reads the pickles of MISA and MAG: each split a list of samples of any length.

    ((words or word ids, visual (L, dv), acoustic (L, da)[, words]), label (1, 1), 'video[i]')

With `data.glove_path` words become their vectors; without it word ids are the modality text as
token ids, and words alone are the transcript. For a pretrained text encoder words are the text step
by step, and word ids, which number the words of a vocabulary that is not here, are not read.
Samples are padded, after their steps, when a split is asked for; until then their rows lie in
memory without padding, as float32, because padding to the longest sample would multiply them. Step
i of every modality is of the same word, unless their numbers of steps differ in a sample.
"""

import collections
import hashlib
import json
import logging
import math
from typing import Any, NamedTuple

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import (
    SPLITS,
    Corpus,
    Source,
    Split,
    SplitHeader,
    count_transcripts,
    modality_order,
    pad_words,
    require_modest_padding,
)
from msajax.corpus.folds import rows_of_splits
from msajax.corpus.formats import pickled as values
from msajax.corpus.formats.pickled import WHOLE, Pickled, describe
from msajax.corpus.glove import read_vectors
from msajax.corpus.in_memory import update_digest
from msajax.corpus.labels import clip_sentiment, describe_labels, read_labels
from msajax.errors import UserError

logger = logging.getLogger(__name__)

_EXPECTED = "expected ((words, visual, acoustic[, words]), label, id)"
_LARGEST = 1 << 36  # bytes of one modality of a split, padded
_PAUSE = "sp"  # stands for a pause among the words of the CMU Multimodal SDK


class _Sample(NamedTuple):
    """Holds a sample as the file has it; `words` and word `ids` [L] are None where it has none."""

    where: str
    words: list[str] | None
    ids: np.ndarray | None
    visual: Any
    acoustic: Any
    label: Any
    id: Any


class _Sequences(NamedTuple):
    """Holds a modality of a split: the steps of all samples `[sum of lengths, …]`, and lengths.

    A step of words that become vectors is the row of its vector in a table.
    """

    steps: np.ndarray
    lengths: np.ndarray


class _Text(NamedTuple):
    is_ids: bool  # says that word ids are read as token ids
    row_of: dict[str, int]  # the row of each word in `vectors`; {} if there are none
    vectors: np.ndarray  # `[V, d]` float32, zeros for words that have none


class _Unpadded(NamedTuple):
    ids: np.ndarray  # `[N]` str
    rows: dict[str, _Sequences]  # features by modality
    labels: np.ndarray | None  # `[N, K]`, or None
    integers: bool  # says that labels are stored as whole numbers
    raw_text: np.ndarray | None  # `[N]` str, or None
    # Lists the words of each sample, "" for a pause; None if no sample has any
    words: list[list[str]] | None

    def longest(self) -> np.ndarray:
        """Returns the steps `[N]` of each sample's longest modality."""
        lengths = [rows.lengths for rows in self.rows.values()]
        return np.max([np.zeros(len(self.ids), int), *lengths], axis=0)


def matches(pickled: Pickled) -> bool:
    """Says whether the first split is a list of samples, as far as its first entry tells."""
    tree = next(iter(pickled.trees.values()))
    if not _is_list(tree) or len(tree) == 0:
        return _is_list(tree)
    return _is_list(tree[0]) and len(tree[0]) == 3 and _is_list(tree[0][0])


def open_misa(pickled: Pickled, data: DataConfig) -> Corpus:
    """Reads a pickle of MISA or MAG, or a folder of them.

    Args:
        pickled: loses its content as that is read.
        data: `glove_path` and `text` say what text is; `split_seed` counts without splits.

    Raises:
        UserError: for samples of another form, labels that are not finite, splits that are empty or
            do not fit together, ids that tell no videos where there are no splits, and for words or
            word ids that `data` asks for and that are missing.
    """
    # The samples of each split.
    path = pickled.path
    samples: dict[str, list[_Sample]] = {}
    for name in list(pickled.trees):
        where, tree = pickled.where(name).rstrip("/: "), pickled.trees.pop(name)
        if not _is_list(tree):
            raise UserError(f"{where} is {describe(tree)}; expected a list of samples.")
        if len(tree) == 0:
            raise UserError(f"{where} is empty; expected a list of samples.")
        samples[name] = [_read_sample(f"{where}[{k}]", entry) for k, entry in enumerate(tree)]
        del tree
    if WHOLE in samples:
        whole = samples.pop(WHOLE)
        rows = rows_of_splits(path, _read_ids(path, whole).tolist(), data)
        samples = {name: [whole[i] for i in kept] for name, kept in rows.items()}
        del whole
    # What text is, and each split before it is padded.
    text = _choose_text(path, [sample for found in samples.values() for sample in found], data)
    parts = {n: _read_part(path, n, samples.pop(n), text) for n in SPLITS if n in samples}
    labelled = [part for part in parts.values() if part.labels is not None]
    clipped = 0
    if not all(part.integers or part.labels.shape[1] > 1 for part in labelled):
        clipped = clip_sentiment(path, [part.labels[:, 0] for part in labelled])
    aligned = _find_aligned(path, parts)
    parts, aligned = _align_words(path, parts, aligned)
    headers = {n: _split_header(path, n, part, text, bool(aligned)) for n, part in parts.items()}

    # The digest covers what was read, before padding.
    digest = hashlib.sha256()
    update_digest(digest, "vectors", text.vectors)
    for name, part in parts.items():
        digest.update(f"{name} {part.integers} {part.labels is None}\n".encode())
        # Two words may read like one with a space in it.
        digest.update(json.dumps(part.words).encode())
        small = {"id": part.ids, "label": part.labels, "raw_text": part.raw_text}
        for key, array in small.items():
            if array is not None:
                update_digest(digest, key, array)
        for m, (steps, lengths) in part.rows.items():
            update_digest(digest, m, steps)
            update_digest(digest, f"{m} lengths", lengths)
    return Corpus(
        source=Source(
            path,
            "MISA or MAG pickle",
            repairs={"clipped_labels": clipped},
            has_vectors=bool(text.row_of),
        ),
        digest=digest.hexdigest(),
        headers=headers,
        ids={name: part.ids.tolist() for name, part in parts.items()},
        read=lambda name: _pad(parts[name], text, headers[name]),
        aligned=aligned,
    )


# --- samples ---


def _is_list(value: Any) -> bool:
    is_objects = isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 0
    return is_objects or type(value) in (list, tuple)


def _read_sample(where: str, entry: Any) -> _Sample:
    """Reads a sample; features, label and id stay as they are."""
    if not _is_list(entry) or len(entry) != 3:
        raise UserError(f"{where} is {describe(entry)}; {_EXPECTED}.")
    parts, label, id_ = entry
    if not _is_list(parts) or len(parts) not in (3, 4):
        raise UserError(f"{where} begins with {describe(parts)}; {_EXPECTED}.")
    text, visual, acoustic = parts[0], parts[1], parts[2]
    words, ids = values.read_word_list(text, where), None
    if not words:
        ids = values.to_whole(values.as_array(text, f"{where}, word ids"), f"{where}, word ids")
        if ids.ndim != 1:
            raise UserError(f"{where} has {describe(ids)} as its words; expected word ids (L,).")
    if len(parts) == 4:
        words = values.read_word_list(parts[3], where)
        if words is None:
            raise UserError(f"{where} has {describe(parts[3])} as its words; {_EXPECTED}.")
    return _Sample(where, words, ids, visual, acoustic, label, id_)


def _read_ids(path: str, samples: list[_Sample]) -> np.ndarray:
    return values.read_ids([sample.id for sample in samples], f"{path}: an id")


# --- text ---


def _choose_text(path: str, samples: list[_Sample], data: DataConfig) -> _Text:
    """Chooses vectors of words if they are asked for, else word ids if there are any, else none."""
    has_words = any(sample.words for sample in samples)
    for sample in samples:
        if has_words and sample.words is None:
            raise UserError(f"{sample.where} has no words, but other samples have.")
    has_ids = all(s.ids is not None for s in samples) and any(len(s.ids) for s in samples)
    none = np.zeros((0, 0), np.float32)
    if data.text == "ids" and not has_ids:
        raise UserError(f"data.text = ids: {path} has words and no word ids.")
    reads_features = data.text in ("auto", "features")
    if not reads_features or not data.glove_path:
        odd = next((s for s in samples if s.ids is None), None)
        if odd and any(s.ids is not None and len(s.ids) for s in samples):
            raise UserError(f"{odd.where} begins with words, but other samples with word ids.")
        if not has_ids and reads_features:
            logger.warning(
                "%s: words are transcripts alone; with data.glove_path their vectors are text, "
                "with data.text = words they are.",
                path,
            )
        return _Text(has_ids and data.text != "pieces", {}, none)
    if not has_words:
        raise UserError(f"{path} has no words that {data.glove_path} could have vectors of.")
    counts = collections.Counter(word for sample in samples for word in sample.words)
    found = read_vectors(path, data.glove_path, counts)
    row_of = {word: row for row, word in enumerate(counts)}
    vectors = np.zeros((len(row_of), found.vectors.shape[1]), np.float32)
    vectors[[row_of[word] for word in found.words]] = found.vectors
    return _Text(False, row_of, vectors)


# --- splits ---


def _join_rows(samples: list[_Sample], part: str) -> _Sequences | None:
    """Joins the rows of all samples, which lack the modality without; None if none has any."""
    arrays = [values.as_array(getattr(s, part), f"{s.where}, {part}") for s in samples]
    recorded = [(s.where, x) for s, x in zip(samples, arrays, strict=True) if x.size]
    if not recorded:
        return None
    for where, x in recorded:
        if x.ndim != 2 or x.dtype.kind not in "fiu":
            raise UserError(f"{where}, {part}, is {describe(x)}; expected numbers (L, d).")
        first, width = recorded[0][0], recorded[0][1].shape[1]
        if x.shape[1] != width:
            raise UserError(
                f"{where}, {part}, is {x.shape[1]} wide, but {first}, {part}, is {width}."
            )
    steps = np.concatenate([values.to_float32(x) for _, x in recorded])
    return _Sequences(steps, np.array([len(x) if x.size else 0 for x in arrays]))


def _read_label_rows(samples: list[_Sample]) -> np.ndarray | None:
    """Reads labels `[N, K]`, of the type stored; returns None if no sample has any."""
    if all(sample.label is None for sample in samples):
        return None
    labels = [values.as_array(s.label, f"{s.where}, label").reshape(1, -1) for s in samples]
    for sample, label in zip(samples, labels, strict=True):
        if label.shape != labels[0].shape or label.size == 0:
            raise UserError(
                f"{sample.where} has {label.size} label(s), but {samples[0].where} has "
                f"{labels[0].size}; expected as many, and one at least."
            )
    return np.concatenate(labels)


def _read_part(path: str, name: str, samples: list[_Sample], text: _Text) -> _Unpadded:
    ids = _read_ids(path, samples)
    rows = {}
    if text.row_of:
        places = [np.array([text.row_of[w] for w in s.words], np.int32) for s in samples]
        rows["text"] = _Sequences(np.concatenate(places), np.array([len(p) for p in places]))
    elif text.is_ids:
        rows["text"] = _Sequences(
            np.concatenate([s.ids for s in samples]), np.array([len(s.ids) for s in samples])
        )
    for m, part in (("audio", "acoustic"), ("video", "visual")):
        if found := _join_rows(samples, part):
            rows[m] = found
    labels = _read_label_rows(samples)
    if labels is not None:
        read_labels(path, name, labels, ids)
    raw_text = words = None
    if any(sample.words for sample in samples):
        words = [[w * (w != _PAUSE) for w in s.words] for s in samples]
        raw_text = values.read_texts([s.words for s in samples], f"{path}: {name}'s words")
    integers = labels is not None and labels.dtype.kind in "biu"
    labels = None if labels is None else labels.astype(np.float64)
    return _Unpadded(ids, rows, labels, integers, raw_text, words)


def _find_aligned(path: str, parts: dict[str, _Unpadded]) -> tuple[str, ...]:
    """Returns the modalities if, in every sample, those that it has are equally long; else none."""
    for part in parts.values():
        longest = part.longest()
        for m, (_, lengths) in part.rows.items():
            apart = np.flatnonzero((lengths > 0) & (lengths < longest))
            if apart.size:
                i = apart[0]
                logger.warning(
                    "%s: %s of %r has %d steps, another modality %d: none are taken as aligned.",
                    *(path, m, str(part.ids[i]), lengths[i], longest[i]),
                )
                return ()
    return modality_order({m for part in parts.values() for m in part.rows})


def _align_words(
    path: str, parts: dict[str, _Unpadded], aligned: tuple[str, ...]
) -> tuple[dict[str, _Unpadded], tuple[str, ...]]:
    """Finds whether words are the steps of aligned modalities.

    Returns:
        The splits, without words step by step if they are fewer or more than the steps of a sample;
        and the aligned modalities, text among them if the words are of their steps.
    """
    told = {name: part for name, part in parts.items() if part.words is not None}
    if not told or not aligned:
        return parts, aligned
    for name, part in told.items():
        counts = np.array([len(words) for words in part.words])
        apart = np.flatnonzero((counts > 0) & (counts != part.longest()))
        if apart.size:
            i = apart[0]
            logger.warning(
                "%s: %s of %s has %d words but %d steps: words are not read step by step.",
                *(path, str(part.ids[i]), name, counts[i], part.longest()[i]),
            )
            return {name: part._replace(words=None) for name, part in parts.items()}, aligned
    return parts, modality_order({*aligned, "text"})


def _split_header(path: str, name: str, part: _Unpadded, text: _Text, aligned: bool) -> SplitHeader:
    """Describes a padded split; aligned modalities are equally long, even if a sample lacks one."""
    shapes = {}
    for m, (steps, lengths) in part.rows.items():
        is_words = m == "text" and text.row_of
        width = text.vectors.shape[1] if is_words else (*steps.shape, 0)[1]
        padded_to = part.longest() if aligned else lengths
        shapes[m] = max(int(padded_to.max()), 1), width
        if 4 * len(lengths) * math.prod(shapes[m]) > _LARGEST:
            raise UserError(
                f"{path}: {name}/{m} takes more than {_LARGEST} bytes when its {len(lengths)} "
                f"sequences are padded to the {shapes[m][0]} steps of the longest."
            )
        require_modest_padding(f"{path}: {name}/{m}", lengths, padded_to, width)
    labels: dict[str, Any] = {}
    if part.labels is not None:
        labels = describe_labels(part.labels, integers=part.integers)
    words = 0
    if part.words is not None:
        words = max(1, *map(len, part.words), *(part.longest() if aligned else ()))
    return SplitHeader(
        size=len(part.ids),
        shapes=shapes,
        dtypes={m: "float32" if width else "int32" for m, (_, width) in shapes.items()},
        masked=frozenset(shapes),
        has_raw_text=part.raw_text is not None,
        transcripts=count_transcripts(part.raw_text),
        words=words,
        **labels,
    )


def _pad(part: _Unpadded, text: _Text, header: SplitHeader) -> Split:
    shapes = header.shapes
    features, masks = {}, {}
    for m, (steps, lengths) in part.rows.items():
        is_words = m == "text" and text.row_of
        steps = text.vectors[steps] if is_words else steps
        mask = np.arange(shapes[m][0]) < lengths[:, None]
        features[m] = np.zeros((*mask.shape, *steps.shape[1:]), steps.dtype)
        features[m][mask] = steps
        # Features of zeros alone were not recorded; a word without a vector was spoken.
        masks[m] = mask if m == "text" else mask & features[m].any(axis=(1, 2))[:, None]
    return Split(
        ids=part.ids,
        features=features,
        masks=masks,
        labels=part.labels,
        raw_text=part.raw_text,
        derived=frozenset(masks),
        words=None if part.words is None else pad_words(part.words, header.words),
    )
