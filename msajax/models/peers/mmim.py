"""Defines MMIM, which maximises mutual information between modalities (Han et al., 2021)."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays
from msajax.models.contract import (
    BATCH,
    MODALITIES,
    Model,
    Prediction,
    Stage,
    Term,
)
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import (
    BOUND,
    Linear,
    Lstm,
    Measured,
    Peer,
    Scored,
    mean_over_rows,
    once_a_row,
    uniform,
    vectors_of,
)
from msajax.spec import CorpusSpec
from msajax.tasks import has_scale

_KERNEL = nn.initializers.variance_scaling(1.0, "fan_avg", "normal")  # Glorot and Bengio, 2010
_RIDGE = 1e-6  # of covariances: keeps their logarithms, and slopes of these, finite


class BidirectionalVector(nn.Module):
    """Makes a vector of a sequence: an LSTM both ways, dropout of its states, a linear layer."""

    units: int
    features: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool) -> jax.Array:
        """Maps `x` `[B, T, d]` under `mask` `[B, T]` to `[B, features]`."""
        _, forward = Lstm(self.units, _KERNEL, name="forward")(x, mask)
        _, backward = Lstm(self.units, _KERNEL, name="backward")(x, mask, reverse=True)
        states = jnp.concatenate([forward, backward], axis=1)
        states = Dropout(self.dropout)(states, train=train)
        return Linear(self.features, kernel_init=_KERNEL, name="linear")(states)


class Estimator(nn.Module):
    """Estimates the distribution of y given x: a normal one, whose mean and variance x gives.

    Attributes:
        has_variance: the log-likelihood has the term of the variance, whose logarithm then lies in
            (-1, 1).
    """

    has_variance: bool

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Maps `x` `[B, d]` and `y` `[B, D]` to log q(y | x) `[B]`, without its constant."""
        found = {}
        for name in ("mean", "log_variance"):
            hidden = nn.relu(Linear(y.shape[1], kernel_init=_KERNEL, name=f"{name}_0")(x))
            found[name] = Linear(y.shape[1], kernel_init=_KERNEL, name=f"{name}_1")(hidden)
        mean, log_variance = found["mean"], found["log_variance"]
        if self.has_variance:
            log_variance = jnp.tanh(log_variance)
        log_q = -0.5 * jnp.square(y - mean) * jnp.exp(-log_variance)
        return (log_q - 0.5 * log_variance if self.has_variance else log_q).sum(axis=1)


