"""Trains, tunes and compares from Python: what a notebook calls, and what it gets back."""

import contextlib
import functools
import html
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging as absl_logging
from rich.console import Console

from msajax.checks import is_url
from msajax.comparison.compare import compare as compare_runs
from msajax.comparison.compare import tabulate
from msajax.comparison.output import (
    RUN_TABLE,
    comparison_rows,
    print_comparison,
    print_run_table,
    run_table_rows,
    write,
)
from msajax.config import Config, load_models_from
from msajax.corpus.predictions import read_columns
from msajax.errors import UserError
from msajax.experiment import run
from msajax.files import as_path
from msajax.inference.bundle import Bundle, load
from msajax.results.tables import print_folds, print_results
from msajax.runs.folder import RunFolder
from msajax.runs.mirror import Mirror
from msajax.studies import folds
from msajax.studies.compare_models import Budget, print_models
from msajax.studies.compare_models import compare_models as run_models
from msajax.studies.compare_models import rows_of as rows_of_models
from msajax.studies.sweep.sweep import Plan, print_sweep
from msajax.studies.sweep.sweep import sweep as run_sweep
from msajax.training.run import AfterEpoch

_WIDTH = 100  # columns of a printed table


class Table(Mapping[str, Any]):
    """Holds results, the content of a JSON file, and prints them as the command line does.

    Attributes:
        workdir: the folder of the file; of a comparison, where its relative paths begin.
    """

    _print: Callable[[Mapping[str, Any], Console], None]

    def __init__(self, workdir: str, content: Mapping[str, Any]) -> None:
        """Keeps the content of a file in `workdir`."""
        self.workdir = workdir
        self._content = content

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.workdir!r}; print it for its table)"

    def __str__(self) -> str:
        text = io.StringIO()
        # Plain also in a notebook, which asks for colours: as HTML their codes would be text.
        console = Console(file=text, width=_WIDTH, force_jupyter=False, force_terminal=False)
        type(self)._print(self._content, console)
        return text.getvalue()

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{html.escape(str(self))}</pre>'


class FoldsResult(Table):
    """Holds all folds of a cross-validation: the content of folds.json."""

    _print = staticmethod(print_folds)


class Result(Table):
    """Holds a run that has ended: its results.json, and what else is in its folder.

    `result["test"]["mae"]["mean"]` is a number of results.json; `print(result)` shows the table.
    """

    _print = staticmethod(print_results)

    def predictions(self, split: str = "test") -> dict[str, np.ndarray]:
        """Reads the predictions of valid or test by column, as in its CSV; ready for a data frame.

        Returns:
            `{column: [N]}`: id, label, score and the others of the file; numbers as float64, an
            empty field as NaN; id, raw_text and classes as str.

        Raises:
            UserError: for another split, or a file that is gone.
        """
        if split not in ("valid", "test"):
            raise UserError(f"A run leaves predictions of valid and test, not of {split!r}.")
        with self._folder() as folder:
            return read_columns(folder.file("predictions", f"{split}.csv"))

    def history(self) -> list[dict[str, Any]]:
        """Reads metrics.jsonl: a line per random seed and epoch, ready for a data frame."""
        with self._folder() as folder:
            return folder.read_metrics()

    @functools.cached_property
    def bundle(self) -> Bundle:
        """Returns the trained model."""
        return load(f"{self.workdir}/bundle")

    @contextlib.contextmanager
    def _folder(self) -> Iterator[RunFolder]:
        with Mirror(self.workdir) as mirror:
            yield RunFolder(mirror.path)


class SweepResult(Table):
    """Holds a sweep: the content of sweep.json, its trials by the key "trials"."""

    _print = staticmethod(print_sweep)

    @functools.cached_property
    def winner(self) -> Result | None:
        """Returns the winner's run; None if it has not been trained."""
        results = self["winner"].get("results")
        return results and Result(os.path.join(self.workdir, "winner"), results)


def train(
    config: Config,
    workdir: str | os.PathLike,
    stop_after_epochs: int | None = None,
    after_epoch: AfterEpoch | None = None,
) -> Result | None:
    """Trains, chooses on validation, then opens the test split once; shows its progress.

    The same call continues a run that was interrupted, and reads one that has ended. Unless the
    program has set up logging itself, what there is to say of the run is written to standard
    error.

    Args:
        config: the experiment.
        workdir: the run's folder, also in a bucket (gs://…); made if needed, refused if it holds
            another run.
        stop_after_epochs: save and return after so many more epochs.
        after_epoch: a function that is called after each epoch with its lines of `Result.history`,
            one for every random seed that still trains.

    Returns:
        The result, which prints as a table; None if the run has paused after `stop_after_epochs`.

    Raises:
        UserError: for whatever you can set right, before anything is written.
        NonFiniteError: if no random seed's numbers are finite any more.
    """
    workdir = _absolute(workdir)
    if not (after_epoch is None or callable(after_epoch)):
        raise UserError(f"after_epoch = {after_epoch!r}: must be a function of an epoch's lines.")
    with _heard():
        content = run.train(config, workdir, stop_after_epochs, after_epoch=after_epoch)
    return None if content is None else Result(workdir, content)


