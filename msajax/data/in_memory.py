"""A corpus of splits that are in memory already."""

import collections
import hashlib
from collections.abc import Mapping, Sequence

from msajax.data.corpus import Corpus, Split, SplitHeader
from msajax.data.labels import describe_labels


def corpus_of(
    splits: Mapping[str, Split],
    *,
    path: str = "memory",
    layout: str = "splits in memory",
    label_names: Sequence[str] = (),
    integers: bool = False,
) -> Corpus:
    """Makes a corpus of splits.

    Args:
        splits: by name.
        path: what to call it.
        layout: likewise.
        label_names: names of the labels, or of classes stored as whole numbers.
        integers: whether labels are such whole numbers.

    Raises:
        UserError: if splits are empty or disagree in width or number of labels.
        ValueError: if the label names do not fit.
    """
    digest, ids = hashlib.sha256(), collections.Counter()
    digest.update(repr((*label_names, integers)).encode())
    for name, split in splits.items():
        digest.update(name.encode())
        for array in (split.labels, split.ids, split.raw_text):
            digest.update(b"" if array is None else array.tobytes())
        for m in split.features:
            digest.update(m.encode() + split.features[m].tobytes())
            digest.update(split.masks[m].tobytes() if m in split.masks else b"")
        ids.update(split.ids.tolist())
    return Corpus(
        path=path,
        layout=layout,
        digest=digest.hexdigest(),
        headers={name: _header(s, label_names, integers) for name, s in splits.items()},
        repeated_ids=sum(times > 1 for times in ids.values()),
        read=splits.__getitem__,
    )


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
        **labels,
    )
