"""Runs --mode=predict: scores a corpus, or recordings, as CSV."""

import dataclasses
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Console

from msajax.cli.early_checks import load_jax, reading_of
from msajax.cli.options import Options, named_columns
from msajax.corpus import predictions
from msajax.corpus.corpus import Corpus
from msajax.corpus.demands import require_corpus, require_glove
from msajax.corpus.formats import open_corpus
from msajax.errors import OK, UserError
from msajax.files import meant, refuse_inside, require_file_place
from msajax.inference.description import read_description
from msajax.recordings.media import ENDINGS
from msajax.runs.local_copy import bundle_folder
from msajax.runs.manifest import refuse_in_run

logger = logging.getLogger(__name__)


def run(options: Options, console: Console) -> int:
    """Scores a corpus, and says how many rows there are; returns the exit code."""
    del console
    bundle, corpus, output = options.required("bundle", "input", "output")
    replaced = os.path.exists(output)
    folders = options.config.model.encoder_folders
    overrides = dict(options.overrides) | ({"encoders": folders} if folders else {})
    clips = {name: options[name] for name in ("transcript", "columns", "asr_model", "jobs")}
    rows = predict(bundle, corpus, output, options["split"] or "all", clips, **overrides)
    print(f"{rows} predictions: {output}{', in place of the file that was there' * replaced}")
    return OK


def predict(
    bundle: str,
    corpus: str,
    output: str,
    split: str = "all",
    clips: Mapping[str, Any] = MappingProxyType({}),
    **overrides: Any,
) -> int:
    """Scores a corpus file, a clip or a CSV of clips with a bundle into a CSV; returns its rows.

    `clips` are settings of recordings: transcript, columns, asr_model, jobs. `overrides` are
    settings in place of the bundle's, as `Bundle.with_data` takes them. Raises `UserError` if the
    bundle, the corpus or the output file is not usable.
    """
    refuse_inside(output, corpus, "corpus")
    refuse_inside(output, bundle, "bundle")
    refuse_in_run(output)
    predictions.require_no_other_file(output)
    require_file_place(output)
    is_of_clips = os.path.splitext(corpus)[1].lower()[1:] in ("csv", *ENDINGS)
    if not is_of_clips:
        require_corpus(corpus)
    elif not os.path.isfile(corpus):
        raise UserError(f"There is no file {corpus}{meant(corpus) or '.'}")
    require_glove(overrides.get("glove_path", ""))
    of_data = {name: value for name, value in overrides.items() if "encoder" not in name}
    with bundle_folder(os.path.expanduser(bundle)) as folder:
        data = dataclasses.replace(reading_of(folder), **of_data)
        if is_of_clips:
            opened = open_clips(folder, corpus, output, **clips)
        else:
            opened = open_corpus(corpus, data)
        if split != "all":
            opened.require_splits(split)
        load_jax()
        from msajax.inference.bundle import load_bundle
        from msajax.inference.predict import predict_corpus

        loaded = load_bundle(folder)
    return predict_corpus(loaded, opened, split, output, **overrides)


def open_clips(
    bundle: str,
    source: str,
    output: str,
    transcript: str | None = None,
    columns: Sequence[str] | None = None,
    asr_model: str | None = None,
    jobs: int = 0,
) -> Corpus:
    """Makes a corpus of a clip, or a CSV of clips, with the features that a bundle reads.

    Args:
        bundle: a folder on this machine.
        source: the clip or the CSV, of which labels are not read.
        output: the file of predictions, beside which the report goes.
        columns: `name=column` of a CSV.
        asr_model: folder of the model that wrote the transcripts of training, if one did.
        jobs: processes; 0 for one a core.

    Raises:
        UserError: for a bundle whose features are of unknown making, and if no clip is usable.
    """
    if (manifest := read_description(bundle)["preparation"].get("manifest")) is None:
        raise UserError(
            f"The bundle {bundle} was trained on features of unknown making: its corpus has no "
            "manifest, so that none can be made of clips. Train on a corpus of --mode extract."
        )
    from msajax.recordings import extract
    from msajax.recordings.settings import settings_of
    from msajax.recordings.table import read_rows

    settings = settings_of(manifest, asr_model or "")
    if source.lower().endswith(".csv"):
        if transcript:
            raise UserError("--transcript is for a single clip: a CSV has a column of them.")
        rows = read_rows(source, named_columns(columns))
        rows = [dataclasses.replace(row, labels={}, split="test") for row in rows]
    else:
        name = os.path.splitext(os.path.basename(source))[0]
        table = [{"file": os.path.abspath(source), "id": name, "transcript": transcript}]
        rows = read_rows([one | {"split": "test"} for one in table])
    base = os.path.splitext(output)[0] + ".extract"
    with extract.locked(base):
        corpus, _, measured = extract.corpus_of_recordings(rows, settings, base, source, jobs)
        shutil.rmtree(os.path.join(base, extract.ROWS), ignore_errors=True)
    for one in measured:
        if one.status != "ok":
            logger.warning("%s: %s", one.row.file, one.facts["reason"])
    return corpus
