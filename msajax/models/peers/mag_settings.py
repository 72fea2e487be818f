"""Holds the settings of MAG-BERT."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least, one_of


@dataclasses.dataclass(frozen=True, repr=False)
class MagSettings(Settings):
    """Says how far voice and face shift the pieces of text; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the authors' code does: where a modality has no row, as at
            special pieces, a row of zeros shifts the piece by what the biases say.
        beta_shift: the longest shift, relative to the length of a piece's vector.
        gate_dropout: dropout rate of the shifted pieces.
    """

    compat: str = "clean"
    beta_shift: float = 1.0
    gate_dropout: float = 0.3

    def __post_init__(self) -> None:
        """Checks every setting."""
        prefix = "model.mag"
        one_of(self, f"{prefix}.compat", "clean", "reference")
        at_least(self, prefix, 0, "beta_shift")
        are_rates(self, prefix)
