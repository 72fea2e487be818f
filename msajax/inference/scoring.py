"""Scores a split in batches by length quarter, spread over the devices as in training."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import PartitionSpec

from msajax import announce
from msajax.config.registry import is_own
from msajax.corpus.corpus import Split
from msajax.corpus.on_demand import streams
from msajax.errors import UserError
from msajax.layers.platform import is_for_cpu
from msajax.models.contract import Prediction, joined
from msajax.preparation.batches import QUARTERS, cut_lengths, quarters_of
from msajax.runtime.devices import Layout
from msajax.spec import CorpusSpec
from msajax.tasks import Task

# Rows of the largest evaluation batch, and about how many steps of all its modalities a CPU
# computes at a time: what they leave stays in its caches.
_MOST_ROWS, _LEAST_ROWS, _STEPS_CPU = 128, 8, 8192
# Samples of one call in memory, up to which their number alone says which program scores them: with
# length quarters each new call could be the first with samples of some quarter, and compile for
# seconds what it then does in milliseconds. Of more samples the time that short ones save counts.
ONE_PROGRAM_ROWS = 2048

Place = Callable[[Any], Any]


def evaluation_rows(spec: CorpusSpec) -> tuple[int, int, int]:
    """Returns the rows that batches of evaluation have: 1, few, and the most.

    With the length quarters they make 12 programs at most, whatever the size of a file. Rows lie
    over all devices, each of which has its share to compute.
    """
    most = _MOST_ROWS
    if is_for_cpu():
        steps = sum(spec.lengths) / jax.device_count()
        while most > _LEAST_ROWS and most * steps > _STEPS_CPU:
            most //= 2
    return 1, most // 8, most


class Predict(NamedTuple):
    """Predicts with the variables of every seed, and the values that all seeds share.

    Attributes:
        program: (variables, shared values, features, masks) -> prediction, compiled when called.
        shared: frozen parameters that are the same for every seed, nested, on the devices.
    """

    program: Any
    shared: Any

    def __call__(
        self, variables: Any, features: Mapping[str, Any], masks: Mapping[str, Any]
    ) -> Prediction:
        """Predicts for a batch; the prediction's arrays have a leading axis S."""
        return self.program(variables, self.shared, features, masks)

    def lower(self, variables: Any, features: Any, masks: Any) -> jax.stages.Lowered:
        """Traces the program for arrays of these shapes."""
        return self.program.lower(variables, self.shared, features, masks)


@functools.lru_cache(maxsize=8)
def predict_program(
    module: nn.Module,
    task: type[Task] | Task,
    layout: Layout,
    tree: jax.tree_util.PyTreeDef | None = None,
) -> Callable[..., Prediction]:
    """Makes the prediction program, which applies every seed's variables to the same batch.

    Its predictions hold the task's scores, and nothing in `aux`. The program of an equal module is
    found again with what was compiled of it.

    Args:
        tree: the structure of the variables, if the program is called with a tuple of their leaves.
            A call that has to flatten them itself takes some 30 microseconds longer.
    """

    @functools.partial(jax.jit, out_shardings=layout.sharding())  # every process reads them
    def predict(variables, shared, features, masks):
        def predict_rows(variables, shared, features, masks):
            def predict_one(variables):
                if shared:
                    variables = variables | {"params": joined(variables["params"], shared)}
                found = module.apply(variables, features, masks, train=False)
                # Made in the program, so that whoever runs it gets probabilities of classes.
                return found.replace(score=task.scores(found.score), aux={})

            return layout.over_seeds(predict_one)(variables)

        if tree is not None:
            variables = tree.unflatten(variables)
        rows = len(jax.tree.leaves(masks)[0])
        if layout.data_devices > 1 and rows % layout.data_devices == 0:
            # Mapped by hand: XLA would bring all rows to every device where a layer computes a few
            # of them at a time.
            same, own = PartitionSpec(), PartitionSpec("data")
            predict_rows = jax.shard_map(
                predict_rows,
                mesh=layout.mesh,
                in_specs=(same, same, own, own),
                out_specs=PartitionSpec(None, "data"),
                axis_names={"data"},
                check_vma=False,
            )
        return predict_rows(variables, shared, features, masks)

    return predict


