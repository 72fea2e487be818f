"""Makes the modules of pretrained encoders, and their parameters of a folder's tensors."""

import importlib
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import numpy as np

from msajax.encoders.table import KINDS, AnyArchitecture
from msajax.errors import UserError

_DEPTH = "num_hidden_layers"
_SEGMENTS = "embeddings.token_type_embeddings.weight"


def module_of(architecture: AnyArchitecture) -> Any:
    """Returns the module of this package that has `MODULE` and `sources` of an encoder."""
    return importlib.import_module(f"{__package__}.{KINDS[architecture.kind].module}")


def make_encoder(
    architecture: AnyArchitecture,
    dtype: Any,
    *,
    remat: bool = False,
    name: str | None = None,
    **settings: Any,
) -> nn.Module:
    """Makes the module of an encoder; see `bert.PretrainedEncoder` and `speech.SpeechEncoder`.

    With `remat` the inside of each layer is computed again in the backward pass, which saves
    memory. Further settings are those of the encoder's kind.
    """
    return module_of(architecture).MODULE(architecture, dtype, remat, name=name, **settings)


def parameters_of(
    architecture: AnyArchitecture, tensors: Mapping[str, np.ndarray], where: str = "The folder"
) -> dict[str, np.ndarray]:
    """Makes the parameters of an encoder's module of tensors by name (see `Folder.tensors`).

    Returns:
        A float32 array for each path relative to the module, joined by `/`.

    Raises:
        UserError: for a tensor that is missing, of another shape than config.json says, or of a
            layer too many; it calls the folder `where`.
    """
    sources = module_of(architecture).sources(architecture)
    sources = {p: s for p, s in sources.items() if not s.optional or s.name in tensors}
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
                f"{where} holds the tensor {name}, but its config.json says "
                f"{KINDS[architecture.kind].keys.get(_DEPTH, _DEPTH)} = {deepest + 1}."
            )
    return {
        path: np.ascontiguousarray(source.read(tensors[source.name]), np.float32)
        for path, source in sources.items()
    }


def _layer(name: str) -> int:
    found = re.search(r"(?:^|\.)layers?\.(\d{1,6})\.", name)
    return int(found[1]) if found else -1
