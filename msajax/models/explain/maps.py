"""Collects the attention maps of one pass of a model: of its encoders, of fusion, after fusion."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.layers.fusion import names_of, pairs_of
from msajax.models.sequence_level import SequenceLevelModel

# Where a layer of attention stands.
PRETRAINED, ENCODER, FUSION, POOLED, AFTER_FUSION = (
    *("pretrained", "encoder", "fusion", "pooled", "after_fusion"),
)


class Map(NamedTuple):
    """Names a map of attention.

    Attributes:
        part: PRETRAINED, between the pieces of a pretrained text encoder; ENCODER, of a modality's
            encoder; FUSION, between modalities; POOLED, between the vectors of pooled modalities;
            AFTER_FUSION, of a modality's encoder after fusion.
        layer: its number in that part, from 0.
        asks: the modality whose steps attend; "" for POOLED, where every modality is a step.
        answers: the modality whose steps are attended to; "" for POOLED.
    """

    part: str
    layer: int
    asks: str
    answers: str


def maps_of(
    module: nn.Module, kept: Mapping[str, Any], masks: Mapping[str, jax.Array]
) -> dict[Map, jax.Array]:
    """Collects the maps of a pass, those of a guided model's second one.

    Args:
        module: the model; one that is not of the family has no map here.
        kept: its `intermediates`.
        masks: `{modality: [B, T_m]}`, those of the batch.

    Returns:
        `{map: [B, H, T_asks, T_answers]}`. A row sums to 1 over the steps that may be attended to;
        what stands in rows of padding means nothing.
    """
    if not isinstance(module, SequenceLevelModel):
        return {}
    names, config = module.spec.modalities, module.config
    fusion, found = kept.get("fusion", {}), {}
    for m in names:
        pretrained = kept.get(f"{m}_pretrained", {}).get("encoder", {})
        for layer, x in _layers(pretrained, "layers"):
            found[Map(PRETRAINED, layer, m, m)] = _to_place(x, masks[m])
        for layer, x in _layers(kept.get(f"{m}_encoder", {}), "blocks"):
            found[Map(ENCODER, layer, m, m)] = x
    if config.fusion == "pooled":  # nothing follows: a single step is left of each modality
        return found | {Map(POOLED, k, "", ""): x for k, x in _layers(fusion, "blocks")}
    pairs = pairs_of(config, names, module.anchor)
    for layer in range(config.n_layers_fuse):
        for name, pair in zip(names_of(pairs), pairs, strict=True):
            found[Map(FUSION, layer, *pair)] = _map_in(fusion[f"layers_{layer}"][name])
    for m in names:
        for layer, x in _layers(kept.get(f"{m}_after_fusion", {}), "blocks"):
            found[Map(AFTER_FUSION, layer, m, m)] = x
    return found


def _layers(kept: Mapping[str, Any], name: str) -> Iterator[tuple[int, jax.Array]]:
    """Yields the number and the map of every layer of a stack; recurrent ones have none."""
    for layer in itertools.count():
        if f"{name}_{layer}" not in kept:
            return
        yield layer, _map_in(kept[f"{name}_{layer}"])


def _map_in(kept: Mapping[str, Any]) -> jax.Array:
    return kept["attention"]["attention"][0]


def _to_place(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Brings a map `[B, H, T, T]` of valid steps that stand in front to where these steps are.

    A pretrained encoder moves the valid steps of a row to its front before it reads them.
    """
    place = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    x = jnp.take_along_axis(x, place[:, None, :, None], axis=2)
    x = jnp.take_along_axis(x, place[:, None, None], axis=3)
    return jnp.where(mask[:, None, None], x, 0)
