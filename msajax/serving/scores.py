"""Scores of samples in memory: what `Bundle.predict` takes, computes and gives."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from msajax.config import Config, MeshConfig
from msajax.data.corpus import Split
from msajax.data.prepare import Preparation
from msajax.errors import UserError
from msajax.models import build_model
from msajax.spec import CorpusSpec
from msajax.training.parallel import configure_jax, make_layout, require_devices
from msajax.training.scoring import make_predict, predict_split


@dataclasses.dataclass(frozen=True, repr=False)
class Scores:
    """What a bundle says of N samples, with K outputs, S random seeds and M modalities.

    Attributes:
        score: `[N, K]`, the mean over seeds; of classes, probabilities.
        score_sd: `[N, K]`, the seeds' standard deviation (ddof 1); NaN with a single seed.
        seeds: `[S, N, K]`, the score of each seed.
        weights: `[N, M]`, the weight of each modality, a mean over seeds, in the order of the
            specification's modalities; they sum to 1, or are all 0 where no modality is there.
    """

    score: np.ndarray
    score_sd: np.ndarray
    seeds: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_seeds(cls, scores: np.ndarray, weights: np.ndarray) -> "Scores":
        """Sums up scores `[S, N, K]` and modality weights `[S, N, M]`."""
        several = len(scores) > 1
        sd = scores.std(axis=0, ddof=1) if several else np.full(scores.shape[1:], np.nan)
        return cls(scores.mean(axis=0), sd, scores, weights.mean(axis=0))

    def __repr__(self) -> str:
        shown = np.array2string(self.score, precision=3, threshold=6, edgeitems=2, separator=", ")
        seeds, samples = self.seeds.shape[:2]
        return f"Scores({samples} sample(s), {seeds} seed(s), score={' '.join(shown.split())})"


class Scorer:
    """A model on the devices that scores prepared splits; each shape is compiled once."""

    def __init__(self, config: Config, preparation: Preparation, params: Any, seeds: int) -> None:
        """Puts the parameters, leading axis S, where they are used.

        Raises:
            UserError: if there are no devices of the kind that is asked for.
        """
        configure_jax(config.train)
        require_devices()
        self._spec = preparation.spec
        self._layout = make_layout(MeshConfig(), "auto", seeds)
        self._predict = make_predict(build_model(config.model, self._spec), self._layout)
        self._params = self._layout.put_state(params)

    def score(self, split: Split, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Scores `[S, N, K]` and modality weights `[S, N, M]` of a prepared split.

        Raises:
            UserError: if a score is not finite; the message calls the split by its name.
        """
        return predict_split(self._predict, self._params, split, name, self._spec, self._layout)


def as_split(
    features: Mapping[str, Any],
    masks: Mapping[str, Any] | None,
    raw_text: Sequence[str] | None,
    spec: CorpusSpec,
) -> Split:
    """Makes a split of samples in memory, as a file of them would be read.

    Args:
        features: `{modality: [N, T, d]}`, `[N, d]` for a single step, `[N, T]` token ids, or a
            list of N arrays of different lengths T. A modality may be missing.
        masks: `{modality: [N, T]}`, or a list of N masks; without one, steps before the first and
            after the last non-zero one are padding.
        raw_text: N transcripts.
        spec: of the model.

    Raises:
        UserError: for a modality that the model does not read, and for shapes and types that do
            not fit.
    """
    masks = dict(masks or {})
    for what, names in (("features", features), ("masks", masks)):
        for m in names:
            if m not in spec.modalities or m not in features:
                known = [n for n in spec.modalities if what == "features" or n in features]
                raise UserError(
                    f"{what} names {m!r}: expected some of {', '.join(known) or 'none'}."
                )
    arrays, valid = {}, {}
    for m, value in features.items():
        arrays[m], padding = _stack(value, f"features[{m!r}]")
        x = arrays[m]
        if spec.width(m) and x.ndim == 2:
            x = arrays[m] = x[:, None]
        kinds, dims = ("biuf", 3) if spec.width(m) else ("iu", 2)
        if x.dtype.kind not in kinds or x.ndim != dims or 0 in x.shape[1:]:
            expected = "numbers (N, T, d) or (N, d)" if dims == 3 else "token ids (N, T)"
            raise UserError(f"features[{m!r}] is {x.dtype} {x.shape}: expected {expected}.")
        if m in masks:
            valid[m], _ = _stack(masks[m], f"masks[{m!r}]")
            if valid[m].size != x.shape[0] * x.shape[1] or not np.isin(valid[m], (0, 1)).all():
                raise UserError(
                    f"masks[{m!r}] is {valid[m].dtype} of shape {valid[m].shape}: expected bool "
                    f"{x.shape[:2]}."
                )
            valid[m] = valid[m].reshape(x.shape[:2]).astype(bool)
        elif padding is not None:
            valid[m] = padding
    sizes = {f"features[{m!r}]": len(x) for m, x in arrays.items()}
    if raw_text is not None:
        if isinstance(raw_text, str) or not all(isinstance(text, str) for text in raw_text):
            raise UserError("raw_text must be a list of transcripts, one for each sample.")
        raw_text = np.array(list(raw_text), np.str_)
        sizes["raw_text"] = len(raw_text)
    if len(set(sizes.values())) != 1:
        found = ", ".join(f"{size} in {what}" for what, size in sizes.items()) or "none"
        raise UserError(f"The number of samples must be the same in all that is given: {found}.")
    ids = np.array([str(i) for i in range(next(iter(sizes.values())))], np.str_)
    derived = frozenset(valid) - frozenset(masks)
    return Split(ids, arrays, valid, None, raw_text, derived=derived)


def _stack(value: Any, where: str) -> tuple[np.ndarray, np.ndarray | None]:
    """One array of what may be N arrays of different lengths; of those, also which steps are."""
    if hasattr(value, "__array__"):
        return np.asarray(value), None
    try:
        rows = [np.asarray(row) for row in value]
        if len({row.shape for row in rows}) == 1:
            return np.stack(rows), None
        lengths = np.array([len(row) for row in rows])
        padded = np.zeros((len(rows), lengths.max(), *rows[0].shape[1:]), np.result_type(*rows))
        for out, row in zip(padded, rows, strict=True):
            if row.shape[1:] != rows[0].shape[1:]:
                raise ValueError(f"one sample has shape {row.shape}, another {rows[0].shape}")
            out[: len(row)] = row
        return padded, np.arange(lengths.max()) < lengths[:, None]
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is no array, and no list of arrays: {error}.") from error
