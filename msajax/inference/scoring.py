"""Scores of a split: batched, by length bucket, spread over devices like training."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from msajax.data.batches import cut_lengths, quarters_of
from msajax.data.corpus import Split
from msajax.data.on_demand import streams
from msajax.errors import UserError
from msajax.models.parts.heads import Prediction
from msajax.runtime.devices import Layout
from msajax.spec import CorpusSpec

# Rows of an evaluation batch: as many as fit of the largest, then the smallest that holds the rest.
# Fixed sizes, so that no file brings a size of its own to compile for.
EVALUATION_ROWS = (1, 16, 128)

PredictFn = Callable[[Any, Mapping[str, jax.Array], Mapping[str, jax.Array]], Prediction]


def make_predict(model: nn.Module, layout: Layout) -> PredictFn:
    """The prediction program: every seed's parameters on the same batch."""

    @functools.partial(jax.jit, out_shardings=layout.sharding())  # every process reads them
    def predict(params, features, masks):
        def predict_one(params):
            return model.apply({"params": params}, features, masks, train=False)

        return layout.over_seeds(predict_one)(params)

    return predict


class EvaluationBatch(NamedTuple):
    """Rows of a split on the devices, filled up to one of the fixed sizes.

    Attributes:
        rows: `[n]`, which rows of the split the first n rows are.
        features: `{modality: [B, T_m, d_m]}`, cut to a length bucket.
        masks: `{modality: [B, T_m]}`.
    """

    rows: np.ndarray
    features: Mapping[str, jax.Array]
    masks: Mapping[str, jax.Array]


class EvaluationBatches:
    """A prepared split by length bucket, in batches of few fixed shapes.

    They stay on the devices; of a split that is read on demand each is put there in its turn.
    """

    def __init__(self, split: Split, spec: CorpusSpec, layout: Layout) -> None:
        """Chooses the rows of every batch."""
        self._split, self._spec, self._layout = split, spec, layout
        self._plan = []  # of (rows, size to fill up to, bucket)
        quarters = quarters_of(split, spec)
        for quarter in np.unique(quarters):
            rows = np.flatnonzero(quarters == quarter)
            while rows.size:
                size = next((n for n in EVALUATION_ROWS if n >= rows.size), EVALUATION_ROWS[-1])
                self._plan.append((rows[:size], size, int(quarter)))
                rows = rows[size:]
        self._resident = None if streams(split) else [self._put(*entry) for entry in self._plan]

    def __iter__(self) -> Iterator[EvaluationBatch]:
        """Every batch once."""
        if self._resident is not None:
            return iter(self._resident)
        return (self._put(*entry) for entry in self._plan)

    def _put(self, rows: np.ndarray, size: int, quarter: int) -> EvaluationBatch:
        lengths = cut_lengths(self._spec, quarter)
        arrays = [
            {m: _fill(source[m][rows, : lengths[m]], size) for m in self._spec.modalities}
            for source in (self._split.features, self._split.masks)
        ]
        return EvaluationBatch(rows, *self._layout.put_rows(arrays))


def predict_batches(
    predict: PredictFn, params: Any, batches: Iterable[EvaluationBatch], spec: CorpusSpec
) -> tuple[np.ndarray, np.ndarray]:
    """Scores the batches of a split.

    Args:
        predict: from `make_predict`.
        params: leading axis S.
        batches: of the split.
        spec: of the model.

    Returns:
        Scores `[S, N, K]` (of classes: probabilities) and modality weights `[S, N, M]`, float64, in
        the order of the split.
    """
    # One at a time: several virtual CPU devices may abort when programs run ahead of each other.
    rows, parts = [], []
    for batch in batches:
        found = jax.device_get(predict(params, batch.features, batch.masks))
        parts.append([x[:, : len(batch.rows)] for x in (found.score, found.modality_weights)])
        rows.append(batch.rows)
    order = np.argsort(np.concatenate(rows))
    scores, weights = (np.concatenate(x, axis=1) for x in zip(*parts, strict=True))
    scores, weights = scores[:, order].astype(np.float64), weights[:, order].astype(np.float64)
    if spec.label_kind == "classification":
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
    return scores, weights


def predict_split(
    predict: PredictFn,
    params: Any,
    split: Split,
    name: str,
    spec: CorpusSpec,
    layout: Layout,
    kept: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores a prepared split: batched, by length bucket, spread like training.

    Args:
        predict: from `make_predict`.
        params: leading axis S.
        split: prepared.
        name: of the split, for a message.
        spec: of the model.
        layout: where arrays are.
        kept: which members of the leading axis count; all without it.

    Returns:
        As `predict_batches`, of those members.

    Raises:
        UserError: naming a sample, if a score is not finite.
    """
    batches = EvaluationBatches(split, spec, layout)
    scores, weights = predict_batches(predict, params, batches, spec)
    if kept is not None:
        scores, weights = scores[kept], weights[kept]
    bad = np.flatnonzero(~np.isfinite(scores).all(axis=(0, 2)))
    if bad.size:
        raise UserError(
            f"The scores of {bad.size} sample(s) of split {name!r} are not finite, the first that "
            f"of {str(split.ids[bad[0]])!r}: its features are too large for the model's dtype."
        )
    return scores, weights


def _fill(x: np.ndarray, rows: int) -> np.ndarray:
    """Adds zero rows (for a mask: absent modalities) up to `rows`."""
    if len(x) == rows:
        return x
    return np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1))
