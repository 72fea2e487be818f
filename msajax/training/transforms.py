"""Changes training batches at random, inside the step: `train.transforms`.

A transform is a function here and an entry in `TRANSFORMS`. Every row draws from a key of its own,
made of the random seed, the step and the row's position in the whole batch: how a batch is spread
over devices changes nothing.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from msajax.checks import is_finite_number
from msajax.config.grammar import parse
from msajax.encoders.tokens import NOTHING
from msajax.errors import UserError
from msajax.layers.prng import transform_key
from msajax.preparation.batches import Batch
from msajax.spec import CorpusSpec

Transform = Callable[[jax.Array, Batch, jax.Array], Batch]  # keys [B], one for each row; amount
Modalities = tuple[str, ...]


def modality_dropout(modalities: Modalities) -> Transform:
    """Hides each of some modalities of a row with probability `amount`, but never all of the row.

    Where nothing else would be left of a row, the one of the largest draw stays, so that every
    modality is spared as often as any other. Of several such transforms each sees what the ones
    before it have left.
    """

    def transform(keys: jax.Array, batch: Batch, amount: jax.Array) -> Batch:
        others = [mask.any(-1) for name, mask in batch.masks.items() if name not in modalities]
        has_other = jnp.stack(others).any(0) if others else jnp.zeros(len(keys), bool)
        present = jnp.stack([batch.masks[m].any(-1) for m in modalities], axis=-1)
        drawn = jnp.where(present, _uniform(keys, (len(modalities),)), -1)  # [B, modalities]
        last = ~has_other[:, None] & (drawn == drawn.max(-1, keepdims=True))
        for i, m in enumerate(modalities):
            kept = (drawn[:, i] >= amount) | last[:, i]
            batch = _with_mask(batch, m, batch.masks[m] & kept[:, None])
        return batch

    return transform


def step_dropout(modalities: Modalities) -> Transform:
    """Hides each valid step with probability `amount`, but never the one of the largest draw."""
    (modality,) = modalities

    def transform(keys: jax.Array, batch: Batch, amount: jax.Array) -> Batch:
        mask = batch.masks[modality]
        drawn = jnp.where(mask, _uniform(keys, mask.shape[1:]), -1)
        kept = (drawn >= amount) | (drawn == drawn.max(-1, keepdims=True))
        return _with_mask(batch, modality, mask & kept)

    return transform


def feature_noise(modalities: Modalities) -> Transform:
    """Adds normal noise of standard deviation `amount` to every feature of valid steps."""
    (modality,) = modalities

    def transform(keys: jax.Array, batch: Batch, amount: jax.Array) -> Batch:
        x = batch.features[modality]

        def draw(key: jax.Array) -> jax.Array:
            return jax.random.normal(key, x.shape[1:], x.dtype)

        noise = jnp.where(batch.masks[modality][..., None], amount * jax.vmap(draw)(keys), 0)
        return batch.replace(features={**batch.features, modality: x + noise})

    return transform


def _uniform(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws `[B, …]` from [0, 1)."""
    return jax.vmap(lambda key: jax.random.uniform(key, shape))(keys)


def _with_mask(batch: Batch, modality: str, mask: jax.Array) -> Batch:
    """Replaces a mask `[B, T]`; what it hides becomes what padding is."""
    x = batch.features[modality]
    are_pieces = x.ndim == 3 and jnp.issubdtype(x.dtype, jnp.integer)
    padding = jnp.array(NOTHING, x.dtype) if are_pieces else 0
    x = jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, padding)
    return batch.replace(
        features={**batch.features, modality: x}, masks={**batch.masks, modality: mask}
    )


class TransformKind(NamedTuple):
    """Describes a transform that can be named.

    Attributes:
        make: modalities -> the transform.
        most: amounts must stay below it; 1 for a probability.
        of_tokens: it suits token ids.
        together: whether `*` is one transform of all modalities, or one of each.
    """

    make: Callable[[Modalities], Transform]
    most: float = 1.0
    of_tokens: bool = True
    together: bool = False


TRANSFORMS: Mapping[str, TransformKind] = {
    "modality_dropout": TransformKind(modality_dropout, together=True),
    "step_dropout": TransformKind(step_dropout),
    "feature_noise": TransformKind(feature_noise, most=1e6, of_tokens=False),
}


@dataclasses.dataclass(frozen=True)
class Transforms:
    """Holds the transforms of a run, in the order in which they act.

    Attributes:
        steps: each with the number of its entry among those of `train.transforms`.
    """

    steps: tuple[tuple[Transform, int], ...] = ()

    def __call__(
        self,
        batch: Batch,
        amounts: jax.Array,
        seed: jax.Array,
        step: jax.Array,
        first: jax.Array | int,
    ) -> Batch:
        """Changes a batch.

        Args:
            amounts: returned by the function `amounts`.
            seed: `[]` uint32.
            first: position of the batch's first row in the whole batch that it is a part of.
        """
        if not self.steps:
            return batch
        key, rows = transform_key(seed, step), first + jnp.arange(len(batch.row_weight))
        for i, (transform, entry) in enumerate(self.steps):
            of_transform = jax.random.fold_in(key, i)
            keys = jax.vmap(lambda row, key=of_transform: jax.random.fold_in(key, row))(rows)
            batch = transform(keys, batch, amounts[entry])
        return batch


def parse_transform(entry: str) -> list[str]:
    """Splits `name:modality=amount` into its parts; raises `UserError` if it cannot."""
    return parse("train.transforms", entry, "name:modality=amount", TRANSFORMS)


def amounts(entries: tuple[str, ...]) -> np.ndarray:
    """Returns the amount of each entry of `train.transforms`, float32."""
    return np.array([float(parse_transform(entry)[2]) for entry in entries], np.float32)


def make_transforms(entries: tuple[str, ...], spec: CorpusSpec) -> Transforms:
    """Builds the transforms whose amount is not 0; raises `UserError` for an unfit entry."""
    made = []
    for number, entry in enumerate(entries):
        name, modality, text = parse_transform(entry)
        if modality != "*" and modality not in spec.modalities:
            raise UserError(
                f"train.transforms = {entry!r}: {modality!r} is not among the run's modalities: "
                f"choose one of {', '.join(spec.modalities)}, or *."
            )
        kind = TRANSFORMS[name]
        amount = float(text) if is_finite_number(text) else -1.0
        if not 0 <= amount < kind.most:
            raise UserError(
                f"train.transforms = {entry!r}: the amount must be 0 or more and below "
                f"{kind.most:g}."
            )
        suited = [m for m in spec.modalities if kind.of_tokens or spec.has_features(m)]
        chosen = suited if modality == "*" else [modality]
        if not set(chosen) <= set(suited):
            what = "sound, which has" if spec.is_sound(modality) else "token ids, which have"
            raise UserError(f"train.transforms = {entry!r}: {modality!r} is {what} no features.")
        at_once = [chosen] if kind.together else [[m] for m in chosen]
        if amount:
            made += [(kind.make(tuple(modalities)), number) for modalities in at_once]
    return Transforms(tuple(made))
