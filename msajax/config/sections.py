"""Defines the settings of the data: which corpus, how it is read and prepared."""

import dataclasses
import re
from typing import Any

from msajax.checks import Settings, at_least, is_finite_number, is_url, one_of, require
from msajax.config.grammar import GroupSetting, as_on, read_group
from msajax.config.model import ModelConfig
from msajax.errors import UserError

SYNTHETIC = "synthetic"  # the `data.path` that stands for the embedded corpus

OWN = -1.0  # stands for the optimiser's own value of a setting


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
            require(self, "data.synthetic.task", ok, "needs one modality of five features or more")
        if self.task in ("sign", "stress"):
            ok = len(names) == 2 and len(set(self.lengths)) == 1
            require(self, "data.synthetic.task", ok, "needs two modalities of the same length")
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
        format: auto, which finds the format of the corpus by its content, or the name of one to
            insist on, as docs/files.md lists them.
        glove_path: a text file of word vectors (GloVe, plain or gzip): the text of corpora that
            bring words, and what the embeddings of data.text = words begin with.
        word_shift: seconds added to the start of a word to find its segment in computational
            sequences; auto is -0.04 for CMU-MOSI, whose words come late, else 0.
        split_seed: seed of the random split by video of a corpus without splits, and of `folds`.
        binarize: none, or a number: labels become 1 where they lie above it, else 0, as intensities
            of emotions.
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
    binarize: str = "none"
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
        require(self, "data.fold", ok, f"must be -1, or from 0 to below data.folds = {self.folds}")
        ok = self.word_shift == "auto" or is_finite_number(self.word_shift)
        require(self, "data.word_shift", ok, "must be auto or a number of seconds")
        ok = self.binarize == "none" or is_finite_number(self.binarize)
        require(self, "data.binarize", ok, "must be none or a number")
        one_of(self, "data.truncate", "error", "first", "last", "uniform")
        one_of(self, "data.alignment", "auto", "aligned", "unaligned")


@dataclasses.dataclass(frozen=True, repr=False)
class OptimConfig(Settings):
    """Says how parameters move. The defaults are no document's: `docs/sources.md`.

    Attributes:
        name: the optimiser: adam (its weight decay is part of the gradient), adamw (decoupled
            decay), sgd (with momentum), lion, or schedule_free (AdamW and an average of its own,
            for schedule = constant, perhaps with warm-up).
        learning_rate: peak of the learning rate.
        b1: decay of the mean of gradients, in [0, 1), of adam, adamw and lion; of schedule_free
            how near gradients are taken to the average. -1 is the optimiser's own.
        b2: decay of the mean of squared gradients, in [0, 1); of lion that of its mean. -1 is the
            optimiser's own.
        eps: what adam, adamw and schedule_free add to the root of that mean. -1 is the optimiser's
            own.
        momentum: share of the last direction that sgd keeps, in [0, 1). -1 is its own, 0.9.
        nesterov: whether sgd looks a step ahead.
        weight_decay: decay of the arrays that are named kernel, alone: not of biases, norms and
            embeddings, nor of what has another name, as the kernels of other authors' LSTMs
            (input_kernel, state_kernel) and factors; a group can decay those.
        schedule: learning rate after the warm-up: plateau (constant, and multiplied by
            plateau_factor whenever plateau_patience epochs in a row bring no better validation
            score), constant, or cosine or linear (down to min_learning_rate at the last planned
            step). Never two at once.
        warmup_steps: steps of linear warm-up from 0.
        clip_norm: largest global gradient norm; 0 turns clipping off.
        plateau_factor: factor of the plateau schedule, in (0, 1).
        plateau_patience: epochs of the plateau schedule, 1 or more.
        min_learning_rate: floor of the plateau, cosine and linear schedules.
        groups: settings of single parameters, each as `PATTERN:setting=value`, where the pattern
            (* stands for anything) names paths such as `text_encoder/*`; the last one that fits
            counts. learning_rate in place of the peak; weight_decay of all that is named,
            kernels or not; layer_decay, in (0, 1]: a factor of the rate for each layer below the
            last one of what is named (what has no number in its path, as embeddings, counts as
            below the first, a final norm as of the last; name no heads); warmup_steps; frozen=true:
            stays as it began.
        average: decay of an exponential moving average of the parameters over steps, in [0, 1), as
            0.999; validation, best parameters and the bundle then are of the average. 0 is off.
    """

    name: str = "adam"
    learning_rate: float = 1e-4
    b1: float = OWN
    b2: float = OWN
    eps: float = OWN
    momentum: float = OWN
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: str = "plateau"
    warmup_steps: int = 0
    clip_norm: float = 0.0
    plateau_factor: float = 0.5
    plateau_patience: int = 7
    min_learning_rate: float = 1e-6
    groups: tuple[str, ...] = ()
    average: float = 0.0

    def __post_init__(self) -> None:
        """Refuses impossible values and settings that would have no effect."""
        one_of(self, "optim.schedule", "plateau", "constant", "cosine", "linear")
        require(self, "optim.learning_rate", self.learning_rate > 0, "must be above 0")
        at_least(self, "optim", 0, "weight_decay", "warmup_steps", "clip_norm")
        at_least(self, "optim", 0, "min_learning_rate")
        for name in ("b1", "b2", "momentum"):
            ok = getattr(self, name) == OWN or 0 <= getattr(self, name) < 1
            require(self, f"optim.{name}", ok, "must lie in [0, 1), or be -1 for the usual one")
        ok = self.eps == OWN or self.eps > 0
        require(self, "optim.eps", ok, "must be above 0, or be -1 for the usual one")
        require(self, "optim.plateau_factor", 0 < self.plateau_factor < 1, "must lie in (0, 1)")
        requirement = "must be 1 or more; optim.schedule = constant keeps the rate"
        require(self, "optim.plateau_patience", self.plateau_patience >= 1, requirement)
        ok = self.schedule == "constant" or self.min_learning_rate <= self.learning_rate
        requirement = f"must not exceed optim.learning_rate = {self.learning_rate}"
        require(self, "optim.min_learning_rate", ok, requirement)
        require(self, "optim.average", 0 <= self.average < 1, "must lie in [0, 1)")
        _ = self.parsed_groups  # which refuses what it cannot read

    @property
    def parsed_groups(self) -> tuple[GroupSetting, ...]:
        """The entries of `groups`, in their order."""
        return tuple(map(read_group, self.groups))

    @property
    def structure(self) -> "OptimConfig":
        """The same for settings that differ in rates alone, of which no decay and no clip is 0."""
        values = {"learning_rate": 1, "layer_decay": 1, "warmup_steps": 0}
        groups = []
        for group in self.parsed_groups:
            value = values.get(group.setting, as_on(group.value))
            if group.setting == "frozen":
                value = str(group.value > 0).lower()
            groups.append(f"{group.pattern}:{group.setting}={value}")
        usual = OptimConfig()
        return dataclasses.replace(
            self,
            learning_rate=1.0,
            min_learning_rate=0.0,
            warmup_steps=0,
            weight_decay=as_on(self.weight_decay),
            clip_norm=as_on(self.clip_norm),
            plateau_factor=usual.plateau_factor,
            plateau_patience=usual.plateau_patience,
            groups=tuple(groups),
        )


