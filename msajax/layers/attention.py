"""Combines masks, and computes multi-head attention (source 002; scaled as in source 004)."""

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.layers.basic import Dropout
from msajax.layers.linear import AffineLayer, batched_product, project_each
from msajax.layers.long_attention import attend, is_long
from msajax.layers.positions import rotate

_KEEPS_MAPS = contextvars.ContextVar("keeps_maps", default=False)


@contextlib.contextmanager
def keeping_maps() -> Iterator[None]:
    """Computes attention by whole maps at any length, for what walks through the program."""
    token = _KEEPS_MAPS.set(True)
    try:
        yield
    finally:
        _KEEPS_MAPS.reset(token)


def causal_mask(length: int) -> jax.Array:
    """Makes the keep-mask `[1, T, T]` under which step i sees steps j <= i."""
    return jnp.tril(jnp.ones((1, length, length), bool))


def combine_masks(
    masks: Sequence[jax.Array], *, batch: int, queries: int, keys: int
) -> tuple[jax.Array, jax.Array | None]:
    """Combines masks into which keys may be seen and what is added to their scores.

    A key that one mask hides is hidden. A bool mask hides where it is False. A float mask hides
    where it is -inf, at or below -1e9, or the lowest finite number of its type; all else in it is
    added, so that -10000 makes a key unlikely but does not hide it.

    Args:
        masks: bool `[B, Tk]` (valid keys), bool or float `[B or 1, Tq, Tk]`, or float `[Tq, Tk]`.

    Returns:
        A bool array that broadcasts to `[B, 1, Tq, Tk]`, True where a key may be seen, and a
        float32 array `[B or 1, 1, Tq, Tk]`, 0 where it may not, or None if all masks are bool.

    Raises:
        ValueError: for any other type or shape.
    """
    return _combined(*_read_masks(masks, batch, queries, keys))


def _combined(
    visible: Sequence[jax.Array], floats: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array | None]:
    keep = functools.reduce(jnp.logical_and, visible)
    # What is hidden may be -inf or NaN, which must not reach the arithmetic. NaN at a key that may
    # be seen is added like a number: a score of NaN says that the mask is wrong.
    added = [jnp.where(keep, mask.astype(jnp.float32), 0) for mask in floats]
    return keep, functools.reduce(jnp.add, added) if added else None


