"""Runs --mode=convert: writes any corpus as a native archive, or as a mapped folder."""

import os

from rich.console import Console

from msajax.cli.options import Options
from msajax.config import Config, DataConfig
from msajax.corpus.demands import say_what_is_idle
from msajax.corpus.formats import open_own_or_fold, save
from msajax.errors import OK, UserError
from msajax.files import refuse_inside, require_writable


def run(options: Options, console: Console) -> int:
    """Converts, and says where to; returns the exit code."""
    del console
    corpus, output = options.required("input", "output")
    if options.config.model.encoder_folders:
        raise UserError("--mode=convert reads no pretrained encoder; --mode=embed does.")
    convert(corpus, options.config.data, output)
    print(f"Converted: {output}")
    return OK


def convert(path: str, data: DataConfig, output: str) -> None:
    """Writes any corpus as a native archive (`output` ends in .npz) or as a mapped folder.

    Raises:
        UserError: if the corpus cannot be read, or `output` is there or cannot be written.
    """
    output = require_new(output)
    refuse_inside(output, path, "corpus")
    require_writable(output)
    corpus = open_own_or_fold(path, data)
    corpus.verify()
    say_what_is_idle(corpus, Config(data=data), False)
    save(corpus, output)


def require_new(output: str) -> str:
    """Returns the path of a corpus to be written; raises `UserError` if something is there."""
    output = output.rstrip(os.sep)
    if os.path.lexists(output):
        raise UserError(f"--output={output} is there already: choose another name.")
    return output
