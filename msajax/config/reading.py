"""Reads an experiment: its defaults, the argument of its file, keys and the types of values.

An experiment file in `configs/` starts from `default_config()`, which is locked, changes what it
needs and returns it. `from_config_dict` turns the result into the frozen dataclasses that the rest
of the program reads.
"""

import dataclasses
import difflib
import inspect
import logging
import math
import os
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from msajax.checks import Settings
from msajax.config.model import ModelConfig
from msajax.config.registry import registered
from msajax.config.sections import SYNTHETIC, Config
from msajax.errors import UserError

logger = logging.getLogger(__name__)

_PATHS = ("data.path", "data.glove_path", "train.compile_cache")
_PATHS += ("model.init_from", "model.text_encoder")
# What other programs call a setting.
_OTHER_NAMES = {
    "lr": "learning_rate",
    "batch": "batch_size",
    "bs": "batch_size",
    "dim": "model_dim",
    "d_model": "model_dim",
    "hidden_size": "model_dim",
    "hidden_dim": "model_dim",
    "width": "model_dim",
    "heads": "num_heads",
    "nhead": "num_heads",
    "n_heads": "num_heads",
    "dropout": "dropout_rate",
    "layers": "n_layers_mod",
    "num_layers": "n_layers_mod",
    "early_stop": "patience",
    "file": "path",
}


def default_config() -> ml_collections.ConfigDict:
    """Returns the locked configuration from which every experiment file starts.

    The settings of every model that is registered are in it.
    """
    return ml_collections.ConfigDict(_all_settings()).lock()


def apply_argument(
    config: ml_collections.ConfigDict,
    arg: str,
    *,
    widths: Mapping[str, int],
    lengths: Mapping[str, int],
) -> ml_collections.ConfigDict:
    """Applies the argument behind the colon of `--config=file.py:arg`.

    Args:
        config: the experiment, which is changed and returned.
        arg: "" changes nothing; "smoke" replaces the corpus by a small synthetic one of the given
            widths and lengths, and trains two random seeds for two epochs, without a report.
        widths: features per step of the experiment's real corpus, by modality.
        lengths: time steps of the experiment's real corpus, by modality.

    Raises:
        UserError: for any other argument.
    """
    if arg == "smoke":
        config.data.path = SYNTHETIC
        config.data.synthetic.update(
            train=48,
            valid=16,
            test=16,
            modalities=tuple(widths),
            widths=tuple(widths.values()),
            lengths=tuple(lengths[m] for m in widths),
        )
        config.train.epochs = 2
        config.train.seeds = 2
        config.train.report = False  # it would take longer than the run
    elif arg:
        raise UserError(f"The configuration's argument {arg!r} is unknown: it can be 'smoke'.")
    return config


def known_keys() -> tuple[str, ...]:
    """Returns every key that can be set, as in `--config.<key>=value`."""
    return tuple(_flatten(_all_settings()))


def list_keys() -> tuple[str, ...]:
    """Returns the keys whose values are names, several or none."""
    return tuple(
        key
        for key, value in _flatten(_all_settings()).items()
        if isinstance(value, tuple) and not any(type(item) is int for item in value)
    )


def check_key(key: str) -> None:
    """Raises `UserError` with the nearest right name unless `key` can be set."""
    if key not in known_keys():
        raise UserError(unknown_key(key))


def unknown_key(key: str) -> str:
    """Makes the sentence that names the key nearest to a wrong one."""
    section, dot, name = key.rpartition(".")
    name = _OTHER_NAMES.get(name, name)
    meant = section + dot + name

    def similarity(known: str) -> float:
        last = known.rpartition(".")[2]
        ratios = (difflib.SequenceMatcher(None, *pair) for pair in ((meant, known), (name, last)))
        return sum(ratio.ratio() for ratio in ratios)

    return f"Unknown configuration key {key!r}: did you mean {max(known_keys(), key=similarity)!r}?"


def keys_named(word: str) -> list[str]:
    """Returns the keys whose last word is this one, or nearly; also what other programs call it."""
    word = _OTHER_NAMES.get(word, word)
    last: dict[str, list[str]] = {}
    for key in known_keys():
        last.setdefault(key.rpartition(".")[2], []).append(key)
    near = difflib.get_close_matches(word, last, 1, 0.8)
    return last.get(word) or (last[near[0]] if near else [])


