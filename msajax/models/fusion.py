"""Cross-modal fusion: the anchor modality attends to the others, and optionally back."""

from collections.abc import Mapping

import flax.linen as nn
import jax

from msajax.config import ModelConfig
from msajax.models.encoders import TransformerBlock


class AnchoredFusion(nn.Module):
    """`n_layers_fuse` layers of cross-attention around one anchor (source 002, R5).

    In each layer the anchor attends to every other modality in turn; with
    `bidirectional_fusion`, each of them then attends to the anchor as it is after that.

    Attributes:
        config: sizes and rates.
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
        contexts = [m for m in self.modalities if m != self.anchor]
        pairs = [(self.anchor, m) for m in contexts]
        if self.config.bidirectional_fusion:
            pairs += [(m, self.anchor) for m in contexts]
        for i in range(self.config.n_layers_fuse):
            layer = FusionLayer(self.config, tuple(pairs), name=f"layers_{i}")
            fused = layer(fused, masks, train=train)
        return fused


class FusionLayer(nn.Module):
    """A chain of cross-attention blocks, each reading what the ones before it wrote.

    Attributes:
        config: sizes and rates.
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
        for query, context in self.pairs:
            block = TransformerBlock(self.config, name=f"{query}_from_{context}")
            fused[query] = block(
                fused[query], fused[context], (masks[context],), train=train
            )  # [batch, query length, model_dim]
        return fused
