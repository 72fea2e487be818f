"""Explains a first pass of a model, to guide a second one (R31; source 003 names it).

It is the guidance of XAIguiFormer (Guo et al., ICLR 2025): queries and keys of the second pass come
from what each layer's input contributed to the first pass's largest output, through the same
weights. That all passes draw the same dropout masks is our own.
"""

import dataclasses
import functools
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.models.explain.attribution import (
    Function,
    deeplift,
    gradient_x_input,
    integrated_gradients,
)


def attribute(config: ModelConfig, function: Function, x: jax.Array) -> jax.Array:
    """Computes the attribution that `config.guidance` names, against a baseline of zeros."""
    baseline = jnp.zeros_like(x)
    if config.guidance == "integrated_gradients":
        return integrated_gradients(function, x, baseline, config.guidance_steps)
    return {"gradient_x_input": gradient_x_input, "deeplift": deeplift}[config.guidance](
        function, x, baseline
    )


def first_pass(
    model: nn.Module,
    features: Mapping[str, jax.Array],
    masks: Mapping[str, jax.Array],
    attention_masks: Mapping[str, jax.Array],
    *,
    train: bool,
) -> tuple[jax.Array, dict[str, tuple[jax.Array, ...]]]:
    """Runs a model without guidance, and explains its outputs by what its encoders' layers read.

    E_l is the attribution of layer l's input: of the sequence that enters its block, which with
    pre-norm is the residual stream before its norm. What is explained is this pass's score, or of
    several scores each sample's largest. The pass, its explanation and the pass that this guides
    draw the same dropout masks: the network that is explained is the one that is guided. The
    explanation is a constant for training: no gradient flows through it, to weights or input.

    Args:
        model: bound, with parameters; its class takes `(config, spec)`, and its call `begin`.
        features: `{modality: [B, T_m, d_m]}`.
        masks: `{modality: [B, T_m]}` bool.
        attention_masks: `{modality: [T_m, T_m] or [B, T_m, T_m]}`, for any of the modalities.
        train: draw dropout masks.

    Returns:
        The first pass's scores `[B, K]`, and `{modality: (E_0, E_1, …)}`, each `[B, T_m, D]`.
    """
    plain = type(model)(
        dataclasses.replace(model.config, guidance="none"), model.spec, parent=None
    )
    # The model's own random stream, so that every pass draws the same dropout masks.
    run = functools.partial(plain.apply, train=train, rngs=model.scope.rngs)
    variables = {k: v for k, v in model.variables.items() if k != "intermediates"}
    with jax.named_scope("coarse"):
        coarse, kept = run(
            variables,
            features,
            masks,
            attention_masks=attention_masks,
            mutable="intermediates",
        )
    read = {
        m: kept["intermediates"][f"{m}_encoder"]["read"][0] for m in model.spec.modalities
    }

    variables, features, attention_masks, read = jax.lax.stop_gradient(
        (variables, features, attention_masks, read)
    )
    chosen = jax.nn.one_hot(coarse.score.argmax(-1), coarse.score.shape[-1])  # [batch, labels]

    def output_from(modality: str, layer: int, x: jax.Array) -> jax.Array:
        """Computes what each sample's chosen output `[B]` is if a layer reads `x`."""
        # Other encoders begin behind their last layer: what x does not change is not computed.
        begin = {m: (len(inputs) - 1, inputs[-1]) for m, inputs in read.items()}
        begin[modality] = layer, x
        score = run(variables, features, masks, attention_masks=attention_masks, begin=begin).score
        return (score * chosen).sum(-1)

    with jax.named_scope("attribution"):
        guides = {
            m: tuple(
                attribute(model.config, functools.partial(output_from, m, layer), x)
                for layer, x in enumerate(inputs[:-1])
            )
            for m, inputs in read.items()
        }
    return coarse.score, jax.lax.stop_gradient(guides)
