"""Describes a pretrained text encoder: what its config.json says and a linen module must know."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from msajax.encoders.entries import Entries


@dataclasses.dataclass(frozen=True)
class ModernBert:
    """Holds what a ModernBERT has beside: windows, rotary positions, biases, rates of its own.

    Attributes:
        local: says of each layer whether a step sees its window alone.
        reach: steps that the window goes to either side.
        base: sets the rotation's frequencies in the layers that see all steps.
        local_base: sets those in the local layers.
        embedding_dropout: acts on the normalised embeddings.
        ffn_dropout: acts between the layers of the feed-forward network.
    """

    local: tuple[bool, ...]
    reach: int
    base: float
    local_base: float
    attention_bias: bool
    ffn_bias: bool
    norm_bias: bool
    embedding_dropout: float
    ffn_dropout: float


@dataclasses.dataclass(frozen=True)
class Relative:
    """Says how attention of a DeBERTa reads the distance between two steps.

    Attributes:
        buckets: vectors for distances in one direction, of which farther steps share some by the
            logarithm of their distance; 0: a vector for each distance.
        farthest: the distance from which on all share one vector.
        content_to_position: queries meet the vectors of distances.
        position_to_content: keys meet the vectors of distances.
        shared_projections: these vectors go through the projections of queries and keys.
        norm: the vectors are normalised.
        absolute: positions are added to the embeddings, too.
    """

    buckets: int
    farthest: int
    content_to_position: bool
    position_to_content: bool
    shared_projections: bool
    norm: bool
    absolute: bool

    @property
    def span(self) -> int:
        """Returns the number of vectors for each direction."""
        return self.buckets or self.farthest


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Holds everything that a linen module must know of a pretrained text encoder.

    Attributes:
        kind: the `model_type` of config.json, as `table.KINDS` has it.
        vocabulary: rows of the embedding table.
        width: size of the vector of a step, D.
        positions: the longest sequence that it takes, special pieces included.
        segments: rows of the table of segments, 0 for none.
        activation: gelu (erf), gelu_tanh or relu.
        dropout: acts on the embeddings and on what each sub-layer writes.
        attention_dropout: acts on attention probabilities.
    """

    reads: ClassVar[str] = "pieces"

    kind: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    ff_dim: int
    positions: int
    segments: int
    padding_id: int
    norm_eps: float
    activation: str
    dropout: float
    attention_dropout: float
    modern: ModernBert | None = None
    relative: Relative | None = None

    @classmethod
    def read(cls, entries: Entries) -> "Architecture":
        """Reads a config.json; raises `UserError` for what is missing, wrong or not computed."""
        kind = entries.content["model_type"]
        entries.refuse("is_decoder", False)
        entries.refuse("add_cross_attention", False)
        common = {"kind": kind, **_sizes(entries)}
        if kind == "modernbert":
            return cls(**common, **_modernbert(entries, common["layers"]))
        return cls(**common, **_bert(entries, common))

    def describe(self) -> str:
        """Puts into words what a step is that it reads."""
        return "pieces"

    @property
    def position_table(self) -> bool:
        """Says whether a learned vector of its position is added to each piece."""
        if self.relative is not None:
            return self.relative.absolute
        return self.modern is None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Architecture":
        """Rebuilds an architecture from `dataclasses.asdict`, also after a trip through JSON."""
        values = dict(values)
        if values.get("modern") is not None:
            modern = dict(values["modern"])
            values["modern"] = ModernBert(**modern | {"local": tuple(modern["local"])})
        if values.get("relative") is not None:
            values["relative"] = Relative(**values["relative"])
        return cls(**values)


