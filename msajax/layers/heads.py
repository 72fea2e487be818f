"""Pools under masks, and weighs modalities."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msajax.config import ModelConfig
from msajax.layers.basic import Dropout
from msajax.layers.linear import batched_product, kernel_init

Arrays = Mapping[str, jax.Array]  # by modality
_ANCHOR_LOGIT = 4.0  # of a gate that begins at the anchor, which then weighs 0.98 of two, 0.96 of 3


def mean_pool(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Averages `x` `[B, T, D]` over valid steps, `mask` `[B, T]`: `[B, D]` float32, 0 for none."""
    kept = jnp.where(mask[..., None], x.astype(jnp.float32), 0)
    count = mask.sum(-1, keepdims=True, dtype=jnp.float32)  # [batch, 1]
    return kept.sum(1) / jnp.maximum(count, 1)


class AttentionPool(nn.Module):
    """Sums the valid steps, weighted by the softmax of a learned score (source 002, R7)."""

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Pools `x` `[B, T, D]` under `mask` `[B, T]` to `[B, D]` float32, 0 for none."""
        x = x.astype(jnp.float32)
        hidden = nn.Dense(max(x.shape[-1] // 4, 1), kernel_init=kernel_init, name="hidden")(x)
        scores = nn.Dense(1, kernel_init=kernel_init, name="score")(nn.tanh(hidden))[..., 0]
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)  # [batch, length]
        weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)  # [batch, length]
        # Padded steps must not enter even with weight 0: they may not be finite.
        return jnp.einsum("bt,btd->bd", weights, jnp.where(mask[..., None], x, 0))


def pool(
    config: ModelConfig, modalities: tuple[str, ...], sequences: Arrays, masks: Arrays
) -> tuple[jax.Array, jax.Array]:
    """Pools `{modality: [B, T_m, D]}` under `{modality: [B, T_m]}` by the configured method.

    Learned scorers belong to the module whose method calls this.

    Returns:
        Vectors `[B, M, D]` float32, and `[B, M]` bool: which of them count.
    """
    if config.pooling_method == "attention":
        pools = {m: AttentionPool(name=f"{m}_pool") for m in modalities}
    else:
        pools = dict.fromkeys(modalities, mean_pool)
    pooled = jnp.stack([pools[m](sequences[m], masks[m]) for m in modalities], axis=1)
    present = jnp.stack([masks[m].any(-1) for m in modalities], axis=1)
    if config.missing_modality == "reference":
        present = jnp.ones_like(present)
    return pooled, present


def pool_words(x: jax.Array, step: jax.Array, words: int, pool: str) -> tuple[jax.Array, jax.Array]:
    """Makes a vector of the pieces of each word.

    Args:
        x: `[B, P, D]`.
        step: `[B, P]`, the number of the word that a piece belongs to; -1 for none.
        words: W, how many there may be.
        pool: words, the mean of a word's pieces; or first, its first one.

    Returns:
        `[B, W, D]`, and the mask `[B, W]` of the words that have a piece.
    """
    belongs = step[:, None] == jnp.arange(words)[:, None]  # [batch, words, pieces]
    if pool == "first":
        belongs &= belongs.cumsum(-1) == 1
    count = belongs.sum(-1, keepdims=True)
    share = (belongs / jnp.maximum(count, 1)).astype(x.dtype)
    return batched_product(share, x, x.dtype), count[..., 0] > 0


class ModalityGate(nn.Module):
    """Weighs the modalities of each sample: Dense(D/2, relu) -> Dropout -> Dense(M, softmax).

    Source 002 names no activation of the hidden layer; relu is msa-tf2's (`docs/sources.md`). What
    the gate sees, whether it has the hidden layer and where it begins are settings.

    Attributes:
        anchor: position of the anchor among the modalities.
    """

    config: ModelConfig
    anchor: int = 0

    @nn.compact
    def __call__(self, pooled: jax.Array, present: jax.Array, *, train: bool) -> jax.Array:
        """Weighs `pooled` `[B, M, D]`, of which `present` `[B, M]` count, to `[B, M]`.

        The input is the mean over the modalities that count, or all of them side by side with zero
        for those that do not; the others' logits are masked, so that their weight is exactly 0.
        """
        modalities, model_dim = pooled.shape[1:]
        if self.config.gate_input == "concat":
            hidden = concatenate(pooled, present)  # [batch, modalities * model_dim]
        else:
            hidden = mean_pool(pooled, present)  # [batch, model_dim]
        if self.config.gate_hidden:
            units = max(model_dim // 2, 1)
            hidden = nn.Dense(units, kernel_init=kernel_init, name="hidden")(hidden)
            hidden = nn.relu(hidden) if self.config.gate_activation == "relu" else hidden
            hidden = Dropout(self.config.rate())(hidden, train=train)
        first = np.zeros(modalities, np.float32)
        if self.config.gate_start == "anchor":
            first[self.anchor] = _ANCHOR_LOGIT
        bias_init = nn.initializers.constant(first)
        weigh = nn.Dense(modalities, kernel_init=kernel_init, bias_init=bias_init, name="weights")
        logits = weigh(hidden)
        logits = jnp.where(present, logits, jnp.finfo(jnp.float32).min)  # [batch, modalities]
        return jnp.where(present, jax.nn.softmax(logits, axis=-1), 0)


def concatenate(pooled: jax.Array, present: jax.Array) -> jax.Array:
    """Reshapes `[B, M, D]` to `[B, M D]`, with zeros where `present` `[B, M]` is not set."""
    return jnp.where(present[..., None], pooled, 0).reshape(pooled.shape[0], -1)


class AdaptiveHead(nn.Module):
    """Pools each modality and makes them one vector (source 002, R6-R8). Float32.

    Attributes:
        config: pooling method, kind of head, gate and the treatment of absent modalities count.
        modalities: their order is that of the weights.
        anchor: the modality that a gate may begin at; "" for the first.
    """

    config: ModelConfig
    modalities: tuple[str, ...]
    anchor: str = ""

    @nn.compact
    def __call__(
        self, sequences: Arrays, masks: Arrays, *, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Pools `{modality: [B, T_m, D]}` under `{modality: [B, T_m]}`.

        Returns:
            One vector `[B, D]`, or `[B, M D]` of a concatenating head, and the modality
            weights `[B, M]`: those of the gate, else equal ones for the modalities that count.
        """
        if self.config.fusion == "pooled":  # one vector per modality is left
            pooled = jnp.concatenate([sequences[m] for m in self.modalities], axis=1)
            pooled = pooled.astype(jnp.float32)  # [batch, modalities, model_dim]
            present = jnp.concatenate([masks[m] for m in self.modalities], axis=1)
        else:
            pooled, present = pool(self.config, self.modalities, sequences, masks)
        if self.config.head == "weighted_sum":
            anchor = self.modalities.index(self.anchor or self.modalities[0])
            gate = ModalityGate(self.config, anchor, name="gate")
            weights = gate(pooled, present, train=train)
        else:  # a mean or a concatenation has equal weights, so that every model reports some
            weights = present / jnp.maximum(present.sum(-1, keepdims=True), 1)
        if self.config.head == "concat":
            return concatenate(pooled, present), weights
        return jnp.einsum("bm,bmd->bd", weights, pooled), weights


class HiddenLayers(nn.Module):
    """Applies `n_layers_head` layers with ReLU to a pooled vector, with dropout around them.

    As of a deep averaging network (Iyyer et al., 2015). Float32.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, D]` to `[B, model_dim]`; without layers it is dropout alone."""
        dropout = Dropout(self.config.rate("head_dropout"))
        x = dropout(x, train=train)
        for k in range(self.config.n_layers_head):
            layer = nn.Dense(self.config.model_dim, kernel_init=kernel_init, name=f"layers_{k}")
            x = dropout(nn.relu(layer(x)), train=train)
        return x
