"""Maps the tensors of a pretrained folder to the parameters of our modules."""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from msajax.errors import UserError


class Source(NamedTuple):
    """Says where a parameter comes from.

    Attributes:
        name: of the tensor.
        shape: of the tensor as it is stored.
        read: makes the parameter of the tensor.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[np.ndarray], np.ndarray]


_SEGMENTS = "embeddings.token_type_embeddings.weight"

Sources = dict[str, Source]  # by the path of the parameter, joined by /


def affine(
    path: str, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *, bias: bool = True
) -> Sources:
    """Maps an affine map, which is stored as `[O, I]`, to an `AffineLayer` of these sizes."""
    written = math.prod(outputs)
    found = {
        f"{path}/kernel": Source(
            f"{name}.weight",
            (written, math.prod(inputs)),
            lambda weight: weight.T.reshape(*inputs, *outputs),
        )
    }
    if bias:
        of_bias = Source(f"{name}.bias", (written,), lambda one: one.reshape(outputs))
        found[f"{path}/bias"] = of_bias
    return found


def norm(path: str, name: str, width: int, *, bias: bool = True) -> Sources:
    """Maps a layer norm."""
    names = {"scale": "weight", "bias": "bias"} if bias else {"scale": "weight"}
    return {f"{path}/{k}": Source(f"{name}.{v}", (width,), np.asarray) for k, v in names.items()}


def table(path: str, name: str, rows: int, width: int, *, first: int = 0) -> Sources:
    """Maps an embedding table of `rows` rows after `first` that no step ever reads."""
    shape = (first + rows, width)
    return {f"{path}/embedding": Source(f"{name}.weight", shape, lambda one: one[first:])}


def read_parameters(
    sources: Sources, tensors: Mapping[str, np.ndarray], where: str
) -> dict[str, np.ndarray]:
    """Makes parameters of tensors.

    Args:
        sources: what each parameter is made of.
        tensors: by name.
        where: what messages call them.

    Returns:
        A float32 array for each path.

    Raises:
        UserError: for a tensor that is missing, of another shape, or of a layer too many.
    """
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
