"""Defines the Adaptive Language-guided Multimodal Transformer (Zhang et al., 2023)."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.layers.basic import Dropout, LayerNorm
from msajax.layers.heads import Arrays
from msajax.layers.linear import gelu
from msajax.layers.long_attention import attend
from msajax.layers.positions import LearnedPositions
from msajax.models.contract import MODALITIES, POSITIONS, Model
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import (
    BOUND,
    Linear,
    Peer,
    Scored,
    needs_text_and_another,
    reads_padding,
)


def norm(name: str) -> LayerNorm:
    """Makes a layer normalisation."""
    return LayerNorm(1e-5, jnp.float32, name=name)


class Attention(nn.Module):
    """Lets a query attend to one or several sequences; what it finds in each is added.

    Of the maps only the last one has a bias; a single head of the query's width has none of it.
    """

    heads: int
    head_dim: int

    @nn.compact
    def __call__(
        self, query: jax.Array, sources: Mapping[str, tuple[jax.Array, jax.Array, jax.Array]]
    ) -> jax.Array:
        """Maps `[B, Tq, D]` to `[B, Tq, D]`.

        Args:
            sources: by a suffix of the names of their maps, keys and values, `[B, Tk, D]` each, and
                the steps that are there, `[B, Tk]`. In none it finds 0.
        """
        width = self.heads * self.head_dim

        def split(x: jax.Array, name: str) -> jax.Array:
            x = Linear(width, use_bias=False, name=name)(x)
            return jnp.moveaxis(x.reshape(*x.shape[:2], self.heads, -1), 1, 2)

        q, found = split(query, "query") * self.head_dim**-0.5, []
        for suffix, (keys, values, mask) in sources.items():
            k, v = split(keys, f"key{suffix}"), split(values, f"value{suffix}")
            found.append(attend(q, k, v, [mask[:, None]]))  # [batch, heads, queries, head_dim]
        mixed = jnp.moveaxis(sum(found), 1, 2).reshape(*query.shape[:2], width)
        is_whole = self.heads == 1 and width == query.shape[2]
        return mixed if is_whole else Linear(query.shape[2], name="out")(mixed)


class Block(nn.Module):
    """Applies attention and a feed-forward network, each after norms and with a residual.

    Queries, keys and values have norms of their own, in self-attention too.
    """

    config: ModelConfig
    heads: int
    ff: int

    @nn.compact
    def __call__(
        self, x: jax.Array, source: jax.Array, mask: jax.Array, *, train: bool
    ) -> jax.Array:
        """Lets `x` `[B, Tq, D]` attend to `source` `[B, Tk, D]` under `[B, Tk]`."""
        drop = Dropout(self.config.own_rate("dropout"))
        attention = Attention(self.heads, self.config.own.head_dim, name="attention")
        keys, values = norm("norm_key")(source), norm("norm_value")(source)
        found = attention(norm("norm_query")(x), {"": (keys, values, mask)})
        x = x + drop(found, train=train)
        hidden = gelu(Linear(self.ff, name="inner")(norm("norm_ffn")(x)))
        return x + drop(Linear(x.shape[-1], name="outer")(hidden), train=train)


class Tokens(nn.Module):
    """Makes tokens of a sequence: learned ones stand in front of it and attend to it."""

    config: ModelConfig
    length: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, T, d]` under `[B, T]` to `[B, n, D]`."""
        own = self.config.own
        tokens = self.param("tokens", nn.initializers.zeros, (own.num_tokens, own.d_model))
        x = in_front(tokens, Linear(own.d_model, name="projection")(x))
        mask = jnp.pad(mask, ((0, 0), (own.num_tokens, 0)), constant_values=True)
        x = LearnedPositions(own.num_tokens + self.length, 1.0, name="positions")(x)
        for number in range(own.embed_depth):
            block = Block(self.config, own.embed_heads, own.embed_ff, name=f"blocks_{number}")
            x = block(x, x, mask, train=train)
        return x[:, : own.num_tokens]


def in_front(tokens: jax.Array, x: jax.Array) -> jax.Array:
    """Puts `[n, D]` in front of every sequence of `[B, T, D]`."""
    return jnp.concatenate([jnp.broadcast_to(tokens, (x.shape[0], *tokens.shape)), x], axis=1)