def make_predict(
    module: nn.Module,
    task: type[Task] | Task,
    layout: Layout,
    shared: Any = None,
    tree: jax.tree_util.PyTreeDef | None = None,
) -> Predict:
    """Makes what predicts: `predict_program`, and on the devices the values that all seeds share.

    Args:
        shared: parameters that are the same for every seed, nested and without a leading axis; the
            variables lack them.
    """
    make = predict_program if is_own(module.config.name) else predict_program.__wrapped__
    return Predict(make(module, task, layout, tree), layout.put(shared or {}))


def make_next_token(module: nn.Module, scorer: "Scorer", tree: jax.tree_util.PyTreeDef) -> Any:
    """Makes the program that says what follows a sequence of tokens.

    Args:
        module: a model of the next_token task, which keeps its `logits` `[B, T, V]` in the
            `intermediates` collection.
        scorer: has its variables on the devices.

    Returns:
        (ids `[1, T]`, mask `[1, T]`) -> the probabilities `[V]` float32 of the token behind the
        valid steps, which stand in front; a mean over random seeds. Compiled once for each T.
    """
    (m,) = scorer.spec.modalities

    @jax.jit
    def probabilities(leaves, shared, ids, mask):
        def of_one(variables):
            if shared:
                variables = variables | {"params": joined(variables["params"], shared)}
            _, kept = module.apply(
                variables, {m: ids}, {m: mask}, train=False, mutable="intermediates"
            )
            (logits,) = kept["intermediates"]["logits"]
            return jax.nn.softmax(logits[0, mask.sum() - 1])

        return jax.lax.map(of_one, tree.unflatten(leaves)).mean(axis=0)

    return functools.partial(probabilities, scorer.variables, scorer.predict.shared)


class EvaluationBatch(NamedTuple):
    """Holds rows of a split, filled up to one of the fixed sizes.

    Attributes:
        rows: `[n]`, which rows of the split the first n rows are.
        features: `{modality: [B, T_m, d_m]}`, cut to a length quarter.
        masks: `{modality: [B, T_m]}`.
    """

    rows: np.ndarray
    features: Mapping[str, Any]
    masks: Mapping[str, Any]


class _BatchPlan(NamedTuple):
    """Says which rows of a split a batch has, how many rows it is filled up to, and its quarter."""

    rows: np.ndarray
    size: int
    quarter: int


def cut_batches(
    split: Split,
    spec: CorpusSpec,
    place: Place,
    like: Split | None = None,
    *,
    one_program: bool = False,
) -> Iterator[EvaluationBatch]:
    """Cuts a prepared split by length quarter into batches of few fixed shapes, one after another.

    Args:
        place: brings features and masks of a batch to the devices.
        like: the same samples before some of their steps were hidden: its batches are cut, so that
            no shape, and no program, depends on what is hidden.
        one_program: whether the number of samples alone decides the shape of all batches; a single
            sample is cut to its length quarter all the same, and many samples are as well.
    """
    for part in _plan_batches(split if like is None else like, spec, one_program):
        yield _load_batch(split, spec, place, part)


def _plan_batches(
    split: Split, spec: CorpusSpec, one_program: bool = False
) -> Iterator[_BatchPlan]:
    one, few, most = evaluation_rows(spec)
    # Rows that fill a batch up cost a CPU as much as others.
    many = most // 2 if is_for_cpu() else few

    def size_of(left: int) -> int:
        return most if left > many else few

    samples = len(split)
    if one_program and 1 < samples <= ONE_PROGRAM_ROWS:
        size, rows = size_of(samples), np.arange(samples)
        for start in range(0, samples, size):
            yield _BatchPlan(rows[start : start + size], size, QUARTERS)
        return
    quarters = quarters_of(split, spec)
    for quarter in sorted(set(quarters.tolist())):
        (left,) = (quarters == quarter).nonzero()
        is_alone = left.size == 1
        while left.size:
            size = one if is_alone else size_of(left.size)
            rows, left = left[:size], left[size:]
            yield _BatchPlan(rows, size, quarter)


