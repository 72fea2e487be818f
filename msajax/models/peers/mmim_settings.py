"""Holds the settings of MMIM."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least, one_of, require


@dataclasses.dataclass(frozen=True, repr=False)
class MmimSettings(Settings):
    """Says how large MMIM is and what its terms weigh; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the authors' code does (the toolkit's is the same): text
            is its first step, whatever reads it; states of LSTMs are not dropped; likelihoods lack
            the logarithm of their variance, which then nothing bounds; and the projections of which
            entropies are taken stay as they began.
        audio_lstm: units of the LSTM over audio, of each direction.
        video_lstm: units of the LSTM over video, of each direction, and over any other modality.
        audio_out: size of the vector of audio.
        video_out: size of the vector of video, and of any other modality.
        fusion: size of the fused vector.
        audio_dropout: dropout rate of the last states over audio.
        video_dropout: dropout rate of the last states over video, and over any other modality.
        fusion_dropout: dropout rate of all vectors, side by side.
        nce_weight: weight of the contrastive term, by which the fused vector tells which vectors
            are of the same sample.
        bound_weight: weight of the log-likelihoods and the entropies, which together are a lower
            bound of what a modality tells of another.
        first_share: share of the batches that an epoch's first stage reads, in (0, 1].
    """

    compat: str = "clean"
    audio_lstm: int = 16
    video_lstm: int = 16
    audio_out: int = 16
    video_out: int = 16
    fusion: int = 128
    audio_dropout: float = 0.1
    video_dropout: float = 0.1
    fusion_dropout: float = 0.1
    nce_weight: float = 0.1
    bound_weight: float = 0.1
    first_share: float = 1.0

    def __post_init__(self) -> None:
        """Checks every setting."""
        prefix = "model.mmim"
        one_of(self, f"{prefix}.compat", "clean", "reference")
        at_least(self, prefix, 1, "audio_lstm", "video_lstm", "fusion")
        at_least(self, prefix, 4, "audio_out", "video_out")  # a quarter of them is projected on
        at_least(self, prefix, 0, "nce_weight", "bound_weight")
        are_rates(self, prefix)
        require(self, f"{prefix}.first_share", 0 < self.first_share <= 1, "must lie in (0, 1]")
