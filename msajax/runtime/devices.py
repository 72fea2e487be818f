"""Places arrays on devices, over the (seed, data, model) mesh: all placement is here."""

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from msajax.config import Config, MeshConfig, TrainConfig
from msajax.errors import UserError, first_line
from msajax.layers.platform import platform
from msajax.runtime.compile import use_compile_cache

logger = logging.getLogger(__name__)

LEAST_ROWS = 16  # of a batch on each virtual CPU device; fewer are not worth sharing
_UNSET = -1  # JAX's own value
_number_set = _UNSET  # by a run of this process


def choose(config: Config, recorded: int | None) -> None:
    """Sets the number of virtual CPU devices of a run, unless its surroundings have set one.

    A run begins with one, and when it goes on it takes the number of its start again, also on fewer
    cores: other numbers of devices round otherwise. Where JAX finds accelerators, the run uses
    those.

    Args:
        config: the experiment, whose `mesh.cpu_devices` counts if it is not 0.
        recorded: the number with which the run was started before, if it was.

    Raises:
        UserError: if JAX has started with another number than `mesh.cpu_devices`.
    """
    if config.mesh.cpu_devices:
        set_asked(config.mesh)
        return
    # The environment, or a program around the run, may name a number; processes have their own.
    flags = os.environ.get("XLA_FLAGS", "")
    by_others = jax.config.jax_num_cpu_devices not in (_UNSET, _number_set)
    is_named = "xla_force_host_platform_device_count" in flags or by_others
    if not (jax.distributed.is_initialized() or is_named):
        number = recorded or 1
        there = _set_cpu_devices(number)
        if there != number:
            logger.info(
                "JAX has started already: the run takes its %d CPU device(s), not %d.",
                there,
                number,
            )


def set_asked(mesh: MeshConfig) -> None:
    """Sets the number that is asked for; raises `UserError` if JAX has started with another."""
    number = mesh.cpu_devices
    if number and (there := _set_cpu_devices(number)) != number:
        raise UserError(
            f"mesh.cpu_devices = {number} comes too late: JAX has started in this process, with "
            f"{there} CPU device(s). Take 0 or {there}, or start the run in a new process."
        )


def _set_cpu_devices(number: int) -> int:
    """Sets the number of CPU devices; returns the number that counts."""
    global _number_set
    try:
        jax.config.update("jax_num_cpu_devices", number)
        _number_set = number
    except RuntimeError:  # JAX has started, perhaps in a notebook
        on_cpu = jax.default_backend() == "cpu"
        return jax.local_device_count() if on_cpu else number  # which changes nothing there
    return number


