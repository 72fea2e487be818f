"""Defines Transformer blocks, stacks of layers, encoders of a modality, and fusion."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.layers.attention import MultiHeadAttention, causal_mask
from msajax.layers.basic import NORMS, Dropout, FeedForward, TokenEmbedding
from msajax.layers.heads import Arrays, pool
from msajax.layers.linear import AffineLayer
from msajax.layers.positions import DROFE_FEATURES, LearnedPositions, drofe, sinusoids
from msajax.layers.recurrent import Recurrence


def make_norm(config: ModelConfig, name: str, kind: str = "same") -> nn.Module:
    """Makes the normalisation of a kind, or the same as everywhere in a configuration."""
    kind = config.norm if kind == "same" else kind
    return NORMS[kind](config.norm_eps, jnp.dtype(config.dtype), name=name)


class TransformerBlock(nn.Module):
    """Applies attention and feed-forward, each with dropout, residual and norm.

    Post-norm: `x = N(x + Drop(MHA(x)))`, then `x = N(x + Drop(FFN(x)))`. Pre-norm: `x = x +
    Drop(MHA(N(x)))`, then `x = x + Drop(FFN(N(x)))`. With `context is x` this is self-attention;
    else cross-attention with the residual on `x`. Given a guide, self-attention takes queries and
    keys from that attribution as it is, and values from where it takes them without: `x`, or
    pre-norm `N(x)`.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        context: jax.Array,
        masks: tuple[jax.Array, ...],
        *,
        train: bool,
        guide: jax.Array | None = None,
        rotation: tuple[jax.Array, jax.Array] | None = None,
    ) -> jax.Array:
        """Lets `x` `[B, Tq, D]` attend to a context `[B, Tk, D]`: `[B, Tq, D]`.

        Args:
            masks: any of `combine_masks`'s forms, `[B, Tk]` among them.
            guide: `[B, Tq, D]`, the source of queries and keys of a guided self-attention.
            rotation: factors of `rotate` for the queries and keys of self-attention.
        """
        c = self.config
        dtype = jnp.dtype(c.dtype)
        attention = MultiHeadAttention(
            num_heads=c.num_heads,
            head_dim=c.size_of_head,
            dropout_rate=c.rate("attention_dropout"),
            dtype=dtype,
            value_dim=c.value_dim,
            qkv_bias=c.qkv_bias,
            out_bias=c.out_bias,
            name="attention",
        )
        ffn = FeedForward(
            c.ff_dim, c.activation, c.rate("ffn_dropout"), dtype, c.ffn_inner_bias, name="ffn"
        )
        norm_attention, norm_ffn = make_norm(c, "norm_attention"), make_norm(c, "norm_ffn")

        def attend(query, context):
            # The formula of guidance has no norm between an attribution and the projections.
            asks, answers = (query, context) if guide is None else (guide, guide)
            return attention(
                asks, answers, masks, train=train, values=context, rotation=rotation
            )  # [batch, queries, model_dim]

        if c.norm_position == "pre":
            is_self = context is x
            query = norm_attention(x)
            # Another context is the residual stream of another stack: it needs a norm of its own.
            context = query if is_self else make_norm(c, "norm_context")(context)
            x = x + Dropout(c.rate())(attend(query, context), train=train)
            fed = ffn(norm_ffn(x), train=train)  # [batch, queries, model_dim]
            return x + Dropout(c.rate())(fed, train=train)
        x = norm_attention(x + Dropout(c.rate())(attend(x, context), train=train))
        fed = ffn(x, train=train)  # [batch, queries, model_dim]
        return norm_ffn(x + Dropout(c.rate())(fed, train=train))


