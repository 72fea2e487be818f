"""Runs --mode=explain: says what the scores of a trained model are made of."""

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from msajax import announce
from msajax.cli.convert import require_new
from msajax.cli.early_checks import check_run, load_jax, reading_of
from msajax.cli.options import Options
from msajax.corpus.demands import require_corpus
from msajax.corpus.formats import open_corpus
from msajax.errors import OK, UserError
from msajax.files import refuse_inside, require_file_place, write_json, write_text
from msajax.report.explanation.choose import MOST, USUAL, Aim
from msajax.results.measure import stored_rows
from msajax.runs.local_copy import bundle_folder
from msajax.runs.manifest import EXPLANATION, EXPLANATION_PAGE

if TYPE_CHECKING:
    from msajax.report.explanation.integrate import Tell

logger = logging.getLogger(__name__)

_LOG_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Wish:
    """Says what is to be explained.

    Attributes:
        split: its name.
        samples: how many.
        target: the output or class; "" for the first output, or the predicted class.
    """

    split: str
    samples: int = USUAL
    target: str = ""


def run(options: Options, console: Console) -> int:
    """Explains, writes the page and its numbers, and prints a summary; returns the exit code."""
    wish = Wish(options["split"] or "test", options["samples"] or USUAL, options["target"] or "")
    if wish.split == "all":
        raise UserError("--mode=explain takes one split: train, valid or test.")
    if wish.samples > MOST:
        raise UserError(f"--samples={wish.samples}: a page holds at most {MOST}.")
    if options["workdir"]:
        if given := [name for name in ("bundle", "input", "output") if options[name]]:
            raise UserError(
                f"--mode=explain needs --workdir or --bundle with --input, not both: leave out "
                f"--{given[0]}."
            )
        found, where = explain_run(options["workdir"], wish), options["workdir"]
        where = f"{where.rstrip('/')}/{EXPLANATION_PAGE}"
    else:
        if not any(options[name] for name in ("bundle", "input", "output")):
            raise UserError("--mode=explain needs --workdir=RUN, or --bundle with --input.")
        bundle, corpus, where = options.required("bundle", "input", "output")
        found = explain_corpus(bundle, corpus, where, wish)
    from msajax.report.explanation.report import print_explanation

    print_explanation(found, console)
    print(f"Page to step through: {where}")
    return OK


def explain_run(workdir: str, wish: Wish) -> dict[str, Any]:
    """Explains samples of a finished run's corpus, and writes into its folder.

    Returns:
        The content of explanation.json; a report that is in the folder shows it from then on.

    Raises:
        UserError: if the run has not ended, its corpus is gone or another one, or its model cannot
            be explained.
    """
    check_run(workdir, "explain")
    from msajax.cli.finished_run import adding
    from msajax.report.explanation import page
    from msajax.report.explanation.report import Material, explain
    from msajax.results.finished import open_finished

    with adding("explain", workdir, EXPLANATION_PAGE, EXPLANATION) as folder:
        run = open_finished(folder, wish.split)
        aim = Aim.of(run.bundle.preparation.spec, wish.target)
        split, scores, weights, _ = run.score(wish.split)
        material = Material(
            *(wish.split, split, scores, weights),
            stored=lambda rows: stored_rows(run.corpus, wish.split, rows),
        )
        with _progress() as tell:
            found = explain(run.bundle, material, aim, wish.samples, tell)
        rendered = page.render(found)  # before either is written: a stop would part them
        write_text(folder.file(EXPLANATION_PAGE), rendered)
        write_json(folder.file(EXPLANATION), found, indent=None)
    return found


def explain_corpus(bundle: str, corpus: str, output: str, wish: Wish) -> dict[str, Any]:
    """Explains samples of any corpus that fits a bundle; labels are not needed.

    Args:
        bundle: its folder.
        corpus: its path.
        output: the page, a new name that ends in .html; the numbers go beside it, to .json.
        wish: what is to be explained.

    Returns:
        The numbers.

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
        opened.require_splits(wish.split)
        load_jax()
        from msajax.inference.bundle_files import load_bundle
        from msajax.inference.predict import read_split, with_same_text
        from msajax.report.explanation import page
        from msajax.report.explanation.report import Material, explain

        loaded = load_bundle(folder)
    aim = Aim.of(loaded.preparation.spec, wish.target)
    opened = with_same_text(loaded, opened)
    _, prepared = read_split(loaded, opened, wish.split)
    material = Material(
        *(wish.split, prepared, *loaded.scorer.score(prepared, wish.split)),
        stored=lambda rows: stored_rows(opened, wish.split, rows),
    )
    with _progress() as tell:
        found = explain(loaded, material, aim, wish.samples, tell)
    rendered = page.render(found)  # before either is written: a stop would part them
    write_json(numbers, found, indent=None)
    write_text(output, rendered)
    return found


@contextlib.contextmanager
def _progress() -> Iterator["Tell"]:
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
