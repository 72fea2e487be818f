"""Deals videos to training, validation and test: whole videos, never single segments.

Segments of one video share a speaker, a voice and an opinion; a model that has seen some of them
knows more of the others than of a stranger.

For a cross-validation the labelled samples of all splits are pooled, and their videos dealt to
`data.folds` folds. Fold i is the test split, the one after it (cyclically) the validation split,
all others are for training; so each sample is in the test split of exactly one fold. What is cut is
a corpus with a digest of its own: training, evaluation and a run's identity need not know of folds.
"""

import collections
import dataclasses
import hashlib
import json
import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from msajax.config import DataConfig
from msajax.corpus.corpus import SPLIT_NAMES, SPLITS, Corpus, Split, SplitHeader, count_transcripts
from msajax.corpus.steps import find_groups, movers, step_mask
from msajax.errors import UserError, reading
from msajax.tasks.classification import classes_of

logger = logging.getLogger(__name__)

SHARES = {"train": 0.7, "valid": 0.1, "test": 0.2}
_MOSI_SEGMENTS = {"train": 1284, "valid": 229, "test": 686}
_LARGEST = 1 << 26  # bytes of a folds file
_USUAL_FOLDS = 5
_INSTEAD = "name splits in the file, as msajax.save_corpus(…, group='speaker') does"
# video$_$clip, video[i], video[start-end], video_i
_SEGMENT = re.compile(r"(.+?)(?:\$_\$.*|\[[^\[\]]*\]|_\d+)", re.DOTALL)
# A bare number, or one behind the name of a split (test_17): it tells samples apart, not videos.
_NUMBER = re.compile(rf"[\d.]*|(?:{'|'.join(SPLIT_NAMES)})_\d+")


def choose_folds(
    path: str, segments: Mapping[str, int], folds_file: str | None, data: DataConfig
) -> dict[str, list[str]]:
    """Splits the videos of a corpus.

    By the folds file if there is one; else by the standard folds if the corpus is CMU-MOSI; else
    at random with the shares of `SHARES`, at least one video each.

    Args:
        path: the corpus, for messages.
        segments: counts the segments of each video.
        folds_file: JSON with a list of videos for train, valid (or dev, val) and test.
        data: `split_seed` draws a random split, which is warned of unless `folds` pools all anyway.

    Returns:
        Videos by split, sorted by code points; no split without a video.

    Raises:
        UserError: for a folds file that cannot be used, or too few videos to split.
    """
    if folds_file is not None:
        return _read_folds_file(path, segments, folds_file)
    if standard := mosi_folds(segments):
        logger.info("%s: the standard folds of CMU-MOSI.", path)
        return standard
    videos = sorted(video for video in segments if segments[video])
    if len(videos) < len(SPLITS):
        raise UserError(
            f"{path} has segments of {len(videos)} video(s); at least {len(SPLITS)} are needed to "
            "split it by video without a folds file."
        )
    folds = deal_by_shares(videos, SHARES, data.split_seed)
    if not data.folds:
        logger.warning(
            "%s has neither splits nor a folds file: %d videos were split at random with seed %d "
            "into %s; results on such a split compare with nobody's. %s",
            *(path, len(videos), data.split_seed),
            ", ".join(f"{len(folds[name])} {name}" for name in SPLITS),
            offer_folds(len(videos)),
        )
    return folds


def deal_by_shares(
    videos: Sequence[str], shares: Mapping[str, float], seed: int
) -> dict[str, list[str]]:
    """Deals videos, sorted by code points, to splits at random.

    Shares sum to 1, and a split of 0 gets none; the others at least one video each, and the first
    one the rest. With fewer videos than splits the first one gets none.
    """
    first, *others = [name for name in SPLITS if shares[name] > 0]
    sizes = {name: max(1, round(shares[name] * len(videos))) for name in others}
    sizes = {first: max(0, len(videos) - sum(sizes.values())), **sizes}
    shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(videos).tolist()
    folds = {}
    for name, size in sizes.items():
        folds[name], shuffled = sorted(shuffled[:size]), shuffled[size:]
    return folds


