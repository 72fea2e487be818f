"""Splits a model's score into what each step of each modality contributes to it.

Contributions are integrated gradients, summed over the features of a step. The path runs from a
baseline of zeros to the sample: zeros of prepared features, or zeros in place of the vectors that
an embedding table holds for token ids and pieces. The masks are the sample's own on all of the
path, so that padding contributes nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from msajax.layers.basic import TokenEmbedding
from msajax.models.explain.attribution import gradients_along
from msajax.models.explain.maps import Map, maps_of
from msajax.spec import CorpusSpec

Arrays = Mapping[str, jax.Array]


@flax.struct.dataclass
class Look:
    """Holds what one pass over a batch shows.

    Attributes:
        scores: `[B, K]`.
        weights: `[B, M]`, of the modalities.
        attention: `{map: [B, H, T_asks, T_answers]}`; see `maps_of`.
        read: `{modality: [B, T_m, d]}`, what the path of integrated gradients ends in: features,
            or the vectors of token ids.
        guides: of a guided model, what its layers took queries and keys from; else nothing.
    """

    scores: jax.Array
    weights: jax.Array
    attention: dict[Map, jax.Array]
    read: dict[str, jax.Array]
    guides: dict[str, Any]


class Explainer:
    """Explains a model's scores on batches; call its methods inside a jitted function.

    Of a guided model the second pass is explained, with the explanation of the first one held as
    it is at the sample.
    """

    def __init__(
        self, module: nn.Module, spec: CorpusSpec, scores: Callable[[jax.Array], jax.Array]
    ) -> None:
        """Prepares to explain.

        Args:
            module: a model of the family, or one of float features alone.
            spec: of the model.
            scores: makes scores `[B, K]` of the model's outputs.
        """
        self._module, self._spec, self._scores = module, spec, scores
        self._tables = {m: _table(spec, m) for m in spec.modalities if spec.vocabulary(m)}

    def look(self, variables: Any, features: Arrays, masks: Arrays) -> Look:
        """Runs the model once on a batch `{modality: [B, T_m, …]}` under `{modality: [B, T_m]}`.

        Raises:
            LookupError: naming a modality of token ids whose embedding table is not found.
        """
        found: dict[str, jax.Array] = {}

        def keep(modality: str, vectors: jax.Array) -> jax.Array:
            # A guided model runs again inside; what it looks up there is the same.
            found.setdefault(modality, vectors)
            return vectors

        with self._intercepted(keep, calls=True):
            prediction, kept = self._module.apply(
                variables, features, masks, train=False, mutable="intermediates"
            )
        if missing := self._tables.keys() - found.keys():
            raise LookupError(min(missing))
        kept = kept.get("intermediates", {})
        guides = {"guides": kept["guides"][0]} if "guides" in kept else {}
        read = {m: found.get(m, x) for m, x in features.items()}
        # Padding of features may hold anything; a path must begin and end at numbers there.
        read = {
            m: x if m in found else jnp.where(masks[m][..., None], x, 0) for m, x in read.items()
        }
        return Look(
            self._scores(prediction.score),
            prediction.modality_weights,
            maps_of(self._module, kept, masks),
            read,
            guides,
        )

    def score(
        self, variables: Any, given: tuple[Arrays, Arrays], look: Look, point: Arrays, of: Any
    ) -> jax.Array:
        """Computes the explained outputs `[B]` at a point of the path.

        Args:
            variables: of the model.
            given: features and masks of the batch.
            look: of the same batch.
            point: `{modality: [B, T_m, d]}`, in place of `look.read`.
            of: `[B]`, which of the K scores of each sample is explained.
        """
        features, masks = given
        at_point = {m: x if m in self._tables else point[m] for m, x in features.items()}

        def put(modality: str, vectors: jax.Array | None) -> jax.Array:
            return point[modality]

        with self._intercepted(put, calls=False):
            prediction = self._module.apply(
                variables, at_point, masks, train=False, **look.guides
            )
        return jnp.take_along_axis(self._scores(prediction.score), of[:, None], axis=1)[:, 0]

    def contributions(
        self,
        variables: Any,
        given: tuple[Arrays, Arrays],
        look: Look,
        of: jax.Array,
        points: tuple[jax.Array, jax.Array],
    ) -> dict[str, jax.Array]:
        """Sums what steps contribute, by some points of the path.

        Args:
            variables: of the model.
            given: features and masks of the batch.
            look: of the same batch.
            of: `[B]`, which of the K scores of each sample is explained.
            points: shares of the path `[P]`, and the weights of the gradients there `[P]`. Over all
                points of a path the weights sum to 1.

        Returns:
            `{modality: [B, T_m]}`, exactly 0 at padding.
        """
        _, masks = given
        baseline = jax.tree.map(jnp.zeros_like, look.read)

        def function(point: Arrays) -> jax.Array:
            return self.score(variables, given, look, point, of)

        total = gradients_along(function, look.read, baseline, *points)
        found = {}
        for m, gradient in total.items():
            of_step = (gradient * look.read[m].astype(jnp.float32)).sum(-1)
            if self._spec.is_pieces(m):
                of_step = _to_place(of_step, masks[m])
            found[m] = jnp.where(masks[m], of_step, 0)
        return found

    def _intercepted(self, use: Callable[[str, Any], jax.Array], *, calls: bool) -> Any:
        """Hands what embedding tables return to a function, and returns what that makes of it.

        Without `calls` the tables are not read at all.
        """
        of_path = {path: m for m, path in self._tables.items()}

        def intercept(next_call, args, kwargs, context):
            module = context.module
            is_lookup = isinstance(module, TokenEmbedding) and context.method_name == "__call__"
            modality = of_path.get(module.path) if is_lookup else None
            if modality is None:
                return next_call(*args, **kwargs)
            return use(modality, next_call(*args, **kwargs) if calls else None)

        return nn.intercept_methods(intercept)


def _table(spec: CorpusSpec, modality: str) -> tuple[str, ...]:
    """Returns the path of the embedding table that the family has for a modality of token ids."""
    if spec.is_pieces(modality):
        return (f"{modality}_pretrained", "encoder", "embeddings", "words")
    return (f"{modality}_embedding",)


def _to_place(of_step: jax.Array, mask: jax.Array) -> jax.Array:
    """Brings numbers `[B, T]` of valid steps that stand in front back to where these steps are.

    A pretrained encoder moves the valid steps of a row to its front before it embeds them.
    """
    place = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    return jnp.take_along_axis(of_step, place, axis=1)

