"""Defines MISA: of each modality what all say, and what it alone says (Hazarika et al., 2020)."""

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout, LayerNorm
from msajax.layers.heads import Arrays, mean_pool
from msajax.layers.transformer import TransformerBlock
from msajax.models.contract import BATCH, MODALITIES, Model, Prediction, Term
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import (
    BOUND,
    Linear,
    Measured,
    Peer,
    Scored,
    TwoWayLstm,
    lengths_of,
    once_a_row,
    reads_padding,
)
from msajax.spec import CorpusSpec

_EPS = 1e-5  # of every norm
_MOMENTS = 5


class Recurrent(nn.Module):
    """Makes a vector of a sequence: two LSTMs that read both ways, with a norm between them."""

    orthogonal: bool

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps `x` `[B, T, d]` under `mask` `[B, T]` to `[B, 4 d]`, 0 for a row without a step.

        It is the states at the ends: of the first and the second LSTM forwards, then backwards.
        """
        width = x.shape[-1]
        init = nn.initializers.orthogonal() if self.orthogonal else None
        outputs, first = TwoWayLstm(width, state_init=init, name="first")(x, mask)
        normed = LayerNorm(_EPS, jnp.float32, name="norm")(outputs)
        _, second = TwoWayLstm(width, state_init=init, name="second")(normed, mask)
        both = jnp.stack([first, second], axis=1).reshape(x.shape[0], 2, 2, width)
        return jnp.moveaxis(both, 2, 1).reshape(x.shape[0], 4 * width)


class Misa(Peer):
    """Lets a private and a shared vector of each modality attend to each other, and scores them.

    By default every modality is read under its own mask, the vector of text is the mean of its
    valid steps, and a modality that a sample lacks is masked: nothing attends to it, it is 0 for
    the head, and no term sees it. Of the authors' code there is no branch against an adversary,
    whose parameters their loss does not use. The toolkit's code reads the other modalities for as
    many steps as text has; see `MisaSettings.compat`.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores a batch of features `{modality: [B, T_m, d_m]}` under `{modality: [B, T_m]}`.

        For the terms it keeps of M modalities `projected`, `private`, `shared` and `rebuilt`,
        `[B, M, D]` each, and which of them a sample has, `present` `[B, M]`.
        """
        own, names = self.config.own, self.spec.modalities
        is_clean = not reads_padding(self.config)
        present = jnp.stack([valid[m].any(axis=1) for m in names], axis=1)
        read = valid
        if not is_clean:
            read = as_long_as(valid, "text")
            present = jnp.ones_like(present)
        projected, private = [], []
        for m in names:
            make = mean_pool
            if m != "text":
                make = Recurrent(is_clean, name=f"{m}_recurrent")
            vector = make(sequences[m], read[m])
            self.sow("intermediates", f"utterance_{m}", vector)
            vector = nn.relu(Linear(own.hidden, name=f"{m}_projection")(vector))
            vector = LayerNorm(_EPS, jnp.float32, name=f"{m}_norm")(vector)
            projected.append(vector)
            private.append(nn.sigmoid(Linear(own.hidden, name=f"{m}_private")(vector)))
        projected, private = jnp.stack(projected, axis=1), jnp.stack(private, axis=1)
        shared = nn.sigmoid(Linear(own.hidden, name="shared")(projected))
        both = private + shared
        rebuilt = [Linear(own.hidden, name=f"{m}_recon")(both[:, i]) for i, m in enumerate(names)]

        # All of them attend to each other; what is there is scored.
        tokens = jnp.concatenate([private, shared], axis=1)  # [batch, 2 modalities, hidden]
        there = jnp.concatenate([present, present], axis=1)
        tokens = self.make_block()(tokens, tokens, (there,), train=train)
        fused = jnp.where(there[..., None], tokens, 0).reshape(tokens.shape[0], -1)
        self.sow("intermediates", "fused", fused)
        x = Linear(len(names) * own.hidden, name="head")(fused)
        x = Dropout(self.config.own_rate("head_dropout"))(x, train=train)
        score = Linear(self.spec.outputs, name="regression")(nn.relu(x))
        kept = {"projected": projected, "private": private, "shared": shared, "present": present}
        return score, kept | {"rebuilt": jnp.stack(rebuilt, axis=1)}

    def make_block(self) -> TransformerBlock:
        """Makes the layer in which the vectors attend to each other: post-norm, with ReLU."""
        own, rate = self.config.own, self.config.own_rate("fusion_dropout")
        config = ModelConfig(
            model_dim=own.hidden,
            num_heads=own.num_heads,
            ff_dim=own.ff_dim,
            activation="relu",
            norm_eps=_EPS,
            dropout_rate=rate,
        )
        return TransformerBlock(config, name="fusion")


def as_long_as(masks: Arrays, modality: str) -> dict[str, jax.Array]:
    """Makes masks of the first steps of all, as many as one modality has valid ones."""
    length = masks[modality].sum(axis=1, keepdims=True)
    first = {m: jnp.arange(mask.shape[1]) < length for m, mask in masks.items()}
    return first | {modality: masks[modality]}


def mean_of(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Averages the rows of `x` `[B, D]` by weights `[B]`: `[D]`, 0 where they are all 0."""
    return (x * weight[:, None]).sum(0) / jnp.where(weight.sum() > 0, weight.sum(), 1)