@dataclasses.dataclass(frozen=True)
class Layout:
    """Says how a run's arrays lie on devices, and puts them there.

    Attributes:
        seed_axis: how seeds share a program: map (one after another; if they are spread, those of
            each device) or vmap (all at once).
        mesh: the (seed, data, model) mesh of the devices of all processes.
    """

    mode: str
    seed_axis: str
    mesh: jax.sharding.Mesh

    @property
    def data_devices(self) -> int:
        """Counts the devices over which the rows of a batch are spread."""
        return self.mesh.shape["data"]

    @property
    def seed_devices(self) -> int:
        """Counts the devices over which random seeds are spread."""
        return self.mesh.shape["seed"]

    @property
    def maps_seeds(self) -> bool:
        """Says whether a program sees one device's seeds, and trains them one after another.

        Each of them then is the program of one seed: on a CPU a product of several is slower.
        """
        return self.seed_axis == "map" and self.seed_devices > 1

    @property
    def copies(self) -> int:
        """Counts how often the memory of this process holds an array that lies on all devices."""
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        return self.mesh.size // jax.process_count() if on_cpu else 1

    @functools.cached_property
    def for_rows(self) -> "Layout":
        """Returns the layout of inference, over the same devices.

        Where each trains seeds of its own in turn, it scores rows of its own with all seeds: as
        many rows for every device, however many seeds it has.
        """
        if not self.maps_seeds:
            return self
        devices = self.mesh.devices.reshape(1, -1, self.mesh.shape["model"])
        mesh = jax.sharding.Mesh(devices, self.mesh.axis_names, axis_types=self.mesh.axis_types)
        return dataclasses.replace(self, mesh=mesh)

    @property
    def maps_rows(self) -> bool:
        """Says whether a program sees one device's rows, and sums over `data` itself.

        Left to XLA, every parameter's gradient is a message of its own: two processes on CPUs took
        5 times, four 11 times as long. Where parameters lie over `model` XLA must do it.
        """
        spreads_rows = self.data_devices > 1 and self.mesh.shape["model"] == 1
        return self.mode == "pmap" or spreads_rows

    def put(self, tree: Any, *axes: str | None) -> Any:
        """Places arrays, their leading axes over the named axes of the mesh."""
        sharding = self.sharding(*axes)
        return _put(tree, jax.tree.map(lambda _: sharding, tree))

    def sharding(self, *axes: str | None) -> NamedSharding:
        """Returns the sharding of an array whose leading axes lie over the mesh's named axes."""
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def put_state(self, tree: Any) -> Any:
        """Places arrays with a leading axis of seeds."""
        return _put(tree, self.state_shardings(tree))

    def state_shardings(self, tree: Any) -> Any:
        """Returns the shardings of arrays with a leading axis of seeds.

        Seeds that their devices do not divide lie on all of them. The third axis, behind the seeds
        and the inputs of a kernel, holds its outputs or the heads of attention: it lies over
        `model` if the devices divide it, also in the optimiser's moments. XLA finds the rest;
        results agree to rounding.
        """
        devices = self.mesh.shape["model"]

        def lies(x: Any) -> NamedSharding:
            shape = np.shape(x)
            over = None if shape[0] % self.seed_devices else "seed"
            if devices > 1 and len(shape) > 2 and shape[2] % devices == 0:
                return self.sharding(over, None, "model")
            return self.sharding(over)

        return jax.tree.map(lies, tree)

    def put_for_rows(self, tree: Any) -> Any:
        """Moves arrays with a leading axis of seeds into the layout of inference."""
        return tree if self.for_rows is self else self.for_rows.put_state(tree)

    def state_shapes(self, tree: Any) -> Any:
        """Returns the shapes of such arrays, with the shardings that `put_state` gives them."""
        return jax.tree.map(
            lambda x, lies: x.update(sharding=lies), tree, self.state_shardings(tree)
        )

    def get(self, tree: Any) -> Any:
        """Copies arrays to the host of every process, wherever their parts are."""

        def fetch(x: Any) -> Any:
            if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
                return jax.device_get(x)
            return multihost_utils.process_allgather(x, tiled=True)

        return jax.device_get(tree) if jax.process_count() == 1 else jax.tree.map(fetch, tree)

    def assemble(
        self, shape: tuple[int, ...], read: Callable[[tuple[slice, ...]], np.ndarray]
    ) -> jax.Array:
        """Places an array `[S, steps, B, …]` of batches: B over the devices of `data`.

        `read` returns a part, given slices along the axes; it is called only for the parts that
        this process's devices hold.
        """
        return _from_parts(shape, self.batch_sharding, read)

    @property
    def batch_sharding(self) -> NamedSharding:
        """Returns the sharding of arrays `[S, steps, B, …]` of batches."""
        return self.sharding("seed", None, "data")

    def put_rows(self, tree: Any) -> Any:
        """Places arrays of the host with a leading axis of rows over `data`.

        Rows of zeros make their number one that the devices divide; a single row lies on all.
        """
        rows = jax.tree.leaves(tree)[0].shape[0]
        if rows == 1:
            return self.put(tree)
        if fill := -rows % self.data_devices:
            tree = jax.tree.map(lambda x: np.pad(x, [(0, fill)] + [(0, 0)] * (x.ndim - 1)), tree)
        return self.put(tree, "data")

    def hand_rows(self, tree: Any) -> Any:
        """Returns arrays with a leading axis of rows as what a compiled program may be called with.

        On a single device the call itself copies arrays of the host, in a tenth of the time that
        `put_rows` takes. The program is compiled anew for them if it was called with others.
        """
        return tree if self.mesh.size == 1 else self.put_rows(tree)

    def over_seeds(self, function: Callable) -> Callable:
        """Maps a function of one seed over all seeds: over the leading axis of every argument."""

        def of_seeds(*args: Any) -> Any:
            if jax.tree.leaves(args)[0].shape[0] == 1:  # a loop would copy the state twice
                only = function(*jax.tree.map(lambda x: x[0], args))
                return jax.tree.map(lambda x: x[None], only)
            if self.seed_axis == "vmap":
                return jax.vmap(function)(*args)
            return jax.lax.map(lambda one: function(*one), args)

        return of_seeds


