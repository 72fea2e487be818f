"""Explains scores: what each step of each modality contributes, and the attention maps of a pass.

Contributions are integrated gradients, summed over the features of a step. The path runs from a
baseline of zeros to the sample: zeros of prepared features, or zeros in place of the vectors that
an embedding table holds for token ids and pieces. The masks are the sample's own on all of the
path, so that padding contributes nothing.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from msajax.encoders.speech_architecture import LONGEST_SECONDS
from msajax.errors import UserError
from msajax.layers.basic import TokenEmbedding
from msajax.layers.heads import Arrays
from msajax.layers.linear import AffineLayer
from msajax.layers.transformer import fusion_names, fusion_pairs
from msajax.models.attribution import gradients_along
from msajax.models.sequence_level import SequenceLevelModel
from msajax.spec import CorpusSpec

# Where a layer of attention stands.
PRETRAINED, ENCODER, FUSION, POOLED, AFTER_FUSION = (
    *("pretrained", "encoder", "fusion", "pooled", "after_fusion"),
)


class Map(NamedTuple):
    """Names a map of attention.

    Attributes:
        part: PRETRAINED, between the steps of a pretrained encoder; ENCODER, of a modality's
            encoder; FUSION, between modalities; POOLED, between the vectors of pooled modalities;
            AFTER_FUSION, of a modality's encoder after fusion.
        layer: its number in that part, from 0.
        asks: the modality whose steps attend; "" for POOLED, where every modality is a step.
        answers: the modality whose steps are attended to; "" for POOLED.
    """

    part: str
    layer: int
    asks: str
    answers: str


def attention_maps(
    module: nn.Module, kept: Mapping[str, Any], masks: Mapping[str, jax.Array]
) -> dict[Map, jax.Array]:
    """Collects the attention maps of a pass, those of a guided model's second one.

    A model that is not of the family has none here. `kept` is the pass's `intermediates`, `masks`
    those of the batch.

    Returns:
        `{map: [B, H, T_asks, T_answers]}`. A row sums to 1 over the steps that may be attended to;
        what stands in rows of padding means nothing.
    """
    if not isinstance(module, SequenceLevelModel):
        return {}
    names, config = module.spec.modalities, module.config
    fusion, found = kept.get("fusion", {}), {}
    for m in names:
        pretrained = kept.get(f"{m}_pretrained", {}).get("encoder", {})
        for layer, x in _layers(pretrained, "layers"):
            if module.spec.is_pieces(m):
                place = _places(masks[m])
                x = jnp.take_along_axis(x, place[:, None, :, None], axis=2)
                x = jnp.take_along_axis(x, place[:, None, None], axis=3)
            else:  # the last steps of sound have no frame
                fill = (0, masks[m].shape[1] - x.shape[-1])
                x = jnp.pad(x, ((0, 0), (0, 0), fill, fill))
            found[Map(PRETRAINED, layer, m, m)] = jnp.where(masks[m][:, None, None], x, 0)
        for layer, x in _layers(kept.get(f"{m}_encoder", {}), "blocks"):
            found[Map(ENCODER, layer, m, m)] = x
    if config.fusion == "pooled":  # nothing follows: a single step is left of each modality
        return found | {Map(POOLED, k, "", ""): x for k, x in _layers(fusion, "blocks")}
    pairs = fusion_pairs(config, names, module.anchor)
    for layer in range(config.n_layers_fuse):
        for name, pair in zip(fusion_names(pairs), pairs, strict=True):
            found[Map(FUSION, layer, *pair)] = _map_in(fusion[f"layers_{layer}"][name])
    for m in names:
        for layer, x in _layers(kept.get(f"{m}_after_fusion", {}), "blocks"):
            found[Map(AFTER_FUSION, layer, m, m)] = x
    return found


def _layers(kept: Mapping[str, Any], name: str) -> Iterator[tuple[int, jax.Array]]:
    """Yields the number and the map of every layer of a stack; recurrent ones have none."""
    for layer in itertools.count():
        if f"{name}_{layer}" not in kept:
            return
        yield layer, _map_in(kept[f"{name}_{layer}"])


def _map_in(kept: Mapping[str, Any]) -> jax.Array:
    return kept["attention"]["attention"][0]


def _places(mask: jax.Array) -> jax.Array:
    """Returns `[B, T]`: where a pretrained encoder, which moves valid steps to the front, has each.

    Taking numbers along these brings them back to the steps that they are of.
    """
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


@flax.struct.dataclass
class Look:
    """Holds what one pass over a batch shows.

    Attributes:
        scores: `[B, K]`.
        weights: `[B, M]`, the modalities' weights.
        attention: `{map: [B, H, T_asks, T_answers]}`; see `attention_maps`.
        read: `{modality: [B, T_m, d]}`, what the path of integrated gradients ends in: features,
            or the vectors of token ids.
        guides: queries and keys of a guided model's layers; else nothing.
    """

    scores: jax.Array
    weights: jax.Array
    attention: dict[Map, jax.Array]
    read: dict[str, jax.Array]
    guides: dict[str, Any]


class Explainer:
    """Explains a model's scores on batches; call its methods inside a jitted function.

    The model is of the family, or one of float features alone; `scores` makes scores `[B, K]` of
    its outputs. Of a guided model the second pass is explained, with the explanation of the first
    one held as it is at the sample.
    """

    def __init__(
        self, module: nn.Module, spec: CorpusSpec, scores: Callable[[jax.Array], jax.Array]
    ) -> None:
        self._module, self._spec, self._scores = module, spec, scores
        # The paths of the modules whose vectors a path ends in: embedding tables of token ids and
        # pieces, and what makes frames of sound.
        self._tables = {}
        for m in spec.modalities:
            inside = (f"{m}_pretrained", "encoder")
            if spec.is_pieces(m):
                self._tables[m] = (*inside, "embeddings", "words")
            elif spec.is_sound(m):
                self._tables[m] = (*inside, "projection")
            elif spec.vocabulary(m):
                self._tables[m] = (f"{m}_embedding",)

    def look(self, variables: Any, features: Arrays, masks: Arrays) -> Look:
        """Runs the model once on a batch `{modality: [B, T_m, …]}` under `{modality: [B, T_m]}`.

        Raises:
            LookupError: naming a modality of token ids whose embedding table is not found.
        """
        found: dict[str, jax.Array] = {}
        for m, x in features.items():
            if self._spec.is_sound(m) and x.shape[1] > self._spec.encoder(m).most_steps:
                raise UserError(
                    f"Sound is explained up to {LONGEST_SECONDS} seconds, and some of {m!r} here "
                    "is longer."
                )

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
        # Padding of features may hold anything; a path must begin and end at numbers there.
        read = {
            m: found[m] if m in found else jnp.where(masks[m][..., None], x, 0)
            for m, x in features.items()
        }
        return Look(
            self._scores(prediction.score),
            prediction.modality_weights,
            attention_maps(self._module, kept, masks),
            read,
            guides,
        )

    def score(
        self, variables: Any, given: tuple[Arrays, Arrays], look: Look, point: Arrays, of: Any
    ) -> jax.Array:
        """Computes the explained outputs `[B]` at a point `{modality: [B, T_m, d]}` of the path.

        The point stands in place of `look.read`; `given` are features and masks of the batch that
        was looked at, and `of` `[B]` says which of the K scores of each sample is explained.
        """
        features, masks = given
        at_point = {m: x if m in self._tables else point[m] for m, x in features.items()}

        def put(modality: str, vectors: jax.Array | None) -> jax.Array:
            return point[modality]

        with self._intercepted(put, calls=False):
            prediction = self._module.apply(variables, at_point, masks, train=False, **look.guides)
        return jnp.take_along_axis(self._scores(prediction.score), of[:, None], axis=1)[:, 0]

    def contributions(
        self,
        variables: Any,
        given: tuple[Arrays, Arrays],
        look: Look,
        of: jax.Array,
        points: tuple[jax.Array, jax.Array],
    ) -> dict[str, jax.Array]:
        """Sums what steps contribute, by some points of the path: `{modality: [B, T_m]}`.

        It is exactly 0 at padding. The points are shares of the path `[P]`, and weights of the
        gradients there `[P]`, which over all points of a path sum to 1. See `score` for the rest.
        """
        _, masks = given
        baseline = jax.tree.map(jnp.zeros_like, look.read)

        def function(point: Arrays) -> jax.Array:
            return self.score(variables, given, look, point, of)

        total = gradients_along(function, look.read, baseline, *points)
        found = {}
        for m, gradient in total.items():
            of_step = (gradient * look.read[m].astype(jnp.float32)).sum(-1)
            fill = masks[m].shape[1] - of_step.shape[1]  # the last steps of sound have no frame
            of_step = jnp.pad(of_step, ((0, 0), (0, fill)))
            if self._spec.is_pieces(m):
                of_step = jnp.take_along_axis(of_step, _places(masks[m]), axis=1)
            found[m] = jnp.where(masks[m], of_step, 0)
        return found

    def _intercepted(self, use: Callable[[str, Any], jax.Array], *, calls: bool) -> Any:
        """Hands what tables, or projections of sound, return to a function; returns what it makes.

        Without `calls` the tables are not read at all.
        """
        of_path = {path: m for m, path in self._tables.items()}

        def intercept(next_call, args, kwargs, context):
            module = context.module
            is_lookup = (
                isinstance(module, TokenEmbedding | AffineLayer)
                and context.method_name == "__call__"
            )
            modality = of_path.get(module.path) if is_lookup else None
            if modality is None:
                return next_call(*args, **kwargs)
            return use(modality, next_call(*args, **kwargs) if calls else None)

        return nn.intercept_methods(intercept)
