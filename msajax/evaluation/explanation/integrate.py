"""Computes what explains samples with a trained model: a mean over its random seeds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from msajax.data.batches import cut_lengths, quarters_of
from msajax.data.corpus import Split
from msajax.errors import UserError
from msajax.inference.bundle import Bundle
from msajax.models import build_model
from msajax.models.explain.contributions import Explainer, Map
from msajax.models.parameters import joined
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

# Of a batch, at most: the gradient of a fine-tuned text encoder needs much memory for each.
ROWS = 16
_POINTS = 16  # of a path in one call, so that one compiled program serves every number of points
POINTS = (32, 64, 128, 256)  # of a path: the next number if the one before is not exact enough
EXACT = 0.01  # of the score's difference from the baseline: the median completeness error

# Cells a side of a map of attention, by the most samples: a page of 1000 stays some 10 MB.
CELLS = {50: 64, 200: 32, 1000: 16}

Tell = Callable[[float], None]


@dataclasses.dataclass(frozen=True)
class Explained:
    """Holds what explains N samples, means over random seeds.

    Attributes:
        score: `[N]`, the explained output.
        baseline: `[N]`, the same output at the baseline.
        contributions: `{modality: [N, T_m]}`, 0 at padding.
        attention: `{map: [N, Q, A]}`, means over heads, too, of few cells a side (`CELLS`):
            where there are more steps, a cell is the mean of as many asking steps as are needed,
            and the sum over as many answering ones, so that rows still sum to 1.
        points: how many points of a path the gradients were taken at.
    """

    score: np.ndarray
    baseline: np.ndarray
    contributions: dict[str, np.ndarray]
    attention: dict[Map, np.ndarray]
    points: int

    @property
    def completeness_error(self) -> np.ndarray:
        """How far each sample's contributions are from summing to its score's difference, `[N]`."""
        total = sum(x.sum(axis=1) for x in self.contributions.values())
        return np.abs(total - (self.score - self.baseline))

    @property
    def relative_error(self) -> float:
        """The median over samples of that error, as a share of the score's difference."""
        difference = np.abs(self.score - self.baseline)
        known = difference > 0
        shares = self.completeness_error[known] / difference[known]
        return float(np.median(shares)) if shares.size else 0.0


def integrate(bundle: Bundle, split: Split, outputs: np.ndarray, tell: Tell) -> Explained:
    """Explains every sample of a prepared split.

    Args:
        bundle: the model.
        split: prepared.
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
    """Runs compiled programs over batches of samples and over random seeds."""

    def __init__(self, bundle: Bundle, split: Split, outputs: np.ndarray) -> None:
        self._bundle, self._split, self._outputs = bundle, split, outputs
        spec = bundle.preparation.spec
        self._lengths = cut_lengths(spec, int(quarters_of(split, spec).max()))
        self._rows = -(-len(split) // -(-len(split) // ROWS))  # batches of equal size
        module, task = build_model(bundle.config.model, spec), TASKS[spec.label_kind]
        explainer = Explainer(module, spec, task.scores)
        self._shared = jax.device_put(dict(bundle.shared))

        def whole(variables: Any, shared: Any) -> Any:
            return variables | {"params": joined(variables["params"], shared)}

        @jax.jit
        def look(variables, shared, given, of):
            variables = whole(variables, shared)
            found = explainer.look(variables, *given)
            blank = jax.tree.map(jnp.zeros_like, found.read)
            score = jnp.take_along_axis(found.scores, of[:, None], axis=1)[:, 0]
            return found, score, explainer.score(variables, given, found, blank, of)

        @jax.jit
        def walk(variables, shared, given, found, of, points):
            return explainer.contributions(whole(variables, shared), given, found, of, points)

        self._look, self._walk = look, walk

    def run(self, points: int, tell: Tell) -> Explained:
        """Explains all samples by so many points of the path."""
        samples, seeds = len(self._split), len(self._bundle.seeds)
        starts = range(0, samples, self._rows)
        parts, total, done = _parts_of_path(points), {}, 0
        for seed in range(seeds):
            variables = self._variables(seed)
            for first in starts:
                rows = slice(first, min(first + self._rows, samples))
                given, of = self._batch(rows), self._filled(self._outputs[rows])
                found, score, baseline = self._begin(variables, given, of)
                steps: dict[str, Any] = {}
                for part in parts:
                    more = self._walk(variables, self._shared, given, found, of, part)
                    steps = {m: steps.get(m, 0) + np.float64(x) for m, x in more.items()}
                    done += 1
                    tell(done / (seeds * len(starts) * len(parts)))
                attention = {k: np.float64(x) for k, x in found.attention.items()}
                attention = self._in_cells(attention, given)
                of_batch = {
                    **{("score",): np.float64(score), ("baseline",): np.float64(baseline)},
                    **{("step", m): x for m, x in steps.items()},
                    **{("map", k): x for k, x in attention.items()},
                }
                for key, x in of_batch.items():
                    whole = total.setdefault(key, np.zeros((samples, *x.shape[1:])))
                    whole[rows] += x[: rows.stop - first] / seeds
        return Explained(
            total["score",],
            total["baseline",],
            {key[1]: x for key, x in total.items() if key[0] == "step"},
            {key[1]: x for key, x in total.items() if key[0] == "map"},
            points,
        )

    def _variables(self, seed: int) -> Any:
        """Puts the variables of one random seed on the device."""
        return jax.device_put(jax.tree.map(lambda x: x[seed], self._bundle.variables))

    def _begin(self, variables: Any, given: Any, of: np.ndarray) -> Any:
        try:
            return self._look(variables, self._shared, given, of)
        except LookupError as error:
            raise UserError(
                f"The model {self._bundle.config.model.name!r} embeds the token ids of "
                f"{error.args[0]!r} in a way of its own: --mode=explain explains the models of "
                "msajax, and models of your own that read features alone."
            ) from error

    def _batch(self, rows: slice) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Cuts rows out of the split, as features and masks."""
        split, lengths = self._split, self._lengths.items()
        return (
            {m: self._filled(split.features[m][rows, :length]) for m, length in lengths},
            {m: self._filled(split.masks[m][rows, :length]) for m, length in lengths},
        )

    def _filled(self, x: np.ndarray) -> np.ndarray:
        """Fills the last batch up with rows of padding, so that one program serves all."""
        return np.pad(x, [(0, self._rows - len(x)), *[(0, 0)] * (x.ndim - 1)])

    def _in_cells(self, attention: dict[Map, np.ndarray], given: Any) -> dict[Map, np.ndarray]:
        """Makes maps of few cells of the attention of a batch."""
        spec = self._bundle.preparation.spec
        masks = fused_masks(spec, *given)
        return {
            key: in_cells(x, masks[key[1]], cell_sizes(spec, len(self._split), key[1:]))
            for key, x in attention.items()
        }


