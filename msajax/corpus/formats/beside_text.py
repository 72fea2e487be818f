"""Checks arrays that say something of each step of a text: segment ids, and names of pieces."""

from collections.abc import Sequence

import numpy as np

from msajax.errors import UserError

SEGMENTS, PIECES = "text_segments", "text_pieces"
# Types, axes of the text that they need, what such a text is, what they are.
_KINDS = {
    SEGMENTS: ("iu", 2, "token ids", "whole numbers"),
    PIECES: ("U", 3, "features", "strings"),
}


def require_beside_text(
    where: str, dtype: np.dtype, shape: Sequence[int], text: Sequence[int]
) -> None:
    """Refuses an array that does not fit the text step by step.

    Args:
        where: the file, then `<split>/text_segments` or `<split>/text_pieces`, for the message.
        dtype: of the array.
        shape: of the array.
        text: the shape of the text, `(N, T, d)` or for token ids `(N, T)`; () without text.

    Raises:
        UserError: for another kind of text, type or shape.
    """
    split, _, name = where.rpartition("/")
    kinds, axes, of, wanted = _KINDS[name]
    if len(text) != axes:
        split = split.rpartition(" ")[2]
        raise UserError(f"{where} is there, but {split}/text is no {of}.")
    if dtype.kind not in kinds or tuple(shape) != tuple(text[:2]):
        raise UserError(
            f"{where} is {dtype} of shape {shape}; expected {wanted} of shape {tuple(text[:2])}."
        )
