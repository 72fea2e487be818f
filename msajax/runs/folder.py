"""Reads and writes the files of a run's folder.

`manifest.py` lists what the folder holds. Of several processes only the first writes it.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from msajax import __version__
from msajax.config import Config
from msajax.config.identity import NUMERICS
from msajax.config.registry import registered, warn_of_other_source
from msajax.errors import UserError, writing
from msajax.files import as_strict, read_json, strict_json, write_bytes, write_json, write_text
from msajax.runs import manifest
from msajax.runs.claim import refuse_other_run, require_place
from msajax.runtime import processes

logger = logging.getLogger(__name__)

KEPT = 2  # checkpoints: the newest, and the one before it for the case that it is damaged
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# Of results.json: they are printed, or compared with other results.
_KEYS = ("model", "corpus", "seeds", "best_epoch", "failed", "valid", "test", "test_ensemble")


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Knows the paths of one run's files, reads them and writes them.

    `saved` is called with the step of each checkpoint, when it begins to be written.
    """

    path: str
    saved: Callable[[int], None] = lambda step: None

    def file(self, *names: str) -> str:
        """Returns a path inside the folder."""
        return os.path.join(self.path, *names)

    @property
    def checkpoints(self) -> str:
        """Returns the folder of checkpoints."""
        return self.file(manifest.CHECKPOINTS)

    @property
    def bundle(self) -> str:
        """Returns the folder of the model that the run produced."""
        return self.file(manifest.BUNDLE)

    def make(self) -> None:
        """Makes the folder if needed; raises `UserError` in all processes if it cannot be."""

        def make() -> None:
            require_place(self.path)
            with writing(f"The workdir {self.path}"):
                os.makedirs(self.path, exist_ok=True)

        processes.of_first(make)

    def has_ended(self, epochs: int) -> bool:
        """Says whether a run of so many epochs has ended; raises `UserError` for bad results."""

        def ended() -> bool:
            if not os.path.exists(self.file(manifest.RESULTS)) or not os.path.isdir(self.bundle):
                return False
            # A run that gets more epochs keeps the results of fewer ones until it has ended.
            return bool(os.listdir(self.bundle)) and self.read_results().get("epochs") == epochs

        return processes.of_first(ended)

    def missing_artefacts(self) -> list[str]:
        """Returns the names of results that a run's folder lacks, or has empty, in their order.

        After the end of a run these are what a later mode adds, or what the version that trained it
        did not make. Whoever adds one

        1. enters the `Lock` of this folder and reads the results that it is about;
        2. writes it through `replacing`, `replacing_folder` or their like in `files`, in the first
           process;
        3. calls `Mirror.replace(name)`, which uploads it alone.
        """

        def is_there(path: str) -> bool:
            return bool(os.listdir(path)) if os.path.isdir(path) else os.path.exists(path)

        return processes.of_first(
            lambda: [
                entry.name
                for entry in manifest.ENTRIES
                if entry.is_result and not is_there(self.file(entry.name))
            ]
        )

    def begin_results(self) -> None:
        """Takes away what says something about results, which are replaced from now on.

        That is results.json, with which a run counts as ended, and what is made of the results.
        """
        if not processes.is_first():
            return
        for entry in manifest.derived():
            path = self.file(entry.name)
            with writing(path), contextlib.suppress(FileNotFoundError):
                if entry.is_folder:
                    shutil.rmtree(path)
                else:
                    os.unlink(path)

    def read_results(self) -> dict[str, Any]:
        """Reads results.json; raises `UserError` if it is missing or damaged."""
        path = self.file(manifest.RESULTS)
        try:
            results = read_json(path)
            if not isinstance(results, dict) or not {*_KEYS, "floors"} <= results.keys():
                raise UserError(f"{path} holds no results of a run.")
        except UserError as error:
            raise UserError(
                f"{error} Delete it: the run's train command then writes it anew."
            ) from error
        return results

    def cpu_devices(self) -> int | None:
        """Returns how many CPU devices the run had in one process; None if it is none of these.

        A damaged run.json says nothing here: `claim` refuses it.
        """
        try:
            run = read_json(self.file(manifest.RUN))
            alone, devices = (run["backend"], run["processes"]) == ("cpu", 1), run["devices"]
        except (UserError, LookupError, TypeError):
            return None
        return devices if alone and isinstance(devices, int) and devices > 0 else None

    def claim(self, config: Config, digests: Mapping[str, str], beside: str | None = None) -> None:
        """Refuses a folder that belongs to another run than this one, or than its first epochs.

        See `refuse_other_run`, which all processes hear of.
        """
        processes.of_first(lambda: refuse_other_run(self.path, config, digests, beside))

    def describe(
        self, config: Config, corpus: Mapping[str, Any], repairs: Any, initial: Any
    ) -> None:
        """Writes run.json and config.json; `initial` says which parameters did not begin random."""
        if not processes.is_first():
            return
        path, name = self.file(manifest.RUN), config.model.name
        if os.path.exists(path):
            before = read_json(path).get("model_file_sha256", "")
            warn_of_other_source(name, before, f"the run in {self.path}")
        run = {
            "msajax": __version__,
            "numerics": NUMERICS,
            "python": platform.python_version(),
            "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
            "device_kind": jax.devices()[0].device_kind,
            "backend": jax.default_backend(),
            "devices": jax.device_count(),
            "processes": jax.process_count(),
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "corpus": corpus,
            "repairs": repairs,
            "initial": initial,
            "model_file_sha256": registered()[name].digest,
            "command": sys.argv,
        }
        write_json(path, run)
        # Last: with it the folder is taken.
        write_json(self.file(manifest.CONFIG), config.to_dict())

    def keep_frozen(self, shared: Mapping[str, np.ndarray]) -> None:
        """Writes the frozen parameters that all seeds share, by path; {} writes nothing.

        Raises:
            UserError: if the folder has others, so that its checkpoints are of another model.
        """
        path = self.file(manifest.FROZEN)
        if not shared and not os.path.exists(path):
            return
        encoded = encode_frozen(shared)
        if not os.path.exists(path):
            write_bytes(path, encoded)
            return
        with open(path, "rb") as file:
            there = hashlib.file_digest(file, "sha256").digest()
        if there != hashlib.sha256(encoded).digest():
            raise UserError(
                f"{path} holds other values than the frozen parameters that this run begins with: "
                "the folder of a pretrained encoder or the bundle of model.init_from has changed, "
                "or the file is damaged; choose another --workdir."
            )

    def move_corpus(self, corpus: Mapping[str, Any]) -> None:
        """Notes in run.json where the run's corpus, known by its digest, is now."""
        if not processes.is_first():
            return
        run = read_json(self.file(manifest.RUN))
        if run["corpus"] != corpus:
            write_json(self.file(manifest.RUN), run | {"corpus": corpus})

    def append_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Appends one epoch's lines to metrics.jsonl."""
        if not processes.is_first():
            return
        text = "".join(json.dumps(as_strict(line), allow_nan=False) + "\n" for line in lines)
        path = self.file(manifest.METRICS)
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(text)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Reads the lines of metrics.jsonl; leaves out a last line that was not written to its end.

        Raises:
            UserError: if another line is damaged: it may exist in a copy, so nothing is dropped.
        """
        path = self.file(manifest.METRICS)
        try:
            with open(path, "rb") as file:
                lines = [line for line in file if line.endswith(b"\n")]
        except FileNotFoundError:
            return []
        read = []
        for number, line in enumerate(lines, 1):
            try:
                read.append(strict_json(line))
                for key in ("seed", "epoch", "seconds"):
                    read[-1][key] + 0  # a number, whatever else has changed
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise UserError(
                    f"{path}, line {number} is damaged, and nothing was changed: restore the file "
                    "from a copy, or delete that line; the same command then continues."
                ) from error
        return read

    def rewind_metrics(self, epoch: int, seeds: Collection[int], running: Collection[int]) -> None:
        """Drops the lines of epochs after `epoch`: they will be written again.

        Args:
            seeds: random seeds whose lines these are; others have other checkpoints.
            running: random seeds that train on. Lines that call them stopped, because the epochs
                of a shorter run were over, no longer do.

        Raises:
            UserError: if a line is damaged.
        """
        path = self.file(manifest.METRICS)

        def rewind() -> None:
            lines = self.read_metrics()
            kept = [line for line in lines if line["epoch"] <= epoch or line["seed"] not in seeds]
            for line in kept:
                if line["seed"] in running:
                    line["stopped"] = False
            # Lines that are gone, with a deleted file, cannot be brought back: the run does
            # without.
            there = {line["epoch"] for line in kept if line["seed"] in seeds}
            if lost := sorted(set(range(1, epoch + 1)) - there):
                logger.warning(
                    "%s has no line of epoch(s) %s any more; the run goes on without them.",
                    path,
                    ", ".join(map(str, lost)),
                )
            write_text(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in kept))

        processes.of_first(rewind)


def encode_frozen(shared: Mapping[str, np.ndarray]) -> bytes:
    """Encodes parameters by path as safetensors, for a run's folder or a bundle."""
    return safetensors.numpy.save({path: np.asarray(x) for path, x in shared.items()})
