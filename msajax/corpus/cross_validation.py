"""Cuts the splits of a corpus anew, by video: one fold of a cross-validation.

The labelled samples of all splits are pooled and their videos dealt to `data.folds` folds. Fold i
is the test split, the one after it (cyclically) the validation split, all others are for training;
so each sample is in the test split of exactly one fold. What is cut is a corpus with a digest of
its own: training, evaluation and a run's identity need not know of folds.
"""

import collections
import dataclasses
import hashlib
import logging
from collections.abc import Mapping

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import SPLITS, Corpus, Split, SplitHeader
from msajax.corpus.folds import deal_videos, video_of, videos_of
from msajax.corpus.labels import classes_of
from msajax.corpus.steps import find_groups, movers, step_mask
from msajax.errors import UserError

logger = logging.getLogger(__name__)


def without_folds(data: DataConfig) -> DataConfig:
    """Returns the same settings for the splits that a corpus has by itself."""
    return dataclasses.replace(data, folds=0, fold=-1)


def require_one_fold(data: DataConfig) -> None:
    """Raises `UserError` where there are folds and none is chosen."""
    if data.folds and data.fold < 0:
        raise UserError(
            f"data.folds = {data.folds} needs data.fold = 0 to {data.folds - 1}, the fold that is "
            "the test split; all of them, one after another, are for --mode=train, or "
            "msajax.cross_validate in Python."
        )


def cut_fold(corpus: Corpus, data: DataConfig) -> Corpus:
    """Cuts fold `data.fold` of a corpus; no feature is read before it is asked for.

    Where the splits of the corpus differ, in stored steps, masks, modalities or transcripts, what
    one lacks becomes padding under a mask, so that it does not count as data.

    Args:
        corpus: with splits of its own.
        data: `folds`, `fold` and `split_seed`; `mask_from_zeros`, for masks that padding needs.

    Raises:
        UserError: if ids name no videos, or fewer than there are folds.
    """
    labelled = [name for name, header in corpus.headers.items() if header.label_names]
    pooled = labelled or list(corpus.headers)
    if left_out := [name for name in corpus.headers if name not in pooled]:
        logger.warning(
            "%s: split(s) %s have no labels, and are in no fold.", corpus.path, ", ".join(left_out)
        )
    ids = {name: corpus.split(name).ids.tolist() for name in pooled}
    fold_of = _folds_of_videos(corpus.path, [id_ for name in pooled for id_ in ids[name]], data)
    rows: dict[str, dict[str, np.ndarray]] = {split: {} for split in SPLITS}
    for name in pooled:
        roles = np.array([_role(fold_of[video_of(id_)], data) for id_ in ids[name]])
        for split in SPLITS:
            rows[split][name] = np.flatnonzero(roles == split)
    common = _common_header(corpus, pooled, data)
    sizes = {split: sum(map(len, rows[split].values())) for split in SPLITS}
    has_words = common.words > 0
    aligned = tuple(
        m for m in corpus.aligned or () if m in common.shapes or (m == "text" and has_words)
    )
    chosen = f"{corpus.digest} folds {data.folds} fold {data.fold} seed {data.split_seed}"
    cut = Corpus(
        source=corpus.source,
        digest=hashlib.sha256(chosen.encode()).hexdigest(),
        headers={split: dataclasses.replace(common, size=sizes[split]) for split in SPLITS},
        ids={
            split: [ids[name][row] for name, chosen in of.items() for row in chosen]
            for split, of in rows.items()
        },
        read=lambda split: _read(corpus, rows[split], common, data),
        aligned=None if corpus.aligned is None else aligned,
    )
    cut.why, cut.verify = corpus.why, corpus.verify
    return cut


def _role(fold: int, data: DataConfig) -> str:
    """Returns the split that a fold becomes."""
    after = (fold - data.fold) % data.folds
    return {0: "test", 1: "valid"}.get(after, "train")


def _folds_of_videos(path: str, ids: list[str], data: DataConfig) -> dict[str, int]:
    videos = videos_of(ids, f"data.folds = {data.folds}: {path}:")
    segments = collections.Counter(videos)
    if len(segments) < data.folds:
        raise UserError(
            f"data.folds = {data.folds}: {path} has segments of {len(segments)} video(s); every "
            "fold needs one."
        )
    if len(segments) == len(ids) > data.folds:
        logger.warning(
            "%s: by its id every sample is of a video of its own, such as %r: where several are of "
            "one speaker, ids like 'video[0]' or 'video$_$0' keep them in one fold.",
            path,
            ids[0],
        )
    dealt = deal_videos(segments, data.folds, data.split_seed)
    return {video: fold for fold, videos in enumerate(dealt) for video in videos}


