"""Defines what several peers are made of, with the first values that their own code draws."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import row_weight
from msajax.layers.heads import Arrays, mean_pool
from msajax.models.contract import LABELS, VOCABULARY, Prediction
from msajax.models.inputs import read_input
from msajax.models.sequence_level import check_inputs
from msajax.spec import CorpusSpec

STATISTICS = "batch_stats"
# What parameters of all peers are bound to, beside what follows the order of modalities.
BOUND = {"text_embedding/embedding": (VOCABULARY,), "regression/*": (LABELS,)}
Measured = tuple[jax.Array, jax.Array]  # a sum and a weight, both []
Scored = tuple[jax.Array, dict[str, jax.Array]]  # scores [B, K], and what terms read, by name


class Peer(nn.Module):
    """Scores what all modalities say; a subclass says how, by `score`."""

    config: ModelConfig
    spec: CorpusSpec

    @nn.compact
    def __call__(self, features: Arrays, masks: Arrays, *, train: bool = False) -> Prediction:
        """Scores features `[B, T_m, d_m]` by modality; raises `ValueError` for wrong shapes."""
        # Left to JAX, accelerators would multiply float32 matrices in a shorter type.
        with jax.default_matmul_precision(self.config.matmul_precision):
            sequences, valid = read_inputs(self.config, self.spec, features, masks, train=train)
            if reads_padding(self.config):
                sequences, valid = in_full_length(self.spec, sequences, valid)
            score, aux = self.score(sequences, valid, train=train)
        return Prediction(score, even_weights(valid, self.spec.modalities), aux)

    # What a subclass computes is computed by the module itself, as if it stood in its call.
    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Makes scores, and what the model's terms read.

        Args:
            sequences: float32 vectors `{modality: [B, T_m, d_m]}`, 0 at padding, and as long as any
                may be if padding is read.
            valid: `{modality: [B, T_m]}`, True for a real step.
        """
        raise NotImplementedError


def uniform(limit: float) -> nn.initializers.Initializer:
    """Returns an initialiser that draws from [-limit, limit)."""

    def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return draw


