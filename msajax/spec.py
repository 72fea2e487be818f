"""Defines what the models need to know of the data, and nothing more."""

import dataclasses
from typing import Any

from msajax.encoders.table import AnyArchitecture, architecture_from_dict
from msajax.tasks import TASKS


@dataclasses.dataclass(frozen=True)
class CorpusSpec:
    """Holds the names and sizes of a prepared corpus.

    The order of `modalities` is the only source of modality order anywhere: dictionaries are
    sorted by key when they cross a `jax.jit` boundary.

    Attributes:
        modalities: names, in the order of the gate's weights.
        widths: features per time step, one per modality; of sound that a pretrained encoder reads,
            the samples of a step and one more (see `preparation/waveforms.py`).
        lengths: rows of each modality's position table (its longest prepared sequence).
        label_kind: what a label is, by its name in `msajax.tasks`: regression (a real number per
            name), classification (one of the named classes), …
        label_names: one name per score.
        vocabularies: rows of each modality's embedding table, 0 for one that is features; () means
            that all are.
        encoders: the pretrained encoder that reads each modality, which is pieces then (see
            `preparation/pieces.py`) or sound; None for one without, () if all are.
        text_steps: steps that the pieces of the text are pooled to, one for each word; 0 where they
            are not pooled.
        groups: modalities that share their steps, two or more in each group and each in one at
            most; those that share steps with a pretrained encoder's text share those of its words.
    """

    modalities: tuple[str, ...]
    widths: tuple[int, ...]
    lengths: tuple[int, ...]
    label_kind: str = "regression"
    label_names: tuple[str, ...] = ("sentiment",)
    vocabularies: tuple[int, ...] = ()
    encoders: tuple[AnyArchitecture | None, ...] = ()
    text_steps: int = 0
    groups: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Checks that there is one entry of each kind per modality."""
        each = (self.widths, self.lengths, self.vocabularies or self.widths)
        each += (self.encoders or self.widths,)
        if not self.modalities or any(len(entries) != len(self.modalities) for entries in each):
            raise ValueError(
                f"modalities {self.modalities}, widths {self.widths}, lengths {self.lengths}, "
                f"vocabularies {self.vocabularies} and encoders {self.encoders} must have the same "
                "number of entries"
            )

    @property
    def outputs(self) -> int:
        """The number of outputs of a model."""
        return TASKS[self.label_kind].outputs(self.label_names)

    def width(self, modality: str) -> int:
        """Returns the features per time step of one modality; 0 for token ids and pieces."""
        return self.widths[self.modalities.index(modality)]

    def length(self, modality: str) -> int:
        """Returns the rows of one modality's position table."""
        return self.lengths[self.modalities.index(modality)]

    def vocabulary(self, modality: str) -> int:
        """Returns the rows of one modality's embedding table; 0 if it is features."""
        return self.vocabularies[self.modalities.index(modality)] if self.vocabularies else 0

    def encoder(self, modality: str) -> AnyArchitecture | None:
        """Returns the pretrained encoder that reads a modality; None if none does."""
        if not self.encoders or modality not in self.modalities:
            return None
        return self.encoders[self.modalities.index(modality)]

    def is_pieces(self, modality: str) -> bool:
        """Says whether a modality is the pieces that a pretrained encoder reads, `[N, P, 3]`."""
        return getattr(self.encoder(modality), "reads", "") == "pieces"

    def is_sound(self, modality: str) -> bool:
        """Says whether a modality is the samples that a pretrained encoder reads."""
        return getattr(self.encoder(modality), "reads", "") == "waveform"

    def stored_width(self, modality: str) -> int:
        """Returns the numbers of a step as files hold it: those of `width`, but 1 of sound."""
        return 1 if self.is_sound(modality) else self.width(modality)

    def has_features(self, modality: str) -> bool:
        """Says whether a modality is features: no token ids, pieces or sound."""
        return not self.vocabulary(modality) and self.encoder(modality) is None

    def has_table(self, modality: str) -> bool:
        """Says whether a modality is token ids that a model embeds itself."""
        return bool(self.vocabulary(modality)) and self.encoder(modality) is None

    def aligned_with(self, modality: str) -> tuple[str, ...]:
        """Returns the other modalities that share their steps with one."""
        group = next((group for group in self.groups if modality in group), ())
        return tuple(m for m in group if m != modality)

    def joined_to(self, modality: str) -> tuple[str, ...]:
        """Returns the other modalities that a model can join to one, step by step.

        They share its steps, or all have a single one. There are none for sound, nor for words that
        are pooled, which are cut otherwise than what stands beside them.
        """
        length = self.length(modality)
        # Of a single step each there is nothing to align.
        near = self.modalities if length == 1 else (modality, *self.aligned_with(modality))
        joined = [
            m
            for m in self.modalities
            if m in near
            and self.length(m) == length
            and not self.is_sound(m)
            and not (m == "text" and self.text_steps)
        ]
        return tuple(m for m in joined if m != modality) if modality in joined else ()

    def pooled_steps(self, pieces: int) -> int:
        """Returns the steps that text is pooled to where it is cut to so many pieces.

        They are the same share of `text_steps` as these pieces are of all, rounded up: whatever
        step a row of that length quarter has is one of them.
        """
        return -(-self.text_steps * pieces // self.length("text"))

    def describe(self) -> str:
        """Lists modalities with width and longest sequence: `text (300 wide, 20 steps), …`."""
        kinds = [
            encoder.describe()
            if (encoder := self.encoder(m))
            else f"{width} wide"
            if width
            else "token ids"
            for m, width in zip(self.modalities, self.widths, strict=True)
        ]
        return ", ".join(
            f"{m} ({kind}, {length} step{'s' * (length > 1)})"
            for m, kind, length in zip(self.modalities, kinds, self.lengths, strict=True)
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "CorpusSpec":
        """Rebuilds a spec from `dataclasses.asdict`, also after a trip through JSON."""
        values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        values["encoders"] = tuple(
            one and architecture_from_dict(one) for one in values.get("encoders", ())
        )
        values["groups"] = tuple(map(tuple, values.get("groups", ())))
        return cls(**values)
