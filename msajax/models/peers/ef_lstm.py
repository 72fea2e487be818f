"""Defines a floor: an LSTM over the features of all modalities, joined step by step."""

import flax.linen as nn
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays
from msajax.models.contract import MODALITIES, Model
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import BOUND, Linear, Lstm, Peer, Scored
from msajax.spec import CorpusSpec


class EarlyFusion(Peer):
    """Joins what modalities say at a step, and reads the steps by an LSTM (early fusion).

    A step counts where any modality has it; another one is 0 there. The last state goes through a
    layer with ReLU.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores the sequences; see `Peer`."""
        own, names = self.config.own, self.spec.modalities
        joined = jnp.concatenate([sequences[m] for m in names], axis=-1)
        there = jnp.stack([valid[m] for m in names]).any(axis=0)  # [batch, length]
        _, state = Lstm(own.hidden, name="lstm")(joined, there)
        x = Dropout(self.config.own_rate("dropout"))(state, train=train)
        x = nn.relu(Linear(own.hidden, name="hidden")(x))
        return Linear(self.spec.outputs, name="regression")(x), {}


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for several modalities that do not share their steps."""
    first, *others = spec.modalities
    if set(others) != set(spec.joined_to(first)):
        raise UserError(
            "model.name = 'ef_lstm' joins modalities step by step, and these do not share theirs: "
            f"{spec.describe()}. Use an aligned corpus, a single modality or model.name = 'lf_dnn'."
        )


MODEL = Model(
    module=EarlyFusion,
    bound=BOUND | {"lstm/input_kernel": (MODALITIES,)},
    check=check,
    space={
        "model.ef_lstm.hidden": [64, 128, 256],
        "model.ef_lstm.dropout": (0.1, 0.5, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    encoder=ENCODER,
)
