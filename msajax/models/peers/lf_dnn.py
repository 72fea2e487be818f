"""Defines a floor: networks over the mean of each modality, joined at their end."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays, mean_pool
from msajax.models.contract import Model, Prediction
from msajax.models.peers.common import DECLARED, STATISTICS, Linear, even_weights, read_inputs
from msajax.models.peers.tfn import Subnet
from msajax.spec import CorpusSpec


class LateFusion(nn.Module):
    """Makes a vector of each modality's mean, joins them, and scores them (late fusion).

    A mean is over valid steps; the vector of a modality that a sample lacks is 0.
    """

    config: ModelConfig
    spec: CorpusSpec

    @nn.compact
    def __call__(self, features: Arrays, masks: Arrays, *, train: bool = False) -> Prediction:
        """Scores a batch of features `{modality: [B, T_m, d_m]}` under `{modality: [B, T_m]}`."""
        own, vectors = self.config.own, []
        with jax.default_matmul_precision(self.config.matmul_precision):
            sequences, valid = read_inputs(self.config, self.spec, features, masks, train=train)
            for m in self.spec.modalities:
                present = valid[m].any(axis=1)
                subnet = Subnet(own.hidden, self.config.own_rate("dropout"), name=f"{m}_subnet")
                vector = subnet(mean_pool(sequences[m], valid[m]), present, train=train)
                vectors.append(jnp.where(present[:, None], vector, 0))
            x = jnp.concatenate(vectors, axis=-1)
            x = Dropout(self.config.own_rate("post_dropout"))(x, train=train)
            for number in range(2):
                x = nn.relu(Linear(own.post_fusion, name=f"post_{number}")(x))
            score = Linear(self.spec.outputs, name="regression")(x)
        return Prediction(score, even_weights(valid, self.spec.modalities))


MODEL = Model(
    module=LateFusion,
    mutable=(STATISTICS,),
    space={
        "model.lf_dnn.hidden": [32, 64, 128],
        "model.lf_dnn.dropout": (0.1, 0.5, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    **DECLARED,
)
