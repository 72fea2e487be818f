"""Defines Low-rank Multimodal Fusion: a tensor product of low rank (Liu et al., 2018)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.layers.heads import Arrays
from msajax.models.contract import LABELS, Model
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import BOUND, STATISTICS, Peer, Scored
from msajax.models.peers.tfn import Vectors, with_one
from msajax.spec import CorpusSpec


def _factor(key: jax.Array, shape: tuple[int, int, int]) -> jax.Array:
    """Draws a factor `[r, 1 + d, K]` as its own code does: fans are those of its last two axes."""
    rank, inputs, outputs = shape
    deviation = (2 / (inputs * outputs + rank * outputs)) ** 0.5
    return deviation * jax.random.normal(key, shape)


class LowRankFusion(Peer):
    """Scores a batch by `sum_i w_i prod_m [1; z_m] W_m^i + b` over the terms i of the rank.

    By default the w are learned, as in the authors' code; the paper has 1, and the toolkit's code
    learns neither w nor b by mistake. For the rest see `Vectors` and `LmfSettings.compat`.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores the sequences; see `Peer`."""
        own, outputs = self.config.own, self.spec.outputs
        make_vectors = Vectors(self.config, own.text_hidden // 2, name="vectors")
        vectors = make_vectors(sequences, valid, train=train)
        terms = jnp.ones((1, 1, 1))
        for m, vector in vectors.items():
            shape = (own.rank, 1 + vector.shape[1], outputs)
            factor = self.param(f"{m}_factor", _factor, shape)
            terms = terms * jnp.einsum("bd,rdk->brk", with_one(vector), factor)
        self.sow("intermediates", "fused", terms)
        init = nn.initializers.glorot_normal()
        weights = self.param("fusion_weights", init, (1, own.rank))
        bias = self.param("fusion_bias", nn.initializers.zeros, (1, outputs))
        return jnp.einsum("r,brk->bk", weights[0], terms) + bias[0], {}


def untrained(config: ModelConfig, spec: CorpusSpec) -> tuple[str, ...]:
    """Names what the toolkit's code never trains."""
    return ("fusion_weights", "fusion_bias") if config.own.compat == "reference" else ()


MODEL = Model(
    module=LowRankFusion,
    mutable=(STATISTICS,),
    bound=BOUND | dict.fromkeys(("*_factor", "fusion_bias"), (LABELS,)),
    untrained=untrained,
    space={
        "model.lmf.rank": [1, 4, 8, 16],
        "model.lmf.text_hidden": [64, 128, 256],
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    encoder=ENCODER,
)
