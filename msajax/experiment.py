"""What the command line does, as functions: train, evaluate, predict, inspect, convert."""

import dataclasses
import logging
import os
import tempfile
from typing import Any

import jax
import numpy as np

from msajax.checks import is_url
from msajax.config import (
    SYNTHETIC,
    Config,
    DataConfig,
    MeshConfig,
    flatten,
    from_config_dict,
    idle_settings,
)
from msajax.data import inspection, predictions
from msajax.data import prepare as preparing
from msajax.data.corpus import Corpus, Split
from msajax.data.cross_validation import require_one_fold, without_folds
from msajax.data.formats import mapped, native, open_corpus
from msajax.data.glove import read_glove
from msajax.data.labels import as_targets
from msajax.data.lost import count_without_any
from msajax.data.repairs import say_lost, say_repairs
from msajax.data.steps import describe_groups, find_groups
from msajax.errors import UserError, writing
from msajax.evaluation import protocol
from msajax.inference.bundle import Bundle, load_bundle, save_bundle
from msajax.inference.predict import predict_corpus
from msajax.inference.scoring import make_predict
from msajax.model_config import unusual_settings
from msajax.models import build_model
from msajax.models.cost import cost_report
from msajax.runs.folder import RunFolder, write_json
from msajax.runs.lock import Lock
from msajax.runs.remote.mirror import Mirror, bundle_folder
from msajax.runtime import devices, processes, profiler
from msajax.runtime.signals import StopRequest
from msajax.spec import CorpusSpec
from msajax.tasks import Task, make_task
from msajax.training.initial import (
    Initial,
    from_bundle,
    from_labels,
    from_words,
    parameter_shapes,
)
from msajax.training.loop import run_seeds, train_seeds
from msajax.training.step import make_loss

logger = logging.getLogger(__name__)


def train(
    config: Config,
    workdir: str,
    stop_after_epochs: int | None = None,
    stop: StopRequest | None = None,
    profile: str | None = None,
) -> dict[str, Any] | None:
    """Trains, selects on validation, then opens the test split once; continues where it stopped.

    Args:
        config: the experiment.
        workdir: the run's folder, also in a bucket (gs://…); made if needed, continued if it holds
            this run, refused if it holds another.
        stop_after_epochs: save and return after so many more epochs.
        stop: asks to save and to return before the next step.
        profile: folder for a trace of some steps.

    Returns:
        The content of results.json, or None if the run has paused.

    Raises:
        UserError: for whatever the user can set right, before anything is written.
        NonFiniteError: if no seed's numbers are finite any more.
    """
    if not isinstance(config, Config):
        raise UserError(f"The experiment is a {type(config).__name__}: it must be a Config.")
    config = from_config_dict(config.to_dict())  # a Config made in Python was not checked for types
    require_one_fold(config.data)
    devices.configure_jax(config.train)
    devices.require_devices()
    # A run in a bucket works in a folder on this machine, which its mirror keeps like the bucket.
    with processes.losses_noticed(), Mirror(workdir, stop) as mirror:
        corpus, preparation = processes.together(lambda: _open(config))
        own = {"data.path", "train.compile_cache"}  # of each machine
        settings = {key: value for key, value in flatten(config).items() if key not in own}
        settings |= {"the corpus digest": corpus.digest, "--stop_after_epochs": stop_after_epochs}
        processes.require_same(settings)
        folder = RunFolder(mirror.path, mirror.saved)
        folder.claim(config, corpus.digest, profile)  # before work goes into what is another run's
        if folder.has_ended(config.train.epochs):
            folder.move_corpus(corpus.summary())
            mirror.replace("run.json")
            logger.info("This run has ended; these are its stored results.")
            return processes.of_first(folder.read_results)
        initial, origin = processes.together(lambda: _initial(config, preparation))
        splits = processes.together(lambda: _prepare(config, corpus, preparation))
        if processes.largest(stop is not None and stop.requested)[0]:
            return None
        if profile:
            processes.of_first(lambda: profiler.make_folder(profile))
        mirror.take()
        folder.make()
        with Lock(folder.path):
            folder.claim(config, corpus.digest, profile)  # another run may have begun since
            return _train_in(
                folder,
                config,
                corpus,
                preparation,
                splits,
                initial,
                origin,
                stop_after_epochs,
                stop,
                profile,
            )


