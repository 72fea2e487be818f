"""Holds the settings of the models of other authors; the configuration reads it without JAX."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from msajax.checks import Settings, are_rates, at_least, one_of, require


@dataclasses.dataclass(frozen=True, repr=False)
class PeerSettings(Settings):
    """Checks what the settings of all peers have in common.

    Whole numbers are sizes, 1 or more; weights are 0 or more, and dropout rates lie in [0, 1). Most
    peers have `compat`: clean, or reference for what other code does.

    Attributes:
        section: begins the keys, such as `model.tfn`.
        compats: every value that `compat` may have.
        padding_by: those of them by which padding is read like any step.
        least: the smallest values of those settings whose smallest is another.
        heads_divide: the width that `num_heads` must divide; "" for none.
    """

    section: ClassVar[str]
    compats: ClassVar[tuple[str, ...]] = ("clean", "reference")
    padding_by: ClassVar[tuple[str, ...]] = ()
    least: ClassVar[Mapping[str, int]] = MappingProxyType({})
    heads_divide: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Checks every setting; a subclass checks what it alone requires."""
        for name, least in self.least.items():
            at_least(self, self.section, least, name)
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if "compat" in values:
            one_of(self, f"{self.section}.compat", *self.compats)
        sizes = [field.name for field in dataclasses.fields(self) if type(field.default) is int]
        at_least(self, self.section, 1, *sizes)
        at_least(self, self.section, 0, *(name for name in values if name.endswith("weight")))
        are_rates(self, self.section)
        if self.heads_divide:
            width = getattr(self, self.heads_divide)
            requirement = f"must divide {self.section}.{self.heads_divide} = {width}"
            require(self, f"{self.section}.num_heads", width % self.num_heads == 0, requirement)


@dataclasses.dataclass(frozen=True, repr=False)
class AlmtSettings(PeerSettings):
    """Says how large a language-guided Transformer is; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the authors' code does: padding is seen like any step.
        d_model: width of every token.
        num_tokens: tokens that each modality becomes.
        embed_depth: layers that make them.
        embed_heads: attention heads of these layers.
        embed_ff: inner width of their feed-forward networks.
        text_heads: attention heads of the layers over the text's tokens.
        text_ff: inner width of their feed-forward networks.
        hyper_depth: layers in which text asks the other modalities, each at a scale of its own.
        hyper_heads: attention heads of these layers.
        hyper_head_dim: size of such a head.
        fusion_depth: layers in which text reads what was learned of the others.
        fusion_heads: attention heads of these layers.
        fusion_ff: inner width of their feed-forward networks.
        head_dim: size of every other head.
        dropout: dropout rate of what each attention and each network adds.
    """

    section = "model.almt"
    padding_by = ("reference",)

    compat: str = "clean"
    d_model: int = 128
    num_tokens: int = 8
    embed_depth: int = 1
    embed_heads: int = 8
    embed_ff: int = 128
    text_heads: int = 8
    text_ff: int = 128
    hyper_depth: int = 3
    hyper_heads: int = 8
    hyper_head_dim: int = 16
    fusion_depth: int = 2
    fusion_heads: int = 8
    fusion_ff: int = 128
    head_dim: int = 64
    dropout: float = 0.0


@dataclasses.dataclass(frozen=True, repr=False)
class CrossmodalSettings(PeerSettings):
    """Says how large the encoders of `crossmodal.py` are, and what is dropped.

    Attributes:
        compat: clean; or reference, what the authors' code does: padding is seen and counted like
            any step, and features that are d_model wide already are not projected.
        d_model: width of every modality's steps.
        num_heads: attention heads.
        num_layers: layers of every encoder but those behind attention between two modalities, which
            have 3 or more.
        text_kernel: steps that the projection of text reads at a time.
        audio_kernel: steps that the projection of audio reads at a time.
        video_kernel: steps that the projection of video reads, and of any other modality.
        causal_mask: step i sees steps up to i, or as many more as one sequence is longer.
        positions: sinusoidal positions in every encoder.
        text_dropout: dropout rate of the text's features.
        embed_dropout: dropout rate of what every encoder reads.
        attention_dropout: dropout rate of attention to text, and behind attention between two
            modalities.
        audio_attention_dropout: dropout rate of attention to audio.
        video_attention_dropout: dropout rate of attention to video, and to any other modality.
        relu_dropout: dropout rate between the two layers of the feed-forward networks.
        residual_dropout: dropout rate of what attention and feed-forward networks add.
        out_dropout: dropout rate before the last layers.
    """

    padding_by = ("reference",)
    heads_divide = "d_model"

    compat: str = "clean"
    d_model: int = 50
    num_heads: int = 10
    num_layers: int = 2
    text_kernel: int = 5
    audio_kernel: int = 5
    video_kernel: int = 5
    causal_mask: bool = True
    positions: bool = True
    text_dropout: float = 0.5
    embed_dropout: float = 0.2
    attention_dropout: float = 0.3
    audio_attention_dropout: float = 0.2
    video_attention_dropout: float = 0.0
    relu_dropout: float = 0.0
    residual_dropout: float = 0.0
    out_dropout: float = 0.5


