"""Makes corpora of splits that are in memory already, and of others with another text."""

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from msajax.corpus.corpus import Corpus, Source, Split, SplitHeader
from msajax.corpus.embedding import Embedding
from msajax.corpus.labels import describe_labels

IN_MEMORY = Source("memory", "splits in memory")


def corpus_of(
    splits: Mapping[str, Split],
    *,
    source: Source = IN_MEMORY,
    label_names: Sequence[str] = (),
    integers: bool = False,
    aligned: Sequence[str] | None = None,
) -> Corpus:
    """Makes a corpus of splits.

    Its digest covers the arrays, not their storage: a recompressed copy is the same corpus.

    Args:
        splits: by name.
        source: what the splits were made of.
        label_names: names of the labels, or of classes stored as whole numbers.
        integers: whether labels are stored as whole numbers.
        aligned: modalities that share their steps; () if none do, None if that is not known.

    Raises:
        UserError: if splits are empty or do not fit together, or the aligned modalities do not.
        ValueError: if the label names do not fit.
    """
    digest = hashlib.sha256()
    aligned = None if aligned is None else tuple(aligned)
    digest.update(repr((*label_names, integers, aligned)).encode())
    for name, split in splits.items():
        digest.update(name.encode())
        arrays = {"label": split.labels, "id": split.ids, "raw_text": split.raw_text}
        arrays |= {"text_segments": split.segments, "text_pieces": split.pieces}
        arrays |= {**split.features, **{f"{m}_mask": mask for m, mask in split.masks.items()}}
        for part, array in arrays.items():
            if array is not None:
                update_digest(digest, part, array)
        if split.words is not None:
            digest.update(json.dumps(split.words.tolist()).encode())
    return Corpus(
        source=source,
        digest=digest.hexdigest(),
        headers={name: _header(s, label_names, integers) for name, s in splits.items()},
        ids={name: split.ids.tolist() for name, split in splits.items()},
        read=splits.__getitem__,
        aligned=aligned,
    )


def update_digest(digest: Any, name: str, array: np.ndarray) -> None:
    """Continues a digest of `hashlib` with an array: its name, type, shape and content."""
    array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
    digest.update(array.data)


def _header(split: Split, names: Sequence[str], integers: bool) -> SplitHeader:
    labels = {"label_names": ()}
    if split.labels is not None:
        labels = describe_labels(split.labels, integers=integers, names=names)
    return SplitHeader(
        size=len(split),
        shapes={m: (*x.shape[1:], 0)[:2] for m, x in split.features.items()},
        dtypes={m: x.dtype.name for m, x in split.features.items()},
        masked=frozenset(split.masks),
        has_raw_text=split.raw_text is not None,
        words=0 if split.words is None else split.words.shape[1],
        **labels,
    )


def with_text(
    corpus: Corpus, embed: Callable[[Split, str], Split], embedding: Embedding
) -> Corpus:
    """Returns a corpus whose text is made anew as its splits are read, to be written to a file.

    Args:
        corpus: whose transcripts are read.
        embed: (split, its name) -> the split with other text.
        embedding: says how.
    """
    changed = copy.copy(corpus)
    changed.source = dataclasses.replace(corpus.source, embedding=embedding)
    changed.split = lambda name: embed(corpus.split(name), name)
    if corpus.aligned is not None and embedding.pool == "pieces":
        changed.aligned = tuple(m for m in corpus.aligned if m != "text")
    return changed
