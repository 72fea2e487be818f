"""Scores a split in batches by length quarter, spread over the devices as in training."""

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
from msajax.models.contract import Prediction
from msajax.runtime.devices import Layout
from msajax.spec import CorpusSpec
from msajax.tasks import Task

# Rows of an evaluation batch: as many as fit of the largest, then the smallest that holds the rest.
# With the length quarters they make 12 programs at most, whatever the size of a file.
EVALUATION_ROWS = (1, 16, 128)

PredictFn = Callable[[Any, Mapping[str, jax.Array], Mapping[str, jax.Array]], Prediction]


def make_predict(module: nn.Module, task: type[Task] | Task, layout: Layout) -> PredictFn:
    """Makes the prediction program, which applies every seed's variables to the same batch.

    Its predictions hold the task's scores, and nothing in `aux`.
    """

    @functools.partial(jax.jit, out_shardings=layout.sharding())  # every process reads them
    def predict(variables, features, masks):
        def predict_one(variables):
            found = module.apply(variables, features, masks, train=False)
            return found.replace(score=task.scores(found.score), aux={})

        return layout.over_seeds(predict_one)(variables)

    return predict


class EvaluationBatch(NamedTuple):
    """Holds rows of a split on the devices, filled up to one of the fixed sizes.

    Attributes:
        rows: `[n]`, which rows of the split the first n rows are.
        features: `{modality: [B, T_m, d_m]}`, cut to a length quarter.
        masks: `{modality: [B, T_m]}`.
    """

    rows: np.ndarray
    features: Mapping[str, jax.Array]
    masks: Mapping[str, jax.Array]


class EvaluationBatches:
    """Cuts a prepared split by length quarter into batches of few fixed shapes.

    All stay on the devices, unless the split streams: then each is put there in its turn.
    """

    def __init__(self, split: Split, spec: CorpusSpec, layout: Layout) -> None:
        """Chooses the rows of every batch."""
        self._split, self._spec, self._layout = split, spec, layout
        self._plan = []  # of (rows, size to fill up to, length quarter)
        quarters = quarters_of(split, spec)
        for quarter in np.unique(quarters):
            rows = np.flatnonzero(quarters == quarter)
            while rows.size:
                size = next((n for n in EVALUATION_ROWS if n >= rows.size), EVALUATION_ROWS[-1])
                self._plan.append((rows[:size], size, int(quarter)))
                rows = rows[size:]
        self._resident = None if streams(split) else [self._put(*entry) for entry in self._plan]

    def __iter__(self) -> Iterator[EvaluationBatch]:
        """Yields every batch once."""
        if self._resident is not None:
            return iter(self._resident)
        return (self._put(*entry) for entry in self._plan)

    def of_each_shape(self) -> Iterator[EvaluationBatch]:
        """Yields the first batch of every shape: one for each program that the split needs."""
        seen = set()
        for k, (_, *shape) in enumerate(self._plan):
            if tuple(shape) not in seen:
                seen.add(tuple(shape))
                resident = self._resident
                yield self._put(*self._plan[k]) if resident is None else resident[k]

    def _put(self, rows: np.ndarray, size: int, quarter: int) -> EvaluationBatch:
        lengths = cut_lengths(self._spec, quarter)
        arrays = [
            {m: _fill(source[m][rows, : lengths[m]], size) for m in self._spec.modalities}
            for source in (self._split.features, self._split.masks)
        ]
        return EvaluationBatch(rows, *self._layout.put_rows(arrays))


def predict_batches(
    predict: PredictFn, variables: Any, batches: Iterable[EvaluationBatch]
) -> tuple[np.ndarray, np.ndarray]:
    """Scores the batches of a split.

    Args:
        predict: from `make_predict`.
        variables: leading axis S.
        batches: of the split.

    Returns:
        Scores `[S, N, K]` (of classes: probabilities) and modality weights `[S, N, M]`, float64, in
        the order of the split.
    """
    # One at a time: several virtual CPU devices may abort when programs run ahead of each other.
    rows, parts = [], []
    for batch in batches:
        found = jax.device_get(predict(variables, batch.features, batch.masks))
        parts.append([x[:, : len(batch.rows)] for x in (found.score, found.modality_weights)])
        rows.append(batch.rows)
    order = np.argsort(np.concatenate(rows))
    scores, weights = (np.concatenate(x, axis=1) for x in zip(*parts, strict=True))
    return scores[:, order].astype(np.float64), weights[:, order].astype(np.float64)


class Scorer(NamedTuple):
    """Scores prepared splits with a model on the devices; each shape is compiled once.

    Attributes:
        predict: from `make_predict`.
        variables: leading axis S.
        spec: of the model.
        layout: where arrays are.
        kept: which of the S seeds count; None for all.
    """

    predict: PredictFn
    variables: Any
    spec: CorpusSpec
    layout: Layout
    kept: Sequence[int] | None = None

    def score(self, split: Split, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Scores a prepared split.

        Args:
            split: prepared.
            name: of the split, for a message.

        Returns:
            As `predict_batches`, of the seeds that count.

        Raises:
            UserError: naming a sample, if a score is not finite.
        """
        batches = EvaluationBatches(split, self.spec, self.layout)
        scores, weights = predict_batches(self.predict, self.variables, batches)
        if self.kept is not None:
            scores, weights = scores[self.kept], weights[self.kept]
        bad = np.flatnonzero(~np.isfinite(scores).all(axis=(0, 2)))
        if bad.size:
            raise UserError(
                f"The scores of {bad.size} sample(s) of split {name!r} are not finite, the first "
                f"that of {str(split.ids[bad[0]])!r}: its features are too large for the model's "
                "dtype."
            )
        return scores, weights


def _fill(x: np.ndarray, rows: int) -> np.ndarray:
    """Adds zero rows (for a mask: absent modalities) up to `rows`."""
    if len(x) == rows:
        return x
    return np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1))
