"""Defines MAG-BERT: voice and face shift the words inside a text encoder (Rahman et al., 2020)."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.basic import Dropout, LayerNorm
from msajax.layers.heads import Arrays
from msajax.models.contract import Model, Prediction
from msajax.models.inputs import ENCODER, Pretrained, read_input
from msajax.models.peers.common import BOUND, even_weights, lengths_of
from msajax.models.sequence_level import check_inputs
from msajax.spec import CorpusSpec

_TEXT = "text"
# As all that their code puts around a pretrained BERT begins.
_Dense = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(0.02))


class Gate(nn.Module):
    """Shifts vectors of text by what other modalities say at the same step: the adaptation gate.

    A modality's part of the shift is `relu(W_g [row; text] + b_g) * (W row + b)`. Their sum h is
    shortened to `beta |text|` where it is longer, and `norm(text + h)` is what goes on.

    Attributes:
        beta: the longest shift, relative to the length of the text's vector.
        masked: a modality without a row shifts nothing; else its row counts as it is.
    """

    beta: float
    dropout_rate: float
    masked: bool = True

    @nn.compact
    def __call__(self, text: jax.Array, rows: Arrays, masks: Arrays, *, train: bool) -> jax.Array:
        """Maps text `[B, T, D]` beside rows `{modality: [B, T, d_m]}`, masks `[B, T]` of them."""
        width, shift = text.shape[-1], jnp.zeros_like(text)
        for m, row in rows.items():
            gate = _Dense(width, name=f"{m}_gate")(jnp.concatenate([row, text], axis=-1))
            gate = nn.relu(gate)
            self.sow("intermediates", f"gate_{m}", gate)
            part = gate * _Dense(width, name=f"{m}_shift")(row)
            shift += jnp.where(masks[m][..., None], part, 0) if self.masked else part
        self.sow("intermediates", "shift", shift)
        # A shift of length 0 stays one, whatever it is multiplied by.
        longest = self.beta * lengths_of(text, 0)
        alpha = jnp.minimum(longest / (lengths_of(shift, 1) + 1e-6), 1)
        self.sow("intermediates", "alpha", alpha)
        x = LayerNorm(1e-5, jnp.float32, name="norm")(text + alpha[..., None] * shift)
        self.sow("intermediates", "fused", x)
        return Dropout(self.dropout_rate)(x, train=train)


class Mag(nn.Module):
    """Puts the gate between a text encoder's embeddings and its layers; the first piece is scored.

    Every piece of a word is shifted by the word's rows of the other modalities. By default these
    shift nothing where they have no row: at special pieces, where a mask hides them, in a sample
    that lacks them; see `MagSettings.compat`. The first piece goes through a pooler with tanh,
    which begins as the encoder folder's own, if that has one, and the encoder's own dropout. A
    sample without text is scored by the bias. With text alone this is the encoder, fine-tuned as
    usual.
    """

    config: ModelConfig
    spec: CorpusSpec

    @nn.compact
    def __call__(self, features: Arrays, masks: Arrays, *, train: bool = False) -> Prediction:
        """Scores pieces `[B, P, 3]` and features `[B, P, d_m]`; raises `ValueError` if unfit."""
        check_inputs(self.config, self.spec, features, masks, {})
        pieces, mask, spec = features[_TEXT], masks[_TEXT], self.spec
        with jax.default_matmul_precision(self.config.matmul_precision):
            rows, there = {}, {}
            for m in others(spec):
                x, valid = read_input(self.config, spec, m, features[m], masks[m], train=train)
                if valid.shape != mask.shape:
                    raise ValueError(
                        f"{m!r} has {valid.shape[1]} steps beside {mask.shape[1]} pieces of text; "
                        "a row is that of the piece at the same place"
                    )
                there[m] = valid & mask
                rows[m] = jnp.where(there[m][..., None], x.astype(jnp.float32), 0)
            reader = Pretrained(self.config, spec, _TEXT, name=f"{_TEXT}_pretrained")
            adapt = self.make_adapt(rows, there, train=train) if rows else None
            encoded, _ = reader(pieces, mask, train=train, adapt=adapt)
            first = jnp.argmax(mask, axis=1)[:, None, None]
            x = jnp.take_along_axis(encoded, first, axis=1)[:, 0]
            x = jnp.tanh(_Dense(x.shape[1], name="pooler")(x))
            x = jnp.where(mask.any(axis=1, keepdims=True), x, 0)
            self.sow("intermediates", "pooled", x)
            x = Dropout(spec.encoder(_TEXT).dropout)(x, train=train)
            score = _Dense(spec.outputs, name="regression")(x)
        return Prediction(score, even_weights({_TEXT: mask, **there}, spec.modalities))

    def make_adapt(self, rows: Arrays, there: Arrays, *, train: bool) -> Callable:
        """Makes the function that the encoder applies to its embeddings."""
        own, rate = self.config.own, self.config.own_rate("gate_dropout")
        gate = Gate(own.beta_shift, rate, own.compat == "clean", name="gate")

        def adapt(x: jax.Array, to_front: Callable) -> jax.Array:
            beside = {m: to_front(row) for m, row in rows.items()}
            return gate(x, beside, {m: to_front(one) for m, one in there.items()}, train=train)

        return adapt


def others(spec: CorpusSpec) -> list[str]:
    """Returns the modalities that shift the text."""
    return [m for m in spec.modalities if m != _TEXT]


def check(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for text that no encoder reads, and modalities that have no row of it."""
    if not spec.is_pieces(_TEXT):
        raise UserError(
            "model.name = 'mag' works inside a pretrained text encoder: model.text_encoder must "
            "name the folder of one, as of BERT."
        )
    if apart := [m for m in others(spec) if m not in spec.aligned_with(_TEXT)]:
        raise UserError(
            "model.name = 'mag' shifts each piece of text by what was recorded with its word: "
            f"{', '.join(apart)} must share the steps of the words (train/words, aligned), or be "
            "left out of model.modalities."
        )


MODEL = Model(
    module=Mag,
    bound=BOUND,
    check=check,
    pooler="pooler",
    space={
        "model.mag.beta_shift": (0.01, 1.0, "log"),
        "model.mag.gate_dropout": (0.1, 0.5, "linear"),
        "optim.learning_rate": (5e-6, 5e-5, "log"),
    },
    encoder=ENCODER,
)
