"""Sets runs beside each other from Python: compare and table, and what they return."""

import os
from collections.abc import Sequence
from typing import Any

from msajax.api import Result, Table
from msajax.evaluation import comparison
from msajax.evaluation.comparison_output import print_comparison, rows, write_comparison
from msajax.evaluation.run_table import tabulate
from msajax.evaluation.run_table_output import print_run_table, run_rows, write_run_table


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
        return rows(self)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the comparison as .json, .csv, .tex or .html, which the ending says.

        Raises:
            UserError: for another ending, or a file that cannot be written.
        """
        write_comparison(os.fspath(path), self._content)


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
        every_pair: whether to compare each with each.

    Returns:
        The comparison, which prints as tables and sentences.

    Raises:
        UserError: for runs that are not of the same samples, naming those that differ.
    """
    content = comparison.compare(_paths(runs), split, convention, every_pair)
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
        return run_rows(self)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the table as .tex, .csv or .json, which the ending says.

        Raises:
            UserError: for another ending, or a file that cannot be written.
        """
        write_run_table(os.fspath(path), self._content)


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
    names = (metrics,) if isinstance(metrics, str) else metrics
    return RunTable(os.getcwd(), tabulate(_paths(runs), split, convention, names))


def _paths(runs: Sequence[str | os.PathLike | Result]) -> list[str]:
    return [run.workdir if isinstance(run, Result) else os.fspath(run) for run in runs]