def _parts_of_path(points: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Makes the points of a path from 0 to 1, and their weights, in parts for single calls.

    They are those of Gauss and Legendre: many are near the baseline, where a score changes most,
    since norms forget how large their input is.
    """
    nodes, weights = np.polynomial.legendre.leggauss(points)
    shares, weights = np.float32((nodes + 1) / 2), np.float32(weights / 2)
    cuts = [slice(k, k + _POINTS) for k in range(0, points, _POINTS)]
    return [(shares[cut], weights[cut]) for cut in cuts]


def fused_masks(
    spec: CorpusSpec, features: Mapping[str, np.ndarray], masks: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the steps `[B, T]` that fusion reads: of pooled text, the words that have a piece."""
    if not spec.text_steps:
        return dict(masks)
    step = np.where(masks["text"], features["text"][..., 2], -1)
    words = np.arange(spec.pooled_steps(step.shape[1]))
    return {**masks, "text": (step[:, None] == words[:, None]).any(-1)}


def cell_sizes(spec: CorpusSpec, samples: int, modalities: Sequence[str]) -> tuple[int, ...]:
    """Returns how many steps a cell of a map holds, of some modalities as fusion reads them."""
    cells = next((cells for most, cells in CELLS.items() if samples <= most), min(CELLS.values()))
    pooled = {"text": spec.text_steps} if spec.text_steps else {}
    return tuple(-(-pooled.get(m, spec.length(m)) // cells) for m in modalities)


def in_cells(attention: np.ndarray, asking: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """Makes maps `[B, Q, A]` of few cells of attention `[B, T_from, T_to]`.

    Args:
        attention: a row for each asking step.
        asking: `[B, T_from]`, the asking steps that count; a cell without any is 0.
        sizes: steps of a cell, asking and answering ones.
    """
    fill = [(0, -n % size) for n, size in zip(attention.shape[1:], sizes, strict=True)]
    kept = np.where(asking[..., None], attention, 0)
    kept, asking = np.pad(kept, [(0, 0), *fill]), np.pad(asking, [(0, 0), fill[0]])
    batch, queries, keys = kept.shape
    cells = kept.reshape(batch, queries // sizes[0], sizes[0], keys // sizes[1], sizes[1])
    count = asking.reshape(batch, -1, sizes[0]).sum(-1)
    return cells.sum((2, 4)) / np.maximum(count, 1)[..., None]
