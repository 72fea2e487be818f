"""Plans what a run needs of memory and disk, before anything is trained."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from msajax.config import Config
from msajax.layers.platform import made_for
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.models.contract import blank_sample, init_variables
from msajax.runs.folder import KEPT
from msajax.runtime.devices import check_mesh
from msajax.runtime.targets import Target
from msajax.spec import CorpusSpec
from msajax.training.groups import ParameterSettings
from msajax.training.optimizers import make_optimizer

_BYTES = 4  # of a float32
_PROCESS = 600 * 2**20  # bytes of Python, the libraries and compiled programs, as measured on CPUs


def plan(config: Config, spec: CorpusSpec) -> dict[str, Any]:
    """Says how many bytes the parameters of a run take, and what is kept beside them.

    Of what a step computes on its way (activations) only pretrained encoders' are counted, beside
    which the rest is small.

    Returns:
        `parameters`, of one seed: `moving`, `frozen`, and `shared`, those of them that all seeds
        have once; `seeds_at_once`, trained together; `memory`, bytes of each kind and `total`;
        `disk`: `checkpoints` (those that are kept), `bundle`.
    """
    shapes = parameter_shapes(config.model, spec)
    optimizer = make_optimizer(
        config.optim, shapes, declared(config.model).untrained_of(config.model, spec)
    )
    counts = _count_parameters(config, shapes, optimizer.settings)
    at_once = config.train.at_once
    own = counts["moving"] + counts["frozen"] - counts["shared"]  # of each seed
    moments = len(optimizer.moments) * counts["moving"]
    average = optimizer.averages * counts["moving"]
    state = at_once * (own + moments + average)
    of_checkpoint = state + at_once * own
    memory = {
        "parameters": at_once * own + counts["shared"],
        "moments": at_once * moments,
        "average": at_once * average,
        # A new best is made beside the old one; validation scores with a copy of neither.
        "best": 2 * at_once * own,
        "gradients": counts["moving"] * (at_once if config.train.seed_axis == "vmap" else 1),
        # The loop over several seeds has a copy of the state. A checkpoint that is being written is
        # there twice, as arrays and as files.
        "copies": (at_once > 1) * state + 2 * of_checkpoint,
    }
    memory = {name: _BYTES * numbers for name, numbers in memory.items()}
    memory["activations"] = _activations(config, spec)
    memory["process"] = _PROCESS
    groups = math.ceil(config.train.seeds / at_once)
    return {
        "parameters": counts,
        "seeds_at_once": at_once,
        "memory": memory | {"total": sum(memory.values())},
        "disk": {
            "checkpoints": _BYTES * KEPT * of_checkpoint * groups,
            "bundle": _BYTES * (config.train.seeds * own + counts["shared"]),
        },
    }


def plan_on(target: Target, config: Config, spec: CorpusSpec, samples: int) -> dict[str, Any]:
    """Says what each device of a target holds of a run of one process, and whether that fits.

    The devices need not be there; `samples` are those of the training split. What a model remembers
    of samples, and moments of further stages, are not counted.

    Returns:
        `target`, `devices`, how many of them the run uses; `mesh`, over how many of them seeds,
        rows and parameters are spread; `needed`, bytes of one device: the `state` that is trained,
        `best`, `gradients`, `activations` (all that a forward pass leaves for the gradients, of
        which compilers keep about half), `data` of the training split; and `total`; `memory`,
        bytes that a device has; `fits`.

    Raises:
        UserError: if `mesh.*` asks for more devices than the target has, or for others.
    """
    train, at_once = config.train, config.train.at_once
    rows = -(-train.batch_size // train.accumulation_steps)
    with made_for(target.platform):
        seed_axis, shape = check_mesh(
            config.mesh, train.seed_axis, at_once, config.model.model_dim, rows, target.devices
        )
        over_seeds, over_rows, over_model = shape
        kept = _kept_for_gradients(config, spec, -(-rows // over_rows))
    planned = plan(config, spec)
    memory, moving = planned["memory"], planned["parameters"]["moving"]
    shared = _BYTES * planned["parameters"]["shared"]  # each device has what all seeds share
    # Of each seed, on the devices of `model`, over which kernels lie whose outputs they divide.
    shapes = parameter_shapes(config.model, spec).values()
    sizes = [math.prod(shape) for shape in shapes]
    spread = [len(shape) > 1 and shape[1] % over_model == 0 for shape in shapes]
    share = sum(n / over_model if lies else n for n, lies in zip(sizes, spread, strict=True))
    share /= sum(sizes)
    kinds = memory["parameters"] - shared + memory["moments"] + memory["average"]
    slots = -(-at_once // over_seeds)  # seeds of the device that has most
    kept_best = slots if at_once % over_seeds == 0 else at_once  # those lie on all devices
    together = slots if seed_axis == "vmap" else 1
    needed = {
        "state": int(share * kinds / at_once * slots) + shared,
        "best": int(share * memory["best"] / at_once * kept_best),
        "gradients": int(share * _BYTES * moving * together),
        "activations": kept * together,
    }
    features, masks = (sum(x.nbytes for x in each.values()) for each in blank_sample(spec))
    # A split beyond its budget is read batch by batch.
    streams = samples * features > config.data.device_memory_budget
    needed["data"] = 0 if streams else samples * (features + masks)
    total = sum(needed.values())
    return {
        "target": ":".join(target),
        "devices": math.prod(shape),
        "mesh": dict(zip(("seed", "data", "model"), shape, strict=True)),
        "needed": needed | {"total": total},
        "memory": target.memory,
        "fits": total <= target.memory,
    }


def _kept_for_gradients(config: Config, spec: CorpusSpec, rows: int) -> int:
    """Returns the bytes that a forward pass of so many rows of one seed leaves for gradients."""
    module, model = build_model(config.model, spec), declared(config.model)
    features, masks = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), blank_sample(spec)
    )

    def pull_back(key: jax.Array, features: Any, masks: Any) -> Any:
        params, collections = init_variables(module, model, spec, key)

        def total(params: Any) -> jax.Array:
            found = module.apply(
                {"params": params, **collections},
                features,
                masks,
                train=True,
                rngs={"dropout": key},
                mutable=list(model.mutable),
            )
            return found[0].score.sum()

        return jax.vjp(total, params)[1]

    left = jax.eval_shape(pull_back, jax.random.key(0), features, masks)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(left))


def _activations(config: Config, spec: CorpusSpec) -> int:
    """Estimates the bytes that a step keeps of pretrained encoders' layers for its gradients.

    Of each step and layer: ten vectors (norms, projections, residuals), the feed-forward network
    before, at and after its activation, and three maps of attention. With gradient checkpointing
    every layer keeps its input alone, and one layer at a time the rest. Convolutions of sound keep
    what each of them writes, at its own rate.
    """
    train = config.train
    rows = -(-train.batch_size // train.accumulation_steps)
    rows *= train.at_once if train.seed_axis == "vmap" else 1
    total = 0
    for m in spec.modalities:
        if (a := spec.encoder(m)) is None:
            continue
        length = spec.length(m)
        inside = 10 * a.width + 3 * a.ff_dim + 3 * a.heads * length
        of_step = a.layers * inside
        if config.model.gradient_checkpointing:
            of_step = a.layers * a.width + inside
        if spec.is_sound(m):
            rate = a.hop  # outputs a step
            for channels, _, stride in a.convolutions:
                rate //= stride
                of_step += 2 * rate * channels
        total += length * of_step
    size = _BYTES if config.model.dtype == "float32" else 2
    return size * rows * total


def _count_parameters(
    config: Config, shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, ParameterSettings]
) -> Mapping[str, int]:
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    frozen = [path for path in sizes if settings[path].frozen]
    place = declared(config.model).encoder
    within = tuple(f"{place.format(modality=m)}/" for m in config.model.encoder_folders if place)
    shared = [path for path in frozen if path.startswith(within)]
    of = {"frozen": frozen, "shared": shared}
    counts = {name: sum(sizes[path] for path in paths) for name, paths in of.items()}
    return {"moving": sum(sizes.values()) - counts["frozen"], **counts}