@dataclasses.dataclass(frozen=True, repr=False)
class MultSettings(CrossmodalSettings):
    """Says how large a Multimodal Transformer is; the defaults are the toolkit's for CMU-MOSI.

    On CMU-MOSI (configs/mult.py) MAE on validation is 1.095 by `compat=reference`, else 1.077.

    Attributes:
        positions: sinusoidal positions in every encoder, which the authors' code has and the
            toolkit's has not.
    """

    section = "model.mult"

    num_layers: int = 4
    positions: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class DlfSettings(CrossmodalSettings):
    """Says how large a DLF is, and what its terms weigh; the defaults are those for CMU-MOSI.

    Attributes:
        attention_dropout: dropout rate of attention to text, of the encoder that all share, and
            behind attention between two modalities.
        text_weight: weight of the loss of the score of text alone; that of every other one is 1.
        rebuilt_weight: weight of the error of what both parts of a modality rebuild; 0 is without.
        again_weight: weight of the error of a modality's own part, made of what was rebuilt.
        apart_weight: weight of how alike the two parts of a step are.
        near_weight: weight of the term that shared vectors are nearer, the nearer their labels are.
    """

    section = "model.dlf"

    text_weight: float = 3.0
    rebuilt_weight: float = 0.1
    again_weight: float = 0.1
    apart_weight: float = 0.01
    near_weight: float = 0.01


@dataclasses.dataclass(frozen=True, repr=False)
class EfLstmSettings(PeerSettings):
    """Says how large an LSTM over joined modalities is.

    Attributes:
        hidden: units of the LSTM, and of the layer behind it.
        dropout: dropout rate of the LSTM's last state.
    """

    section = "model.ef_lstm"

    hidden: int = 128
    dropout: float = 0.3


@dataclasses.dataclass(frozen=True, repr=False)
class LfDnnSettings(PeerSettings):
    """Says how large a network over joined means is.

    Attributes:
        hidden: size of the three layers of each modality.
        post_fusion: size of the two layers behind them.
        dropout: dropout rate of each mean.
        post_dropout: dropout rate of the joined vectors.
    """

    section = "model.lf_dnn"

    hidden: int = 64
    post_fusion: int = 64
    dropout: float = 0.3
    post_dropout: float = 0.3


@dataclasses.dataclass(frozen=True, repr=False)
class TextOnlySettings(PeerSettings):
    """Says how large a network over the mean of text is.

    Attributes:
        hidden: size of its two layers.
        dropout: dropout rate of the mean, and of what each layer writes.
    """

    section = "model.text_only"

    hidden: int = 128
    dropout: float = 0.3