def rows_of_splits(path: str, ids: Sequence[str], data: DataConfig) -> dict[str, np.ndarray]:
    """Splits samples by whole videos: indices by split; raises `UserError` if ids tell too few."""
    videos = videos_of(ids, f"{path} has no splits, and")
    folds = choose_folds(path, collections.Counter(videos), None, data)
    owner = {video: name for name in folds for video in folds[name]}
    names = np.array([owner[video] for video in videos])
    return {name: np.flatnonzero(names == name) for name in SPLITS}


def advise_folds(ids: Iterable[str]) -> str:
    """Says how samples that lack splits can be trained on, in one sentence: by `data.folds`."""
    ids = list(ids)
    videos = {video_of(id_): id_ for id_ in ids}
    if None in videos:
        return (
            "data.folds=5 makes splits of all samples once their ids tell which video each is of, "
            f"as 'video[0]' or 'video$_$0' do and {videos[None][:100]!r} does not."
        )
    if len(videos) < len(SPLITS):
        return (
            f"data.folds={len(SPLITS)} makes splits of the samples of {len(SPLITS)} or more "
            f"videos; here are {len(videos)}."
        )
    return offer_folds(len(videos))


def offer_folds(count: int, unit: str = "video") -> str:
    """Says what `data.folds` does for samples of so many videos, 3 or more, or other units."""
    return (
        f"--config.data.folds={min(count, _USUAL_FOLDS)} makes splits of all samples, by {unit}, "
        "and tests each of them once."
    )


def deal_videos(segments: Mapping[str, int], folds: int, seed: int) -> list[list[str]]:
    """Deals videos to folds, for cross-validation: in random order, each to the smallest so far.

    No two folds differ by more segments than the largest video has. Sorting videos by size would
    bring them closer, but leave every seed the same folds. There are as many videos as folds, or
    more, each of 1 segment or more.
    """
    order = np.random.Generator(np.random.PCG64(seed)).permutation(sorted(segments)).tolist()
    dealt: list[list[str]] = [[] for _ in range(folds)]
    sizes = [0] * folds
    for video in order:
        smallest = sizes.index(min(sizes))
        dealt[smallest].append(video)
        sizes[smallest] += segments[video]
    return dealt


def video_of(id_: str) -> str | None:
    """Returns the video of a sample; None for an id that does not name one, as 17 or test_17.

    Names that differ in their Unicode form alone, as those of "é" may, are of one video.
    """
    id_ = unicodedata.normalize("NFC", id_)
    if _NUMBER.fullmatch(id_):
        return None
    found = _SEGMENT.fullmatch(id_)
    return found[1] if found else id_


def is_part(id_: str) -> bool:
    """Says whether an id names a part of a video, as `video[3]`, and not a whole one."""
    return _SEGMENT.fullmatch(id_) is not None


def videos_of(ids: Sequence[str], where: str, instead: str = _INSTEAD) -> list[str]:
    """Returns the video of each sample; raises `UserError` for an id that names none.

    The message begins with `where`, why videos are needed, and ends with `instead`, what else to
    do.
    """
    videos = [video_of(id_) for id_ in ids]
    if None in videos:
        raise UserError(
            f"{where} the id {ids[videos.index(None)]!r} does not tell which video it is of: "
            f"expected ids like 'video[0]' or 'video$_$0', to split by video; or {instead}."
        )
    return videos


class Dealt(NamedTuple):
    """Says what each of the N samples of the validation split is for."""

    chooses: np.ndarray  # `[N]` bool, True for a sample that chooses the epochs
    calibrates: np.ndarray  # `[N]` bool, True for one that calibrates scores
    by: str  # video, which was dealt as one, or sample where ids name no videos