def stack(
    config: ModelConfig,
    mixer: str,
    layers: range,
    x: jax.Array,
    masks: tuple[jax.Array, ...],
    *,
    train: bool,
    guides: Sequence[jax.Array] | None = None,
    rotation: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Applies layers one after another, and a final norm if the configuration has one.

    The layers belong to the module whose method calls this. A recurrent one is followed by dropout.

    Args:
        mixer: transformer, rnn, gru or lstm.
        layers: those to apply, `range(first, depth)`; an empty one leaves only the final norm.
        x: `[B, T, D]`, what the first of them reads.
        masks: the valid steps `[B, T]`, then, for transformer blocks, any other masks of attention.
        guides: what each transformer block takes queries and keys from, `[B, T, D]` for each layer.
        rotation: factors of `rotate` for every transformer block.

    Returns:
        `[B, T, D]`, and what every one of `layers` read, the final norm too.
    """
    read = [x]
    for i in layers:
        if mixer == "transformer":
            guide = guides[i] if guides else None
            block = TransformerBlock(config, name=f"blocks_{i}")
            x = block(x, x, masks, train=train, guide=guide, rotation=rotation)
        else:
            dtype = jnp.dtype(config.dtype)
            layer = Recurrence(mixer, config.both_directions, dtype, name=f"layers_{i}")
            dropout = Dropout(config.rate(), name=f"dropout_{i}")
            x = dropout(layer(x, masks[0]), train=train)
        read.append(x)
    if config.final_norm and layers.stop:
        x = make_norm(config, "final_norm", config.final_norm_type)(x)
    return x, tuple(read)


def self_masks(
    config: ModelConfig, mask: jax.Array, attention_mask: jax.Array | None
) -> tuple[jax.Array, ...]:
    """Collects the masks of self-attention: `mask` `[B, T]`, the causal one, and another.

    That may be `[T, T]` or `[B, T, T]`, bool or float.
    """
    masks = (mask, causal_mask(mask.shape[1])) if config.causal else (mask,)
    if attention_mask is None:
        return masks
    if attention_mask.ndim == 2:
        attention_mask = attention_mask[None]  # a bool [T, T] is not taken for [B, T]
    if jnp.issubdtype(attention_mask.dtype, jnp.floating):
        # NaN in the row of a padded query would reach other steps: its value in the next layer has
        # probability 0, and 0 * NaN is NaN.
        is_read = mask[..., None] | (attention_mask < jnp.inf)  # [batch, queries, keys]
        attention_mask = jnp.where(is_read, attention_mask, 0)
    return *masks, attention_mask


def make_embedding(config: ModelConfig, vocabulary: int, name: str) -> TokenEmbedding:
    """Makes the embedding of a modality of token ids."""
    width = config.embedding_dim or config.model_dim
    scale = width**0.5 if config.embedding_scale == "sqrt_dim" else 1.0
    return TokenEmbedding(vocabulary, width, jnp.dtype(config.dtype), scale, name=name)


class JoinedInput(nn.Module):
    """Projects the features of a modality, to be added to what another one says at the same step.

    It is early fusion: a projection of the features of several modalities side by side is the sum
    of a projection of each. What is not there adds nothing, for there is no bias.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool) -> jax.Array:
        """Maps `x` `[B, T, d]` under `mask` `[B, T]` to `[B, T, D]`."""
        c = self.config
        x = jnp.where(mask[..., None], x, 0)
        if c.positions == "drofe":  # features that rotate are not projected
            x = x[..., DROFE_FEATURES:]
        x = Dropout(c.rate("input_dropout"))(x, train=train)
        sizes = x.shape[-1:], (c.model_dim,)
        return AffineLayer(*sizes, jnp.dtype(c.dtype), use_bias=False, name="projection")(x)


class ModalityEncoder(nn.Module):
    """Applies projection, positions, dropout, then `n_layers_mod` layers (source 002, R2).

    With dRoFE positions the first four features of a step are not projected: they rotate the
    queries and keys of these layers (not those of the blocks after fusion, whose steps hold more
    than one modality). What each layer read, and what the last one wrote, are kept as `read` in the
    `intermediates` collection when that is mutable.

    Attributes:
        max_len: rows of a learned position table.
        project: off for embeddings that have the model's width; else `config.input_projection`
            decides whether the input is projected.
    """

    config: ModelConfig
    max_len: int
    project: bool = True

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array,
        *,
        train: bool,
        joined: Sequence[jax.Array] = (),
        attention_mask: jax.Array | None = None,
        begin: tuple[int, jax.Array] | None = None,
        guides: Sequence[jax.Array] | None = None,
    ) -> jax.Array:
        """Encodes a sequence `[B, T, d]`: `[B, T, D]`.

        Args:
            mask: `[B, T]`, True for a real step.
            joined: `[B, T, D]` each, added to the projected input: see `JoinedInput`.
            attention_mask: `[T, T]` or `[B, T, T]`, bool or float, of transformer blocks.
            begin: a layer and what it reads, `[B, T, D]`: nothing before it is computed.
            guides: what each layer takes queries and keys from, `n_layers_mod` times `[B, T, D]`.
        """
        c = self.config
        # Padding may hold anything, NaN included: multiplying by zero would let it through.
        x = jnp.where(mask[..., None], x, 0)  # [batch, length, width]
        rotation = None
        if c.positions == "drofe":
            rotation = drofe(x[..., :DROFE_FEATURES], c.size_of_head, c.drofe_age_unit)
            x = x[..., DROFE_FEATURES:]
        if begin is None:
            x = Dropout(c.rate("input_dropout"))(x, train=train)
            dtype = jnp.dtype(c.dtype)
            if self.project and (c.input_projection == "always" or x.shape[-1] != c.model_dim):
                projection = AffineLayer(x.shape[-1:], (c.model_dim,), dtype, name="projection")
                x = projection(x)  # [batch, length, model_dim]
            x = sum(joined, x.astype(dtype))
            if c.positions == "learned":
                x = LearnedPositions(self.max_len, c.position_init, name="positions")(x)
            elif c.positions == "sinusoidal":
                x = x + jnp.asarray(sinusoids(*x.shape[1:]), x.dtype)
            begin = 0, Dropout(c.rate("projection_dropout"))(x, train=train)
        first, x = begin
        masks, layers = self_masks(c, mask, attention_mask), range(first, c.n_layers_mod)
        x, read = stack(c, c.mixer, layers, x, masks, train=train, guides=guides, rotation=rotation)
        self.sow("intermediates", "read", read)
        return x


