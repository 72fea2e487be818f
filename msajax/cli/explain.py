"""Runs --mode=explain: says what the scores of a trained model are made of."""

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from msajax import announce
from msajax.cli.early_checks import check_run, load_jax, reading_of
from msajax.cli.options import Options
from msajax.corpus.demands import require_corpus
from msajax.corpus.formats import open_corpus
from msajax.corpus.predictions import Scored
from msajax.errors import OK, UserError
from msajax.files import refuse_inside, require_file_place, require_new, write_json, write_text
from msajax.results.measure import stored_rows
from msajax.runs.local_copy import bundle_folder
from msajax.runs.manifest import EXPLANATION, EXPLANATION_PAGE

logger = logging.getLogger(__name__)

_USUAL, _MOST = 20, 1000  # samples
_LOG_SECONDS = 30.0


def run(options: Options, console: Console) -> int:
    """Explains, writes the page and its numbers, and prints a summary; returns the exit code."""
    split, samples = options["split"] or "test", options["samples"] or _USUAL
    target, model = options["target"] or "", options.config.model
    if split == "all":
        raise UserError("--mode=explain takes one split: train, valid or test.")
    if samples > _MOST:
        raise UserError(f"--samples={samples}: a page holds at most {_MOST}.")
    if options["workdir"]:
        given = [name for name in ("bundle", "input", "output") if options[name]]
        named = {"text_encoder": model.text_encoder, "encoders": model.encoders}
        if given := [*given, *(f"config.model.{key}" for key, folder in named.items() if folder)]:
            raise UserError(
                f"--mode=explain needs --workdir or --bundle with --input, not both: leave out "
                f"--{given[0]}."
            )
        found = explain_run(options["workdir"], split, samples, target)
        where = f"{options['workdir'].rstrip('/')}/{EXPLANATION_PAGE}"
    else:
        if not any(options[name] for name in ("bundle", "input", "output")):
            raise UserError("--mode=explain needs --workdir=RUN, or --bundle with --input.")
        bundle, corpus, where = options.required("bundle", "input", "output")
        found = explain_corpus(bundle, corpus, where, split, samples, target, model.encoder_folders)
    from msajax.report.explanation.explain import print_explanation

    print_explanation(found, console)
    print(f"Page to step through: {where}")
    return OK


def explain_run(
    workdir: str, split: str, samples: int = _USUAL, target: str = ""
) -> dict[str, Any]:
    """Explains samples of a finished run's corpus, and writes into its folder, also in a bucket.

    It explains the output or class `target`; "" is the first output, or the predicted class.
    Returns the content of explanation.json, which a report in the folder shows from then on.

    Raises:
        UserError: if the run has not ended, its corpus is gone or another one, or its model cannot
            be explained.
    """
    check_run(workdir, "explain")
    from msajax.cli.finished import adding
    from msajax.report.explanation.explain import explain, output_of
    from msajax.results.finished import open_finished

    with adding("explain", workdir, EXPLANATION_PAGE, EXPLANATION) as folder:
        run = open_finished(folder, split)
        output = output_of(run.bundle.preparation.spec, target)
        scored = run.score(split)
        stored = functools.partial(stored_rows, run.corpus, split)
        with _show_progress() as tell:
            found = explain(run.bundle, split, scored, stored, output, samples, tell)
        _write_page(found, folder.file(EXPLANATION_PAGE), folder.file(EXPLANATION))
    return found


def explain_corpus(
    bundle: str,
    corpus: str,
    output: str,
    split: str,
    samples: int = _USUAL,
    target: str = "",
    encoders: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Explains samples of any corpus that fits a bundle; labels are not needed.

    `output` is the page, a new name that ends in .html; the numbers, which are returned, go beside
    it, to .json. `target` is as in `explain_run`, `encoders` as in `Bundle.with_data`.

    Raises:
        UserError: if the bundle, the corpus or the output is not usable.
    """
    if not output.endswith(".html"):
        raise UserError(f"--output={output} is the page: its name must end in .html.")
    for source, what in ((corpus, "corpus"), (bundle, "bundle")):
        refuse_inside(output, source, what)
    numbers = f"{os.path.splitext(output)[0]}.json"
    for path in (output, numbers):
        require_new(path)
        require_file_place(path)
    require_corpus(corpus)
    with bundle_folder(os.path.expanduser(bundle)) as folder:
        opened = open_corpus(corpus, reading_of(folder))
        opened.require_splits(split)
        load_jax()
        from msajax.inference.bundle import load_bundle
        from msajax.inference.predict import read_split, with_same_features
        from msajax.report.explanation.explain import explain, output_of

        loaded = load_bundle(folder).with_data(encoders=encoders)
    number = output_of(loaded.preparation.spec, target)
    opened = with_same_features(loaded, opened)
    _, prepared = read_split(loaded, opened, split)
    scored = Scored(prepared, *loaded.scorer.score(prepared, split))
    stored = functools.partial(stored_rows, opened, split)
    with _show_progress() as tell:
        found = explain(loaded, split, scored, stored, number, samples, tell)
    _write_page(found, output, numbers)
    return found


def _write_page(found: dict[str, Any], page: str, numbers: str) -> None:
    from msajax.report.explanation.page import render

    rendered = render(found)  # before either is written: a stop would part them
    write_text(page, rendered)
    write_json(numbers, found, indent=None)


@contextlib.contextmanager
def _show_progress() -> Iterator[Callable[[float], None]]:
    """Shows a bar on a terminal; a log gets a line every half minute."""
    announce.now()
    console = Console(stderr=True)
    columns = (TextColumn("explaining"), BarColumn(bar_width=20), TaskProgressColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task, told = bar.add_task("", total=1.0), time.monotonic()

        def tell(share: float) -> None:
            nonlocal told
            bar.update(task, completed=share)
            if not console.is_terminal and time.monotonic() - told >= _LOG_SECONDS:
                told = time.monotonic()
                logger.info("explaining: %.0f %% done", 100 * share)

        yield tell
