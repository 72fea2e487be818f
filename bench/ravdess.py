"""Makes a corpus of RAVDESS: audio columns, log-mel bands, or waveforms for a pretrained encoder.

    python bench/ravdess.py TABLE.csv OUTPUT.npz [--audio=columns|logmel|waveform] [--step_ms=100]

TABLE.csv has the columns file (relative to the table's folder), id, label and actor. A step of
columns has the 56 statistics of its frames; one of log-mel bands is the mean of its frames of
10 ms. Without splits: `data.folds` deals whole actors. PyAV decodes (requirements-bench.txt).
"""

import argparse
import csv
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

import msajax
from msajax.recordings.audio_columns import RATE, audio_columns, log_mel, over_steps

LABELS = ["neutral", "calm", "happy", "sad", "angry", "fearful", "disgust", "surprised"]


def read_rows(table: pathlib.Path) -> list[dict[str, str]]:
    """Reads the rows of the table, with the whole path of each file."""
    with open(table, encoding="utf-8", newline="") as file:
        return [{**row, "file": str(table.parent / row["file"])} for row in csv.DictReader(file)]


def decode(path: str) -> np.ndarray:
    """Reads a file as mono samples `[S]` float32 at 16 kHz."""
    import av

    found = []
    with av.open(path) as container:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        for frame in [*container.decode(audio=0), None]:
            found += [part.to_ndarray()[0] for part in resampler.resample(frame)]
    return np.concatenate(found).astype(np.float32)


def of_steps(samples: np.ndarray, audio: str, seconds: float) -> np.ndarray:
    """Computes what a corpus stores of a sound, `[N, D]`."""
    if audio == "waveform":
        return samples[:, None]
    starts = np.arange(0, len(samples) / RATE, seconds)
    if audio == "columns":
        ends = np.minimum(starts + seconds, len(samples) / RATE)
        return over_steps(audio_columns(samples), np.stack([starts, ends], axis=1))
    bands = log_mel(samples)
    first = np.arange(0, len(bands), round(seconds * 100))
    counts = np.diff(np.append(first, len(bands)))
    return np.add.reduceat(bands, first) / counts[:, None].astype(np.float32)


def main() -> None:
    """Writes the corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("output")
    parser.add_argument("--audio", choices=("columns", "logmel", "waveform"), default="logmel")
    parser.add_argument("--step_ms", type=int)
    options = parser.parse_args()
    rows = read_rows(options.table)
    step = options.step_ms or {"columns": 100, "logmel": 20}.get(options.audio, 10)
    sequences = [of_steps(decode(row["file"]), options.audio, step / 1000) for row in rows]
    table = {
        "id": [f"{row['actor']}$_${row['id']}" for row in rows],
        "emotion": [row["label"] for row in rows],
    }
    saved = msajax.save_corpus(
        options.output, table, {"audio": sequences}, label={"emotion": LABELS}, split=(1, 0, 0)
    )
    print(saved)


if __name__ == "__main__":
    main()
