"""Holds the settings of the Tensor Fusion Network."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least, one_of, require


@dataclasses.dataclass(frozen=True, repr=False)
class TfnSettings(Settings):
    """Says how large a Tensor Fusion Network is; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the toolkit's code does: means over padding as well, an
            LSTM that runs over it, and no dropout of text.
        text_hidden: units of the LSTM over text.
        text_out: size of the text's vector.
        audio_hidden: size of the layers of audio.
        video_hidden: size of the layers of video, and of any other modality.
        post_fusion: size of the layers behind the product.
        text_dropout: dropout rate of the LSTM's last state.
        audio_dropout: dropout rate of the mean of audio.
        video_dropout: dropout rate of the mean of video, and of any other modality.
        post_dropout: dropout rate of the product.
        lowest: scores are larger than it.
        highest: scores are smaller than it; 0, as `lowest`, for no bounds, which labels outside of
            [-3, 3] need. Classes have none in any case.
    """

    compat: str = "clean"
    text_hidden: int = 128
    text_out: int = 32
    audio_hidden: int = 32
    video_hidden: int = 128
    post_fusion: int = 64
    text_dropout: float = 0.3
    audio_dropout: float = 0.3
    video_dropout: float = 0.3
    post_dropout: float = 0.5
    lowest: float = -3.0
    highest: float = 3.0

    def __post_init__(self) -> None:
        """Checks every setting."""
        prefix = "model.tfn"
        one_of(self, f"{prefix}.compat", "clean", "reference")
        sizes = ("text_hidden", "text_out", "audio_hidden", "video_hidden", "post_fusion")
        at_least(self, prefix, 1, *sizes)
        are_rates(self, prefix)
        ok = self.lowest < self.highest or self.lowest == self.highest == 0
        requirement = f"must be more than {prefix}.lowest = {self.lowest}, or both must be 0"
        require(self, f"{prefix}.highest", ok, requirement)