def _load_batch(split: Split, spec: CorpusSpec, place: Place, part: _BatchPlan) -> EvaluationBatch:
    rows, lengths = part.rows, cut_lengths(spec, part.quarter)
    # Indices copy what they choose; all rows of a split need no copy.
    chosen = slice(None) if len(rows) == len(split) else rows

    def filled(x: np.ndarray) -> np.ndarray:
        """Adds zero rows, for a mask absent modalities, up to the size of the batch."""
        if len(x) == part.size:
            return x
        whole = np.zeros((part.size, *x.shape[1:]), x.dtype)
        whole[: len(x)] = x
        return whole

    arrays = [
        {m: filled(source[m][chosen, : lengths[m]]) for m in spec.modalities}
        for source in (split.features, split.masks)
    ]
    return EvaluationBatch(rows, *place(arrays))


class EvaluationBatches:
    """Keeps the batches of a prepared split on the devices, to be scored again and again.

    If the split streams, each is put there in its turn instead.
    """

    def __init__(self, split: Split, spec: CorpusSpec, layout: Layout) -> None:
        """Cuts the split and, unless it streams, puts every batch on the devices."""
        self._parts = list(_plan_batches(split, spec))
        self._load = functools.partial(_load_batch, split, spec, layout.put_rows)
        self._resident = None if streams(split) else [self._load(part) for part in self._parts]

    def __iter__(self) -> Iterator[EvaluationBatch]:
        """Yields every batch once."""
        return map(self._batch, range(len(self._parts)))

    def of_each_shape(self) -> Iterator[EvaluationBatch]:
        """Yields the first batch of every shape: one for each program that the split needs."""
        first: dict[tuple[int, int], int] = {}
        for k, part in enumerate(self._parts):
            first.setdefault((part.size, part.quarter), k)
        return map(self._batch, first.values())

    def _batch(self, k: int) -> EvaluationBatch:
        return self._load(self._parts[k]) if self._resident is None else self._resident[k]


def predict_batches(
    predict: Predict, variables: Any, batches: Iterable[EvaluationBatch]
) -> tuple[np.ndarray, np.ndarray]:
    """Scores the batches of a split.

    Args:
        variables: leading axis S.

    Returns:
        Scores `[S, N, K]`, probabilities where they are of classes, and modality weights
        `[S, N, M]`, float64, in the order of the split.
    """
    # One at a time: several virtual CPU devices may abort when programs run ahead of each other.
    rows, parts = [], []
    for batch in batches:
        found = predict(variables, batch.features, batch.masks)
        rows.append(batch.rows)
        # As jax.device_get copies them, in half the time.
        with jax.transfer_guard_device_to_host("allow"):
            parts.append([np.asarray(x) for x in (found.score, found.modality_weights)])
    samples, whole = sum(map(len, rows)), []
    for of_batches in zip(*parts, strict=True):
        seeds, _, columns = of_batches[0].shape
        whole.append(np.empty((seeds, samples, columns)))
        for there, part in zip(rows, of_batches, strict=True):
            whole[-1][:, there] = part[:, : len(there)]
    scores, weights = whole
    return scores, weights


class Scorer(NamedTuple):
    """Scores prepared splits with a model on the devices; each shape is compiled once.

    Attributes:
        variables: leading axis S, as `predict` takes them.
        kept: the seeds among S that count; None for all.
    """

    predict: Predict
    variables: Any
    spec: CorpusSpec
    place: Place
    kept: Sequence[int] | None = None

    def score(
        self, split: Split, name: str, like: Split | None = None, *, one_program: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores a prepared split.

        Returns:
            As `predict_batches`, of the seeds that count.

        Raises:
            UserError: naming a sample, if a score is not finite.
        """
        announce.now("Compiling and scoring")
        batches = cut_batches(split, self.spec, self.place, like, one_program=one_program)
        with jax.transfer_guard_host_to_device("allow"):  # `place` may leave it to the call
            scores, weights = predict_batches(self.predict, self.variables, batches)
        if self.kept is not None:
            scores, weights = scores[self.kept], weights[self.kept]
        finite = np.isfinite(scores)
        if np.count_nonzero(finite) < finite.size:
            bad = np.flatnonzero(~finite.all(axis=(0, 2)))
            raise UserError(
                f"The scores of {bad.size} sample(s) of split {name!r} are not finite, the first "
                f"that of {str(split.ids[bad[0]])!r}: its features are too large for the model's "
                "dtype."
            )
        return scores, weights
