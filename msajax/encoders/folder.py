"""Opens folders of pretrained text encoders, in the layout of the Hugging Face hub."""

import dataclasses
import functools
import hashlib
import os

import numpy as np

from msajax.encoders.architecture import Architecture
from msajax.encoders.tokens import json_of_vocabulary
from msajax.encoders.weights import read_tensors, weight_files
from msajax.errors import UserError, first_line
from msajax.files import read_json

# All that a folder is read for; weights that are pickles stay where they are.
_FILES = ["config.json", "vocab.txt", "tokenizer*.json", "*.safetensors", "*.index.json"]


def fetch(name: str) -> str:
    """Returns the folder of a hub's name, as google-bert/bert-base-uncased, fetching what it lacks.

    A name that is a folder is returned as it is, and nothing is fetched.

    Raises:
        UserError: if it cannot be fetched, or what fetches it is not installed.
    """
    if os.path.isdir(name):
        return name
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(
            "--download needs huggingface_hub: pip install -r requirements-text.txt."
        ) from error
    try:
        return huggingface_hub.snapshot_download(name, allow_patterns=_FILES)
    except Exception as error:  # of the library, of the network, of the disk: many kinds
        raise UserError(
            f"--download: {name} cannot be fetched from the Hugging Face hub: "
            f"{first_line(error).rstrip('.')}. With a folder of that model, model.text_encoder "
            "needs no network."
        ) from error


_CONFIG, _TOKENIZER, _VOCABULARY = "config.json", "tokenizer.json", "vocab.txt"
_TOKENIZER_SETTINGS = "tokenizer_config.json"


@dataclasses.dataclass(frozen=True)
class Folder:
    """Holds what is known of a folder with a pretrained text encoder.

    Attributes:
        path: where it is.
        architecture: what its config.json says.
    """

    path: str
    architecture: Architecture

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of the configuration, the weights and the tokenizer, wherever they lie."""
        names = [_CONFIG, *weight_files(self.path)]
        if self._has(_TOKENIZER):
            names.append(_TOKENIZER)
        elif self._has(_VOCABULARY):
            names += [_VOCABULARY, *[_TOKENIZER_SETTINGS] * self._has(_TOKENIZER_SETTINGS)]
        digest = hashlib.sha256()
        for name in names:
            path = os.path.join(self.path, name)
            try:
                with open(path, "rb") as file:
                    one = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}.") from error
            digest.update(f"{name} {one}\n".encode())
        return digest.hexdigest()

    @functools.cached_property
    def tokenizer(self) -> str:
        """The text of a tokenizer.json, made of vocab.txt if need be; "" if there is neither."""
        if self._has(_TOKENIZER):
            return _text(os.path.join(self.path, _TOKENIZER))
        if not self._has(_VOCABULARY):
            return ""
        path, settings = os.path.join(self.path, _VOCABULARY), {}
        if self._has(_TOKENIZER_SETTINGS):
            settings = read_json(os.path.join(self.path, _TOKENIZER_SETTINGS))
        return json_of_vocabulary(_text(path), settings, path)

    def require_tokenizer(self) -> str:
        """Returns the text of a tokenizer.json; raises `UserError` if the folder has none."""
        if not self.tokenizer:
            raise UserError(
                f"{self.path} has no tokenizer: it would be {_TOKENIZER} or {_VOCABULARY}; where "
                "transformers is installed, this command writes the first: python -c \"from "
                f"transformers import AutoTokenizer as A; A.from_pretrained({self.path!r})"
                f".save_pretrained({self.path!r})\"."
            )
        return self.tokenizer

    def tensors(self) -> dict[str, np.ndarray]:
        """Reads the weights of the encoder as float32, by the names of the architecture.

        Raises:
            UserError: see `weights.read_tensors`.
        """
        return read_tensors(self.path)

    def _has(self, name: str) -> bool:
        return os.path.isfile(os.path.join(self.path, name))


def open_folder(path: str | os.PathLike) -> Folder:
    """Opens a folder of a pretrained text encoder; its weights are read when they are asked for.

    Raises:
        UserError: if there is no folder, or no config.json of a known encoder, or no weights.
    """
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        raise UserError(
            f"There is no folder {path}: a pretrained text encoder is a folder with {_CONFIG}, "
            "model.safetensors and a tokenizer; --download fetches a name on the Hugging Face hub."
        )
    config = os.path.join(path, _CONFIG)
    if not os.path.isfile(config):
        raise UserError(f"{path} has no {_CONFIG}: it is no folder of a pretrained text encoder.")
    folder = Folder(path, Architecture.read(read_json(config), config))
    weight_files(path)
    return folder


def _text(path: str) -> str:
    """Reads a text file."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
