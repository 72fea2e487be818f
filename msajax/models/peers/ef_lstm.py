"""Defines a floor: an LSTM over the features of all modalities, joined step by step."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays
from msajax.models.contract import Model, Prediction
from msajax.models.peers.common import DECLARED, Linear, Lstm, even_weights, read_inputs
from msajax.spec import CorpusSpec


class EarlyFusion(nn.Module):
    """Joins what modalities say at a step, and reads the steps by an LSTM (early fusion).

    A step counts where any modality has it; another one is 0 there. The last state goes through a
    layer with ReLU.
    """

    config: ModelConfig
    spec: CorpusSpec

    @nn.compact
    def __call__(self, features: Arrays, masks: Arrays, *, train: bool = False) -> Prediction:
        """Scores a batch of features `{modality: [B, T, d_m]}` under `{modality: [B, T]}`."""
        own, names = self.config.own, self.spec.modalities
        with jax.default_matmul_precision(self.config.matmul_precision):
            sequences, valid = read_inputs(self.config, self.spec, features, masks, train=train)
            joined = jnp.concatenate([sequences[m] for m in names], axis=-1)
            there = jnp.stack([valid[m] for m in names]).any(axis=0)  # [batch, length]
            _, state = Lstm(own.hidden, name="lstm")(joined, there)
            x = Dropout(self.config.own_rate("dropout"))(state, train=train)
            x = nn.relu(Linear(own.hidden, name="hidden")(x))
            score = Linear(self.spec.outputs, name="regression")(x)
        return Prediction(score, even_weights(valid, names))


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for modalities that do not share their steps."""
    if len(set(spec.lengths)) > 1 or spec.text_steps or any(map(spec.is_sound, spec.modalities)):
        raise UserError(
            "model.name = 'ef_lstm' joins modalities step by step, and these do not share theirs: "
            f"{spec.describe()}. Use an aligned corpus, a single modality or model.name = 'lf_dnn'."
        )


MODEL = Model(
    module=EarlyFusion,
    check=check,
    space={
        "model.ef_lstm.hidden": [64, 128, 256],
        "model.ef_lstm.dropout": (0.1, 0.5, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    **DECLARED,
)
