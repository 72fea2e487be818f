"""Scores samples in memory: what `Bundle.predict` takes, computes and returns."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from msajax.config import Config, MeshConfig
from msajax.corpus.corpus import Split, pad_words
from msajax.corpus.formats.pickled import to_whole
from msajax.corpus.in_memory import (
    as_list,
    is_list,
    is_missing,
    pad,
    require_same_rows,
    require_unicode,
)
from msajax.errors import UserError, nearest
from msajax.inference.scoring import Scorer, make_predict
from msajax.metrics.calibration import Calibration
from msajax.models.build import build_model
from msajax.preparation.fit import Preparation
from msajax.runtime.devices import configure_jax, make_layout, require_devices
from msajax.tasks import TASKS


@dataclasses.dataclass(frozen=True, repr=False)
class Scores:
    """Holds the scores of N samples, for K outputs, S random seeds and M modalities.

    The K outputs are the labels, the classes, or for a model of the next token the negative
    log-likelihood of a sequence in nats and the number of tokens that it sums.

    Attributes:
        score: `[N, K]`, the mean over seeds; of classes, probabilities.
        score_sd: `[N, K]`, the seeds' standard deviation (ddof 1); NaN with a single seed.
        seeds: `[S, N, K]`, the score of each seed.
        weights: `[N, M]`, the weight of each modality, a mean over seeds, in the order of the
            specification's modalities; they sum to 1, or are all 0 where no modality is there.
        low: `[N, K]`, the lower end of the 90 % interval of `score`; None without intervals.
        high: `[N, K]`, its upper end.
        calibrated: `[N, K]`, the probabilities of `score` at the bundle's temperature; None without
            one.
        labels: `[N, K]` bool, which labels a sample has by the bundle's thresholds; None without
            them.
    """

    score: np.ndarray
    score_sd: np.ndarray
    seeds: np.ndarray
    weights: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    calibrated: np.ndarray | None = None
    labels: np.ndarray | None = None

    @classmethod
    def of_seeds(
        cls, scores: np.ndarray, weights: np.ndarray, calibration: Calibration | None = None
    ) -> "Scores":
        """Sums up scores `[S, N, K]` and modality weights `[S, N, M]`."""
        mean, weights = (np.add.reduce(x, axis=0) / len(x) for x in (scores, weights))
        several = len(scores) > 1
        sd = scores.std(axis=0, ddof=1) if several else np.full(mean.shape, np.nan)
        said = {} if calibration is None else calibration.applied(scores)
        return cls(mean, sd, scores, weights, **said)

    def __repr__(self) -> str:
        shown = np.array2string(self.score, precision=3, threshold=6, edgeitems=2, separator=", ")
        seeds, samples = self.seeds.shape[:2]
        return f"Scores({samples} sample(s), {seeds} seed(s), score={' '.join(shown.split())})"


def make_scorer(
    config: Config, preparation: Preparation, variables: Any, shared: Any, seeds: int
) -> Scorer:
    """Puts a trained model on the devices.

    Args:
        variables: parameters and collections, leading axis S.
        shared: parameters that are the same for every seed, without that axis.

    Raises:
        UserError: if there are no devices of the kind that is asked for.
    """
    configure_jax(config.train)
    require_devices()
    spec = preparation.spec
    layout = make_layout(MeshConfig(seed=1), "auto", seeds)
    leaves, tree = jax.tree.flatten(layout.put_state(variables))
    model, task = build_model(config.model, spec), TASKS[spec.label_kind]
    predict = make_predict(model, task, layout, shared, tree)
    return Scorer(predict, tuple(leaves), spec, layout.hand_rows)


def as_split(
    features: Mapping[str, Any] | None,
    masks: Mapping[str, Any] | None,
    raw_text: Sequence[str] | None,
    preparation: Preparation,
    words: Sequence[Sequence[str]] | None = None,
) -> Split:
    """Makes a split of samples in memory, as a file of them would be read.

    It takes what `Bundle.predict` does, and a list of N vectors `[d]`, which are single steps.

    Raises:
        UserError: for a modality that the model does not read, and for shapes and types that do
            not fit.
    """
    spec, features = preparation.spec, {} if features is None else features
    _require_names(features, masks, preparation)
    if words is not None and not preparation.text_from:
        raise UserError(
            "words are for a model with a pretrained text encoder, and this one has none."
        )
    given = {f"features[{m!r}]": value for m, value in features.items()}
    require_same_rows(given | {"raw_text": raw_text, "words": words})
    # Stack each modality, of whatever it is given as, with its mask.
    features = {m: _without_frame(value) for m, value in features.items()}
    masks = masks and {m: _without_frame(value) for m, value in masks.items()}
    arrays, valid, derived, segments = {}, {}, set(), None
    for m, value in features.items():
        if value is None:
            raise UserError(f"features[{m!r}] is None: leave out a modality that no sample has.")
        if spec.is_pieces(m):
            arrays[m], valid[m], segments = _read_ids(value, masks)
            continue
        where, is_features = f"features[{m!r}]", spec.stored_width(m) > 0
        x, lengths = _stack(value, where, (0, 1, spec.stored_width(m)) if is_features else (0, 1))
        if x.ndim in (2, 3) and len(x) and not x.shape[1]:  # no sample has a step of it
            arrays[m] = np.zeros((len(x), 1, *[spec.stored_width(m)] * is_features), x.dtype)
            valid[m] = np.zeros((len(x), 1), bool)
            continue
        if x.dtype.kind == "V" and x.dtype.name == "bfloat16":
            x = x.astype(np.float32)
        if is_features and x.ndim == 2 and x.dtype.kind in "biuf":
            # Single steps, unless it may be one sequence.
            if spec.length(m) > 1 and not _are_arrays(value):
                rows, width = x.shape
                raise UserError(
                    f"{where} is {x.dtype} {x.shape}: expected (N, T, d). One sample of {rows} "
                    f"steps is x[None], (1, {rows}, {width}); {rows} samples of one step each are "
                    f"x[:, None], ({rows}, 1, {width})."
                )
            x = x[:, None]
        kinds, dims = ("biuf", 3) if is_features else ("iu", 2)
        if x.dtype.kind not in kinds or x.ndim != dims or 0 in x.shape[1:]:
            single = " or (N, d)" * (spec.length(m) == 1)
            expected = f"numbers (N, T, d){single}" if is_features else "token ids (N, T)"
            raise UserError(f"{where} is {x.dtype} {x.shape}: expected {expected}.")
        arrays[m] = x
        if masks is not None and m in masks:
            valid[m] = _read_mask(masks[m], f"masks[{m!r}]", x.shape[:2], lengths)
        elif lengths is not None and not preparation.mask_from_zeros:
            valid[m] = np.arange(x.shape[1]) < lengths[:, None]
            derived.add(m)
    # Read transcripts and words; all that is given must be of the same samples.
    sizes = {f"features[{m!r}]": len(x) for m, x in arrays.items()}
    if raw_text is not None:
        raw_text = as_list(raw_text, "raw_text")
        if not all(isinstance(text, str) for text in raw_text):
            raise UserError("raw_text must be a list of transcripts, one for each sample.")
        require_unicode(raw_text, "raw_text[{}]".format)
        raw_text = np.array(raw_text, np.str_)
        sizes["raw_text"] = len(raw_text)
    if words is not None:
        rows = as_list(words, "words")
        are_lists = all(map(is_list, rows))
        if not are_lists or not all(isinstance(word, str) for row in rows for word in row):
            raise UserError("words must be a list with a list of words for each sample.")
        for i, row in enumerate(rows):
            require_unicode(row, f"words[{i}][{{}}]".format)
        words = pad_words(rows)
        sizes["words"] = len(words)
    if not sizes:
        raise UserError("Nothing is given to predict: expected features, raw_text or words.")
    if len(set(sizes.values())) != 1:
        found = ", ".join(f"{size} in {what}" for what, size in sizes.items())
        raise UserError(f"The number of samples must be the same in all that is given: {found}.")
    given = raw_text is not None or words is not None
    if given and "text" not in spec.modalities:
        raise UserError(
            f"Transcripts are given, and this model reads {', '.join(spec.modalities)} alone."
        )
    if given and "text" in features:
        raise UserError(
            "features names 'text', and transcripts are given, too: this model reads one of them."
        )
    ids = np.array([str(i) for i in range(next(iter(sizes.values())))], np.str_)
    valid = {m: mask for m, mask in valid.items() if mask is not None}
    return Split(
        ids,
        arrays,
        valid,
        raw_text=raw_text,
        derived=frozenset(derived),
        where="the samples",
        words=words,
        segments=segments,
    )


def _without_frame(value: Any) -> Any:
    """Returns a column of a pandas or polars data frame as a list, a frame as an array `[N, d]`."""
    if hasattr(value, "to_list"):
        return value.to_list()
    return value.to_numpy() if hasattr(value, "columns") else value


def _are_arrays(value: Any) -> bool:
    """Says whether a value is a list, or an array of objects, of an array for each sample."""
    is_of_numbers = hasattr(value, "dtype") and value.dtype != np.dtype(object)
    return not is_of_numbers and all(hasattr(row, "__array__") for row in value)


def _read_ids(
    value: Any, masks: Mapping[str, Any] | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Reads the token ids `[N, T]` of a text, their mask and their segment ids, where they are."""
    where, mask = "features['text']", None if masks is None else masks.get("text")
    x, lengths = _stack(value, where, (0, 1))
    if x.ndim == 3 and x.shape[1] == 3 and x.shape[2] and x.dtype.kind in "iuf":
        if mask is not None:
            raise UserError(f"masks names 'text', but {where} (N, 3, T) brings its own mask.")
        ids, mask, segments = (to_whole(part, where) for part in np.moveaxis(x, 1, 0))
        return ids, _read_mask(mask, f"the mask in {where}", ids.shape, None), segments
    if x.dtype.kind not in "iu" or x.ndim != 2 or not x.shape[1]:
        raise UserError(
            f"{where} is {x.dtype} {x.shape}: expected token ids (N, T), or (N, 3, T): token ids, "
            "mask and segment ids."
        )
    if mask is not None:
        return x, _read_mask(mask, "masks['text']", x.shape, lengths), None
    return x, None if lengths is None else np.arange(x.shape[1]) < lengths[:, None], None


