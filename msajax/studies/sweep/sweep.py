"""Sweeps: tries settings on validation, trains the winner on fresh seeds and tests it once.

`files.py` says what WORKDIR holds.
"""

import contextlib
import dataclasses
import errno
import itertools
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msajax.checks import is_url
from msajax.config import Config, checked, identity
from msajax.config.identity import NUMERICS
from msajax.corpus.demands import require_glove
from msajax.corpus.folds import require_one_fold
from msajax.corpus.formats import open_corpus
from msajax.errors import NonFiniteError, UserError, writing
from msajax.experiment import run
from msajax.experiment.run import Sources, open_encoders, open_sources
from msajax.files import write_if_new
from msajax.results import legend
from msajax.results.tables import metric_name, print_results
from msajax.runs.lock import Lock
from msajax.runtime import processes
from msajax.runtime.signals import StopRequest
from msajax.studies.runner import check_run, first_begun, open_devices
from msajax.studies.sweep.files import SWEEP, WINNER, WINNER_FILE, SweepFolder, experiment_text
from msajax.studies.sweep.space import TrialSettings, plan, with_settings
from msajax.studies.sweep.trial import refused, train_trial
from msajax.studies.sweep.verdicts import (
    SelectionMetric,
    rank_correlations,
    ranked,
    told_apart,
    trial_line,
    winner_sentence,
)
from msajax.training.progress import TrialsProgress

logger = logging.getLogger(__name__)

_SHOWN = 10  # trials
_MEANINGS = {
    "epochs": "ran to the end",
    "patience": "no seed improved",
    "median": "stopped by the median",
    "failed": "not finite",
    "refused": "refused",
}


def print_sweep(content: Mapping[str, Any], console: Console) -> None:
    """Prints the content of a sweep.json."""
    trials, metric = content["trials"], content["metric"]
    if metric is not None:
        console.print(_trials_table(content))
        console.print()
    counts = {how: sum(t["ended"] == how for t in trials) for how in _MEANINGS}
    told = [f"{count} {_MEANINGS[how]}" for how, count in counts.items() if count]
    console.print(f"{len(trials)} trials: {', '.join(told)}.")
    if content["rank_correlations"]:
        found = content["rank_correlations"].items()
        ordered = sorted(found, key=lambda item: -abs(item[1]))
        text = ", ".join(f"{key} {value:+.2f}" for key, value in ordered)
        console.print(Text(f"Rank correlation of settings with valid {metric}: {text}."))
    winner = content["winner"]
    if winner is None:
        return
    console.print(Text(winner["sentence"], style="bold"))
    if results := winner.get("results"):
        fresh = results["valid"][metric]["mean"]
        console.print(
            f"On fresh seeds its valid {metric} is {legend.show(metric, fresh)}, where the trial "
            f"had {legend.show(metric, winner['score'])}. The winner's run:"
        )
        console.print()
        print_results(results, console)


