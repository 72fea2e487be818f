"""Defines what can be set, what it means, and what is refused."""

from msajax.config.identity import identity, idle_settings
from msajax.config.model import ModelConfig, outside_ranges, space_of_ranges
from msajax.config.reading import (
    apply_argument,
    check_key,
    checked,
    default_config,
    flatten,
    from_config_dict,
    keys_named,
    known_keys,
    list_keys,
    unknown_key,
)
from msajax.config.registry import is_registered, load_models_from, register_model
from msajax.config.sections import (
    SYNTHETIC,
    Config,
    DataConfig,
    MeshConfig,
    OptimConfig,
    SyntheticConfig,
    TrainConfig,
)