def _open(config: Config) -> tuple[Corpus, preparing.Preparation]:
    """The corpus and what is fitted on it; refuses what cannot be before anything is written."""
    _require_glove(config.data.glove_path)
    corpus = open_corpus(config.data.path, config.data)
    return corpus, check(config, corpus)


def check(config: Config, corpus: Corpus) -> preparing.Preparation:
    """What is fitted on a corpus; raises `UserError` unless a run can train on it and measure."""
    _require_targets(corpus, config, "train", "valid", "test")
    corpus.verify()
    preparation = preparing.fit(corpus, config.data, config.model)
    build_model(config.model, preparation.spec)
    make_loss(config.train, preparation.spec.label_kind)
    mesh, train = config.mesh, config.train
    devices.make_layout(mesh, train.seed_axis, train.seeds, config.model.model_dim)
    return preparation


def _prepare(
    config: Config, corpus: Corpus, preparation: preparing.Preparation
) -> tuple[Split, Split, dict[str, Any]]:
    """The prepared splits for training and validation, and what was repaired in them.

    Raises `UserError` for any split that cannot be prepared, test included.
    """
    budget = config.data.device_memory_budget
    protocol.check_test(corpus, preparation)
    train_split, train_repairs = preparing.prepare(corpus.split("train"), preparation, budget)
    valid_split, valid_repairs = preparing.prepare(corpus.split("valid"), preparation, budget)
    for name, made, split in (
        ("train", train_repairs, train_split),
        ("valid", valid_repairs, valid_split),
    ):
        say_repairs(name, made, preparation.clip)
        say_lost(name, made, count_without_any(split.masks), len(split))
    for warning in corpus.describe_shared_ids():
        logger.warning("%s", warning)
    if preparation.spec.label_kind == "next_token":
        _require_next_tokens(corpus.path, train=train_split, valid=valid_split)
    repairs = {"train": train_repairs, "valid": valid_repairs}
    if corpus.repairs:
        repairs["corpus"] = corpus.repairs
    return train_split, valid_split, repairs


