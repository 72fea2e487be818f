"""Holds the settings of the floor that joins the means of modalities."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least


@dataclasses.dataclass(frozen=True, repr=False)
class LfDnnSettings(Settings):
    """Says how large a network over joined means is.

    Attributes:
        hidden: size of the three layers of each modality.
        post_fusion: size of the two layers behind them.
        dropout: dropout rate of each mean.
        post_dropout: dropout rate of the joined vectors.
    """

    hidden: int = 64
    post_fusion: int = 64
    dropout: float = 0.3
    post_dropout: float = 0.3

    def __post_init__(self) -> None:
        """Checks every setting."""
        at_least(self, "model.lf_dnn", 1, "hidden", "post_fusion")
        are_rates(self, "model.lf_dnn")