def _require_names(features: Any, masks: Any, preparation: Preparation) -> None:
    modalities = preparation.spec.modalities
    for what, given in (("features", features), ("masks", {} if masks is None else masks)):
        if not isinstance(given, Mapping):
            raise UserError(
                f"{what} is a {type(given).__name__}: expected {{modality: array}}, of "
                f"{', '.join(modalities)}."
            )
        for m in given:
            if m not in modalities or m not in features:
                known = [n for n in modalities if what == "features" or n in features]
                raise UserError(
                    f"{what} names {m!r}: expected some of {', '.join(known) or 'none'}."
                    f"{nearest(str(m), known)}"
                )
    if preparation.words and "text" in features:
        raise UserError(
            "features names 'text', but this model reads the words of transcripts: give them as "
            "raw_text."
        )


def _read_mask(
    value: Any, where: str, shape: tuple[int, int], lengths: np.ndarray | None
) -> np.ndarray:
    """Reads a mask `[N, T]` bool of features of that shape, or of a list of these lengths."""
    mask, own = _stack(value, where, (0, 1))
    same = own is None or (lengths is not None and np.array_equal(own, lengths))
    if own is not None and same:
        mask = np.pad(mask, [(0, 0), (0, shape[1] - mask.shape[1])])
    fits = mask.shape == shape or (shape[1] == 1 and mask.shape == shape[:1])
    # Of numbers alone: the search takes longer than all else that is done with one sample's mask.
    is_bool = mask.dtype == bool or (mask.dtype.kind in "iuf" and np.isin(mask, (0, 1)).all())
    if same and fits and is_bool and lengths is not None:
        behind = np.arange(shape[1]) >= lengths[:, None]
        same = not (behind & mask.reshape(shape).astype(bool)).any()
    if not (same and fits and is_bool):
        expected = f"bool {shape}{', each as long as its sample' * (lengths is not None)}"
        if own is not None and lengths is None:
            expected = f"one array, bool {shape}, as the features are, and no list"
        raise UserError(f"{where} is {mask.dtype} {mask.shape}: expected {expected}.")
    return mask.reshape(shape).astype(bool)


def _stack(value: Any, where: str, empty: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    """Stacks what may be a list of N arrays; if their lengths differ, returns the lengths too.

    `empty` is the shape of no sample at all; None in the list is a sequence without a step.
    """
    try:
        if hasattr(value, "__array__"):
            value = np.asarray(value)
            if value.dtype != object or not value.ndim:  # else a column of a table, of arrays
                return value, None
        rows = [np.zeros(0) if is_missing(row) else np.asarray(row) for row in value]
        if not rows:
            return np.zeros(empty, np.float32 if len(empty) == 3 else np.int64), None
        if len({row.shape for row in rows}) == 1:
            return np.stack(rows), None
        return pad(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{where} is no array, and no list of arrays: {error}.") from error