def _train_in(
    folder: RunFolder,
    config: Config,
    corpus: Corpus,
    preparation: preparing.Preparation,
    splits: tuple[Split, Split, dict[str, Any]],
    initial: Initial,
    origin: dict[str, Any],
    stop_after_epochs: int | None,
    stop: StopRequest | None,
    profile: str | None,
) -> dict[str, Any] | None:
    """Trains in a folder that is this run's own, and measures."""
    train_split, valid_split, repairs = splits
    _say_modalities(corpus, preparation.spec)
    _say_what_is_idle(corpus, config, bool(preparation.spec.vocabularies))
    _say_what_is_aligned(corpus, config, preparation.spec.modalities)
    for phrase in unusual_settings(config.model):
        logger.info("Outside the range that was studied: %s.", phrase)
    budget = config.data.device_memory_budget
    initial = from_labels(preparation.spec, train_split.labels) | initial
    folder.describe(config, corpus.summary(), repairs, origin)

    trained = train_seeds(
        config,
        preparation.spec,
        train_split,
        valid_split,
        folder,
        stop_after_epochs,
        initial,
        stop,
        profile,
    )
    if not trained.finished:
        return None
    # A seed that has failed is named in the results, and counts nowhere.
    seeds, failed = run_seeds(config), [failure["seed"] for failure in trained.failed]
    kept = [k for k, seed in enumerate(seeds) if seed not in failed]
    bundle = Bundle(
        config=config,
        preparation=preparation,
        seeds=[seeds[k] for k in kept],
        best_epoch=[trained.best_epoch[k] for k in kept],
        params=jax.tree.map(lambda x: x[kept], trained.layout.get(trained.params)),
        corpus_digest=corpus.digest,
    )
    folder.begin_results()
    if processes.is_first():
        save_bundle(folder.bundle, bundle)

    scores, weights, splits = {}, {}, {}
    for name in ("valid", "test"):
        splits[name], scores[name], weights[name], repairs[name] = protocol.score_split(
            corpus,
            name,
            preparation,
            budget,
            trained.predict,
            trained.params,
            trained.layout,
            kept,
        )
        if processes.is_first():
            os.makedirs(folder.file("predictions"), exist_ok=True)
            predictions.write_predictions(
                folder.file("predictions", f"{name}.csv"),
                [splits[name]],
                [scores[name]],
                [weights[name]],
                bundle.seeds,
                preparation.spec,
            )
    say_repairs("test", repairs["test"], preparation.clip)
    folder.describe(config, corpus.summary(), repairs, origin)
    spec = preparation.spec
    task = make_task(spec.label_kind, spec.label_names, train_split.labels)
    if not processes.is_first():
        return processes.of_first(folder.read_results)
    seconds = {line["epoch"]: line["seconds"] for line in folder.read_metrics()}
    results = {
        "model": {"name": config.model.name, "parameters": bundle.parameters},
        "corpus": corpus.summary() | {"modalities": preparation.spec.modalities},
        "seeds": bundle.seeds,
        "epochs": config.train.epochs,
        "best_epoch": bundle.best_epoch,
        "failed": trained.failed,
        **protocol.report(scores, splits, train_split.labels, task),
        "timing": {"epochs": len(seconds), "train_seconds": round(sum(seconds.values()), 3)},
    }
    write_json(folder.file("results.json"), results)
    return processes.of_first(folder.read_results)


def _initial(
    config: Config, preparation: preparing.Preparation
) -> tuple[Initial, dict[str, Any]]:
    """Parameters that begin as they are in other files, and a report of them for run.json."""
    initial: Initial = {}
    origin: dict[str, Any] = {}
    reads_words = bool(preparation.words) and "text" in preparation.spec.modalities
    has_vectors = bool(config.data.glove_path) and reads_words
    if not (has_vectors or config.model.init_from):
        return initial, origin
    shapes = parameter_shapes(config.model, preparation)
    if has_vectors:
        vectors = read_glove(config.data.glove_path, preparation.words)
        initial, origin["words"] = from_words(preparation.words, shapes, vectors)
        logger.info("%s: %s.", config.data.glove_path, origin["words"])
    if config.model.init_from:
        source = load(config.model.init_from)
        loaded, origin["bundle"] = from_bundle(
            preparation, shapes, source.preparation, source.params, config.train.seeds
        )
        initial |= loaded
        modules = origin["bundle"]["modules"]
        counted = ", ".join(f"{m} {n} of {of}" for m, (n, of) in modules.items())
        logger.info("Parameters from %s: %s.", config.model.init_from, counted)
    return initial, origin


def _require_glove(path: str) -> None:
    """Raises `UserError` for word vectors that are named and not there."""
    if path and not os.path.isfile(path):
        raise UserError(f"data.glove_path: there is no file at {path}.")


def _say_what_is_idle(corpus: Corpus, config: Config, reads_tokens: bool) -> None:
    reads_vectors = corpus.has_vectors or config.data.text == "words"
    for phrase in idle_settings(config, reads_tokens=reads_tokens, reads_vectors=reads_vectors):
        logger.warning("Nothing reads %s.", phrase)


def _say_modalities(corpus: Corpus, spec: CorpusSpec) -> None:
    left = [m for m in corpus.modalities if m not in spec.modalities]
    logger.info(
        "The model reads %s%s.",
        spec.describe(),
        f"; of the corpus it leaves out {', '.join(left)}" if left else "",
    )