def _put(tree: Any, shardings: Any) -> Any:
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def own_part(x: Any, sharding: NamedSharding) -> jax.Array:
        x = np.asarray(jax.device_get(x))  # every process has all of it
        return _from_parts(x.shape, sharding, x.__getitem__)

    return jax.tree.map(own_part, tree, shardings)


def _from_parts(shape: tuple[int, ...], sharding: NamedSharding, read: Callable) -> jax.Array:
    with jax.transfer_guard("allow"):  # JAX counts this as a transfer that nobody asked for
        return jax.make_array_from_callback(shape, sharding, read)


def make_layout(
    mesh: MeshConfig,
    seed_axis: str,
    seeds: int,
    model_dim: int = 0,
    rows: int = 0,
    devices: Sequence[jax.Device] = (),
) -> Layout:
    """Spreads a run over the devices of all its processes: seeds first, then rows.

    Args:
        seed_axis: map, vmap or auto. Auto is vmap on GPUs, where seeds then share every kernel, and
            where seeds are spread over processes; it is map on CPUs, where seeds one after another
            cost the same, and on TPUs, where they move half as much and compile in a fifth of the
            time.
        model_dim: the model's width, which mesh.model must divide.
        rows: the rows of a batch, or of its part if gradients are accumulated; 0 for any number.
        devices: those to take, in place of all that are there.

    Raises:
        UserError: if devices, seeds or the width do not fit.
    """
    devices = devices or jax.devices()
    seed_axis, shape = check_mesh(mesh, seed_axis, seeds, model_dim, rows, len(devices))
    return Layout(
        mode=mesh.mode,
        seed_axis=seed_axis,
        mesh=jax.make_mesh(
            shape,
            ("seed", "data", "model"),
            axis_types=(jax.sharding.AxisType.Auto,) * 3,
            devices=devices[: math.prod(shape)],
        ),
    )


def check_mesh(
    mesh: MeshConfig, seed_axis: str, seeds: int, model_dim: int, rows: int, devices: int
) -> tuple[str, tuple[int, int, int]]:
    """Returns how seeds share a program, and over how many devices what is spread.

    The arguments and errors are those of `make_layout`, but for the number of devices.
    """
    # What is left to choose follows from the platform, then from the shape.
    is_auto = seed_axis == "auto"
    if is_auto:
        seed_axis = "vmap" if platform() == "gpu" else "map"
    shape, several = mesh_shape(mesh, seed_axis, seeds, rows, devices), jax.process_count() > 1
    if is_auto and several and shape[0] > 1:
        seed_axis = "vmap"
    if model_dim % mesh.model:
        raise UserError(
            f"mesh.model = {mesh.model} does not divide model.model_dim = {model_dim}: every "
            "device must hold the same share of a parameter."
        )
    # There must be devices for this shape, and seeds for its first axis.
    used, over_seed = math.prod(shape), shape[0]
    asked = " times ".join(
        f"mesh.{name} = {n}" for name, n in zip(("seed", "data", "model"), shape, strict=True)
    )
    if used > devices:
        raise UserError(f"{asked} needs {used} devices, but there are {devices}.")
    if several and used < devices:
        raise UserError(
            f"{asked} uses {used} devices of {devices}: with several processes a run takes "
            "all of them."
        )
    if several and mesh.mode == "pmap":
        raise UserError("mesh.mode = pmap runs in one process: use jit for several.")
    if several and seed_axis == "map" and over_seed > 1:
        raise UserError(
            f"train.seed_axis = 'map' trains seeds one after another, which processes cannot share "
            f"(mesh.seed = {over_seed}): use vmap, or mesh.seed = 1."
        )
    if seed_axis == "map" and over_seed > seeds:
        raise UserError(
            f"mesh.seed = {over_seed} is more than train.seeds = {seeds}: every device must have a "
            "random seed."
        )
    if seed_axis == "vmap" and seeds % over_seed:
        raise UserError(
            f"mesh.seed = {over_seed} does not divide train.seeds = {seeds}: "
            "every device must hold the same number of random seeds."
        )
    return seed_axis, shape


