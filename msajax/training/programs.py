"""Builds the compiled programs of a run, each over every random seed at once."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from msajax.corpus.corpus import Split
from msajax.inference.scoring import predict_program
from msajax.layers.platform import platform
from msajax.models.contract import Prediction
from msajax.preparation.batches import Batch, cut_lengths, row_numbers
from msajax.runtime.devices import Layout
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS
from msajax.training.packing import make_packing
from msajax.training.state import StepMetrics, TrainState
from msajax.training.step import MOST_KEPT, Rates, Recipe, begin, train_step

_LARGEST_JOINED = 2**22  # parameters, whose gradients are copied to sum their squares at once


@flax.struct.dataclass
class DeviceCorpus:
    """Holds a prepared training split on the devices.

    Attributes:
        features: `{modality: [N, T_m, d_m]}` float32, `[N, T_m]` token ids or `[N, T_m, 3]` pieces.
        masks: `{modality: [N, T_m]}` bool.
        labels: `[N, L]` float32.
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


class Programs(NamedTuple):
    """Holds the compiled programs of a training run; leading axis S everywhere.

    Those of `jit_programs` are what JAX keeps compiled programs by, and hold no array of any run:
    `init` is S -> the jitted function, and the steps take shared values and rates behind the state.

    Attributes:
        init: seeds `[S]` uint32 -> state.
        gather: (length quarter, corpus, rows `[S, steps, B]`, weights of the same shape) -> their
            batches. Inside `train_steps` it would be fused into the step, which then rounds
            otherwise than with batches that stream.
        train_steps: (state, batches `[S, steps, B, …]`, stopped `[S]`, first, last) -> (state,
            metrics `[S, steps]`): runs steps first … last - 1 of them; the metrics of the others
            are 0. The bounds are data, so that one program serves a dispatch of any length. There
            is one for each length quarter: one for all of them would take longer to load, and the
            first step would wait for it.
        keep: (old, new, which `[S]`) -> new variables where `which`, else the old.
        predict: (variables, shared values, features, masks) -> prediction.
        state: S -> shapes, types and shardings of the state of S seeds.
        lower_init: S -> `init`, traced for S seeds.
        lower_steps: (state, batches) -> `train_steps`, traced for arrays of these shapes.
    """

    init: Callable[..., Any]
    gather: Callable[..., Batch]
    train_steps: Callable[..., tuple[TrainState, StepMetrics]]
    keep: Callable[[Any, Any, jax.Array], Any]
    predict: Callable[..., Prediction]
    state: Callable[[int], TrainState]
    lower_init: Callable[[int], jax.stages.Lowered]
    lower_steps: Callable[..., jax.stages.Lowered]


def make_programs(
    recipe: Recipe,
    rates: Rates,
    spec: CorpusSpec,
    layout: Layout,
    memory: Mapping[str, Any] | None = None,
    shared: Any = None,
) -> Programs:
    """Builds the programs of a run; nothing is compiled before its first call.

    What the same recipe was compiled to before is found again.

    Args:
        memory: `{name: [N, …]}`, the model's memory before the first step.
        shared: the values of `recipe.shared`, nested like parameters.
    """
    shared, rates = layout.put(shared or {}), layout.put(rates)
    at_first = {name: np.asarray(x) for name, x in (memory or {}).items()}
    shapes = tuple((k, x.shape, x.dtype) for k, x in at_first.items())
    jitted = jit_programs(recipe, spec, layout, shapes)

    def init_seeds(seeds: np.ndarray) -> TrainState:
        kept = {k: np.broadcast_to(x, (len(seeds), *x.shape)) for k, x in at_first.items()}
        return jitted.init(len(seeds))(*layout.put_state((seeds, kept)))

    def lower_steps(state: TrainState, batches: Batch) -> jax.stages.Lowered:
        as_put = functools.partial(jax.ShapeDtypeStruct, sharding=layout.sharding())
        stopped, bound = as_put(batches.row_weight.shape[:1], np.bool_), as_put((), np.int32)
        return jitted.lower_steps(state, shared, rates, batches, stopped, bound, bound)

    return jitted._replace(
        init=init_seeds,
        train_steps=lambda state, batches, stopped, first, last: jitted.train_steps(
            state, shared, rates, batches, *layout.put((stopped, np.int32(first), np.int32(last)))
        ),
        lower_steps=lower_steps,
    )


