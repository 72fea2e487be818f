"""Defines the Multimodal Transformer: every modality reads all others (Tsai et al., 2019)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.layers.heads import Arrays
from msajax.models.contract import LABELS, MODALITIES, Model
from msajax.models.inputs import ENCODER
from msajax.models.peers.common import BOUND, Linear, Peer, Scored, last_valid
from msajax.models.peers.crossmodal import (
    FEWEST_LAYERS,
    Encoders,
    attention_dropout,
    positioned,
    project,
    refine,
    run_encoders,
    visible,
)


class MultimodalTransformer(Peer):
    """Lets every modality read each other one, then itself, and scores the last steps.

    Of M modalities each has M - 1 encoders that read one other modality, and one encoder, M - 1
    times as wide, over what these found; a single modality has the last kind alone. By default
    padding is never seen, a sequence ends at its last valid step, whose number counts in the causal
    mask too, and all features are projected. The authors' code and the toolkit's see padding, take
    the last step of the array, and leave out the positions of steps whose first number is 0, as
    that of padding is; `compat` of reference does. Dropout of keys and values is drawn once for
    both here, twice there.
    """

    @nn.nowrap
    def score(self, sequences: Arrays, valid: Arrays, *, train: bool) -> Scored:
        """Scores the sequences; see `Peer`."""
        own, names = self.config.own, self.spec.modalities
        streams, seen = {}, {}  # {modality: [batch, length, d_model]} and masks
        for m in names:
            streams[m], seen[m] = project(self.config, m, sequences[m], valid[m], train=train)
        # Between modalities.
        pairs = [(m, other) for m in names for other in names if other != m]
        inputs = {m: positioned(own, streams[m]) for m in names}
        found: dict[tuple[str, str], jax.Array] = {}
        if pairs:
            rates = tuple(attention_dropout(other) for _, other in pairs)
            between = Encoders(self.config, own.num_layers, rates, name="between")
            works = between(
                [inputs[m] for m, _ in pairs],
                [inputs[other] for _, other in pairs],
                [visible(own, seen[m], seen[other]) for m, other in pairs],
                train=train,
            )
            (found,) = run_encoders(own.num_heads, dict(zip(pairs, works, strict=True)))
        # Each modality with what it found.
        layers, rates = max(own.num_layers, FEWEST_LAYERS), ("attention_dropout",) * len(names)
        joined = [[found[m, other] for other in names if other != m] for m in names]
        works = Encoders(self.config, layers, rates, name="memory")(
            [
                positioned(own, jnp.concatenate(mine or [streams[m]], axis=-1))
                for m, mine in zip(names, joined, strict=True)
            ],
            [None] * len(names),
            [visible(own, seen[m], seen[m]) for m in names],
            train=train,
        )
        (memories,) = run_encoders(own.num_heads, dict(zip(names, works, strict=True)))
        last = {m: last_valid(memories[m], seen[m]) for m in names}
        for kind, kept in (("found", found), ("memories", memories), ("last", last)):
            self.sow("intermediates", kind, kept)
        fused = jnp.concatenate(list(last.values()), axis=1)
        self.sow("intermediates", "fused", fused)
        fused = refine(self.config, fused, "post", train=train)
        return Linear(self.spec.outputs, name="regression")(fused), {}


MODEL = Model(
    module=MultimodalTransformer,
    bound=BOUND
    | {"regression/*": (LABELS, MODALITIES)}
    | dict.fromkeys(("between/*", "memory/*", "post_*"), (MODALITIES,)),
    space={
        "model.mult.num_layers": [2, 3, 4, 5],
        "model.mult.text_dropout": (0.1, 0.5, "linear"),
        "model.mult.attention_dropout": (0.05, 0.4, "linear"),
        "optim.learning_rate": (3e-4, 3e-3, "log"),
    },
    encoder=ENCODER,
)
