"""Builds the model that a configuration names: pure Flax linen, without parameters."""

import functools
import importlib

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict

from msajax.config import ModelConfig
from msajax.config.registry import is_own, registered
from msajax.errors import UserError
from msajax.layers.platform import made_for
from msajax.models.contract import Model, init_variables
from msajax.spec import CorpusSpec


def declared(config: ModelConfig) -> Model:
    """Returns what the model that a configuration names declares."""
    model = registered()[config.name].declared
    if is_own(config.name):
        model = importlib.import_module(f"{__package__}.{registered()[config.name].module}").MODEL
    return model.with_settings(config) if isinstance(model, Model) else Model(module=model)


def build_model(config: ModelConfig, spec: CorpusSpec) -> nn.Module:
    """Builds the model that a configuration names, for the modalities of a corpus.

    With parameters of one random seed `model.apply({"params": params}, features, masks,
    attention_masks=…)` gives a `Prediction`.

    Raises:
        UserError: for what the model's `check` refuses: in this package an anchor, or a modality
            with settings of its own, that is not among the modalities; a next token of anything
            but token ids; dRoFE positions that leave nothing of a modality to encode.
    """
    model = declared(config)
    if model.check is not None:
        found = model.check(config, spec)
        if found is not None:
            raise UserError(
                f"The check of the model {config.name!r} returned a {type(found).__name__}: it "
                "must return None, and raise msajax.UserError for what cannot be built."
            )
    return model.module(config, spec)


def parameter_shapes(config: ModelConfig, spec: CorpusSpec) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of one seed, by path; nothing is computed."""
    if is_own(config.name):
        return dict(_shapes(config.structure, spec))
    return dict(_shapes.__wrapped__(config, spec))


@functools.lru_cache(maxsize=8)
def _shapes(config: ModelConfig, spec: CorpusSpec) -> dict[str, tuple[int, ...]]:
    module = build_model(config, spec)
    model = declared(config)
    with made_for("cpu"):  # they are the same everywhere, and no device need be there
        params, _ = jax.eval_shape(lambda: init_variables(module, model, spec, jax.random.key(0)))
    flat = flatten_dict(params, sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}
