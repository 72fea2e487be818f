"""Defines wav2vec 2.0, HuBERT and WavLM: encoders of waveforms at 16 kHz.

Baevski et al., 2020; Hsu et al., 2021; Chen et al., 2022. Convolutions make a frame of every 320
samples, a convolution over frames adds positions, and Transformer blocks follow.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msajax.encoders.bert import Source, Sources, affine, norm, recomputed
from msajax.encoders.speech_architecture import SpeechArchitecture
from msajax.layers.attention import MultiHeadAttention
from msajax.layers.basic import Dropout, FeedForward, LayerNorm, bits_of_rows, dropout_numbers
from msajax.layers.linear import AffineLayer, gelu

_GROUP_EPS = 1e-5  # of the norm over time, which no configuration says
_VARIANCE_EPS = 1e-7  # of a waveform that is normalised
_SPAN = 10  # frames that are hidden together (SpecAugment)


class Convolutions(nn.Module):
    """Makes frames of a waveform, each of its own samples alone but for the norm over time."""

    architecture: SpeechArchitecture
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps `[B, S]`, of which each row has so many samples `[B]`, to `[B, T, C]`."""
        a = self.architecture
        x, channels = x[..., None], 1
        for i, (width, kernel, stride) in enumerate(a.convolutions):
            weight = self.param(
                f"kernel_{i}", nn.initializers.lecun_normal(), (kernel, channels, width)
            )
            x = jax.lax.conv_general_dilated(
                x.astype(self.dtype),
                weight.astype(self.dtype),
                (stride,),
                "VALID",
                dimension_numbers=("NWC", "WIO", "NWC"),
            )
            if a.conv_bias:
                x = x + self.param(f"bias_{i}", nn.initializers.zeros, (width,)).astype(x.dtype)
            lengths, channels = (lengths - kernel) // stride + 1, width
            if not a.norms_time:
                x = LayerNorm(_GROUP_EPS, self.dtype, name=f"norm_{i}")(x)
            elif i == 0:
                valid = jnp.arange(x.shape[1]) < lengths[:, None]  # [B, T]
                x = OverTime(self.dtype, name="norm_0")(x, valid)
            x = gelu(x)
        return x


class OverTime(nn.Module):
    """Normalises each channel over the valid frames of a sample, in float32."""

    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array) -> jax.Array:
        """Normalises `[B, T, C]`, whose valid frames are `[B, T]`."""
        shape = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        x, there = x.astype(jnp.float32), valid[..., None]
        count = jnp.maximum(there.sum(axis=1, keepdims=True), 1)
        mean = jnp.where(there, x, 0).sum(axis=1, keepdims=True) / count
        centred = jnp.where(there, x - mean, 0)
        variance = jnp.square(centred).sum(axis=1, keepdims=True) / count
        return (centred * jax.lax.rsqrt(variance + _GROUP_EPS) * scale + bias).astype(self.dtype)


