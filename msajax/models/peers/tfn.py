"""Defines the Tensor Fusion Network: all products of what modalities say (Zadeh et al., 2017)."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays, mean_pool
from msajax.models.contract import MODALITIES, Model
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import (
    BOUND,
    STATISTICS,
    BatchNorm,
    Linear,
    Lstm,
    Peer,
    Scored,
    kind_of,
    reads_padding,
)
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

_MOST_PRODUCTS = 2**20  # of one sample


class Subnet(nn.Module):
    """Makes a vector of a modality's mean: batch normalisation, dropout, three layers with ReLU."""

    hidden: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, present: jax.Array, *, train: bool) -> jax.Array:
        """Maps means `[B, d]`, of which the rows `[B]` are there, to `[B, hidden]`."""
        x = BatchNorm(name="norm")(x, present, train=train)
        x = Dropout(self.dropout)(x, train=train)
        for number in range(3):
            x = nn.relu(Linear(self.hidden, name=f"linear_{number}")(x))
        return x


class Vectors(nn.Module):
    """Makes a vector of each modality: of text by an LSTM, of the others by their means.

    The toolkit's code takes means over padding, too, lets the LSTM run over it and drops nothing of
    text; `compat` of reference does. A modality that a sample lacks is 0 here.
    """

    config: ModelConfig
    text_out: int

    @nn.compact
    def __call__(self, sequences: Arrays, masks: Arrays, *, train: bool) -> dict[str, jax.Array]:
        """Maps `{modality: [B, T_m, d_m]}` to `{modality: [B, D_m]}`, text last."""
        own, found = self.config.own, {}
        is_clean = not reads_padding(self.config)
        for m in sorted(sequences, key=lambda m: m == "text"):
            x, mask = sequences[m], masks[m]
            present = mask.any(axis=1) if is_clean else jnp.ones(mask.shape[:1], bool)
            mask = mask if is_clean else jnp.ones_like(mask)
            if m == "text":
                _, vector = Lstm(own.text_hidden, name="text_lstm")(x, mask)
                if is_clean:
                    vector = Dropout(self.config.own_rate("text_dropout"))(vector, train=train)
                vector = Linear(self.text_out, name="text_linear")(vector)
            else:
                kind = kind_of(m)
                rate = self.config.own_rate(f"{kind}_dropout")
                subnet = Subnet(getattr(own, f"{kind}_hidden"), rate, name=f"{m}_subnet")
                vector = subnet(mean_pool(x, mask), present, train=train)
            self.sow("intermediates", f"{m}_hidden", vector)
            found[m] = jnp.where(present[:, None], vector, 0)
        return found


def with_one(x: jax.Array) -> jax.Array:
    """Puts a 1 before each vector of `[B, d]`, so that products are of every subset, too."""
    return jnp.concatenate([jnp.ones((x.shape[0], 1)), x], axis=1)


class TensorFusion(Peer):
    """Multiplies the vectors of all modalities, each with a 1, and scores the product.

    By default a mean is over valid steps, a sample's last state is that of its last valid step, and
    a modality that a sample lacks leaves the products of the others. See `TfnSettings.compat`.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores the sequences; see `Peer`."""
        own = self.config.own
        vectors = Vectors(self.config, own.text_out, name="vectors")(sequences, valid, train=train)
        product = jnp.ones((next(iter(valid.values())).shape[0], 1))
        for vector in vectors.values():  # the last one's numbers stand next to each other
            product = product[:, :, None] * with_one(vector)[:, None]
            product = product.reshape(product.shape[0], -1)
        self.sow("intermediates", "fused", product)
        x = Dropout(self.config.own_rate("post_dropout"))(product, train=train)
        for number in range(2):
            x = nn.relu(Linear(own.post_fusion, name=f"post_{number}")(x))
        score = Linear(self.spec.outputs, name="regression")(x)
        if is_bounded(self.config, self.spec):
            score = (own.highest - own.lowest) * jax.nn.sigmoid(score) + own.lowest
        return score, {}


def is_bounded(config: ModelConfig, spec: CorpusSpec) -> bool:
    """Tells whether scores lie between `lowest` and `highest`."""
    return config.own.lowest != config.own.highest and TASKS[spec.label_kind].has_scale


def check_labels(config: ModelConfig, spec: CorpusSpec, labels: Any) -> None:
    """Raises `UserError` for training labels `[N, L]` that no score can reach."""
    own, (low, high) = config.own, (np.min(labels), np.max(labels))
    if is_bounded(config, spec) and not own.lowest <= low <= high <= own.highest:
        raise UserError(
            f"model.tfn.lowest = {own.lowest:g} and highest = {own.highest:g}: scores lie between "
            f"them, but the training labels go from {low:g} to {high:g}: set both so that they "
            "hold these, or both to 0 for no bounds."
        )


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for modalities whose product would be too large."""
    own = config.own
    sizes = {"text": own.text_out, "audio": own.audio_hidden}
    products = math.prod(1 + sizes.get(m, own.video_hidden) for m in spec.modalities)
    if products > _MOST_PRODUCTS:
        raise UserError(
            f"model.name = 'tfn' would multiply {len(spec.modalities)} modalities to {products} "
            f"numbers a sample, over {_MOST_PRODUCTS}: choose smaller model.tfn.text_out, "
            "audio_hidden and video_hidden, or fewer modalities."
        )


MODEL = Model(
    module=TensorFusion,
    mutable=(STATISTICS,),
    bound=BOUND | {"post_0/kernel": (MODALITIES,)},
    check=check,
    check_labels=check_labels,
    space={
        "model.tfn.text_hidden": [64, 128],
        "model.tfn.audio_hidden": [8, 16, 32],
        "model.tfn.post_dropout": (0.2, 0.6, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    encoder=ENCODER,
)
