"""Makes a run, top to bottom: opens, builds, trains, chooses on validation, measures on test.

`train` is the whole of it; what it calls stands below, in its order. The steps themselves are in
`training/loop.py`.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax.traverse_util import unflatten_dict

from msajax import announce
from msajax.checks import is_url
from msajax.config import Config, checked, flatten, outside_ranges
from msajax.corpus import predictions
from msajax.corpus.corpus import Corpus
from msajax.corpus.demands import (
    require_glove,
    require_run,
    say_unread_transcripts,
    say_what_is_idle,
)
from msajax.corpus.folds import deal_validation, require_one_fold
from msajax.corpus.formats import open_corpus
from msajax.corpus.glove import read_glove
from msajax.corpus.on_demand import take_rows
from msajax.corpus.steps import describe_groups, find_groups
from msajax.encoders.folder import Folder, open_folder
from msajax.errors import UserError
from msajax.experiment import artefacts
from msajax.files import write_json
from msajax.inference.bundle import Bundle, load, save_bundle
from msajax.inference.scoring import Scorer
from msajax.metrics.calibration import FEWEST, Basis
from msajax.models.build import declared, parameter_shapes
from msajax.preparation.apply import prepare
from msajax.preparation.fit import Preparation, fit
from msajax.preparation.lost import say_prepared, say_repairs
from msajax.results import measure
from msajax.runs.folder import RunFolder
from msajax.runs.lock import Lock
from msajax.runs.mirror import Mirror
from msajax.runtime import devices, processes, profiler
from msajax.runtime.signals import StopRequest
from msajax.tasks import TASKS, make_task
from msajax.training.initial import (
    Initial,
    from_bundle,
    from_encoder,
    from_labels,
    from_model,
    from_words,
    shared_values,
)
from msajax.training.loop import Trained, train_groups
from msajax.training.run import AfterEpoch, Run, check_labels, check_model, layout_of

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
        # Devices come before anything asks JAX for one: a run that goes on has as many as it had.
        devices.choose(config, RunFolder(mirror.path).cpu_devices())
        devices.require_devices()

        # Open what the run reads; every process must have found the same.
        sources = processes.together(lambda: open_sources(config, corpus))
        corpus, digests = sources.corpus, sources.digests
        paths = {"data.path", "model.text_encoder", "model.encoders", "train.compile_cache"}
        settings = {key: value for key, value in flatten(config).items() if key not in paths}
        settings |= {f"the {what}": digest for what, digest in digests.items()}
        settings["--stop_after_epochs"] = stop_after_epochs
        processes.require_same(settings)

        # The folder is this run's, or is refused at once; one that has ended has its results.
        folder = RunFolder(mirror.path, mirror.saved)
        folder.claim(config, digests, profile)
        if folder.has_ended(config.train.epochs):
            folder.move_corpus(corpus.summary())
            mirror.replace("run.json")
            if artefacts.missing(folder, config):
                with Lock(folder.path):
                    for name in artefacts.make_missing(folder, config):
                        mirror.replace(name)
            logger.info("This run has ended; these are its stored results.")
            return processes.of_first(folder.read_results)

        # Refuse now what would be refused after the last epoch; then build, still writing nothing.
        processes.together(lambda: measure.check_test(corpus, sources.preparation))
        run = processes.together(lambda: build(config, sources, folder))
        if processes.largest(stop is not None and stop.requested)[0]:
            return None
        if profile:
            processes.of_first(lambda: profiler.make_folder(profile))

        # From here on files are written, under the lock, and by this run alone.
        mirror.take()
        folder.make()
        with Lock(folder.path):
            folder.claim(config, digests, profile)  # another run may have begun since
            run = dataclasses.replace(
                run,
                stop_after_epochs=stop_after_epochs,
                stop=stop or StopRequest(),
                profile=profile,
                after_epoch=after_epoch,
            )
            _say_what_is_read(run)
            run.describe(run.repairs)
            processes.of_first(lambda: run.folder.keep_frozen(run.shared))
            trained = train_groups(run)
            return _measure_and_write(run, trained) if trained.finished else None


def _measure_and_write(run: Run, trained: Trained) -> dict[str, Any]:
    """Writes the bundle, opens the test split once, writes predictions and results.

    A seed that has failed is named in the results, and counts nowhere.
    """
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

    # Score validation with the parameters that it chose; what is held out of it calibrates.
    for_rows, budget = run.layout.for_rows, run.config.data.device_memory_budget
    scored_with = run.layout.put_for_rows(trained.variables)
    scorer = Scorer(trained.predict, scored_with, run.spec, for_rows.put_rows, kept)
    valid = measure.score_split(run.corpus, "valid", run.preparation, budget, scorer)
    share = run.config.train.calibration_share
    dealt = deal_validation(valid.split.ids, share, valid.split.where)
    basis = Basis(int(dealt.calibrates.sum()), dealt.by, not share)
    calibration = run.task.calibrate(
        valid.scores[:, dealt.calibrates], valid.split.labels[dealt.calibrates], basis
    )
    if calibration is None and run.task.calibration:
        logger.warning(
            "Scores are not calibrated: %d validation sample(s) are too few, of which %d would do.",
            basis.samples,
            FEWEST,
        )
    bundle = dataclasses.replace(bundle, calibration=calibration)
    if processes.is_first():
        save_bundle(run.folder.bundle, bundle)
    chose = valid.rows(dealt.chooses)
    _write_predictions(run, "valid", chose, bundle)
    if share:
        _write_predictions(run, "calibration", valid.rows(dealt.calibrates), bundle)

    # Only now, when nothing is chosen any more, is the test split opened: here, and once.
    test = measure.score_split(run.corpus, "test", run.preparation, budget, scorer)
    _write_predictions(run, "test", test, bundle)
    repairs = {**run.repairs, "valid": valid.repairs, "test": test.repairs}
    say_repairs("test", test.repairs, run.preparation.clip)
    run.describe(repairs)
    scores = {"valid": chose.scores, "test": test.scores}
    labels = {"valid": chose.split.labels, "test": test.split.labels}
    measured = measure.report(scores, labels, run.train.labels, run.task, calibration)

    # results.json is last: with it the run has ended. What is made of it can be made again.
    processes.of_first(lambda: _write_results(run, trained, bundle, measured))
    artefacts.make_missing(run.folder, run.config)
    return processes.of_first(run.folder.read_results)


def _write_predictions(run: Run, name: str, scored: predictions.Scored, bundle: Bundle) -> None:
    if processes.is_first():
        path = run.folder.file("predictions", f"{name}.csv")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        predictions.write_predictions(path, [scored], bundle.seeds, run.spec, bundle.calibration)


def _write_results(run: Run, trained: Trained, bundle: Bundle, measured: dict[str, Any]) -> None:
    group_of = {seed: k for k, group in enumerate(run.groups()) for seed in group.seeds}
    seconds = {  # seeds that are trained together share the seconds of an epoch
        (group_of[line["seed"]], line["epoch"]): line["seconds"]
        for line in run.folder.read_metrics()
    }
    results = {
        "task": run.task.kind,
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
    corpus, config, spec = run.corpus, run.config, run.spec
    left = [m for m in corpus.modalities if m not in spec.modalities]
    logger.info(
        "The model reads %s%s.",
        spec.describe(),
        f"; of the corpus it leaves out {', '.join(left)}" if left else "",
    )
    say_what_is_idle(corpus, config, bool(spec.vocabularies))
    say_unread_transcripts(corpus, config)
    if len(spec.modalities) > 1:
        found = find_groups(corpus, spec.modalities, config.reading, config.model.encoder_folders)
        logger.info("Aligned modalities: %s.", describe_groups(*found))
    for phrase in outside_ranges(config.model):
        logger.info("Outside the range in source 002's table: %s.", phrase)


# --- what a run reads, and what it is built of; also for studies, which check many before one ---


class Sources(NamedTuple):
    """Holds what a run reads."""

    corpus: Corpus
    encoders: Mapping[str, Folder]
    preparation: Preparation

    @property
    def digests(self) -> dict[str, str]:
        """Returns the digests by which a run knows its corpus and its pretrained encoders again."""
        digests = {"corpus digest": self.corpus.digest}
        return digests | {f"{m} encoder digest": one.digest for m, one in self.encoders.items()}


def open_encoders(config: Config) -> dict[str, Folder]:
    """Opens the folders of pretrained encoders, by modality; their weights are not read yet."""
    return {m: open_folder(path) for m, path in config.model.encoder_folders.items()}


def open_sources(
    config: Config,
    corpus: Corpus | None = None,
    encoders: Mapping[str, Folder] | None = None,
    *,
    verify: bool = True,
) -> Sources:
    """Opens what a run reads and fits its preparation; nothing is kept of validation and test.

    Args:
        verify: whether to read all of the corpus that a mistake can hide in.

    Raises:
        UserError: for what cannot be trained on and measured.
    """
    require_glove(config.data.glove_path)
    if encoders is None:
        encoders = open_encoders(config)
    if corpus is None:
        corpus = open_corpus(config.data.path, config.reading)
    require_run(corpus, config)
    if verify:
        corpus.verify()  # after what headers alone can say: it may read all that there is
    preparation = fit(corpus, config.reading, config.model, encoders)
    check_model(config, preparation.spec)

    # Part of validation may be held out to calibrate: it must be there, and be of use.
    share, kind = config.train.calibration_share, preparation.spec.label_kind
    if share:
        if TASKS[kind].calibration is None:
            raise UserError(
                f"train.calibration_share = {share:g}: nothing of a {kind} model is calibrated: "
                "leave the share at 0."
            )
        valid = corpus.split("valid")
        dealt = deal_validation(valid.ids, share, valid.where)
        logger.info(
            "%s: %d samples choose the epochs, %d calibrate; dealt by %s%s.",
            valid.where,
            dealt.chooses.sum(),
            dealt.calibrates.sum(),
            dealt.by,
            "" if dealt.by == "video" else ", as no two ids name the same video",
        )
    return Sources(corpus, encoders, preparation)


def build(config: Config, sources: Sources, folder: RunFolder) -> Run:
    """Prepares a run's splits and first parameters; raises `UserError` for those it cannot read."""
    corpus, encoders, preparation = sources
    spec, budget = preparation.spec, config.data.device_memory_budget
    announce.now("Preparing the splits")
    initial, origin = _initial(config, preparation, encoders)
    shared: Initial = {}
    if initial:
        shared = shared_values(initial, parameter_shapes(config.model, spec), config.optim)

    # Virtual CPU devices share a memory, in which each has the training split.
    copies = layout_of(config).copies
    train_split, of_train = prepare(corpus.split("train"), preparation, budget // copies)
    valid_split, of_valid = prepare(corpus.split("valid"), preparation, budget)
    say_prepared("train", train_split, of_train, preparation.clip)
    say_prepared("valid", valid_split, of_valid, preparation.clip)
    for warning in corpus.describe_shared_ids():
        logger.warning("%s", warning)
    for name, split in (("train", train_split), ("valid", valid_split)):
        TASKS[spec.label_kind].require_targets(split.labels, f"{corpus.path}, split {name!r}")
    check_labels(config, spec, train_split.labels)
    task = make_task(spec.label_kind, spec.label_names, train_split.labels)
    task.selection(config.train.select_by)  # refuses a metric that these labels do not have
    share = config.train.calibration_share
    chooses = deal_validation(valid_split.ids, share, valid_split.where).chooses
    return Run(
        config=config,
        corpus=corpus,
        preparation=preparation,
        train=train_split,
        valid=take_rows(valid_split, chooses),
        folder=folder,
        repairs={"train": of_train, "valid": of_valid}
        | ({"corpus": corpus.repairs} if corpus.repairs else {}),
        initial=from_labels(config.model, spec, train_split.labels) | initial,
        shared=shared,
        origin=origin,
    )


def _initial(
    config: Config, preparation: Preparation, encoders: Mapping[str, Folder]
) -> tuple[Initial, dict[str, Any]]:
    """Reads parameters that do not begin at random, and what run.json says of them.

    What is named later counts: the model's own, then the encoders', word vectors, a bundle's.
    """
    initial: Initial = {}
    origin: dict[str, Any] = {}
    model = declared(config.model)
    reads_words = bool(preparation.words) and "text" in preparation.spec.modalities
    has_vectors = bool(config.data.glove_path) and reads_words
    if not (model.initial or encoders or has_vectors or config.model.init_from):
        return initial, origin
    shapes = parameter_shapes(config.model, preparation.spec)
    if model.initial:
        initial = from_model(model, config.model, preparation.spec, shapes)
        origin["model"] = sorted(initial)
    for m, encoder in encoders.items():
        initial |= from_encoder(model, m, encoder, shapes)
        origin[f"{m} encoder"] = {"path": encoder.path, "digest": encoder.digest}
    if has_vectors:
        vectors = read_glove(config.data.glove_path, preparation.words)
        of_words, origin["words"] = from_words(preparation.words, shapes, vectors)
        initial |= of_words
        logger.info("%s: %s.", config.data.glove_path, origin["words"])
    if config.model.init_from:
        source = load(config.model.init_from)
        loaded, origin["bundle"] = from_bundle(
            model, preparation, shapes, source.preparation, source.all_params, config.train.seeds
        )
        initial |= loaded
        modules = origin["bundle"]["modules"]
        counted = ", ".join(f"{m} {n} of {of}" for m, (n, of) in modules.items())
        logger.info("Parameters from %s: %s.", config.model.init_from, counted)
    return initial, origin
