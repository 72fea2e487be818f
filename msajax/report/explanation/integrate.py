"""Computes what explains samples with a trained model: a mean over its random seeds.

Contributions are integrated gradients; maps of attention are kept in so few cells that a page has
room for them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from msajax.corpus.corpus import Split
from msajax.errors import UserError
from msajax.inference.bundle import Bundle
from msajax.models.build import build_model
from msajax.models.contract import joined
from msajax.models.contributions import POOLED, PRETRAINED, Explainer, Map
from msajax.preparation.batches import cut_lengths, quarters_of
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

# Samples in a batch, at most: the gradient of a fine-tuned text encoder needs much memory for each.
ROWS = 16
_POINTS = 16  # of a path in one call, so that one compiled program serves every number of points
POINTS = (32, 64, 128, 256)  # of a path: the next number if the one before is not exact enough
EXACT = 0.01  # of the score's difference from the baseline: the median completeness error

Tell = Callable[[float], None]


class Detail(NamedTuple):
    """Says how much of the maps is kept: cells a side, at most, and whether single heads are."""

    cells: int
    heads: bool

    def sizes(self, steps: Iterable[int]) -> tuple[int, ...]:
        """Returns how many steps a cell holds, for each of some numbers of steps."""
        return tuple(-(-count // self.cells) for count in steps)


class CellMap(NamedTuple):
    """Holds a map of N samples in few cells.

    Where there are more steps than cells, a cell is the mean of as many asking steps as are needed,
    and the sum over as many answering ones, so that rows still sum to 1.

    Attributes:
        steps_of_cells: the numbers of asking and of answering steps that a cell holds.
        mean: `[N, Q, A]`, over heads and random seeds.
        heads: `[N, H, Q, A]`, single ones of the first random seed; None if they are left out.
    """

    steps_of_cells: tuple[int, ...]
    mean: np.ndarray
    heads: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Explained:
    """Holds what explains N samples, means over random seeds.

    Attributes:
        score: `[N]`, the explained output.
        baseline: `[N]`, the same output at the baseline.
        contributions: `{modality: [N, T_m]}`, 0 at padding.
        attention: maps in as few cells as `detail` says.
        points: the number of points of a path at which gradients were taken.
    """

    score: np.ndarray
    baseline: np.ndarray
    contributions: dict[str, np.ndarray]
    attention: dict[Map, CellMap]
    detail: Detail
    points: int

    @property
    def completeness_error(self) -> np.ndarray:
        """Tells how far each sample's contributions miss its score's difference, `[N]`."""
        total = sum(x.sum(axis=1) for x in self.contributions.values())
        return np.abs(total - (self.score - self.baseline))

    @property
    def relative_error(self) -> float:
        """Computes the median of that error over samples, as a share of the score's difference."""
        difference = np.abs(self.score - self.baseline)
        known = difference > 0
        shares = self.completeness_error[known] / difference[known]
        return float(np.median(shares)) if shares.size else 0.0


def integrate(bundle: Bundle, split: Split, outputs: np.ndarray, tell: Tell) -> Explained:
    """Explains every sample of a prepared split.

    Args:
        outputs: `[N]`, which output of each sample is explained.
        tell: is called with the share that is done, from 0 to 1.

    Raises:
        UserError: for a model that cannot be explained.
    """
    programs = _Programs(bundle, split, outputs.astype(np.int32))
    for points in POINTS:
        found = programs.run(points, tell)
        if found.relative_error < EXACT:
            break
    return found