class PostFusionEncoder(nn.Module):
    """Applies `n_layers_post_fuse` self-attention blocks to a fused sequence (source 000, R16)."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array, *, train: bool, attention_mask: jax.Array | None = None
    ) -> jax.Array:
        """Maps `x` `[B, T, D]` under `mask` `[B, T]` to `[B, T, D]`; see `ModalityEncoder`."""
        c = self.config
        masks = self_masks(c, mask, attention_mask)
        x, _ = stack(c, "transformer", range(c.n_layers_post_fuse), x, masks, train=train)
        return x


class AnchoredFusion(nn.Module):
    """Applies `n_layers_fuse` layers of cross-attention around one anchor (source 002, R5).

    In each layer the anchor attends to every other modality in turn; with
    `bidirectional_fusion`, each of them then attends to the anchor: as it is after that when
    `fusion` is sequential, as it came into the layer when it is parallel.
    """

    config: ModelConfig
    modalities: tuple[str, ...]
    anchor: str

    @nn.compact
    def __call__(self, sequences: Arrays, masks: Arrays, *, train: bool) -> dict[str, jax.Array]:
        """Fuses sequences `{modality: [B, T_m, D]}` under masks `{modality: [B, T_m]}`."""
        fused = dict(sequences)
        pairs = fusion_pairs(self.config, self.modalities, self.anchor)
        for i in range(self.config.n_layers_fuse):
            layer = FusionLayer(self.config, pairs, name=f"layers_{i}")
            fused = layer(fused, masks, train=train)
        return fused


def fusion_pairs(
    config: ModelConfig, modalities: tuple[str, ...], anchor: str
) -> tuple[tuple[str, str], ...]:
    """Lists who attends to whom in a layer: (query modality, context modality), in order."""
    pairs = [(anchor, m) for m in modalities if m != anchor]
    if config.bidirectional_fusion:
        pairs += [(m, anchor) for m in modalities if m != anchor]
    return tuple(pairs)


def fusion_names(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Names the block of each pair."""
    names = [f"{query}_from_{context}" for query, context in pairs]
    if len(set(names)) < len(names):  # modalities may be called a, b_from_a and a_from_b
        names = [f"{i}_{name}" for i, name in enumerate(names)]
    return names


class FusionLayer(nn.Module):
    """Applies a chain of cross-attention blocks, one for each pair (query, context) of modalities.

    Each reads what the ones before it wrote, or, in parallel fusion, contexts as they came in.
    """

    config: ModelConfig
    pairs: tuple[tuple[str, str], ...]

    @nn.compact
    def __call__(self, sequences: Arrays, masks: Arrays, *, train: bool) -> dict[str, jax.Array]:
        """Maps `{modality: [B, T_m, D]}` to the same shapes."""
        fused = dict(sequences)
        # Parallel fusion differs in the contexts alone: a query that attends to two modalities does
        # so in turn, which needs no rule for merging two answers.
        contexts = sequences if self.config.fusion == "parallel" else fused
        for name, (query, context) in zip(fusion_names(self.pairs), self.pairs, strict=True):
            block = TransformerBlock(self.config, name=name)
            fused[query] = block(
                fused[query], contexts[context], (masks[context],), train=train
            )  # [batch, query length, model_dim]
        return fused


class PooledFusion(nn.Module):
    """Pools modalities, and lets them attend to each other: the early-pooling baseline (R14).

    The pooled vectors are a sequence of length M for `n_layers_fuse` self-attention blocks. An
    absent modality is masked there.
    """

    config: ModelConfig
    modalities: tuple[str, ...]

    @nn.compact
    def __call__(
        self, sequences: Arrays, masks: Arrays, *, train: bool
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Turns `{modality: [B, T_m, D]}` into `{modality: [B, 1, D]}`, and the masks likewise."""
        c, names = self.config, self.modalities
        tokens, present = pool(c, names, sequences, masks)  # [batch, modalities, model_dim]
        tokens = tokens.astype(jnp.dtype(c.dtype))
        layers = range(c.n_layers_fuse)
        tokens, _ = stack(c, "transformer", layers, tokens, (present,), train=train)
        one = {m: slice(i, i + 1) for i, m in enumerate(names)}
        return {m: tokens[:, one[m]] for m in names}, {m: present[:, one[m]] for m in names}
