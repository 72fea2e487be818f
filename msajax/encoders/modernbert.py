"""Defines ModernBERT: pre-norm, rotary positions, windows in most layers (Warner et al., 2024)."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np

from msajax.encoders.architecture import Architecture
from msajax.encoders.bert import PretrainedEncoder, Source, Sources, affine, norm, table
from msajax.layers.attention import MultiHeadAttention
from msajax.layers.basic import Dropout, FeedForward, LayerNorm

# The gated form of each activation in `layers/basic.py`.
_GATED = {"gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}


class ModernBertLayer(nn.Module):
    """Computes `x = x + Drop(MHA(N(x)))`, then `x = x + FFN(N(x))`, gated.

    The first layer has no norm before its attention.
    """

    architecture: Architecture
    dtype: Any
    number: int

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        masks: tuple[jax.Array, ...],
        rotation: tuple[jax.Array, jax.Array],
        *,
        train: bool,
    ) -> jax.Array:
        """Maps `[B, T, D]` to `[B, T, D]`; see `MultiHeadAttention` for masks and rotation."""
        a, m = self.architecture, self.architecture.modern
        attention = MultiHeadAttention(
            num_heads=a.heads,
            head_dim=a.width // a.heads,
            dropout_rate=a.attention_dropout,
            dtype=self.dtype,
            qkv_bias=m.attention_bias,
            out_bias=m.attention_bias,
            name="attention",
        )
        read = x
        if self.number:
            read = LayerNorm(a.norm_eps, self.dtype, m.norm_bias, name="norm_attention")(x)
        mixed = attention(read, read, masks, train=train, rotation=rotation)
        x = x + Dropout(a.dropout)(mixed, train=train)
        ffn = FeedForward(
            ff_dim=a.ff_dim,
            activation=_GATED[a.activation],
            dropout_rate=m.ffn_dropout,
            dtype=self.dtype,
            inner_bias=m.ffn_bias,
            outer_bias=m.ffn_bias,
            name="ffn",
        )
        read = LayerNorm(a.norm_eps, self.dtype, m.norm_bias, name="norm_ffn")(x)
        return x + ffn(read, train=train)


class ModernBert(PretrainedEncoder):
    """Encodes token ids by layers of which most see a window (see `PretrainedEncoder`)."""

    def make_layer(self, number: int) -> nn.Module:
        """Makes a layer."""
        return ModernBertLayer(self.architecture, self.dtype, number, name=f"layers_{number}")

    def shared(self, length: int) -> Any:
        """Makes the window `[1, T, T]`, the rotation of all layers and that of the local ones."""
        a, m = self.architecture, self.architecture.modern
        steps = np.arange(length)
        window = np.abs(steps[:, None] - steps)[None] <= m.reach
        head_dim = a.width // a.heads
        return window, rotation(length, head_dim, m.base), rotation(length, head_dim, m.local_base)

    def run_layer(
        self, layer: nn.Module, x: jax.Array, valid: jax.Array, shared: Any, *, train: bool
    ) -> jax.Array:
        """Applies a layer, with a window if it is a local one."""
        window, everywhere, nearby = shared
        if self.architecture.modern.local[layer.number]:
            return layer(x, (valid, window), nearby, train=train)
        return layer(x, (valid,), everywhere, train=train)

    def finish(self, x: jax.Array) -> jax.Array:
        """Normalises what the last layer wrote."""
        a = self.architecture
        return LayerNorm(a.norm_eps, self.dtype, a.modern.norm_bias, name="final_norm")(x)


def rotation(length: int, head_dim: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes the factors of rotary positions for `rotate`, each `[1, T, head_dim]`.

    The angle of pair i at step t is `t base^(-2 i / head_dim)`. Its float32 is that of a float32
    frequency, as in the encoders whose weights these are.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = (1 / np.float32(base) ** exponents).astype(np.float32)
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies
    angles = np.repeat(angles, 2, axis=-1)[None]
    return np.cos(angles), np.sin(angles)


MODULE = ModernBert


def sources(architecture: Architecture) -> Sources:
    """Says which tensor each parameter is."""
    a, m = architecture, architecture.modern
    found = {
        **table("embeddings/words", "embeddings.tok_embeddings", a.vocabulary, a.width),
        **norm("embeddings/norm", "embeddings.norm", a.width, bias=m.norm_bias),
        **norm("final_norm", "final_norm", a.width, bias=m.norm_bias),
    }
    size, outer = a.width // a.heads, (a.width,)
    # The rotation turns number i of a head there with number i + half, ours turns neighbours: the
    # numbers of queries and keys are put in that order, which changes no score.
    neighbours = np.arange(size).reshape(2, -1).T.ravel()

    def part_of_joined(part: int, *inputs: int) -> Any:
        def read(joined: np.ndarray) -> np.ndarray:
            one = joined.reshape(3, a.heads, size, *inputs)[part]
            return np.moveaxis(one[:, neighbours] if part < 2 else one, range(2), (-2, -1))

        return read

    for i in range(a.layers):
        here, there = f"layers_{i}", f"layers.{i}"
        if i:
            name = f"{there}.attn_norm"
            found |= norm(f"{here}/norm_attention", name, a.width, bias=m.norm_bias)
        # The projections of queries, keys and values are joined.
        for part, ours in enumerate(("query", "key", "value")):
            path, name, shape = f"{here}/attention/{ours}", f"{there}.attn.Wqkv", (3 * a.width,)
            kernel = Source(f"{name}.weight", (*shape, a.width), part_of_joined(part, a.width))
            found[f"{path}/kernel"] = kernel
            if m.attention_bias:
                found[f"{path}/bias"] = Source(f"{name}.bias", shape, part_of_joined(part))
        # So are the first layers of the feed-forward network, of which the activated one is first.
        for ours, begin in (("gate", 0), ("inner", a.ff_dim)):
            path, name, shape = f"{here}/ffn/{ours}", f"{there}.mlp.Wi", (2 * a.ff_dim,)
            rows = slice(begin, begin + a.ff_dim)
            kernel = Source(f"{name}.weight", (*shape, a.width), lambda w, rows=rows: w[rows].T)
            found[f"{path}/kernel"] = kernel
            if m.ffn_bias:
                bias = Source(f"{name}.bias", shape, lambda w, rows=rows: w[rows])
                found[f"{path}/bias"] = bias
        path, name = f"{here}/attention/out", f"{there}.attn.Wo"
        found |= affine(path, name, (a.heads, size), outer, bias=m.attention_bias)
        path, name = f"{here}/ffn/outer", f"{there}.mlp.Wo"
        found |= affine(path, name, (a.ff_dim,), outer, bias=m.ffn_bias)
        found |= norm(f"{here}/norm_ffn", f"{there}.mlp_norm", a.width, bias=m.norm_bias)
    return found