def from_config_dict(values: Mapping[str, Any]) -> Config:
    """Checks and freezes a ConfigDict or a config.json; raises `UserError` naming a wrong key."""
    if isinstance(values, ml_collections.ConfigDict):
        values = values.to_dict()
    known = set(known_keys())  # once: it builds every section
    for key in _flatten(values):
        if key not in known:
            raise UserError(unknown_key(key))
    # Models' own settings are built; those of models that are not chosen are checked alone.
    model = dict(values.get("model", {}))
    chosen = model.get("name", ModelConfig().name)
    for name, entry in registered().items():
        if entry.settings is None or name not in model:
            continue
        own = _build(entry.settings, model.pop(name), f"model.{name}.")
        if name == chosen:
            model["own"] = own
        elif own != entry.settings():
            logger.warning("Nothing reads model.%s.* (needs model.name = %s).", name, name)
    return _build(Config, {**values, "model": model}, "")


def _all_settings() -> dict[str, Any]:
    """Returns every setting at its default, also of the models that are not chosen."""
    values = Config().to_dict()
    for name, entry in registered().items():
        if entry.settings is not None:
            values["model"][name] = dataclasses.asdict(entry.settings())
    return values


def checked(config: Config) -> Config:
    """Checks a `Config` made in Python; raises `UserError`, naming a key of a wrong type."""
    if not isinstance(config, Config):
        raise UserError(f"The experiment is a {type(config).__name__}: it must be a Config.")
    return from_config_dict(config.to_dict())


def flatten(config: Config) -> dict[str, Any]:
    """Maps every key, as in `--config.<key>=value`, to its setting."""
    return _flatten(config.to_dict())


def changed_settings(values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Finds the settings of a config.json that differ from the defaults.

    Returns:
        `{key: (value, default)}` with lists for tuples; a default is None where no such key is
        known, as of a model that is not registered here.
    """
    usual = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in _flatten(_all_settings()).items()
    }
    return {
        key: (value, usual.get(key))
        for key, value in _flatten(values).items()
        if key not in usual or value != usual[key]
    }


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _build(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
    types = typing.get_type_hints(cls)
    built = {}
    for field in dataclasses.fields(cls):
        if field.name in values:
            kind, value, key = types[field.name], values[field.name], prefix + field.name
            if isinstance(value, Settings):  # built already
                built[field.name] = value
            elif dataclasses.is_dataclass(kind):
                built[field.name] = _build(kind, value, f"{key}.")
            else:
                built[field.name] = _convert(key, value, kind)
                if key in _PATHS:
                    built[field.name] = os.path.expanduser(built[field.name])
    return cls(**built)


def _convert(key: str, value: Any, kind: Any) -> Any:
    """Checks a value's type; whole numbers pass as floats, lists as tuples, a,b as two."""
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple) or any(type(v) is not item for v in value):
            raise UserError(f"{key} = {value!r}: must be a tuple of {item.__name__}.")
        if item is str:  # the command line gives a,b as one string, nothing as ""
            value = [part.strip() for v in value for part in v.split(",")] if any(value) else ()
        return tuple(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise UserError(f"{key} = {value!r}: must be of type {kind.__name__}.")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{key} = {value!r}: must be finite.")
    return value


def meanings() -> Iterator[tuple[str, Any, str]]:
    """Yields every key that can be set, its default and meaning; models' own settings come last."""
    yield from _explain(Config, "")
    for name, entry in registered().items():
        if entry.settings is not None:
            yield from _explain(entry.settings, f"model.{name}.")


def _explain(section: type, prefix: str) -> Iterator[tuple[str, Any, str]]:
    types, texts = typing.get_type_hints(section), attributes(section)
    for field in dataclasses.fields(section):
        if dataclasses.is_dataclass(types[field.name]):
            yield from _explain(types[field.name], f"{prefix}{field.name}.")
        elif field.default is not None:  # but for the place of the chosen model's own settings
            # The first sentence or clause, without what a long one explains in a list.
            clause = re.split(r"[.;]\s", texts.get(field.name, "") + " ")[0].strip()
            head = clause.partition(": ")[0]
            yield prefix + field.name, field.default, head if len(head) > 40 else clause


def attributes(section: type) -> dict[str, str]:
    """Returns what docstrings of a dataclass and its bases say of fields, under `Attributes:`."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        _, _, listed = inspect.cleandoc(base.__doc__ or "").partition("\nAttributes:\n")
        found |= dict(re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed))
    return {name: " ".join(text.split()) for name, text in found.items()}
