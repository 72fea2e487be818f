"""Measures opening and aligning a corpus of CMU-MOSEI's size in CMU Multimodal SDK files.

    python bench/align.py [--scale=1.0] [--folder=DIR] [--gzip]

Writes 22,856 segments in 3,228 videos of 65 hours (times the scale) into a temporary folder:
labels, words, and 74-wide float32 audio at 100 rows a second, 7 GB at full scale. Then opens the
folder as a corpus and reads its three splits, one after the other; prints seconds and peak memory
of that alone, and what a scale below 1 comes to in full. The files are still in the page cache.
"""

import argparse
import multiprocessing
import pathlib
import resource
import shutil
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path.cwd()))

import h5py
import numpy as np

from msajax.config import DataConfig
from msajax.corpus.formats.csd import open_csd

VIDEOS, SEGMENTS, HOURS, RATE, WIDTH = 3228, 22856, 65, 100, 74
WORD = 0.3  # seconds of a word with its pause: 20 or so a segment


def write(folder: pathlib.Path, scale: float, compression: str | None) -> None:
    """Writes the three files of the corpus."""
    rng = np.random.default_rng(0)
    videos = max(3, round(VIDEOS * scale))
    segments = np.full(videos, SEGMENTS // VIDEOS)
    segments[: round(SEGMENTS * videos / VIDEOS) - segments.sum()] += 1
    lengths = rng.gamma(4, HOURS * 3600 / VIDEOS / 4, videos) + 10
    noise = rng.normal(size=(RATE * round(lengths.max() + 60), WIDTH)).astype(np.float32)
    vocabulary = np.array([f"word{k}".encode() for k in range(20000)])
    files = {n: h5py.File(folder / f"{n}.csd", "w") for n in ("all_labels", "words", "covarep")}
    groups = {n: file.create_group(f"{n}/data") for n, file in files.items()}

    def put(name: str, video: str, features: np.ndarray, starts: np.ndarray, end: float) -> None:
        group = groups[name].create_group(video)
        intervals = np.stack([starts, np.append(starts[1:], end)], axis=1)
        group.create_dataset("features", data=features, compression=compression)
        group.create_dataset("intervals", data=intervals, compression=compression)

    for k, (length, count) in enumerate(zip(lengths, segments, strict=True)):
        video = f"video{k:05d}"
        put(
            "all_labels",
            video,
            rng.uniform(-3, 3, (count, 7)),
            np.sort(rng.uniform(0, 0.3 * length, count)),
            0.95 * length,
        )
        starts = np.sort(rng.uniform(0, length, round(length / WORD)))
        put("words", video, rng.choice(vocabulary, (len(starts), 1)), starts, length)
        rows, first = int(RATE * length), rng.integers(60 * RATE)
        put("covarep", video, noise[first : first + rows], np.arange(rows) / RATE, length)
    for file in files.values():
        file.close()


def measure(folder: pathlib.Path, scale: float) -> None:
    """Opens and aligns; prints what it took."""
    before, start = _peak(), time.perf_counter()
    corpus = open_csd(folder, DataConfig())
    times = {"open": time.perf_counter() - start}
    for name, header in corpus.headers.items():
        start = time.perf_counter()
        split = corpus.split(name)
        times[f"{name} ({header.size} x {header.shapes['audio']})"] = time.perf_counter() - start
        assert split.masks["audio"].any(axis=1).all()
        del split
    total = sum(times.values())
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"scale {scale:g}: {size / 1e9:.2f} GB on disk")
    for what, seconds in times.items():
        print(f"{what}: {seconds:.1f} s")
    print(f"in all: {total:.1f} s, peak memory {_peak():.2f} GiB ({before:.2f} before)")
    if scale < 1:
        print(f"extrapolated to full scale: {total / scale:.0f} s")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", help="where the temporary folder goes")
    parser.add_argument("--gzip", action="store_true", help="compress, as the SDK itself does")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(dir=options.folder))
    try:
        compression = "gzip" if options.gzip else None
        # In a process of its own, so that its memory does not count.
        writer = multiprocessing.get_context("spawn").Process(
            target=write, args=(folder, options.scale, compression)
        )
        writer.start()
        writer.join()
        if writer.exitcode:
            sys.exit(f"writing failed: {writer.exitcode}")
        measure(folder, options.scale)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
