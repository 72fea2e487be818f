"""Predictions as CSV (UTF-8, RFC 4180, 9 significant digits): written and read here."""

import contextlib
import csv
import dataclasses
import os
import re
from collections.abc import Sequence

import numpy as np

from msajax.data.corpus import Split
from msajax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Scores of labelled samples, as read from a file.

    Attributes:
        scores: `[S, N]` float64, one row per random seed.
        labels: `[N]` float64.
    """

    scores: np.ndarray
    labels: np.ndarray


def write_predictions(
    path: str,
    splits: Sequence[Split],
    scores: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    seeds: Sequence[int],
    modalities: Sequence[str],
) -> None:
    """Writes one row per sample, whole file or none.

    `score` and the weights are means over seeds; `score_sd` is their ddof-1 deviation, empty for a
    single seed. A label is empty when unknown.

    Args:
        path: the file.
        splits: prepared splits, written one after another.
        scores: of each split, `[S, N]`.
        weights: of each split, `[S, N, M]`.
        seeds: the S random seeds.
        modalities: the M names.

    Raises:
        UserError: if the file cannot be written.
    """
    has_text = any(split.raw_text is not None for split in splits)
    header = ["id", "label", "score", "score_sd", *(f"score_seed{s}" for s in seeds)]
    header += [f"weight_{m}" for m in modalities] + [f"present_{m}" for m in modalities]
    header += ["raw_text"] * has_text
    temporary = f"{path}.partial"
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for split, s, w in zip(splits, scores, weights, strict=True):
                writer.writerows(_rows(split, s, w, modalities, has_text))
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def _rows(split, scores, weights, modalities, has_text):
    mean, mean_weights = scores.mean(axis=0), weights.mean(axis=0)
    present = {m: split.masks[m].any(axis=1) for m in modalities}
    for i, name in enumerate(split.ids):
        row = [name, "" if split.labels is None else _number(split.labels[i, 0])]
        row += [_number(mean[i]), _number(scores[:, i].std(ddof=1)) if len(scores) > 1 else ""]
        row += [_number(score) for score in scores[:, i]]
        row += [_number(weight) for weight in mean_weights[i]]
        row += [int(present[m][i]) for m in modalities]
        if has_text:
            row.append("" if split.raw_text is None else split.raw_text[i])
        yield row


def _number(value: float) -> str:
    return f"{value:.9g}"


def read_predictions(path: str) -> Predictions:
    """Reads labels and scores: the columns `score_seed<k>`, or `score` where there are none.

    Raises:
        UserError: naming the column or the row that is missing, empty or not a finite number.
    """
    csv.field_size_limit(2**31 - 1)  # a transcript may be long
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # spreadsheets put a mark first
            reader = csv.DictReader(file)
            rows = list(reader)
            columns = reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {error}.") from error
    score_columns = [c for c in columns if re.fullmatch(r"score_seed\d+", c)]
    score_columns = score_columns or ["score"]
    for column in ("label", *score_columns):
        if column not in columns:
            there = ", ".join(columns) or "none"
            raise UserError(f"{path} has no column {column!r}; it has {there}.")
    if not rows:
        raise UserError(f"{path} holds no prediction.")

    def numbers(column: str) -> np.ndarray:
        values = np.empty(len(rows))
        for i, row in enumerate(rows):
            try:
                values[i] = float(row[column])
            except (TypeError, ValueError):
                values[i] = np.nan
            if not np.isfinite(values[i]):
                raise UserError(
                    f"{path}, row {i + 1}: {column} is {row[column]!r}, not a finite number."
                )
        return values

    return Predictions(np.stack([numbers(c) for c in score_columns]), numbers("label"))
