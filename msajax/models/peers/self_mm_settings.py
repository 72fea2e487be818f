"""Holds the settings of Self-MM."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least, one_of, require

_SIZES = ("audio_lstm", "video_lstm", "audio_out", "video_out", "post_fusion", "post_text")
_SIZES += ("post_audio", "post_video")


@dataclasses.dataclass(frozen=True, repr=False)
class SelfMmSettings(Settings):
    """Says how large Self-MM is and how it makes labels; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; reference, what the toolkit's code does: text is its first step, whatever
            reads it, and samples that no step has read yet count in the centres, as zeros; or
            original, the authors' own: the same, and labels of 0 count as positive.
        audio_lstm: units of the LSTM over audio.
        video_lstm: units of the LSTM over video, and over any other modality.
        audio_out: size of the vector of audio.
        video_out: size of the vector of video, and of any other modality.
        post_fusion: size of the layers over all vectors.
        post_text: size of the layers over the vector of text.
        post_audio: size of the layers over the vector of audio.
        post_video: size of the layers over the vector of video, and of any other modality.
        fusion_dropout: dropout rate of all vectors, side by side.
        text_dropout: dropout rate of the vector of text before its own layers.
        audio_dropout: dropout rate of the vector of audio before its own layers.
        video_dropout: dropout rate of the vector of video before its own layers, and of any other
            modality.
        audio_lstm_dropout: dropout rate of the last state over audio.
        video_lstm_dropout: dropout rate of the last state over video, and over any other modality.
        label_range: labels of single modalities lie between it and its negative, as those of all
            modalities must.
        exclude_zero: leave labels of 0 out of both centres; else, as in the authors' own code, they
            count as positive.
    """

    compat: str = "clean"
    audio_lstm: int = 16
    video_lstm: int = 32
    audio_out: int = 16
    video_out: int = 32
    post_fusion: int = 128
    post_text: int = 32
    post_audio: int = 16
    post_video: int = 32
    fusion_dropout: float = 0.0
    text_dropout: float = 0.1
    audio_dropout: float = 0.1
    video_dropout: float = 0.0
    audio_lstm_dropout: float = 0.0
    video_lstm_dropout: float = 0.0
    label_range: float = 3.0
    exclude_zero: bool = True

    def __post_init__(self) -> None:
        """Checks every setting."""
        prefix = "model.self_mm"
        one_of(self, f"{prefix}.compat", "clean", "reference", "original")
        at_least(self, prefix, 1, *_SIZES)
        are_rates(self, prefix)
        require(self, f"{prefix}.label_range", self.label_range > 0, "must be above 0")

    @property
    def zero_is_positive(self) -> bool:
        """Whether labels of 0 count as positive; else they are left out."""
        return not self.exclude_zero or self.compat == "original"