def _say_what_is_aligned(corpus: Corpus, config: Config, modalities: tuple[str, ...]) -> None:
    if len(modalities) > 1:
        found = find_groups(corpus, modalities, config.data)
        logger.info("Aligned modalities: %s.", describe_groups(*found))


def _require_targets(corpus: Corpus, config: Config, *splits: str) -> None:
    """Raises `UserError` unless the splits are there with what the model is to predict."""
    if config.model.name == "next_token":  # predicts its own input
        corpus.require_splits(*splits)
    else:
        corpus.require_labels(*splits)


def _require_next_tokens(path: str, **splits: Split) -> None:
    """Raises `UserError` unless there is a token to predict in each prepared split."""
    for name, split in splits.items():
        if (split.labels < 0).all():
            raise UserError(
                f"{path}: no sequence of split {name!r} has two steps in a row: there is no next "
                "token to predict."
            )


def evaluate_run(workdir: str, split_name: str) -> dict[str, Any]:
    """Measures a finished run anew, from its bundle and its corpus.

    Returns:
        Metrics over seeds with intervals, the ensemble's, and for valid and test the largest
        difference from results.json.

    Raises:
        UserError: if the run has not ended, or its corpus is gone or another one.
    """
    if split_name == "all":
        raise UserError("--mode=evaluate takes one split: train, valid or test.")
    devices.require_devices()
    with Mirror(workdir) as mirror:
        report = _evaluate_in(RunFolder(mirror.path), split_name)
    return {"input": workdir if is_url(workdir) else os.path.abspath(workdir), **report}


def _evaluate_in(folder: RunFolder, split_name: str) -> dict[str, Any]:
    """Measures the finished run of a folder."""
    if not os.path.exists(folder.file("results.json")):
        raise UserError(f"{folder.path} holds no run that has ended: it has no results.json.")
    path = folder.corpus_path()
    folder.require_numerics()
    results, bundle = folder.read_results(), load(folder.bundle)
    if path != SYNTHETIC and not os.path.exists(path):
        raise UserError(
            f"The corpus of this run is no longer at {path}: run its train command with the new "
            "--config.data.path, which only notes where it is."
        )
    corpus = open_corpus(path, bundle.config.data)
    if corpus.digest != bundle.corpus_digest:
        raise UserError(f"{path} is not the corpus that this run was trained on: it has changed.")
    corpus.verify()
    _require_targets(corpus, bundle.config, "train", split_name)
    devices.configure_jax(bundle.config.train)
    model = build_model(bundle.config.model, bundle.preparation.spec)
    layout = devices.make_layout(MeshConfig(), "auto", len(bundle.seeds))
    split, scores, _, _ = protocol.score_split(
        corpus,
        split_name,
        bundle.preparation,
        bundle.config.data.device_memory_budget,
        make_predict(model, layout),
        layout.put_state(bundle.params),
        layout,
    )
    spec, train_labels = bundle.preparation.spec, None
    if spec.label_kind != "next_token":
        train_labels = as_targets(corpus.split("train").labels, spec, bundle.preparation.classes)
    task = make_task(spec.label_kind, spec.label_names, train_labels)
    report = _report(scores, split.labels, task)
    report = {"split": split_name, **report}
    if split_name in ("valid", "test"):
        stored = results[split_name]
        try:
            differences = [
                abs(new - old)
                for name in task.reported
                for new, old in zip(
                    report["metrics"][name]["seeds"], stored[name]["seeds"], strict=True
                )
                if old is not None
            ]
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"{folder.file('results.json')} is not of the bundle beside it. Delete it: the "
                "run's train command then writes it anew."
            ) from error
        report["largest_difference"] = max(differences, default=0.0)
    return report


def evaluate_predictions(path: str) -> dict[str, Any]:
    """Measures a CSV of predictions with labels.

    Raises:
        UserError: if the file cannot be read, or lacks a label or a score.
    """
    read = predictions.read_predictions(path)
    task = make_task(read.kind, read.names, read.labels)
    return {"input": path, **_report(read.scores, read.labels, task)}