def deal_validation(ids: Sequence[str], share: float, where: str) -> Dealt:
    """Deals the validation split to choosing and calibrating, by whole videos.

    Videos are held out in a random order that depends on their names alone, as many as bring the
    number of samples closest to the share; at least one video remains on either side. At a share of
    0, `train.calibration_share`, every sample both chooses and calibrates. Raises `UserError` if
    all samples are of one video, and some are to be held out.
    """
    ids = [str(id_) for id_ in ids]
    unit = [video_of(id_) or id_ for id_ in ids]
    units, unit_of, sizes = np.unique(unit, return_inverse=True, return_counts=True)
    by = "video" if len(units) < len(set(ids)) else "sample"
    if not share:
        all_of_them = np.ones(len(ids), bool)
        return Dealt(all_of_them, all_of_them, by)
    if len(units) < 2:
        raise UserError(
            f"train.calibration_share = {share:g}: {where} has samples of one {by} only, which "
            "cannot be dealt to choosing and calibrating: leave the share at 0."
        )
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(units))
    held_out = 1 + int(np.abs(np.cumsum(sizes[order])[:-1] - share * len(ids)).argmin())
    calibrates = np.isin(unit_of, order[:held_out])
    return Dealt(~calibrates, calibrates, by)


def mosi_folds(segments: Mapping[str, int]) -> dict[str, list[str]] | None:
    """Returns the standard folds if this is CMU-MOSI, else None.

    CMU-MOSI is known by its numbers: 93 videos, of which the first 52, the next 10 and the last 31
    by code points have 1284, 229 and 686 segments; these are its folds.
    """
    videos = sorted(segments)
    folds = {"train": videos[:52], "valid": videos[52:62], "test": videos[62:]}
    found = {name: sum(segments[video] for video in fold) for name, fold in folds.items()}
    return folds if len(videos) == 93 and found == _MOSI_SEGMENTS else None


