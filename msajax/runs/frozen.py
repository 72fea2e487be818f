"""Keeps frozen parameters that all random seeds share: one file in a run's folder or a bundle."""

import hashlib
import os
from collections.abc import Mapping

import numpy as np
import safetensors.numpy

from msajax.errors import UserError
from msajax.files import write_bytes
from msajax.runs.manifest import FROZEN


def encode(shared: Mapping[str, np.ndarray]) -> bytes:
    """Encodes parameters by path as safetensors."""
    return safetensors.numpy.save({path: np.asarray(x) for path, x in shared.items()})


def keep(folder: str, shared: Mapping[str, np.ndarray]) -> None:
    """Writes a run's shared parameters into its folder, or compares them with what is there.

    Args:
        folder: of the run.
        shared: by path; {} writes nothing.

    Raises:
        UserError: if the folder has others, so that its checkpoints are of another model.
    """
    path = os.path.join(folder, FROZEN)
    if not shared and not os.path.exists(path):
        return
    encoded = encode(shared)
    if not os.path.exists(path):
        write_bytes(path, encoded)
        return
    with open(path, "rb") as file:
        there = hashlib.file_digest(file, "sha256").digest()
    if there != hashlib.sha256(encoded).digest():
        raise UserError(
            f"{path} holds other values than the frozen parameters that this run begins with: the "
            "folder of model.text_encoder or the bundle of model.init_from has changed, or the "
            "file is damaged; choose another --workdir."
        )
