"""Takes trees of parameters apart, and joins them."""

from collections.abc import Collection
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict


def without(params: Any, paths: Collection[str]) -> Any:
    """Leaves out the parameters of these paths."""
    if not paths:
        return params
    flat = flatten_dict(params, sep="/")
    return unflatten_dict({path: x for path, x in flat.items() if path not in paths}, sep="/")


def joined(params: Any, others: Any) -> Any:
    """Joins trees of parameters, as those that move and those that are frozen.

    Of equal paths it takes the second tree's.
    """
    if not others:
        return params
    return unflatten_dict(flatten_dict(params) | flatten_dict(others))
