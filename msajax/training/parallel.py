"""All placement on devices: the programs of a run, each over every random seed at once."""

import dataclasses
import functools
import logging
import math
import os
import pathlib
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from msajax.config import MeshConfig, TrainConfig
from msajax.data.batches import QUARTERS, Batch, EpochOrder, cut_lengths
from msajax.data.corpus import Split
from msajax.errors import UserError
from msajax.spec import CorpusSpec
from msajax.training.optimizers import Optimizer
from msajax.training.state import StepMetrics, TrainState, init_train_state
from msajax.training.step import Loss, train_step

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a run's arrays are.

    Attributes:
        mode: jit or pmap.
        seed_axis: how seeds share a program: map or vmap.
        mesh: the (seed, data, model) mesh of the devices of all processes.
    """

    mode: str
    seed_axis: str
    mesh: jax.sharding.Mesh

    @property
    def data_devices(self) -> int:
        """Devices over which the rows of a batch are spread."""
        return self.mesh.shape["data"]

    def put(self, tree: Any, *axes: str | None) -> Any:
        """Places arrays, their leading axes over the named axes of the mesh."""
        return _put(tree, jax.tree.map(lambda _: self.sharding(*axes), tree))

    def sharding(self, *axes: str | None) -> NamedSharding:
        """The sharding of an array whose leading axes lie over the named axes of the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def put_state(self, tree: Any) -> Any:
        """Places arrays with a leading axis of seeds."""
        return _put(tree, self.state_shardings(tree))

    def state_shardings(self, tree: Any) -> Any:
        """Where arrays with a leading axis of seeds lie.

        Behind the seeds and the inputs of a kernel its outputs (of attention, its heads) lie over
        `model`, if the devices divide them; so do the moments of the optimiser.
        """
        devices = self.mesh.shape["model"]

        def lies(x: Any) -> NamedSharding:
            shape = np.shape(x)
            if devices > 1 and len(shape) > 2 and shape[2] % devices == 0:
                return self.sharding("seed", None, "model")
            return self.sharding("seed")

        return jax.tree.map(lies, tree)

    def get(self, tree: Any) -> Any:
        """Copies arrays to the host of every process, wherever their parts are."""

        def fetch(x: Any) -> Any:
            if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
                return jax.device_get(x)
            return multihost_utils.process_allgather(x, tiled=True)

        return jax.device_get(tree) if jax.process_count() == 1 else jax.tree.map(fetch, tree)

    def put_rows(self, tree: Any) -> Any:
        """Places arrays with a leading axis of rows, over `data` where their number allows it."""
        rows = jax.tree.leaves(tree)[0].shape[0]
        return self.put(tree, "data" if rows % self.data_devices == 0 else None)

    def over_seeds(self, function: Callable) -> Callable:
        """Runs a function of one seed for all: over the leading axis of every argument."""
        if self.seed_axis == "vmap":
            return jax.vmap(function)

        def in_turn(*args):
            if jax.tree.leaves(args)[0].shape[0] == 1:  # a loop would copy the state twice
                return jax.tree.map(
                    lambda x: x[None], function(*jax.tree.map(lambda x: x[0], args))
                )
            return jax.lax.map(lambda one: function(*one), args)

        return in_turn


def _put(tree: Any, shardings: Any) -> Any:
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def own_part(x: Any, sharding: NamedSharding) -> jax.Array:
        x = np.asarray(jax.device_get(x))  # every process has all of it
        return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part])

    return jax.tree.map(own_part, tree, shardings)


