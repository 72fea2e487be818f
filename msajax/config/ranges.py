"""Holds the ranges of the settings in source 002's table of hyperparameters."""

from typing import Any

from msajax.config.model import ModelConfig

# As a sweep tries them. Widths and heads are lists: every number of heads divides every width.
_NUMBERS = {
    "model_dim": [64, 128, 192, 256],
    "num_heads": [2, 4, 8],
    "ff_dim": (128, 512, "log"),
    "n_layers_mod": [1, 2, 3],
    "n_layers_fuse": [1, 2],
    "dropout_rate": (0.0, 0.3, "linear"),
}
_CHOICES = {"bidirectional_fusion": [False, True], "pooling_method": ["mean", "attention"]}


def outside_ranges(config: ModelConfig) -> list[str]:
    """Lists settings outside the ranges that `model.ranges` names, each as a short phrase."""
    if config.ranges == "none":
        return []
    found = []
    for key, values in _NUMBERS.items():
        low, high = values[0], values[-1] if isinstance(values, list) else values[1]
        if not low <= getattr(config, key) <= high:
            found.append(f"model.{key} = {getattr(config, key)} (range: {low} to {high})")
    return found


def space_of_ranges() -> dict[str, Any]:
    """Returns the space of a sweep over all that source 002's table gives a range."""
    return {f"model.{key}": values for key, values in (_NUMBERS | _CHOICES).items()}
