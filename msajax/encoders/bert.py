"""Defines BERT, RoBERTa and XLM-R, and what all pretrained text encoders have of them.

Devlin et al., 2019; Liu et al., 2019; Conneau et al., 2020. RoBERTa and XLM-R differ from BERT in
their positions and segments alone.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msajax.config import ModelConfig
from msajax.config.model import DropoutRate
from msajax.encoders.architecture import Architecture
from msajax.layers.basic import ROWS, Dropout, LayerNorm, TokenEmbedding
from msajax.layers.positions import LearnedPositions
from msajax.layers.transformer import TransformerBlock

# Makes other vectors of embeddings `[B, T, D]`, whose valid steps come first. The function that it
# is given beside them moves what stands beside the steps, `[B, T, …]`, to the same places, 0 at
# padding.
Adapt = Callable[[jax.Array, Callable[[jax.Array], jax.Array]], jax.Array]


class Embeddings(nn.Module):
    """Adds the embeddings of a piece, of its position and of its segment, as far as there are any.

    A norm and dropout follow. Sums are float32, whatever is computed afterwards; the result has
    `dtype`.
    """

    architecture: Architecture
    dtype: Any

    @nn.compact
    def __call__(self, ids: jax.Array, segments: jax.Array | None, *, train: bool) -> jax.Array:
        """Looks up `ids` and `segments` `[B, T]`: `[B, T, D]`; None says that all are segment 0."""
        a = self.architecture
        wide = jnp.float32
        x = TokenEmbedding(a.vocabulary, a.width, wide, name="words")(ids)
        if a.segments:
            segments = jnp.zeros_like(ids) if segments is None else segments
            x = x + TokenEmbedding(a.segments, a.width, wide, name="segments")(segments)
        if a.position_table:
            x = LearnedPositions(a.positions, 0.02, name="positions")(x)
        has_bias = a.modern is None or a.modern.norm_bias
        x = LayerNorm(a.norm_eps, self.dtype, has_bias, name="norm")(x)
        rate = a.dropout if a.modern is None else a.modern.embedding_dropout
        return Dropout(rate)(x, train=train)


class PretrainedEncoder(nn.Module):
    """Encodes token ids. A subclass says what its layers are.

    Inside, the valid steps of a row come first: positions, distances and windows then follow from
    a step's index, and whatever padding stands before or between valid steps changes nothing.

    What the first layer read and what every layer wrote, `[B, T, D]` each and zero at padding, are
    kept as `hidden` in the `intermediates` collection when that is mutable.

    Attributes:
        dtype: computation type; parameters, norms and softmax are float32.
        remat: compute the inside of each layer again in the backward pass instead of keeping it.
    """

    architecture: Architecture
    dtype: Any
    remat: bool = False

    def make_layer(self, number: int) -> nn.Module:
        """Makes a layer, named `layers_<number>`."""
        raise NotImplementedError

    def shared(self, length: int) -> Any:
        """Computes what all layers are given beside the sequence, of `length` steps."""
        return None

    def run_layer(
        self, layer: nn.Module, x: jax.Array, valid: jax.Array, shared: Any, *, train: bool
    ) -> jax.Array:
        """Applies a layer to `x` `[B, T, D]`, of which `valid` `[B, T]` are no padding."""
        return layer(x, (valid,), shared, train=train)

    def finish(self, x: jax.Array) -> jax.Array:
        """Maps what the last layer wrote to the output."""
        return x

    @nn.compact
    def __call__(
        self,
        ids: jax.Array,
        mask: jax.Array,
        *,
        segments: jax.Array | None = None,
        train: bool,
        adapt: Adapt | None = None,
    ) -> jax.Array:
        """Encodes token ids `[B, T]`, which may be anything at padding: `[B, T, D]`, zero there.

        Args:
            mask: `[B, T]`, True for a valid step.
            segments: `[B, T]`; without them all steps are of segment 0.
            adapt: makes what the first layer reads of the embeddings.

        Raises:
            ValueError: if T is more than the positions that the encoder knows.
        """
        a = self.architecture
        if ids.shape[1] > a.positions:
            raise ValueError(
                f"a sequence of {ids.shape[1]} pieces is longer than the {a.positions} that the "
                "pretrained text encoder takes: truncate it"
            )
        order = jnp.argsort(~mask, axis=1, stable=True)  # valid steps come first, as they stand
        place = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)  # where each valid step went
        valid = jnp.take_along_axis(mask, order, axis=1)

        def to_front(x: jax.Array, padding: int = 0) -> jax.Array:
            one = (..., *[None] * (x.ndim - 2))
            moved = jnp.take_along_axis(x, order[one], axis=1)
            return jnp.where(valid[one], moved, jnp.asarray(padding, x.dtype))

        def back(x: jax.Array) -> jax.Array:
            return jnp.where(mask[..., None], jnp.take_along_axis(x, place[..., None], axis=1), 0)

        ids = to_front(ids, a.padding_id)
        segments = None if segments is None else to_front(segments, 0)
        x = Embeddings(a, self.dtype, name="embeddings")(ids, segments, train=train)
        x = x if adapt is None else adapt(x, to_front)
        shared = self.shared(ids.shape[1])
        hidden = [x]

        def run(layer: nn.Module, x: jax.Array, valid: jax.Array, shared: Any) -> jax.Array:
            return self.run_layer(layer, x, valid, shared, train=train)

        if self.remat:
            run = recomputed(self, run)
        for number in range(a.layers):
            x = run(self.make_layer(number), x, valid, shared)
            hidden.append(x)
        self.sow("intermediates", "hidden", tuple(map(back, hidden)))
        return back(self.finish(x))


def recomputed(encoder: nn.Module, run: Callable) -> Callable:
    """Returns `run(layer, …)` of an encoder, computed again in the backward pass."""
    # Inside nn.remat the root of variables is the layer, where dropout would not find which rows of
    # the whole batch these are.
    found = encoder.scope.root.variables()
    rows = {ROWS: found[ROWS]} if ROWS in found else {}
    return nn.map_variables(nn.remat(run), ROWS, lambda _: rows)


class Source(NamedTuple):
    """Says which tensor of a folder a parameter is, and the shape in which that is stored."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[np.ndarray], np.ndarray]
    optional: bool = False


