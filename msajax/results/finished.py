"""Opens runs that have ended: their results, their model and their corpus, which fit each other."""

from typing import Any, NamedTuple

from msajax.corpus.corpus import Corpus
from msajax.corpus.demands import require_targets
from msajax.corpus.formats import open_corpus
from msajax.corpus.labels import as_targets
from msajax.errors import UserError
from msajax.inference.bundle import Bundle, load
from msajax.results import measure
from msajax.runs.claim import corpus_path, read_run, require_corpus, require_ended
from msajax.runs.folder import RunFolder
from msajax.tasks import TASKS, Task, make_task


class Finished(NamedTuple):
    """Holds a run that has ended: its folder, the content of results.json, its model and corpus."""

    folder: RunFolder
    results: dict[str, Any]
    bundle: Bundle
    corpus: Corpus
    task: Task

    def score(self, split_name: str) -> measure.Scored:
        """Prepares and scores a split with the parameters of every random seed."""
        budget = self.bundle.config.data.device_memory_budget
        preparation, scorer = self.bundle.preparation, self.bundle.scorer
        return measure.score_split(self.corpus, split_name, preparation, budget, scorer)


def open_finished(folder: RunFolder, *split_names: str) -> Finished:
    """Opens a run that has ended, to measure it on some splits.

    Raises:
        UserError: if the run has not ended, its numbers are those of another version, its corpus is
            gone or another one, or a split has no labels.
    """
    require_ended(folder.path)
    path = corpus_path(folder.path)
    read_run(folder.path)  # refuses a run of other numerics
    require_corpus(folder.path)
    results, bundle = folder.read_results(), load(folder.bundle)
    corpus = open_corpus(path, bundle.config.reading)
    if corpus.digest != bundle.corpus_digest:
        raise UserError(f"{path} is not the corpus that this run was trained on: it has changed.")
    corpus.verify()
    require_targets(corpus, bundle.config, "train", *split_names)
    spec, train_labels = bundle.preparation.spec, None
    if TASKS[spec.label_kind].reads_labels:
        train_labels = as_targets(corpus.split("train").labels, spec, bundle.preparation.classes)
    task = make_task(spec.label_kind, spec.label_names, train_labels)
    return Finished(folder, results, bundle, corpus, task)


def largest_difference(run: Finished, measured: dict[str, Any], split_name: str) -> float:
    """Returns the largest difference of a seed's metric from that of results.json.

    Args:
        measured: metrics over seeds, as `measure.summarize` returns them.

    Raises:
        UserError: if results.json is of other seeds or metrics.
    """
    try:
        differences = [
            abs(new - old)
            for name in run.task.reported
            for new, old in zip(
                measured[name]["seeds"], run.results[split_name][name]["seeds"], strict=True
            )
            if old is not None
        ]
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{run.folder.file('results.json')} is not of the bundle beside it. Delete it: the "
            "run's train command then writes it anew."
        ) from error
    return max(differences, default=0.0)