def cross_validate(
    config: Config, workdir: str | os.PathLike, stop_after_epochs: int | None = None
) -> FoldsResult | None:
    """Trains every fold in a folder of its own, and measures them together; shows its progress.

    The same call continues where it was interrupted.

    Args:
        config: the experiment, with `data.folds` set.
        workdir: the folder of the folds; made if needed, refused if it holds something else.
        stop_after_epochs: save and return after so many more epochs, of all folds together.

    Returns:
        The result, which prints as a table; None if it has paused.

    Raises:
        UserError: for whatever you can set right, before anything is written.
        NonFiniteError: if no seed's numbers of some fold are finite any more.
    """
    workdir = _absolute(workdir)
    with _heard():
        content = folds.cross_validate(config, workdir, stop_after_epochs)
    return None if content is None else FoldsResult(workdir, content)


def sweep(config: Config, space: Any, workdir: str | os.PathLike, **how: Any) -> SweepResult:
    """Tries settings on validation, trains the best on fresh seeds and tests it once.

    The same call continues where it was interrupted.

    Args:
        config: the experiment, whose settings the trials change.
        space: `{key: list of values, or (low, high, "log" or "linear")}`, or a list of trials, each
            `{key: value}`.
        workdir: the folder of the sweep; made if needed, refused if it holds something else.
        **how: trials=N, how many are drawn at random (None: the whole grid); trial_seeds=3, random
            seeds of a trial; median=False, which stops no trial early; winner=False, which trains
            no winner and leaves the test split closed.

    Returns:
        The result, which prints as a table.

    Raises:
        UserError: for whatever you can set right, before anything is written.
        NonFiniteError: if no trial or no seed of the winner has finite numbers.
    """
    workdir = _absolute(workdir)
    if unknown := sorted(how.keys() - {"trials", "trial_seeds", "median", "winner"}):
        raise UserError(f"msajax.sweep has no argument {unknown[0]!r}; see help(msajax.sweep).")
    with _heard():
        content = run_sweep(config, Plan(space, **how), workdir)
    return SweepResult(workdir, content)


class ModelsResult(Table):
    """Holds a comparison of models: what each reaches on equal terms.

    `result["contenders"][0]["test"]["mae"]` has the mean, the sd over random seeds and the interval
    of the first; `print(result)` shows a row for each.
    """

    _print = staticmethod(print_models)

    def rows(self) -> list[dict[str, Any]]:
        """Lists the values of every contender, ready for a data frame."""
        return rows_of_models(self)


def compare_models(
    contenders: Sequence[str], config: Config, workdir: str | os.PathLike, **how: Any
) -> ModelsResult:
    """Sweeps models with the same budget, tests each winner once, and compares them.

    Each is trained in a process of its own. The same call continues where it was interrupted.

    Args:
        contenders: names of models, the reference first; text_only is added.
        config: has the corpus, training, encoders and random seeds, which all share.
        workdir: the folder; made if needed, refused if it holds something else.
        **how: trials=8, how many settings are drawn from the space that a model declares (0: none,
            its declared settings); trial_seeds=1, random seeds of a trial; hours=None, after which
            no more begin; models="", a Python file that registers models of your own; own={}, the
            contenders' own settings, `{name: {setting: value}}`.

    Returns:
        The table, which prints; `status` says which of its models have not ended.

    Raises:
        UserError: for whatever you can set right, before anything is trained.
    """
    workdir = _absolute(workdir)
    own = how.pop("own", None)
    if unknown := sorted(how.keys() - set(Budget._fields)):
        raise UserError(
            f"compare_models has no argument {unknown[0]!r}; see help(msajax.compare_models)."
        )
    if how.get("models"):
        load_models_from(as_path(how["models"], "models", "a Python file"))
    names = (contenders,) if isinstance(contenders, str) else contenders
    with _heard():
        content, _ = run_models(names, config, workdir, Budget(**how), own=own)
    return ModelsResult(workdir, content)


