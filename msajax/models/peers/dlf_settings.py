"""Holds the settings of DLF."""

import dataclasses

from msajax.checks import at_least
from msajax.models.peers.crossmodal_settings import CrossmodalSettings


@dataclasses.dataclass(frozen=True, repr=False)
class DlfSettings(CrossmodalSettings):
    """Says how large a DLF is, and what its terms weigh; the defaults are those for CMU-MOSI.

    Attributes:
        attention_dropout: dropout rate of attention to text, of the encoder that all share, and
            behind attention between two modalities.
        text_weight: weight of the loss of the score of text alone; that of every other one is 1.
        rebuilt_weight: weight of the error of what both parts of a modality rebuild; 0 is without.
        again_weight: weight of the error of a modality's own part, made of what was rebuilt.
        apart_weight: weight of how alike the two parts of a step are.
        near_weight: weight of the term that shared vectors are nearer, the nearer their labels are.
    """

    text_weight: float = 3.0
    rebuilt_weight: float = 0.1
    again_weight: float = 0.1
    apart_weight: float = 0.01
    near_weight: float = 0.01

    def __post_init__(self) -> None:
        """Checks every setting."""
        self.check("model.dlf")
        names = [field.name for field in dataclasses.fields(self)]
        at_least(self, "model.dlf", 0, *(name for name in names if name.endswith("weight")))