def _read_folds_file(
    path: str, segments: Mapping[str, int], folds_file: str
) -> dict[str, list[str]]:
    """Returns the videos of a folds file that are in the corpus, by split."""
    expected = "expected {'train': [videos], 'valid': [videos], 'test': [videos]}"
    with reading(f"The folds file {folds_file}"):
        if os.path.getsize(folds_file) > _LARGEST:
            raise UserError(
                f"{folds_file} is larger than {_LARGEST} bytes, too large for a folds file."
            )
        try:
            with open(folds_file, encoding="utf-8") as file:
                pairs = json.load(file, object_pairs_hook=list)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{folds_file} is not JSON; {expected}.") from error
    # Objects arrive as lists of pairs, so that a name that is there twice is seen.
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise UserError(f"{folds_file} is no object with a list for each split; {expected}.")
    # Lists of ids by split; no video is in two.
    named: dict[str, list[str]] = {}
    for key, videos in pairs:
        name = SPLIT_NAMES.get(key)
        if name is None or name in named:
            problem = "is there twice" if name in named else "is no split"
            raise UserError(f"{folds_file}: {key[:50]!r} {problem}; {expected}.")
        if not isinstance(videos, list) or not all(isinstance(video, str) for video in videos):
            raise UserError(f"{folds_file}: {key!r} is no list of video ids; {expected}.")
        named[name] = videos
    if not named:
        raise UserError(f"{folds_file} names no split; {expected}.")

    owner: dict[str, str] = {}
    for name, videos in named.items():
        for video in videos:
            if owner.setdefault(video, name) != name:
                raise UserError(
                    f"{folds_file} puts {video[:200]!r} into both {owner[video]} and {name}."
                )
    # Videos that the corpus has; each split keeps one, and what is left out is told.
    folds = {name: sorted(set(videos) & segments.keys()) for name, videos in named.items()}
    for name, videos in folds.items():
        if not any(segments[video] for video in videos):
            raise UserError(f"{folds_file}: no video of {name!r} has a segment in {path}.")
    left_out = set(segments) - owner.keys()
    if left_out or owner.keys() - set(segments):
        logger.warning(
            "%s: %d video(s) of the corpus are in no fold and left out, with %d segment(s); %d "
            "video(s) of the folds are not in the corpus.",
            *(folds_file, len(left_out), sum(segments[video] for video in left_out)),
            len(owner.keys() - set(segments)),
        )
    return folds


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
    one lacks becomes padding under a mask, so that it does not count as data. Masks that the files
    lack are derived as `data.mask_from_zeros` says.

    Raises:
        UserError: if ids name no videos, or fewer than there are folds.
    """
    # The samples that are dealt, and their videos.
    labelled = [name for name, header in corpus.headers.items() if header.label_names]
    pooled = labelled or list(corpus.headers)
    if left_out := [name for name in corpus.headers if name not in pooled]:
        logger.warning(
            "%s: split(s) %s have no labels, and are in no fold.", corpus.path, ", ".join(left_out)
        )
    ids, texts = {}, {}
    for name in pooled:
        split = corpus.split(name)
        ids[name], texts[name] = split.ids.tolist(), split.raw_text
    all_ids = [id_ for name in pooled for id_ in ids[name]]
    videos = videos_of(all_ids, f"data.folds = {data.folds}: {corpus.path}:")
    segments = collections.Counter(videos)
    if len(segments) < data.folds:
        raise UserError(
            f"data.folds = {data.folds}: {corpus.path} has segments of {len(segments)} video(s); "
            "every fold needs one."
        )
    if len(segments) == len(all_ids) > data.folds:
        logger.warning(
            "%s: by its id every sample is of a video of its own, such as %r: where several are of "
            "one speaker, ids like 'video[0]' or 'video$_$0' keep them in one fold.",
            *(corpus.path, all_ids[0]),
        )
    dealt = deal_videos(segments, data.folds, data.split_seed)
    fold_of = {video: fold for fold, names in enumerate(dealt) for video in names}

    # Of each new split: its rows in each split of the corpus.
    rows: dict[str, dict[str, np.ndarray]] = {split: {} for split in SPLITS}
    for name in pooled:
        after = [(fold_of[video_of(id_)] - data.fold) % data.folds for id_ in ids[name]]
        roles = np.array([{0: "test", 1: "valid"}.get(k, "train") for k in after])
        for split in SPLITS:
            rows[split][name] = np.flatnonzero(roles == split)
    # What all new splits have in common, and each by itself.
    common = _common_header(corpus, pooled, data)
    sizes = {split: sum(map(len, rows[split].values())) for split in SPLITS}
    headers = {}
    for split, chosen in rows.items():
        found = [texts[name][row] for name, row in chosen.items() if texts[name] is not None]
        count = sum(map(count_transcripts, found))
        headers[split] = dataclasses.replace(common, size=sizes[split], transcripts=count)
    has_words = common.words > 0
    aligned = tuple(
        m for m in corpus.aligned or () if m in common.shapes or (m == "text" and has_words)
    )
    chosen = f"{corpus.digest} folds {data.folds} fold {data.fold} seed {data.split_seed}"
    cut = Corpus(
        source=corpus.source,
        digest=hashlib.sha256(chosen.encode()).hexdigest(),
        headers=headers,
        ids={
            split: [ids[name][row] for name, chosen in of.items() for row in chosen]
            for split, of in rows.items()
        },
        read=lambda split: _read_fold(corpus, rows[split], common, data),
        aligned=None if corpus.aligned is None else aligned,
    )
    cut.why, cut.verify = corpus.why, corpus.verify
    return cut


def _common_header(corpus: Corpus, pooled: list[str], data: DataConfig) -> SplitHeader:
    """Returns the header that every new split has, but for its size."""
    # The stored steps of a new split are equal only where modalities share them. Where the corpus
    # does not say what is aligned, equal numbers of steps do: padding must not make them equal.
    as_stored = dataclasses.replace(data, alignment="auto", text="features")
    groups, _ = find_groups(corpus, corpus.modalities, as_stored)
    steps: dict[str, int] = {}

    def apart(longest: int) -> int:
        while corpus.aligned is None and longest > 1 and longest in steps.values():
            longest += 1
        return longest

    for members in movers(corpus.modalities, groups):
        longest = max(max(h.steps(members).values(), default=0) for h in corpus.headers.values())
        steps |= dict.fromkeys(members, apart(longest))

    # A modality needs a mask where one split lacks it or is shorter than another.
    headers = [corpus.headers[name] for name in pooled]
    shapes, dtypes, masked = {}, {}, set()
    for m in corpus.modalities:
        there = [header for header in headers if m in header.shapes]
        if not there:  # in an unlabelled split alone
            continue
        shapes[m] = steps[m], corpus.width(m)
        dtype = np.result_type(*(header.dtypes[m] for header in there))
        dtypes[m] = dtype.name if shapes[m][1] or dtype.kind in "iu" else "int64"
        alike = len(there) == len(headers) and all(h.shapes[m][0] == steps[m] for h in there)
        if not alike or any(m in header.masked for header in there):
            masked.add(m)

    # Words have the steps of modalities with which they share them, and of no others.
    words = 0
    if told := [header for header in headers if header.words]:
        says_words = corpus.aligned is None or "text" in corpus.aligned
        for m in corpus.modalities if corpus.aligned is None else corpus.aligned:
            there = [header for header in told if m in header.shapes]
            if says_words and there and all(h.shapes[m][0] == h.words for h in there):
                words = steps[m]
                break
        else:
            words = apart(max(header.words for header in told))
    kinds = {header.label_kind for header in headers}
    return dataclasses.replace(
        headers[0],
        shapes=shapes,
        dtypes=dtypes,
        masked=frozenset(masked),
        has_raw_text=any(header.has_raw_text for header in headers),
        words=words,
        label_kind=kinds.pop() if len(kinds) == 1 else "scores",
        classes=classes_of(headers),
    )


def _read_fold(
    corpus: Corpus, rows: Mapping[str, np.ndarray], common: SplitHeader, data: DataConfig
) -> Split:
    """Reads one new split: some rows of each split of the corpus, in their order."""

    def join(arrays: list[np.ndarray | None]) -> np.ndarray | None:
        return None if any(array is None for array in arrays) else np.concatenate(arrays)

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
        segments=join([part.segments for part in parts]),
        pieces=join([part.pieces for part in parts]),
        times={
            m: join([part.times[m] for part in parts])
            for m in parts[0].times
            if all(m in part.times for part in parts)
        },
        word_origin=join([part.word_origin for part in parts]),
    )


def _part(split: Split, rows: np.ndarray, common: SplitHeader, data: DataConfig) -> Split:
    """Brings some rows of a split of the corpus into the form of the new splits."""

    def padded(stored: np.ndarray | None, made: np.ndarray) -> np.ndarray:
        if stored is not None:
            made[:, : stored.shape[1]] = stored[rows]
        return made

    # Features with masks, then what goes with words and with text step by step.
    features, masks, derived = {}, {}, set()
    for m, (steps, width) in common.shapes.items():
        shape = (len(rows), steps, width) if width else (len(rows), steps)
        features[m] = padded(split.features.get(m), np.zeros(shape, common.dtypes[m]))
        if m in common.masked:
            there = step_mask(split, m, data.mask_from_zeros) if m in split.features else None
            masks[m] = padded(there, np.zeros((len(rows), steps), bool))
            if m not in split.masks or m in split.derived:
                derived.add(m)
    words, segments, pieces = None, None, None
    if common.words:
        words = padded(split.words, np.full((len(rows), common.words), "", object))
    if "text" in features and features["text"].ndim == 2:
        segments = padded(split.segments, np.zeros(features["text"].shape, np.int32))
    elif split.pieces is not None:
        shape = len(rows), common.shapes["text"][0]
        pieces = padded(split.pieces, np.full(shape, "", split.pieces.dtype))
    steps = {m: common.shapes[m][0] for m in common.shapes} | (
        {"text": common.words} if common.words else {}
    )
    origin = split.word_origin
    if origin is not None:
        origin = padded(origin, np.full((len(rows), common.words), -1, np.int8))
    return Split(
        ids=split.ids[rows],
        features=features,
        masks=masks,
        labels=None if split.labels is None else split.labels[rows],
        raw_text=np.full(len(rows), "") if split.raw_text is None else split.raw_text[rows],
        derived=frozenset(derived),
        words=words,
        segments=segments,
        pieces=pieces,
        times={
            m: padded(times, np.full((len(rows), steps[m], 2), np.nan))
            for m, times in split.times.items()
        },
        word_origin=origin,
    )
