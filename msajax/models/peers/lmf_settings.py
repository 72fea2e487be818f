"""Holds the settings of Low-rank Multimodal Fusion."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least, one_of


@dataclasses.dataclass(frozen=True, repr=False)
class LmfSettings(Settings):
    """Says how large a model of low-rank fusion is; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the toolkit's code does: means over padding as well, an
            LSTM that runs over it, and no dropout of text.
        rank: terms of the sum, each a product of one number for each modality.
        text_hidden: units of the LSTM over text, whose vector is half as large.
        audio_hidden: size of the layers of audio.
        video_hidden: size of the layers of video, and of any other modality.
        text_dropout: dropout rate of the LSTM's last state.
        audio_dropout: dropout rate of the mean of audio.
        video_dropout: dropout rate of the mean of video, and of any other modality.
    """

    compat: str = "clean"
    rank: int = 3
    text_hidden: int = 128
    audio_hidden: int = 16
    video_hidden: int = 128
    text_dropout: float = 0.3
    audio_dropout: float = 0.3
    video_dropout: float = 0.3

    def __post_init__(self) -> None:
        """Checks every setting."""
        prefix = "model.lmf"
        one_of(self, f"{prefix}.compat", "clean", "reference")
        at_least(self, prefix, 1, "rank", "audio_hidden", "video_hidden")
        at_least(self, prefix, 2, "text_hidden")
        are_rates(self, prefix)
