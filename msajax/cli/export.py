"""Runs --mode=export: writes a bundle as a program that jax runs without msajax."""

import os

from rich.console import Console

from msajax import announce
from msajax.cli.early_checks import load_jax
from msajax.cli.options import Options
from msajax.errors import OK
from msajax.files import refuse_inside, require_new, require_writable
from msajax.inference.description import read_description
from msajax.runs.local_copy import bundle_folder


def run(options: Options, console: Console) -> int:
    """Exports, and says what and where to; returns the exit code."""
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
