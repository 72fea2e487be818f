"""Measures a logistic regression on statistics of the 27 audio columns of whole files, on RAVDESS.

    python bench/ravdess_statistics.py TABLE.csv [--folds=24] [--output=predictions.csv]

24 folds leave one actor out; 6 are of the actors {k, k + 6, k + 12, k + 18}. Statistics are
standardised on the training actors alone, never by speaker; C is chosen by inner folds of actors,
four of the training actors each. Prints the unweighted average recall and its 95 % bootstrap
interval over actors (10,000 resamples). `--mode compare` reads OUTPUT. Needs scikit-learn
(requirements-test.txt) and PyAV.

247 statistics: of each column nine, over voiced frames for f0_semitone and hnr_db (0 without any):
mean, standard deviation, the percentiles 5, 25, 50, 75 and 95, the slope of the least-squares line
over the frames (per s), and the mean absolute difference between neighbouring frames. And four
more: the duration (s), stretches of voice per second, their mean length and that of the stretches
between them (s).
"""

import argparse
import csv
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import numpy as np
from ravdess import LABELS, decode, read_rows
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from msajax.recordings.audio_columns import COLUMNS, audio_columns


def functionals(track: np.ndarray, kept: np.ndarray) -> list[float]:
    """Computes the nine functionals of a column `[T]` over the frames that are kept, `[T]` bool."""
    values = track[kept].astype(float)
    if not len(values):
        return [0.0] * 9
    times = np.flatnonzero(kept) / 100
    times -= times.mean()
    slope = (times * values).sum() / max((times**2).sum(), 1e-9)
    neighbours = kept[1:] & kept[:-1]
    change = abs(np.diff(track.astype(float)))[neighbours]
    percentiles = np.percentile(values, (5, 25, 50, 75, 95))
    return [values.mean(), values.std(), *percentiles, slope, change.sum() / max(len(change), 1)]


def statistics(columns: np.ndarray) -> np.ndarray:
    """Computes the 247 statistics of a file's columns `[T, 27]`."""
    voiced = columns[:, [c.name for c in COLUMNS].index("voiced")] > 0
    found = []
    for track, column in zip(columns.T, COLUMNS, strict=True):
        found += functionals(track, voiced if column.of_voice else np.ones(len(track), bool))
    turns = np.flatnonzero(np.diff(voiced)) + 1
    stretches = np.split(voiced, turns)
    lengths = [[len(s) / 100 for s in stretches if s[0] == kind] for kind in (True, False)]
    duration = len(columns) / 100
    means = [np.mean(of_kind) if of_kind else 0.0 for of_kind in lengths]
    return np.array([*found, duration, len(lengths[0]) / duration, *means])


def predict(values: np.ndarray, classes: np.ndarray, actors: np.ndarray, folds: int) -> np.ndarray:
    """Scores each file by a model that has heard none of its fold's actors, `[N, 8]`."""
    scores = np.zeros((len(values), len(LABELS)))
    for fold in range(folds):
        test = (actors - 1) % folds == fold
        model = LogisticRegressionCV(
            Cs=10.0 ** np.arange(-4, 1),
            cv=list(GroupKFold(5).split(values[~test], groups=actors[~test])),
            scoring="balanced_accuracy",
            max_iter=2000,
            l1_ratios=(0,),
            use_legacy_attributes=False,
        )
        fitted = make_pipeline(StandardScaler(), model).fit(values[~test], classes[~test])
        scores[test] = fitted.predict_proba(values[test])
        recall = recall_of(classes[test], scores[test].argmax(axis=1))
        print(f"fold {fold}: C = {model.C_:g}, recall {recall:.1%}", flush=True)
    return scores


def recall_of(classes: np.ndarray, predicted: np.ndarray) -> float:
    """Computes the unweighted average recall of the classes that are there."""
    return float(np.mean([(predicted[classes == c] == c).mean() for c in np.unique(classes)]))


def main() -> None:
    """Prints the recall, and writes the predictions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--folds", type=int, choices=(6, 24), default=24)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    rows = read_rows(options.table)
    values = np.stack([statistics(audio_columns(decode(row["file"]))) for row in rows])
    classes = np.array([LABELS.index(row["label"]) for row in rows])
    actors = np.array([int(row["actor"]) for row in rows])
    scores = predict(values, classes, actors, options.folds)
    predicted = scores.argmax(axis=1)
    draw = np.random.default_rng(0)
    of_actor = [np.flatnonzero(actors == actor) for actor in np.unique(actors)]
    drawn = [
        recall_of(classes[chosen], predicted[chosen])
        for _ in range(10_000)
        for chosen in [np.concatenate([of_actor[i] for i in draw.integers(24, size=24)])]
    ]
    low, high = np.percentile(drawn, (2.5, 97.5))
    print(f"recall {recall_of(classes, predicted):.1%} [{low:.1%}, {high:.1%}] by actor")
    if options.output:
        with open(options.output, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "label", "predicted", *(f"score_{name}" for name in LABELS)])
            for row, best, score in zip(rows, predicted, scores, strict=True):
                cells = [f"{row['actor']}$_${row['id']}", row["label"], LABELS[best]]
                writer.writerow([*cells, *(f"{p:.9g}" for p in score)])


if __name__ == "__main__":
    main()
