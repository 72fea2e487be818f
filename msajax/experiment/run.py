"""Makes a run, top to bottom: opens a corpus, trains, chooses on validation, measures on test."""

import dataclasses
import logging
import os
from typing import Any

import jax
from flax.traverse_util import unflatten_dict

from msajax.checks import is_url
from msajax.config import Config, checked, flatten, outside_ranges
from msajax.corpus import predictions
from msajax.corpus.corpus import Corpus
from msajax.corpus.demands import say_unread_transcripts, say_what_is_idle
from msajax.corpus.folds import Dealt, deal_validation, require_one_fold
from msajax.corpus.steps import describe_groups, find_groups
from msajax.errors import UserError
from msajax.experiment import artefacts
from msajax.experiment.build import build, open_sources
from msajax.files import write_json
from msajax.inference.bundle import Bundle
from msajax.inference.bundle_files import save_bundle
from msajax.inference.scoring import Scorer
from msajax.metrics.calibration import FEWEST, Basis, Calibration
from msajax.preparation.repairs import say_repairs
from msajax.results import measure
from msajax.runs.folder import RunFolder
from msajax.runs.lock import Lock
from msajax.runs.mirror import Mirror
from msajax.runtime import devices, processes, profiler
from msajax.runtime.signals import StopRequest
from msajax.spec import CorpusSpec
from msajax.training.loop import Trained, train_seeds
from msajax.training.run import AfterEpoch, Run

logger = logging.getLogger(__name__)


