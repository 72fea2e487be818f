"""What the models need to know of the data, and nothing more."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class CorpusSpec:
    """Names and sizes of a prepared corpus.

    The order of `modalities` is the only source of modality order anywhere: dictionaries are
    sorted by key when they cross a `jax.jit` boundary.

    Attributes:
        modalities: names, in the order of the gate's weights.
        widths: features per time step, one per modality.
        lengths: rows of each modality's position table (its longest prepared sequence).
        label_kind: what a label is; "regression": one real number per name.
        label_names: one name per output of the model.
    """

    modalities: tuple[str, ...]
    widths: tuple[int, ...]
    lengths: tuple[int, ...]
    label_kind: str = "regression"
    label_names: tuple[str, ...] = ("sentiment",)

    def __post_init__(self) -> None:
        """Checks that there is one width and one length per modality."""
        if not len(self.modalities) == len(self.widths) == len(self.lengths) > 0:
            raise ValueError(
                f"modalities {self.modalities}, widths {self.widths} and lengths {self.lengths} "
                "must have the same number of entries, at least one"
            )

    def width(self, modality: str) -> int:
        """Features per time step of one modality."""
        return self.widths[self.modalities.index(modality)]

    def length(self, modality: str) -> int:
        """Rows of one modality's position table."""
        return self.lengths[self.modalities.index(modality)]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form; `from_dict` reverses it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "CorpusSpec":
        """Rebuilds a spec from `to_dict`, also after a trip through JSON."""
        return cls(
            **{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        )
