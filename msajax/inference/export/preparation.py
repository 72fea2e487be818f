"""Prepares samples inside an exported program, as `msajax.preparation.apply` does on the host.

What the host refuses, a program cannot: a sample with such input is marked, and scores NaN.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from msajax.corpus.on_demand import LARGEST
from msajax.corpus.steps import movers
from msajax.encoders.tokens import NOTHING
from msajax.preparation.fit import Preparation
from msajax.preparation.pieces import FILE_PADDING, Sizes

Arrays = Mapping[str, jax.Array]


class Prepared(NamedTuple):
    """Holds what a model reads of B samples.

    Attributes:
        features: `{modality: [B, T_m, d_m]}`, `[B, T_m]` token ids or `[B, T_m, 3]` pieces.
        masks: `{modality: [B, T_m]}`.
        wrong: `[B]`, samples whose input the host would have refused.
    """

    features: dict[str, jax.Array]
    masks: dict[str, jax.Array]
    wrong: jax.Array


def as_pair(values: np.ndarray) -> np.ndarray:
    """Splits float64 numbers `[d]` into pairs `[2, d]` of float32 that sum to them."""
    high = values.astype(np.float32)
    return np.stack([high, (values - high).astype(np.float32)])


def prepare(
    inputs: Arrays, statistics: Arrays, preparation: Preparation, lengths: Mapping[str, int]
) -> Prepared:
    """Prepares B samples.

    Args:
        statistics: `{modality/mean: [2, d], modality/deviation: [2, d]}` of the standardised
            modalities, from `as_pair`. They are arguments and no constants: XLA would sum the
            halves of a constant pair to one float32.
        lengths: steps of each modality after preparation; those of its input if it is not there.
    """
    batch = next(iter(inputs.values())).shape[0]
    found = Prepared({}, {}, jnp.zeros(batch, bool))
    for members in movers(preparation.spec.modalities, preparation.groups):
        here = [m for m in members if m in preparation.spec.modalities]
        prepare_group = _compacted
        if any(map(preparation.spec.is_pieces, here)):
            prepare_group = _with_pieces
        elif any(map(preparation.spec.is_sound, here)):
            prepare_group = _of_sound
        of_group = prepare_group(inputs, preparation, here, lengths)
        found = Prepared(
            found.features | of_group.features,
            found.masks | of_group.masks,
            found.wrong | of_group.wrong,
        )
    for m in preparation.statistics:
        # As precisely as float32 can hold the result of pairs [2, d].
        mean, deviation = (statistics[f"{m}/{name}"] for name in ("mean", "deviation"))
        ratio = ((found.features[m] - mean[0]) - mean[1]) / deviation[0]
        found.features[m] = ratio - ratio * (deviation[1] / deviation[0])
    for m, x in found.features.items():
        if preparation.spec.has_features(m):
            x = jnp.where(jnp.abs(x) <= LARGEST, x, 0)  # else no measurement; neither is NaN
            clip = preparation.clip if m in preparation.statistics else 0
            x = jnp.clip(x, -clip, clip) if clip else x
            found.features[m] = jnp.where(found.masks[m][..., None], x, 0)
        elif preparation.spec.has_table(m):
            found.features[m] = jnp.where(found.masks[m], x, 0)
    return found


# --- valid steps ---


def _steps(mask: jax.Array) -> jax.Array:
    return jnp.arange(mask.shape[1])


def _span(mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the first valid step `[B]` of a mask, and the one behind the last; 0, 0 without."""
    first = mask.argmax(axis=1)
    return first, jnp.where(mask, _steps(mask) + 1, 0).max(axis=1)


def _mask(given: jax.Array, there: jax.Array, preparation: Preparation) -> jax.Array:
    """Returns the valid steps `[B, T]`: those given, or of a row with a negative one derived.

    `there` `[B, T]` says which steps are not zero, or no padding.
    """
    if preparation.mask_from_zeros:  # from the first to the last that is there
        first, end = (x[:, None] for x in _span(there))
        derived = (first <= _steps(there)) & (_steps(there) < end)
    else:
        derived = jnp.ones_like(there)
    return jnp.where((given < 0).any(axis=1, keepdims=True), derived, given > 0)


