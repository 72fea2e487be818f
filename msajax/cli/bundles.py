"""Runs the modes that read a bundle and no corpus: export and generate."""

import os
import sys

from rich.console import Console

from msajax import announce
from msajax.cli.early_checks import load_jax
from msajax.cli.options import Options
from msajax.errors import OK, UserError
from msajax.files import (
    refuse_inside,
    require_file_place,
    require_new,
    require_writable,
    write_text,
)
from msajax.inference.description import read_description
from msajax.runs.local_copy import bundle_folder
from msajax.runs.manifest import refuse_in_run


def run_export(options: Options, console: Console) -> int:
    """Runs --mode=export, and says what and where to; returns the exit code."""
    del console
    bundle, output = options.required("bundle", "output")
    manifest = export(bundle, output)
    print(
        f"Exported {len(manifest['model']['seeds'])} seed(s) of {manifest['model']['name']} for "
        f"{', '.join(manifest['platforms'])}: {output}"
    )
    return OK


def export(bundle: str, output: str) -> dict:
    """Writes a bundle as a folder that jax runs alone; returns its manifest.

    Raises `UserError` if the bundle is not usable or its model cannot be exported, or if `output`
    is there or cannot be written.
    """
    output = require_new(output)
    refuse_inside(output, bundle, "bundle")
    require_writable(output)
    with bundle_folder(os.path.expanduser(bundle)) as folder:
        read_description(folder)
        load_jax()
        from msajax.inference.bundle import load_bundle
        from msajax.inference.export.program import write_export
        from msajax.runtime import devices

        devices.require_devices()
        loaded = load_bundle(folder)
    announce.now("Exporting")
    return write_export(loaded, output)


def run_generate(options: Options, console: Console) -> int:
    """Runs --mode=generate: prints or writes what follows each line; returns the exit code."""
    del console
    # What can be refused before JAX is loaded: places, numbers, a text that is none.
    path, source = options.required("bundle", "input")
    if output := options["output"]:
        refuse_inside(output, path, "bundle")
        refuse_in_run(output)
        require_new(output)
        require_file_place(output)
    steps = str(options["steps"] or 50)
    if not steps.isdecimal() or int(steps) < 1:
        raise UserError(f"--steps={steps}: must be a whole number, 1 or more.")
    name = "standard input" if source == "-" else source
    with bundle_folder(os.path.expanduser(path)) as folder:
        read_description(folder)
        try:
            if source == "-":
                content = sys.stdin.buffer.read()
            else:
                with open(source, "rb") as file:
                    content = file.read()
            text = content.decode("utf-8-sig")
        except (OSError, UnicodeError) as error:
            raise UserError(f"{name} cannot be read as text in UTF-8: {error}.") from error
        if not text.strip():
            raise UserError(f"{name} is empty: expected a text to continue in each line.")
        lines = text.removesuffix("\n").split("\n")
        load_jax()
        from msajax.inference.bundle import load_bundle
        from msajax.inference.generate import generate, require_decoder, token_ids

        bundle = load_bundle(folder)

    # Every line is checked before the first is continued, which takes long.
    announce.now("Compiling and continuing")
    require_decoder(bundle)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise UserError(
                f"{name}, line {number} is blank, and there is nothing to continue: "
                "remove it, or put a word there."
            )
        try:
            token_ids(line, bundle.preparation)
        except UserError as error:
            raise UserError(f"{name}, line {number}: {error}") from error
    settings = [int(steps), *(options[name] for name in ("temperature", "sample_seed"))]
    found = []
    for line in lines:
        found.append(generate(bundle, line, *settings))
        if not output:
            print(found[-1], flush=True)
    if output:
        write_text(output, "".join(f"{text}\n" for text in found))
        print(f"{len(found)} continuation(s): {output}")
    return OK
