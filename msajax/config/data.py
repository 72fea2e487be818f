"""Defines the settings of the data: which corpus, how it is read and prepared."""

import dataclasses
import re

from msajax.checks import Settings, at_least, is_finite_number, is_url, one_of, require

SYNTHETIC = "synthetic"  # the `data.path` that stands for the embedded corpus


@dataclasses.dataclass(frozen=True, repr=False)
class SyntheticConfig(Settings):
    """Sets the sizes of the embedded corpus, used when `data.path` is "synthetic".

    Attributes:
        train: samples in the training split.
        valid: samples in the validation split.
        test: samples in the test split.
        modalities: names of the modalities.
        widths: features per time step, one per modality.
        lengths: time steps, one per modality.
        absent_share: share of samples that lack a modality, per modality, in [0, 1); of the task
            sentiment.
        seed: the corpus is a function of this number and the sizes.
        task: what is predicted, sentiment, sign, stress or connectome; sign and stress need what
            two modalities say at the same step (see `corpus/synthetic.py`);
            connectome is one modality of at least five features, whose first four are a band's
            edges, age and gender, and three groups to tell apart.
    """

    train: int = 1284
    valid: int = 229
    test: int = 686
    modalities: tuple[str, ...] = ("text", "audio", "video")
    widths: tuple[int, ...] = (300, 74, 47)
    lengths: tuple[int, ...] = (20, 20, 20)
    absent_share: float = 0.05
    seed: int = 0
    task: str = "sentiment"

    def __post_init__(self) -> None:
        """Refuses sizes that no corpus can have."""
        at_least(self, "data.synthetic", 2, "train", "valid", "test")
        at_least(self, "data.synthetic", 0, "seed")
        names = self.modalities
        key = "data.synthetic.modalities"
        once = len(set(names)) == len(names) >= 1
        require(self, key, once, "must name at least one modality, each once")
        well_named = all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", m) for m in names)
        require(self, key, well_named, "a name is letters, digits, and _ . - after the first")
        for sizes in ("widths", "lengths"):
            values = getattr(self, sizes)
            ok = len(values) == len(names) and all(v >= 1 for v in values)
            requirement = f"must hold one size >= 1 for each of the modalities {names}"
            require(self, f"data.synthetic.{sizes}", ok, requirement)
        one_of(self, "data.synthetic.task", "sentiment", "sign", "stress", "connectome")
        if self.task == "connectome":
            ok = len(names) == 1 and self.widths[0] >= 5
            requirement = "needs one modality of five features or more"
            require(self, "data.synthetic.task", ok, requirement)
        if self.task in ("sign", "stress"):
            ok = len(names) == 2 and len(set(self.lengths)) == 1
            requirement = "needs two modalities of the same length"
            require(self, "data.synthetic.task", ok, requirement)
        ok = 0 <= self.absent_share < 1
        require(self, "data.synthetic.absent_share", ok, "must lie in [0, 1)")


@dataclasses.dataclass(frozen=True, repr=False)
class DataConfig(Settings):
    """Says where the data is and how it is prepared.

    Attributes:
        path: a corpus file or folder, or "synthetic" for the embedded corpus.
        standardize: modalities to standardise per feature with the statistics of valid training
            steps; "auto" stands for every modality but text and token ids.
        clip: standardised features are clipped to +-clip deviations; 0 turns clipping off.
        truncate: error, or the first, last or uniform steps that are kept of a sequence longer than
            its position table; uniform are as many of its valid steps at equal distances.
        alignment: auto, aligned or unaligned, which modalities share their steps: what was recorded
            together then stays together when sequences are shifted and cut; auto takes those that
            the corpus says, or else those with the same number of stored steps, above 1, in every
            split, aligned all that are read, and unaligned none.
        text: auto, features, words, ids or pieces, what the text modality is: features, those of
            the corpus; words, the words of the transcripts as token ids, by a vocabulary of the
            training split; ids, the token ids that the corpus brings; pieces, the transcripts
            through the tokenizer of model.text_encoder (token ids that the corpus brings, if it has
            no transcripts); or auto: pieces with a model.text_encoder, else features.
        min_count: how often a word must occur in train to be in the vocabulary of data.text =
            words; the others share one embedding.
        format: auto or native, mapped, old_hdf5, connectome, csd, mmsa, mult or misa, the format
            of the corpus; auto finds it by its content, the others insist on one.
        glove_path: a text file of word vectors (GloVe, plain or gzip): the text of corpora that
            bring words, and what the embeddings of data.text = words begin with.
        word_shift: seconds added to the start of a word to find its segment in computational
            sequences; auto is -0.04 for CMU-MOSI, whose words come late, else 0.
        split_seed: seed of the random split by video of a corpus without splits, and of `folds`.
        folds: folds of a cross-validation, 3 or more, or 0 for the splits of the corpus; all its
            labelled samples are pooled, and split by video into so many folds.
        fold: which fold, from 0, is the test split, or -1 for all, one after another; the next fold
            is for validation, the others for training.
        device_memory_budget: bytes of prepared features above which a split is read from its file
            as it is needed, counted once for each device that shares the memory.
        mask_from_zeros: derive a mask from non-zero steps where the corpus brings none; if off,
            every step of such a modality counts as valid.
        allow_loss: go on although steps that are not zero, and that no mask of the file hides, are
            not read, and more than a tenth of the samples of a modality lose it in this way.
        synthetic: sizes of the embedded corpus.
    """

    path: str = ""
    standardize: tuple[str, ...] = ("auto",)
    clip: float = 10.0
    truncate: str = "error"
    alignment: str = "auto"
    text: str = "auto"
    min_count: int = 2
    format: str = "auto"
    glove_path: str = ""
    word_shift: str = "auto"
    split_seed: int = 0
    folds: int = 0
    fold: int = -1
    device_memory_budget: int = 2**31
    mask_from_zeros: bool = True
    allow_loss: bool = False
    synthetic: SyntheticConfig = SyntheticConfig()

    def __post_init__(self) -> None:
        """Refuses impossible values."""
        at_least(self, "data", 0, "clip")
        for name in ("path", "glove_path"):
            requirement = "is a URL: copy it to a file, or mount the bucket, and give that path"
            require(self, f"data.{name}", not is_url(getattr(self, name)), requirement)
        at_least(self, "data", 1, "min_count")
        one_of(self, "data.text", "auto", "features", "words", "ids", "pieces")
        at_least(self, "data", 0, "split_seed", "device_memory_budget")
        ok = self.folds == 0 or self.folds >= 3
        require(self, "data.folds", ok, "must be 0, or 3 or more: train, validation and test")
        ok = -1 <= self.fold < max(self.folds, 0)
        requirement = f"must be -1, or from 0 to below data.folds = {self.folds}"
        require(self, "data.fold", ok, requirement)
        ok = self.word_shift == "auto" or is_finite_number(self.word_shift)
        require(self, "data.word_shift", ok, "must be auto or a number of seconds")
        one_of(self, "data.truncate", "error", "first", "last", "uniform")
        one_of(self, "data.alignment", "auto", "aligned", "unaligned")
