"""Describes a corpus for `inspect`: the facts that change results, before anything is trained.

Shares lie in [0, 1], every number is computed in float64, and None stands for the undefined.
"""

import contextlib
import hashlib
import itertools
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.config import DataConfig, ModelConfig
from msajax.corpus.corpus import (
    Corpus,
    Split,
    count_repeated,
    describe_repeated,
    describe_repeated_ids,
    is_finite,
    modality_order,
)
from msajax.corpus.demands import describe_unread_transcripts, splits_for_folds
from msajax.corpus.folds import advise_folds, is_part, video_of
from msajax.corpus.labels import LabelKind, label_kind
from msajax.corpus.steps import (
    Groups,
    begin_apart,
    find_groups,
    movers,
    readable_steps,
    spans,
    step_masks,
    table_sizes,
    union,
)
from msajax.errors import UserError, printable
from msajax.preparation.lost import (
    REPAIRS,
    Lost,
    count_hidden,
    count_in_full,
    count_without_any,
    describe,
    describe_empty,
)
from msajax.tasks import TASKS
from msajax.tasks.regression import Regression

ANY_MODEL = ModelConfig()
_BLOCK = 2**22  # feature values looked at in one go, so that float64 copies stay small
_SHOWN = 8  # columns listed by number
_MOST_BINS = 64  # of a histogram; labels on a wider scale go without
_KNOWN_COUNTS = {
    (1284, 229, 686): "CMU-MOSI",
    (16326, 1871, 4659): "CMU-MOSEI",
    (16327, 1871, 4662): "CMU-MOSEI",
    (15290, 2291, 4832): "CMU-MOSEI",
    (1368, 456, 457): "CH-SIMS",
    (220, 40, 80): "ICT-MMMO",
    (173, 36, 60): "YouTube",
    (600, 100, 203): "POM",
}
_CONSEQUENCE = {
    "train": "nothing can be trained on this corpus, only predicted",
    "valid": "training has nothing to choose its best epoch by",
    "test": "a run has no test result",
}


