"""What a model costs: parameters by module, FLOPs per sample by stage (source 002, R13)."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.extend
import numpy as np

from msajax.models import blank_sample
from msajax.spec import CorpusSpec

# Part of a stage, how it grows (S steps, d input features, D model_dim, F ff_dim, M modalities, L
# layers of an encoder, N points of integrated gradients, else 1), and the module or product whose
# matrix products it is.
_PARTS = {
    "input projection": ("S d D", {"projection"}),
    "tied projection": ("S D V", {"bte,ve->btv"}),  # V tokens
    "attention projections": ("S D^2", {"query", "key", "value", "out"}),
    "attention maps": ("S^2 D", {"bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"}),
    "feed-forward": ("S D F", {"ffn"}),
    "recurrence": ("S D^2", {"cell"}),
    "attention pooling": ("S D^2", {"pool"}),
    "gate": ("D^2 + D M", {"gate"}),
    "weighted sum": ("M D", {"bm,bmd->bd"}),
    "output": ("D", {"regression"}),
    "attribution": ("N L^2 (S D^2 + S^2 D + S D F)", {"attribution"}),
}


def matmul_flops(function: Callable, *arguments: Any) -> dict[tuple[str, ...], int]:
    """FLOPs of the matrix products (`dot_general`) of a function, by the modules they belong to.

    Two per multiplication; a loop of known length counts as often as it runs. Nothing is compiled.

    Raises:
        NotImplementedError: if a product is in a loop whose length is not known.
    """
    found: dict[tuple[str, ...], int] = {}

    def count(jaxpr: Any, scope: tuple[str, ...], times: int | None) -> None:
        for equation in jaxpr.eqns:
            inside = (*scope, *filter(None, str(equation.source_info.name_stack).split("/")))
            if equation.primitive.name == "dot_general":
                if times is None:
                    raise NotImplementedError("a matrix product in a loop of unknown length")
                (contracted, _), _ = equation.params["dimension_numbers"]
                left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
                size = int(np.prod([left[i] for i in contracted])) * int(np.prod(result))
                found[inside] = found.get(inside, 0) + 2 * size * times
            repeated = times
            if equation.primitive.name == "scan":
                repeated = None if times is None else times * equation.params["length"]
            elif equation.primitive.name == "while":
                repeated = None
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                count(inner, inside, repeated)

    count(jax.make_jaxpr(function)(*arguments).jaxpr, (), 1)
    return found


def cost_report(model: nn.Module, spec: CorpusSpec) -> dict[str, Any]:
    """The cost of one sample whose sequences fill their tables; strict-JSON-ready.

    `flops` are those of matrix products, `xla_flops` is XLA's own total of the forward pass before
    optimisation: element-wise operations too, but the body of a loop only once. A guided model's
    stages count both passes, and apart from them all that its attributions ask for, of which XLA
    leaves out what it finds computed already.
    """
    features, masks = blank_sample(spec)
    variables = jax.eval_shape(model.init, jax.random.key(0), features, masks)

    def score(variables: Any) -> jax.Array:
        prediction = model.apply(variables, features, masks)
        return sum(x.sum() for x in jax.tree.leaves((prediction.score, prediction.aux)))

    forward = matmul_flops(score, variables)
    both = matmul_flops(jax.value_and_grad(score), variables)
    stages: dict[tuple[str, str], int] = {}
    for scope, flops in forward.items():
        key = _stage_and_part(scope)
        stages[key] = stages.get(key, 0) + flops
    analysis = jax.jit(score).lower(variables).cost_analysis() or {}
    return {
        "sizes": {
            m: {"steps": spec.length(m), "features": spec.width(m)} for m in spec.modalities
        },
        "parameters": _parameters(variables["params"]),
        "stages": [
            {"stage": stage, "part": part, "grows_as": _PARTS[part][0], "flops": flops}
            for (stage, part), flops in stages.items()
        ],
        "flops": sum(forward.values()),
        "training_flops": sum(both.values()),
        "xla_flops": float(analysis["flops"]) if "flops" in analysis else None,
    }


def _stage_and_part(scope: tuple[str, ...]) -> tuple[str, str]:
    """Where a product inside these modules, the model the first of them, is counted."""
    if "attribution" in scope:
        return "guidance", "attribution"
    inside = scope[len(scope) - scope[::-1].index(scope[0]) :]  # a first pass is a model in a model
    return inside[0], _part(inside[1:] or inside)


def _part(scope: tuple[str, ...]) -> str:
    """The part of a stage that a product inside these modules belongs to."""
    for part, (_, names) in _PARTS.items():
        if any(name in names or (name.endswith("_pool") and "pool" in names) for name in scope):
            return part
    raise NotImplementedError(f"a matrix product in {'/'.join(scope)} that no part counts")


def _parameters(params: Mapping[str, Any]) -> dict[str, int]:
    """Parameters of every module, of the modules inside it, and in all."""
    counts: dict[str, int] = {}
    total = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        size = int(np.prod(leaf.shape))
        names = [entry.key for entry in path[:-1]]
        for module in dict.fromkeys(("/".join(names[:1]), "/".join(names[:2]))):
            counts[module] = counts.get(module, 0) + size
        total += size
    return {**counts, "total": total}
