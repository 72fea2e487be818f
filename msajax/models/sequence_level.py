"""Defines the model family: encode, fuse, encode again, pool, weigh, regress (source 002)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.errors import UserError
from msajax.layers.heads import AdaptiveHead, Arrays, HiddenLayers
from msajax.layers.linear import kernel_init
from msajax.layers.positions import DROFE_FEATURES
from msajax.layers.transformer import (
    AnchoredFusion,
    JoinedInput,
    ModalityEncoder,
    PooledFusion,
    PostFusionEncoder,
)
from msajax.models.attribution import deeplift, gradient_x_input, integrated_gradients
from msajax.models.contract import (
    LABELS,
    MODALITIES,
    POSITIONS,
    VOCABULARY,
    Model,
    Prediction,
    Term,
)
from msajax.models.inputs import ENCODER, read_input
from msajax.spec import CorpusSpec


class SequenceLevelModel(nn.Module):
    """Sequences keep their length until the head, unless fusion is pooled; masks everywhere.

    With guidance it runs twice, with the same weights: see `first_pass`. The attributions are kept
    as `guides` in the `intermediates` collection when that is mutable.
    """

    config: ModelConfig
    spec: CorpusSpec

    @property
    def anchor(self) -> str:
        """The modality that attends to the others."""
        return self.config.anchor_of(self.spec.modalities)

    @nn.compact
    def __call__(
        self,
        features: Arrays,
        masks: Arrays,
        *,
        attention_masks: Arrays | None = None,
        train: bool = False,
        begin: Mapping[str, tuple[int, jax.Array]] | None = None,
        guides: Mapping[str, Sequence[jax.Array]] | None = None,
    ) -> Prediction:
        """Scores a batch.

        Args:
            features: `{modality: [B, T_m, d_m]}`, or `[B, T_m]` token ids; T_m may differ. What
                pretrained encoders read is pieces `[B, T_m, 3]` or steps of sound: see
                `Pretrained`.
            masks: `{modality: [B, T_m]}` bool, True for a real time step, wherever the padding is.
            attention_masks: `{modality: [T_m, T_m] or [B, T_m, T_m]}`, for any of the modalities:
                more masks of the self-attention of its own encoder, before fusion and after it.
                Pooling, presence and fusion read `masks` alone. A bool mask hides the keys where it
                is False. A float mask hides where it is -inf, at or below -1e9, or the lowest
                finite number of its type; all else in it is added to the scores, so that -10000
                makes a key unlikely but does not hide it.
            train: draw dropout masks from the "dropout" random stream.
            begin: modalities whose encoder begins with a layer, and what that layer reads.
            guides: what the layers of modalities' encoders take queries and keys from; a model with
                guidance makes its own where none are given.

        Returns:
            Scores `[B, K]`, never clipped, and modality weights `[B, M]`; guided, those of the
            second pass, and the scores `[B, K]` of the first as aux["coarse_score"].

        Raises:
            ValueError: if shapes do not fit each other or the specification, or if an attention
                mask is for no modality of the model, or for a recurrent encoder.
        """
        attention_masks = attention_masks or {}
        check_inputs(self.config, self.spec, features, masks, attention_masks)
        aux = {}
        if self.config.guidance != "none" and guides is None and not self.is_initializing():
            aux["coarse_score"], guides = first_pass(
                self, features, masks, attention_masks, train=train
            )
            self.sow("intermediates", "guides", guides)
        begin, guides = begin or {}, guides or {}
        names = self.spec.modalities
        configs = {m: self.config.encoder_of(m) for m in names}
        # Left to JAX, accelerators would multiply float32 matrices in a shorter type.
        with jax.default_matmul_precision(self.config.matmul_precision):
            # Each modality by itself, but for what early fusion joins to the anchor.
            sequences, masks = {}, dict(masks)  # {modality: [batch, length, model_dim]}
            read = {}  # {modality: [batch, length, width]}
            for m in names:
                read[m], masks[m] = read_input(
                    configs[m], self.spec, m, features[m], masks[m], train=train
                )
            joined = []  # each [batch, length of the anchor, model_dim]
            for m in joined_modalities(self.config, self.spec):
                # Another anchor reads by a projection of another name.
                join = JoinedInput(configs[m], name=f"{m}_to_{self.anchor}_joined")
                joined.append(join(read[m], masks[m], train=train))
            for m in names:
                project = not self.spec.has_table(m) or configs[m].embedding_dim > 0
                length, name = self.spec.length(m), f"{m}_encoder"
                encoder = ModalityEncoder(configs[m], length, project, name=name)
                sequences[m] = encoder(
                    read[m],
                    masks[m],
                    train=train,
                    joined=joined if m == self.anchor else (),
                    attention_mask=attention_masks.get(m),
                    begin=begin.get(m),
                    guides=guides.get(m),
                )
            # Between modalities.
            if self.config.fusion == "pooled":
                fusion = PooledFusion(self.config, names, name="fusion")
                sequences, masks = fusion(sequences, masks, train=train)
            else:
                fusion = AnchoredFusion(self.config, names, self.anchor, name="fusion")
                sequences = fusion(sequences, masks, train=train)
            # Each fused sequence by itself, then all of them as one vector.
            for m in names:
                after_fusion = PostFusionEncoder(configs[m], name=f"{m}_after_fusion")
                sequences[m] = after_fusion(
                    sequences[m], masks[m], train=train, attention_mask=attention_masks.get(m)
                )
            vector, weights = AdaptiveHead(self.config, names, self.anchor, name="head")(
                sequences, masks, train=train
            )  # [batch, model_dim or modalities * model_dim], [batch, modalities]
            if self.config.n_layers_head or self.config.head_dropout:
                vector = HiddenLayers(self.config, name="hidden")(vector, train=train)
            score = nn.Dense(self.spec.outputs, kernel_init=kernel_init, name="regression")(
                vector
            )  # [batch, outputs]
        return Prediction(score, weights, aux)


def first_pass(
    model: nn.Module, features: Arrays, masks: Arrays, attention_masks: Arrays, *, train: bool
) -> tuple[jax.Array, dict[str, tuple[jax.Array, ...]]]:
    """Runs a model without guidance, and explains its outputs by what its encoders' layers read.

    It is the guidance of XAIguiFormer (Guo et al., ICLR 2025; source 003 names it, R31): queries
    and keys of the second pass come from what each layer's input contributed to the first pass's
    largest output, through the same weights. That all passes draw the same dropout masks is our
    own: the network that is explained is the one that is guided.

    E_l is the attribution of layer l's input: of the sequence that enters its block, which with
    pre-norm is the residual stream before its norm. What is explained is this pass's score, or of
    several scores each sample's largest, against a baseline of zeros. The explanation is a constant
    for training: no gradient flows through it, to weights or input.

    The model is bound, with parameters; its class takes `(config, spec)`, and its call `begin`, and
    what else is given here.

    Returns:
        The first pass's scores `[B, K]`, and `{modality: (E_0, E_1, …)}`, each `[B, T_m, D]`.
    """
    config = dataclasses.replace(model.config, guidance="none")
    plain = type(model)(config, model.spec, parent=None)
    # The model's own random stream, so that every pass draws the same dropout masks.
    run = functools.partial(plain.apply, train=train, rngs=model.scope.rngs)
    variables = {k: v for k, v in model.variables.items() if k != "intermediates"}
    with jax.named_scope("coarse"):
        coarse, kept = run(
            variables, features, masks, attention_masks=attention_masks, mutable="intermediates"
        )
    kept = kept["intermediates"]
    read = {m: kept[f"{m}_encoder"]["read"][0] for m in model.spec.modalities}

    variables, features, attention_masks, read = jax.lax.stop_gradient(
        (variables, features, attention_masks, read)
    )
    chosen = jax.nn.one_hot(coarse.score.argmax(-1), coarse.score.shape[-1])  # [batch, labels]

    def output_from(modality: str, layer: int, x: jax.Array) -> jax.Array:
        """Computes what each sample's chosen output `[B]` is if a layer reads `x`."""
        # Other encoders begin behind their last layer: what x does not change is not computed.
        begin = {m: (len(inputs) - 1, inputs[-1]) for m, inputs in read.items()}
        begin[modality] = layer, x
        score = run(variables, features, masks, attention_masks=attention_masks, begin=begin).score
        return (score * chosen).sum(-1)

    attribute = {
        "gradient_x_input": gradient_x_input,
        "deeplift": deeplift,
        "integrated_gradients": functools.partial(
            integrated_gradients, steps=model.config.guidance_steps
        ),
    }[model.config.guidance]
    with jax.named_scope("attribution"):
        guides = {
            m: tuple(
                attribute(functools.partial(output_from, m, layer), x, jnp.zeros_like(x))
                for layer, x in enumerate(inputs[:-1])
            )
            for m, inputs in read.items()
        }
    return coarse.score, jax.lax.stop_gradient(guides)


