"""Names the arrays of a corpus, as the native archive and the mapped folder store them."""

from collections.abc import Iterator

import numpy as np

from msajax.corpus.corpus import Corpus, Split
from msajax.corpus.formats.arrays import ALIGNED, EMBEDDING, LABEL_NAME, WORDS
from msajax.corpus.formats.beside_text import PIECES, SEGMENTS
from msajax.corpus.labels import describe_labels
from msajax.errors import UserError

_LARGEST_WORDS = 1 << 33  # bytes


def named_arrays(corpus: Corpus) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and content of every array of a corpus, in the order of names.

    One split is in memory at a time. Classes are stored as whole numbers, so that they are classes
    when they are read again.
    """
    if corpus.aligned is not None:
        yield ALIGNED, np.array(corpus.aligned, np.str_)
    if corpus.source.embedding is not None:
        yield EMBEDDING, np.array([corpus.source.embedding.to_json()])
    if names := _stored_label_names(corpus):
        yield LABEL_NAME, np.array(names)
    for name in sorted(corpus.headers):
        split, header = corpus.split(name), corpus.headers[name]
        arrays = {"id": split.ids, **split.features}
        arrays |= {f"{m}_mask": mask for m, mask in split.masks.items()}
        if split.labels is not None:
            kind = np.int64 if header.label_kind == "classes" else np.float64
            labels = split.labels.astype(kind)
            arrays["label"] = labels[:, 0] if labels.shape[1] == 1 else labels
        if split.raw_text is not None:
            arrays["raw_text"] = split.raw_text
        if split.words is not None:
            arrays[WORDS] = _as_text(split)
        if split.segments is not None:
            arrays[SEGMENTS] = split.segments
        if split.pieces is not None:
            arrays[PIECES] = split.pieces
        for key in sorted(arrays):
            yield f"{name}/{key}", np.ascontiguousarray(arrays[key])


def _as_text(split: Split) -> np.ndarray:
    """Returns the words of a split as an array of text, in which each takes as much as the longest.

    Raises:
        UserError: if that is more than a few gigabytes.
    """
    words = split.words
    if words.dtype.kind == "U":
        return words
    longest = max(map(len, words.flat), default=0)
    if 4 * longest * words.size > _LARGEST_WORDS:
        raise UserError(
            f"{split.where}: {words.size} words take over {_LARGEST_WORDS} bytes when each has "
            f"room for the {longest} letters of the longest: leave that one out."
        )
    return words.astype(np.str_)


def _stored_label_names(corpus: Corpus) -> tuple[str, ...]:
    """Returns the names of the labels or classes, or () if reading would give them the same."""
    header = next((h for h in corpus.headers.values() if h.label_names), None)
    if header is None:
        return ()
    if header.label_kind == "classes":
        own = any(name != str(value) for value, name in header.classes.items())
        if own:
            return tuple(header.classes.values())
    usual = describe_labels(np.zeros((1, len(header.label_names))), integers=False)
    return () if header.label_names == usual["label_names"] else header.label_names
