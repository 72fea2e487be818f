"""Ablates modalities: trains a run for every subset of them, and compares each with all.

WORKDIR holds

    text+audio, text, audio, …   the runs, each an ordinary one of these modalities
    ablation.json                what each subset reaches, paired with all modalities; written last
"""

import dataclasses
import fnmatch
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from msajax.comparison.output import p_value
from msajax.comparison.statistics import (
    LEVEL,
    Pair,
    difference_intervals,
    groups_of,
    holm,
    paired_tests,
    smallest_p,
)
from msajax.config import Config, checked
from msajax.config.grammar import parse_override
from msajax.corpus.corpus import Corpus
from msajax.corpus.folds import require_one_fold
from msajax.corpus.formats import open_corpus
from msajax.corpus.labels import as_targets
from msajax.corpus.predictions import Predictions, read_predictions
from msajax.errors import UserError
from msajax.experiment.run import open_encoders, open_sources
from msajax.files import json_text, read_json, write_if_new
from msajax.models.build import parameter_shapes
from msajax.preparation.fit import fit
from msajax.results import legend
from msajax.results.findings import interval, mean_sd
from msajax.results.tables import MetricTable
from msajax.runs.folder import RunFolder
from msajax.runtime import processes
from msajax.runtime.signals import StopRequest
from msajax.spec import CorpusSpec
from msajax.studies import runner
from msajax.tasks import Task, make_task
from msajax.training.transforms import parse_transform

logger = logging.getLogger(__name__)

RESULTS = "ablation.json"


def print_ablation(report: Mapping[str, Any], console: Console) -> None:
    """Prints the content of an ablation.json: a row for each subset, a sentence a modality."""
    metric = report["metric"]
    arrow = legend.arrow(metric)
    seeds = max(len(subset["seeds"]) for subset in report["subsets"])
    table = MetricTable(
        f"{report['model']}: {metric} {arrow} of every subset of modalities, {seeds} random "
        f"seed{'s' * (seeds > 1)}, {report['samples']} test samples",
        ["modalities", "valid", "test", "all - it", "95 % interval", "p", "p (Holm)"],
    )
    for subset in report["subsets"]:
        cells = [mean_sd(metric, subset[split][metric]) for split in ("valid", "test")]
        if pair := subset["all_against_it"]:
            cells += [legend.signed(metric, pair["difference"])]
            cells += [interval(metric, pair), p_value(pair["p"]), p_value(pair["p_holm"])]
        table.add_row(Text(" + ".join(subset["modalities"])), *map(Text, cells))
    console.print(table)
    console.print()
    for sentence in sentences(report):
        console.print(Text(sentence, style="bold"))
    console.print()
    for line in _terms(report):
        console.print(Text(line, style="dim"))


def sentences(report: Mapping[str, Any]) -> list[str]:
    """Says of each modality whether it helps at all, and which subset validation chooses."""
    metric, answers = report["metric"], {"better": "yes", "worse": "no, it harms"}
    test = {subset["folder"]: subset["test"][metric]["mean"] for subset in report["subsets"]}
    with_all = legend.show(metric, next(iter(test.values())))
    found = []
    for m, pair in report["modality"].items():
        without = "+".join(other for other in report["modalities"] if other != m)
        answer = answers.get(pair["verdict"], "no difference that these samples can show")
        found.append(
            f"Does {m} help at all? By test {metric}, {answer}: {with_all} with it, "
            f"{legend.show(metric, test[without])} without it (difference "
            f"{legend.signed(metric, pair['difference'])}, 95 % interval {interval(metric, pair)}, "
            f"p = {p_value(pair['p'])}, {p_value(pair['p_holm'])} after Holm)."
        )
    valid = {subset["folder"]: subset["valid"][metric]["mean"] for subset in report["subsets"]}
    chosen, (of_all, *_) = report["chosen"], valid.values()
    if chosen is not None:
        found.append(
            f"Validation chooses {chosen}: {metric} {legend.show(metric, valid[chosen])} there, "
            f"{legend.show(metric, of_all)} with all modalities. Its run is the folder {chosen}."
        )
    return found


def _terms(report: Mapping[str, Any]) -> list[str]:
    count, unit = len(report["subsets"]) - 1, report["unit"]
    tests = f"{count} tests" if count > 1 else "one test"
    least = smallest_p(report["groups"], count)
    few = (
        f"Only {report['groups']} {unit}s: the smallest p that can come out is {least:.2g}, and "
        "nothing can be shown."
    )
    return [
        *([few] if least > LEVEL else []),
        f"all - it: the test {report['metric']} of all modalities less that of the subset; its "
        f"interval by bootstrap over {unit}s; p by exchanging whole {unit}s; Holm: for {tests}",
        "choosing by the test column would be choosing on test",
    ]


