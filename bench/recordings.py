"""Measures `--mode extract` on real recordings: word times, wrong transcripts, presence and speed.

    python bench/recordings.py CLIPS [--sample=400] [--times=100]

CLIPS is a folder with `ravdess.csv` (columns file, id, transcript, …) and the files that it names,
and with `av/`: folders of clips, those of the GRID corpus in `av/grid_*`, whose names spell what is
said, with their word times (`start end word` a line, in 1/25,000 s) beside them as `.align`.

Prints four tables: (1) the error of the starts of words on GRID; (2) of right and of exchanged
transcripts, how many are refused, and how many flagged: of SAMPLE files of RAVDESS and all of GRID,
each with its own transcript, with a near one (the other sentence of RAVDESS, which shares its last
four words; of GRID a sentence of the same grammar) and with one of the other corpus; (3) what is
present in each clip of `av/`; (4) times real time of one core, by processor time, on TIMES files.
"""

import argparse
import csv
import pathlib
import random
import tempfile
import time
from typing import Any

import numpy as np

import msajax
from msajax.recordings.audio_columns import audio_columns
from msajax.recordings.media import Refused, read_sound
from msajax.recordings.words import Aligner

GRID = (
    {"b": "bin", "l": "lay", "p": "place", "s": "set"},
    {"b": "blue", "g": "green", "r": "red", "w": "white"},
    {"a": "at", "b": "by", "i": "in", "w": "with"},
    {letter: letter for letter in "abcdefghijklmnopqrstuvwxyz"},
    dict(
        zip("z123456789", "zero one two three four five six seven eight nine".split(), strict=True)
    ),
    {"a": "again", "n": "now", "p": "please", "s": "soon"},
)


def sentence(name: str) -> str:
    """Says what the name of a clip of GRID stands for."""
    return " ".join(words[letter] for words, letter in zip(GRID, name, strict=True))


def extracted(rows: list[dict[str, Any]], steps: str) -> tuple[list[dict[str, str]], Any]:
    """Extracts rows; returns the lines of the report, and the split with all that is usable."""
    with tempfile.TemporaryDirectory() as folder:
        made = msajax.extract(rows, f"{folder}/corpus.npz", steps=steps)
        with open(made.report, encoding="utf-8", newline="") as file:
            report = list(csv.DictReader(file))
        return report, msajax.open_corpus(made.path).split("train")


def word_times(clips: pathlib.Path) -> None:
    """Prints how far the starts of words are from those of the `.align` files."""
    paths = sorted(clips.glob("av/grid_*/*.align"))
    rows = [
        {"file": path.with_suffix(".mpg"), "id": path.stem, "transcript": sentence(path.stem)}
        for path in paths
    ]
    report, split = extracted(rows, "word")
    errors = []
    for path in paths:
        lines = [line.split() for line in path.read_text().splitlines()]
        starts = [int(start) / 25_000 for start, _, word in lines if word not in ("sil", "sp")]
        if len(found := split.times["text"][split.ids == path.stem, : len(starts), 0]):
            errors += list(abs(found[0] - starts))
    median, most = 1000 * np.percentile(errors, (50, 90))
    print(f"starts of {len(errors)} words in {len(report)} clips of GRID: median error")
    print(f"{median:.0f} ms, 90th percentile {most:.0f} ms\n")


def transcripts(clips: pathlib.Path, sample: int) -> None:
    """Prints how many right and exchanged transcripts are refused, and flagged."""
    draw = random.Random(0)
    with open(clips / "ravdess.csv", encoding="utf-8", newline="") as file:
        ravdess = [(clips / row["file"], row["transcript"]) for row in csv.DictReader(file)]
    said = sorted({text for _, text in ravdess})
    grid = [(path, sentence(path.stem)) for path in sorted(clips.glob("av/grid_*/*.mpg"))]
    rows = []
    for corpus, files, others in (
        ("RAVDESS", draw.sample(ravdess, min(sample, len(ravdess))), [text for _, text in grid]),
        ("GRID", grid, said),
    ):
        own = said if corpus == "RAVDESS" else [text for _, text in grid]
        for path, text in files:
            near = draw.choice([other for other in own if other != text])
            for kind, given in (("own", text), ("near", near), ("far", draw.choice(others))):
                rows.append({"file": path, "transcript": given, "group": f"{corpus}, {kind}"})
    rows = [row | {"id": number} for number, row in enumerate(rows)]
    report, _ = extracted(rows, "word")
    print(
        "| transcript | files | refused | flagged | refused or flagged, % |\n|---|---|---|---|---|"
    )
    for kind in dict.fromkeys(row["group"] for row in rows):
        lines = [line for line in report if line["id"].startswith(f"{kind}$_$")]
        refused = sum(line["text"] == "absent:does_not_fit" for line in lines)
        flagged = sum(int(line["words_flagged"]) > 0 for line in lines)
        share = 100 * (refused + flagged) / len(lines)
        print(f"| {kind} | {len(lines)} | {refused} | {flagged} | {share:.1f} |")
    print()


def presence(clips: pathlib.Path) -> None:
    """Prints what is present in each clip of `av/`, and why something is not."""
    paths = sorted(path for path in clips.glob("av/*/*") if path.suffix != ".align")
    rows = [
        {
            "file": path,
            "id": path.relative_to(clips / "av").as_posix(),
            "transcript": sentence(path.stem) if path.parent.name.startswith("grid_") else "",
        }
        for path in paths
    ]
    columns = ("id", "status", "audio", "text", "seconds_audio", "offset_audio", "words")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for line in extracted(rows, "100ms")[0]:
        print(f"| {' | '.join(line[name] for name in columns)} |")
    print()


def speed(clips: pathlib.Path, times: int) -> None:
    """Prints how many seconds of sound one core measures in a second of processor time."""
    with open(clips / "ravdess.csv", encoding="utf-8", newline="") as file:
        rows = random.Random(1).sample(list(csv.DictReader(file)), times)
    aligner, spent, seconds = Aligner(), dict.fromkeys(("decoding", "columns", "words"), 0.0), 0.0
    for row in rows:
        began = time.process_time()
        sound = read_sound(str(clips / row["file"]))
        decoded = time.process_time()
        audio_columns(sound.samples)
        measured = time.process_time()
        try:
            aligner.align(sound.samples, row["transcript"].split())
        except Refused:
            pass
        spent["decoding"] += decoded - began
        spent["columns"] += measured - decoded
        spent["words"] += time.process_time() - measured
        seconds += sound.seconds
    print(f"times real time of one core, {seconds:.0f} s of sound in {times} files:")
    for name, took in [*spent.items(), ("all of it", sum(spent.values()))]:
        print(f"{name}: {seconds / took:.0f}")


def main() -> None:
    """Prints the four tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clips", type=pathlib.Path)
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--times", type=int, default=100)
    options = parser.parse_args()
    word_times(options.clips)
    transcripts(options.clips, options.sample)
    presence(options.clips)
    speed(options.clips, options.times)


if __name__ == "__main__":
    main()