def moments_apart(
    one: jax.Array, other: jax.Array, weight_of_one: jax.Array, weight_of_other: jax.Array
) -> jax.Array:
    """Computes how far five moments of two sets of rows are apart (CMD, Zellinger et al., 2017).

    It is the distance of their means, and of their 2nd to 5th central moments. Of numbers within
    [0, 1], as here, the formula's factors are 1.

    Args:
        one: `[B, D]`, as is the other.
        weight_of_one: `[B]`, 0 for a row that does not count; of the other likewise.
    """
    means = mean_of(one, weight_of_one), mean_of(other, weight_of_other)
    found = lengths_of(means[0] - means[1])
    centred = one - means[0], other - means[1]
    for power in range(2, _MOMENTS + 1):
        found += lengths_of(
            mean_of(centred[0] ** power, weight_of_one)
            - mean_of(centred[1] ** power, weight_of_other)
        )
    return found


def overlap(one: jax.Array, other: jax.Array, weight: jax.Array) -> jax.Array:
    """Computes the mean square of the products of two sets of columns over a batch.

    Columns of `[B, D]` are centred, then each row is divided by its length, which counts as a
    constant. Rows with weight `[B]` 0 are left out.
    """

    def directions(x: jax.Array) -> jax.Array:
        centred = jnp.where(weight[:, None] > 0, x - mean_of(x, weight), 0)
        lengths = jnp.sqrt(jnp.square(jax.lax.stop_gradient(centred)).sum(1, keepdims=True))
        return centred / (lengths + 1e-6)

    return jnp.square(jnp.matmul(directions(one).T, directions(other))).mean()


def measure_diff(prediction: Prediction, batch: Any) -> Measured:
    """Sums the overlaps of private and shared vectors, and of private ones of two modalities."""
    private, shared = prediction.aux["private"], prediction.aux["shared"]
    weight = prediction.aux["present"] * batch.row_weight[:, None]
    modalities = range(private.shape[1])
    found = sum(overlap(private[:, i], shared[:, i], weight[:, i]) for i in modalities)
    for i, j in itertools.combinations(modalities, 2):
        found += overlap(private[:, i], private[:, j], weight[:, i] * (weight[:, j] > 0))
    return once_a_row(found, batch)


def measure_sim(prediction: Prediction, batch: Any) -> Measured:
    """Averages how far the moments of shared vectors are apart over all pairs of modalities."""
    shared = prediction.aux["shared"]
    weight = prediction.aux["present"] * batch.row_weight[:, None]
    found, pairs = jnp.float32(0), jnp.float32(0)
    for i, j in itertools.combinations(range(shared.shape[1]), 2):
        apart = moments_apart(shared[:, i], shared[:, j], weight[:, i], weight[:, j])
        there = weight[:, i].any() & weight[:, j].any()
        found, pairs = found + jnp.where(there, apart, 0), pairs + there
    return once_a_row(found / jnp.maximum(pairs, 1), batch)


def measure_recon(prediction: Prediction, batch: Any) -> Measured:
    """Sums the mean square errors of what the two vectors of each modality say together."""
    weight = prediction.aux["present"] * batch.row_weight[:, None]
    errors = jnp.square(prediction.aux["rebuilt"] - prediction.aux["projected"]).mean(-1)
    return (errors * weight).sum(), weight.sum()


def terms(config: ModelConfig, name: str, loss: Term) -> dict[str, Term]:
    """Puts `diff`, `sim` and `recon` beside the task's loss."""

    def in_full(measure):
        def measured(prediction: Prediction, batch: Any) -> Measured:
            with jax.default_matmul_precision(config.matmul_precision):
                return measure(prediction, batch)

        return measured

    beside = {"diff": measure_diff, "sim": measure_sim, "recon": measure_recon}
    found = {name: loss}
    for term, measure in beside.items():
        if weight := getattr(config.own, f"{term}_weight"):
            found[term] = Term(in_full(measure), weight, BATCH)
    return found


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for the toolkit's lengths where there is no text to have them of."""
    if config.own.compat == "reference" and "text" not in spec.modalities:
        raise UserError(
            "model.misa.compat = reference reads every modality for as many steps as text has, and "
            f"text is not among the run's: {', '.join(spec.modalities)}."
        )


MODEL = Model(
    module=Misa,
    bound=BOUND | {"head/*": (MODALITIES,)},
    terms=terms,
    check=check,
    space={
        "model.misa.hidden": [64, 128, 256],
        "model.misa.diff_weight": [0.1, 0.3],
        "model.misa.sim_weight": [0.3, 0.7, 1.0],
        "model.misa.head_dropout": (0.1, 0.5, "linear"),
        "optim.learning_rate": (5e-5, 2e-3, "log"),
    },
    encoder=ENCODER,
)