class ConvolvedPositions(nn.Module):
    """Computes positions of frames by a grouped convolution over them, and GELU."""

    architecture: SpeechArchitecture
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, T, D]`, 0 at padding, to `[B, T, D]`."""
        a, length = self.architecture, x.shape[1]
        shape = (a.position_kernel, a.width // a.position_groups, a.width)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (a.width,))
        half = a.position_kernel // 2
        y = jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            (1,),
            [(half, half)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=a.position_groups,
        )
        return gelu(y[:, :length] + bias.astype(self.dtype))  # an even kernel makes one too many


class GatedPositions(nn.Module):
    """Scales the scores of distances for each head by a gate of the frame that asks (WavLM)."""

    heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, of_distances: jax.Array) -> jax.Array:
        """Maps frames `[B, T, D]` and scores `[H, T, T]` to `[B, H, T, T]`."""
        by_head = jnp.moveaxis(x.reshape(*x.shape[:2], self.heads, -1), 2, 1)  # [B, H, T, dh]
        gates = AffineLayer((by_head.shape[-1],), (8,), self.dtype, name="gates")(by_head)
        gates = jax.nn.sigmoid(gates.reshape(*gates.shape[:-1], 2, 4).sum(axis=-1))
        constant = self.param("constant", nn.initializers.ones, (self.heads, 1, 1))
        gate = gates[..., :1] * (gates[..., 1:] * constant - 1.0) + 2.0  # [B, H, T, 1]
        return gate * of_distances


class SpeechLayer(nn.Module):
    """Applies self-attention and the feed-forward network, with norms behind or before them."""

    architecture: SpeechArchitecture
    dtype: Any

    @nn.compact
    def __call__(
        self, x: jax.Array, valid: jax.Array, of_distances: jax.Array | None, *, train: bool
    ) -> jax.Array:
        """Maps `[B, T, D]` to `[B, T, D]`; `valid` is `[B, T]`, scores of distances `[H, T, T]`."""
        a = self.architecture
        attention = MultiHeadAttention(
            a.heads, a.width // a.heads, a.attention_dropout, self.dtype, name="attention"
        )
        ffn = FeedForward(a.ff_dim, a.activation, a.ffn_dropout, self.dtype, name="ffn")
        norm_attention = LayerNorm(a.norm_eps, self.dtype, name="norm_attention")
        norm_ffn = LayerNorm(a.norm_eps, self.dtype, name="norm_ffn")

        def mixed(x: jax.Array) -> jax.Array:
            added = None
            if of_distances is not None:
                added = GatedPositions(a.heads, self.dtype, name="gated")(x, of_distances)
            found = attention(x, x, (valid,), train=train, added=added)
            return Dropout(a.dropout)(found, train=train)

        def fed(x: jax.Array) -> jax.Array:
            return Dropout(a.dropout)(ffn(x, train=train), train=train)

        if a.pre_norm:
            x = x + mixed(norm_attention(x))
            return x + fed(norm_ffn(x))
        x = norm_attention(x + mixed(x))
        return norm_ffn(x + fed(x))


class SpeechEncoder(nn.Module):
    """Encodes waveforms by convolutions and Transformer blocks.

    What the layers read and write is kept as `hidden` in the `intermediates` collection.

    Attributes:
        remat: compute the inside of each layer again in the backward pass instead of keeping it.
        layer_drop: the probability that a sample leaves a layer out, in training.
        time_masking: the expected share of frames, in spans, that a learned vector replaces in
            training.
    """

    architecture: SpeechArchitecture
    dtype: Any
    remat: bool = False
    layer_drop: float = 0.0
    time_masking: float = 0.0

    def setup(self) -> None:
        """Makes the modules, which all parts of a long waveform go through."""
        a = self.architecture
        self.convolutions = Convolutions(a, self.dtype)
        if a.projection_norm:
            self.projection_norm = LayerNorm(a.norm_eps, self.dtype)
        self.projection = AffineLayer((a.convolutions[-1][0],), (a.width,), self.dtype)
        self.projection_drop = Dropout(a.projection_dropout)
        if self.time_masking:
            init = nn.initializers.normal(a.width**-0.5)
            self.mask_vector = self.param("mask_vector", init, (a.width,))
        self.positions = ConvolvedPositions(a, self.dtype)
        self.norm = LayerNorm(a.norm_eps, self.dtype)
        self.drop = Dropout(a.dropout)
        if a.buckets:
            self.distances = nn.Embed(a.buckets, a.heads)
        self.layers = [SpeechLayer(a, self.dtype) for _ in range(a.layers)]

    def __call__(
        self,
        waveform: jax.Array,
        lengths: jax.Array,
        *,
        kept: jax.Array | None = None,
        train: bool,
    ) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, S]`, of which each row has so many samples `[B]`, to frames and their mask.

        A waveform longer than `most_steps` is encoded in parts of as many, each of which ends with
        a frame that is not valid, so that frame t always begins at sample t * hop.

        Args:
            waveform: at 16 kHz; behind a row's last sample it may hold anything.
            lengths: samples of each row.
            kept: `[B, S / hop]`, or None for all: frames that may be valid.

        Returns:
            `[B, T, D]`, 0 where they are not valid, and `[B, T]` bool.
        """
        a = self.architecture
        there = jnp.arange(waveform.shape[1]) < lengths[:, None]
        waveform = jnp.where(there, waveform.astype(jnp.float32), 0)
        if a.normalizes:
            count = jnp.maximum(lengths, 1)[:, None]
            centred = jnp.where(there, waveform - waveform.sum(1, keepdims=True) / count, 0)
            variance = jnp.square(centred).sum(1, keepdims=True) / count
            waveform = centred * jax.lax.rsqrt(variance + _VARIANCE_EPS)
        steps, size = a.most_steps, a.most_steps * a.hop
        parts = []
        for first in range(0, waveform.shape[1], size):
            part = waveform[:, first : first + size]
            left = jnp.clip(lengths - first, 0, size)
            mask = None if kept is None else kept[:, len(parts) * steps :][:, :steps]
            hidden, valid = self.encode(part, left, mask, train=train)
            if waveform.shape[1] - first > size:  # another part follows
                fill = steps - valid.shape[1]
                valid = jnp.pad(valid, ((0, 0), (0, fill)))
                hidden = [jnp.pad(x, ((0, 0), (0, fill), (0, 0))) for x in hidden]
            parts.append((hidden, valid))
        valid = jnp.concatenate([valid for _, valid in parts], axis=1)
        of_layers = zip(*(hidden for hidden, _ in parts), strict=True)
        *hidden, output = (jnp.concatenate(of_parts, axis=1) for of_parts in of_layers)
        self.sow("intermediates", "hidden", tuple(hidden))
        return output, valid

    def read_steps(
        self, x: jax.Array, mask: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Maps prepared steps of sound `[B, T, hop + 1]` to frames `[B, T, D]` and their mask.

        See `preparation/waveforms.py`. A frame needs samples behind its step, so that the last
        steps of a row have none.
        """
        hop, steps = self.architecture.hop, x.shape[1]
        count = jnp.round(x[..., -1]).astype(jnp.int32)  # exact, as whole numbers up to hop are
        ends = jnp.where(mask, hop * jnp.arange(steps) + count, 0)
        waveform = jnp.where(mask[..., None], x[..., :-1], 0).reshape(x.shape[0], steps * hop)
        frames, valid = self(waveform, ends.max(axis=1), kept=mask, train=train)
        fill = steps - valid.shape[1]
        return jnp.pad(frames, ((0, 0), (0, fill), (0, 0))), jnp.pad(valid, ((0, 0), (0, fill)))

    def encode(
        self, waveform: jax.Array, lengths: jax.Array, kept: jax.Array | None, *, train: bool
    ) -> tuple[list[jax.Array], jax.Array]:
        """Encodes a part: what each layer reads, what the last one writes and the output; a mask.

        See `__call__`; all of them are `[B, T, D]`, and the mask `[B, T]`.
        """
        a = self.architecture
        x = self.convolutions(waveform, lengths)
        valid = jnp.arange(x.shape[1]) < a.frames(lengths)[:, None]
        if kept is not None:
            valid &= kept[:, : valid.shape[1]]
        if a.projection_norm:
            x = self.projection_norm(x)
        x = self.projection_drop(self.projection(x), train=train)
        if train and self.time_masking:
            x = jnp.where(self._spans(x.shape[:2])[..., None], self.mask_vector.astype(x.dtype), x)
        x = _kept(x, valid)
        x = x + self.positions(x)
        if not a.pre_norm:
            x = self.norm(x)
        x = self.drop(x, train=train)
        of_distances = None
        if a.buckets:
            scores = self.distances(bucket_of(a, x.shape[1]))
            of_distances = jnp.moveaxis(scores, -1, 0)  # [H, T, T]

        def run(layer: nn.Module, x: jax.Array, valid: jax.Array, shared: Any) -> jax.Array:
            return layer(x, valid, shared, train=train)

        if self.remat:
            run = recomputed(self, run)
        hidden = [x]
        for layer in self.layers:
            found = run(layer, x, valid, of_distances)
            if train and self.layer_drop:
                dropped = bits_of_rows(self, x.shape[:1]) < dropout_numbers(self.layer_drop)[0]
                found = jnp.where(dropped[:, None, None], x, found)
            x = found
            hidden.append(x)
        output = self.norm(x) if a.pre_norm else x
        return [_kept(one, valid) for one in (*hidden, output)], valid

    def _spans(self, shape: tuple[int, int]) -> jax.Array:
        """Draws which frames `[B, T]` are hidden: every frame begins a span with equal chance."""
        chance = 1 - (1 - self.time_masking) ** (1 / _SPAN)
        begins = bits_of_rows(self, shape) < dropout_numbers(chance)[0]
        hidden = jnp.cumsum(jnp.pad(begins, ((0, 0), (_SPAN, 0))), axis=1)
        return hidden[:, _SPAN:] > hidden[:, :-_SPAN]


