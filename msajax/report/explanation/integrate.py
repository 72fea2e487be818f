"""Computes what explains samples with a trained model: a mean over its random seeds."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from msajax.corpus.corpus import Split
from msajax.errors import UserError
from msajax.inference.bundle import Bundle
from msajax.models import build_model
from msajax.models.contract import joined
from msajax.models.contributions import Explainer, Map
from msajax.preparation.batches import cut_lengths, quarters_of
from msajax.report.explanation.maps import (
    Detail,
    Shown,
    asking_and_answering,
    choose_detail,
    in_cells,
)
from msajax.tasks import TASKS

# Of a batch, at most: the gradient of a fine-tuned text encoder needs much memory for each.
ROWS = 16
_POINTS = 16  # of a path in one call, so that one compiled program serves every number of points
POINTS = (32, 64, 128, 256)  # of a path: the next number if the one before is not exact enough
EXACT = 0.01  # of the score's difference from the baseline: the median completeness error

Tell = Callable[[float], None]


@dataclasses.dataclass(frozen=True)
class Explained:
    """Holds what explains N samples, means over random seeds.

    Attributes:
        score: `[N]`, the explained output.
        baseline: `[N]`, the same output at the baseline.
        contributions: `{modality: [N, T_m]}`, 0 at padding.
        attention: the maps of attention, in as few cells as `detail` says.
        detail: how much of the maps is kept.
        points: how many points of a path the gradients were taken at.
    """

    score: np.ndarray
    baseline: np.ndarray
    contributions: dict[str, np.ndarray]
    attention: dict[Map, Shown]
    detail: Detail
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
        self._choose(maps)

    def _choose(self, maps: Callable) -> None:
        """Chooses how much of the maps is kept, before anything is computed."""
        bundle, split = self._bundle, self._split
        given = self._batch(slice(0, self._rows))
        try:
            shapes = jax.eval_shape(maps, self._variables(0), self._shared, given)
        except LookupError as error:
            raise UserError(
                f"The model {bundle.config.model.name!r} embeds the token ids of "
                f"{error.args[0]!r} in a way of its own: --mode=explain explains the models of "
                "msajax, and models of your own that read features alone."
            ) from error
        shapes = {key: x.shape for key, x in shapes.items()}
        features = {m: x for m, x in split.features.items() if bundle.preparation.spec.is_pieces(m)}
        self._there = asking_and_answering(
            bundle.preparation.spec, features, split.masks, bundle.config.model.text_special, shapes
        )
        self._detail = choose_detail(shapes, self._there)
        self._steps = {key: shape[2] for key, shape in shapes.items()}
        self._sizes = {key: self._detail.sizes(shape[2:]) for key, shape in shapes.items()}

    def run(self, points: int, tell: Tell) -> Explained:
        """Explains all samples by so many points of the path."""
        samples, seeds = len(self._split), len(self._bundle.seeds)
        starts = range(0, samples, self._rows)
        parts, total, done = _parts_of_path(points), {}, 0
        for seed in range(seeds):
            variables = self._variables(seed)
            for first in starts:
                rows = slice(first, min(first + self._rows, samples))
                given, asking = self._batch(rows), self._asking(rows)
                of = self._filled(self._outputs[rows])
                found, score, baseline, cells = self._look(
                    variables, self._shared, given, asking, of
                )
                steps: dict[str, Any] = {}
                for part in parts:
                    more = self._walk(variables, self._shared, given, found, of, part)
                    steps = {m: steps.get(m, 0) + np.float64(x) for m, x in more.items()}
                    done += 1
                    tell(done / (seeds * len(starts) * len(parts)))
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
        shown = {
            key: Shown(sizes, total["map", key], total.get(("heads", key)))
            for key, sizes in self._sizes.items()
        }
        return Explained(
            total["score",],
            total["baseline",],
            {key[1]: x for key, x in total.items() if key[0] == "step"},
            shown,
            self._detail,
            points,
        )

    def _variables(self, seed: int) -> Any:
        """Puts the variables of one random seed on the device."""
        return jax.device_put(jax.tree.map(lambda x: x[seed], self._bundle.variables))

    def _batch(self, rows: slice) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Cuts rows out of the split, as features and masks."""
        split, lengths = self._split, self._lengths.items()
        return (
            {m: self._filled(split.features[m][rows, :length]) for m, length in lengths},
            {m: self._filled(split.masks[m][rows, :length]) for m, length in lengths},
        )

    def _asking(self, rows: slice) -> dict[Map, np.ndarray]:
        """Returns for each map which steps of a batch ask, `[B, T]`."""
        return {
            key: self._filled(asking[rows, : self._steps[key]])
            for key, (asking, _) in self._there.items()
        }

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