@dataclasses.dataclass(frozen=True, repr=False)
class TrainConfig(Settings):
    """Says what a run trains, and for how long.

    Attributes:
        seeds: how many random seeds are trained; a published number is a mean over them.
        first_seed: the seeds are first_seed, first_seed + 1, …
        seeds_at_once: how many seeds are trained together, one group after another, which needs
            less memory and gives the same numbers; 0 trains all together.
        epochs: most passes over the training split. The same run may get more, but not with the
            cosine and linear schedules.
        batch_size: samples of a step.
        accumulation_steps: parts into which a step's rows are split to save memory; the gradient
            is that of the whole batch.
        patience: a random seed stops after this many epochs in a row without a strictly smaller
            validation score; 0 never stops early. The score is the mean absolute error over all
            outputs, or the cross-entropy of classes and tokens, unless select_by names another.
        calibration_share: the share of the validation split, in [0, 1) and by whole videos, that
            chooses no epoch and calibrates the scores instead; at 0 all of validation does both,
            which makes intervals too narrow.
        select_by: the metric on validation that chooses each seed's best epoch, stops early and
            moves the plateau schedule: auto, or any that the report shows.
        loss: what is minimised: l1 (mean absolute error), mse, huber, or ccc (1 less the
            concordance correlation of a batch) of real numbers; cross_entropy or focal of classes;
            cumulative of ordered levels; cross_entropy of tokens; auto is the first of these.
        huber_delta: where the Huber loss turns from square to linear.
        focal_gamma: how much the focal loss favours samples that are wrong; 0 is cross_entropy.
        class_weights: none, or balanced: a sample of a class counts in the loss N / (C n) times,
            of N training samples in C classes, n of them in its own.
        terms: terms beside the loss, each as `name=weight`: gate_entropy (the entropy of
            the modality weights; a negative weight spreads them).
        transforms: random changes of training batches, each as `name:modality=amount`, where *
            stands for every modality of features: modality_dropout and step_dropout (a
            probability), feature_noise (a standard deviation, of standardised features).
        seed_axis: how seeds share a program: map (one after another), vmap (together), or auto
            (vmap on GPUs, else map).
        checkpoint_every_seconds: a checkpoint is due when so much time has passed since the last
            one, inside an epoch too; 0 saves at the end of every epoch. The last epoch is always
            saved.
        checkpoint_every_steps: a checkpoint is due after so many steps, too; 0 does not count them.
        most_skipped_steps: a step whose loss or gradient is not finite changes nothing; a random
            seed with so many of them in a row has failed, and trains no more.
        compile_cache: where compiled programs are kept between runs: auto (msajax/compiled in
            $XDG_CACHE_HOME or ~/.cache), off, or a folder. Whoever can write there can run code.
            When a run begins, the oldest go until the rest takes 2 GiB.
        deterministic: make GPU programs deterministic.
        report: whether a run that ends writes report.html, a page to look at and to keep.
    """

    seeds: int = 1
    first_seed: int = 0
    seeds_at_once: int = 0
    epochs: int = 100
    batch_size: int = 32
    accumulation_steps: int = 1
    patience: int = 15
    calibration_share: float = 0.0
    select_by: str = "auto"
    loss: str = "auto"
    huber_delta: float = 1.0
    focal_gamma: float = 2.0
    class_weights: str = "none"
    terms: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    seed_axis: str = "auto"
    checkpoint_every_seconds: float = 30.0
    checkpoint_every_steps: int = 0
    most_skipped_steps: int = 5
    compile_cache: str = "auto"
    deterministic: bool = True
    report: bool = True

    def __post_init__(self) -> None:
        """Refuses impossible values."""
        at_least(self, "train", 1, "seeds", "epochs", "batch_size", "accumulation_steps")
        at_least(self, "train", 1, "most_skipped_steps")
        at_least(self, "train", 0, "first_seed", "seeds_at_once", "patience")
        at_least(self, "train", 0, "checkpoint_every_seconds", "checkpoint_every_steps")
        fits = self.first_seed + self.seeds <= 2**31
        requirement = f"plus train.seeds = {self.seeds} must not exceed 2**31"
        require(self, "train.first_seed", fits, requirement)
        require(self, "train.huber_delta", self.huber_delta > 0, "must be above 0")
        at_least(self, "train", 0, "focal_gamma")
        one_of(self, "train.class_weights", "none", "balanced")
        one_of(self, "train.seed_axis", "auto", "map", "vmap")
        ok = 0 <= self.calibration_share < 1
        require(self, "train.calibration_share", ok, "must lie in [0, 1)")
        given = bool(self.compile_cache)
        require(self, "train.compile_cache", given, "must be auto, off or a folder")

    @property
    def at_once(self) -> int:
        """Returns the number of random seeds that are trained together."""
        return min(self.seeds_at_once or self.seeds, self.seeds)


