"""Describes a pretrained encoder of sound: what its config.json says and a module must know."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from msajax.encoders.entries import Entries
from msajax.errors import UserError

SAMPLE_RATE = 16_000  # Hz
LONGEST_SECONDS = 30  # of a waveform that is encoded at once


@dataclasses.dataclass(frozen=True)
class SpeechArchitecture:
    """Holds everything that a linen module must know of an encoder of waveforms.

    Attributes:
        kind: wav2vec2, hubert or wavlm.
        convolutions: channels, kernel and stride of each convolution.
        norms_time: whether the first convolution alone has a norm, of each channel over the time of
            the whole sample; else each has one over its channels.
        projection_norm: whether frames are normalised before they are projected.
        width: size of the vector of a frame, D.
        activation: gelu (erf), gelu_tanh or relu.
        position_kernel: frames that the convolution of positions sees.
        pre_norm: whether norms stand before the blocks, and one behind the last.
        projection_dropout: acts on the projected frames.
        dropout: acts on what the layers begin with, and on what each sub-layer writes.
        attention_dropout: acts on attention probabilities.
        ffn_dropout: acts between the layers of the feed-forward network.
        normalizes: whether a waveform gets mean 0 and variance 1 before all else.
        buckets: vectors of distances (WavLM's), for both directions together; 0 for none.
        farthest: the distance from which on all share one vector.
    """

    reads: ClassVar[str] = "waveform"

    kind: str
    convolutions: tuple[tuple[int, int, int], ...]
    conv_bias: bool
    norms_time: bool
    projection_norm: bool
    width: int
    layers: int
    heads: int
    ff_dim: int
    activation: str
    norm_eps: float
    position_kernel: int
    position_groups: int
    pre_norm: bool
    projection_dropout: float
    dropout: float
    attention_dropout: float
    ffn_dropout: float
    normalizes: bool = False
    buckets: int = 0
    farthest: int = 0

    @classmethod
    def read(cls, entries: Entries) -> "SpeechArchitecture":
        """Reads a config.json, which `with_preprocessor` adds to; raises `UserError` if wrong."""
        kind = entries.content["model_type"]
        for key in ("add_adapter", "conv_pos_batch_norm"):
            entries.refuse(key, False)
        entries.refuse("adapter_attn_dim", None)
        entries.refuse("feat_extract_activation", "gelu")
        width = entries.whole("hidden_size", 1, 2**16)
        heads = entries.whole("num_attention_heads", 1, 2**12)
        requirement = f"must divide hidden_size = {width}"
        entries.require("num_attention_heads", width % heads == 0, requirement)
        groups = entries.whole("num_conv_pos_embedding_groups", 1, 2**16, 16)
        entries.require("num_conv_pos_embedding_groups", width % groups == 0, requirement)
        norm = entries.refuse("feat_extract_norm", "group", "layer")
        has_flag = kind == "hubert"  # the others always have this norm
        return cls(
            kind=kind,
            convolutions=_convolutions(entries),
            conv_bias=entries.flag("conv_bias", False),
            norms_time=norm == "group",
            projection_norm=entries.flag("feat_proj_layer_norm", True) if has_flag else True,
            width=width,
            layers=entries.whole("num_hidden_layers", 1, 1000),
            heads=heads,
            ff_dim=entries.whole("intermediate_size", 1, 10**6),
            activation=entries.activation("hidden_act"),
            norm_eps=entries.number("layer_norm_eps", 1e-20, 1, 1e-5),
            position_kernel=entries.whole("num_conv_pos_embeddings", 1, 2**12, 128),
            position_groups=groups,
            pre_norm=entries.flag("do_stable_layer_norm", False),
            projection_dropout=entries.number("feat_proj_dropout", 0, 1, 0.0),
            dropout=entries.number("hidden_dropout", 0, 1, 0.1),
            attention_dropout=entries.number("attention_dropout", 0, 1, 0.1),
            ffn_dropout=entries.number("activation_dropout", 0, 1, 0.1),
            **(_distances(entries) if kind == "wavlm" else {}),
        )

    def with_preprocessor(self, content: Any, where: str) -> "SpeechArchitecture":
        """Adds a preprocessor_config.json, called `where`; raises `UserError` for wrong values."""
        if not isinstance(content, Mapping):
            raise UserError(f"{where} holds no JSON object.")
        entries = Entries(content, where)
        entries.refuse("sampling_rate", SAMPLE_RATE)
        return dataclasses.replace(self, normalizes=entries.flag("do_normalize", True))

    @property
    def hop(self) -> int:
        """The samples from a frame to the next: a step of prepared sound."""
        return math.prod(stride for _, _, stride in self.convolutions)

    @property
    def step_width(self) -> int:
        """The numbers of a step of prepared sound: its samples, and how many there are."""
        return self.hop + 1

    @property
    def most_steps(self) -> int:
        """The steps that are encoded at once; longer sound is encoded in parts of as many."""
        return LONGEST_SECONDS * SAMPLE_RATE // self.hop

    def frames(self, samples: Any) -> Any:
        """Returns how many frames so many samples make; 0 for a waveform that is too short."""
        for _, kernel, stride in self.convolutions:
            samples = (samples - kernel) // stride + 1
        return samples * (samples > 0)

    def describe(self) -> str:
        """Puts into words what a step is that it reads."""
        return f"sound, {1000 * self.hop / SAMPLE_RATE:g} ms a step"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SpeechArchitecture":
        """Rebuilds an architecture from `dataclasses.asdict`, also after a trip through JSON."""
        convolutions = tuple(map(tuple, values["convolutions"]))
        return cls(**{**values, "convolutions": convolutions})


def _convolutions(entries: Entries) -> tuple[tuple[int, int, int], ...]:
    """Reads channels, kernels and strides; the last two are at most what no encoder passes."""
    found = []
    usual = ((512,) * 7, (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2))
    for key, default, most in zip(
        ("conv_dim", "conv_kernel", "conv_stride"), usual, (2**14, 2**10, 2**10), strict=True
    ):
        values = entries.content.get(key, list(default))
        ok = isinstance(values, list) and 0 < len(values) <= 32
        ok = ok and all(type(one) is int and 1 <= one <= most for one in values)
        entries.require(key, ok, f"must be a list of whole numbers from 1 to {most}")
        found.append(values)
    sizes = set(map(len, found))
    entries.require("conv_dim", len(sizes) == 1, "must be as long as conv_kernel and conv_stride")
    hop = math.prod(found[2])
    ok = hop <= SAMPLE_RATE
    entries.require("conv_stride", ok, f"makes a frame of {hop} samples, over a second")
    entries.refuse("num_feat_extract_layers", *sizes)
    return tuple(zip(*found, strict=True))


def _distances(entries: Entries) -> dict[str, int]:
    """Reads how WavLM shares vectors among distances."""
    buckets = entries.whole("num_buckets", 4, 2**16, 320)
    entries.require("num_buckets", buckets % 4 == 0, "must be a multiple of 4")
    farthest = entries.whole("max_bucket_distance", 1, 2**20, 800)
    ok = farthest > buckets // 4
    entries.require(
        "max_bucket_distance", ok, f"must be more than num_buckets / 4 = {buckets // 4}"
    )
    return {"buckets": buckets, "farthest": farthest}