def _read_masks(
    masks: Sequence[jax.Array], batch: int, queries: int, keys: int
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns masks as `[B or 1, 1, Tq or 1, Tk]`: what each lets be seen, and those of floats."""
    visible, floats = [jnp.ones((1, 1, 1, keys), bool)], []
    for mask in map(jnp.asarray, masks):
        is_float = jnp.issubdtype(mask.dtype, jnp.floating)
        accepted = {(batch, queries, keys), (1, queries, keys)}
        accepted.add((queries, keys) if is_float else (batch, keys))
        if not (is_float or mask.dtype == jnp.bool_) or mask.shape not in accepted:
            raise ValueError(
                f"a mask of type {mask.dtype} and shape {mask.shape} fits no attention of batch "
                f"{batch}, {queries} queries and {keys} keys: pass bool [B, Tk], bool or float "
                "[B, Tq, Tk], or float [Tq, Tk]"
            )
        if mask.ndim == 3:
            mask = mask[:, None]  # [batch or 1, 1, queries, keys]
        else:  # [1, 1, queries, keys] or [batch, 1, 1, keys]
            mask = mask[None, None] if is_float else mask[:, None, None]
        visible.append(~hides(mask) if is_float else mask)
        if is_float:
            floats.append(mask)
    return visible, floats


def hides(mask: jax.Array) -> jax.Array:
    """Tells where a float mask hides: a bool array of its shape."""
    lowest = float(jnp.finfo(mask.dtype).min)  # float16 ends at -65504
    return mask <= max(-1e9, lowest)  # -1e9 as the mask's own type rounds it


class MultiHeadAttention(nn.Module):
    """Computes scaled dot-product attention over several heads.

    Scores and softmax are float32. A query that sees no key gets exactly zero after the output
    projection: no information, and finite gradients. The attention maps `[B, H, Tq, Tk]`, before
    dropout, are kept as `attention` in the `intermediates` collection when that is mutable. If it
    is not, maps of long sequences are computed in parts (`long_attention`): the same numbers but
    for their rounding. With `added`, which is itself as large as a map of every head, they are
    whole.

    Attributes:
        head_dim: size of a head's queries and keys, dh.
        dropout_rate: acts on the attention probabilities.
        dtype: computation type of the projections.
        value_dim: size of a head's values; 0 means dh.
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
        added: jax.Array | None = None,
    ) -> jax.Array:
        """Attends from `query` `[B, Tq, D]` to `context` `[B, Tk, Dk]`: `[B, Tq, D]`.

        Args:
            context: the sequence that gives keys and, without `values`, values.
            masks: any of `combine_masks`'s forms.
            values: the sequence `[B, Tk, Dv]` that gives values.
            rotation: factors of `rotate` for the queries and keys of self-attention.
            added: `[B, H, Tq, Tk]`, to the scores of every head.
        """
        batch, queries, model_dim = query.shape
        keys = context.shape[1]

        value_dim = self.value_dim or self.head_dim
        sources = (query, context, context if values is None else values)
        sizes = (self.head_dim, self.head_dim, value_dim)
        layers = [
            AffineLayer(x.shape[-1:], (self.num_heads, size), self.dtype, self.qkv_bias, name=name)
            for name, x, size in zip(("query", "key", "value"), sources, sizes, strict=True)
        ]
        with jax.named_scope("projections"):
            # [batch, queries or keys, heads, head_dim or value_dim]
            q, k, v = project_each(sources, layers)
        q = q * jnp.asarray(self.head_dim**-0.5, self.dtype)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)

        visible, floats = _read_masks(masks, batch, queries, keys)
        keep, bias = _combined(visible, floats)
        needs_maps = self.is_mutable_collection("intermediates") or _KEEPS_MAPS.get()
        if added is None and not needs_maps and is_long(queries, keys):
            drops = Dropout(self.dropout_rate).drops(batch, train=train)
            heads = (jnp.moveaxis(x, 1, 2) for x in (q, k, v))
            floats = [mask[:, 0].astype(jnp.float32) for mask in floats]
            bias = functools.reduce(jnp.add, floats) if floats else None
            mixed = attend(*heads, [mask[:, 0] for mask in visible], bias, drops)
            return self.project(mixed.astype(self.dtype), keep, model_dim)
        with jax.named_scope("maps"):
            scores = batched_product(jnp.moveaxis(q, 1, 2), k.transpose(0, 2, 3, 1), jnp.float32)
        for more in (bias, added):
            scores = scores if more is None else scores + more
        return self.gather(scores, keep, v, model_dim, train=train)

    def gather(
        self, scores: jax.Array, keep: jax.Array, v: jax.Array, model_dim: int, *, train: bool
    ) -> jax.Array:
        """Weighs values by the softmax of scores, and projects the result to `[B, Tq, model_dim]`.

        Scores are `[B, H, Tq, Tk]` float32, the values of every head `[B, Tk, H, dv]`; `keep`, the
        keys that may be seen, broadcasts to `[B, 1, Tq, Tk]`.
        """
        scores = jnp.where(keep, scores, jnp.finfo(jnp.float32).min)
        probabilities = jax.nn.softmax(scores, axis=-1)  # [batch, heads, queries, keys]
        self.sow("intermediates", "attention", probabilities)
        probabilities = Dropout(self.dropout_rate)(probabilities, train=train).astype(self.dtype)

        with jax.named_scope("maps"):
            mixed = batched_product(probabilities, jnp.moveaxis(v, 1, 2), self.dtype)
        return self.project(mixed, keep, model_dim)

    def project(self, mixed: jax.Array, keep: jax.Array, model_dim: int) -> jax.Array:
        """Projects what the heads found, `[B, H, Tq, dv]`, to `[B, Tq, model_dim]`."""
        mixed = jnp.moveaxis(mixed, 1, 2)  # [batch, queries, heads, value_dim]
        heads = mixed.shape[2:]
        out = AffineLayer(heads, (model_dim,), self.dtype, self.out_bias, name="out")
        out = out(mixed)  # [batch, queries, model_dim]
        # The softmax of a row without a valid key is uniform: what it gathers means nothing.
        sees_a_key = keep.any(-1)[:, 0, :, None]  # [batch or 1, queries or 1, 1]
        return jnp.where(sees_a_key, out, 0)