MODULE = SpeechEncoder


def _kept(x: jax.Array, valid: jax.Array) -> jax.Array:
    return jnp.where(valid[..., None], x, 0)


def bucket_of(architecture: SpeechArchitecture, length: int) -> np.ndarray:
    """Returns which vector stands for the distance of each key from each query, `[T, T]`.

    Half of them are for keys behind the query. Half of each half are a vector for each distance;
    farther ones share some by the logarithm of their distance.
    """
    half = architecture.buckets // 2
    exact = half // 2
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    far = np.abs(distance)
    share = np.log(np.maximum(far, exact) / exact) / math.log(architecture.farthest / exact)
    far_bucket = np.minimum(exact + (share * (half - exact)).astype(np.int64), half - 1)
    return half * (distance > 0) + np.where(far < exact, far, far_bucket)


def sources(architecture: SpeechArchitecture) -> Sources:
    """Says which tensor each parameter is."""
    a, channels, width = architecture, 1, (architecture.width,)
    found: Sources = {}
    for i, (out, kernel, _) in enumerate(a.convolutions):
        name = f"feature_extractor.conv_layers.{i}"
        found[f"convolutions/kernel_{i}"] = Source(
            f"{name}.conv.weight", (out, channels, kernel), lambda w: w.transpose(2, 1, 0)
        )
        if a.conv_bias:
            found[f"convolutions/bias_{i}"] = Source(f"{name}.conv.bias", (out,), np.asarray)
        if i == 0 or not a.norms_time:
            found |= norm(f"convolutions/norm_{i}", f"{name}.layer_norm", out)
        channels = out
    if a.projection_norm:
        found |= norm("projection_norm", "feature_projection.layer_norm", channels)
    found |= affine("projection", "feature_projection.projection", (channels,), width)
    name = "encoder.pos_conv_embed.conv"
    shape = (a.width, a.width // a.position_groups, a.position_kernel)
    found["positions/kernel"] = Source(f"{name}.weight", shape, lambda w: w.transpose(2, 1, 0))
    found["positions/bias"] = Source(f"{name}.bias", width, np.asarray)
    found["mask_vector"] = Source("masked_spec_embed", width, np.asarray, optional=True)
    found |= norm("norm", "encoder.layer_norm", a.width)
    heads = (a.heads, a.width // a.heads)
    if a.buckets:
        name = "encoder.layers.0.attention.rel_attn_embed.weight"
        found["distances/embedding"] = Source(name, (a.buckets, a.heads), np.asarray)
    for i in range(a.layers):
        there, here = f"encoder.layers.{i}", f"layers_{i}"
        for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
            name = f"{there}.attention.{theirs}_proj"
            found |= affine(f"{here}/attention/{ours}", name, width, heads)
        found |= affine(f"{here}/attention/out", f"{there}.attention.out_proj", heads, width)
        found |= norm(f"{here}/norm_attention", f"{there}.layer_norm", a.width)
        ffn = f"{there}.feed_forward"
        found |= affine(f"{here}/ffn/inner", f"{ffn}.intermediate_dense", width, (a.ff_dim,))
        found |= affine(f"{here}/ffn/outer", f"{ffn}.output_dense", (a.ff_dim,), width)
        found |= norm(f"{here}/norm_ffn", f"{there}.final_layer_norm", a.width)
        if a.buckets:
            name = f"{there}.attention.gru_rel_pos"
            found |= affine(f"{here}/gated/gates", f"{name}_linear", heads[1:], (8,))
            found[f"{here}/gated/constant"] = Source(
                f"{name}_const", (1, a.heads, 1, 1), lambda x: x[0]
            )
    return found
