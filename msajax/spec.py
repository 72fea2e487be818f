"""Defines what the models need to know of the data, and nothing more."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class CorpusSpec:
    """Holds the names and sizes of a prepared corpus.

    The order of `modalities` is the only source of modality order anywhere: dictionaries are
    sorted by key when they cross a `jax.jit` boundary.

    Attributes:
        modalities: names, in the order of the gate's weights.
        widths: features per time step, one per modality.
        lengths: rows of each modality's position table (its longest prepared sequence).
        label_kind: what a label is: regression (a real number per name), classification (one of
            the named classes) or next_token (the following token; see `msajax.tasks`).
        label_names: one name per output of the model.
        vocabularies: rows of each modality's embedding table, 0 for one that is features; () means
            that all are.
    """

    modalities: tuple[str, ...]
    widths: tuple[int, ...]
    lengths: tuple[int, ...]
    label_kind: str = "regression"
    label_names: tuple[str, ...] = ("sentiment",)
    vocabularies: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Checks that there is one entry of each kind per modality."""
        each = (self.widths, self.lengths, self.vocabularies or self.widths)
        if not self.modalities or any(len(entries) != len(self.modalities) for entries in each):
            raise ValueError(
                f"modalities {self.modalities}, widths {self.widths}, lengths {self.lengths} and "
                f"vocabularies {self.vocabularies} must have the same number of entries"
            )

    def width(self, modality: str) -> int:
        """Returns the features per time step of one modality; 0 for token ids."""
        return self.widths[self.modalities.index(modality)]

    def length(self, modality: str) -> int:
        """Returns the rows of one modality's position table."""
        return self.lengths[self.modalities.index(modality)]

    def vocabulary(self, modality: str) -> int:
        """Returns the rows of one modality's embedding table; 0 if it is features."""
        return self.vocabularies[self.modalities.index(modality)] if self.vocabularies else 0

    def describe(self) -> str:
        """Lists modalities with width and longest sequence: `text (300 wide, 20 steps), …`."""
        sizes = zip(self.modalities, self.widths, self.lengths, strict=True)
        return ", ".join(
            f"{m} ({f'{width} wide' if width else 'token ids'}, {length} step{'s' * (length > 1)})"
            for m, width, length in sizes
        )

    def to_dict(self) -> dict[str, Any]:
        """Makes a JSON-ready form; `from_dict` reverses it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "CorpusSpec":
        """Rebuilds a spec from `to_dict`, also after a trip through JSON."""
        return cls(
            **{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        )