def inspect_corpus(
    corpus: Corpus, data: DataConfig, model: ModelConfig = ANY_MODEL
) -> dict[str, Any]:
    """Describes a corpus as it is stored, before any repair.

    Args:
        corpus: every split is read.
        data: says how masks that the corpus lacks are derived, and which of the modalities that
            train has are aligned.
        model: says what would read transcripts, and what labels are learned as.

    Returns:
        A strict-JSON-ready report. Per split and modality: lengths and rows with padding count
        only samples that have the modality; `padded_steps` is a share of all stored steps, `hidden`
        counts those that are not zero although the mask of the file hides them;
        `non_finite`, `range` and `constant_columns` look at valid steps alone, the last two at
        their finite values; `all_zero` is the share of samples whose valid steps are all zero.
        `named_by` says what is known of each step of text: pieces, words, or None.
        `task` is what labels would be learned as. `identical` counts samples that are equal to
        an earlier one in every valid step of every modality, within a split and across splits;
        `repeated_ids_in` counts those of the same id likewise. Per split, `lost` counts by modality
        what preparation would lose (see `lost.py`), truncation aside, and `without_any` samples
        that have no valid step in any modality.
        `memory` is in bytes, as stored and as prepared for a model. Per split and label: `sd` has
        ddof 0, the histogram rounds half to even as `acc7` does, and the floors need labels in
        train. `alignment` says which modalities share their steps and why; per split, `begin_apart`
        counts samples in which such modalities begin at different steps, and `aligned_spans` are
        from the first step to the last that is valid in any of them. `warnings` say what would
        change or surprise in results, `notes` what need not.

    Raises:
        UserError: if the corpus went bad since it was opened, or cannot be aligned as `data` says.
    """
    # What the headers tell.
    report: dict[str, Any] = corpus.summary() | {"why": corpus.why}
    report["manifest"] = corpus.source.manifest
    report["known_corpus"] = _KNOWN_COUNTS.get(tuple(report["sizes"].values()))
    report["repeated_ids"] = corpus.repeated_ids
    report["repeated_ids_in"] = corpus.repeated_ids_in
    report["repairs"] = corpus.repairs
    kind: LabelKind | None = None  # without labels, or with a single class
    if any(header.label_names for header in corpus.headers.values()):
        with contextlib.suppress(UserError):
            kind = label_kind(corpus, model)
    report["task"] = {"kind": kind.kind, "names": list(kind.names)} if kind else None
    # Each split by itself, and what of it is compared with the others.
    report["splits"], train, groups = {}, None, None
    report["memory"] = dict.fromkeys(("stored", "prepared"), 0)
    derived = "from zeros" if data.mask_from_zeros else "every step"
    contents: dict[str, list[bytes | None]] = {}
    sizes: dict[str, dict[str, np.ndarray]] = {}
    ids: dict[str, list[str]] = {}
    labels: dict[str, np.ndarray | None] = {}
    table_rows: dict[str, int] = {}
    for name, header in corpus.headers.items():  # train first, one split in memory at a time
        split = corpus.split(name)
        train = split.labels if name == "train" else train
        masks, nonzero = step_masks(split, split.features, data.mask_from_zeros)
        if name == "train":
            table_rows = table_sizes(split, readable_steps(split, masks, {}))
        if groups is None:
            valid = {m for m in masks if masks[m].any()}
            used = modality_order(valid) if name == "train" else corpus.modalities
            groups, why = find_groups(corpus, used, data)
            report["alignment"] = {"groups": list(map(list, groups)), "why": why}
        lost = count_in_full(split, masks, groups, table_rows, nonzero)
        report["splits"][name] = {
            "samples": len(split),
            "raw_text": header.has_raw_text,
            "modalities": {
                m: {
                    "dtype": header.dtypes[m],
                    "mask": "explicit" if m in split.masks else derived,
                    "hidden": count_hidden(split, m),
                    **({"named_by": _named_by(split)} if m == "text" else {}),
                    **_describe_modality(split.features[m], masks[m]),
                }
                for m in corpus.modalities
                if m in masks
            },
            **_describe_groups(masks, groups, len(split)),
            "lost": {m: of._asdict() for m, of in lost.items()},
            "without_any": count_without_any(masks),
            "labels": {
                label: _describe_label(
                    split.labels[:, k], None if train is None else train[:, k], header.label_kind
                )
                for k, label in enumerate(header.label_names)
            }
            or None,
        }

        stored = (*split.features.values(), *split.masks.values())
        report["memory"]["stored"] += sum(array.nbytes for array in stored)
        # Float32 features and masks, as long as the longest sequence.
        facts = report["splits"][name]["modalities"]
        facts = {m: found for m, found in facts.items() if found["span"]}
        for members in movers(facts, groups):
            steps = int(_longest(report["splits"][name], members))
            of_step = sum(4 * max(facts[m]["width"], 1) + 1 for m in members if m in facts)
            report["memory"]["prepared"] += steps * of_step * len(split)
        contents[name] = _digest_samples(split, masks)
        sizes[name] = {m: x for m, x in split.features.items() if x.ndim == 3}
        sizes[name] = {m: typical_sizes(x, masks[m]) for m, x in sizes[name].items()}
        ids[name], labels[name] = split.ids.tolist(), split.labels
        del split

    # What only all splits together show.
    report["identical"] = count_repeated(contents)
    unread = describe_unread_transcripts(corpus, data, model)
    unread = [unread] if unread else []
    has_text = "text" in corpus.modalities
    report["notes"] = unread if has_text else []
    report["warnings"] = [] if has_text else unread
    lacking = [s for s in _CONSEQUENCE if s not in corpus.headers]
    report["warnings"] += [f"There is no {s} split: {_CONSEQUENCE[s]}." for s in lacking]
    if lacking and (pooled := splits_for_folds(corpus, model)):
        samples = itertools.chain.from_iterable(ids[name] for name in pooled)
        report["warnings"].append(advise_folds(samples))
    report["warnings"] += _warnings(report, groups, data) + suspect_ids(ids)
    report["warnings"] += suspect_videos(ids)
    if kind:
        columns = next(h.label_names for h in corpus.headers.values() if h.label_names)
        known = {split: y for split, y in labels.items() if y is not None}
        report["warnings"] += TASKS[kind.kind].suspicions(
            known, kind.names, kind.classes, columns, model.task == "auto"
        )
    report["warnings"] += suspect_scales(sizes)
    return report