@dataclasses.dataclass(frozen=True, repr=False)
class MeshConfig(Settings):
    """Says how a run spreads over the devices of all its processes.

    Attributes:
        mode: jit (sharded arrays over a (seed, data, model) mesh) or pmap (rows over all devices).
        data: devices over which the rows of a batch are spread; 0 takes all that the others leave,
            virtual CPU devices only for 16 rows each.
        seed: devices over which random seeds are spread; 0 takes as many as there are seeds, on
            GPUs and with several processes as many as divide both.
        model: devices over which every wide parameter is spread, for models that are too large for
            one.
        cpu_devices: devices that the CPU counts as, where JAX finds no accelerator; 0 takes what a
            run had when it was started, at first 1.
    """

    mode: str = "jit"
    data: int = 0
    seed: int = 0
    model: int = 1
    cpu_devices: int = 0

    def __post_init__(self) -> None:
        """Refuses impossible values; whether the devices suffice is seen when a run begins."""
        one_of(self, "mesh.mode", "jit", "pmap")
        at_least(self, "mesh", 0, "data", "seed", "cpu_devices")
        at_least(self, "mesh", 1, "model")
        fits = self.mode == "jit" or self.seed <= 1
        require(self, "mesh.seed", fits, "mesh.mode = pmap spreads rows only; use 0 or 1")
        fits = self.mode == "jit" or self.model == 1
        require(self, "mesh.model", fits, "mesh.mode = pmap spreads rows only; use 1")


@dataclasses.dataclass(frozen=True, repr=False)
class Config(Settings):
    """Holds a whole experiment."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    mesh: MeshConfig = MeshConfig()

    def __post_init__(self) -> None:
        """Refuses sections of another type."""
        for field in dataclasses.fields(self):
            kind = type(field.default)
            ok = isinstance(getattr(self, field.name), kind)
            require(self, field.name, ok, f"must be a {kind.__name__}")
        text, encoder = self.data.text, "text" in self.model.encoder_folders
        if encoder and text in ("features", "words"):
            raise UserError(
                f"data.text = {text!r}: model.text_encoder reads pieces of transcripts or token "
                "ids; leave data.text at auto, or choose pieces or ids."
            )
        if text == "pieces" and not encoder:
            raise UserError("data.text = 'pieces': there is no model.text_encoder to cut them for.")

    @property
    def reading(self) -> DataConfig:
        """Returns `data`, with what `data.text` stands for where it is auto."""
        if self.data.text != "auto":
            return self.data
        text = "pieces" if "text" in self.model.encoder_folders else "features"
        return dataclasses.replace(self.data, text=text)

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-ready form; of models' own settings it holds the chosen model's."""
        values = dataclasses.asdict(self)
        own = values["model"].pop("own")
        if own is not None:
            values["model"][self.model.name] = own
        return values
