"""All placement on devices: the programs of a run, each over every random seed at once."""

import functools
import logging
import os
import pathlib
import stat
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from msajax.config import TrainConfig
from msajax.data.batches import Batch
from msajax.data.corpus import Split
from msajax.errors import UserError
from msajax.models.heads import Prediction
from msajax.spec import CorpusSpec
from msajax.training.optimizers import Optimizer
from msajax.training.state import TrainState, init_train_state
from msajax.training.step import Loss, StepMetrics, train_step

logger = logging.getLogger(__name__)

EVALUATION_ROWS = 128  # rows of every evaluation program, whatever the size of a split

PredictFn = Callable[[Any, Mapping[str, jax.Array], Mapping[str, jax.Array]], Prediction]


@flax.struct.dataclass
class DeviceCorpus:
    """A prepared training split on the device.

    Attributes:
        features: `{modality: [N, T_m, d_m]}` float32.
        masks: `{modality: [N, T_m]}` bool.
        labels: `[N, K]` float32.
    """

    features: Mapping[str, jax.Array]
    masks: Mapping[str, jax.Array]
    labels: jax.Array

    @classmethod
    def put(cls, split: Split) -> "DeviceCorpus":
        """Copies a prepared, labelled split to the device."""
        return jax.device_put(
            cls(dict(split.features), dict(split.masks), split.labels.astype(np.float32))
        )

    def rows(self, indices: jax.Array, row_weight: jax.Array) -> Batch:
        """Gathers the batch of `indices` `[B]` with weights `[B]`."""
        take = functools.partial(jnp.take, indices=indices, axis=0)
        return Batch(
            jax.tree.map(take, self.features),
            jax.tree.map(take, self.masks),
            take(self.labels),
            row_weight,
        )


class Programs(NamedTuple):
    """The compiled programs of a training run; leading axis S everywhere.

    Attributes:
        init: seeds `[S]` uint32 -> state.
        train_steps: (state, corpus, indices `[S, steps, B]`, weights `[S, steps, B]`, stopped
            `[S]`, first, last) -> (state, metrics `[S, steps]`): runs steps first … last - 1 of an
            epoch; the metrics of the others are 0. The bounds are data, so that one program
            serves a dispatch of any length.
        predict: (params, features, masks) -> `Prediction` with `[S, B, …]`.
        keep: (old, new, which `[S]`) -> new parameters where `which`, else the old.
    """

    init: Callable[[jax.Array], TrainState]
    train_steps: Callable[..., tuple[TrainState, StepMetrics]]
    predict: PredictFn
    keep: Callable[[Any, Any, jax.Array], Any]


def configure_jax(config: TrainConfig) -> None:
    """Sets what must be set before the first computation: determinism and the compilation cache."""
    if config.deterministic:
        flags, flag = os.environ.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops=true"
        if flag not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()
    if config.compile_cache == "off" or jax.config.jax_compilation_cache_dir:
        return
    folder = pathlib.Path(config.compile_cache)
    if config.compile_cache == "auto":
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = pathlib.Path(cache) / "msajax" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        logger.warning("No compilation cache: %s: %s.", folder, error.strerror)
        return
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        logger.warning("No compilation cache: others can write to %s, and so run code.", folder)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def resolve_seed_axis(seed_axis: str) -> str:
    """`auto` is map on CPU, where seeds one after another cost the same, and vmap elsewhere."""
    if seed_axis != "auto":
        return seed_axis
    return "map" if jax.default_backend() == "cpu" else "vmap"


def over_seeds(function: Callable, seed_axis: str) -> Callable:
    """Runs a function of one seed for all: over the leading axis of every positional argument."""
    if resolve_seed_axis(seed_axis) == "vmap":
        return jax.vmap(function)
    return lambda *args: jax.lax.map(lambda one: function(*one), args)


def make_programs(
    *, model: nn.Module, spec: CorpusSpec, optimizer: Optimizer, loss: Loss, seed_axis: str
) -> Programs:
    """Builds the programs of a run; nothing is compiled before its first call."""
    init_one = functools.partial(init_train_state, model=model, spec=spec, optimizer=optimizer)
    step_one = functools.partial(train_step, model=model, optimizer=optimizer, loss=loss)

    @functools.partial(jax.jit, donate_argnums=0)
    def train_steps(state, corpus, indices, weights, stopped, first, last):
        def steps_of_one_seed(state, indices, weights, stopped):
            none = jnp.zeros(indices.shape[0])
            nothing = StepMetrics(none, none, none, none)

            def body(i, carry):
                state, log = carry
                state, metrics = step_one(state, corpus.rows(indices[i], weights[i]))
                return state, jax.tree.map(lambda xs, x: xs.at[i].set(x), log, metrics)

            def run(state):
                return jax.lax.fori_loop(first, last, body, (state, nothing))

            return jax.lax.cond(stopped, lambda state: (state, nothing), run, state)

        return over_seeds(steps_of_one_seed, seed_axis)(state, indices, weights, stopped)

    def keep_one(old, new, which):
        return jax.tree.map(lambda o, n: jnp.where(which, n, o), old, new)

    return Programs(
        init=jax.jit(over_seeds(init_one, seed_axis)),
        train_steps=train_steps,
        predict=make_predict(model, seed_axis),
        keep=jax.jit(jax.vmap(keep_one)),
    )


def make_predict(model: nn.Module, seed_axis: str) -> PredictFn:
    """The prediction program: every seed's parameters on the same batch."""

    @jax.jit
    def predict(params, features, masks):
        def predict_one(params):
            return model.apply({"params": params}, features, masks, train=False)

        return over_seeds(predict_one, seed_axis)(params)

    return predict


def evaluation_batches(split: Split) -> list[tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
    """A prepared split on the device, in file order, in batches of one fixed shape."""
    batches = []
    for start in range(0, len(split), EVALUATION_ROWS):
        rows = slice(start, start + EVALUATION_ROWS)
        batch = [
            {m: _fill(x[rows], EVALUATION_ROWS) for m, x in arrays.items()}
            for arrays in (split.features, split.masks)
        ]
        batches.append(tuple(jax.device_put(batch)))
    return batches


def predict_batches(
    predict: PredictFn, params: Any, batches: list, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores `evaluation_batches` of a split.

    Args:
        predict: from `make_predict`.
        params: leading axis S.
        batches: of the split.
        size: rows of the split.

    Returns:
        Scores `[S, N]` and modality weights `[S, N, M]`, float64, in file order.
    """
    # All are dispatched before the first is read.
    parts = jax.device_get([predict(params, *batch) for batch in batches])
    scores = np.concatenate([part.score[..., 0] for part in parts], axis=1)[:, :size]
    weights = np.concatenate([part.modality_weights for part in parts], axis=1)[:, :size]
    return scores.astype(np.float64), weights.astype(np.float64)


def require_finite(scores: np.ndarray, split: Split, name: str) -> None:
    """Raises `UserError`, naming a sample, unless all scores `[S, N]` of a split are finite."""
    bad = np.flatnonzero(~np.isfinite(scores).all(axis=0))
    if bad.size:
        raise UserError(
            f"The scores of {bad.size} sample(s) of split {name!r} are not finite, the first that "
            f"of {str(split.ids[bad[0]])!r}: its features are too large for the model's dtype."
        )


def _fill(x: np.ndarray, rows: int) -> np.ndarray:
    """Adds zero rows (for a mask: absent modalities) up to `rows`."""
    return np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1))
