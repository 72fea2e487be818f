"""Fuses modalities: by cross-attention around an anchor, or attention between pooled vectors."""

from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.layers.encoders import Given, TransformerBlock, stack
from msajax.layers.heads import pool


class AnchoredFusion(nn.Module):
    """Applies `n_layers_fuse` layers of cross-attention around one anchor (source 002, R5).

    In each layer the anchor attends to every other modality in turn; with
    `bidirectional_fusion`, each of them then attends to the anchor: as it is after that when
    `fusion` is sequential, as it came into the layer when it is parallel.

    Attributes:
        config: sizes, rates and choices.
        modalities: names, in order.
        anchor: one of them.
    """

    config: ModelConfig
    modalities: tuple[str, ...]
    anchor: str

    @nn.compact
    def __call__(
        self,
        sequences: Mapping[str, jax.Array],
        masks: Mapping[str, jax.Array],
        *,
        train: bool,
    ) -> dict[str, jax.Array]:
        """Fuses sequences `{modality: [B, T_m, D]}` under masks `{modality: [B, T_m]}`."""
        fused = dict(sequences)
        pairs = pairs_of(self.config, self.modalities, self.anchor)
        for i in range(self.config.n_layers_fuse):
            layer = FusionLayer(self.config, pairs, name=f"layers_{i}")
            fused = layer(fused, masks, train=train)
        return fused


def pairs_of(
    config: ModelConfig, modalities: tuple[str, ...], anchor: str
) -> tuple[tuple[str, str], ...]:
    """Lists who attends to whom in a layer: (query modality, context modality), in order."""
    pairs = [(anchor, m) for m in modalities if m != anchor]
    if config.bidirectional_fusion:
        pairs += [(m, anchor) for m in modalities if m != anchor]
    return tuple(pairs)


def names_of(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Names the block of each pair."""
    names = [f"{query}_from_{context}" for query, context in pairs]
    if len(set(names)) < len(names):  # modalities may be called a, b_from_a and a_from_b
        names = [f"{i}_{name}" for i, name in enumerate(names)]
    return names


class FusionLayer(nn.Module):
    """Applies a chain of cross-attention blocks.

    Each reads what the ones before it wrote, or, in parallel fusion, contexts as they came in.

    Attributes:
        config: sizes, rates and choices.
        pairs: (query modality, context modality), in order.
    """

    config: ModelConfig
    pairs: tuple[tuple[str, str], ...]

    @nn.compact
    def __call__(
        self,
        sequences: Mapping[str, jax.Array],
        masks: Mapping[str, jax.Array],
        *,
        train: bool,
    ) -> dict[str, jax.Array]:
        """Maps `{modality: [B, T_m, D]}` to the same shapes."""
        fused = dict(sequences)
        # Parallel fusion differs in the contexts alone: a query that attends to two modalities does
        # so in turn, which needs no rule for merging two answers.
        contexts = sequences if self.config.fusion == "parallel" else fused
        for name, (query, context) in zip(names_of(self.pairs), self.pairs, strict=True):
            block = TransformerBlock(self.config, name=name)
            fused[query] = block(
                fused[query], contexts[context], (masks[context],), train=train
            )  # [batch, query length, model_dim]
        return fused


class PooledFusion(nn.Module):
    """Pools modalities, and lets them attend to each other: the early-pooling baseline (R14).

    The pooled vectors are a sequence of length M for `n_layers_fuse` self-attention blocks. An
    absent modality is masked there.

    Attributes:
        config: sizes, rates and choices.
        modalities: names, in order.
    """

    config: ModelConfig
    modalities: tuple[str, ...]

    @nn.compact
    def __call__(
        self,
        sequences: Mapping[str, jax.Array],
        masks: Mapping[str, jax.Array],
        *,
        train: bool,
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Turns `{modality: [B, T_m, D]}` into `{modality: [B, 1, D]}`, and the masks likewise."""
        c, names = self.config, self.modalities
        tokens, present = pool(c, names, sequences, masks)  # [batch, modalities, model_dim]
        tokens = tokens.astype(jnp.dtype(c.dtype))
        given = Given((present,))
        tokens, _ = stack(c, "transformer", range(c.n_layers_fuse), tokens, given, train=train)
        one = {m: slice(i, i + 1) for i, m in enumerate(names)}
        return {m: tokens[:, one[m]] for m in names}, {m: present[:, one[m]] for m in names}