class Projection(nn.Module):
    """Computes `tanh(x W + b)` with a quarter of the numbers of x."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, D]` to `[B, D / 4]`."""
        width = x.shape[1]
        kernel = self.param("kernel", _KERNEL, (width, width // 4))
        bias = self.param("bias", uniform(width**-0.5), (width // 4,))
        return jnp.tanh(jnp.matmul(x, kernel) + bias)


class Infomax(Peer):
    """Scores a fused vector of all modalities, and maximises mutual information in training.

    It maximises two lower bounds. Between text (or the first modality) and each other one: the
    log-likelihood of the other's vector by an estimator that reads the text's, and the entropy of
    the other's vector (Barber and Agakov, 2003). Between the fused vector and each modality's: a
    prediction from the fused vector must be nearest to the vector of its own sample among those of
    the batch (van den Oord et al., 2018). An epoch has two stages, of which the first trains the
    estimators alone, by the log-likelihood.

    By default the vector of text is its first step where a pretrained encoder reads special pieces,
    such as [CLS], else the mean of the valid steps; the authors' code always takes the first step.
    The log-likelihood is that of a normal distribution, whose log-variance is limited by tanh, as
    the authors' settings say; their code leaves out both, so that a growing variance makes any
    error vanish. The projections whose entropy is taken train; in their code no optimiser has them.
    The entropy is that of the batch alone; theirs is of the batch before it, too. Rows are told
    apart by the sign of a score, as in their code; those of classes and of several scores are not.
    The second stage trains everything; theirs leaves the estimators as they are. States of LSTMs
    are dropped, by the rate that they set and do not use. A modality that a sample lacks is 0, and
    counts in neither bound. See `MmimSettings.compat`.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores features `{modality: [B, T_m, d_m]}` under `{modality: [B, T_m]}`.

        Returns:
            Scores `[B, K]`. In aux: `log_likelihood` `[B]`, the sum over the pairs that a sample
            has; `projected_<modality>` `[B, D_m / 4]`, of which the entropy is; and the unit
            vectors `unit_<modality>` and `predicted_<modality>` `[B, D_m]`, the modality's own and
            its prediction from the fused vector.
        """
        own, rate, modalities = self.config.own, self.config.own_rate, self.spec.modalities
        is_clean, aux = own.compat == "clean", {}

        def subnet(kind: str, name: str) -> BidirectionalVector:
            sizes = getattr(own, f"{kind}_lstm"), getattr(own, f"{kind}_out")
            dropout = rate(f"{kind}_dropout") if is_clean else 0.0
            return BidirectionalVector(*sizes, dropout, name=name)

        vectors = vectors_of(self, subnet, sequences, valid, train)

        # The parts of the lower bound between text, or the first modality, and each other one.
        present = {m: mask.any(axis=1) for m, mask in valid.items()}
        anchor = self.config.anchor_of(self.spec.modalities)
        aux["log_likelihood"] = jnp.zeros(present[anchor].shape)
        for m in (m for m in modalities if m != anchor):
            log_q = Estimator(is_clean, name=f"{m}_estimator")(vectors[anchor], vectors[m])
            aux["log_likelihood"] += jnp.where(present[anchor] & present[m], log_q, 0)
            aux[f"projected_{m}"] = Projection(name=f"{m}_projection")(vectors[m])

        # The fused vector, its scores, and what it predicts of each modality's own.
        x = jnp.concatenate(list(vectors.values()), axis=1)
        x = Dropout(rate("fusion_dropout"))(x, train=train)
        for number in range(2):
            x = jnp.tanh(Linear(own.fusion, kernel_init=_KERNEL, name=f"fusion_{number}")(x))
        self.sow("intermediates", "fused", x)
        score = Linear(self.spec.outputs, kernel_init=_KERNEL, name="regression")(x)
        for m, vector in vectors.items():
            predictor = Linear(vector.shape[1], kernel_init=_KERNEL, name=f"{m}_predictor")
            aux[f"unit_{m}"], aux[f"predicted_{m}"] = _unit(vector), _unit(predictor(x))
        return score, aux


def _unit(x: jax.Array) -> jax.Array:
    """Gives vectors `[B, D]` the length 1; those of length 0 stay."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(axis=1, keepdims=True), 1e-30))


def _log_likelihood(prediction: Prediction, batch: Any) -> Measured:
    return mean_over_rows(prediction.aux["log_likelihood"], batch)


def _counts(batch: Any, modality: str) -> jax.Array:
    """Returns `[B]`: 1 for rows that count and have the modality, else 0."""
    return jnp.where(batch.masks[modality].any(axis=1), batch.row_weight, 0)


def _nce(prediction: Prediction, batch: Any) -> Measured:
    """Measures how unlikely, in nats, it is that a prediction belongs to its own sample.

    A sum over modalities, each a mean over the rows that have it, and among them.
    """
    total = 0.0
    for m in batch.masks:
        counts = _counts(batch, m)
        unit, predicted = prediction.aux[f"unit_{m}"], prediction.aux[f"predicted_{m}"]
        alike = jnp.matmul(unit, predicted.T, precision=jax.lax.Precision.HIGHEST)
        alike = jnp.where(counts > 0, alike, jnp.finfo(jnp.float32).min)  # [batch, batch]
        nats = jax.nn.logsumexp(alike, axis=1) - (unit * predicted).sum(axis=1)
        total += (jnp.where(counts > 0, nats, 0) * counts).sum() / jnp.maximum(counts.sum(), 1)
    return once_a_row(total, batch)


def _log_volume(x: jax.Array, counts: jax.Array) -> jax.Array:
    """Computes log det of the covariance of the rows of `x` `[B, D]` that count.

    It is 0, without a slope, unless there are more of them than D: else the determinant would be 0.
    """
    number, width = counts.sum(), x.shape[1]
    mean = (x * counts[:, None]).sum(axis=0) / jnp.maximum(number, 1)
    apart = (x - mean) * jnp.sqrt(counts)[:, None]
    spread = jnp.matmul(apart.T, apart, precision=jax.lax.Precision.HIGHEST)
    spread = spread / jnp.maximum(number, 1) + _RIDGE * jnp.eye(width)
    enough = number > width
    return jnp.where(enough, jnp.linalg.slogdet(jnp.where(enough, spread, jnp.eye(width)))[1], 0)


def _entropy(prediction: Prediction, batch: Any, *, by_sign: bool) -> Measured:
    """Measures the entropy of projections: a sum over modalities of half their log-volumes.

    By sign it is half of that of the rows with a positive label, and half of that of those with a
    negative one.
    """
    label, total = batch.labels[:, 0], 0.0
    by_sign = by_sign and batch.labels.shape[1] == 1
    groups = (label > 0, label < 0) if by_sign else (jnp.ones(len(label), bool),)
    for m in batch.masks:
        x = prediction.aux.get(f"projected_{m}")  # the anchor has none
        for group in groups if x is not None else ():
            counts = jnp.where(group, _counts(batch, m), 0)
            total += 0.5 / len(groups) * _log_volume(x, counts)
    return once_a_row(total, batch)


def terms(config: ModelConfig, name: str, loss: Term) -> dict[str, Term]:
    """Returns the task's loss and the parts of both bounds, by their weights.

    Entropy and log-likelihood have negative weights: they are maximised.
    """
    own, is_score = config.own, has_scale(name)
    return {
        name: loss,
        "nce": Term(_nce, own.nce_weight, BATCH),
        "log_likelihood": Term(_log_likelihood, -own.bound_weight),
        "entropy": Term(functools.partial(_entropy, by_sign=is_score), -own.bound_weight, BATCH),
    }


def stages(config: ModelConfig) -> tuple[Stage, Stage]:
    """Returns the two passes of an epoch: of the estimators alone, and of everything."""
    first = Stage(("*_estimator/*",), ("log_likelihood",), config.own.first_share)
    return first, Stage()


def untrained(config: ModelConfig, spec: CorpusSpec) -> tuple[str, ...]:
    """Names what no optimiser of the authors' code has."""
    clean = config.own.compat == "clean"
    others = [m for m in spec.modalities if m != config.anchor_of(spec.modalities)]
    return () if clean else tuple(f"{m}_projection/*" for m in others)


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for a single modality."""
    if len(spec.modalities) < 2:
        raise UserError(
            "model.name = 'mmim' compares modalities with each other: it needs two or more, not "
            f"{spec.modalities[0]} alone."
        )


MODEL = Model(
    module=Infomax,
    output_bias="regression/bias",
    bound=BOUND | dict.fromkeys(("fusion_0/kernel", "*_estimator/*"), (MODALITIES,)),
    terms=terms,
    check=check,
    untrained=untrained,
    stages=stages,
    space={
        "model.mmim.fusion": [64, 128],
        "model.mmim.nce_weight": (0.01, 0.3, "log"),
        "model.mmim.bound_weight": (0.01, 0.3, "log"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    encoder=ENCODER,
)
