"""Holds the settings of MISA."""

import dataclasses

from msajax.checks import Settings, are_rates, at_least, one_of, require


@dataclasses.dataclass(frozen=True, repr=False)
class MisaSettings(Settings):
    """Says how large a MISA is, and what its terms weigh; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the toolkit's code does: every modality but text is read
            for as many steps as text has, padding or not, one that a sample lacks counts as zeros,
            and LSTMs begin as PyTorch's do.
        hidden: size of the vectors of every modality.
        num_heads: heads of the attention between these vectors.
        ff_dim: inner width of the feed-forward network behind it.
        fusion_dropout: dropout rate of this attention and of this network.
        head_dropout: dropout rate inside the head.
        diff_weight: weight of the term `diff`, which is large if private and shared vectors, or
            private ones of two modalities, move together from sample to sample; 0 is without it.
        sim_weight: weight of `sim`, the distance of the shared vectors' moments between modalities;
            0 is without it.
        recon_weight: weight of `recon`, the error of what private and shared vectors say together
            of the one that both are made of; 0 is without it.
    """

    compat: str = "clean"
    hidden: int = 128
    num_heads: int = 2
    ff_dim: int = 2048
    fusion_dropout: float = 0.1
    head_dropout: float = 0.2
    diff_weight: float = 0.1
    sim_weight: float = 0.3
    recon_weight: float = 1.0

    def __post_init__(self) -> None:
        """Checks every setting."""
        prefix = "model.misa"
        one_of(self, f"{prefix}.compat", "clean", "reference")
        at_least(self, prefix, 1, "hidden", "num_heads", "ff_dim")
        requirement = f"must divide {prefix}.hidden = {self.hidden}"
        require(self, f"{prefix}.num_heads", self.hidden % self.num_heads == 0, requirement)
        are_rates(self, prefix)
        at_least(self, prefix, 0, "diff_weight", "sim_weight", "recon_weight")
