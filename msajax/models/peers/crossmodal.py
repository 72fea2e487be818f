"""Defines encoders of one sequence that read another one, as MulT has them (Tsai et al., 2019)."""

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from msajax.config import ModelConfig
from msajax.layers.basic import Dropout, Drops, keys_of_rows, numbers_of_site
from msajax.layers.linear import Affine, affine, layer_norm
from msajax.layers.long_attention import attend
from msajax.models.peers.common import Linear, kind_of, reads_padding

_EPS = 1e-5
SITES = ("embed", "attention", "relu", "residual")  # of dropout in an encoder
FEWEST_LAYERS = 3  # of the encoders behind those between two modalities


class Weights(NamedTuple):
    """Holds the parameters of an encoder of L layers, `[L, …]`, or those of several, `[N, L, …]`.

    Attributes:
        attention: maps to queries, keys and values, `[D, 3 D]`.
        out: maps what attention found, `[D, D]`.
        inner: the feed-forward network's first layer, `[D, 4 D]`.
        outer: its second, `[4 D, D]`.
        norm_attention: scale and bias of the norm before attention.
        norm_ffn: those of the norm before the feed-forward network.
        last_norm: those of the norm behind all layers, `[D]`.
    """

    attention: Affine
    out: Affine
    inner: Affine
    outer: Affine
    norm_attention: tuple[jax.Array, jax.Array]
    norm_ffn: tuple[jax.Array, jax.Array]
    last_norm: tuple[jax.Array, jax.Array]


class Work(NamedTuple):
    """Holds what an encoder computes with; see `compute_encoder`.

    Attributes:
        x: the stream that it changes, `[B, Tq, D]`.
        context: what the stream reads, `[B, Tk, D]`; None for the stream itself.
        keep: which steps a step may see, bool `[B, Tq, Tk]`, or `[B, 1, Tk]`.
        drops: one for each of `SITES`; None for no dropout.
    """

    weights: Weights
    x: jax.Array
    context: jax.Array | None
    keep: jax.Array
    drops: tuple[Drops | None, ...]


class StackedLinear(nn.Module):
    """Holds affine maps of the same sizes, drawn as Glorot and Bengio (2010) do."""

    stack: tuple[int, ...]
    inputs: int
    outputs: int

    @nn.compact
    def __call__(self) -> Affine:
        """Returns the kernels `[*stack, I, O]` and the biases `[*stack, O]`."""
        init = nn.initializers.xavier_uniform(batch_axis=tuple(range(len(self.stack))))
        kernel = self.param("kernel", init, (*self.stack, self.inputs, self.outputs))
        return Affine(
            kernel, self.param("bias", nn.initializers.zeros, (*self.stack, self.outputs))
        )


class StackedNorm(nn.Module):
    """Holds scales and biases of layer normalisations."""

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        """Returns both."""
        scale = self.param("scale", nn.initializers.ones, self.shape)
        return scale, self.param("bias", nn.initializers.zeros, self.shape)


class Encoders(nn.Module):
    """Holds N encoders of the same width and depth, each with a stream of its own.

    Their parameters are one array of each kind, whose first axis is that of the encoders: of six
    encoders apart, compiling and the optimiser would take three times as long. `run_encoders`
    computes them.

    Attributes:
        config: has the settings of `CrossmodalSettings` as its own.
        attention_dropouts: names of the settings that drop what attention weighs, one for each.
        shared: it is one encoder, the same for all streams.
    """

    config: ModelConfig
    layers: int
    attention_dropouts: tuple[str, ...]
    shared: bool = False

    @nn.compact
    def __call__(
        self,
        streams: Sequence[jax.Array],
        contexts: Sequence[jax.Array | None],
        keeps: Sequence[jax.Array],
        *,
        train: bool,
    ) -> list[Work]:
        """Makes the work of each encoder, of its stream `[B, Tq, D]`, what it reads and may see."""
        d, count = streams[0].shape[-1], 1 if self.shared else len(streams)
        shape = count, self.layers
        weights = Weights(
            attention=StackedLinear(shape, d, 3 * d, name="attention")(),
            out=StackedLinear(shape, d, d, name="out")(),
            inner=StackedLinear(shape, d, 4 * d, name="inner")(),
            outer=StackedLinear(shape, 4 * d, d, name="outer")(),
            norm_attention=StackedNorm((*shape, d), name="norm_attention")(),
            norm_ffn=StackedNorm((*shape, d), name="norm_ffn")(),
            last_norm=StackedNorm((count, d), name="last_norm")(),
        )
        each = jax.tree.transpose(
            jax.tree.structure(weights), None, jax.tree.map(jnp.unstack, weights)
        )
        each = each * len(streams) if self.shared else each
        rows = streams[0].shape[0]
        dropping = zip(*(self._drops(name, rows, train) for name in SITES), strict=True)
        return list(map(Work, each, streams, contexts, keeps, dropping))

    def _drops(self, site: str, rows: int, train: bool) -> list[Drops | None]:
        """Makes the drops of a site of every encoder; None for each if no rate is above 0."""
        names = [f"{site}_dropout"] * len(self.attention_dropouts)
        names = self.attention_dropouts if site == "attention" else names
        rates = [self.config.own_rate(name) for name in names]
        if not train or not any(rates):
            return [None] * len(rates)
        keys = keys_of_rows(self, rows)
        return [
            Drops(keys, *numbers_of_site(self, rate)).at(number)
            for number, rate in enumerate(rates)
        ]