def train(
    config: Config,
    workdir: str,
    stop_after_epochs: int | None = None,
    stop: StopRequest | None = None,
    profile: str | None = None,
    after_epoch: AfterEpoch | None = None,
    corpus: Corpus | None = None,
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
        corpus: the corpus of the experiment, if it is open already.

    Returns:
        The content of results.json, or None if the run has paused.

    Raises:
        UserError: for whatever the user can set right, before anything is written.
        NonFiniteError: if no seed's numbers are finite any more.
    """
    config = checked(config)
    require_one_fold(config.data)
    if config.train.seeds_at_once and is_url(workdir):
        raise UserError(
            "train.seeds_at_once keeps checkpoints by group, which a bucket does not take: choose "
            "a --workdir on a disk."
        )
    devices.configure_jax(config.train)
    # A run in a bucket works in a folder on this machine, which its mirror copies to the bucket.
    with processes.losses_noticed(), Mirror(workdir, stop) as mirror:
        devices.choose(config, RunFolder(mirror.path).cpu_devices())
        devices.require_devices()
        sources = processes.together(lambda: open_sources(config, corpus))
        corpus, digests = sources.corpus, sources.digests
        # Paths, which differ between machines.
        own = {"data.path", "model.text_encoder", "train.compile_cache"}
        settings = {key: value for key, value in flatten(config).items() if key not in own}
        settings |= {f"the {what}": digest for what, digest in digests.items()}
        settings["--stop_after_epochs"] = stop_after_epochs
        processes.require_same(settings)
        folder = RunFolder(mirror.path, mirror.saved)
        folder.claim(config, digests, profile)  # early: another run's is refused at once
        if folder.has_ended(config.train.epochs):
            folder.move_corpus(corpus.summary())
            mirror.replace("run.json")
            if artefacts.missing(folder, config):
                with Lock(folder.path):
                    for name in artefacts.make_missing(folder, config):
                        mirror.replace(name)
            logger.info("This run has ended; these are its stored results.")
            return processes.of_first(folder.read_results)
        processes.together(lambda: measure.check_test(corpus, sources.preparation))
        run = processes.together(lambda: build(config, sources, folder))
        if processes.largest(stop is not None and stop.requested)[0]:
            return None
        if profile:
            processes.of_first(lambda: profiler.make_folder(profile))
        mirror.take()
        folder.make()
        with Lock(folder.path):
            folder.claim(config, digests, profile)  # another run may have begun since
            return _train_in(
                dataclasses.replace(
                    run,
                    stop_after_epochs=stop_after_epochs,
                    stop=stop or StopRequest(),
                    profile=profile,
                    after_epoch=after_epoch,
                )
            )


def _train_in(run: Run) -> dict[str, Any] | None:
    """Trains in a folder that this run has locked, and measures."""
    _say_what_is_read(run)
    run.describe(run.repairs)
    processes.of_first(lambda: run.folder.keep_frozen(run.shared))
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
        shared=unflatten_dict(run.shared, sep="/"),
    )
    run.folder.begin_results()
    return _measure(run, trained, bundle, kept)


def _measure(run: Run, trained: Trained, bundle: Bundle, kept: list[int]) -> dict[str, Any]:
    """Calibrates, writes the bundle, opens the test split, writes predictions and results.

    Only the `kept` seeds count.
    """
    variables, for_rows = run.layout.put_for_rows(trained.variables), run.layout.for_rows
    scorer = Scorer(trained.predict, variables, run.spec, for_rows.put_rows, kept)
    budget = run.config.data.device_memory_budget

    def score(name: str) -> predictions.Scored:
        return measure.score_split(run.corpus, name, run.preparation, budget, scorer)

    valid = score("valid")
    share = run.config.train.calibration_share
    dealt = deal_validation(valid.split.ids, share, valid.split.where)
    bundle = dataclasses.replace(bundle, calibration=_calibrate(run, valid, dealt))
    if processes.is_first():
        save_bundle(run.folder.bundle, bundle)
    chose = valid.rows(dealt.chooses)
    _write_predictions(run, "valid", chose, bundle)
    if share:
        _write_predictions(run, "calibration", valid.rows(dealt.calibrates), bundle)
    test = score("test")
    _write_predictions(run, "test", test, bundle)
    repairs = {**run.repairs, "valid": valid.repairs, "test": test.repairs}
    say_repairs("test", repairs["test"], run.preparation.clip)
    run.describe(repairs)
    scores = {"valid": chose.scores, "test": test.scores}
    labels = {"valid": chose.split.labels, "test": test.split.labels}
    measured = measure.report(scores, labels, run.train.labels, run.task, bundle.calibration)
    processes.of_first(lambda: _write_results(run, trained, bundle, measured))
    artefacts.make_missing(run.folder, run.config)
    return processes.of_first(run.folder.read_results)


def _calibrate(run: Run, valid: predictions.Scored, dealt: Dealt) -> Calibration | None:
    """Calibrates the mean over seeds; says so if there are too few samples."""
    rows = dealt.calibrates
    optimistic = not run.config.train.calibration_share
    basis = Basis(int(rows.sum()), dealt.by, optimistic)
    found = run.task.calibrate(valid.scores[:, rows], valid.split.labels[rows], basis)
    if found is None and run.task.calibrates:
        logger.warning(
            "Scores are not calibrated: %d validation sample(s) are too few, of which %d would do.",
            basis.samples,
            FEWEST,
        )
    return found


def _write_predictions(run: Run, name: str, scored: predictions.Scored, bundle: Bundle) -> None:
    """Writes the predictions of a split, in the first process."""
    if processes.is_first():
        path = run.folder.file("predictions", f"{name}.csv")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        predictions.write_predictions(path, [scored], bundle.seeds, run.spec, bundle.calibration)


def _write_results(
    run: Run, trained: Trained, bundle: Bundle, measured: dict[str, Any]
) -> None:
    """Writes results.json, with which the run has ended."""
    group_of = {seed: k for k, group in enumerate(run.groups()) for seed in group.seeds}
    seconds = {
        (group_of[line["seed"]], line["epoch"]): line["seconds"]
        for line in run.folder.read_metrics()
    }
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


def _say_what_is_read(run: Run) -> None:
    _say_modalities(run.corpus, run.spec)
    say_what_is_idle(run.corpus, run.config, bool(run.spec.vocabularies))
    say_unread_transcripts(run.corpus, run.config)
    _say_what_is_aligned(run.corpus, run.config, run.spec.modalities)
    for phrase in outside_ranges(run.config.model):
        logger.info("Outside the range in source 002's table: %s.", phrase)


def _say_modalities(corpus: Corpus, spec: CorpusSpec) -> None:
    left = [m for m in corpus.modalities if m not in spec.modalities]
    logger.info(
        "The model reads %s%s.",
        spec.describe(),
        f"; of the corpus it leaves out {', '.join(left)}" if left else "",
    )


def _say_what_is_aligned(corpus: Corpus, config: Config, modalities: tuple[str, ...]) -> None:
    if len(modalities) > 1:
        found = find_groups(corpus, modalities, config.reading, bool(config.model.text_encoder))
        logger.info("Aligned modalities: %s.", describe_groups(*found))