def _named_by(split: Split) -> str | None:
    """Says what is known of each stored step of text: pieces, words, or nothing."""
    if split.pieces is not None:
        return "pieces"
    steps = split.features["text"].shape[1]
    return "words" if split.words is not None and split.words.shape[1] == steps else None


def _describe_groups(masks: dict[str, np.ndarray], groups: Groups, size: int) -> dict[str, Any]:
    """Describes the sequences of a split that move together; None stands for the undefined."""
    apart, found = np.zeros(size, bool), {}
    for group in groups:
        there = [masks[m] for m in group if m in masks]
        lengths = spans(union(there))[1] if there else np.zeros(0, int)
        apart |= begin_apart(there) if there else False
        found[" + ".join(group)] = _summarize(lengths[lengths > 0])
    return {"begin_apart": int(apart.sum()), "aligned_spans": found}


def _describe_modality(x: np.ndarray, mask: np.ndarray) -> dict[str, Any]:
    are_tokens = x.ndim == 2
    x = x[..., None] if are_tokens else x
    size, steps, width = x.shape
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    bad, zero = np.zeros(width, np.int64), np.zeros(size, bool)
    block = max(1, _BLOCK // (steps * width))
    for start in range(0, size, block):
        rows = slice(start, start + block)
        values = x[rows][mask[rows]].astype(np.float64)  # [valid steps, width]
        zero[rows] = ~(x[rows].any(axis=2) & mask[rows]).any(axis=1)
        finite = is_finite(values)
        bad += (~finite).sum(axis=0)
        low = np.minimum(low, values.min(axis=0, where=finite, initial=np.inf))
        high = np.maximum(high, values.max(axis=0, where=finite, initial=-np.inf))

    known = low <= high  # columns with a finite value
    valid, (first, span) = mask.sum(axis=1), spans(mask)
    here = valid > 0
    valid, first, span = valid[here], first[here], span[here]
    return {
        "width": 0 if are_tokens else width,
        "steps": steps,
        "absent": float((~here).mean()),
        "all_zero": float((zero & here).mean()),
        "valid_steps": _summarize(valid),
        "span": _summarize(span),
        "leading_padding": _share(first > 0),
        "trailing_padding": _share(first + span < steps),
        "inner_holes": _share(valid < span),
        "padded_steps": float((~mask).mean()),
        "non_finite": int(bad.sum()),
        "non_finite_columns": int((bad > 0).sum()),
        "first_non_finite_columns": np.flatnonzero(bad)[:_SHOWN].tolist(),
        "constant_columns": int((~known | (low == high)).sum()) if here.any() else None,
        "range": {"min": float(low.min()), "max": float(high.max())} if known.any() else None,
    }


def _digest_samples(split: Split, masks: dict[str, np.ndarray]) -> list[bytes | None]:
    """Returns a digest of each sample's valid steps; None for a sample without any."""
    digests = [hashlib.blake2b(digest_size=16) for _ in range(len(split))]
    empty = np.ones(len(split), bool)
    for m in sorted(split.features):
        empty &= ~masks[m].any(axis=1)
        for digest, x, kept in zip(digests, split.features[m], masks[m], strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                digest.update(m.encode() + x[kept].astype(np.float32).tobytes())
    return [None if none else d.digest() for d, none in zip(digests, empty, strict=True)]


def _summarize(counts: np.ndarray) -> dict[str, float] | None:
    values = (counts.min(), np.median(counts), counts.mean(), counts.max()) if counts.size else ()
    return dict(zip(("min", "median", "mean", "max"), map(float, values), strict=False)) or None


def _share(rows: np.ndarray) -> float | None:
    return float(rows.mean()) if rows.size else None


def _describe_label(y: np.ndarray, train: np.ndarray | None, kind: str) -> dict[str, Any]:
    rounded = np.round(y)
    low, high = float(rounded.min()), float(rounded.max())
    bins = range(int(low), int(high) + 1) if high - low < _MOST_BINS else ()
    floors = None
    if kind == "classes":
        counts = np.unique(y, return_counts=True)[1]
        floors = {"majority": {"accuracy": float(counts.max() / len(y))}}
    elif kind == "scores" and train is not None:
        with warnings.catch_warnings():  # an undefined majority becomes None below
            warnings.simplefilter("ignore", RuntimeWarning)
            train, column = train[:, None], y[:, None]
            floors = Regression.of(("label",), train).floors(train, column)
        floors = {
            floor: {key: v if np.isfinite(v) else None for key, v in values.items()}
            for floor, values in floors.items()
        }
    return {
        "count": len(y),
        **{name: float(getattr(np, name)(y)) for name in ("min", "median", "mean", "max")},
        "sd": float(y.std()),
        "histogram": {str(b): int((rounded == b).sum()) for b in bins} or None,
        "floors": floors,
    }


def _warnings(report: dict[str, Any], groups: Groups, data: DataConfig) -> list[str]:
    splits = report["splits"]
    found = describe_repeated_ids(report["repeated_ids_in"])
    found += describe_repeated(report["identical"], "are identical to")
    labelled = any(split["labels"] for split in splits.values())
    if labelled and not report["task"]:
        found.append("Every label is of the same class: there is nothing to tell apart.")
    if report["task"] and TASKS[report["task"]["kind"]].has_scale:
        found += suspect_range(splits)
    for name, split in splits.items():
        if not split["labels"]:
            found.append(f"{name} has no labels: it can be predicted, not learned or scored.")
        for m, lost in split["lost"].items():
            found.append(Lost(**lost).describe(f"{name}/{m}", data.allow_loss))
        if split["without_any"]:
            found.append(describe_empty(name, split["without_any"], split["samples"]))
        for members in movers(report["widths"], groups):
            for m in members:
                if not _longest(split, (m,)) and name == "train":
                    found.append(f"{m} has no valid step in train: models leave it out everywhere.")
                elif not _longest(split, (m,)) and _longest(splits.get("train"), (m,)):
                    found.append(f"{m} has no valid step in {name}: every sample there lacks it.")
            longest, in_train = _longest(split, members), _longest(splits.get("train"), members)
            if longest > in_train > 0:
                found.append(
                    f"{name}/{' + '.join(members)} has up to {longest:g} steps, train only "
                    f"{in_train:g}: set data.truncate or model.max_len."
                )
            for m in members:
                facts = split["modalities"].get(m)
                if facts and facts["hidden"]:
                    told = describe({m: {"hidden_steps": facts["hidden"]}}, REPAIRS)
                    found.append(f"{name}/{told}.")
                if facts and facts["non_finite"]:
                    found.append(
                        f"{name}/{m} has {facts['non_finite']} non-finite value(s) in "
                        f"{facts['non_finite_columns']} column(s): preparation sets them to 0."
                    )
    return found


def _longest(split: dict[str, Any] | None, members: tuple[str, ...]) -> float:
    """Returns the steps of the longest sequence of what moves as one; 0 if there is none."""
    if split is None:
        return 0.0
    facts = split["modalities"].get(members[0], {"span": None})
    span = split["aligned_spans"][" + ".join(members)] if len(members) > 1 else facts["span"]
    return span["max"] if span else 0.0


_APART = 100  # times: units that were mixed up, or features that were scaled in one split alone
_FEWEST = 30  # values that are not zero, for a typical size of a column


def suspect_ids(ids: Mapping[str, Sequence[str]]) -> list[str]:
    """Tells of samples whose ids differ in their Unicode form alone, as those of "é" may."""
    composed = {s: [unicodedata.normalize("NFC", id_) for id_ in of] for s, of in ids.items()}
    equal = count_repeated(ids)
    found = {where: count - equal[where] for where, count in count_repeated(composed).items()}
    equals = "have, but for its Unicode form (NFC or NFD), the id of"
    return describe_repeated(found, equals, ": samples may leak")


def suspect_videos(ids: Mapping[str, Sequence[str]]) -> list[str]:
    """Tells of videos that have samples in more than one split; repeated ids are told elsewhere."""
    parts = {name: {video_of(id_) for id_ in of if is_part(id_)} for name, of in ids.items()}
    videos = {name: found - {None} for name, found in parts.items()}
    shared = [
        f"{len(both)} in {one} and {other}, as {printable(min(both))!r}"
        for one, other in itertools.combinations(videos, 2)
        if (both := videos[one] & videos[other])
    ]
    if not shared:
        return []
    return [
        f"By their ids, videos or persons have samples in two splits ({'; '.join(shared)}): what a "
        "model learns of a speaker in one helps it in the other."
    ]


def typical_sizes(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns `[d]`, how large a column's values are: the geometric mean of their magnitudes.

    It is over valid steps, `mask` [N, T], of `x` [N, T, d], and over what is finite and not zero:
    an outlier hardly moves it, and another unit does by its factor. NaN for a column with too few.
    """
    total, count = np.zeros(x.shape[2]), np.zeros(x.shape[2], np.int64)
    block = max(1, _BLOCK // (x.shape[1] * x.shape[2]))
    for start in range(0, len(x), block):
        values = np.abs(x[start : start + block][mask[start : start + block]].astype(np.float64))
        counts = is_finite(values) & (values > 0)
        total += np.log(values, where=counts, out=np.zeros_like(values)).sum(axis=0)
        count += counts.sum(axis=0)
    return np.exp(np.where(count < _FEWEST, np.nan, total / np.maximum(count, 1)))


def suspect_scales(sizes: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
    """Tells of columns whose `typical_sizes` in one split are many times those in another."""
    told = []
    for m in dict.fromkeys(m for split in sizes.values() for m in split):
        of = {name: split[m] for name, split in sizes.items() if m in split}
        every = np.stack([*of.values()])
        known = np.isfinite(every).sum(axis=0) > 1
        low = np.min(every, axis=0, initial=np.inf, where=np.isfinite(every))
        high = np.max(every, axis=0, initial=0, where=np.isfinite(every))
        differ = np.flatnonzero(known & (high >= _APART * np.where(known, low, 1)))
        if not differ.size:
            continue
        first = ", ".join(f"{found[differ[0]]:.3g} in {name}" for name, found in of.items())
        those = describe_columns(differ.tolist(), every.shape[1])
        told.append(
            f"The values of {m} differ in scale in {those}: typically {first}"
            f"{f' in column {differ[0]}' if differ.size > 1 else ''}. Were they made in the same "
            "way?"
        )
    return told


def describe_columns(columns: Sequence[int], width: int) -> str:
    """Names columns by their numbers from 0: "all 74 columns", "column 3", "columns 1, 2, …"."""
    if len(columns) == width > 1:
        return f"all {width} columns"
    named = ", ".join(map(str, columns[:_SHOWN]))
    rest = f", … ({len(columns)} of {width})" if len(columns) > _SHOWN else ""
    return f"column{'s' * (len(columns) > 1)} {named}{rest}"


def suspect_range(splits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Says in one sentence in which splits a single score leaves the scale of sentiment."""
    wide = {
        name: (label, facts["min"], facts["max"])
        for name, split in splits.items()
        for label, facts in (split["labels"] or {}).items()
        if len(split["labels"]) == 1 and (facts["min"] < -3 or facts["max"] > 3)
    }
    if not wide:
        return []
    labels, low, high = zip(*wide.values(), strict=True)
    return [
        f"{', '.join(wide)}: {labels[0]} reaches from {min(low):g} to {max(high):g}, outside "
        "[-3, 3]: the accuracies and F1 of sentiment do not suit it."
    ]