def _common_header(corpus: Corpus, pooled: list[str], data: DataConfig) -> SplitHeader:
    """Returns the header that every new split has, but for its size."""
    headers = [corpus.headers[name] for name in pooled]
    shapes, dtypes, masked = {}, {}, set()
    common_steps = _common_steps(corpus, data)
    for m, steps in common_steps.items():
        there = [header for header in headers if m in header.shapes]
        if not there:  # in an unlabelled split alone
            continue
        shapes[m] = steps, corpus.width(m)
        dtype = np.result_type(*(header.dtypes[m] for header in there))
        dtypes[m] = dtype.name if shapes[m][1] or dtype.kind in "iu" else "int64"
        alike = len(there) == len(headers) and all(h.shapes[m][0] == steps for h in there)
        if not alike or any(m in header.masked for header in there):
            masked.add(m)
    kinds = {header.label_kind for header in headers}
    return dataclasses.replace(
        headers[0],
        shapes=shapes,
        dtypes=dtypes,
        masked=frozenset(masked),
        has_raw_text=any(header.has_raw_text for header in headers),
        words=_steps_of_words(corpus, headers, common_steps),
        label_kind=kinds.pop() if len(kinds) == 1 else "scores",
        classes=classes_of(headers),
    )


def _common_steps(corpus: Corpus, data: DataConfig) -> dict[str, int]:
    """Returns the stored steps of each modality in a new split; equal only where shared."""
    as_stored = dataclasses.replace(data, alignment="auto", text="features")
    groups, _ = find_groups(corpus, corpus.modalities, as_stored)
    steps: dict[str, int] = {}
    for members in movers(corpus.modalities, groups):
        longest = max(max(h.steps(members).values(), default=0) for h in corpus.headers.values())
        # Where the corpus does not say what is aligned, equal numbers of steps do: padding must
        # not make them equal.
        while corpus.aligned is None and longest > 1 and longest in steps.values():
            longest += 1
        steps |= dict.fromkeys(members, longest)
    return {m: steps[m] for m in corpus.modalities}


def _steps_of_words(
    corpus: Corpus, headers: list[SplitHeader], steps: Mapping[str, int]
) -> int:
    """Returns the stored steps of the words in a new split, 0 without words.

    They are those of modalities with which the words share their steps, and of no others.
    """
    told = [header for header in headers if header.words]
    if not told:
        return 0
    says_words = corpus.aligned is None or "text" in corpus.aligned
    for m in corpus.modalities if corpus.aligned is None else corpus.aligned:
        there = [header for header in told if m in header.shapes]
        if says_words and there and all(h.shapes[m][0] == h.words for h in there):
            return steps[m]
    longest = max(header.words for header in told)
    while corpus.aligned is None and longest > 1 and longest in steps.values():
        longest += 1
    return longest


def _read(
    corpus: Corpus, rows: Mapping[str, np.ndarray], common: SplitHeader, data: DataConfig
) -> Split:
    """Reads one new split: some rows of each split of the corpus, in their order."""
    join = np.concatenate
    parts = [
        _part(corpus.split(name), chosen, common, data)
        for name, chosen in rows.items()
        if chosen.size
    ]
    return Split(
        ids=join([part.ids for part in parts]),
        features={m: join([part.features[m] for part in parts]) for m in common.shapes},
        masks={m: join([part.masks[m] for part in parts]) for m in common.masked},
        labels=join([part.labels for part in parts]) if common.label_names else None,
        raw_text=join([part.raw_text for part in parts]) if common.has_raw_text else None,
        derived=frozenset.intersection(*(part.derived for part in parts)),
        words=join([part.words for part in parts]) if common.words else None,
        segments=_joined([part.segments for part in parts]),
        pieces=_joined([part.pieces for part in parts]),
    )


def _joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    """Joins what each part of a new split has; None if one has not."""
    return None if any(part is None for part in parts) else np.concatenate(parts)


def _part(split: Split, rows: np.ndarray, common: SplitHeader, data: DataConfig) -> Split:
    """Brings some rows of a split of the corpus into the form of the new splits."""
    features, masks, derived = {}, {}, set()
    for m, (steps, width) in common.shapes.items():
        shape = (len(rows), steps, width) if width else (len(rows), steps)
        features[m] = np.zeros(shape, common.dtypes[m])
        there = split.features[m].shape[1] if m in split.features else 0
        if there:
            features[m][:, :there] = split.features[m][rows]
        if m in common.masked:
            masks[m] = np.zeros((len(rows), steps), bool)
            if there:
                masks[m][:, :there] = step_mask(split, m, data.mask_from_zeros)[rows]
            if m not in split.masks or m in split.derived:
                derived.add(m)
    raw_text = np.full(len(rows), "") if split.raw_text is None else split.raw_text[rows]
    labels = None if split.labels is None else split.labels[rows]
    part = Split(split.ids[rows], features, masks, labels, raw_text, frozenset(derived))
    words, segments, pieces = None, None, None
    if common.words:
        words = np.full((len(rows), common.words), "", object)
        if split.words is not None:
            words[:, : split.words.shape[1]] = split.words[rows]
    if "text" in features and features["text"].ndim == 2:
        segments = np.zeros(features["text"].shape, np.int32)
        if split.segments is not None:
            segments[:, : split.segments.shape[1]] = split.segments[rows]
    elif split.pieces is not None:
        pieces = np.full((len(rows), common.shapes["text"][0]), "", split.pieces.dtype)
        pieces[:, : split.pieces.shape[1]] = split.pieces[rows]
    return dataclasses.replace(part, words=words, segments=segments, pieces=pieces)
