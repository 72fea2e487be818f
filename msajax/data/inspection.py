"""What `inspect` prints: the facts about a corpus that change results, before anything is trained.

Shares lie in [0, 1], every number is computed in float64, and None stands for the undefined.
"""

import hashlib
import itertools
import warnings
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msajax import metrics
from msajax.config import DataConfig, ModelConfig
from msajax.data.corpus import Corpus, Split, is_finite
from msajax.data.labels import label_kind
from msajax.data.prepare import spans, step_mask
from msajax.errors import UserError

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
_ROWS = {
    "dtype": "stored as",
    "steps": "stored steps",
    "mask": "mask",
    "absent": "samples without it",
    "all_zero": "samples of zeros",
    "valid_steps": "valid steps (*)",
    "span": "first to last one (*)",
    "leading_padding": "rows padded before",
    "trailing_padding": "rows padded after",
    "inner_holes": "rows with holes",
    "padded_steps": "padded steps",
    "range": "smallest, largest",
    "non_finite": "non-finite values",
    "first_non_finite_columns": "first columns with one",
    "constant_columns": "constant columns",
}


def inspect_corpus(corpus: Corpus, data: DataConfig) -> dict[str, Any]:
    """Describes a corpus as it is stored, before any repair.

    Args:
        corpus: opened.
        data: says whether masks that the corpus lacks are derived from zero steps.

    Returns:
        A strict-JSON-ready report. Per split and modality: lengths and rows with padding count
        only samples that have the modality; `padded_steps` is a share of all stored steps;
        `non_finite`, `range` and `constant_columns` look at valid steps alone, the last two at
        their finite values; `all_zero` is the share of samples whose valid steps are all zero.
        `task` is what `model.task = auto` would learn. `identical` counts samples that are equal to
        an earlier one in every valid step of every modality, within a split and across splits;
        `repeated_ids_in` counts those of the same id likewise.
        `memory` is in bytes, as stored and as prepared for a model. Per split and label: `sd` has
        ddof 0, the histogram rounds half to even as `acc7` does, and the floors need labels in
        train.

    Raises:
        UserError: if the corpus went bad since it was opened.
    """
    report: dict[str, Any] = corpus.summary() | {"why": corpus.why}
    report["known_corpus"] = _KNOWN_COUNTS.get(tuple(report["sizes"].values()))
    report["repeated_ids"] = corpus.repeated_ids
    report["repairs"] = corpus.repairs
    report["task"] = _task(corpus)
    report["splits"], train = {}, None
    report["memory"] = dict.fromkeys(("stored", "prepared"), 0)
    contents: dict[str, list[bytes]] = {}
    ids: dict[str, list[bytes]] = {}
    for name, header in corpus.headers.items():  # train first, one split in memory at a time
        split = corpus.split(name)
        train = split.labels if name == "train" else train
        report["splits"][name] = {
            "samples": len(split),
            "raw_text": header.has_raw_text,
            "modalities": {
                m: {"dtype": header.dtypes[m], **_modality(split, m, data.mask_from_zeros)}
                for m in corpus.modalities
                if m in split.features
            },
            "labels": {
                label: _labels(
                    split.labels[:, k],
                    None if train is None else train[:, k],
                    header.label_kind,
                )
                for k, label in enumerate(header.label_names)
            }
            or None,
        }
        stored = (*split.features.values(), *split.masks.values())
        report["memory"]["stored"] += sum(array.nbytes for array in stored)
        report["memory"]["prepared"] += _prepared_bytes(report["splits"][name])
        contents[name] = _contents(split, data.mask_from_zeros)
        ids[name] = [b"id " + id_.encode() for id_ in split.ids.tolist()]
        del split
    report["identical"] = _identical(contents)
    report["repeated_ids_in"] = _identical(ids)
    report["warnings"] = _warnings(report)
    return report


