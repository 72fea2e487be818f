"""Holds the settings of the floor that joins modalities step by step."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least


@dataclasses.dataclass(frozen=True, repr=False)
class EfLstmSettings(Settings):
    """Says how large an LSTM over joined modalities is.

    Attributes:
        hidden: units of the LSTM, and of the layer behind it.
        dropout: dropout rate of the LSTM's last state.
    """

    hidden: int = 128
    dropout: float = 0.3

    def __post_init__(self) -> None:
        """Checks every setting."""
        at_least(self, "model.ef_lstm", 1, "hidden")
        are_rates(self, "model.ef_lstm")
