"""Holds the settings of the Multimodal Transformer."""

import dataclasses

from msajax.models.peers.crossmodal_settings import CrossmodalSettings


@dataclasses.dataclass(frozen=True, repr=False)
class MultSettings(CrossmodalSettings):
    """Says how large a Multimodal Transformer is; the defaults are the toolkit's for CMU-MOSI.

    Attributes:
        positions: sinusoidal positions in every encoder, which the authors' code has and the
            toolkit's has not.
    """

    num_layers: int = 4
    positions: bool = False

    def __post_init__(self) -> None:
        """Checks every setting."""
        self.check("model.mult")