def ablate(
    config: Config,
    workdir: str,
    stop_after_epochs: int | None = None,
    stop: StopRequest | None = None,
    profile: str | None = None,
) -> dict[str, Any] | None:
    """Trains every subset of a model's modalities in a folder of its own, and compares them.

    Every run chooses its epochs on validation, and opens the test split once, when it has ended.
    Runs that have ended are only read; one that has paused goes on.

    Args:
        config: the experiment with all modalities; the others are those of `runner.train_study`.

    Returns:
        The content of ablation.json, or None if a run has paused.

    Raises:
        UserError: for whatever the user can set right, before anything is written.
        NonFiniteError: if no seed's numbers of some run are finite any more.
    """
    config = checked(config)
    require_one_fold(config.data)
    task: Task | None = None
    modalities: tuple[str, ...] = ()

    def check() -> dict[str, tuple[Config, dict[str, str]]]:
        """Makes the experiment of every subset, all modalities first; refuses what cannot train."""
        nonlocal task, modalities
        corpus, _, preparation = open_sources(config)
        spec = preparation.spec
        modalities = spec.modalities
        if len(modalities) < 2:
            raise UserError(
                f"{corpus.path}: the model reads {modalities[0]} alone, of which nothing can be "
                "left out: --mode=ablate needs two modalities or more."
            )
        if bad := [m for m in modalities if {"/", "+"} & set(m)]:
            raise UserError(
                f"{corpus.path}: the modality {bad[0]!r} cannot be part of a folder's name: "
                "--mode=ablate joins names by +, and they may hold no + and no /."
            )
        found = {}
        for size in range(len(modalities), 0, -1):
            for subset in itertools.combinations(modalities, size):
                name = "+".join(subset)
                try:
                    found[name] = _of_subset(without_lost_steps(config, subset, spec), subset)
                except UserError as error:
                    raise UserError(f"Modalities {name}: {error}") from error
        labels = as_targets(corpus.split("train").labels, spec, preparation.classes)
        task = make_task(spec.label_kind, spec.label_names, labels)
        return found

    def other(path: str) -> str:
        if not os.path.exists(os.path.join(path, "config.json")):
            return ""
        return (
            f"the run {os.path.basename(path)}, which is no subset of {', '.join(modalities)}: "
            "choose another --workdir"
        )

    study = runner.Study(
        runs="runs of subsets of modalities",
        single="the run of one subset",
        kept="--mode=ablate keeps a folder for each subset of modalities: choose another --workdir",
        title="Modalities {}".format,
        other=other,
    )
    # Any run that has begun: which one is first, only the corpus says, and devices come before it.
    there = sorted(os.listdir(workdir)) if os.path.isdir(workdir) else []
    folders = [RunFolder(os.path.join(workdir, name)) for name in there]
    runner.open_devices(config, runner.first_begun([*folders, RunFolder(workdir)]))
    with processes.losses_noticed():
        if not runner.train_study(study, workdir, check, stop_after_epochs, stop, profile):
            return None
        return processes.of_first(lambda: _compare_runs(modalities, task, workdir))


def _of_subset(config: Config, subset: Sequence[str]) -> tuple[Config, dict[str, str]]:
    config = only(config, subset)
    corpus, encoders = open_corpus(config.data.path, config.reading), open_encoders(config)
    if config.optim.groups:
        config = _with_known_groups(config, corpus, encoders)
    return config, runner.check_run(config, corpus, encoders)


def only(config: Config, subset: Sequence[str]) -> Config:
    """Returns the same experiment with some of its modalities, without what is about others.

    The anchor of fusion, where it is not among them, is chosen as by default: text, else the first.
    Pretrained encoders of other modalities go, too.
    """
    model, data, train = config.model, config.data, config.train
    kept: dict[str, Any] = {
        "modalities": tuple(subset),
        "anchor": model.anchor if model.anchor in subset else "",
        "overrides": tuple(e for e in model.overrides if parse_override(e)[0] in subset),
    }
    folders = {m: folder for m, folder in model.encoder_folders.items() if m in subset}
    if "text" in model.encoder_folders and "text" not in subset:
        kept |= {"text_pool": "pieces", "text_special": True}
        data = dataclasses.replace(data, text="auto")
    about = {entry: parse_transform(entry)[1] for entry in train.transforms}
    transforms = tuple(e for e, modality in about.items() if modality in ("*", *subset))
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model.with_encoders(folders), **kept),
        data=data,
        train=dataclasses.replace(train, transforms=transforms),
    )


def without_lost_steps(config: Config, subset: Sequence[str], spec: CorpusSpec) -> Config:
    """Turns early fusion off for a subset in which nothing shares the anchor's steps."""
    anchor = only(config, subset).model.anchor_of(subset)
    if set(subset) & set(spec.joined_to(anchor)) or len(subset) == len(spec.modalities):
        return config
    model = dataclasses.replace(config.model, early_fusion=False)
    return dataclasses.replace(config, model=model)


