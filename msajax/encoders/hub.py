"""Fetches folders of pretrained encoders from the Hugging Face hub, when that is asked for."""

import os

from msajax.errors import UserError, first_line

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