def _report(scores: np.ndarray, labels: np.ndarray, task: Task) -> dict[str, Any]:
    return {
        "samples": len(labels),
        "metrics": protocol.summarize_with_intervals(scores, labels, task),
        "ensemble": task.compute(scores.mean(axis=0), labels),
    }


def predict(bundle: str, corpus: str, output: str, split: str = "all", **overrides: Any) -> int:
    """Scores a corpus file with a bundle into a CSV; returns the number of rows.

    `overrides` are settings of `data` in place of the bundle's, as `Bundle.with_data` takes them.

    Raises:
        UserError: if the bundle, the corpus or the output file is not usable.
    """
    refuse_inside(output, corpus, "corpus")
    refuse_inside(output, bundle, "bundle")
    predictions.require_replaceable(output)
    _require_glove(overrides.get("glove_path", ""))
    loaded = load(bundle)
    data = without_folds(loaded.config.data)
    data = dataclasses.replace(data, format="auto", **overrides)
    opened = open_corpus(corpus, data)
    if split != "all":
        opened.require_splits(split)
    return predict_corpus(loaded, opened, split, output, **overrides)


def convert(path: str, data: DataConfig, output: str) -> None:
    """Writes any corpus as a native archive (`output` ends in .npz) or as a mapped folder.

    Raises:
        UserError: if the corpus cannot be read, or `output` is there or cannot be written.
    """
    output = output.rstrip(os.sep)
    if os.path.lexists(output):
        raise UserError(f"--output={output} is there already: choose another name.")
    refuse_inside(output, path, "corpus")
    corpus = _open_one(path, data)
    corpus.verify()
    _say_what_is_idle(corpus, Config(data=data), False)
    # A name of its own: whatever has a fixed one may be somebody's, or the corpus itself.
    parent = os.path.dirname(output) or "."
    with writing(output), tempfile.TemporaryDirectory(prefix=".msajax-", dir=parent) as folder:
        temporary = os.path.join(folder, "corpus")
        if output.endswith(".npz"):
            native.save_native(temporary, corpus)
        else:
            mapped.save_mapped(temporary, corpus)
        os.rename(temporary, output)


def refuse_inside(output: str, source: str, what: str) -> None:
    """Raises `UserError` for an output that would replace, or lie among, what is read."""
    if os.path.isfile(source) and os.path.exists(output) and os.path.samefile(output, source):
        raise UserError(f"--output={output} is the {what} itself: choose another file.")
    inside = os.path.realpath(source)
    if os.path.commonpath([os.path.realpath(output), inside]) == inside:
        raise UserError(f"--output={output} lies inside the {what} {source}: choose another place.")


def inspect(path: str, data: DataConfig) -> dict[str, Any]:
    """Describes a corpus; strict-JSON-ready.

    Raises:
        UserError: if it cannot be used.
    """
    corpus = _open_one(path, data)
    corpus.verify()
    _say_what_is_idle(corpus, Config(data=data), False)
    return inspection.inspect_corpus(corpus, data)


def inspect_model(config: Config) -> dict[str, Any]:
    """Describes what a configuration's model costs on its corpus; strict-JSON-ready.

    Raises:
        UserError: if the corpus cannot be used.
    """
    devices.require_devices()
    corpus = _open_one(config.data.path, config.data)
    spec = preparing.fit(corpus, config.data, config.model).spec
    return cost_report(build_model(config.model, spec), spec)


def _open_one(path: str, data: DataConfig) -> Corpus:
    """A corpus with the splits of a fold, or, where none is chosen, with its own."""
    return open_corpus(path, data if data.fold >= 0 else without_folds(data))


def load(path: str | os.PathLike) -> Bundle:
    """Loads a bundle, also from a bucket (gs://…).

    Raises:
        UserError: if it is missing or damaged.
    """
    with bundle_folder(os.path.expanduser(path)) as folder:
        return load_bundle(folder)