class Linear(nn.Module):
    """Computes `x W + b`, drawn from ±1 / sqrt(inputs), as PyTorch's linear layers are."""

    features: int
    use_bias: bool = True
    kernel_init: nn.initializers.Initializer | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[…, d]` to `[…, features]`."""
        draw = uniform(x.shape[-1] ** -0.5)
        kernel = self.param("kernel", self.kernel_init or draw, (x.shape[-1], self.features))
        y = jnp.matmul(x, kernel)
        return y + self.param("bias", draw, (self.features,)) if self.use_bias else y


class BatchNorm(nn.Module):
    """Normalises each feature over the rows of a batch that count, as PyTorch's BatchNorm1d does.

    In training it uses the batch's own statistics, and moves the running ones, of which the
    variance is the unbiased one, by a tenth; else the running ones. A batch of which one row counts
    or none moves nothing, and is normalised by the running statistics.
    """

    @nn.compact
    def __call__(self, x: jax.Array, counts: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, d]`, of which the rows `[B]` bool count, to `[B, d]`."""
        width = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, width)
        bias = self.param("bias", nn.initializers.zeros, width)
        mean = self.variable(STATISTICS, "mean", jnp.zeros, width)
        variance = self.variable(STATISTICS, "variance", jnp.ones, width)
        mu, sigma2 = mean.value, variance.value
        if train:
            weight = (row_weight(self, x.shape[0]) * counts)[:, None]
            count = weight.sum()
            of_batch = (x * weight).sum(0) / jnp.maximum(count, 1)
            spread = (jnp.square(x - of_batch) * weight).sum(0) / jnp.maximum(count, 1)
            enough = count > 1
            mu, sigma2 = jnp.where(enough, of_batch, mu), jnp.where(enough, spread, sigma2)
            if not self.is_initializing() and self.is_mutable_collection(STATISTICS):
                unbiased = spread * count / jnp.maximum(count - 1, 1)
                mean.value = jnp.where(enough, 0.9 * mean.value + 0.1 * of_batch, mean.value)
                variance.value = jnp.where(
                    enough, 0.9 * variance.value + 0.1 * unbiased, variance.value
                )
        return (x - mu) * jax.lax.rsqrt(sigma2 + 1e-5) * scale + bias


class Lstm(nn.Module):
    """Runs an LSTM over the valid steps of sequences, with two biases, as PyTorch's does.

    Gates stand in the order input, forget, cell, output.

    Attributes:
        input_init: draws the kernel of the input in place of ±1 / sqrt(units).
        state_init: likewise that of the state.
    """

    units: int
    input_init: nn.initializers.Initializer | None = None
    state_init: nn.initializers.Initializer | None = None

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array, *, reverse: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """Maps `x` `[B, T, d]` under `mask` `[B, T]` to outputs and the state at the end.

        Returns:
            `[B, T, units]`, at a padded step those of the valid one before it, and `[B, units]`, 0
            for a row without a valid step. In reverse, "before" and "end" are those of reading
            backwards.
        """
        h, draw = self.units, uniform(self.units**-0.5)
        of_input = self.param("input_kernel", self.input_init or draw, (x.shape[-1], 4 * h))
        of_state = self.param("state_kernel", self.state_init or draw, (h, 4 * h))
        bias = self.param("input_bias", draw, (4 * h,)) + self.param("state_bias", draw, (4 * h,))
        x = jnp.where(mask[..., None], x, 0)
        gates = jnp.matmul(x, of_input) + bias  # of all steps at once

        def step(carry: tuple, now: tuple) -> tuple:
            state, cell = carry
            of_step, valid = now
            of_step = of_step + jnp.matmul(state, of_state)
            i, f, g, o = (of_step[:, k * h : (k + 1) * h] for k in range(4))
            new_cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            new_state = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
            state = jnp.where(valid[:, None], new_state, state)
            cell = jnp.where(valid[:, None], new_cell, cell)
            return (state, cell), state

        blank = jnp.zeros((x.shape[0], h))
        by_step = jnp.moveaxis(gates, 1, 0), mask.T
        (state, _), outputs = jax.lax.scan(step, (blank, blank), by_step, reverse=reverse)
        return jnp.moveaxis(outputs, 0, 1), state


class TwoWayLstm(nn.Module):
    """Runs one LSTM forwards and another one backwards, both of them in one loop.

    The first axis of every parameter is that of the two: forwards, backwards. For the attributes
    see `Lstm`.
    """

    units: int
    input_init: nn.initializers.Initializer | None = None
    state_init: nn.initializers.Initializer | None = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `x` `[B, T, d]` under `mask` `[B, T]` to outputs and the states at the ends.

        Returns:
            `[B, T, 2 units]` and `[B, 2 units]`, forwards before backwards; see `Lstm`.
        """
        two = nn.vmap(Lstm, variable_axes={"params": 0}, split_rngs={"params": True})
        outputs, states = two(self.units, self.input_init, self.state_init, name="lstm")(
            jnp.stack([x, x[:, ::-1]]), jnp.stack([mask, mask[:, ::-1]])
        )
        outputs = jnp.concatenate([outputs[0], outputs[1, :, ::-1]], axis=-1)
        return outputs, jnp.concatenate([states[0], states[1]], axis=-1)


