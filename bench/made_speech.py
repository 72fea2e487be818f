"""Makes speech whose labels are in its words and in its voice, and finds both again.

    python bench/made_speech.py [--clips=600] [--new=150] [--epochs=40] [--seeds=3] [--output=F]

espeak-ng (a package of the system) says sentences in which one adjective has a sign, in voices
whose pitch, rate and energy rise and fall together. The score is the strength of the adjective,
from -1.5 to 1.5, plus that of the voice, as much, and noise. The clips are made a corpus by
`--mode extract`; the model is trained on words and audio, on words and on audio, and scores new
clips from their files: the same voices, other sentences and scores. Prints the correlation of
scores with labels on those; whoever knows one half exactly and nothing of the other has about 0.7.
"""

import argparse
import csv
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

import msajax
from msajax.cli.predict import predict

ADJECTIVES = {
    **dict.fromkeys(("wonderful", "excellent", "beautiful", "amazing"), 1.5),
    **dict.fromkeys(("good", "pleasant", "nice", "decent"), 0.75),
    **dict.fromkeys(("boring", "weak", "slow", "dull"), -0.75),
    **dict.fromkeys(("terrible", "awful", "horrible", "disgusting"), -1.5),
}
THINGS = ("movie", "story", "acting", "music", "ending", "scene", "camera work", "dialogue")
FRAMES = (
    "I think the {} was really {}",
    "the {} in this one is {}",
    "well I found the {} quite {}",
    "and the {} turned out {}",
)
SPEAKERS = ("f2", "f3", "f5")  # whose words an aligner of English speech finds


def make_clips(folder: pathlib.Path, clips: int, seed: int) -> pathlib.Path:
    """Writes clips and their table, of which a quarter validates; returns the table's path."""
    rng, rows = random.Random(seed), []
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(clips):
        adjective, strength = rng.choice(list(ADJECTIVES.items()))
        text = rng.choice(FRAMES).format(rng.choice(THINGS), adjective)
        voice, speaker = rng.uniform(-1, 1), SPEAKERS[number % len(SPEAKERS)]
        how = {"-p": 50 + 20 * voice, "-s": 140 + 25 * voice, "-a": 90 + 50 * voice}
        numbers = [word for key, x in how.items() for word in (key, str(round(x)))]
        file = folder / f"{number}.wav"
        subprocess.run(
            ["espeak-ng", "-v", f"en-us+{speaker}", *numbers, "-w", file, text], check=True
        )
        score = strength + 2 * voice + rng.gauss(0, 0.1)
        split = "valid" if number % 4 == 3 else "test" if number % 8 == 6 else "train"
        rows.append((file.name, number, round(score, 3), text, split))
    table = folder / "clips.csv"
    with open(table, "w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("file", "id", "label", "transcript", "split"), *rows])
    return table


def correlation(predictions: pathlib.Path) -> float:
    """Correlates the scores of a file of predictions with the labels of the table beside it."""
    with open(predictions, encoding="utf-8", newline="") as file:
        scores = {row["id"]: float(row["score"]) for row in csv.DictReader(file)}
    with open(predictions.parent / "new" / "clips.csv", encoding="utf-8", newline="") as file:
        labels = {row["id"]: float(row["label"]) for row in csv.DictReader(file)}
    if missing := labels.keys() - scores.keys():
        print(f"{len(missing)} of {len(labels)} new clips have no score: {predictions.name}")
    rows = [(labels[id_], score) for id_, score in scores.items()]
    return float(np.corrcoef(np.array(rows).T)[0, 1])


def measure(folder: pathlib.Path, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the correlation on new clips by what the model reads, and what was extracted."""
    made = msajax.extract(make_clips(folder / "clips", options.clips, 1), folder / "clips.npz")
    make_clips(folder / "new", options.new, 2)
    found: dict[str, Any] = {"clips": options.clips, "extracted": made.counts}
    for name, modalities in {
        "both": ("text", "audio"),
        "text": ("text",),
        "audio": ("audio",),
    }.items():
        config = msajax.Config(
            data=msajax.DataConfig(path=str(folder / "clips.npz"), text="words"),
            model=msajax.ModelConfig(
                modalities=modalities, model_dim=32, ff_dim=64, n_layers_mod=1, dropout_rate=0.1
            ),
            optim=msajax.OptimConfig(name="adamw", learning_rate=3e-3),
            train=msajax.TrainConfig(epochs=options.epochs, seeds=options.seeds, report=False),
        )
        msajax.train(config, folder / name)
        predictions = folder / f"{name}.csv"
        predict(str(folder / name / "bundle"), str(folder / "new" / "clips.csv"), str(predictions))
        found[name] = correlation(predictions)
    return found


def main() -> int:
    """Prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--new", type=int, default=150)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", help="a JSON file")
    options = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print("There is no espeak-ng here: install the system's package.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        found = measure(pathlib.Path(folder), options)
    for name in ("both", "text", "audio"):
        print(f"{name:>6}: correlation {found[name]:.3f} on {options.new} new clips")
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
