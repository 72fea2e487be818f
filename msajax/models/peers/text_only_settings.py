"""Holds the settings of the floor that reads text alone."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least


@dataclasses.dataclass(frozen=True, repr=False)
class TextOnlySettings(Settings):
    """Says how large a network over the mean of text is.

    Attributes:
        hidden: size of its two layers.
        dropout: dropout rate of the mean, and of what each layer writes.
    """

    hidden: int = 128
    dropout: float = 0.3

    def __post_init__(self) -> None:
        """Checks every setting."""
        at_least(self, "model.text_only", 1, "hidden")
        are_rates(self, "model.text_only")
