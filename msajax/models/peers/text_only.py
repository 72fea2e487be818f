"""Defines a floor: a network over the mean of text, whatever else a corpus holds."""

import flax.linen as nn

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout
from msajax.layers.heads import Arrays, mean_pool
from msajax.models.contract import Model
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import BOUND, Linear, Peer, Scored
from msajax.spec import CorpusSpec


class TextOnly(Peer):
    """Scores the mean of a text's valid steps by two layers with ReLU (Iyyer et al., 2015).

    A step is a word's vector, or what a pretrained encoder writes. Other modalities are not there:
    `model.modalities` must be text alone.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores the sequences; see `Peer`."""
        dropout = Dropout(self.config.own_rate("dropout"))
        x = dropout(mean_pool(sequences["text"], valid["text"]), train=train)
        for number in range(2):
            x = nn.relu(Linear(self.config.own.hidden, name=f"hidden_{number}")(x))
            x = dropout(x, train=train)
        return Linear(self.spec.outputs, name="regression")(x), {}


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` unless text is the one modality that is read."""
    if spec.modalities != ("text",):
        raise UserError(
            "model.name = 'text_only' reads text alone, and the run's modalities are "
            f"{', '.join(spec.modalities)}: set model.modalities = ('text',)."
        )


MODEL = Model(
    module=TextOnly,
    bound=BOUND,
    check=check,
    space={
        "model.text_only.hidden": [64, 128, 256],
        "model.text_only.dropout": (0.1, 0.5, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    encoder=ENCODER,
)
