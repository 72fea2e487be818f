"""Makes a corpus of RAVDESS: log-mel frames, or waveforms for a pretrained encoder of sound.

    python bench/ravdess.py TABLE.csv OUTPUT.npz [--audio=logmel|waveform] [--hop_ms=20]

TABLE.csv has the columns file (relative to the table's folder or beside it), id, label and actor.
Without splits: `data.folds` deals whole actors. PyAV decodes (requirements-bench.txt).
"""

import argparse
import csv
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

import msajax

RATE, WINDOW, MELS = 16_000, 400, 40  # Hz, samples of 25 ms, bands from 20 to 8000 Hz
LABELS = ["neutral", "calm", "happy", "sad", "angry", "fearful", "disgust", "surprised"]


def decode(path: pathlib.Path) -> np.ndarray:
    """Reads a file as mono samples `[S]` float32 at 16 kHz."""
    import av

    found = []
    with av.open(str(path)) as container:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        for frame in container.decode(audio=0):
            found += [part.to_ndarray()[0] for part in resampler.resample(frame)]
        found += [part.to_ndarray()[0] for part in resampler.resample(None)]
    return np.concatenate(found).astype(np.float32)


def mel_bands() -> np.ndarray:
    """Makes triangles over the bins of a spectrum, equally wide in HTK's mels, `[bins, MELS]`."""
    edges = np.linspace(*(2595 * np.log10(1 + np.array([20, 8000]) / 700)), MELS + 2)
    hz = 700 * (10 ** (edges / 2595) - 1)
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)[:, None]
    rising = (bins - hz[:-2]) / (hz[1:-1] - hz[:-2])
    falling = (hz[2:] - bins) / (hz[2:] - hz[1:-1])
    return np.clip(np.minimum(rising, falling), 0, None)


def log_mel(samples: np.ndarray, hop: int) -> np.ndarray:
    """Computes the log power of each band in frames of 25 ms, `[T, MELS]` float32."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::hop]
    power = np.abs(np.fft.rfft(frames * np.hamming(WINDOW))) ** 2
    return np.log(power @ mel_bands() + 1e-8).astype(np.float32)


def main() -> None:
    """Writes the corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("output")
    parser.add_argument("--audio", choices=("logmel", "waveform"), default="logmel")
    parser.add_argument("--hop_ms", type=float, default=20)
    options = parser.parse_args()
    with open(options.table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    hop, sequences = round(options.hop_ms * RATE / 1000), []
    for row in rows:
        samples = decode(options.table.parent / row["file"])
        is_sound = options.audio == "waveform"
        sequences.append(samples[:, None] if is_sound else log_mel(samples, hop))
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