@dataclasses.dataclass(frozen=True, repr=False)
class TfnSettings(PeerSettings):
    """Says how large a Tensor Fusion Network is; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the toolkit's code does: means over padding as well, an
            LSTM that runs over it, and no dropout of text. On CMU-MOSI (configs/tfn.py) MAE on
            validation is 0.991 then, else 1.024.
        text_hidden: units of the LSTM over text.
        text_out: size of the text's vector.
        audio_hidden: size of the layers of audio.
        video_hidden: size of the layers of video, and of any other modality.
        post_fusion: size of the layers behind the product.
        text_dropout: dropout rate of the LSTM's last state.
        audio_dropout: dropout rate of the mean of audio.
        video_dropout: dropout rate of the mean of video, and of any other modality.
        post_dropout: dropout rate of the product.
        lowest: scores are larger than it.
        highest: scores are smaller than it; 0, as `lowest`, for no bounds, which labels outside of
            [-3, 3] need. Classes have none in any case.
    """

    section = "model.tfn"
    padding_by = ("reference",)

    compat: str = "clean"
    text_hidden: int = 128
    text_out: int = 32
    audio_hidden: int = 32
    video_hidden: int = 128
    post_fusion: int = 64
    text_dropout: float = 0.3
    audio_dropout: float = 0.3
    video_dropout: float = 0.3
    post_dropout: float = 0.5
    lowest: float = -3.0
    highest: float = 3.0

    def __post_init__(self) -> None:
        """Checks every setting."""
        super().__post_init__()
        ok = self.lowest < self.highest or self.lowest == self.highest == 0
        requirement = f"must be more than model.tfn.lowest = {self.lowest}, or both must be 0"
        require(self, "model.tfn.highest", ok, requirement)


@dataclasses.dataclass(frozen=True, repr=False)
class LmfSettings(PeerSettings):
    """Says how large a model of low-rank fusion is; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the toolkit's code does: means over padding as well, an
            LSTM that runs over it, no dropout of text, and weights of the rank and a bias behind
            them that stay as they began. On CMU-MOSI (configs/lmf.py) MAE on validation is 1.092
            then, else 1.078.
        rank: terms of the sum, each a product of one number for each modality.
        text_hidden: units of the LSTM over text, whose vector is half as large.
        audio_hidden: size of the layers of audio.
        video_hidden: size of the layers of video, and of any other modality.
        text_dropout: dropout rate of the LSTM's last state.
        audio_dropout: dropout rate of the mean of audio.
        video_dropout: dropout rate of the mean of video, and of any other modality.
    """

    section = "model.lmf"
    padding_by = ("reference",)
    least = MappingProxyType({"text_hidden": 2})

    compat: str = "clean"
    rank: int = 3
    text_hidden: int = 128
    audio_hidden: int = 16
    video_hidden: int = 128
    text_dropout: float = 0.3
    audio_dropout: float = 0.3
    video_dropout: float = 0.3


@dataclasses.dataclass(frozen=True, repr=False)
class MagSettings(PeerSettings):
    """Says how far voice and face shift the pieces of text; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the authors' code does: where a modality has no row, as at
            special pieces, a row of zeros shifts the piece by what the biases say.
        beta_shift: the longest shift, relative to the length of a piece's vector.
        gate_dropout: dropout rate of the shifted pieces.
    """

    section = "model.mag"
    least = MappingProxyType({"beta_shift": 0})

    compat: str = "clean"
    beta_shift: float = 1.0
    gate_dropout: float = 0.3


@dataclasses.dataclass(frozen=True, repr=False)
class MisaSettings(PeerSettings):
    """Says how large a MISA is, and what its terms weigh; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the toolkit's code does: every modality but text is read
            for as many steps as text has, padding or not, one that a sample lacks counts as zeros,
            and LSTMs begin as PyTorch's do. On CMU-MOSI (configs/misa.py) MAE on validation is
            1.063 then, else 1.060.
        hidden: size of the vectors of every modality.
        num_heads: heads of the attention between these vectors.
        ff_dim: inner width of the feed-forward network behind it.
        fusion_dropout: dropout rate of this attention and of this network.
        head_dropout: dropout rate inside the head.
        diff_weight: weight of the term `diff`, which is large if private and shared vectors, or
            private ones of two modalities, move together from sample to sample; 0 is without it.
        sim_weight: weight of `sim`, the distance of the shared vectors' moments between modalities;
            0 is without it.
        recon_weight: weight of `recon`, the error of what private and shared vectors say together
            of the one that both are made of; 0 is without it.
    """

    section = "model.misa"
    padding_by = ("reference",)
    heads_divide = "hidden"

    compat: str = "clean"
    hidden: int = 128
    num_heads: int = 2
    ff_dim: int = 2048
    fusion_dropout: float = 0.1
    head_dropout: float = 0.2
    diff_weight: float = 0.1
    sim_weight: float = 0.3
    recon_weight: float = 1.0


