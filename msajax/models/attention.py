"""Masks and multi-head attention (source 002; SPEC R3, R4; scaled as in source 004)."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.models.layers import Dropout, kernel_init
from msajax.models.positions import rotate


def causal_mask(length: int) -> jax.Array:
    """The keep-mask `[1, T, T]` under which step i sees steps j <= i."""
    return jnp.tril(jnp.ones((1, length, length), bool))


def as_keep_mask(mask: jax.Array, *, batch: int, queries: int, keys: int) -> jax.Array:
    """Turns any accepted mask into one boolean keep-mask.

    Args:
        mask: bool `[B, Tk]` (valid keys), bool `[B or 1, Tq, Tk]`, bool `[B or 1, H or 1, Tq, Tk]`,
            or additive float `[Tq, Tk]` or `[B or 1, Tq, Tk]` with 0 where a key may be seen and
            -inf (or a very negative number) where not.
        batch: B.
        queries: Tq.
        keys: Tk.

    Returns:
        A boolean array that broadcasts to `[B, H, Tq, Tk]`; True means that the key may be seen.

    Raises:
        ValueError: for any other type or shape.
    """
    is_additive = jnp.issubdtype(mask.dtype, jnp.floating)
    accepted = {(batch, queries, keys), (1, queries, keys)}
    if is_additive:
        accepted.add((queries, keys))
    else:
        accepted.add((batch, keys))
    is_per_head = (
        mask.ndim == 4 and mask.shape[0] in (1, batch) and mask.shape[2:] == (queries, keys)
    )
    if not (is_additive or mask.dtype == jnp.bool_) or not (
        mask.shape in accepted or (is_per_head and not is_additive)
    ):
        raise ValueError(
            f"a mask of type {mask.dtype} and shape {mask.shape} fits no attention of batch "
            f"{batch}, {queries} queries and {keys} keys: pass bool [B, Tk], bool [B, Tq, Tk], "
            "or additive float [Tq, Tk] or [B, Tq, Tk]"
        )
    keep = mask > -1.0 if is_additive else mask
    if is_per_head:
        return keep
    if is_additive and keep.ndim == 2:
        return keep[None, None]  # [1, 1, Tq, Tk]
    if keep.ndim == 2:
        return keep[:, None, None, :]  # [B, 1, 1, Tk]
    return keep[:, None]  # [B, 1, Tq, Tk]


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention over several heads.

    Scores and softmax are float32. A query that sees no key gets exactly zero after the output
    projection: no information, and finite gradients. The attention maps `[B, H, Tq, Tk]`, before
    dropout, are kept as `attention` in the `intermediates` collection when that is mutable.

    Attributes:
        num_heads: H.
        head_dim: size of a head's queries and keys, dh.
        dropout_rate: dropout on the attention probabilities.
        dtype: computation type of the projections.
        value_dim: size of a head's values; 0 means dh.
        qkv_bias: biases on the query, key and value projections.
        out_bias: biases on the output projection.
    """

    num_heads: int
    head_dim: int
    dropout_rate: float
    dtype: Any
    value_dim: int = 0
    qkv_bias: bool = True
    out_bias: bool = True

    @nn.compact
    def __call__(
        self,
        query: jax.Array,
        context: jax.Array,
        masks: tuple[jax.Array, ...],
        *,
        train: bool,
        values: jax.Array | None = None,
        rotation: tuple[jax.Array, jax.Array] | None = None,
    ) -> jax.Array:
        """Attends from `query` `[B, Tq, D]` to `context` `[B, Tk, Dk]`.

        Args:
            query: the sequence that asks.
            context: the sequence that gives keys and, without `values`, values.
            masks: any of `as_keep_mask`'s forms; they combine by AND.
            train: draw dropout masks.
            values: the sequence `[B, Tk, Dv]` that gives values.
            rotation: factors of `rotate` for the queries and keys of self-attention.

        Returns:
            `[B, Tq, D]`.
        """
        batch, queries, model_dim = query.shape
        keys = context.shape[1]

        def project(name: str, size: int) -> nn.DenseGeneral:
            return nn.DenseGeneral(
                (self.num_heads, size),
                use_bias=self.qkv_bias,
                kernel_init=kernel_init,
                dtype=self.dtype,
                name=name,
            )

        q = project("query", self.head_dim)(query) / jnp.sqrt(self.head_dim).astype(self.dtype)
        k = project("key", self.head_dim)(context)  # [batch, keys, heads, head_dim]
        v = project("value", self.value_dim or self.head_dim)(
            context if values is None else values
        )  # [batch, keys, heads, …]
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)

        keep = functools.reduce(
            jnp.logical_and,
            [as_keep_mask(m, batch=batch, queries=queries, keys=keys) for m in masks],
            jnp.ones((1, 1, 1, keys), bool),
        )  # broadcasts to [batch, heads, queries, keys]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        scores = jnp.where(keep, scores, jnp.finfo(jnp.float32).min)
        probabilities = jax.nn.softmax(scores, axis=-1)  # [batch, heads, queries, keys]
        if keep.shape[1] > 1:  # a head may see no key where another does
            probabilities = jnp.where(keep, probabilities, 0)
        self.sow("intermediates", "attention", probabilities)
        probabilities = Dropout(self.dropout_rate)(probabilities, train=train).astype(self.dtype)

        mixed = jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)  # [batch, queries, heads, …]
        out = nn.DenseGeneral(
            model_dim,
            axis=(-2, -1),
            use_bias=self.out_bias,
            kernel_init=kernel_init,
            dtype=self.dtype,
            name="out",
        )(mixed)  # [batch, queries, model_dim]
        # The softmax of a row without a valid key is uniform: what it gathers means nothing.
        sees_a_key = keep.any(-1)  # broadcasts to [batch, heads, queries]
        sees_a_key = sees_a_key.any(1)[..., None]  # [batch or 1, queries or 1, 1]
        return jnp.where(sees_a_key, out, 0)