def run_encoders(heads: int, *groups: Mapping[Hashable, Work]) -> list[dict[Hashable, jax.Array]]:
    """Computes groups of encoders: `[B, Tq, D]` by each group's keys.

    Those of equal shapes are one program over all of them, whichever group they are of: products
    are few and large, and fewer programs take less time to compile.
    """
    alike: dict[Any, list[tuple[int, Hashable]]] = {}
    for number, group in enumerate(groups):
        for key, work in group.items():
            leaves, structure = jax.tree.flatten(work)
            alike.setdefault((structure, *map(jnp.shape, leaves)), []).append((number, key))
    found: list[dict[Hashable, jax.Array]] = [{} for _ in groups]
    for places in alike.values():
        works = [groups[number][key] for number, key in places]
        if len(works) == 1:
            results = [compute_encoder(works[0], heads)]
        else:
            together = jax.tree.map(lambda *x: jnp.stack(x), *works)
            results = jax.vmap(functools.partial(compute_encoder, heads=heads))(together)
        for (number, key), result in zip(places, results, strict=True):
            found[number][key] = result
    return found


def compute_encoder(work: Work, heads: int) -> jax.Array:
    """Computes an encoder: `[B, Tq, D]`.

    Each layer is pre-norm: `x += Drop(MHA(N x, N context))`, of which one norm serves both, then
    `x += Drop(W Drop(relu(V N' x)))`. The context is the same for all layers.
    """
    of_embed, of_attention, of_relu, of_residual = work.drops

    def split(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(*x.shape[:2], heads, -1), 1, 2)  # [batch, heads, length, d]

    def drop(x: jax.Array, dropping: Drops | None, number: jax.Array | int) -> jax.Array:
        return x if dropping is None else dropping.at(number)(x)

    def layer(x: jax.Array, numbered: tuple[jax.Array, Weights]) -> tuple[jax.Array, None]:
        number, weights = numbered
        d = x.shape[-1]
        with jax.named_scope("projections"):
            query = layer_norm(x, *weights.norm_attention, _EPS)
            kernel, bias = weights.attention
            if context is None:
                joined = affine(query, weights.attention)
                q, k, v = (joined[..., i * d : (i + 1) * d] for i in range(3))
            else:
                q = affine(query, Affine(kernel[:, :d], bias[:d]))
                read = layer_norm(context, *weights.norm_attention, _EPS)
                joined = affine(read, Affine(kernel[:, d:], bias[d:]))
                k, v = joined[..., :d], joined[..., d:]
        q = q * (d // heads) ** -0.5
        dropping = of_attention and of_attention.at(number)
        mixed = attend(split(q), split(k), split(v), [work.keep], drops=dropping)
        mixed = jnp.moveaxis(mixed, 1, 2).reshape(x.shape)
        with jax.named_scope("projections"):
            mixed = affine(mixed, weights.out)
        # A step that sees nothing, as of a modality that is absent, learns nothing of it.
        mixed = jnp.where(work.keep.any(-1)[..., None], mixed, 0)
        x = x + drop(mixed, of_residual, 2 * number)
        with jax.named_scope("ffn"):
            hidden = nn.relu(affine(layer_norm(x, *weights.norm_ffn, _EPS), weights.inner))
            fed = affine(drop(hidden, of_relu, number), weights.outer)
        return x + drop(fed, of_residual, 2 * number + 1), None

    x, context = drop(work.x, of_embed, 0), work.context
    context = None if context is None else drop(context, of_embed, 1)
    layers = work.weights._replace(last_norm=None)
    x, _ = lax.scan(layer, x, (jnp.arange(len(layers.out.kernel)), layers))
    return layer_norm(x, *work.weights.last_norm, _EPS)


def sinusoids(length: int, width: int) -> np.ndarray:
    """Computes positions from 1: half of the columns are sines, half cosines, `[T, D]` float32.

    An odd width has a last column of 0.
    """
    half = width // 2
    frequencies = np.exp(-np.arange(half) * (np.log(1e4) / max(half - 1, 1)))
    angles = np.arange(1, length + 1)[:, None] * frequencies
    table = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((length, width % 2))], axis=1)
    return table.astype(np.float32)


