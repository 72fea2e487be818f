"""Decides how much of attention's maps a page keeps, and makes cells of their steps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from msajax.models.contributions import POOLED, PRETRAINED, Map
from msajax.spec import CorpusSpec

MOST = 3_000_000  # numbers in the maps of a page: some 8 MB
# What is tried in turn until a page holds no more than that: cells a side, and whether single heads
# are kept; the last one whatever it takes.
_FORMS = ((64, True), (32, True), (64, False), (32, False), (16, False))


class Detail(NamedTuple):
    """Says how much of the maps is kept.

    Attributes:
        cells: a side, at most.
        heads: whether single heads are kept beside their mean.
    """

    cells: int
    heads: bool

    def sizes(self, steps: Iterable[int]) -> tuple[int, ...]:
        """Returns how many steps a cell holds, for each of some numbers of steps."""
        return tuple(-(-count // self.cells) for count in steps)


class Shown(NamedTuple):
    """Holds a map of N samples in few cells.

    Where there are more steps than cells, a cell is the mean of as many asking steps as are needed,
    and the sum over as many answering ones, so that rows still sum to 1.

    Attributes:
        steps_of_cells: how many asking and answering steps a cell holds.
        mean: `[N, Q, A]`, over heads and random seeds.
        heads: `[N, H, Q, A]`, single ones of the first random seed; None if they are left out.
    """

    steps_of_cells: tuple[int, ...]
    mean: np.ndarray
    heads: np.ndarray | None


def asking_and_answering(
    spec: CorpusSpec,
    features: Mapping[str, np.ndarray],
    masks: Mapping[str, np.ndarray],
    special: bool,
    maps: Iterable[Map],
) -> dict[Map, tuple[np.ndarray, np.ndarray]]:
    """Returns for each map the steps `[B, T]` that ask, and those that answer.

    Args:
        spec: of the model.
        features: prepared, `{modality: [B, T_m, …]}`.
        masks: `{modality: [B, T_m]}`.
        special: `model.text_special`.
        maps: those that are asked for.
    """
    fused = dict(masks)
    if spec.is_pieces("text"):
        step = np.where(masks["text"], features["text"][..., 2], -1)
        words = np.arange(spec.pooled_steps(step.shape[1]))
        if spec.text_steps:  # of pooled text the words that have a piece
            fused["text"] = (step[:, None] == words[:, None]).any(-1)
        elif not special:
            fused["text"] = step >= 0
    present = np.stack([fused[m].any(axis=1) for m in spec.modalities], axis=1)

    def of(key: Map, modality: str) -> np.ndarray:
        if key.part == POOLED:
            return present
        return masks[modality] if key.part == PRETRAINED else fused[modality]

    return {key: (of(key, key.asks), of(key, key.answers)) for key in maps}


def choose_detail(
    shapes: Mapping[Map, Sequence[int]], there: Mapping[Map, tuple[np.ndarray, np.ndarray]]
) -> Detail:
    """Chooses how much of the maps of all samples a page has room for.

    Args:
        shapes: of each map, `(B, H, T_asks, T_answers)`.
        there: from `asking_and_answering`, for all samples.
    """
    for form in _FORMS:
        detail, numbers = Detail(*form), 0
        for key, (_, heads, *steps) in shapes.items():
            sizes = detail.sizes(steps)
            rows, columns = (
                -(-ends(mask) // size) for mask, size in zip(there[key], sizes, strict=True)
            )
            numbers += int((rows * columns).sum()) * (1 + heads * detail.heads)
        if numbers <= MOST:
            break
    return detail


def ends(mask: np.ndarray) -> np.ndarray:
    """Returns the number of steps `[N]` up to the last valid one of masks `[N, T]`."""
    return (mask * np.arange(1, mask.shape[1] + 1)).max(axis=1, initial=0)


def in_cells(attention: Any, asking: Any, sizes: tuple[int, ...]) -> Any:
    """Makes maps `[B, H, Q, A]` of few cells of attention `[B, H, T_asks, T_answers]`.

    Args:
        attention: a row for each asking step; an array of NumPy or JAX.
        asking: `[B, T_asks]`, the asking steps that count; a cell without any is 0.
        sizes: steps of a cell, asking and answering ones.
    """
    xp = attention.__array_namespace__()
    batch, heads, *steps = attention.shape
    fill = [(0, -n % size) for n, size in zip(steps, sizes, strict=True)]
    kept = xp.pad(xp.where(asking[:, None, :, None], attention, 0), [(0, 0), (0, 0), *fill])
    queries, keys = (n // size for n, size in zip(kept.shape[2:], sizes, strict=True))
    cells = kept.reshape(batch, heads, queries, sizes[0], keys, sizes[1]).sum((3, 5))
    count = xp.pad(asking, [(0, 0), fill[0]]).reshape(batch, 1, queries, sizes[0]).sum(-1)
    return cells / xp.maximum(count, 1)[..., None]