def joined_modalities(config: ModelConfig, spec: CorpusSpec) -> tuple[str, ...]:
    """Returns the modalities that early fusion joins to the anchor."""
    return spec.joined_to(config.anchor_of(spec.modalities)) if config.early_fusion else ()


def check_inputs(
    config: ModelConfig, spec: CorpusSpec, features: Arrays, masks: Arrays, attention_masks: Arrays
) -> None:
    """Raises `ValueError` for arrays that do not fit, and attention masks that nothing reads."""
    batch = None
    for m in spec.modalities:
        if m not in features or m not in masks:
            raise ValueError(f"modality {m!r} needs features and a mask; got {list(features)}")
        x, mask = features[m], masks[m]
        batch = x.shape[0] if batch is None else batch
        if spec.vocabulary(m):
            behind = (3,) if spec.is_pieces(m) else ()
            fits = x.shape[:1] + x.shape[2:] == (batch, *behind) and x.ndim > 1
            if not fits or not jnp.issubdtype(x.dtype, jnp.integer):
                expected = ", ".join(map(str, (batch, "T", *behind)))
                raise ValueError(
                    f"token ids of {m!r} are {x.dtype} {x.shape}; expected integers ({expected})"
                )
        elif x.ndim != 3 or x.shape[0] != batch or x.shape[2] != spec.width(m):
            raise ValueError(
                f"features of {m!r} have shape {x.shape}; expected ({batch}, T, {spec.width(m)})"
            )
        if mask.shape != x.shape[:2] or mask.dtype != bool:
            raise ValueError(
                f"the mask of {m!r} is {mask.dtype} {mask.shape}; expected bool {x.shape[:2]}"
            )
    steps = masks[config.anchor_of(spec.modalities)].shape[1]
    for m in joined_modalities(config, spec):
        if masks[m].shape[1] != steps:
            raise ValueError(
                f"{m!r} has {masks[m].shape[1]} steps; early fusion expected {steps}, the anchor's"
            )
    for m, mask in attention_masks.items():
        if m not in spec.modalities:
            raise ValueError(
                f"an attention mask is for {m!r}, which is not among the model's modalities: "
                f"{', '.join(spec.modalities)}"
            )
        encoder = config.encoder_of(m)
        if encoder.mixer != "transformer":
            raise ValueError(
                f"the encoder of {m!r} is recurrent ({encoder.mixer}) and has no self-attention: "
                "it takes no attention mask"
            )
        if not (encoder.n_layers_mod or encoder.n_layers_post_fuse):
            raise ValueError(f"the encoder of {m!r} has no layer: it takes no attention mask")
        batch, length = features[m].shape[:2]
        if not hasattr(mask, "dtype"):
            raise ValueError(f"the attention mask of {m!r} is no array: {type(mask).__name__}")
        is_known = mask.dtype == bool or jnp.issubdtype(mask.dtype, jnp.floating)
        if not is_known or mask.shape not in ((length, length), (batch, length, length)):
            raise ValueError(
                f"the attention mask of {m!r} is {mask.dtype} {mask.shape}; expected bool or float "
                f"({length}, {length}) or ({batch}, {length}, {length})"
            )