def _readable(inputs: Arrays, m: str, preparation: Preparation) -> tuple[jax.Array, jax.Array]:
    """Returns features or token ids of a modality as they came, and the steps it can read."""
    given, rows = inputs[f"masks/{m}"], preparation.spec.vocabulary(m)
    if not rows:
        x = inputs[f"features/{m}"]
        return x, _mask(given, (x != 0).any(axis=-1), preparation)
    x = inputs[f"ids/{m}"]
    return x, _mask(given, x != 0, preparation) & (x >= 0) & (x < rows)


# --- which steps are read ---


def _choose(x: jax.Array, source: jax.Array) -> jax.Array:
    """Reads steps `source` `[B, T']` of `[B, T, …]`."""
    index = source.reshape(*source.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1)


def _compaction(
    masks: Sequence[jax.Array], length: int
) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """Moves the first step that is valid in any of some masks `[B, T]` to 0.

    Returns:
        The step that each prepared one reads, `[B, length]`; which are valid in each mask; and the
        samples `[B]` of which more steps would be read.
    """
    together = functools.reduce(jnp.logical_or, masks)
    first, end = _span(together)
    source = first[:, None] + jnp.arange(length)
    inside = source < end[:, None]
    source = jnp.minimum(source, together.shape[1] - 1)
    kept = [inside & _choose(mask, source) for mask in masks]
    return source, kept, end - first > length


def _compacted(
    inputs: Arrays, preparation: Preparation, members: list[str], lengths: Mapping[str, int]
) -> Prepared:
    """Prepares modalities that move as one, and are no pieces."""
    stored = {m: _readable(inputs, m, preparation) for m in members}
    (first, _), *_ = stored.values()
    length = lengths.get(members[0], first.shape[1])
    source, kept, wrong = _compaction([mask for _, mask in stored.values()], length)
    masks = dict(zip(stored, kept, strict=True))
    features = {m: _choose(x, source) for m, (x, _) in stored.items()}
    return Prepared(features, masks, wrong)


# --- sound ---


def _of_sound(
    inputs: Arrays, preparation: Preparation, members: list[str], lengths: Mapping[str, int]
) -> Prepared:
    """Prepares sound, which moves alone: steps of samples `[B, T, hop]`, and a mask of each."""
    (m,) = members
    x, given = inputs[f"features/{m}"], inputs[f"masks/{m}"]
    batch, steps, hop = x.shape
    samples, wrong = x.reshape(batch, -1), ~jnp.isfinite(x).all(axis=(1, 2))
    mask = _mask(given.reshape(batch, -1), samples != 0, preparation)
    samples = jnp.where(mask, samples, 0)
    first, end = _span(mask)
    source = jnp.minimum(first[:, None] + _steps(mask), mask.shape[1] - 1)
    there = _steps(mask) < (end - first)[:, None]
    samples = jnp.where(there, _choose(samples, source), 0).reshape(x.shape)
    count = there.reshape(x.shape).sum(axis=-1)
    length = lengths.get(m, steps)
    fill = ((0, 0), (0, length - steps)) if m in lengths else ((0, 0), (0, 0))
    steps_of = jnp.concatenate([samples, count[..., None].astype(x.dtype)], axis=-1)
    return Prepared({m: jnp.pad(steps_of, (*fill, (0, 0)))}, {m: jnp.pad(count > 0, fill)}, wrong)


# --- pieces of a pretrained encoder ---


