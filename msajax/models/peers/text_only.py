"""Defines a floor: a network over the mean of text, whatever else a corpus holds."""

import flax.linen as nn
import jax

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays, mean_pool
from msajax.models.contract import Model, Prediction
from msajax.models.peers.common import DECLARED, Linear, even_weights, read_inputs
from msajax.spec import CorpusSpec


class TextOnly(nn.Module):
    """Scores the mean of a text's valid steps by two layers with ReLU (Iyyer et al., 2015).

    A step is a word's vector, or what a pretrained encoder writes. Other modalities are not there:
    `model.modalities` must be text alone.
    """

    config: ModelConfig
    spec: CorpusSpec

    @nn.compact
    def __call__(self, features: Arrays, masks: Arrays, *, train: bool = False) -> Prediction:
        """Scores a batch of `{"text": [B, T, d]}` under `{"text": [B, T]}`."""
        dropout = Dropout(self.config.own_rate("dropout"))
        with jax.default_matmul_precision(self.config.matmul_precision):
            sequences, valid = read_inputs(self.config, self.spec, features, masks, train=train)
            x = dropout(mean_pool(sequences["text"], valid["text"]), train=train)
            for number in range(2):
                x = nn.relu(Linear(self.config.own.hidden, name=f"hidden_{number}")(x))
                x = dropout(x, train=train)
            score = Linear(self.spec.outputs, name="regression")(x)
        return Prediction(score, even_weights(valid, self.spec.modalities))


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` unless text is the one modality that is read."""
    if spec.modalities != ("text",):
        raise UserError(
            "model.name = 'text_only' reads text alone, and the run's modalities are "
            f"{', '.join(spec.modalities)}: set model.modalities = ('text',)."
        )


MODEL = Model(
    module=TextOnly,
    check=check,
    space={
        "model.text_only.hidden": [64, 128, 256],
        "model.text_only.dropout": (0.1, 0.5, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    **DECLARED,
)
