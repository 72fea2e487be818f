"""Runs --mode=predict: scores a corpus, as CSV."""

import dataclasses
import os
from typing import Any

from rich.console import Console

from msajax.cli.early_checks import load_jax, reading_of
from msajax.cli.options import Options
from msajax.corpus import predictions
from msajax.corpus.demands import require_corpus, require_glove
from msajax.corpus.formats import open_corpus
from msajax.errors import OK
from msajax.files import refuse_inside, require_file_place
from msajax.runs.local_copy import bundle_folder
from msajax.runs.manifest import refuse_in_run


def run(options: Options, console: Console) -> int:
    """Scores a corpus, and says how many rows there are; returns the exit code."""
    del console
    bundle, corpus, output = options.required("bundle", "input", "output")
    replaced = os.path.exists(output)
    folders = options.config.model.encoder_folders
    overrides = dict(options.overrides) | ({"encoders": folders} if folders else {})
    rows = predict(bundle, corpus, output, options["split"] or "all", **overrides)
    print(f"{rows} predictions: {output}{', in place of the file that was there' * replaced}")
    return OK


def predict(bundle: str, corpus: str, output: str, split: str = "all", **overrides: Any) -> int:
    """Scores a corpus file with a bundle into a CSV; returns the number of rows.

    `overrides` are settings in place of the bundle's, as `Bundle.with_data` takes them.

    Raises:
        UserError: if the bundle, the corpus or the output file is not usable.
    """
    refuse_inside(output, corpus, "corpus")
    refuse_inside(output, bundle, "bundle")
    refuse_in_run(output)
    predictions.require_replaceable(output)
    require_file_place(output)
    require_corpus(corpus)
    require_glove(overrides.get("glove_path", ""))
    of_data = {name: value for name, value in overrides.items() if "encoder" not in name}
    with bundle_folder(os.path.expanduser(bundle)) as folder:
        data = dataclasses.replace(reading_of(folder), **of_data)
        opened = open_corpus(corpus, data)
        if split != "all":
            opened.require_splits(split)
        load_jax()
        from msajax.inference.bundle import load_bundle
        from msajax.inference.predict import predict_corpus

        loaded = load_bundle(folder)
    return predict_corpus(loaded, opened, split, output, **overrides)