def _sizes(entries: Entries) -> dict[str, Any]:
    """Reads what all kinds have; larger numbers than these bounds are those of no encoder."""
    sizes = {
        "vocabulary": entries.whole("vocab_size", 1, 10**7),
        "width": entries.whole("hidden_size", 1, 2**16),
        "layers": entries.whole("num_hidden_layers", 1, 1000),
        "heads": entries.whole("num_attention_heads", 1, 2**12),
        "ff_dim": entries.whole("intermediate_size", 1, 10**6),
        "positions": entries.whole("max_position_embeddings", 1, 2**20),
    }
    ok = sizes["width"] % sizes["heads"] == 0
    requirement = f"must divide {entries.key('hidden_size')} = {sizes['width']}"
    entries.require("num_attention_heads", ok, requirement)
    entries.refuse("attention_head_size", sizes["width"] // sizes["heads"])
    is_roberta = entries.content["model_type"] in ("roberta", "xlm-roberta")
    most = sizes["vocabulary"] - 1
    sizes["padding_id"] = entries.whole("pad_token_id", 0, most, min(int(is_roberta), most))
    if is_roberta:  # positions begin after that of padding
        sizes["positions"] -= sizes["padding_id"] + 1
        ok = sizes["positions"] > 0
        requirement = f"must be more than pad_token_id + 1 = {sizes['padding_id'] + 1}"
        entries.require("max_position_embeddings", ok, requirement)
    return sizes


def _bert(entries: Entries, common: Mapping[str, Any]) -> dict[str, Any]:
    entries.refuse("position_embedding_type", "absolute")
    entries.refuse("embedding_size", common["width"])
    is_deberta = common["kind"] == "deberta-v2"
    return {
        "segments": entries.whole("type_vocab_size", 0, 1000, 0 if is_deberta else 2),
        "norm_eps": entries.number("layer_norm_eps", 1e-20, 1, 1e-7 if is_deberta else 1e-12),
        "activation": entries.activation("hidden_act"),
        "dropout": entries.number("hidden_dropout_prob", 0, 1, 0.1),
        "attention_dropout": entries.number("attention_probs_dropout_prob", 0, 1, 0.1),
        "relative": _relative(entries, common["positions"]) if is_deberta else None,
    }


def _relative(entries: Entries, positions: int) -> Relative:
    entries.refuse("conv_kernel_size", 0)
    entries.refuse("relative_attention", True)
    kinds = entries.content.get("pos_att_type", "")
    if isinstance(kinds, str):
        kinds = [kind.strip() for kind in kinds.lower().split("|")]
    ok = isinstance(kinds, list) and kinds and all(kind in ("c2p", "p2c") for kind in kinds)
    entries.require("pos_att_type", bool(ok), "must name c2p, p2c or both")
    farthest = entries.whole("max_relative_positions", -1, 2**20, -1)
    farthest = positions if farthest < 1 else farthest
    buckets = entries.whole("position_buckets", -1, 2**16, -1)
    # Up to half of the buckets every distance has its own; the logarithm begins after them.
    half = buckets // 2
    ok = buckets < 1 or (half > 0 and (farthest - 1 > half or positions - 1 <= half))
    requirement = f"must be 2 to {2 * (farthest - 2)}, or -1 for none"
    entries.require("position_buckets", ok, requirement)
    norm = entries.refuse("norm_rel_ebd", "none", "layer_norm")
    return Relative(
        buckets=max(buckets, 0),
        farthest=farthest,
        content_to_position="c2p" in kinds,
        position_to_content="p2c" in kinds,
        shared_projections=entries.flag("share_att_key", False),
        norm=norm == "layer_norm",
        absolute=entries.flag("position_biased_input", True),
    )


def _modernbert(entries: Entries, layers: int) -> dict[str, Any]:
    head = entries.content["hidden_size"] // entries.content["num_attention_heads"]
    requirement = f"must leave heads of an even size, not {head}, for rotary positions"
    entries.require("num_attention_heads", head % 2 == 0, requirement)

    # The bases of the rotation, in the newer or the older form.
    entries.refuse("rope_scaling", None)
    if "rope_parameters" in entries.content:
        bases, nested = [], entries.content["rope_parameters"]
        for name, usual in (("full_attention", 160000.0), ("sliding_attention", 10000.0)):
            one = nested.get(name, {}) if isinstance(nested, Mapping) else None
            entries.require("rope_parameters", isinstance(one, Mapping), f"must hold {name}: {{…}}")
            inner = Entries(one, f"{entries.where}: rope_parameters.{name}")
            inner.refuse("rope_type", "default")
            bases.append(inner.number("rope_theta", 1, 1e12, usual))
        base, local_base = bases
    else:
        base = entries.number("global_rope_theta", 1, 1e12, 160000.0)
        # null says that the local layers have the base of the others.
        usual = base if "local_rope_theta" in entries.nulls else 10000.0
        local_base = entries.number("local_rope_theta", 1, 1e12, usual)

    # Which layers see a window alone, in the newer or the older form.
    if "layer_types" in entries.content:
        names, known = entries.content["layer_types"], ("full_attention", "sliding_attention")
        ok = isinstance(names, list) and len(names) == layers and all(n in known for n in names)
        requirement = f"must say of each of {layers} layers whether it is {' or '.join(known)}"
        entries.require("layer_types", ok, requirement)
        local = tuple(name == "sliding_attention" for name in names)
    else:
        every = entries.whole("global_attn_every_n_layers", 1, 1000, 3)
        local = tuple(i % every != 0 for i in range(layers))

    dropout = entries.number("attention_dropout", 0, 1, 0.0)
    return {
        "segments": 0,
        "norm_eps": entries.number("norm_eps", 1e-20, 1, 1e-5),
        "activation": entries.activation("hidden_activation"),
        "dropout": dropout,  # on what attention writes; the feed-forward network's has none
        "attention_dropout": dropout,
        "modern": ModernBert(
            local=local,
            reach=entries.whole("local_attention", 1, 2**20, 128) // 2,
            base=base,
            local_base=local_base,
            attention_bias=entries.flag("attention_bias", False),
            ffn_bias=entries.flag("mlp_bias", False),
            norm_bias=entries.flag("norm_bias", False),
            embedding_dropout=entries.number("embedding_dropout", 0, 1, 0.0),
            ffn_dropout=entries.number("mlp_dropout", 0, 1, 0.0),
        ),
    }
