"""Defines what `extract` makes of recordings, and the manifest that says how features were made."""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from msajax import __version__
from msajax.errors import UserError, first_line
from msajax.recordings import audio_columns

logger = logging.getLogger(__name__)

_FORMAT, _VERSION = "msajax recordings", 1


class Audio(NamedTuple):
    """Describes what sound can become.

    Attributes:
        steps: the kinds of step that it can have, the usual one first.
        compute: makes frames of 10 ms, or samples, of sound: `[S]` -> `[T, d]`; None for none.
        columns: name and unit of each of the d columns.
    """

    steps: tuple[str, ...]
    compute: Callable[[np.ndarray], np.ndarray] | None
    columns: tuple[tuple[str, str], ...] = ()


AUDIO = {
    "columns": Audio(
        ("word", "100ms", "frame"),
        audio_columns.audio_columns,
        tuple((column.name, column.unit) for column in audio_columns.COLUMNS),
    ),
    "logmel": Audio(
        ("frame",),
        audio_columns.log_mel,
        tuple((f"logmel_{i}", "ln of power") for i in range(40)),
    ),
    "waveform": Audio(
        ("frame", "word"), lambda samples: samples[:, None], (("sample", "of full scale"),)
    ),
    "none": Audio(("word", "frame"), None),
}
"""What sound can become, by its name: a new kind is an entry."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Holds what is made of recordings.

    Attributes:
        steps: what a step is: a word, 100 ms of sound, or a frame: 10 ms, or a sample of waveforms;
            "" for the usual one of the sound.
        audio: what sound becomes, a name of `AUDIO`.
        asr_model: folder of a faster-whisper model that writes the missing transcripts; "" for
            none.
    """

    steps: str = ""
    audio: str = "columns"
    asr_model: str = ""

    def __post_init__(self) -> None:
        """Checks the settings, and that what they need is there."""
        if self.audio not in AUDIO:
            raise UserError(f"--audio={self.audio}: must be one of {', '.join(AUDIO)}.")
        allowed = AUDIO[self.audio].steps
        object.__setattr__(self, "steps", self.steps or allowed[0])
        if self.steps not in allowed:
            raise UserError(
                f"--steps={self.steps}: --audio={self.audio} has steps {' or '.join(allowed)}."
            )
        needed = ["av", *["pocketsphinx"] * (self.steps == "word")]
        needed += ["faster_whisper"] * bool(self.asr_model)
        if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
            how = "-r requirements-clips.txt"
            if missing == ["faster_whisper"]:
                how = "faster-whisper"
            raise UserError(
                f"Recordings need the package {' and '.join(missing)}: pip install {how}."
            )
        if self.asr_model and not os.path.isfile(os.path.join(self.asr_model, "tokenizer.json")):
            raise UserError(
                f"--asr_model={self.asr_model} must be the folder of a faster-whisper model with "
                "its tokenizer.json: nothing is downloaded."
            )

    @property
    def pools(self) -> bool:
        """Says whether audio is measured over steps of many frames."""
        return self.audio == "columns" and self.steps != "frame"

    @property
    def aligns(self) -> bool:
        """Says whether audio is measured over words, so that both share their steps."""
        return self.pools and self.steps == "word"

    def recipe(self) -> dict[str, Any]:
        """Describes tools, settings and columns: all that decides the features of a recording."""
        tools = ["av", "numpy", "scipy", *["pocketsphinx"] * (self.steps == "word")]
        tools += ["faster-whisper"] * bool(self.asr_model)
        names = audio_columns.STEP_COLUMNS if self.pools else AUDIO[self.audio].columns
        model = _digest_of_folder(self.asr_model) if self.asr_model else ""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "tools": {"msajax": __version__}
            | {name: importlib.metadata.version(name) for name in tools},
            "settings": {"steps": self.steps, "audio": self.audio, "asr_model": model},
            "kind": {"audio": self.audio} if names else {},
            "columns": {"audio": [{"name": n, "unit": u} for n, u in names]} if names else {},
        }


def _digest_of_folder(folder: str) -> str:
    digest = hashlib.sha256()
    names = [one.name for one in os.scandir(folder) if one.is_file()]  # a download leaves .cache
    for name in sorted(names):
        with open(os.path.join(folder, name), "rb") as file:
            digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def make_manifest(recipe: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """Makes the manifest of a corpus, JSON text: its recipe, the SHA-256 of each source, its own.

    Args:
        recipe: of `Settings.recipe`.
        sources: the SHA-256 of each recording, by its name in the table.
    """
    content = {**recipe, "sources": dict(sorted(sources.items()))}
    text = json.dumps(content, sort_keys=True)
    return json.dumps(content | {"sha256": hashlib.sha256(text.encode()).hexdigest()})


def settings_of(manifest: Mapping[str, Any], asr_model: str) -> Settings:
    """Returns the settings that repeat what a manifest says; warns of tools of other versions.

    Args:
        manifest: of a corpus, as a bundle keeps it.
        asr_model: the folder of the same model, if one wrote the transcripts; "" for none.

    Raises:
        UserError: for another model, or a manifest that this program does not read.
    """
    try:
        if (manifest["format"], manifest["version"]) != (_FORMAT, _VERSION):
            raise ValueError("it is of another version")
        stored = manifest["settings"]
        settings = Settings(stored["steps"], stored["audio"], asr_model)
        recipe = settings.recipe()
        if asr_model and recipe["settings"]["asr_model"] != stored["asr_model"]:
            raise UserError(
                f"--asr_model={asr_model} is not the model that wrote the transcripts of training."
            )
        for name, version in manifest["tools"].items():
            if (here := recipe["tools"].get(name)) not in (None, version):
                logger.warning(
                    "Features of training were made with %s %s, these with %s: they may differ.",
                    *(name, version, here),
                )
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"The manifest of the features cannot be read: {first_line(error)}."
        ) from error
    return settings