def _modality(split: Split, modality: str, mask_from_zeros: bool) -> dict[str, Any]:
    x, mask = split.features[modality], step_mask(split, modality, mask_from_zeros)
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
    derived = "from zeros" if mask_from_zeros else "every step"
    return {
        "width": 0 if are_tokens else width,
        "steps": steps,
        "mask": "explicit" if modality in split.masks else derived,
        "absent": float((~here).mean()),
        "all_zero": float((zero & here).mean()),
        "valid_steps": _summary(valid),
        "span": _summary(span),
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


def _task(corpus: Corpus) -> dict[str, Any] | None:
    """What the labels would be learned as; None without labels, or with a single class."""
    try:
        task = label_kind(corpus, ModelConfig())
    except UserError:
        return None
    labelled = any(header.label_names for header in corpus.headers.values())
    return {"kind": task.kind, "names": list(task.names)} if labelled else None


def _prepared_bytes(split: dict[str, Any]) -> int:
    """Float32 features and a mask for the longest sequence of each modality."""
    spans = {m: facts["span"] for m, facts in split["modalities"].items() if facts["span"]}
    widths = {m: max(split["modalities"][m]["width"], 1) for m in spans}
    return sum(int(spans[m]["max"]) * (4 * widths[m] + 1) for m in spans) * split["samples"]


def _contents(split: Split, mask_from_zeros: bool) -> list[bytes]:
    """A digest of each sample's valid steps; empty for a sample without any."""
    digests = [hashlib.blake2b(digest_size=16) for _ in range(len(split))]
    empty = np.ones(len(split), bool)
    for m in sorted(split.features):
        mask = step_mask(split, m, mask_from_zeros)
        empty &= ~mask.any(axis=1)
        for digest, x, kept in zip(digests, split.features[m], mask, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                digest.update(m.encode() + x[kept].astype(np.float32).tobytes())
    return [b"" if none else d.digest() for d, none in zip(digests, empty, strict=True)]


def _identical(contents: dict[str, list[bytes]]) -> dict[str, int]:
    """How many samples are equal to an earlier one, by split and by pair of splits."""
    known = {name: {digest for digest in all_of if digest} for name, all_of in contents.items()}
    found = {
        name: sum(map(bool, all_of)) - len(known[name]) for name, all_of in contents.items()
    }
    for first, second in itertools.combinations(contents, 2):
        found[f"{first}/{second}"] = sum(digest in known[first] for digest in contents[second])
    return found


def _summary(counts: np.ndarray) -> dict[str, float] | None:
    values = (counts.min(), np.median(counts), counts.mean(), counts.max()) if counts.size else ()
    return dict(zip(("min", "median", "mean", "max"), map(float, values), strict=False)) or None


def _share(rows: np.ndarray) -> float | None:
    return float(rows.mean()) if rows.size else None


def _labels(y: np.ndarray, train: np.ndarray | None, kind: str) -> dict[str, Any]:
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
            floors = metrics.floors(train, y, metrics.names_for(train))
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


def _warnings(report: dict[str, Any]) -> list[str]:
    """What would change or surprise in the results, a sentence each."""
    splits = report["splits"]
    found = [f"There is no {s} split: {why}." for s, why in _CONSEQUENCE.items() if s not in splits]
    if report["repeated_ids"]:
        found.append(f"{report['repeated_ids']} id(s) occur more than once: samples may leak.")
    for where, count in report["identical"].items():
        first, _, second = where.partition("/")
        if count and second:
            found.append(f"{count} sample(s) of {second} are identical to one of {first}.")
        elif count:
            found.append(f"{count} sample(s) of {first} are identical to an earlier one.")
    spans_in_train = {m: _longest(splits.get("train"), m) for m in report["widths"]}
    labelled = any(split["labels"] for split in splits.values())
    if labelled and not report["task"]:
        found.append("Every label is of the same class: there is nothing to tell apart.")
    for name, split in splits.items():
        if not split["labels"]:
            found.append(f"{name} has no labels: it can be predicted, not learned or scored.")
        for label, facts in (split["labels"] or {}).items():
            task = report["task"] or {"kind": "one class"}
            alone = len(split["labels"]) == 1 and task["kind"] == "regression"
            if alone and (facts["min"] < -3 or facts["max"] > 3):
                found.append(
                    f"{name}: {label} reaches from {facts['min']:g} to {facts['max']:g}, outside "
                    "[-3, 3]: the accuracies and F1 of sentiment do not suit it."
                )
        for m, in_train in spans_in_train.items():
            longest, facts = _longest(split, m), split["modalities"].get(m)
            if not longest and name == "train":
                found.append(f"{m} has no valid step in train: models leave it out everywhere.")
            elif not longest and in_train:
                found.append(f"{m} has no valid step in {name}: every sample there lacks it.")
            if longest > in_train > 0:
                found.append(
                    f"{name}/{m} has up to {longest:g} steps, train only {in_train:g}: "
                    "set data.truncate or model.max_len."
                )
            if facts and facts["non_finite"]:
                found.append(
                    f"{name}/{m} has {facts['non_finite']} non-finite value(s) in "
                    f"{facts['non_finite_columns']} column(s): preparation sets them to 0."
                )
    return found


def _longest(split: dict[str, Any] | None, modality: str) -> float:
    span = split and modality in split["modalities"] and split["modalities"][modality]["span"]
    return span["max"] if span else 0.0


def render(report: dict[str, Any], console: Console) -> None:
    """Prints a report of `inspect_corpus` in plain characters."""

    def say(text: str) -> None:  # Text, so that [brackets] in a path are no markup
        console.print(Text(text))

    splits, known = report["splits"], report["known_corpus"]
    say(f"{report['path']}: {report['layout']}\nsha256 {report['digest']}")
    found = ", ".join(f"{size} {name}" for name, size in report["sizes"].items())
    say(f"samples: {found} ({f'the counts of {known}' if known else 'not counts we know'})")
    if report["why"]:
        say(f"layout found because {report['why']}")
    if task := report["task"]:
        say(f"labels: {task['kind']} of {', '.join(task['names'])}")
    for what, key in (("repeated ids", "repeated_ids_in"), ("identical samples", "identical")):
        say(f"{what}: {', '.join(f'{count} in {where}' for where, count in report[key].items())}")
    stored, prepared = (report["memory"][k] / 2**20 for k in ("stored", "prepared"))
    say(f"memory: {stored:.1f} MiB as stored, {prepared:.1f} MiB prepared")
    for m, width in report["widths"].items():
        facts = {name: split["modalities"].get(m, {}) for name, split in splits.items()}
        cells = {n: {_ROWS[k]: _show(f.get(k)) for k in _ROWS} for n, f in facts.items()}
        kind = f"{width} feature(s) per step" if width else "token ids"
        _print_table(f"{m}: {kind}", cells, console)
    say("(*) min, median, mean, max over the samples that have the modality")
    labels = {name: split["labels"] for name, split in splits.items() if split["labels"]}
    for label in next(iter(labels.values()), ()):
        columns = {name: facts[label] for name, facts in labels.items()}
        bins = sorted({int(b) for f in columns.values() for b in f["histogram"] or ()})
        cells = {name: _label_cells(facts, bins) for name, facts in columns.items()}
        _print_table(f"label: {label}", cells, console)
    for warning in report["warnings"] or ["none"]:
        say(f"\nwarning: {warning}")


def _show(value: Any) -> str:
    """A fact about a modality; every bare float there is a share."""
    if isinstance(value, dict):
        return ", ".join(f"{v:.4g}" for v in value.values())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.1%}"
    return "" if value is None else str(value)


def _label_cells(facts: dict[str, Any], bins: list[int]) -> dict[str, str]:
    cells = {"count": str(facts["count"])}
    cells |= {key: f"{facts[key]:.4g}" for key in ("min", "median", "mean", "max", "sd")}
    cells |= {f"rounds to {b}": str((facts["histogram"] or {}).get(str(b), 0)) for b in bins}
    for floor, values in (facts["floors"] or {}).items():
        for metric, value in values.items():
            cells[f"{floor} {metric}"] = "" if value is None else f"{value:.4f}"
    return cells


def _print_table(title: str, columns: dict[str, dict[str, str]], console: Console) -> None:
    """One column per split; a row that no split fills is left out."""
    table = Table(title=Text(f"\n{title}"), title_justify="left", title_style="bold", box=None)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in dict.fromkeys(row for cells in columns.values() for row in cells):
        values = [cells.get(row, "") for cells in columns.values()]
        if any(values):
            table.add_row(Text(row), *(Text(value or "-") for value in values))
    console.print(table)