def make_layout(mesh: MeshConfig, seed_axis: str, seeds: int, model_dim: int = 0) -> Layout:
    """Spreads a run over the devices of all its processes.

    Args:
        mesh: what the configuration asks for.
        seed_axis: auto is map on a CPU, where seeds one after another cost the same, and vmap on
            accelerators and wherever seeds are spread over devices.
        seeds: random seeds of the run.
        model_dim: the model's width, which mesh.model must divide.

    Raises:
        UserError: if devices, seeds or the width do not fit.
    """
    devices = jax.devices()
    over_model, over_data = mesh.model, max(mesh.data, 1)
    over_seed = mesh.seed or math.gcd(max(len(devices) // (over_data * over_model), 1), seeds)
    if mesh.mode == "pmap":
        over_seed = 1
    over_data = mesh.data or max(len(devices) // (over_seed * over_model), 1)
    used = over_seed * over_data * over_model
    if used > len(devices):
        raise UserError(
            f"mesh.seed = {over_seed} times mesh.data = {over_data} times mesh.model = "
            f"{over_model} needs {used} devices, but there are {len(devices)}."
        )
    if jax.process_count() > 1 and used < len(devices):
        raise UserError(
            f"mesh.seed = {over_seed} times mesh.data = {over_data} times mesh.model = "
            f"{over_model} uses {used} devices of {len(devices)}: with several processes a run "
            "takes all of them."
        )
    if jax.process_count() > 1 and mesh.mode == "pmap":
        raise UserError("mesh.mode = pmap runs in one process: use jit for several.")
    if model_dim % over_model:
        raise UserError(
            f"mesh.model = {over_model} does not divide model.model_dim = {model_dim}: every "
            "device must hold the same share of a parameter."
        )
    if seeds % over_seed:
        raise UserError(
            f"mesh.seed = {over_seed} does not divide train.seeds = {seeds}: "
            "every device must hold the same number of random seeds."
        )
    if seed_axis == "auto":
        in_turn = jax.default_backend() == "cpu" and over_seed == 1
        seed_axis = "map" if in_turn else "vmap"
    if seed_axis == "map" and over_seed > 1:
        raise UserError(
            f"train.seed_axis = 'map' trains seeds one after another, which mesh.seed = "
            f"{over_seed} devices cannot share: use vmap, or mesh.seed = 1."
        )
    return Layout(
        mode=mesh.mode,
        seed_axis=seed_axis,
        mesh=jax.make_mesh(
            (over_seed, over_data, over_model),
            ("seed", "data", "model"),
            axis_types=(jax.sharding.AxisType.Auto,) * 3,
            devices=devices[:used],
        ),
    )


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
    def put(cls, split: Split, layout: Layout) -> "DeviceCorpus":
        """Copies a prepared, labelled split to every device of a layout."""
        return layout.put(
            cls(dict(split.features), dict(split.masks), split.labels.astype(np.float32))
        )

    def rows(self, indices: jax.Array, row_weight: jax.Array, lengths: Mapping[str, int]) -> Batch:
        """Gathers the batch of `indices` `[B]` with weights `[B]`, sequences cut to `lengths`."""
        take = functools.partial(jnp.take, indices=indices, axis=0)
        return Batch(
            {m: take(x)[:, : lengths[m]] for m, x in self.features.items()},
            {m: take(x)[:, : lengths[m]] for m, x in self.masks.items()},
            take(self.labels),
            row_weight,
        )


class Programs(NamedTuple):
    """The compiled programs of a training run; leading axis S everywhere.

    Attributes:
        init: seeds `[S]` uint32 -> state.
        train_steps: (bucket, state, corpus, orders, stopped `[S]`, first, last) -> (state, metrics
            `[S, steps]`): runs steps first … last - 1 of an epoch, all of one length bucket; the
            metrics of the others are 0. The bounds are data, so that one program serves a dispatch
            of any length.
        keep: (old, new, which `[S]`) -> new parameters where `which`, else the old.
    """

    init: Callable[[jax.Array], TrainState]
    train_steps: Callable[..., tuple[TrainState, StepMetrics]]
    keep: Callable[[Any, Any, jax.Array], Any]


class DeviceOrders(NamedTuple):
    """An epoch's order for every seed, on the devices.

    Attributes:
        indices: `[S, steps, B]` int32; under pmap `[devices, S, steps, B / devices]`.
        row_weight: like indices, float32.
    """

    indices: jax.Array
    row_weight: jax.Array


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


def make_programs(
    *,
    model: nn.Module,
    spec: CorpusSpec,
    optimizer: Optimizer,
    loss: Loss,
    layout: Layout,
    accumulation_steps: int = 1,
    most_skipped_steps: int = 5,
) -> Programs:
    """Builds the programs of a run; nothing is compiled before its first call.

    Args:
        model: what to train.
        spec: sizes of its inputs.
        optimizer: how parameters move.
        loss: from `make_loss`.
        layout: where arrays are.
        accumulation_steps: see `train_step`.
        most_skipped_steps: see `train_step`.
    """
    init_one = functools.partial(init_train_state, model=model, spec=spec, optimizer=optimizer)
    axis_name = "data" if layout.mode == "pmap" else None
    step_one = functools.partial(
        train_step,
        model=model,
        optimizer=optimizer,
        loss=loss,
        accumulation_steps=accumulation_steps,
        axis_name=axis_name,
        most_skipped_steps=most_skipped_steps,
    )

    def train_steps(lengths, state, corpus, indices, weights, stopped, first, last):
        def steps_of_one_seed(state, indices, weights, stopped):
            none = jnp.zeros(indices.shape[0])
            nothing = StepMetrics(*(none for _ in dataclasses.fields(StepMetrics)))

            def body(i, carry):
                state, log = carry
                state, metrics = step_one(state, corpus.rows(indices[i], weights[i], lengths))
                return state, jax.tree.map(lambda xs, x: xs.at[i].set(x), log, metrics)

            # A seed that has stopped takes none of the steps.
            return jax.lax.fori_loop(first, jnp.where(stopped, first, last), body, (state, nothing))

        return layout.over_seeds(steps_of_one_seed)(state, indices, weights, stopped)

    def keep_one(old, new, which):
        return jax.tree.map(lambda o, n: jnp.where(which, n, o), old, new)

    init = layout.over_seeds(init_one)
    one_seed = jax.ShapeDtypeStruct((1,), np.uint32)  # which axes are spread is the same for all
    of_state = layout.state_shardings(jax.eval_shape(init, one_seed))

    def in_bucket(quarter):
        steps = functools.partial(train_steps, cut_lengths(spec, quarter))
        if layout.mode == "pmap":
            return _pmap(steps, layout)
        return jax.jit(steps, donate_argnums=0, out_shardings=(of_state, layout.sharding()))

    # A program for each bucket: one that holds all of them takes longer to load than to run.
    of_bucket = {quarter: in_bucket(quarter) for quarter in range(1, QUARTERS + 1)}
    return Programs(
        init=jax.jit(init, out_shardings=of_state),
        train_steps=lambda quarter, state, corpus, orders, stopped, first, last: of_bucket[quarter](
            state, corpus, *orders, *layout.put((stopped, np.int32(first), np.int32(last)))
        ),
        keep=jax.jit(jax.vmap(keep_one), out_shardings=of_state.params),
    )


def _pmap(train_steps: Callable, layout: Layout) -> Callable:
    """The same steps, each device with its rows of every batch and the sum of the gradients."""
    mapped = jax.pmap(
        train_steps,
        axis_name="data",
        in_axes=(None, None, 0, 0, None, None, None),
        out_axes=None,  # all devices end with the same state
        devices=layout.mesh.devices.ravel().tolist(),
    )
    return lambda *args: layout.put(mapped(*args), "seed")


def put_orders(orders: Sequence[EpochOrder], layout: Layout, parts: int) -> DeviceOrders:
    """Places an epoch's order of every seed.

    Rows of weight 0 fill every batch up to a multiple of the devices and of `parts`.
    """
    indices = np.stack([order.indices for order in orders])  # [S, steps, B]
    weights = np.stack([order.row_weight for order in orders])
    devices = layout.data_devices
    fill = [(0, 0), (0, 0), (0, -indices.shape[2] % (devices * parts))]
    indices, weights = np.pad(indices, fill, mode="edge"), np.pad(weights, fill)
    if layout.mode == "pmap":
        by_device = (*indices.shape[:2], devices, -1)
        indices, weights = (np.moveaxis(x.reshape(by_device), 2, 0) for x in (indices, weights))
        return DeviceOrders(indices, weights)
    return DeviceOrders(*layout.put((indices, weights), "seed", None, "data"))