def _absolute(workdir: str | os.PathLike) -> str:
    """Makes a workdir absolute: it must stay the same when the working directory changes."""
    workdir = as_path(workdir, "workdir", "a folder")
    return workdir if is_url(workdir) else os.path.abspath(os.path.expanduser(workdir))


@contextlib.contextmanager
def _heard() -> Iterator[None]:
    """Writes the log to standard error, unless the program has set up logging itself."""
    logger = logging.getLogger("msajax")
    handlers = (*logger.handlers, *logging.root.handlers)
    # absl's handler does not count: it adds itself when a library imports absl.
    if not all(isinstance(handler, absl_logging.ABSLHandler) for handler in handlers):
        yield
        return
    handler, level, propagate = logging.StreamHandler(), logger.level, logger.propagate
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class Comparison(Table):
    """Holds the differences between runs on the same samples, with what chance would give.

    `comparison["pairs"][0]["metrics"]["mae"]` has the difference, its intervals, p and a verdict;
    `print(comparison)` shows a table for each pair and says in words what it means.
    """

    _print = staticmethod(print_comparison)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(map(repr, self['runs']))}; print it for its tables)"

    def rows(self) -> list[dict[str, Any]]:
        """Lists the values of every pair and metric, ready for a data frame."""
        return comparison_rows(self)

    def save(self, path: str | os.PathLike) -> None:
        """Writes a .json, .csv, .tex or .html file, by its ending, or raises `UserError`."""
        from msajax.report.compared import write_comparison  # it draws

        write_comparison(as_path(path, "path", "a file"), self._content)


def compare(
    *runs: str | os.PathLike | Result,
    split: str = "test",
    convention: str = "",
    every_pair: bool = False,
) -> Comparison:
    """Compares runs with the first of them, on the same samples: every metric, paired.

    Args:
        runs: two or more: results, folders of runs that have ended, also in a bucket, or files of
            predictions, also of other tools.
        split: valid or test, of results and folders.
        convention: names of other metrics than those that suit the labels, with commas between;
            all for every one that fits.
        every_pair: compares each with each.

    Returns:
        The comparison, which prints as tables and sentences.

    Raises:
        UserError: for runs that are not of the same samples, naming those that differ.
    """
    _require_convention(convention)
    content = compare_runs(_paths(runs), split, convention, every_pair)
    return Comparison(os.getcwd(), content)


class RunTable(Table):
    """Holds metrics of many runs on the same samples, the best of them marked.

    `table["rows"][0]["metrics"]["mae"]` has a run's mean and sd over random seeds, its p against
    the best run, and its mark; `print(table)` shows a row for each run.
    """

    _print = staticmethod(print_run_table)

    def __repr__(self) -> str:
        names = (repr(row["path"]) for row in self["rows"])
        return f"RunTable({', '.join(names)}; print it)"

    def rows(self) -> list[dict[str, Any]]:
        """Lists the values of every run, with columns for each metric, ready for a data frame."""
        return run_table_rows(self)

    def save(self, path: str | os.PathLike) -> None:
        """Writes a .tex, .csv or .json file, by its ending, or raises `UserError`."""
        write(as_path(path, "path", "a file"), self._content, RUN_TABLE)


def table(
    *runs: str | os.PathLike | Result,
    split: str = "test",
    convention: str = "",
    metrics: Sequence[str] = (),
) -> RunTable:
    """Makes one table of runs on the same samples: a row a run, a column a metric.

    A metric's best run is marked if the paired test tells it from every other run, as `compare`
    tells two runs apart, with p adjusted for all of these comparisons (Holm). Otherwise it and
    those that are not told from it are marked as such.

    Args:
        runs: results, folders of runs that have ended, also in a bucket, or files of predictions,
            also of other tools.
        split: valid or test, of results and folders.
        convention: names of other metrics than those that suit the labels, with commas between;
            all for every one that fits.
        metrics: names of the columns, in their order; () for all.

    Returns:
        The table, which prints, and saves as CSV and LaTeX.

    Raises:
        UserError: for runs that are not of the same samples, naming those that differ.
    """
    _require_convention(convention)
    names = (metrics,) if isinstance(metrics, str) else metrics
    return RunTable(os.getcwd(), tabulate(_paths(runs), split, convention, names))


def _paths(runs: Sequence[str | os.PathLike | Result]) -> list[str]:
    expected = "a run's folder, or of a file of predictions"
    return [r.workdir if isinstance(r, Result) else as_path(r, "run", expected) for r in runs]


def _require_convention(convention: Any) -> None:
    if not isinstance(convention, str):
        raise UserError(f"convention = {convention!r}: must be names with commas between, or all.")
