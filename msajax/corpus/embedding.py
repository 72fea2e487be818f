"""Says by which text encoder, and how, the text features of a corpus were made."""

import dataclasses
import json
from typing import Any

from msajax.errors import UserError

_POOLS = ("pieces", "words", "first")


@dataclasses.dataclass(frozen=True)
class Embedding:
    """Holds what makes features of transcripts: it travels in the corpus, the run and the bundle.

    Attributes:
        digest: of the text encoder's folder.
        kind: of the encoder, as bert.
        width: features per step.
        pool: what a step is: a piece, the mean of a word's pieces (words), or its first one.
        special: whether special pieces, such as [CLS] and [SEP], are steps, too.
        max_len: the most pieces of a transcript, special ones included; 0 for as many as the
            encoder takes.
        truncate: what happens to a longer one: error, first, last or uniform.
    """

    digest: str
    kind: str
    width: int
    pool: str = "pieces"
    special: bool = True
    max_len: int = 0
    truncate: str = "error"

    def to_json(self) -> str:
        """Returns what a corpus stores of it; `from_json` reverses it."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> "Embedding":
        """Reads what a corpus stores.

        Args:
            text: from `to_json`.
            where: the array, for the message.

        Raises:
            UserError: for anything else.
        """
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(
                f"{where} does not say how the text was embedded: write the corpus anew with "
                "--mode embed."
            ) from error

    @classmethod
    def from_dict(cls, values: Any) -> "Embedding":
        """Makes an embedding of its fields by name; raises `ValueError` or `TypeError`."""
        made = cls(**values)
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        if any(type(getattr(made, name)) is not kind for name, kind in kinds.items()):
            raise TypeError("a field is of another type")
        if made.pool not in _POOLS or made.width < 1 or made.max_len < 0:
            raise ValueError("a field is out of range")
        return made

    def describe(self) -> str:
        """Puts it into words: "bert, 384 wide, pieces (a1b2c3d4e5f6)"."""
        return f"{self.kind}, {self.width} wide, {self.pool} ({self.digest[:12]})"