class HyperLayer(nn.Module):
    """Lets text ask the other modalities, and adds what it finds to the normalised hyper-modality.

    The residual is of the normalised value, and there is no feed-forward network.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, hyper: jax.Array, text: jax.Array, others: Arrays, present: Arrays, *, train: bool
    ) -> jax.Array:
        """Maps `hyper` `[B, n, D]` by tokens of text and of the others, `[B, n, D]` each.

        Args:
            others: the others' tokens, by modality.
            present: `[B]`, says which samples have a modality.
        """
        own, sources = self.config.own, {}
        for m, tokens in others.items():
            x = norm(f"norm_{m}")(tokens)
            sources[f"_{m}"] = x, x, jnp.broadcast_to(present[m][:, None], x.shape[:2])
        attention = Attention(own.hyper_heads, own.hyper_head_dim, name="attention")
        found = attention(norm("norm_query")(text), sources)
        found = Dropout(self.config.own_rate("dropout"))(found, train=train)
        return norm("norm_hyper")(hyper) + found


class Fusion(nn.Module):
    """Lets text, behind one learned token, read the hyper-modality; the token becomes the result.

    The same token stands in front of both.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, text: jax.Array, hyper: jax.Array, *, train: bool) -> jax.Array:
        """Maps two times `[B, n, D]` to `[B, D]`."""
        own, length = self.config.own, 1 + text.shape[1]
        token = self.param("token", nn.initializers.zeros, (1, text.shape[2]))
        source = LearnedPositions(length, 1.0, name="hyper_positions")(in_front(token, hyper))
        x = LearnedPositions(length, 1.0, name="text_positions")(in_front(token, text))
        everything = jnp.ones(x.shape[:2], bool)
        for number in range(own.fusion_depth):
            block = Block(self.config, own.fusion_heads, own.fusion_ff, name=f"blocks_{number}")
            x = block(x, source, everything, train=train)
        return x[:, 0]


class LanguageGuidedTransformer(Peer):
    """Squeezes modalities to tokens, learns by scales of text what the others add, and fuses both.

    The others may be any, one or more. By default padding is never seen, and text finds nothing in
    a modality that a sample lacks; the authors' code has no masks, which `compat` of reference
    gives. A sample without text is asked by the learned tokens alone.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores the sequences; see `Peer`."""
        own, names = self.config.own, self.spec.modalities
        seen = dict(valid)
        if reads_padding(self.config):
            seen = {m: jnp.ones_like(mask) for m, mask in valid.items()}
        tokens = {}  # {modality: [batch, tokens, d_model]}
        for m in names:
            make = Tokens(self.config, self.spec.length(m), name=f"{m}_tokens")
            tokens[m] = make(sequences[m], seen[m], train=train)
        self.sow("intermediates", "tokens", tokens)
        everything = jnp.ones(tokens["text"].shape[:2], bool)
        scales = [LearnedPositions(own.num_tokens, 1.0, name="text_positions")(tokens["text"])]
        for number in range(own.hyper_depth - 1):
            block = Block(self.config, own.text_heads, own.text_ff, name=f"text_{number}")
            scales.append(block(scales[-1], scales[-1], everything, train=train))
        self.sow("intermediates", "scales", scales)
        present = {m: mask.any(axis=1) for m, mask in seen.items()}
        others = {m: tokens[m] for m in names if m != "text"}
        shape = own.num_tokens, own.d_model
        hyper = self.param("hyper", nn.initializers.ones, shape)
        hyper = jnp.broadcast_to(hyper, (everything.shape[0], *shape))
        for number, scale in enumerate(scales):
            layer = HyperLayer(self.config, name=f"hyper_{number}")
            hyper = layer(hyper, scale, others, present, train=train)
        self.sow("intermediates", "hyper_modality", hyper)
        fused = Fusion(self.config, name="fusion")(scales[-1], hyper, train=train)
        self.sow("intermediates", "fused", fused)
        return Linear(self.spec.outputs, name="regression")(fused), {}


MODEL = Model(
    module=LanguageGuidedTransformer,
    bound=BOUND
    | {"*_tokens/positions/embedding": (POSITIONS,)}
    | dict.fromkeys(("hyper*", "fusion/*"), (MODALITIES,)),
    check=needs_text_and_another("lets text ask other modalities"),
    space={
        "model.almt.num_tokens": [4, 8, 16],
        "model.almt.fusion_depth": [1, 2, 4],
        "model.almt.dropout": (0.0, 0.4, "linear"),
        "optim.learning_rate": (3e-5, 1e-3, "log"),
    },
    encoder=ENCODER,
)
