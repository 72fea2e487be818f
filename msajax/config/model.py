"""Defines the settings of the model family: every source document's model is a combination."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from msajax.checks import Settings, at_least, one_of, require
from msajax.config.grammar import DROPOUT_RATES, as_on, parse_override, read_value
from msajax.config.registry import OF_EVERY_MODEL, RESERVED, is_own, registered
from msajax.errors import UserError
from msajax.tasks import TASKS

SAME = -1.0  # stands for `dropout_rate` in the rate of a single site


class DropoutRate(float):
    """Is a dropout rate that knows which setting it is: a training step takes it as an argument.

    Attributes:
        site: the setting, as `ffn_dropout`, or that of one modality, as `text.ffn_dropout`.
    """

    site: str

    def __new__(cls, rate: float, site: str = "") -> "DropoutRate":
        """Makes the rate of a site."""
        self = super().__new__(cls, rate)
        self.site = site
        return self


@dataclasses.dataclass(frozen=True, repr=False)
class ModelConfig(Settings):
    """Describes a model of the family. The defaults are the sequence-level model of source 002.

    `docs/sources.md` says which setting is which document's.

    Encode each modality, fuse, encode again, pool, weigh, regress: each stage has its settings, and
    a depth of 0 leaves it out.

    Attributes:
        name: which model to build: sequence_level, next_token (predicts each token of one modality
            from those before it), or one of your own (`msajax.register_model`).
        task: what the labels are: regression (one or several real numbers), classification (whole
            numbers in one column, or one-hot rows), ordinal (whole numbers in one column whose
            order counts), multi_label (several columns of 0 and 1), or auto: classification if
            labels are stored as whole numbers from 0 in one column or every row is one-hot,
            multi_label if they are other columns of 0 and 1, else regression.
        init_from: a bundle whose parameters this model begins with where they match; "" begins at
            random.
        text_encoder: a folder of a pretrained encoder (BERT, RoBERTa, ModernBERT or DeBERTa-v3, as
            the Hugging Face hub has them) that reads the text, as text=FOLDER in model.encoders
            would name it; "" for none.
        encoders: folders of pretrained encoders, each as MODALITY=FOLDER: of text (see
            text_encoder), or of sound (wav2vec 2.0, HuBERT or WavLM), which reads waveforms at
            16 kHz.
        encoder_layer_drop: probability that a sample leaves out a layer of a pretrained encoder of
            sound in training.
        encoder_time_masking: share of the frames, in spans of 10, that a pretrained encoder of
            sound does not see in training (SpecAugment).
        text_pool: what fusion reads of a text encoder: pieces, words (the mean of a word's pieces)
            or first (the first piece of each word); the last two need a corpus that knows its words
            step by step.
        text_special: let the special pieces, such as [CLS] and [SEP], take part in fusion; the text
            encoder reads them in any case.
        gradient_checkpointing: compute what the layers of pretrained encoders wrote a second time
            for their gradients, which takes longer and saves memory.
        modalities: names of the modalities that are read, in order; () takes those of the corpus
            that have a valid training step, in the order text, audio, video, then alphabetical.
        anchor: the modality that attends to the others (empty takes text, else the first).
        model_dim: width D of every sequence inside the model.
        num_heads: attention heads.
        head_dim: size of one head's queries and keys (0 takes model_dim / num_heads).
        value_dim: size of one head's values (0 takes that of its queries and keys).
        ff_dim: inner width of the feed-forward network.
        input_projection: whether features are projected, always or where_needed: features that are
            model_dim wide already go into the encoder as they are.
        n_layers_mod: layers of each modality's encoder.
        n_layers_fuse: fusion layers; 0 goes straight on after the encoders.
        n_layers_post_fuse: self-attention blocks per modality after fusion (source 000).
        embedding_dim: width of the embeddings of token ids, which are then projected to model_dim;
            0 means model_dim itself, without a projection.
        embedding_scale: none or sqrt_dim, what the embeddings of token ids are multiplied by:
            nothing, or the square root of their width.
        causal: a step of an encoder sees itself and the steps before it, and no later one.
        mixer: what a layer of an encoder is: transformer (a block of attention and feed-forward),
            or one of the recurrent rnn, gru, lstm (source 001).
        both_directions: recurrent layers read forwards and backwards, with D / 2 units each.
        fusion: how modalities meet: sequential (each cross-attention reads what the ones before it
            wrote, source 002), parallel (all read the layer's inputs), or pooled (every modality is
            pooled first and the M vectors attend to each other: the early-pooling baseline).
        bidirectional_fusion: let the other modalities attend to the anchor as well.
        early_fusion: let the anchor's encoder read what modalities that share its steps say there,
            beside the anchor's own features; they stay sequences of their own as well.
        activation: activation of the feed-forward network: gelu (erf), gelu_tanh, relu or geglu
            (gated).
        norm: kind of normalisation, layernorm or rmsnorm.
        norm_eps: epsilon of the norms.
        norm_position: where the norms stand, post (after the residual sum) or pre (on a sub-layer's
            input).
        final_norm: one more norm after the layers of every encoder (before and after fusion), and
            of pooled fusion.
        final_norm_type: kind of that norm: same (as norm), layernorm or rmsnorm.
        positions: kind of positions: learned, sinusoidal, none, or drofe: the first four features
            of every step (band edges in Hz, age in years, gender 0 or 1, none of them standardised)
            rotate the queries and keys of the modality's encoder; they are not part of its input.
        position_init: standard deviation of the learned position tables at the start. Cross-modal
            attention finds what happens at the same step only if the tables stand out from the
            features: at 0.02, as is usual, it never does.
        drofe_age_unit: years that count as 1 in dRoFE; 1 takes ages in years, which saturate
            attention.
        qkv_bias: biases on the query, key and value projections.
        out_bias: biases on attention's output projection.
        ffn_inner_bias: biases of the feed-forward network's first layer.
        pooling_method: how steps become one vector: mean, or attention (a learned scorer per
            modality).
        gate_input: what the gate sees: the mean of the pooled modalities, or concat.
        gate_hidden: a hidden layer of D / 2 in the gate; if off, it is linear.
        gate_activation: activation of the gate's hidden layer: relu, or none, which leaves it
            linear.
        gate_start: how the gate weighs modalities before training: even, or anchor, which begins
            near the anchor alone.
        head: how pooled modalities become one vector: weighted_sum (by the gate), mean, or concat.
        n_layers_head: layers with ReLU between the pooled vector and the scores, each model_dim
            wide (Iyyer et al., 2015).
        head_dropout: dropout rate of the pooled vector, and of what each of these layers writes.
        dropout_rate: dropout rate of every site inside the model that has no rate of its own.
        attention_dropout: dropout rate of attention probabilities (-1 takes dropout_rate).
        ffn_dropout: dropout rate between the two layers of the feed-forward network (-1
            takes dropout_rate).
        projection_dropout: dropout rate after the input projection and positions (-1 takes
            dropout_rate).
        input_dropout: dropout rate of the raw input features.
        max_len: rows of every learned position table and the longest sequence; 0 takes each
            modality's longest training sequence.
        missing_modality: mask or reference, what a modality that a sample lacks becomes: mask gives
            it weight 0, reference is the literal formula: its zero vector still gets weight.
        dtype: computation type; parameters, norms, softmax, pooling, gate and head stay float32.
        matmul_precision: how accelerators multiply float32 matrices, forwards and backwards, by
            JAX's names: float32 (in full), tensorfloat32 or bfloat16, which round the factors and
            are faster where the device has units for it (an NVIDIA GPU takes TF32 for both). CPUs
            always multiply in full.
        guidance: none, or how a first pass is explained for a second one, which that guides: the
            attribution of every encoder layer's input, by gradient_x_input, integrated_gradients or
            deeplift against a zero baseline, replaces the source of that layer's queries and keys.
            The weights are the same.
        guidance_weight: share of the second pass in the loss, in [0, 1]; the rest is the first's.
        guidance_steps: points of the path of integrated gradients.
        overrides: settings of single modalities' encoders, each as `modality.setting=value`.
        ranges: 002 lets the log say which settings lie outside the ranges of that source's table;
            none says nothing. It changes no number.
        own: the settings `model.<name>.*` of a model that has some; None for the others.
    """

    name: str = "sequence_level"
    task: str = "auto"
    init_from: str = ""
    text_encoder: str = ""
    encoders: tuple[str, ...] = ()
    encoder_layer_drop: float = 0.0
    encoder_time_masking: float = 0.0
    text_pool: str = "pieces"
    text_special: bool = True
    gradient_checkpointing: bool = False
    modalities: tuple[str, ...] = ()
    anchor: str = ""
    model_dim: int = 128
    num_heads: int = 4
    head_dim: int = 0
    value_dim: int = 0
    ff_dim: int = 256
    input_projection: str = "always"
    n_layers_mod: int = 2
    n_layers_fuse: int = 1
    n_layers_post_fuse: int = 0
    embedding_dim: int = 0
    embedding_scale: str = "none"
    causal: bool = False
    mixer: str = "transformer"
    both_directions: bool = False
    fusion: str = "sequential"
    bidirectional_fusion: bool = False
    early_fusion: bool = False
    activation: str = "gelu"
    norm: str = "layernorm"
    norm_eps: float = 1e-6
    norm_position: str = "post"
    final_norm: bool = False
    final_norm_type: str = "same"
    positions: str = "learned"
    position_init: float = 0.1
    drofe_age_unit: float = 100.0
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_inner_bias: bool = True
    pooling_method: str = "mean"
    gate_input: str = "mean"
    gate_hidden: bool = True
    gate_activation: str = "relu"
    gate_start: str = "even"
    head: str = "weighted_sum"
    n_layers_head: int = 0
    head_dropout: float = 0.0
    dropout_rate: float = 0.1
    attention_dropout: float = SAME
    ffn_dropout: float = SAME
    projection_dropout: float = SAME
    input_dropout: float = 0.0
    max_len: int = 0
    missing_modality: str = "mask"
    dtype: str = "float32"
    matmul_precision: str = "float32"
    guidance: str = "none"
    guidance_weight: float = 0.7
    guidance_steps: int = 16
    overrides: tuple[str, ...] = ()
    ranges: str = "none"
    own: Settings | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be built or contradicts itself."""
        # The model, and settings of its own.
        names = registered()
        requirement = (
            f"must be one of {', '.join(names)}; a model of your own is registered by its "
            "experiment file, or by --models=FILE.py in the modes that take none"
        )
        require(self, "model.name", self.name in names, requirement)
        settings = names[self.name].settings
        own = settings() if settings and self.own is None else self.own
        if type(own) is not (settings or type(None)):
            wanted = settings.__name__ if settings else None
            raise UserError(f"model.own = {own!r}: of {self.name!r} it must be {wanted}.")
        object.__setattr__(self, "own", own)  # the dataclass is frozen from here on

        # Settings that another model reads.
        for key in self.unread:
            if getattr(self, key) != _USUAL[key]:
                readable = [f"model.{key}" for key in names[self.name].reads]
                readable += [f"model.{self.name}.*"] * (settings is not None)
                raise UserError(
                    f"model.{key} = {getattr(self, key)!r}: model.name = {self.name!r} does not "
                    f"read it, but {', '.join(readable)}."
                )

        # Choices.
        one_of(self, "model.task", "auto", *(t.kind for t in TASKS.values() if t.choosable))
        one_of(self, "model.mixer", "transformer", "rnn", "gru", "lstm")
        one_of(self, "model.fusion", "sequential", "parallel", "pooled")
        one_of(self, "model.activation", "gelu", "gelu_tanh", "relu", "geglu")
        one_of(self, "model.norm", "layernorm", "rmsnorm")
        one_of(self, "model.norm_position", "post", "pre")
        one_of(self, "model.final_norm_type", "same", "layernorm", "rmsnorm")
        one_of(self, "model.positions", "learned", "sinusoidal", "none", "drofe")
        one_of(self, "model.input_projection", "always", "where_needed")
        one_of(self, "model.embedding_scale", "none", "sqrt_dim")
        one_of(self, "model.pooling_method", "mean", "attention")
        one_of(self, "model.gate_input", "mean", "concat")
        one_of(self, "model.gate_activation", "relu", "none")
        one_of(self, "model.gate_start", "even", "anchor")
        one_of(self, "model.ranges", "none", "002")
        one_of(self, "model.head", "weighted_sum", "mean", "concat")
        one_of(self, "model.text_pool", "pieces", "words", "first")
        one_of(self, "model.missing_modality", "mask", "reference")
        one_of(self, "model.dtype", "float32", "bfloat16", "float16")
        one_of(self, "model.matmul_precision", "float32", "tensorfloat32", "bfloat16")
        methods = ("gradient_x_input", "integrated_gradients", "deeplift")
        one_of(self, "model.guidance", "none", *methods)
        for entry in self.encoders:
            modality, is_one, folder = entry.partition("=")
            requirement = (
                f"{entry!r} is no MODALITY=FOLDER, as audio=wavlm-base (a folder whose name has a "
                "comma cannot be named)"
            )
            require(self, "model.encoders", bool(modality and is_one and folder), requirement)
            require(self, "model.encoders", "," not in folder, requirement)
        once = len(self.encoder_folders) == len(self.encoders) + bool(self.text_encoder)
        requirement = "must name one folder for each modality; model.text_encoder is that of text"
        require(self, "model.encoders", once, requirement)
        for name in ("encoder_layer_drop", "encoder_time_masking"):
            require(self, f"model.{name}", 0 <= getattr(self, name) < 1, "must lie in [0, 1)")
        once = len(set(self.modalities)) == len(self.modalities)
        require(self, "model.modalities", once, "must name each modality once")
        known = not self.anchor or not self.modalities or self.anchor in self.modalities
        require(self, "model.anchor", known, f"must be one of model.modalities = {self.modalities}")

        # Sizes and rates.
        at_least(self, "model", 1, "model_dim", "num_heads", "ff_dim")
        depths = ("n_layers_mod", "n_layers_fuse", "n_layers_post_fuse", "n_layers_head")
        optional = ("max_len", "head_dim", "value_dim", "embedding_dim")
        at_least(self, "model", 0, *depths, *optional)
        sizes = ("model_dim", "num_heads", "ff_dim", *optional)
        for names, most in ((sizes, 10**6), (depths, 1000)):  # building larger ones would not end
            for name in names:
                ok = getattr(self, name) <= most
                require(self, f"model.{name}", ok, f"must be {most} or less")
        divides = self.head_dim > 0 or self.model_dim % self.num_heads == 0
        requirement = f"must divide model.model_dim = {self.model_dim} (or set model.head_dim)"
        require(self, "model.num_heads", divides, requirement)
        for name in ("dropout_rate", "input_dropout", "head_dropout"):
            require(self, f"model.{name}", 0 <= getattr(self, name) < 1, "must lie in [0, 1)")
        for name in ("attention_dropout", "ffn_dropout", "projection_dropout"):
            rate = getattr(self, name)
            ok = rate == SAME or 0 <= rate < 1
            requirement = "must lie in [0, 1), or be -1 for model.dropout_rate"
            require(self, f"model.{name}", ok, requirement)
        require(self, "model.norm_eps", 0 < self.norm_eps <= 1, "must lie in (0, 1]")
        require(self, "model.position_init", 0 <= self.position_init <= 100, "must lie in [0, 100]")
        ok = 0 < self.drofe_age_unit <= 1000
        require(self, "model.drofe_age_unit", ok, "must lie in (0, 1000]")
        require(self, "model.guidance_weight", 0 <= self.guidance_weight <= 1, "must lie in [0, 1]")
        at_least(self, "model", 1, "guidance_steps")

        # Combinations.
        recurrent = self.mixer != "transformer"
        requirement = "works with a recurrent model.mixer (rnn, gru, lstm) only"
        require(self, "model.both_directions", recurrent or not self.both_directions, requirement)
        even = self.model_dim % 2 == 0 or not self.both_directions
        requirement = "must be even: with model.both_directions each direction has half of it"
        require(self, "model.model_dim", even, requirement)

        ok = not (self.causal and self.both_directions)
        requirement = "contradicts model.causal: one direction reads backwards"
        require(self, "model.both_directions", ok, requirement)
        drofe = self.positions == "drofe"
        for key, on in (("model.positions", drofe), ("model.guidance", self.guidance != "none")):
            requirement = "acts on queries and keys, of which a recurrent model.mixer has none"
            require(self, key, not (on and recurrent), requirement)
            requirement = "acts on the layers of an encoder: set model.n_layers_mod to 1 or more"
            require(self, key, not on or self.n_layers_mod > 0, requirement)
        requirement = f"needs heads whose size is a multiple of 4, not {self.size_of_head}"
        require(self, "model.positions", not drofe or self.size_of_head % 4 == 0, requirement)

        pooled = self.fusion == "pooled"
        ok = not (pooled and self.bidirectional_fusion)
        requirement = "means nothing with model.fusion = pooled, where all attend to all"
        require(self, "model.bidirectional_fusion", ok, requirement)
        ok = not (pooled and self.n_layers_post_fuse)
        requirement = "must be 0 with model.fusion = pooled: no sequences are left to encode"
        require(self, "model.n_layers_post_fuse", ok, requirement)
        one_way = self.fusion == "parallel" and not self.bidirectional_fusion
        requirement = (
            "is the same as sequential unless model.bidirectional_fusion is on: the anchor is the "
            "only one that changes"
        )
        require(self, "model.fusion", not one_way, requirement)

        gated = self.head == "weighted_sum"
        requirement = f"model.head = {self.head!r} has no gate; leave it at its default"
        require(self, "model.gate_input", gated or self.gate_input == "mean", requirement)
        require(self, "model.gate_hidden", gated or self.gate_hidden, requirement)
        require(self, "model.gate_start", gated or self.gate_start == "even", requirement)
        ok = self.gate_activation == "relu" or (gated and self.gate_hidden)
        requirement = "is of the gate's hidden layer, and there is none; leave it at its default"
        require(self, "model.gate_activation", ok, requirement)

        for name in self.overridden:
            settings = [s for m, s, _ in map(parse_override, self.overrides) if m == name]
            once = len(set(settings)) == len(settings)
            require(self, "model.overrides", once, f"must set each setting of {name!r} once")
            known = not self.modalities or name in self.modalities
            requirement = f"{name!r} is not one of model.modalities = {self.modalities}"
            require(self, "model.overrides", known, requirement)
            self.encoder_of(name)

    @property
    def own_task(self) -> str:
        """The only task that the model is for; "" for whichever the labels ask for."""
        return registered()[self.name].task

    @property
    def unread(self) -> list[str]:
        """The names of the settings of `model.*` that the model does not read."""
        reads = registered()[self.name].reads
        return [] if reads is None else [n for n in _USUAL if n not in (*reads, *OF_EVERY_MODEL)]

    @property
    def encoder_folders(self) -> dict[str, str]:
        """The folder of the pretrained encoder of each modality that has one."""
        of_text = {"text": self.text_encoder} if self.text_encoder else {}
        split = (entry.partition("=") for entry in self.encoders)
        return of_text | {modality: folder for modality, _, folder in split}

    def with_encoders(self, folders: Mapping[str, str]) -> "ModelConfig":
        """Returns the same settings with pretrained encoders in these folders, by modality."""
        others = tuple(f"{m}={folder}" for m, folder in folders.items() if m != "text")
        return dataclasses.replace(self, text_encoder=folders.get("text", ""), encoders=others)

    def anchor_of(self, modalities: Sequence[str]) -> str:
        """Returns which of a run's modalities is the anchor."""
        return self.anchor or ("text" if "text" in modalities else modalities[0])

    @property
    def overridden(self) -> tuple[str, ...]:
        """The modalities that `overrides` names."""
        return tuple(dict.fromkeys(parse_override(entry)[0] for entry in self.overrides))

    @property
    def size_of_head(self) -> int:
        """Size of the queries and keys of one attention head."""
        return self.head_dim or self.model_dim // self.num_heads

    def rate(self, setting: str = "dropout_rate") -> DropoutRate:
        """Returns the dropout rate of a setting, as `ffn_dropout`, which may be dropout_rate's."""
        own = getattr(self, setting)
        if own == SAME:
            return self.rate()
        return own if isinstance(own, DropoutRate) else DropoutRate(own, setting)

    def own_rate(self, setting: str) -> DropoutRate:
        """Returns a dropout rate among the settings of a model of this package, by its name."""
        return DropoutRate(getattr(self.own, setting), f"own.{setting}")

    @property
    def dropout_rates(self) -> dict[str, float]:
        """Every dropout rate that is set, by its site; see `DropoutRate`."""
        rates = {name: getattr(self, name) for name in DROPOUT_RATES if name not in self.unread}
        for modality, setting, text in map(parse_override, self.overrides):
            if setting in DROPOUT_RATES:
                rates[f"{modality}.{setting}"] = read_value(setting, text, float)
        return rates | {f"own.{name}": rate for name, rate in self._own_rates.items()}

    @property
    def _own_rates(self) -> dict[str, float]:
        """The dropout rates among the model's own settings: those whose names end so."""
        if self.own is None or not is_own(self.name):
            return {}
        names = (field.name for field in dataclasses.fields(self.own))
        return {name: getattr(self.own, name) for name in names if name.endswith("dropout")}

    @property
    def structure(self) -> "ModelConfig":
        """The same for models that differ in dropout rates alone, none of which is 0."""
        rates = {site: as_on(rate) for site, rate in self.dropout_rates.items()}
        overrides = []
        for entry in self.overrides:
            modality, setting, _ = parse_override(entry)
            rate = rates.get(f"{modality}.{setting}")
            overrides.append(entry if rate is None else f"{modality}.{setting}={rate}")
        same = {name: rates[name] for name in DROPOUT_RATES if name in rates}
        if own := {name: rates[f"own.{name}"] for name in self._own_rates}:
            same["own"] = dataclasses.replace(self.own, **own)
        return dataclasses.replace(self, overrides=tuple(overrides), **same)

    def encoder_of(self, modality: str) -> "ModelConfig":
        """Applies the overrides of one modality to these settings.

        Raises:
            UserError: if an override cannot be read or makes an impossible setting.
        """
        kinds = {field.name: field.type for field in dataclasses.fields(self)}
        changed: dict[str, Any] = {}
        for name, setting, text in map(parse_override, self.overrides):
            if name == modality:
                changed[setting] = read_value(setting, text, kinds[setting])
                if setting in DROPOUT_RATES:
                    changed[setting] = DropoutRate(changed[setting], f"{modality}.{setting}")
        if not changed:
            return self
        try:
            return dataclasses.replace(self, overrides=(), **changed)
        except UserError as error:
            raise UserError(f"model.overrides of {modality!r}: {error}") from error


_USUAL = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
RESERVED.update(_USUAL)


# As a sweep tries them. Widths and heads are lists: every number of heads divides every width.
_NUMBERS = {
    "model_dim": [64, 128, 192, 256],
    "num_heads": [2, 4, 8],
    "ff_dim": (128, 512, "log"),
    "n_layers_mod": [1, 2, 3],
    "n_layers_fuse": [1, 2],
    "dropout_rate": (0.0, 0.3, "linear"),
}
_CHOICES = {"bidirectional_fusion": [False, True], "pooling_method": ["mean", "attention"]}


def outside_ranges(config: ModelConfig) -> list[str]:
    """Lists settings outside the ranges that `model.ranges` names, each as a short phrase."""
    if config.ranges == "none":
        return []
    found = []
    for key, values in _NUMBERS.items():
        low, high = values[0], values[-1] if isinstance(values, list) else values[1]
        if not low <= getattr(config, key) <= high:
            found.append(f"model.{key} = {getattr(config, key)} (range: {low} to {high})")
    return found


def space_of_ranges() -> dict[str, Any]:
    """Returns the space of a sweep over all that source 002's table gives a range."""
    return {f"model.{key}": values for key, values in (_NUMBERS | _CHOICES).items()}