def mesh_shape(
    mesh: MeshConfig, seed_axis: str, seeds: int, rows: int, devices: int
) -> tuple[int, int, int]:
    """Returns over how many of the devices seeds, rows and parameters are spread.

    The arguments are those of `make_layout`, but for auto, and the number of devices.
    """
    several = jax.process_count() > 1  # which use all of their devices
    left = max(devices // (max(mesh.data, 1) * mesh.model), 1)
    if mesh.mode == "pmap":
        over_seed = 1
    elif seed_axis == "map" and not several:
        over_seed = mesh.seed or min(left, seeds)
    else:  # every device holds the same number of seeds
        over_seed = mesh.seed or math.gcd(left, seeds)
    left = max(devices // (over_seed * mesh.model), 1)
    if rows and mesh.mode == "jit" and platform() == "cpu" and not several:
        left = min(left, max(rows // LEAST_ROWS, 1))
    return over_seed, mesh.data or left, mesh.model


def configure_jax(config: TrainConfig) -> None:
    """Sets what must be set before the first computation: determinism and the compilation cache."""
    if config.deterministic:
        flags, flag = os.environ.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops=true"
        if flag not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()
    use_compile_cache(config.compile_cache)


def require_devices() -> None:
    """Makes JAX look for its devices; raises `UserError` if none are as JAX_PLATFORMS says."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(
            f"JAX cannot use the devices that JAX_PLATFORMS={asked!r} asks for "
            f"({first_line(error)}): unset it to take what there is, or install JAX for them."
        ) from error


@dataclasses.dataclass(frozen=True)
class Deal:
    """Says which of S random seeds is in each of the P slots of the devices, for one epoch.

    Every device has as many slots as every other one. A slot too many holds a seed once more, which
    counts as stopped there, and so takes no step.

    Attributes:
        seeds: `[P]`, the seed that is in each slot.
        stopped: `[P]` bool, slots whose seed takes no step.
        slots: `[S]`, the slot of each seed.
    """

    layout: Layout
    seeds: np.ndarray
    stopped: np.ndarray
    slots: np.ndarray

    def spread(self, state: Any) -> Any:
        """Puts arrays `[S, …]`, in the order of the seeds, into their slots: `[P, …]`."""
        return self._taken(state, self.seeds)

    def collect(self, state: Any) -> Any:
        """Puts arrays `[P, …]` in the order of the seeds again: `[S, …]`."""
        return self._taken(state, self.slots)

    def get(self, state: Any) -> Any:
        """Copies arrays `[P, …]` to the host, in the order of the seeds: `[S, …]`."""
        host = self.layout.get(state)
        return host if self.in_order else jax.tree.map(lambda x: x[self.slots], host)

    @property
    def in_order(self) -> bool:
        """Says whether slot k holds seed k, and there is none beside these."""
        return np.array_equal(self.seeds, np.arange(len(self.slots)))

    def _taken(self, state: Any, which: np.ndarray) -> Any:
        if self.in_order:
            return state
        # By way of the host, whose memory that of virtual CPU devices is: no program to compile.
        return self.layout.put_state(jax.tree.map(lambda x: x[which], self.layout.get(state)))


def deal(stopped: np.ndarray, layout: Layout) -> Deal:
    """Deals seeds out so that no device has two more of those that still train than another.

    They stay in their order while that is so, because moving them takes time. `stopped` is `[S]`
    bool, the seeds that train no more.
    """
    devices, count = layout.seed_devices if layout.maps_seeds else 1, len(stopped)
    places = -(-count // devices) * devices
    order = np.arange(places)  # from `count` on: slots too many
    idle = np.append(stopped, np.ones(places - count, bool))
    running = (~idle).reshape(devices, -1).sum(axis=1)
    if running.max() - running.min() > 1:
        one_each = np.argsort(idle, kind="stable")  # those that train are dealt out first
        order = one_each.reshape(-1, devices).T.ravel()
    return Deal(
        layout=layout,
        seeds=np.minimum(order, count - 1),
        stopped=idle[order],
        slots=np.argsort(order)[:count],
    )
