"""The honest protocol: the only reader of the test split, after selection has ended."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from msajax import metrics
from msajax.data.corpus import Corpus, Split
from msajax.data.prepare import Preparation, prepare
from msajax.training.parallel import Layout
from msajax.training.scoring import PredictFn, predict_split


def score_split(
    corpus: Corpus,
    name: str,
    preparation: Preparation,
    predict: PredictFn,
    params: Any,
    layout: Layout,
) -> tuple[Split, np.ndarray, np.ndarray, dict[str, dict[str, int]]]:
    """Reads, prepares and scores one split with parameters that are no longer chosen.

    Returns:
        The prepared split, scores `[S, N]`, modality weights `[S, N, M]`, and the repairs made.

    Raises:
        UserError: if a score is not finite.
    """
    split, repairs = prepare(corpus.split(name), preparation)
    scores, weights = predict_split(predict, params, split, name, preparation.spec, layout)
    return split, scores, weights, repairs


def summarize(scores: np.ndarray, label: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
    """Metrics over random seeds.

    Args:
        scores: `[S, N]`.
        label: `[N]`.
        names: of the metrics.

    Returns:
        `{metric: {"mean", "sd", "seeds"}}`; sd has ddof 1 and is None for one seed.
    """
    per_seed = [metrics.compute(score, label, names) for score in scores]
    summary = {}
    for name in names:
        values = [m[name] for m in per_seed]
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        summary[name] = {"mean": float(np.mean(values)), "sd": sd, "seeds": values}
    return summary


def summarize_with_intervals(
    scores: np.ndarray, label: np.ndarray, names: tuple[str, ...]
) -> dict[str, Any]:
    """`summarize`, and the 95 % bootstrap interval of each mean over samples as "ci95"."""
    intervals = metrics.bootstrap_interval(scores, label, names)
    return {
        name: {**values, "ci95": list(intervals[name])}
        for name, values in summarize(scores, label, names).items()
    }


def report(
    scores: Mapping[str, np.ndarray], splits: Mapping[str, Split], train_label: np.ndarray
) -> dict[str, Any]:
    """The part of results.json that is measured.

    Args:
        scores: `{"valid": [S, N], "test": [S, N]}`.
        splits: the prepared splits of the same names.
        train_label: `[N]`; the metrics follow its range, and its median is a floor.

    Returns:
        The entries valid, test, test_ensemble and floors.
    """
    names = metrics.names_for(train_label)
    valid_label, test_label = (splits[name].labels[:, 0] for name in ("valid", "test"))
    return {
        "valid": summarize(scores["valid"], valid_label, names),
        "test": summarize_with_intervals(scores["test"], test_label, names),
        "test_ensemble": metrics.compute(scores["test"].mean(axis=0), test_label, names),
        "floors": metrics.floors(train_label, test_label, names),
    }