class _Programs:
    def __init__(self, bundle: Bundle, split: Split, outputs: np.ndarray) -> None:
        self._bundle, self._split, self._outputs = bundle, split, outputs
        spec, model = bundle.preparation.spec, bundle.config.model
        self._lengths = cut_lengths(spec, int(quarters_of(split, spec).max()))
        self._rows = -(-len(split) // -(-len(split) // ROWS))  # batches of equal size
        explainer = Explainer(build_model(model, spec), spec, TASKS[spec.label_kind].scores)
        self._shared = jax.device_put(dict(bundle.shared))

        def whole(variables: Any, shared: Any) -> Any:
            return variables | {"params": joined(variables["params"], shared)}

        def maps(variables, shared, given):
            return explainer.look(whole(variables, shared), *given).attention

        @jax.jit
        def look(variables, shared, given, asking, of):
            variables = whole(variables, shared)
            found = explainer.look(variables, *given)
            blank = jax.tree.map(jnp.zeros_like, found.read)
            score = jnp.take_along_axis(found.scores, of[:, None], axis=1)[:, 0]
            cells = {
                key: in_cells(x, asking[key], self._sizes[key])
                for key, x in found.attention.items()
            }
            found = found.replace(attention={})
            return found, score, explainer.score(variables, given, found, blank, of), cells

        @jax.jit
        def walk(variables, shared, given, found, of, points):
            return explainer.contributions(whole(variables, shared), given, found, of, points)

        self._look, self._walk = look, walk

        # How much of the maps is kept is chosen by their shapes, before anything is computed.
        given = self._batch(slice(0, self._rows))
        try:
            found = jax.eval_shape(maps, self._variables(0), self._shared, given)
        except LookupError as error:
            raise UserError(
                f"The model {model.name!r} embeds the token ids of {error.args[0]!r} in a way of "
                "its own: --mode=explain explains the models of msajax, and models of your own "
                "that read features alone."
            ) from error
        shapes = {key: x.shape for key, x in found.items()}
        self._there = asking_and_answering(
            spec, split.features, split.masks, model.text_special, shapes
        )
        self._detail = choose_detail(shapes, self._there)
        self._steps = {key: shape[2] for key, shape in shapes.items()}
        self._sizes = {key: self._detail.sizes(shape[2:]) for key, shape in shapes.items()}

    def run(self, points: int, tell: Tell) -> Explained:
        samples, seeds = len(self._split), len(self._bundle.seeds)
        starts = range(0, samples, self._rows)
        parts, total, done = _parts_of_path(points), {}, 0
        for seed in range(seeds):
            variables = self._variables(seed)
            for first in starts:
                rows = slice(first, min(first + self._rows, samples))
                given, of = self._batch(rows), self._filled(self._outputs[rows])
                asking = {
                    key: self._filled(asking[rows, : self._steps[key]])
                    for key, (asking, _) in self._there.items()
                }
                found, score, baseline, cells = self._look(
                    variables, self._shared, given, asking, of
                )
                steps: dict[str, Any] = {}
                for part in parts:
                    more = self._walk(variables, self._shared, given, found, of, part)
                    steps = {m: steps.get(m, 0) + np.float64(x) for m, x in more.items()}
                    done += 1
                    tell(done / (seeds * len(starts) * len(parts)))
                # The means over seeds grow by this seed's share.
                of_batch = {
                    **{("score",): np.float64(score), ("baseline",): np.float64(baseline)},
                    **{("step", m): x for m, x in steps.items()},
                    **{("map", k): np.float64(x).mean(axis=1) for k, x in cells.items()},
                }
                of_batch = {key: x / seeds for key, x in of_batch.items()}
                # A head has no counterpart in another random seed: those of the first are kept.
                if self._detail.heads and not seed:
                    of_batch |= {("heads", k): np.float32(x) for k, x in cells.items()}
                for key, x in of_batch.items():
                    whole = total.setdefault(key, np.zeros((samples, *x.shape[1:]), x.dtype))
                    whole[rows] += x[: rows.stop - first]
        return Explained(
            score=total["score",],
            baseline=total["baseline",],
            contributions={key[1]: x for key, x in total.items() if key[0] == "step"},
            attention={
                key: CellMap(sizes, total["map", key], total.get(("heads", key)))
                for key, sizes in self._sizes.items()
            },
            detail=self._detail,
            points=points,
        )

    def _variables(self, seed: int) -> Any:
        return jax.device_put(jax.tree.map(lambda x: x[seed], self._bundle.variables))

    def _batch(self, rows: slice) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        features, masks = (
            {m: self._filled(arrays[m][rows, :length]) for m, length in self._lengths.items()}
            for arrays in (self._split.features, self._split.masks)
        )
        return features, masks

    def _filled(self, x: np.ndarray) -> np.ndarray:
        """Fills the last batch up with rows of padding, so that one program serves all."""
        return np.pad(x, [(0, self._rows - len(x)), *[(0, 0)] * (x.ndim - 1)])


def _parts_of_path(points: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Makes the points of a path from 0 to 1, and their weights, in parts for single calls.

    They are those of Gauss and Legendre: many are near the baseline, where a score changes most,
    since norms forget how large their input is.
    """
    nodes, weights = np.polynomial.legendre.leggauss(points)
    shares, weights = np.float32((nodes + 1) / 2), np.float32(weights / 2)
    cuts = [slice(k, k + _POINTS) for k in range(0, points, _POINTS)]
    return [(shares[cut], weights[cut]) for cut in cuts]


# --- maps of attention in few cells ---

_MOST_NUMBERS = 3_000_000  # numbers in the maps of a page: some 8 MB
# What is tried in turn until a page holds no more than that: cells a side, and whether single heads
# are kept; the last one whatever it takes.
_FORMS = ((64, True), (32, True), (64, False), (32, False), (16, False))


def asking_and_answering(
    spec: CorpusSpec,
    features: Mapping[str, np.ndarray],
    masks: Mapping[str, np.ndarray],
    special: bool,
    maps: Iterable[Map],
) -> dict[Map, tuple[np.ndarray, np.ndarray]]:
    """Returns for each map the steps `[B, T]` that ask, and those that answer.

    Features are prepared, and `special` is `model.text_special`.
    """
    fused = dict(masks)
    if spec.is_pieces("text"):
        step = np.where(masks["text"], features["text"][..., 2], -1)
        words = np.arange(spec.pooled_steps(step.shape[1]))
        if spec.text_steps:  # of pooled text the words that have a piece
            fused["text"] = (step[:, None] == words[:, None]).any(-1)
        elif not special:
            fused["text"] = step >= 0
    present = np.stack([fused[m].any(axis=1) for m in spec.modalities], axis=1)

    def of(key: Map, modality: str) -> np.ndarray:
        if key.part == POOLED:
            return present
        return masks[modality] if key.part == PRETRAINED else fused[modality]

    return {key: (of(key, key.asks), of(key, key.answers)) for key in maps}


def choose_detail(
    shapes: Mapping[Map, Sequence[int]], there: Mapping[Map, tuple[np.ndarray, np.ndarray]]
) -> Detail:
    """Chooses how much of the maps of all samples a page has room for.

    Args:
        shapes: `(B, H, T_asks, T_answers)` for each map.
    """
    for form in _FORMS:
        detail, numbers = Detail(*form), 0
        for key, (_, heads, *steps) in shapes.items():
            sizes = detail.sizes(steps)
            rows, columns = (
                -(-ends(mask) // size) for mask, size in zip(there[key], sizes, strict=True)
            )
            numbers += int((rows * columns).sum()) * (1 + heads * detail.heads)
        if numbers <= _MOST_NUMBERS:
            break
    return detail


def ends(mask: np.ndarray) -> np.ndarray:
    """Returns the number of steps `[N]` up to the last valid one of masks `[N, T]`."""
    return (mask * np.arange(1, mask.shape[1] + 1)).max(axis=1, initial=0)


def in_cells(attention: Any, asking: Any, sizes: tuple[int, ...]) -> Any:
    """Makes maps `[B, H, Q, A]` of few cells of attention `[B, H, T_asks, T_answers]`.

    Args:
        attention: a row for each asking step; an array of NumPy or JAX.
        asking: `[B, T_asks]`, the asking steps that count; a cell without any is 0.
    """
    xp = attention.__array_namespace__()
    batch, heads, *steps = attention.shape
    fill = [(0, -n % size) for n, size in zip(steps, sizes, strict=True)]
    kept = xp.pad(xp.where(asking[:, None, :, None], attention, 0), [(0, 0), (0, 0), *fill])
    queries, keys = (n // size for n, size in zip(kept.shape[2:], sizes, strict=True))
    cells = kept.reshape(batch, heads, queries, sizes[0], keys, sizes[1]).sum((3, 5))
    count = xp.pad(asking, [(0, 0), fill[0]]).reshape(batch, 1, queries, sizes[0]).sum(-1)
    return cells / xp.maximum(count, 1)[..., None]
