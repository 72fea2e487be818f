"""Defines pretrained text encoders, and which tensors of a folder their parameters are."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import numpy as np

from msajax.encoders import bert, deberta, folder, modernbert
from msajax.encoders.architecture import Architecture

_KINDS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), (bert.Bert, bert.sources)),
    "deberta-v2": (deberta.Deberta, deberta.sources),
    "modernbert": (modernbert.ModernBert, modernbert.sources),
}


def make_encoder(
    architecture: Architecture, dtype: Any, *, remat: bool = False, name: str | None = None
) -> nn.Module:
    """Makes the module of an encoder: `(ids, mask, *, segments, train)` to `[B, T, D]`.

    Args:
        architecture: of the encoder.
        dtype: computation type.
        remat: save memory by computing the inside of each layer again in the backward pass.
        name: of the module.
    """
    module, _ = _KINDS[architecture.kind]
    return module(architecture, dtype, remat, name=name)


def parameters_of(
    architecture: Architecture, found: Mapping[str, np.ndarray], where: str = "The folder"
) -> dict[str, np.ndarray]:
    """Makes the parameters of the encoder's module of a folder's tensors.

    Args:
        architecture: of the encoder.
        found: the tensors by name, from `Folder.tensors`.
        where: what messages call the folder.

    Returns:
        A float32 array for each path relative to the module, joined by `/`.

    Raises:
        UserError: for a tensor that is missing or of another shape than config.json says.
    """
    _, sources = _KINDS[architecture.kind]
    return folder.read_parameters(sources(architecture), found, where)
