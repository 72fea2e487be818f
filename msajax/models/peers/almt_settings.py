"""Holds the settings of the Adaptive Language-guided Multimodal Transformer."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least, one_of


@dataclasses.dataclass(frozen=True, repr=False)
class AlmtSettings(Settings):
    """Says how large a language-guided Transformer is; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the authors' code does: padding is seen like any step.
        d_model: width of every token.
        num_tokens: tokens that each modality becomes.
        embed_depth: layers that make them.
        embed_heads: attention heads of these layers.
        embed_ff: inner width of their feed-forward networks.
        text_heads: attention heads of the layers over the text's tokens.
        text_ff: inner width of their feed-forward networks.
        hyper_depth: layers in which text asks the other modalities, each at a scale of its own.
        hyper_heads: attention heads of these layers.
        hyper_head_dim: size of such a head.
        fusion_depth: layers in which text reads what was learned of the others.
        fusion_heads: attention heads of these layers.
        fusion_ff: inner width of their feed-forward networks.
        head_dim: size of every other head.
        dropout: dropout rate of what each attention and each network adds.
    """

    compat: str = "clean"
    d_model: int = 128
    num_tokens: int = 8
    embed_depth: int = 1
    embed_heads: int = 8
    embed_ff: int = 128
    text_heads: int = 8
    text_ff: int = 128
    hyper_depth: int = 3
    hyper_heads: int = 8
    hyper_head_dim: int = 16
    fusion_depth: int = 2
    fusion_heads: int = 8
    fusion_ff: int = 128
    head_dim: int = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Checks every setting."""
        prefix = "model.almt"
        one_of(self, f"{prefix}.compat", "clean", "reference")
        sizes = [f.name for f in dataclasses.fields(self) if f.name not in ("compat", "dropout")]
        at_least(self, prefix, 1, *sizes)
        are_rates(self, prefix)