def windows(x: jax.Array, mask: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Joins every `size` steps that follow one another: `[B, T - size + 1, size d]`, and a mask.

    A window counts if it lies between the first and the last valid step, and has one. Of a shorter
    sequence one window counts, so that no valid step is lost: with zeros behind it if the sequence
    begins at step 0, as prepared ones do; one that begins later may have zeros in front.

    Args:
        x: `[B, T, d]`, 0 at padding.
        mask: `[B, T]`.
    """
    if missing := max(size - x.shape[1], 0):
        x = jnp.pad(x, ((0, 0), (0, missing), (0, 0)))
        mask = jnp.pad(mask, ((0, 0), (0, missing)))
    steps = jnp.arange(x.shape[1] - size + 1)
    parts = [slice(i, i + len(steps)) for i in range(size)]
    has_step = jnp.stack([mask[:, part] for part in parts]).any(0)
    first, end = jnp.argmax(mask, axis=1)[:, None], ends(mask)[:, None]
    inside = (steps >= first) & (steps + size <= end)
    counts = has_step & (inside | (steps == jnp.maximum(end - size, 0)))
    return jnp.concatenate([x[:, part] for part in parts], axis=-1), counts


def ends(mask: jax.Array) -> jax.Array:
    """Returns the number of steps up to the last valid one, `[B]` of `[B, T]`."""
    return (jnp.arange(1, mask.shape[1] + 1) * mask).max(axis=1)


def project(
    config: ModelConfig, modality: str, x: jax.Array, mask: jax.Array, *, train: bool
) -> tuple[jax.Array, jax.Array]:
    """Maps `[B, T, d]` to `[B, T', d_model]` by a convolution, and its mask likewise.

    Call it inside a module's compact method. By `compat` of reference the mask says that all steps
    are valid, and features that are d_model wide stay.
    """
    own = config.own
    if modality == "text":
        x = Dropout(config.own_rate("text_dropout"))(x, train=train)
    if reads_padding(config):
        mask = jnp.ones_like(mask)
        if x.shape[-1] == own.d_model:
            return x, mask
    x, mask = windows(x, mask, getattr(own, f"{kind_of(modality)}_kernel"))
    return Linear(own.d_model, use_bias=False, name=f"{modality}_projection")(x), mask


def positioned(own: Any, x: jax.Array) -> jax.Array:
    """Scales `[B, T, D]` by the root of D, and adds positions if the settings have them."""
    scaled = x * x.shape[-1] ** 0.5
    if not own.positions:
        return scaled
    table = jnp.asarray(sinusoids(*x.shape[1:]))
    return scaled + (table if own.compat == "clean" else jnp.where(x[..., :1] != 0, table, 0))


def visible(own: Any, of_queries: jax.Array, of_keys: jax.Array) -> jax.Array:
    """Says which keys `[B, Tk]` a query `[B, Tq]` sees, by the masks of both."""
    if not own.causal_mask:
        return of_keys[:, None]
    ahead = jnp.abs(ends(of_keys) - ends(of_queries))[:, None, None]
    queries, keys = jnp.arange(of_queries.shape[1]), jnp.arange(of_keys.shape[1])
    return of_keys[:, None] & (keys <= queries[:, None] + ahead)


def refine(config: ModelConfig, x: jax.Array, name: str, *, train: bool) -> jax.Array:
    """Computes `x + P' Drop(relu(P x))` of `[B, D]`; call it inside a module's compact method."""
    hidden = nn.relu(Linear(x.shape[1], name=f"{name}_0")(x))
    hidden = Dropout(config.own_rate("out_dropout"))(hidden, train=train)
    return x + Linear(x.shape[1], name=f"{name}_1")(hidden)


def attention_dropout(modality: str) -> str:
    """Names the setting of dropout of attention to a modality."""
    kind = kind_of(modality)
    return "attention_dropout" if kind == "text" else f"{kind}_attention_dropout"