@functools.lru_cache(maxsize=MOST_KEPT)
def jit_programs(recipe: Recipe, spec: CorpusSpec, layout: Layout, memory: tuple) -> Programs:
    """Makes the functions of a recipe; `memory` is (name, shape, type) of each of its arrays."""
    # Rows that see each other inside the model, as in batch normalisation, are spread by XLA.
    maps_rows = layout.maps_rows and not recipe.model.mutable
    terms = len(recipe.objective.terms)
    init = layout.over_seeds(functools.partial(begin, recipe=recipe, spec=spec))

    def shapes_of(seeds: int) -> tuple:
        kept = {k: jax.ShapeDtypeStruct((seeds, *shape), dtype) for k, shape, dtype in memory}
        return jax.ShapeDtypeStruct((seeds,), np.uint32), kept

    one_each = jax.eval_shape(init, *shapes_of(layout.seed_devices))

    # On CPUs small parameters, and what is kept of them, are few vectors inside the program.
    # Accelerators would copy them; on GPUs, where every sum is a kernel, the norm of a small
    # model's gradient is that of one vector. Parameters that lie over `model` stay as they are.
    may_join = layout.mesh.shape["model"] == 1
    size = sum(x.size for x in jax.tree.leaves(one_each.params)) / layout.seed_devices
    joins = may_join and platform() == "cpu"
    joins_norm = may_join and platform() == "gpu" and size <= _LARGEST_JOINED
    optimizer = dataclasses.replace(recipe.optimizer, joins=joins, joins_norm=joins_norm)
    of_one = jax.tree.map(lambda x: x.update(shape=x.shape[1:]), one_each)
    packing = make_packing(of_one, optimizer.settings, joins)
    step_one = functools.partial(
        train_step,
        recipe=dataclasses.replace(recipe, optimizer=optimizer),
        axis_name="data" if maps_rows else None,
    )

    def train_steps(state, shared, rates, batches, stopped, first, last):
        def steps_of_one_seed(state, batches, stopped):
            none = jnp.zeros(batches.row_weight.shape[0])
            of_terms = jnp.zeros((len(none), terms))
            nothing = StepMetrics(of_terms, of_terms, none, none, none)

            def body(i, carry):
                state, log = carry
                batch = jax.tree.map(lambda x: x[i], batches)
                state, metrics = step_one(packing.unpack(state), batch, rates=rates, shared=shared)
                log = jax.tree.map(lambda xs, x: xs.at[i].set(x), log, metrics)
                return packing.pack(state), log

            # A seed that has stopped takes none of the steps.
            return jax.lax.fori_loop(first, jnp.where(stopped, first, last), body, (state, nothing))

        packed = packing.pack(state, axes=1)
        packed, metrics = layout.over_seeds(steps_of_one_seed)(packed, batches, stopped)
        return packing.unpack(packed, axes=1), metrics

    def keep_one(old, new, which):
        return jax.tree.map(lambda o, n: jnp.where(which, n, o), old, new)

    def state_of(seeds: int) -> TrainState:
        return layout.state_shapes(
            jax.tree.map(lambda x: x.update(shape=(seeds, *x.shape[1:])), one_each)
        )

    @functools.cache  # what is lowered is found again by the same function alone
    def init_of(seeds: int) -> Callable[..., TrainState]:
        return jax.jit(init, out_shardings=layout.state_shardings(state_of(seeds)))

    def gather(quarter, corpus, indices, row_weight):
        lengths = cut_lengths(spec, quarter)
        take = functools.partial(jnp.take, indices=indices, axis=0)
        return Batch(
            {m: take(x)[:, :, :, : lengths[m]] for m, x in corpus.features.items()},
            {m: take(x)[:, :, :, : lengths[m]] for m, x in corpus.masks.items()},
            take(corpus.labels),
            row_weight,
            row_numbers(indices, row_weight, len(corpus.labels)),
        )

    if layout.mode == "pmap":
        compiled, lower = _pmap(train_steps, layout)
    else:
        maps = maps_rows or layout.maps_seeds
        program = _mapped(train_steps, layout, maps_rows) if maps else train_steps
        compiled = jax.jit(
            program,
            donate_argnums=0,
            out_shardings=(layout.state_shardings(one_each), layout.sharding()),
        )
        lower = compiled.lower

    return Programs(
        init=init_of,
        gather=jax.jit(gather, static_argnums=0, out_shardings=layout.batch_sharding),
        train_steps=compiled,
        keep=jax.jit(jax.vmap(keep_one)),
        predict=predict_program.__wrapped__(recipe.module, TASKS[spec.label_kind], layout.for_rows),
        state=state_of,
        lower_init=lambda seeds: init_of(seeds).lower(*layout.state_shapes(shapes_of(seeds))),
        lower_steps=lower,
    )


def _mapped(train_steps: Callable, layout: Layout, maps_rows: bool) -> Callable:
    """Maps steps over the mesh: each device has its seeds and its rows of every batch.

    Without `maps_rows` XLA spreads the rows and the parameters of each seed, if they are spread.
    """
    axes, seeds, same = set(layout.mesh.axis_names), P("seed"), P()
    if by_xla := not maps_rows and layout.mesh.size > layout.seed_devices:
        axes = {"seed"}
    rows = seeds if by_xla else P("seed", None, "data")
    return jax.shard_map(
        train_steps,
        mesh=layout.mesh,
        in_specs=(seeds, same, same, rows, seeds, same, same),
        out_specs=(seeds, seeds),
        axis_names=axes,
        check_vma=False,  # it cannot see that the state stays the same on all devices of `data`
    )


def _pmap(train_steps: Callable, layout: Layout) -> tuple[Callable, Callable]:
    """Maps steps over devices by pmap: each has its rows of every batch.

    Returns the program, and what traces it for shapes.

    Every dispatch gives the state to all devices, and takes it from one: between dispatches it is
    one array, which evaluation, checkpoints and a change of layout can use.
    """
    devices = layout.mesh.devices.ravel().tolist()
    mapped = jax.pmap(
        train_steps,
        axis_name="data",
        in_axes=(None, None, None, 0, None, None, None),
        out_axes=None,  # all devices end with the same state
        devices=devices,
    )

    def by_device(x: jax.Array) -> jax.Array:
        rows = (*x.shape[:2], len(devices), -1, *x.shape[3:])
        return jnp.moveaxis(x.reshape(rows), 2, 0)

    @functools.partial(jax.jit, out_shardings=layout.sharding("data"))
    def over_devices(batches):
        return jax.tree.map(by_device, batches)

    def run(state, shared, rates, batches, *rest):
        return layout.put(mapped(state, shared, rates, over_devices(batches), *rest), "seed")

    def lower(state, shared, rates, batches, *rest):
        over_devices.lower(batches).compile()  # found again when it is called
        return mapped.lower(state, shared, rates, jax.eval_shape(over_devices, batches), *rest)

    return run, lower