Sources = dict[str, Source]  # by the path of the parameter, joined by /


def affine(
    path: str, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *, bias: bool = True
) -> Sources:
    """Maps an affine map, which is stored as `[O, I]`, to an `AffineLayer` of these sizes."""
    written = math.prod(outputs)
    found = {
        f"{path}/kernel": Source(
            f"{name}.weight",
            (written, math.prod(inputs)),
            lambda weight: weight.T.reshape(*inputs, *outputs),
        )
    }
    if bias:
        read = Source(f"{name}.bias", (written,), lambda one: one.reshape(outputs))
        found[f"{path}/bias"] = read
    return found


def norm(path: str, name: str, width: int, *, bias: bool = True) -> Sources:
    """Maps a layer norm."""
    names = {"scale": "weight", "bias": "bias"} if bias else {"scale": "weight"}
    return {f"{path}/{k}": Source(f"{name}.{v}", (width,), np.asarray) for k, v in names.items()}


def table(path: str, name: str, rows: int, width: int, *, first: int = 0) -> Sources:
    """Maps an embedding table of `rows` rows after `first` that no step ever reads."""
    shape = (first + rows, width)
    return {f"{path}/embedding": Source(f"{name}.weight", shape, lambda one: one[first:])}


class Bert(PretrainedEncoder):
    """Encodes token ids by post-norm blocks of self-attention (see `PretrainedEncoder`)."""

    def make_layer(self, number: int) -> nn.Module:
        """Makes a post-norm block."""
        a = self.architecture
        config = ModelConfig(
            model_dim=a.width,
            num_heads=a.heads,
            ff_dim=a.ff_dim,
            activation=a.activation,
            norm_eps=a.norm_eps,
            # Rates without a site: those of a folder are none of the model's settings.
            dropout_rate=DropoutRate(a.dropout),
            attention_dropout=DropoutRate(a.attention_dropout),
            ffn_dropout=0.0,
            dtype=jnp.dtype(self.dtype).name,
        )
        return TransformerBlock(config, name=f"layers_{number}")

    def run_layer(
        self, layer: nn.Module, x: jax.Array, valid: jax.Array, shared: Any, *, train: bool
    ) -> jax.Array:
        """Applies a block."""
        return layer(x, x, (valid,), train=train)


MODULE = Bert


def sources(architecture: Architecture) -> Sources:
    """Says which tensor each parameter is."""
    a = architecture
    # RoBERTa's positions begin after that of padding.
    first = 0 if a.kind == "bert" else a.padding_id + 1
    found = embeddings(a, first)
    for i in range(a.layers):
        found |= block(a, i, ("query", "key", "value"))
    return found


def embeddings(architecture: Architecture, first: int) -> Sources:
    """Says which tensors the embeddings are; positions are in the table's rows from `first` on."""
    a = architecture
    found = table("embeddings/words", "embeddings.word_embeddings", a.vocabulary, a.width)
    if a.segments:
        name = "embeddings.token_type_embeddings"
        found |= table("embeddings/segments", name, a.segments, a.width)
    if a.position_table:
        name = "embeddings.position_embeddings"
        found |= table("embeddings/positions", name, a.positions, a.width, first=first)
    return found | norm("embeddings/norm", "embeddings.LayerNorm", a.width)


def block(architecture: Architecture, i: int, projections: tuple[str, str, str]) -> Sources:
    """Says which tensors layer `i`'s parameters are.

    `projections` are the tensors' names of the projections of queries, keys and values.
    """
    a = architecture
    there, here, width = f"encoder.layer.{i}", f"layers_{i}", (a.width,)
    heads = (a.heads, a.width // a.heads)
    found: Sources = {}
    for ours, theirs in zip(("query", "key", "value"), projections, strict=True):
        name = f"{there}.attention.self.{theirs}"
        found |= affine(f"{here}/attention/{ours}", name, width, heads)
    return {
        **found,
        **affine(f"{here}/attention/out", f"{there}.attention.output.dense", heads, width),
        **norm(f"{here}/norm_attention", f"{there}.attention.output.LayerNorm", a.width),
        **affine(f"{here}/ffn/inner", f"{there}.intermediate.dense", width, (a.ff_dim,)),
        **affine(f"{here}/ffn/outer", f"{there}.output.dense", (a.ff_dim,), width),
        **norm(f"{here}/norm_ffn", f"{there}.output.LayerNorm", a.width),
    }
