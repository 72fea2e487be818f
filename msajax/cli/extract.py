"""Runs --mode=extract: makes a corpus of recordings."""

from rich.console import Console

from msajax.cli.options import Options, named_columns
from msajax.errors import OK, STOPPED
from msajax.files import refuse_inside
from msajax.runtime.signals import StopRequest


def run(options: Options, console: Console) -> int:
    """Extracts, and says what the corpus holds; returns the exit code."""
    del console
    table, output = options.required("input", "output")
    refuse_inside(output, table, "table")
    from msajax.recordings.extract import extract
    from msajax.recordings.measure import Stopped

    with StopRequest() as stop:
        stop.will_serve()
        try:
            extracted = extract(
                table,
                output,
                columns=named_columns(options["columns"]),
                steps=options["steps"] or "",
                audio=options["audio"],
                asr_model=options["asr_model"] or "",
                jobs=options["jobs"],
                should_stop=lambda: stop.requested,
            )
        except Stopped as error:
            print(f"{error}; the same command continues.")
            return STOPPED
    print(extracted)
    return OK