@dataclasses.dataclass(frozen=True, repr=False)
class SelfMmSettings(PeerSettings):
    """Says how large Self-MM is and how it makes labels; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; reference, what the toolkit's code does: text is its first step, whatever
            reads it, and samples that no step has read yet count in the centres, as zeros; or
            original, the authors' own: the same, and labels of 0 count as positive. On CMU-MOSI
            (configs/self_mm.py) MAE on validation is 1.348 by reference, else 1.049.
        audio_lstm: units of the LSTM over audio.
        video_lstm: units of the LSTM over video, and over any other modality.
        audio_out: size of the vector of audio.
        video_out: size of the vector of video, and of any other modality.
        post_fusion: size of the layers over all vectors.
        post_text: size of the layers over the vector of text.
        post_audio: size of the layers over the vector of audio.
        post_video: size of the layers over the vector of video, and of any other modality.
        fusion_dropout: dropout rate of all vectors, side by side.
        text_dropout: dropout rate of the vector of text before its own layers.
        audio_dropout: dropout rate of the vector of audio before its own layers.
        video_dropout: dropout rate of the vector of video before its own layers, and of any other
            modality.
        audio_lstm_dropout: dropout rate of the last state over audio.
        video_lstm_dropout: dropout rate of the last state over video, and over any other modality.
        label_range: labels of single modalities lie between it and its negative, as those of all
            modalities must.
        exclude_zero: leave labels of 0 out of both centres; else, as in the authors' own code, they
            count as positive.
    """

    section = "model.self_mm"
    compats = ("clean", "reference", "original")

    compat: str = "clean"
    audio_lstm: int = 16
    video_lstm: int = 32
    audio_out: int = 16
    video_out: int = 32
    post_fusion: int = 128
    post_text: int = 32
    post_audio: int = 16
    post_video: int = 32
    fusion_dropout: float = 0.0
    text_dropout: float = 0.1
    audio_dropout: float = 0.1
    video_dropout: float = 0.0
    audio_lstm_dropout: float = 0.0
    video_lstm_dropout: float = 0.0
    label_range: float = 3.0
    exclude_zero: bool = True

    def __post_init__(self) -> None:
        """Checks every setting."""
        super().__post_init__()
        require(self, "model.self_mm.label_range", self.label_range > 0, "must be above 0")

    @property
    def zero_is_positive(self) -> bool:
        """Tells whether labels of 0 count as positive; else they are left out."""
        return not self.exclude_zero or self.compat == "original"


@dataclasses.dataclass(frozen=True, repr=False)
class MmimSettings(PeerSettings):
    """Says how large MMIM is and what its terms weigh; the defaults are those for CMU-MOSI.

    Attributes:
        compat: clean; or reference, what the authors' code does (the toolkit's is the same): text
            is its first step, whatever reads it; states of LSTMs are not dropped; likelihoods lack
            the logarithm of their variance, which then nothing bounds; and the projections of which
            entropies are taken stay as they began. On CMU-MOSI (configs/mmim.py) MAE on validation
            is 1.403 then, else 1.051.
        audio_lstm: units of the LSTM over audio, of each direction.
        video_lstm: units of the LSTM over video, of each direction, and over any other modality.
        audio_out: size of the vector of audio.
        video_out: size of the vector of video, and of any other modality.
        fusion: size of the fused vector.
        audio_dropout: dropout rate of the last states over audio.
        video_dropout: dropout rate of the last states over video, and over any other modality.
        fusion_dropout: dropout rate of all vectors, side by side.
        nce_weight: weight of the contrastive term, by which the fused vector tells which vectors
            are of the same sample.
        bound_weight: weight of the log-likelihoods and the entropies, which together are a lower
            bound of what a modality tells of another.
        first_share: share of the batches that an epoch's first stage reads, in (0, 1].
    """

    section = "model.mmim"
    least = MappingProxyType({"audio_out": 4, "video_out": 4})  # a quarter of them is projected

    compat: str = "clean"
    audio_lstm: int = 16
    video_lstm: int = 16
    audio_out: int = 16
    video_out: int = 16
    fusion: int = 128
    audio_dropout: float = 0.1
    video_dropout: float = 0.1
    fusion_dropout: float = 0.1
    nce_weight: float = 0.1
    bound_weight: float = 0.1
    first_share: float = 1.0

    def __post_init__(self) -> None:
        """Checks every setting."""
        super().__post_init__()
        require(self, "model.mmim.first_share", 0 < self.first_share <= 1, "must lie in (0, 1]")