def _with_pieces(
    inputs: Arrays, preparation: Preparation, members: list[str], lengths: Mapping[str, int]
) -> Prepared:
    """Prepares pieces of text, and the modalities that share their steps with its words."""
    architecture = preparation.spec.encoder("text")
    ids, segments, word = (inputs[f"{name}/text"] for name in ("ids", "segments", "steps"))
    there = (ids != architecture.padding_id) & (ids != FILE_PADDING)
    mask = _mask(inputs["masks/text"], there, preparation)
    mask &= (mask & (word >= 0)).any(axis=1, keepdims=True)  # special pieces alone are no text
    wrong = (ids < 0) | (ids >= architecture.vocabulary)
    wrong |= (segments < 0) | (segments >= max(architecture.segments, 1))
    wrong = (wrong & mask).any(axis=1)
    others = {m: _readable(inputs, m, preparation) for m in members if m != "text"}
    sizes = preparation.sizes_of(members)
    length = lengths.get("text", ids.shape[1])
    source, (kept,), too_long = _compaction([mask], length)
    wrong |= too_long
    ids, segments, at = (_choose(x, source) for x in (ids, segments, word))
    if preparation.text_pool == "pieces":
        steps = jnp.where(at >= 0, jnp.arange(length), -1)
        moved = _to_pieces(others, jnp.where(kept, at, -1), length)
    else:
        steps, moved = _to_words(others, jnp.where(kept, at, -1), sizes)
    text = jnp.stack([ids, segments, steps], axis=-1)
    text = jnp.where(kept[..., None], text, jnp.array(NOTHING, text.dtype))
    return Prepared(
        {"text": text, **moved.features}, {"text": kept, **moved.masks}, wrong | moved.wrong
    )


def _to_pieces(
    others: Mapping[str, tuple[jax.Array, jax.Array]], word: jax.Array, length: int
) -> Prepared:
    """Moves modalities to the pieces of the words that they share their steps with.

    Args:
        others: features `[B, T, d]` or token ids, and their valid steps `[B, T]`.
        word: `[B, P]`, the step of each piece's word; -1 for none.

    Returns:
        Them, `[B, P, …]`. In a sample without a word they keep their own steps.
    """
    spoken, features, masks = word >= 0, {}, {}
    silent = ~spoken.any(axis=1)
    wrong = jnp.zeros_like(silent)
    if others:
        steps = next(iter(others.values()))[1].shape[1]
        wrong |= (word >= steps).any(axis=1)
        valid = [mask & silent[:, None] for _, mask in others.values()]
        own, kept, too_long = _compaction(valid, length)
        wrong |= too_long
        source = jnp.where(silent[:, None], own, jnp.clip(word, 0, steps - 1))
        for (m, (x, mask)), of_silent in zip(others.items(), kept, strict=True):
            masks[m] = jnp.where(silent[:, None], of_silent, spoken & _choose(mask, source))
            features[m] = _choose(x, source)
    return Prepared(features, masks, wrong)


def _to_words(
    others: Mapping[str, tuple[jax.Array, jax.Array]], word: jax.Array, sizes: Sizes
) -> tuple[jax.Array, Prepared]:
    """Moves words and the modalities that share their steps as one, so that the first is step 0.

    Args:
        others: features `[B, T, d]` or token ids, and their valid steps `[B, T]`.
        word: `[B, P]`, the step of each piece's word; -1 for none.

    Returns:
        The prepared step of each piece, `[B, P]`, and the other modalities, `[B, steps, …]`.
    """
    beyond = jnp.iinfo(word.dtype).max
    first = jnp.where(word >= 0, word, beyond).min(axis=1)
    end = word.max(axis=1) + 1
    for _, mask in others.values():
        begins, ends = _span(mask)
        first = jnp.where(ends > 0, jnp.minimum(first, begins), first)
        end = jnp.maximum(end, ends)
    first = jnp.minimum(first, end)
    wrong = end - first > sizes.steps
    features, masks = {}, {}
    for m, (x, mask) in others.items():
        source = first[:, None] + jnp.arange(sizes.steps)
        inside = source < mask.shape[1]
        source = jnp.minimum(source, mask.shape[1] - 1)
        features[m], masks[m] = _choose(x, source), inside & _choose(mask, source)
        wrong |= (word >= mask.shape[1]).any(axis=1)
    return jnp.where(word >= 0, word - first[:, None], -1), Prepared(features, masks, wrong)
