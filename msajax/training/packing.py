"""Lays the small arrays that a step changes out as few vectors.

Most kernels of a training step would move single biases, for every seed anew, and compiling them
takes longer. Large arrays stay apart: to take them out of a vector is to copy them at every step.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from msajax.training.groups import ParameterSettings

LARGEST = 2**12  # numbers of an array that lies beside others


class Packing(NamedTuple):
    """Says which arrays of a tree lie side by side in which vector.

    Attributes:
        paths: for each of its arrays, the path of the parameter that it is, or is kept of; None for
            one that is neither, and stays apart.
        keys: for each, the vector that it lies in. One that lies alone keeps its shape.
    """

    tree: Any
    paths: tuple[str | None, ...]
    keys: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def pack(self, tree: Any, axes: int = 0) -> dict[str, jax.Array]:
        """Returns arrays by key, of a tree whose arrays have so many axes before their shapes."""
        parts: dict[str, list[jax.Array]] = {}
        for key, x in zip(self.keys, self.tree.flatten_up_to(tree), strict=True):
            parts.setdefault(key, []).append(x)
        return {
            key: jnp.concatenate([x.reshape(*x.shape[:axes], -1) for x in each], axes)
            if len(each) > 1
            else each[0]
            for key, each in parts.items()
        }

    def unpack(self, arrays: Mapping[str, jax.Array], axes: int = 0) -> Any:
        """Undoes `pack`."""
        found, begins = [], dict.fromkeys(arrays, 0)
        for key, shape in zip(self.keys, self.shapes, strict=True):
            x, size = arrays[key], math.prod(shape)
            if self.keys.count(key) > 1:
                x = jax.lax.slice_in_dim(x, begins[key], begins[key] + size, axis=axes)
                x = x.reshape(*x.shape[:axes], *shape)
            found.append(x)
            begins[key] += size
        return self.tree.unflatten(found)


def make_packing(tree: Any, settings: Mapping[str, ParameterSettings], joins: bool) -> Packing:
    """Packs parameters, or what is kept of them, by kind and by group of the optimiser.

    Args:
        tree: arrays or their shapes: parameters, others like them, or a whole state.
        joins: small arrays lie side by side at all.
    """
    paths, keys, shapes = [], [], []
    found, structure = tree_flatten_with_path(tree)
    for number, (parts, x) in enumerate(found):
        names = [keystr((part,), simple=True) for part in parts]
        # What stands before a parameter's own path says what is kept of it.
        first = next((i for i in range(len(names)) if "/".join(names[i:]) in settings), None)
        path = None if first is None else "/".join(names[first:])
        paths.append(path)
        key = f"{number}"  # alone
        if joins and path is not None and math.prod(x.shape) <= LARGEST:
            group = f"{'frozen ' * settings[path].frozen}group {settings[path].group}"
            key = "/".join([*names[:first], group])
        keys.append(key)
        shapes.append(x.shape)
    return Packing(structure, tuple(paths), tuple(keys), tuple(shapes))
