"""Renders the step of the sequence-level model plainly: flax.linen's own attention, and optax.

It computes what a preset of `SequenceLevelModel` with sequential fusion computes, without what the
project adds: no bit depends on a row's number, nothing has a derivative of its own, and one seed's
state is what `jax.vmap` makes of it. `bench/ahead.py` compiles it beside the project's step.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from msajax.config import Config
from msajax.spec import CorpusSpec


class Block(nn.Module):
    """Attends from `x` to a context, then applies the feed-forward network."""

    config: Any

    @nn.compact
    def __call__(self, x: jax.Array, context: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps `[B, T, D]` to the same shape; the mask `[B, Tk]` is that of the context."""
        c, rate = self.config, self.config.dropout_rate
        drop = functools.partial(nn.Dropout(rate), deterministic=False)
        dense = functools.partial(nn.Dense, dtype=c.dtype)
        attention = nn.MultiHeadDotProductAttention(
            c.num_heads,
            dtype=c.dtype,
            dropout_rate=rate,
            broadcast_dropout=False,
            deterministic=False,
        )
        y = attention(x, context, context, mask=mask[:, None, None, :])
        x = nn.LayerNorm(dtype=c.dtype)(x + drop(y))
        hidden = drop(nn.gelu(dense(c.ff_dim)(x), approximate=False))
        return nn.LayerNorm(dtype=c.dtype)(x + drop(dense(c.model_dim)(hidden)))


class Plain(nn.Module):
    """Encodes each modality, lets text attend to the others, and weighs the means of all."""

    config: Any

    @nn.compact
    def __call__(self, features: list[jax.Array], masks: list[jax.Array]) -> jax.Array:
        """Scores a batch of `[B, T, d]` and `[B, T]`: `[B]`."""
        c = self.config
        drop = functools.partial(nn.Dropout(c.dropout_rate), deterministic=False)
        sequences = []
        for i, (x, mask) in enumerate(zip(features, masks, strict=True)):
            x = nn.Dense(c.model_dim, dtype=c.dtype)(x.astype(c.dtype))
            if c.positions == "learned":
                init = nn.initializers.normal(c.position_init)
                table = self.param(f"positions_{i}", init, (x.shape[1], c.model_dim))
                x = x + table.astype(x.dtype)
            x = drop(x)
            for _ in range(c.n_layers_mod):
                x = Block(c)(x, x, mask)
            sequences.append(x)
        for _ in range(c.n_layers_fuse):
            for other, mask in zip(sequences[1:], masks[1:], strict=True):
                sequences[0] = Block(c)(sequences[0], other, mask)
        pooled = [
            (x * m[..., None]).sum(1) / jnp.maximum(m.sum(1, keepdims=True), 1)
            for x, m in zip(sequences, masks, strict=True)
        ]
        hidden = drop(nn.relu(nn.Dense(c.model_dim // 2)(sum(pooled) / len(pooled))))
        weights = nn.softmax(nn.Dense(len(pooled))(hidden))
        vector = (jnp.stack(pooled, 1) * weights[..., None]).sum(1)
        return nn.Dense(1)(vector)[..., 0]


class PlainStep(NamedTuple):
    """Holds the step and the shapes of one seed's arguments.

    Attributes:
        step: (state, batch) -> state, value.
        state: parameters, moments and the key of dropout.
        batch: rows -> features, masks and labels.
    """

    step: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    batch: Callable[[int], Any]


def is_rendered(config: Config, spec: CorpusSpec) -> bool:
    """Tells whether the plain rendering computes what a configuration's model does."""
    c, is_of_features = config.model, not spec.vocabularies and spec.label_kind == "regression"
    return (
        is_of_features
        and c.name == "sequence_level"
        and (c.fusion, c.mixer, c.norm, c.norm_position)
        == ("sequential", "transformer", "layernorm", "post")
        and (c.pooling_method, c.activation, c.gate_hidden) == ("mean", "gelu", True)
        and c.positions in ("learned", "none")
        and not (c.n_layers_post_fuse or c.embedding_dim or c.guidance != "none")
        and config.train.accumulation_steps == 1
    )


def make_plain(config: Config, spec: CorpusSpec) -> PlainStep:
    """Makes the step of what `is_rendered`: AdamW, clipped, and not taken if it is not finite."""
    model, optim = Plain(config.model), config.optim
    optimizer = optax.adamw(optim.learning_rate, weight_decay=optim.weight_decay)
    if optim.clip_norm:
        optimizer = optax.chain(optax.clip_by_global_norm(optim.clip_norm), optimizer)

    def batch(rows: int) -> Any:
        sizes = list(zip(spec.lengths, spec.widths, strict=True))
        features = [jax.ShapeDtypeStruct((rows, t, d), jnp.float32) for t, d in sizes]
        masks = [jax.ShapeDtypeStruct((rows, t), jnp.bool_) for t, _ in sizes]
        return features, masks, jax.ShapeDtypeStruct((rows,), jnp.float32)

    def begin(features, masks):
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        params = model.init(keys, features, masks)
        return params, optimizer.init(params), jnp.zeros(2, jnp.uint32)

    def step(state, batch):
        params, moments, key = state
        features, masks, labels = batch
        keys = {"dropout": jax.random.wrap_key_data(key)}

        def loss(params):
            scores = model.apply(params, features, masks, rngs=keys)
            return jnp.abs(scores.astype(jnp.float32) - labels).mean()

        with jax.default_matmul_precision(config.model.matmul_precision):
            value, gradient = jax.value_and_grad(loss)(params)
        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
        update, after = optimizer.update(gradient, moments, params)
        changed = optax.apply_updates(params, update), after
        kept = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), changed, (params, moments)
        )
        return (*kept, key + 1), value

    state = jax.eval_shape(begin, *batch(2)[:2])
    return PlainStep(step, state, batch)
