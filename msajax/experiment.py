"""Makes a run, top to bottom: opens a corpus, trains, chooses on validation, measures on test."""

import logging
import os
from typing import Any

import jax

from msajax.config import Config, checked, flatten
from msajax.config.model import unusual_settings
from msajax.data import predictions
from msajax.data import prepare as preparing
from msajax.data.corpus import Corpus, Split
from msajax.data.cross_validation import require_one_fold
from msajax.data.demands import require_glove, require_targets, say_what_is_idle
from msajax.data.formats import open_corpus
from msajax.data.glove import read_glove
from msajax.data.repairs import say_prepared, say_repairs
from msajax.data.steps import describe_groups, find_groups
from msajax.evaluation import artefacts, protocol
from msajax.files import write_json
from msajax.inference.bundle import Bundle
from msajax.inference.bundle_files import load, save_bundle
from msajax.inference.scoring import Scorer
from msajax.models import declared, parameter_shapes
from msajax.runs.folder import RunFolder
from msajax.runs.lock import Lock
from msajax.runs.remote.mirror import Mirror
from msajax.runtime import cpu_devices, devices, processes, profiler
from msajax.runtime.signals import StopRequest
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS, make_task
from msajax.training.initial import (
    Initial,
    from_bundle,
    from_labels,
    from_model,
    from_words,
)
from msajax.training.loop import Trained, train_seeds
from msajax.training.run import AfterEpoch, Run, check_model, layout_of

logger = logging.getLogger(__name__)


def train(
    config: Config,
    workdir: str,
    stop_after_epochs: int | None = None,
    stop: StopRequest | None = None,
    profile: str | None = None,
    after_epoch: AfterEpoch | None = None,
) -> dict[str, Any] | None:
    """Trains, selects on validation, then opens the test split once; continues where it stopped.

    Args:
        config: the experiment.
        workdir: the run's folder, also in a bucket (gs://…); made if needed, continued if it holds
            this run, refused if it holds another.
        stop_after_epochs: save and return after so many more epochs.
        stop: asks to save and to return before the next step.
        profile: folder for a trace of some steps.
        after_epoch: is called with an epoch's lines of metrics.jsonl when they are written, in the
            first process.

    Returns:
        The content of results.json, or None if the run has paused.

    Raises:
        UserError: for whatever the user can set right, before anything is written.
        NonFiniteError: if no seed's numbers are finite any more.
    """
    config = checked(config)
    require_one_fold(config.data)
    devices.configure_jax(config.train)
    # A run in a bucket works in a folder on this machine, which its mirror copies to the bucket.
    with processes.losses_noticed(), Mirror(workdir, stop) as mirror:
        cpu_devices.choose(config, RunFolder(mirror.path).cpu_devices())
        devices.require_devices()
        corpus, preparation = processes.together(lambda: _open(config))
        own = {"data.path", "train.compile_cache"}  # paths, which differ between machines
        settings = {key: value for key, value in flatten(config).items() if key not in own}
        settings |= {"the corpus digest": corpus.digest, "--stop_after_epochs": stop_after_epochs}
        processes.require_same(settings)
        folder = RunFolder(mirror.path, mirror.saved)
        folder.claim(config, corpus.digest, profile)  # early: another run's is refused at once
        if folder.has_ended(config.train.epochs):
            folder.move_corpus(corpus.summary())
            mirror.replace("run.json")
            if artefacts.missing(folder):
                with Lock(folder.path):
                    for name in artefacts.make_missing(folder):
                        mirror.replace(name)
            logger.info("This run has ended; these are its stored results.")
            return processes.of_first(folder.read_results)
        initial, origin = processes.together(lambda: _initial(config, preparation))
        train, valid, repairs = processes.together(lambda: _prepare(config, corpus, preparation))
        if processes.largest(stop is not None and stop.requested)[0]:
            return None
        if profile:
            processes.of_first(lambda: profiler.make_folder(profile))
        mirror.take()
        folder.make()
        with Lock(folder.path):
            folder.claim(config, corpus.digest, profile)  # another run may have begun since
            return _train_in(
                Run(
                    config=config,
                    corpus=corpus,
                    preparation=preparation,
                    train=train,
                    valid=valid,
                    folder=folder,
                    repairs=repairs,
                    initial=from_labels(config.model, preparation.spec, train.labels) | initial,
                    origin=origin,
                    stop_after_epochs=stop_after_epochs,
                    stop=stop or StopRequest(),
                    profile=profile,
                    after_epoch=after_epoch,
                )
            )