def _trials_table(content: Mapping[str, Any]) -> Table:
    metric, sign = content["metric"], -1 if content["larger_is_better"] else 1
    table = Table(
        title=Text(f"the best of {len(content['trials'])} trials, on validation"),
        title_justify="left",
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("trial", justify="right")
    table.add_column("settings", overflow="fold", ratio=1, min_width=16)
    table.add_column(metric_name(metric), justify="right", overflow="fold", max_width=26)
    for column in ("epochs", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", overflow="fold", max_width=16)
    winner = content["winner"]

    def order(trial: Mapping[str, Any]) -> tuple[bool, float]:
        score = trial["score"]
        is_stopped = trial["ended"] not in ("epochs", "patience")
        return is_stopped, math.inf if score is None else sign * score

    for trial in sorted(content["trials"], key=order)[:_SHOWN]:
        settings = ", ".join(
            f"{key.partition('.')[2]} {_value(v)}" for key, v in trial["settings"].items()
        )
        remark = _MEANINGS[trial["ended"]] if order(trial)[0] else ""
        if winner and trial["trial"] == winner["trial"]:
            remark = "the best"
        elif trial["told_apart"] is False:
            remark = "not told apart"
        form = "{}" if trial["sd"] is None else "{} ± {}"
        values = (trial["score"],) if trial["sd"] is None else (trial["score"], trial["sd"])
        cells = [legend.show(metric, *values, form=form), str(trial["epochs"])]
        cells += [f"{trial['seconds']:.0f}", remark]
        table.add_row(str(trial["trial"]), Text(settings or "nothing changed"), *map(Text, cells))
    return table


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_OF_THE_RUN = ("metric", "larger_is_better", "validation")  # of a record, the same for all trials


@dataclasses.dataclass(frozen=True)
class Plan:
    """Says what a sweep does.

    Attributes:
        space: the result of `get_space()`.
        trials: the number of trials that are drawn at random; None for the whole grid.
        trial_seeds: random seeds of a trial: those after the experiment's own, which the winner
            has, so that no choice has seen the winner's.
        median: whether hopeless trials are stopped.
        winner: whether the winner is trained, and tested.
    """

    space: Any
    trials: int | None = None
    trial_seeds: int = 3
    median: bool = True
    winner: bool = True


def sweep(
    config: Config, what: Plan, workdir: str, stop: StopRequest | None = None
) -> dict[str, Any] | None:
    """Tries settings in a folder, and goes on where it was interrupted.

    Returns:
        The content of sweep.json, or None if it has paused.

    Raises:
        UserError: for whatever the user can set right, before anything is written.
        NonFiniteError: if no trial has a score, because numbers were not finite, or no seed of the
            winner has.
    """
    config = checked(config)
    require_one_fold(config.data)
    if is_url(workdir):
        raise UserError(
            f"The workdir {workdir} is in a bucket, which can hold a run, but no sweep: name a "
            "folder."
        )
    planned = plan(what.space, config, what.trials)
    if type(what.trial_seeds) is not int or what.trial_seeds < 1:
        raise UserError(f"--trial_seeds={what.trial_seeds}: must be 1 or more.")
    # Devices come before the corpus is opened; the folder is this sweep's, or is refused at once.
    seeds = _with_trial_seeds(config, what.trial_seeds).train
    folder = SweepFolder(workdir)
    open_devices(config, first_begun([folder.trial(k) for k in range(len(planned))]))
    opener = _Opener(config)
    own = {
        **identity(config),
        **opener.digests,
        "numerics": NUMERICS,
        "get_space()": dict(what.space) if isinstance(what.space, Mapping) else what.space,
        "drawn at random": what.trials is not None,
        "--trial_seeds": what.trial_seeds,
        "--median": what.median,
    }
    folder.claim(own, len(planned))
    with writing(workdir):
        os.makedirs(workdir, exist_ok=True)
    with processes.losses_noticed(), Lock(workdir):
        folder.claim(own, len(planned))  # another sweep may have begun since
        found = map(folder.read_record, range(len(planned)))
        records = list(itertools.takewhile(lambda record: record is not None, found))

        def write(winner: Mapping[str, Any] | None = None, **rest: Any) -> None:
            """Writes sweep.json and trials.csv: the trials so far, and what is known of them."""
            metric, apart = _metric(records), rest.get("told_apart", {})
            content = {
                "identity": own,
                "planned": len(planned),
                "metric": metric and metric.name,
                "larger_is_better": metric and metric.larger_is_better,
                "seeds": list(range(seeds.first_seed, seeds.first_seed + seeds.seeds)),
                "trials": [
                    {k: v for k, v in record.items() if k not in _OF_THE_RUN}
                    | {"told_apart": apart.get(record["trial"])}
                    for record in records
                ],
                "rank_correlations": rest.get("rank_correlations", {}),
                "winner": winner,
            }
            folder.write(content)

        def try_settings(
            number: int, settings: TrialSettings, progress: TrialsProgress
        ) -> dict[str, Any] | None:
            """Trains one trial; returns its record, or None if it has paused."""
            try:
                of_trial = _with_trial_seeds(with_settings(config, settings), seeds.seeds)
            except UserError as error:
                return refused(number, settings, str(error))
            digests = [record["validation"] for record in records if "validation" in record]
            curves = [record["curve"] for record in records if record["curve"]]
            return train_trial(
                number,
                settings,
                of_trial,
                folder.trial(number),
                open_trial=opener.open,
                before=curves if what.median else None,
                validation=digests[0] if digests else "",
                stop=stop or StopRequest(),
                progress=progress.of_trial,
            )

        if not os.path.exists(folder.file(SWEEP)) or folder.read()["planned"] != len(planned):
            write()

        # Train the trials that have not ended, in their order: the median rule follows it.
        with TrialsProgress(len(planned), len(records)) as progress:
            for number, settings in enumerate(planned):
                if number < len(records):
                    folder.drop_checkpoints(number)  # a kill may have left some
                    continue
                record = folder.read_record(number)  # behind one that was deleted
                if record is None and stop is not None and stop.requested:
                    return None
                if record is None:
                    with _quiet():
                        record = try_settings(number, settings, progress)
                if record is None:
                    return None
                folder.write_record(record)
                folder.drop_checkpoints(number)
                records.append(record)
                write()
                progress.trial_done(trial_line(record))

        # Choose the winner on validation alone.
        metric = _metric(records)
        order = ranked(records, metric) if metric else []
        if not order:
            why = "; ".join(f"trial {r['trial']}: {r['why'].rstrip('.')}" for r in records[:3])
            failed = any(record["ended"] == "failed" for record in records)
            raise (NonFiniteError if failed else UserError)(
                f"No trial of {folder.path} ran to its end with a score ({why}); trials.csv has "
                "all of them."
            )
        best = order[0]
        apart = {record["trial"]: told_apart(best, record) for record in order[1:]}
        rest = {"told_apart": apart, "rank_correlations": rank_correlations(records)}
        winner = {key: best[key] for key in ("trial", "settings", "score", "sd", "seeds")}
        winner["sentence"] = winner_sentence(best, apart, metric)
        write(winner, **rest)
        if not what.winner:
            return folder.read()

        # Train it on seeds that no choice has seen, and open its test split: once.
        winning = with_settings(config, best["settings"])
        said = f"Trial {best['trial']} of {len(records)}, the best of a sweep."
        write_if_new(folder.file(WINNER_FILE), experiment_text(winning, said))
        logger.info("%s Now it is trained on fresh seeds, and tested.", winner["sentence"])
        try:
            results = run.train(winning, folder.file(WINNER), stop=stop)
        except NonFiniteError as error:
            raise NonFiniteError(f"The winner, on fresh seeds: {error}") from error
        if results is None:
            return None
        write(winner | {"results": results}, **rest)
        return folder.read()


def _with_trial_seeds(config: Config, seeds: int) -> Config:
    """Gives an experiment the random seeds of trials, which come after its own."""
    first = config.train.first_seed + config.train.seeds
    train = dataclasses.replace(config.train, seeds=seeds, first_seed=first)
    return dataclasses.replace(config, train=train)


def _metric(records: Sequence[Mapping[str, Any]]) -> SelectionMetric | None:
    known = [record for record in records if "metric" in record]
    return SelectionMetric(known[0]["metric"], known[0]["larger_is_better"]) if known else None


class _Opener:
    """Opens what trials read; a corpus that several read in the same way is opened once."""

    def __init__(self, config: Config) -> None:
        """Opens what the experiment reads, and refuses what it could not be measured on."""
        self._opened: tuple[Any, Any, Any] = (None, None, None)
        self._is_a_file = os.path.exists(config.data.path)  # and not an embedded corpus
        self.digests = check_run(config, *self._open(config))

    def open(self, config: Config) -> Sources:
        """Opens what a trial reads; FileNotFoundError if the corpus has gone, no trial's fault."""
        if self._is_a_file and not os.path.exists(config.data.path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), config.data.path)
        return open_sources(config, *self._open(config), verify=False)

    def _open(self, config: Config) -> tuple[Any, Any]:
        key = (config.reading, tuple(config.model.encoder_folders.items()))
        if self._opened[0] != key:
            require_glove(config.data.glove_path)
            corpus, encoders = open_corpus(config.data.path, config.reading), open_encoders(config)
            self._opened = (key, corpus, encoders)
        return self._opened[1:]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what every trial would say again out of the log; the sweep has a line for each."""
    whole, own = logging.getLogger("msajax"), logging.getLogger("msajax.studies.sweep")
    of_training = logging.getLogger("msajax.training.progress")
    before = {each: each.level for each in (whole, own, of_training)}
    try:
        for each in (own, of_training):
            each.setLevel(whole.getEffectiveLevel())
        whole.setLevel(logging.ERROR)
        yield
    finally:
        for each, level in before.items():
            each.setLevel(level)