def read_inputs(
    config: ModelConfig, spec: CorpusSpec, features: Arrays, masks: Arrays, *, train: bool
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Makes float32 vectors `[B, T_m, d_m]` of every modality, 0 at padding, and their masks.

    Call it inside a module's compact method; see `read_input`.

    Raises:
        ValueError: for shapes that do not fit the specification.
    """
    check_inputs(config, spec, features, masks, {})
    found, valid = {}, {}
    for m in spec.modalities:
        x, valid[m] = read_input(config, spec, m, features[m], masks[m], train=train)
        # Padding may hold anything, NaN included.
        found[m] = jnp.where(valid[m][..., None], x.astype(jnp.float32), 0)
    return found, valid


def reads_padding(config: ModelConfig) -> bool:
    """Tells whether a peer's `compat` asks that padding is read like any step."""
    return getattr(config.own, "compat", "") in config.own.padding_by


def in_full_length(
    spec: CorpusSpec, sequences: Arrays, valid: Arrays
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Pads vectors `[B, T_m, d_m]`, by zeros, and masks to the longest that there may be.

    Batches are cut to what their samples need: where padding is read, a sample's score would depend
    on the others.
    """
    found, masks = {}, {}
    for m, x in sequences.items():
        length = (m == "text" and spec.text_steps) or spec.length(m)  # of words, or of pieces
        behind = 0, max(length - x.shape[1], 0)
        found[m] = jnp.pad(x, ((0, 0), behind, (0, 0)))
        masks[m] = jnp.pad(valid[m], ((0, 0), behind))
    return found, masks


def kind_of(modality: str) -> str:
    """Returns by which settings a modality goes: text's, audio's, or video's for any other."""
    return modality if modality in ("text", "audio") else "video"


def needs_text_and_another(does: str) -> Callable[[ModelConfig, CorpusSpec], None]:
    """Makes the check of a model in which text `does` something to other modalities."""

    def check(config: ModelConfig, spec: CorpusSpec) -> None:
        if "text" not in spec.modalities or len(spec.modalities) < 2:
            raise UserError(
                f"model.name = {config.name!r} {does}, so it needs text and at least one other, "
                f"not {', '.join(spec.modalities)}."
            )

    return check


def last_valid(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the last valid step `[B, D]` of `x` `[B, T, D]`; 0 for a row without one."""
    last = x.shape[1] - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    found = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
    return jnp.where(mask.any(axis=1, keepdims=True), found, 0)


def first_valid(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the first valid step `[B, D]` of `x` `[B, T, D]`; 0 for a row without one."""
    found = jnp.take_along_axis(x, jnp.argmax(mask, axis=1)[:, None, None], axis=1)[:, 0]
    return jnp.where(mask.any(axis=1, keepdims=True), found, 0)


def vectors_of(
    peer: Peer, make: Callable[[str, str], nn.Module], sequences: Arrays, valid: Arrays, train: bool
) -> dict[str, jax.Array]:
    """Makes a vector `[B, D_m]` of each modality of a peer, 0 where a sample lacks the modality.

    That of text is `text_vector`, of its first step if `compat` is not clean.

    Args:
        make: (kind of modality, name) -> the module that makes the vector of any other modality.
    """
    found = {}
    for m in peer.spec.modalities:
        x, mask = sequences[m], valid[m]
        if m == "text":
            first = peer.config.own.compat != "clean"
            vector = text_vector(peer.config, peer.spec, x, mask, first=first)
        else:
            vector = make(kind_of(m), f"{m}_subnet")(x, mask, train=train)
        found[m] = jnp.where(mask.any(axis=1, keepdims=True), vector, 0)
        peer.sow("intermediates", f"{m}_vector", found[m])
    return found


def text_vector(
    config: ModelConfig, spec: CorpusSpec, x: jax.Array, mask: jax.Array, *, first: bool = False
) -> jax.Array:
    """Makes one vector `[B, D]` of the text `x` `[B, T, D]` under `mask` `[B, T]`.

    It is the first step where a pretrained encoder reads special pieces, of which the first, as
    [CLS], stands for all; else the mean of the valid steps, unless `first` asks for the first one.
    """
    has_special = spec.is_pieces("text") and config.text_pool == "pieces" and config.text_special
    return first_valid(x, mask) if first or has_special else mean_pool(x, mask)


def even_weights(masks: Arrays, modalities: tuple[str, ...]) -> jax.Array:
    """Returns weights `[B, M]` of a model that has none: the same for what a sample has."""
    present = jnp.stack([masks[m].any(axis=1) for m in modalities], axis=1).astype(jnp.float32)
    return present / jnp.maximum(present.sum(axis=1, keepdims=True), 1)


def lengths_of(x: jax.Array, of_zero: float = 0) -> jax.Array:
    """Returns the lengths `[…]` of vectors `[…, D]`, `of_zero` with gradient 0 for one of zeros."""
    square = jnp.square(x).sum(-1)
    is_zero = square == 0
    return jnp.where(is_zero, of_zero, jnp.sqrt(jnp.where(is_zero, 1, square)))


def mean_over_rows(of_rows: jax.Array, batch: Any) -> Measured:
    """Measures the mean of `[B]` over the rows of a batch that count."""
    return (of_rows * batch.row_weight).sum(), batch.row_weight.sum()


def once_a_row(value: jax.Array, batch: Any) -> Measured:
    """Counts what is measured of a batch as a whole as often as it has rows."""
    rows = batch.row_weight.sum()
    return value * rows, rows
