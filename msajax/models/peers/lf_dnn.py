"""Defines a floor: networks over the mean of each modality, joined at their end."""

import flax.linen as nn
import jax.numpy as jnp

from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays, mean_pool
from msajax.models.contract import MODALITIES, Model
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import BOUND, STATISTICS, Linear, Peer, Scored
from msajax.models.peers.tfn import Subnet


class LateFusion(Peer):
    """Makes a vector of each modality's mean, joins them, and scores them (late fusion).

    A mean is over valid steps; the vector of a modality that a sample lacks is 0.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores the sequences; see `Peer`."""
        own, vectors = self.config.own, []
        for m in self.spec.modalities:
            present = valid[m].any(axis=1)
            subnet = Subnet(own.hidden, self.config.own_rate("dropout"), name=f"{m}_subnet")
            vector = subnet(mean_pool(sequences[m], valid[m]), present, train=train)
            vectors.append(jnp.where(present[:, None], vector, 0))
        x = jnp.concatenate(vectors, axis=-1)
        x = Dropout(self.config.own_rate("post_dropout"))(x, train=train)
        for number in range(2):
            x = nn.relu(Linear(own.post_fusion, name=f"post_{number}")(x))
        return Linear(self.spec.outputs, name="regression")(x), {}


MODEL = Model(
    module=LateFusion,
    bound=BOUND | {"post_0/kernel": (MODALITIES,)},
    mutable=(STATISTICS,),
    space={
        "model.lf_dnn.hidden": [32, 64, 128],
        "model.lf_dnn.dropout": (0.1, 0.5, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    encoder=ENCODER,
)
