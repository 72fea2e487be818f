"""Plans what a run needs of memory and disk, before anything is trained."""

import math
from collections.abc import Mapping
from typing import Any

from msajax.config import Config
from msajax.models import declared, parameter_shapes
from msajax.runs.folder import KEPT
from msajax.spec import CorpusSpec
from msajax.training.optimizers import settings_of

_BYTES = 4  # of a float32


def plan(config: Config, spec: CorpusSpec) -> dict[str, Any]:
    """Says how many bytes the parameters of a run take, and what is kept beside them.

    What a step computes on its way (activations) is not in it: it grows with the batch.

    Args:
        config: the experiment.
        spec: sizes of the model's inputs.

    Returns:
        `parameters`, of one seed: `moving`, `frozen`, and `shared`, those of them that all seeds
        have once; `seeds_at_once`, trained together; `memory`, bytes of each kind and `total`;
        `disk`: `checkpoints` (those that are kept), `bundle`.
    """
    counts = _count(config, spec)
    at_once = config.train.seeds_at_once or config.train.seeds
    own = counts["moving"] + counts["frozen"] - counts["shared"]  # of each seed
    average = counts["moving"] if config.optim.average else 0
    state = at_once * (own + 2 * counts["moving"] + average)
    memory = {
        "parameters": at_once * own + counts["shared"],
        "moments": at_once * 2 * counts["moving"],
        "average": at_once * average,
        # A new best is made beside the old one; validation scores with a copy of neither.
        "best": 2 * at_once * own,
        "gradients": counts["moving"] * (at_once if config.train.seed_axis == "vmap" else 1),
        # The loop over several seeds has a copy of the state, and so has a checkpoint that is being
        # written, which holds the best parameters, too.
        "copies": (at_once > 1) * state + state + at_once * own,
    }
    memory = {name: _BYTES * numbers for name, numbers in memory.items()}
    of_checkpoint = state + at_once * own
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


def _count(config: Config, spec: CorpusSpec) -> Mapping[str, int]:
    shapes = parameter_shapes(config.model, spec)
    settings = settings_of(config.optim, shapes)
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    frozen = [path for path in sizes if settings[path].frozen]
    within = f"{declared(config.model).text_encoder}/" if config.model.text_encoder else None
    shared = [path for path in frozen if within and path.startswith(within)]
    of = {"frozen": frozen, "shared": shared}
    counts = {name: sum(sizes[path] for path in paths) for name, paths in of.items()}
    return {"moving": sum(sizes.values()) - counts["frozen"], **counts}