def check_family(config: ModelConfig, spec: CorpusSpec) -> None:
    """Raises `UserError` for settings `model.*` of which no model of the family can be built."""
    if config.anchor and config.anchor not in spec.modalities:
        raise UserError(
            f"model.anchor = {config.anchor!r} is not among the run's modalities: "
            f"choose one of {', '.join(spec.modalities)}."
        )
    anchor = config.anchor_of(spec.modalities)
    if config.early_fusion and len(spec.modalities) > 1 and not joined_modalities(config, spec):
        raise UserError(
            f"model.early_fusion joins to {anchor!r} what other modalities say at the same steps, "
            f"and none is known to share them: {spec.describe()}. Use an aligned corpus, words in "
            "pieces (model.text_pool), or leave it off."
        )
    for m in config.overridden:
        if m not in spec.modalities:
            raise UserError(
                f"model.overrides names {m!r}, which is not among the run's modalities: "
                f"choose of {', '.join(spec.modalities)}."
            )
    for m in spec.modalities:
        if config.encoder_of(m).positions != "drofe":
            continue
        if spec.vocabulary(m):
            raise UserError(
                f"model.positions = 'drofe' reads features of every step; those of {m!r} are token "
                "ids: choose learned, sinusoidal or none."
            )
        if spec.width(m) <= DROFE_FEATURES:
            raise UserError(
                f"model.positions = 'drofe' takes the first {DROFE_FEATURES} features of every "
                f"step of {m!r}, which is {spec.width(m)} wide: nothing is left to encode."
            )


def guided_terms(config: ModelConfig, name: str, loss: Term) -> dict[str, Term]:
    """Weighs the loss of both passes of a guided model, and else takes the loss alone."""
    if config.guidance == "none":
        return {name: loss}

    def of_first_pass(prediction, batch):
        return loss.measure(prediction.replace(score=prediction.aux["coarse_score"]), batch)

    share = config.guidance_weight
    return {
        f"coarse_{name}": loss._replace(measure=of_first_pass, weight=1 - share),
        name: loss._replace(weight=share),
    }


def space_of(config: ModelConfig) -> dict[str, Any]:
    """Returns what a sweep tries: where the gate begins only of a head that has one."""
    gate = {"model.gate_start": ["even", "anchor"]} if config.head == "weighted_sum" else {}
    return {
        "model.model_dim": [64, 128],
        "model.n_layers_mod": [1, 2],
        "model.n_layers_fuse": [0, 1],
        "model.input_dropout": (0.0, 0.5, "linear"),
        **gate,
        "optim.learning_rate": (1e-4, 2e-3, "log"),
    }


MODEL = Model(
    module=SequenceLevelModel,
    output_bias="regression/bias",
    bound={
        # A concatenating head has a block for each modality.
        "hidden/layers_0/*": (MODALITIES,),
        "regression/*": (LABELS, MODALITIES),
        "head/gate/*": (MODALITIES,),
        "text_embedding/embedding": (VOCABULARY,),
        "*positions/embedding": (POSITIONS,),
    },
    terms=guided_terms,
    check=check_family,
    encoder=ENCODER,
    space=space_of,
)
