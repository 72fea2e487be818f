"""Holds the settings of models whose modalities read one another, as MulT's do."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least, one_of, require


@dataclasses.dataclass(frozen=True, repr=False)
class CrossmodalSettings(Settings):
    """Says how large the encoders of `crossmodal.py` are, and what is dropped.

    Attributes:
        compat: clean; or reference, what the authors' code does: padding is seen and counted like
            any step, and features that are d_model wide already are not projected.
        d_model: width of every modality's steps.
        num_heads: attention heads.
        num_layers: layers of every encoder but those behind attention between two modalities, which
            have 3 or more.
        text_kernel: steps that the projection of text reads at a time.
        audio_kernel: steps that the projection of audio reads at a time.
        video_kernel: steps that the projection of video reads, and of any other modality.
        causal_mask: step i sees steps up to i, or as many more as one sequence is longer.
        positions: sinusoidal positions in every encoder.
        text_dropout: dropout rate of the text's features.
        embed_dropout: dropout rate of what every encoder reads.
        attention_dropout: dropout rate of attention to text, and behind attention between two
            modalities.
        audio_attention_dropout: dropout rate of attention to audio.
        video_attention_dropout: dropout rate of attention to video, and to any other modality.
        relu_dropout: dropout rate between the two layers of the feed-forward networks.
        residual_dropout: dropout rate of what attention and feed-forward networks add.
        out_dropout: dropout rate before the last layers.
    """

    compat: str = "clean"
    d_model: int = 50
    num_heads: int = 10
    num_layers: int = 2
    text_kernel: int = 5
    audio_kernel: int = 5
    video_kernel: int = 5
    causal_mask: bool = True
    positions: bool = True
    text_dropout: float = 0.5
    embed_dropout: float = 0.2
    attention_dropout: float = 0.3
    audio_attention_dropout: float = 0.2
    video_attention_dropout: float = 0.0
    relu_dropout: float = 0.0
    residual_dropout: float = 0.0
    out_dropout: float = 0.5

    def check(self, prefix: str) -> None:
        """Checks every setting; its name begins with a prefix, such as `model.mult`."""
        one_of(self, f"{prefix}.compat", "clean", "reference")
        sizes = ("d_model", "num_heads", "num_layers")
        at_least(self, prefix, 1, *sizes, "text_kernel", "audio_kernel", "video_kernel")
        divides = self.d_model % self.num_heads == 0
        requirement = f"must divide {prefix}.d_model = {self.d_model}"
        require(self, f"{prefix}.num_heads", divides, requirement)
        are_rates(self, prefix)
