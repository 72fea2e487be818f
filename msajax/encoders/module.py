"""Defines pretrained text encoders, and which tensors of a folder their parameters are."""

import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import numpy as np

from msajax.encoders import bert, deberta, modernbert
from msajax.encoders.architecture import Architecture
from msajax.errors import UserError

_SEGMENTS = "embeddings.token_type_embeddings.weight"
_KINDS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), (bert.Bert, bert.sources)),
    "deberta-v2": (deberta.Deberta, deberta.sources),
    "modernbert": (modernbert.ModernBert, modernbert.sources),
}


def make_encoder(
    architecture: Architecture, dtype: Any, *, remat: bool = False, name: str | None = None
) -> nn.Module:
    """Makes the module of an encoder: `(ids, mask, *, segments, train)` to `[B, T, D]`.

    With `remat` the inside of each layer is computed again in the backward pass, which saves
    memory.
    """
    module, _ = _KINDS[architecture.kind]
    return module(architecture, dtype, remat, name=name)


def parameters_of(
    architecture: Architecture, tensors: Mapping[str, np.ndarray], where: str = "The folder"
) -> dict[str, np.ndarray]:
    """Makes the parameters of an encoder's module of tensors by name (see `Folder.tensors`).

    Returns:
        A float32 array for each path relative to the module, joined by `/`.

    Raises:
        UserError: for a tensor that is missing, of another shape than config.json says, or of a
            layer too many; it calls the folder `where`.
    """
    _, make_sources = _KINDS[architecture.kind]
    sources = make_sources(architecture)
    names = {source.name: source for source in sources.values()}
    missing = [name for name in names if name not in tensors]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(
            f"{where} lacks weights that its config.json asks for: {', '.join(missing[:3])}{more}."
        )
    for name, source in names.items():
        if tensors[name].shape != source.shape:
            raise UserError(
                f"{where}: the tensor {name} has the shape {tensors[name].shape}, and config.json "
                f"asks for {source.shape}."
            )
    if _SEGMENTS in tensors and _SEGMENTS not in names:
        raise UserError(
            f"{where} holds the tensor {_SEGMENTS}, but its config.json says type_vocab_size = 0."
        )
    deepest = max(map(_layer, names))
    for name in tensors:
        if _layer(name) > deepest:
            raise UserError(
                f"{where} holds the tensor {name}, but its config.json says num_hidden_layers = "
                f"{deepest + 1}."
            )
    return {
        path: np.ascontiguousarray(source.read(tensors[source.name]), np.float32)
        for path, source in sources.items()
    }


def _layer(name: str) -> int:
    """Returns the number of the layer that a tensor belongs to, or -1."""
    found = re.match(r"(?:encoder\.layer|layers)\.(\d{1,6})\.", name)
    return int(found[1]) if found else -1