def _with_known_groups(config: Config, corpus: Corpus, encoders: Any) -> Config:
    """Leaves out the groups of parameters that a model of fewer modalities does not have."""
    spec = fit(corpus, config.reading, config.model, encoders).spec
    paths = list(parameter_shapes(config.model, spec))
    known = [
        group
        for group in config.optim.parsed_groups
        if any(fnmatch.fnmatchcase(path, group.pattern) for path in paths)
    ]
    optim = dataclasses.replace(config.optim, groups=tuple(group.text for group in known))
    return dataclasses.replace(config, optim=optim)


# --- the runs compared ---


class EndedRun(NamedTuple):
    """Holds the results and the test predictions of a run that has ended."""

    results: dict[str, Any]
    test: Predictions


def _compare_runs(modalities: Sequence[str], task: Task, workdir: str) -> dict[str, Any]:
    """Compares runs that have ended; a file that holds the same already stays as it is."""
    runs = {}
    for size in range(len(modalities), 0, -1):
        for name in map("+".join, itertools.combinations(modalities, size)):
            folder = RunFolder(os.path.join(workdir, name))
            test = read_predictions(folder.file("predictions", "test.csv"))
            runs[name] = EndedRun(folder.read_results(), test)
    report = compare_subsets(modalities, runs, task)
    seconds = sum(run.results["timing"]["train_seconds"] for run in runs.values())
    report["timing"] = {"train_seconds": round(seconds, 3)}
    path = os.path.join(workdir, RESULTS)
    write_if_new(path, json_text(report))
    return read_json(path)


def compare_subsets(
    modalities: Sequence[str], runs: Mapping[str, EndedRun], task: Task
) -> dict[str, Any]:
    """Pairs every subset of modalities with all of them, on the samples of the test split.

    Args:
        runs: results and test predictions by the names of the folders, all modalities first.

    Returns:
        The content of ablation.json. "chosen" is the subset that is best on validation. Differences
        are the metric of all modalities less that of the subset, each the mean over the random
        seeds that both have.
    """
    (name_of_all, of_all), *others = runs.items()
    metric = of_all.results["selection"]
    pairs = {name: _pair(of_all, run, task, metric) for name, run in others}
    adjusted = holm([pair["p"] for pair in pairs.values()])
    sign = 1 if task.reported[metric].larger_is_better else -1
    for pair, p_holm in zip(pairs.values(), adjusted, strict=True):
        pair["p_holm"] = p_holm
        gain = sign * pair["difference"]
        pair["verdict"] = "noise" if not p_holm <= LEVEL else "better" if gain > 0 else "worse"
    group_of, unit = groups_of(of_all.test.ids)
    # Of equal ones the first, which has most modalities.
    valid = {name: run.results["valid"][metric]["mean"] for name, run in runs.items()}
    known = [name for name, mean in valid.items() if mean is not None]
    return {
        "metric": metric,
        "chosen": max(known, key=lambda name: sign * valid[name], default=None),
        "model": of_all.results["model"]["name"],
        "modalities": list(modalities),
        "samples": len(of_all.test.ids),
        "unit": unit,
        "groups": int(group_of.max()) + 1,
        "subsets": [
            {
                "modalities": name.split("+"),
                "folder": name,
                **{key: run.results[key] for key in ("seeds", "best_epoch", "valid", "test")},
                "parameters": run.results["model"]["parameters"],
                "all_against_it": pairs.get(name),
            }
            for name, run in runs.items()
        ],
        "modality": {
            m: pairs["+".join(other for other in modalities if other != m)] for m in modalities
        },
        "floors": of_all.results["floors"],
        "failed": [
            {"modalities": name, **failed}
            for name, run in runs.items()
            for failed in run.results["failed"]
        ],
    }


def _pair(of_all: EndedRun, run: EndedRun, task: Task, metric: str) -> dict[str, Any]:
    """Compares a run with that of all modalities, on the random seeds that both have."""
    shared = [seed for seed in of_all.results["seeds"] if seed in run.results["seeds"]]
    if not shared:
        raise UserError("Runs of an ablation have no random seed in common whose numbers stayed.")
    first, second = (
        ended.test.scores[[ended.results["seeds"].index(seed) for seed in shared]]
        for ended in (of_all, run)
    )
    labels, ids = of_all.test.labels, of_all.test.ids
    if not np.array_equal(ids, run.test.ids) or not np.array_equal(labels, run.test.labels):
        raise UserError("Runs of an ablation were tested on different samples: train them anew.")
    pair, of_metric = Pair.of(first, second, labels, ids, task), {metric: task.reported[metric]}
    test = paired_tests(pair, of_metric)[metric]
    interval = difference_intervals(pair, of_metric, pair.group_of)[metric]
    return {"difference": test.difference, "ci95": list(interval), "p": test.p}
