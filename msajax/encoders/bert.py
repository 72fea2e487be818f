"""Defines BERT, and RoBERTa and XLM-R, which differ in their positions and segments alone.

Devlin et al., 2019; Liu et al., 2019; Conneau et al., 2020.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.encoders.architecture import Architecture
from msajax.encoders.encoder import PretrainedEncoder
from msajax.encoders.weights import Sources, affine, norm, table
from msajax.layers.encoders import TransformerBlock


class Bert(PretrainedEncoder):
    """Encodes token ids by post-norm blocks of self-attention (see `PretrainedEncoder`)."""

    def make_layer(self, number: int) -> nn.Module:
        """Makes a post-norm block."""
        a = self.architecture
        config = ModelConfig(
            model_dim=a.width,
            num_heads=a.heads,
            ff_dim=a.ff_dim,
            activation=a.activation,
            norm_eps=a.norm_eps,
            dropout_rate=a.dropout,
            attention_dropout=a.attention_dropout,
            ffn_dropout=0.0,
            dtype=jnp.dtype(self.dtype).name,
        )
        return TransformerBlock(config, name=f"layers_{number}")

    def run_layer(
        self, layer: nn.Module, x: jax.Array, valid: jax.Array, shared: Any, *, train: bool
    ) -> jax.Array:
        """Applies a block."""
        return layer(x, x, (valid,), train=train)


def sources(architecture: Architecture) -> Sources:
    """Says which tensor each parameter is."""
    a = architecture
    # RoBERTa's positions begin after that of padding.
    first = 0 if a.kind == "bert" else a.padding_id + 1
    found = embeddings(a, first)
    for i in range(a.layers):
        found |= block(a, i, ("query", "key", "value"))
    return found


def embeddings(architecture: Architecture, first: int) -> Sources:
    """Says which tensors the embeddings are; positions are in the table's rows from `first` on."""
    a = architecture
    found = table("embeddings/words", "embeddings.word_embeddings", a.vocabulary, a.width)
    if a.segments:
        name = "embeddings.token_type_embeddings"
        found |= table("embeddings/segments", name, a.segments, a.width)
    if a.position_table:
        name = "embeddings.position_embeddings"
        found |= table("embeddings/positions", name, a.positions, a.width, first=first)
    return found | norm("embeddings/norm", "embeddings.LayerNorm", a.width)


def block(architecture: Architecture, i: int, projections: tuple[str, str, str]) -> Sources:
    """Says which tensors a layer's parameters are.

    Args:
        architecture: sizes.
        i: number of the layer.
        projections: what the tensors call those of queries, keys and values.
    """
    a = architecture
    there, here, width = f"encoder.layer.{i}", f"layers_{i}", (a.width,)
    heads = (a.heads, a.width // a.heads)
    found: Sources = {}
    for ours, theirs in zip(("query", "key", "value"), projections, strict=True):
        name = f"{there}.attention.self.{theirs}"
        found |= affine(f"{here}/attention/{ours}", name, width, heads)
    return {
        **found,
        **affine(f"{here}/attention/out", f"{there}.attention.output.dense", heads, width),
        **norm(f"{here}/norm_attention", f"{there}.attention.output.LayerNorm", a.width),
        **affine(f"{here}/ffn/inner", f"{there}.intermediate.dense", width, (a.ff_dim,)),
        **affine(f"{here}/ffn/outer", f"{there}.output.dense", (a.ff_dim,), width),
        **norm(f"{here}/norm_ffn", f"{there}.output.LayerNorm", a.width),
    }