def _open(config: Config) -> tuple[Corpus, preparing.Preparation]:
    """Opens the corpus and fits the preparation; refuses what cannot be trained on."""
    require_glove(config.data.glove_path)
    corpus = open_corpus(config.data.path, config.data)
    return corpus, check(config, corpus)


def check(config: Config, corpus: Corpus) -> preparing.Preparation:
    """Fits the preparation; raises `UserError` unless a run can train on the corpus and measure."""
    require_targets(corpus, config, "train", "valid", "test")
    corpus.verify()
    preparation = preparing.fit(corpus, config.data, config.model)
    check_model(config, preparation.spec)
    return preparation


def _prepare(
    config: Config, corpus: Corpus, preparation: preparing.Preparation
) -> tuple[Split, Split, dict[str, Any]]:
    """Prepares the splits for training and validation; returns what was repaired in them, too.

    Raises `UserError` for any split that cannot be prepared, test included.
    """
    budget = config.data.device_memory_budget
    protocol.check_test(corpus, preparation)
    # Virtual CPU devices share a memory, in which each has the training split.
    of_each = budget // layout_of(config).copies
    train_split, train_repairs = preparing.prepare(corpus.split("train"), preparation, of_each)
    valid_split, valid_repairs = preparing.prepare(corpus.split("valid"), preparation, budget)
    say_prepared("train", train_split, train_repairs, preparation.clip)
    say_prepared("valid", valid_split, valid_repairs, preparation.clip)
    for warning in corpus.describe_shared_ids():
        logger.warning("%s", warning)
    spec = preparation.spec
    for name, split in (("train", train_split), ("valid", valid_split)):
        TASKS[spec.label_kind].require_targets(split.labels, f"{corpus.path}, split {name!r}")
    make_task(spec.label_kind, spec.label_names, train_split.labels).selection(
        config.train.select_by
    )
    repairs = {"train": train_repairs, "valid": valid_repairs}
    if corpus.repairs:
        repairs["corpus"] = corpus.repairs
    return train_split, valid_split, repairs


def _train_in(run: Run) -> dict[str, Any] | None:
    """Trains in a folder that this run has locked, and measures."""
    _say_what_is_read(run)
    run.describe(run.repairs)
    trained = train_seeds(run)
    if not trained.finished:
        return None
    # A seed that has failed is named in the results, and counts nowhere.
    failed = [failure["seed"] for failure in trained.failed]
    kept = [k for k, seed in enumerate(run.seeds) if seed not in failed]
    variables = jax.tree.map(lambda x: x[kept], run.layout.get(trained.variables))
    bundle = Bundle(
        config=run.config,
        preparation=run.preparation,
        seeds=[run.seeds[k] for k in kept],
        best_epoch=[trained.best_epoch[k] for k in kept],
        params=variables.pop("params"),
        corpus_digest=run.corpus.digest,
        collections=variables,
    )
    run.folder.begin_results()
    if processes.is_first():
        save_bundle(run.folder.bundle, bundle)
    return _measure(run, trained, bundle, kept)


