"""Lists the modes of the command line: what each reads, and what runs it.

Each is a file of this package, which is imported when the mode is run: --help waits for none.
"""

from typing import NamedTuple

from rich.console import Console

from msajax.cli.options import Options


class Mode(NamedTuple):
    """Describes a mode."""

    usage: str  # the text of --help, in lines of at most 100 characters
    flags: tuple[str, ...]
    # Configuration keys that the mode reads from the command line; None for all. The others are
    # those of a run or a bundle.
    keys: tuple[str, ...] | None = None
    takes_paths: bool = False  # tells that words that are no flags are paths that the mode reads


_TRAINING_FLAGS = (
    *("workdir", "stop_after_epochs", "profile", "models", "distributed", "join_seconds"),
    *("coordinator_address", "num_processes", "process_id", "download"),
)

MODES = {
    "train": Mode(
        """\
(default) --config.data.path=CORPUS --workdir W   [--config.section.key=value …]
          [--config FILE[:arg]] [--stop_after_epochs=k] [--profile=FOLDER]
without --config the sequence-level model trains on every modality of the corpus
W may be in a bucket: gs://BUCKET/RUN (pip install gcsfs), s3://… (s3fs)
several processes, one run: --coordinator_address=HOST:PORT --num_processes=N
--process_id=K in each; or --distributed, for what the cluster's environment says
[--config.model.text_encoder=FOLDER; --download, if that is a name on the Hugging Face hub]
[--models=FILE.py, to begin with a bundle of a model of your own]""",
        _TRAINING_FLAGS,
    ),
    "ablate": Mode(
        """\
--config FILE[:arg] --workdir W [--config.key=value …], and the other flags of train
trains every subset of the modalities, and says what each is worth: W/ablation.json""",
        _TRAINING_FLAGS,
    ),
    "sweep": Mode(
        """\
--config FILE[:arg] --workdir W [--config.section.key=value …]   (FILE has get_space())
[--trials=N, drawn at random] [--trial_seeds=3] [--nomedian] [--nowinner] [--output FILE.json]
tries settings on validation; the best one is trained on fresh seeds, and tested once""",
        ("workdir", "output", "models", "download", "trials", "trial_seeds", "median", "winner"),
    ),
    "compare_models": Mode(
        """\
--contenders=NAME,NAME,… --config.data.path=CORPUS --workdir W   [--config.key=value …]
[--trials=8, 0 for declared settings] [--trial_seeds=1] [--hours=H] [--models=FILE.py]
sweeps every model with the same budget, tests the winners once: W/models.{json,csv,tex,html}
the first is the reference; --hours spent: exit 75, and the same command goes on""",
        ("workdir", "contenders", "trials", "trial_seeds", "hours", "models", "download"),
    ),
    "evaluate": Mode(
        """\
--workdir W [--split=test] | --input predictions.csv   [--output FILE.json]
[--convention=NAME,… | all: metrics as some papers print them: sentiment, sims, mmmo, youtube,
pom, nonzero_mae, acc7_away_from_zero, f1_by_prediction]
[--models=FILE.py, for the run of a model of your own]""",
        ("workdir", "input", "output", "split", "convention", "models"),
        (),
    ),
    "compare": Mode(
        """\
RUN RUN …   [--split=test|valid] [--every_pair] [--convention=NAME,…]
[--output FILE.json | FILE.csv | FILE.tex | FILE.html] [--figures=FOLDER, as of a report]
a RUN is a run's folder, its predictions/test.csv, or another tool's table of id, label, score""",
        ("output", "figures", "split", "convention", "every_pair"),
        (),
        takes_paths=True,
    ),
    "table": Mode(
        """\
RUN RUN …   [--split=test|valid] [--metrics=NAME,…] [--convention=NAME,…]
[--output FILE.tex | FILE.csv | FILE.json]
one table for a paper: a row a run, as compare takes them, a column a metric, the best marked""",
        ("output", "split", "convention", "metrics"),
        (),
        takes_paths=True,
    ),
    "robustness": Mode(
        """\
--workdir W   [--models=FILE.py, for the run of a model of your own]
test metrics as modalities and steps are lost, and with noise: W/robustness.json""",
        ("workdir", "models"),
        (),
    ),
    "report": Mode(
        """\
--workdir W [RUN …]   writes W/report.html, as a run that ends does
with runs or files of predictions, that compare takes: also how they differ
[--figures=FOLDER: every figure of the report as a PDF and an SVG file, for a paper]""",
        ("workdir", "figures"),
        (),
        takes_paths=True,
    ),
    "predict": Mode(
        """\
--bundle DIR --input CORPUS | CLIP.mp4 | CLIPS.csv  [--split=all] --output FILE.csv
[--transcript="what is said in the clip"] [--columns=…] [--asr_model=FOLDER] [--jobs=N]
[--config.data.glove_path=GLOVE.txt, for transcripts without text features]
[--config.data.truncate=first|last|uniform, for sequences longer than the model's]
[--config.model.text_encoder=FOLDER, for transcripts and a model of embedded text]
[--config.model.encoders=audio=FOLDER, for waveforms and a model of embedded sound]
[--config.data.allow_loss=true] [--models=FILE.py, for a model of your own]""",
        (
            *("bundle", "input", "output", "split", "models", "download"),
            *("transcript", "columns", "asr_model", "jobs"),
        ),
        (
            *("data.glove_path", "data.truncate", "data.allow_loss"),
            *("model.text_encoder", "model.encoders"),
        ),
    ),
    "generate": Mode(
        """\
--bundle DIR --input TEXT.txt | -   [--steps=50] [--temperature=1] [--sample_seed=0]
continues each line of a text by a decoder (model.name = next_token); 0 is greedy
[--output FILE.txt, a continuation in each line] [--models=FILE.py, for a model of your own]""",
        ("bundle", "input", "output", "models", "steps", "temperature", "sample_seed"),
        (),
    ),
    "export": Mode(
        """\
--bundle DIR --output FOLDER: a program that jax runs without msajax
[--models=FILE.py, for a model of your own]""",
        ("bundle", "output", "models"),
        (),
    ),
    "explain": Mode(
        """\
--workdir W [--split=test] | --bundle DIR --input CORPUS --split=S --output FILE.html
[--samples=20] [--target=NAME, the output or class that is explained]
[--config.model.text_encoder=FOLDER or --config.model.encoders=audio=FOLDER, as in predict]
[--models=FILE.py, for a model of your own]""",
        ("workdir", "bundle", "input", "output", "split", "samples", "target", "models"),
        ("model.text_encoder", "model.encoders"),
    ),
    "inspect": Mode(
        """\
--input CORPUS | --config FILE[:arg]   [--output FILE.json] [--config.key=value …]
[--target=tpu:v5e:2x4 | gpu:h100:8, whether a run fits such devices]""",
        ("input", "output", "models", "download", "target"),
    ),
    "embed": Mode(
        """\
--input CORPUS --config.model.text_encoder=FOLDER --output FILE.npz | FOLDER
[--config.model.encoders=audio=FOLDER, for waveforms]
[--config.model.text_pool=words|first] [--config.model.text_special=false]
[--config.model.max_len=N --config.data.truncate=first|last|uniform] [--config.data.key=value …]
[--download, if FOLDER is a name on the Hugging Face hub]""",
        ("input", "output", "download"),
    ),
    "extract": Mode(
        """\
--input CLIPS.csv --output FILE.npz | FOLDER   [--columns=group=ACTOR,label=EMOTION,…]
[--steps=word|100ms|frame] [--audio=columns|logmel|waveform|none] [--asr_model=FOLDER] [--jobs=N]
makes a corpus of recordings: the CSV has file, id, label, transcript, group, split, start, end
what is absent in which row, and why: FILE.extract/extract_report.csv""",
        ("input", "output", "columns", "steps", "audio", "asr_model", "jobs"),
        (),
    ),
    "convert": Mode(
        "--input CORPUS --output FILE.npz | FOLDER   [--config.data.key=value …]",
        ("input", "output"),
    ),
}


def run_mode(options: Options, console: Console) -> int:
    """Runs the mode that the command line names; returns the exit code."""
    match options.mode:
        case "train" | "ablate":
            from msajax.cli.train import train as run
        case "sweep":
            from msajax.cli.train import sweep as run
        case "compare_models":
            from msajax.cli.train import compare_models as run
        case "evaluate":
            from msajax.cli.evaluate import run
        case "compare":
            from msajax.cli.compare import compare as run
        case "table":
            from msajax.cli.compare import table as run
        case "robustness":
            from msajax.cli.finished import run_robustness as run
        case "report":
            from msajax.cli.finished import run_report as run
        case "predict":
            from msajax.cli.predict import run
        case "generate":
            from msajax.cli.bundles import run_generate as run
        case "export":
            from msajax.cli.bundles import run_export as run
        case "explain":
            from msajax.cli.explain import run
        case "inspect":
            from msajax.cli.inspect import run
        case "embed":
            from msajax.cli.corpora import run_embed as run
        case "extract":
            from msajax.cli.corpora import run_extract as run
        case "convert":
            from msajax.cli.corpora import run_convert as run
    return run(options, console)
