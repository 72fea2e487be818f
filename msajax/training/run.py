"""A training run: everything that it is made of, built once and passed whole."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from msajax.config import Config
from msajax.data.corpus import Corpus, Split
from msajax.data.prepare import Preparation
from msajax.runs.folder import RunFolder
from msajax.runtime.signals import StopRequest
from msajax.spec import CorpusSpec
from msajax.tasks import Task, make_task
from msajax.training.initial import Initial


@dataclasses.dataclass(frozen=True)
class Run:
    """A run before its first step, and what interrupts it.

    Attributes:
        config: the experiment.
        corpus: opened.
        preparation: fitted on the training split.
        train: the prepared training split, with labels.
        valid: the prepared validation split, with labels: it decides each seed's best epoch.
        folder: where its files go.
        repairs: what was repaired in the data, by split.
        initial: parameters that do not begin at random (see `initial.py`).
        origin: where these are from, for run.json.
        stop_after_epochs: pause after so many more epochs; None does not.
        stop: asks to save and to stop before the next dispatch.
        profile: folder for a trace of some dispatches; None for none.
    """

    config: Config
    corpus: Corpus
    preparation: Preparation
    train: Split
    valid: Split
    folder: RunFolder
    repairs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    initial: Initial = dataclasses.field(default_factory=dict)
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stop_after_epochs: int | None = None
    stop: StopRequest = dataclasses.field(default_factory=StopRequest)
    profile: str | None = None

    @property
    def spec(self) -> CorpusSpec:
        """What the model needs to know of the data."""
        return self.preparation.spec

    @property
    def seeds(self) -> list[int]:
        """The random seeds."""
        first = self.config.train.first_seed
        return list(range(first, first + self.config.train.seeds))

    @property
    def task(self) -> Task:
        """Which metrics suit the labels, and which of them validation minimises."""
        return make_task(self.spec.label_kind, self.spec.label_names, self.train.labels)

    def describe(self, repairs: Mapping[str, Any]) -> None:
        """Writes config.json and run.json, with what was repaired in the data so far."""
        self.folder.describe(self.config, self.corpus.summary(), repairs, self.origin)