def _measure(run: Run, trained: Trained, bundle: Bundle, kept: list[int]) -> dict[str, Any]:
    """Opens the test split, and writes predictions and results; only the `kept` seeds count."""
    folder, corpus = run.folder, run.corpus
    scores, splits, repairs = {}, {}, dict(run.repairs)
    variables, for_rows = run.layout.put_for_rows(trained.variables), run.layout.for_rows
    scorer = Scorer(trained.predict, variables, run.spec, for_rows.put_rows, kept)
    budget = run.config.data.device_memory_budget
    for name in ("valid", "test"):
        splits[name], scores[name], weights, repairs[name] = protocol.score_split(
            corpus, name, run.preparation, budget, scorer
        )
        if processes.is_first():
            os.makedirs(folder.file("predictions"), exist_ok=True)
            path = folder.file("predictions", f"{name}.csv")
            predictions.write_predictions(
                path, [splits[name]], [scores[name]], [weights], bundle.seeds, run.spec
            )
    say_repairs("test", repairs["test"], run.preparation.clip)
    run.describe(repairs)
    measured = protocol.report(scores, splits, run.train.labels, run.task)
    processes.of_first(lambda: _write_results(run, trained, bundle, measured))
    artefacts.make_missing(folder)
    return processes.of_first(folder.read_results)


def _write_results(
    run: Run, trained: Trained, bundle: Bundle, measured: dict[str, Any]
) -> None:
    """Writes results.json, with which the run has ended."""
    seconds = {line["epoch"]: line["seconds"] for line in run.folder.read_metrics()}
    results = {
        "model": {"name": run.config.model.name, "parameters": bundle.parameters},
        "corpus": run.corpus.summary() | {"modalities": run.spec.modalities},
        "seeds": bundle.seeds,
        "epochs": run.config.train.epochs,
        "selection": run.selection,
        "best_epoch": bundle.best_epoch,
        "failed": trained.failed,
        **measured,
        "timing": {"epochs": len(seconds), "train_seconds": round(sum(seconds.values()), 3)},
    }
    write_json(run.folder.file("results.json"), results)


def _initial(
    config: Config, preparation: preparing.Preparation
) -> tuple[Initial, dict[str, Any]]:
    """Reads initial parameters from other files; returns a report of them for run.json, too."""
    initial: Initial = {}
    origin: dict[str, Any] = {}
    model = declared(config.model)
    reads_words = bool(preparation.words) and "text" in preparation.spec.modalities
    has_vectors = bool(config.data.glove_path) and reads_words
    if not (model.initial or has_vectors or config.model.init_from):
        return initial, origin
    shapes = parameter_shapes(config.model, preparation.spec)
    if model.initial:
        initial = from_model(model, config.model, preparation.spec, shapes)
        origin["model"] = sorted(initial)
    if has_vectors:
        vectors = read_glove(config.data.glove_path, preparation.words)
        of_words, origin["words"] = from_words(preparation.words, shapes, vectors)
        initial |= of_words
        logger.info("%s: %s.", config.data.glove_path, origin["words"])
    if config.model.init_from:
        source = load(config.model.init_from)
        loaded, origin["bundle"] = from_bundle(
            model, preparation, shapes, source.preparation, source.params, config.train.seeds
        )
        initial |= loaded
        modules = origin["bundle"]["modules"]
        counted = ", ".join(f"{m} {n} of {of}" for m, (n, of) in modules.items())
        logger.info("Parameters from %s: %s.", config.model.init_from, counted)
    return initial, origin


def _say_what_is_read(run: Run) -> None:
    _say_modalities(run.corpus, run.spec)
    say_what_is_idle(run.corpus, run.config, bool(run.spec.vocabularies))
    _say_what_is_aligned(run.corpus, run.config, run.spec.modalities)
    for phrase in unusual_settings(run.config.model):
        logger.info("Outside the range that was studied: %s.", phrase)


def _say_modalities(corpus: Corpus, spec: CorpusSpec) -> None:
    left = [m for m in corpus.modalities if m not in spec.modalities]
    logger.info(
        "The model reads %s%s.",
        spec.describe(),
        f"; of the corpus it leaves out {', '.join(left)}" if left else "",
    )


def _say_what_is_aligned(corpus: Corpus, config: Config, modalities: tuple[str, ...]) -> None:
    if len(modalities) > 1:
        found = find_groups(corpus, modalities, config.data, bool(config.model.text_encoder))
        logger.info("Aligned modalities: %s.", describe_groups(*found))
