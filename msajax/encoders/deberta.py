"""Defines DeBERTa-v3: attention that reads the distance of two steps (He et al., 2021)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msajax.encoders import bert
from msajax.encoders.architecture import Architecture, Relative
from msajax.encoders.bert import PretrainedEncoder, Sources, affine, norm, table
from msajax.layers.attention import MultiHeadAttention, combine_masks
from msajax.layers.basic import Dropout, FeedForward, LayerNorm
from msajax.layers.linear import AffineLayer, batched_product, project_each


def row_of_distance(relative: Relative, distances: np.ndarray) -> np.ndarray:
    """Returns the row of the table of distances that each distance has.

    Small distances have a row of their own. Farther ones share rows by their logarithm, which grows
    until the farthest; it is float32, as in the encoders whose weights these are.
    """
    half, sign, far = relative.buckets // 2, np.sign(distances), np.abs(distances)
    if relative.buckets and far.max(initial=0) > half:
        ratio = np.log(np.maximum(far.astype(np.float32) / np.float32(half), 1))
        longest = np.log(np.float32((relative.farthest - 1) / half))
        logarithmic = np.ceil(ratio / longest * np.float32(half - 1)).astype(int) + half
        distances = np.where(far <= half, distances, sign * logarithmic)
    return np.clip(distances + relative.span, 0, 2 * relative.span - 1)


def used_rows(relative: Relative, length: int) -> tuple[slice, np.ndarray]:
    """Says which rows of the table of distances a sequence reads.

    Returns:
        The rows, and for each distance from T - 1 (of a later query) to 1 - T which one of them.
    """
    rows = row_of_distance(relative, np.arange(length - 1, -length, -1))
    return slice(int(rows[-1]), int(rows[0]) + 1), rows - rows[-1]


def by_distance(products: jax.Array) -> jax.Array:
    """Picks `[…, T, T]` out of `[…, T, 2 T - 1]`: of row i its columns from T - 1 - i on.

    Written as rows that are one number longer than they are read, so that nothing is gathered.
    """
    *batch, length, columns = products.shape
    padded = jnp.pad(products, [(0, 0)] * (len(batch) + 1) + [(0, 1)])
    flat = padded.reshape(*batch, -1)[..., length - 1 : length - 1 + length * columns]
    return flat.reshape(*batch, length, columns)[..., :length]


class DisentangledAttention(MultiHeadAttention):
    """Adds to the score of two steps what the query, and what the key, say of their distance.

    A score is `(q k + q P_k(distance) + k P_q(distance)) / sqrt(3 dh)`, or with one of the two
    terms `/ sqrt(2 dh)`.
    """

    relative: Relative | None = None

    @nn.compact
    def __call__(
        self, x: jax.Array, masks: tuple[jax.Array, ...], vectors: jax.Array, *, train: bool
    ) -> jax.Array:
        """Lets the steps of `x` `[B, T, D]` attend to each other: `[B, T, D]`.

        The vectors `[R, D]` are those of the distances, for the rows that `used_rows` says.
        """
        batch, length, width = x.shape
        heads, relative = (self.num_heads, self.head_dim), self.relative

        def projection(name: str) -> AffineLayer:
            return AffineLayer((width,), heads, self.dtype, self.qkv_bias, name=name)

        own = {name: projection(name) for name in ("query", "key", "value")}
        with jax.named_scope("projections"):
            q, k, v = project_each((x,) * 3, list(own.values()))
        terms = 1 + relative.content_to_position + relative.position_to_content
        scale = jnp.asarray((self.head_dim * terms) ** -0.5, self.dtype)
        _, rows = used_rows(relative, length)

        def of_distances(name: str) -> jax.Array:
            """Projects the vectors of distances: `[2 T - 1, H, dh]`."""
            layer = projection(f"position_{name}")
            if relative.shared_projections:
                layer = own[name]
            return layer(vectors)[rows]

        with jax.named_scope("maps"):
            q = q * scale
            scores = batched_product(jnp.moveaxis(q, 1, 2), k.transpose(0, 2, 3, 1), jnp.float32)
            if relative.content_to_position:
                products = _products(q, of_distances("key"))
                scores = scores + by_distance(products)
            if relative.position_to_content:
                # Seen from a key, the distances of the queries go the other way.
                products = _products(k * scale, of_distances("query")[::-1])
                scores = scores + jnp.swapaxes(by_distance(products), -1, -2)
        keep, _ = combine_masks(masks, batch=batch, queries=length, keys=length)
        return self.gather(scores, keep, v, width, train=train)


def _products(x: jax.Array, vectors: jax.Array) -> jax.Array:
    """Multiplies `[B, T, H, dh]` by `[N, H, dh]`: `[B, H, T, N]` float32."""
    return jnp.einsum("bthd,nhd->bhtn", x, vectors, preferred_element_type=jnp.float32)


class DebertaLayer(nn.Module):
    """Computes `x = N(x + Drop(attention))`, then `x = N(x + Drop(FFN(x)))`."""

    architecture: Architecture
    dtype: Any

    @nn.compact
    def __call__(
        self, x: jax.Array, masks: tuple[jax.Array, ...], vectors: jax.Array, *, train: bool
    ) -> jax.Array:
        """Maps `[B, T, D]` to `[B, T, D]`; see `DisentangledAttention`."""
        a = self.architecture
        attention = DisentangledAttention(
            num_heads=a.heads,
            head_dim=a.width // a.heads,
            dropout_rate=a.attention_dropout,
            dtype=self.dtype,
            relative=a.relative,
            name="attention",
        )
        # The vectors are those of all rows: so is what is dropped of them.
        vectors = Dropout(a.dropout, per_row=False)(vectors, train=train)
        mixed = attention(x, masks, vectors, train=train)
        x = x + Dropout(a.dropout)(mixed, train=train)
        x = LayerNorm(a.norm_eps, self.dtype, name="norm_attention")(x)
        ffn = FeedForward(a.ff_dim, a.activation, 0.0, self.dtype, name="ffn")
        x = x + Dropout(a.dropout)(ffn(x, train=train), train=train)
        return LayerNorm(a.norm_eps, self.dtype, name="norm_ffn")(x)


class RelativeEmbeddings(nn.Module):
    """Holds the vectors of distances, normalised where the architecture says so."""

    architecture: Architecture
    dtype: Any

    @nn.compact
    def __call__(self, rows: slice) -> jax.Array:
        """Returns some rows of the table: `[R, D]`."""
        a = self.architecture
        shape = (2 * a.relative.span, a.width)
        vectors = self.param("embedding", nn.initializers.normal(0.02), shape)[rows]
        if a.relative.norm:
            return LayerNorm(a.norm_eps, self.dtype, name="norm")(vectors)
        return vectors.astype(self.dtype)


class Deberta(PretrainedEncoder):
    """Encodes token ids by layers that read distances (see `PretrainedEncoder`)."""

    def make_layer(self, number: int) -> nn.Module:
        """Makes a layer."""
        return DebertaLayer(self.architecture, self.dtype, name=f"layers_{number}")

    def shared(self, length: int) -> jax.Array:
        """Looks up the vectors of the distances that occur, `[R, D]`."""
        rows, _ = used_rows(self.architecture.relative, length)
        a = self.architecture
        return RelativeEmbeddings(a, self.dtype, name="relative_embeddings")(rows)


MODULE = Deberta


def sources(architecture: Architecture) -> Sources:
    """Says which tensor each parameter is."""
    a, relative = architecture, architecture.relative
    found = bert.embeddings(a, 0)
    found |= table("relative_embeddings", "encoder.rel_embeddings", 2 * relative.span, a.width)
    if relative.norm:
        found |= norm("relative_embeddings/norm", "encoder.LayerNorm", a.width)
    terms = {"key": relative.content_to_position, "query": relative.position_to_content}
    for i in range(a.layers):
        found |= bert.block(a, i, ("query_proj", "key_proj", "value_proj"))
        for name, is_read in terms.items():
            if is_read and not relative.shared_projections:
                path = f"layers_{i}/attention/position_{name}"
                there = f"encoder.layer.{i}.attention.self.pos_{name}_proj"
                found |= affine(path, there, (a.width,), (a.heads, a.width // a.heads))
    return found
