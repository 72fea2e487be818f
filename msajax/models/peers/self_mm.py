"""Defines Self-MM, which makes labels of single modalities for itself (Yu et al., 2021)."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays
from msajax.models.contract import LABELS, MODALITIES, Memory, Model, Prediction, Term
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import (
    BOUND,
    Linear,
    Lstm,
    Measured,
    Peer,
    Scored,
    kind_of,
    mean_over_rows,
    vectors_of,
)
from msajax.models.peers.settings import SelfMmSettings
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

ALL = ""  # stands for all modalities together


class SequenceVector(nn.Module):
    """Makes a vector of a sequence: an LSTM, dropout of its last state, a linear layer."""

    units: int
    features: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, train: bool) -> jax.Array:
        """Maps `x` `[B, T, d]` under `mask` `[B, T]` to `[B, features]`."""
        _, state = Lstm(self.units, name="lstm")(x, mask)
        return Linear(self.features, name="linear")(Dropout(self.dropout)(state, train=train))


class Head(nn.Module):
    """Scores a vector by three layers; the first one's numbers are the feature of the sample."""

    size: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, d]` to features `[B, size]` and scores `[B, 1]`."""
        x = Dropout(self.dropout)(x, train=train)
        feature = nn.relu(Linear(self.size, name="feature")(x))
        hidden = nn.relu(Linear(self.size, name="hidden")(feature))
        return feature, Linear(1, name="score")(hidden)


class SelfSupervised(Peer):
    """Scores all modalities together, and in training each by itself, against labels of its own.

    In the first epoch each modality of a sample has the sample's own label, later one that the
    model makes: it compares how much nearer the modality's feature is to the centre of the positive
    than to that of the negative samples with how much nearer the feature of all modalities is. See
    `update`, and `unimodal_errors` for the loss, which is 0 until a label has moved.

    By default the vector of text is its first step where a pretrained encoder reads special pieces,
    such as [CLS], else the mean of the valid steps; the authors' code always takes the first step.
    A modality that a sample lacks is 0: it has no loss, and keeps its label and its feature.
    Centres are of the samples that a step has read. Where the labels of a modality all have one
    sign, they stay; the authors' code makes NaN of them. A step takes the whole batch; their code
    changes labels in each of the parts whose gradients it adds. See `SelfMmSettings.compat`.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores features `{modality: [B, T_m, d_m]}` under `{modality: [B, T_m]}`.

        Returns:
            Scores `[B, 1]`; in aux `score_<modality>` `[B, 1]` of each by itself, and the features
            `feature_<modality>` `[B, D_m]`, those of all together as `feature`.
        """
        own, rate, aux = self.config.own, self.config.own_rate, {}

        def subnet(kind: str, name: str) -> SequenceVector:
            sizes = getattr(own, f"{kind}_lstm"), getattr(own, f"{kind}_out")
            return SequenceVector(*sizes, rate(f"{kind}_lstm_dropout"), name=name)

        vectors = vectors_of(self, subnet, sequences, valid, train)
        fused = jnp.concatenate(list(vectors.values()), axis=1)
        head = Head(own.post_fusion, rate("fusion_dropout"), name="fusion")
        aux["feature"], score = head(fused, train=train)
        for m, vector in vectors.items():
            head = Head(_size(own, m), rate(f"{kind_of(m)}_dropout"), name=f"{m}_head")
            aux[_key("feature", m)], aux[_key("score", m)] = head(vector, train=train)
        return score, aux


def _key(what: str, modality: str) -> str:
    return what if modality == ALL else f"{what}_{modality}"


def _size(own: SelfMmSettings, modality: str) -> int:
    return own.post_fusion if modality == ALL else getattr(own, f"post_{kind_of(modality)}")


def unimodal_errors(prediction: Prediction, batch: Any) -> dict[str, jax.Array]:
    """Measures the error `[B]` of each modality: `tanh |y_m - y| |score_m - y_m|`.

    y_m is the modality's label, y the sample's own. It is 0 for a modality that a sample lacks.
    """
    found = {}
    for m, mask in batch.masks.items():
        label = batch.memory[_key("label", m)]
        weight = jnp.tanh(jnp.abs(label - batch.labels[:, 0]))
        error = jnp.abs(prediction.aux[_key("score", m)][:, 0] - label)
        found[m] = jnp.where(mask.any(axis=1), weight * error, 0)
    return found


def _unimodal(prediction: Prediction, batch: Any) -> Measured:
    return mean_over_rows(sum(unimodal_errors(prediction, batch).values()), batch)


def terms(config: ModelConfig, name: str, loss: Term) -> dict[str, Term]:
    """Returns the task's loss of the scores, and the errors of single modalities beside it."""
    return {name: loss, "unimodal": Term(_unimodal)}


def centres(own: SelfMmSettings, memory: Mapping[str, jax.Array], of: str) -> tuple:
    """Averages the features of samples with a positive label, and of those with a negative one.

    Args:
        of: a modality, or `ALL`.

    Returns:
        Centres `[2, D]`, 0 for one of no sample, and whether both are of some.
    """
    label = memory[_key("label", of)]
    positive = label >= 0 if own.zero_is_positive else label > 0
    counts = jnp.stack([positive, label < 0]) * memory[_key("seen", of)]  # [2, samples]
    number = counts.sum(axis=1, keepdims=True)
    found = jnp.matmul(counts, memory[_key("bank", of)], precision=jax.lax.Precision.HIGHEST)
    return found / jnp.maximum(number, 1), (number > 0).all()


def _lead(feature: jax.Array, pair: jax.Array) -> jax.Array:
    """Measures how much nearer features `[B, D]` are to the first of two centres, relatively."""
    distance = jnp.sqrt(jnp.square(feature - pair[:, None]).sum(axis=-1))  # [2, batch]
    # The difference of the distances by that of their squares: the other loses digits, which the
    # quotient of two such differences would multiply.
    apart = ((pair[0] - pair[1]) * (2 * feature - pair[0] - pair[1])).sum(axis=-1)
    sum_of_both = distance.sum(axis=0)
    return apart / jnp.where(sum_of_both > 0, sum_of_both, 1) / (distance[0] + 1e-8)


def update(
    own: SelfMmSettings,
    memory: Mapping[str, jax.Array],
    prediction: Prediction,
    batch: Any,
    epoch: jax.Array,
) -> dict[str, jax.Array]:
    """Makes new labels of the samples of a batch, and keeps their features.

    y is the sample's own label, and `_lead` gives d_m of the modality's feature and d of that of
    all modalities. The candidate is the mean of y d_m / d and y + d_m - d, limited to the range of
    labels. In epoch n, from 1, (n - 1) / (n + 1) of the label are kept, and 2 / (n + 1) of the
    candidate are added; in the first epoch labels stay. Centres are those before the step.
    """
    y, rate = batch.labels[:, 0], 2 / (epoch + 2)
    pair, both = centres(own, memory, ALL)
    lead = _lead(prediction.aux["feature"], pair)
    divisor = jnp.where(lead == -1e-8, 1e-8, lead + 1e-8)
    here = {m: mask.any(axis=1) for m, mask in batch.masks.items()}
    here[ALL] = jnp.stack(list(here.values())).any(axis=0)
    found = {}
    for m, is_here in here.items():
        feature, label = prediction.aux[_key("feature", m)], batch.memory[_key("label", m)]
        if m != ALL:  # whose label never changes
            pair, both_of = centres(own, memory, m)
            mine = _lead(feature, pair)
            candidate = 0.5 * (mine / divisor * y) + 0.5 * (y + mine - lead)
            candidate = jnp.clip(candidate, -own.label_range, own.label_range)
            moves = is_here & both & both_of & (epoch > 0)
            label = jnp.where(moves, (1 - rate) * label + rate * candidate, label)
        found[_key("label", m)] = label
        found[_key("bank", m)] = jnp.where(is_here[:, None], feature, batch.memory[_key("bank", m)])
        found[_key("seen", m)] = jnp.maximum(batch.memory[_key("seen", m)], is_here)
    return found


def remember(config: ModelConfig) -> Memory:
    """Keeps of each sample its labels and features, of each modality and of all together.

    `update` makes each row of that row and of the memory before the step: a batch over several
    devices, or in parts, gives the same numbers.
    """
    own = config.own

    def begin(labels: Any, spec: CorpusSpec) -> dict[str, np.ndarray]:
        seen = np.full(len(labels), own.compat != "clean", np.float32)
        found = {}
        for m in (ALL, *spec.modalities):
            found[_key("label", m)] = np.float32(labels[:, 0])
            found[_key("bank", m)] = np.zeros((len(labels), _size(own, m)), np.float32)
            found[_key("seen", m)] = seen
        return found

    return Memory(begin, lambda *given: update(own, *given))


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for labels that have no sign, and for several of them."""
    if not TASKS[spec.label_kind].has_scale or spec.outputs != 1:
        raise UserError(
            "model.name = 'self_mm' makes labels of single modalities by the sign of a score: it "
            f"needs one real number a sample, not {len(spec.label_names)} labels that are learned "
            f"as {spec.label_kind}."
        )


def check_labels(config: ModelConfig, spec: CorpusSpec, labels: Any) -> None:
    """Raises `UserError` for training labels `[N, 1]` beyond those of single modalities."""
    highest = np.abs(labels).max()
    if highest > config.own.label_range:
        raise UserError(
            f"model.self_mm.label_range = {config.own.label_range:g}: labels of single modalities "
            f"lie within it, but training labels reach {highest:g}: set it to {highest:g} or more."
        )


MODEL = Model(
    module=SelfSupervised,
    output_bias="fusion/score/bias",
    bound=BOUND
    | {"fusion/feature/kernel": (MODALITIES,)}
    | dict.fromkeys(("fusion/score/*", "*_head/score/*"), (LABELS,)),
    terms=terms,
    check=check,
    check_labels=check_labels,
    memory=remember,
    space={
        "model.self_mm.post_fusion": [32, 64, 128],
        "model.self_mm.audio_lstm": [16, 32],
        "model.self_mm.fusion_dropout": (0.0, 0.3, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    encoder=ENCODER,
)
