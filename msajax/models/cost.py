"""Counts what a model costs: parameters by module, FLOPs per sample by stage (source 002, R13)."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.extend
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from msajax.models.contract import blank_sample
from msajax.spec import CorpusSpec

# What stands in a scope for a loop whose length is not known: its products are counted once.
UNKNOWN_LENGTH = "loop of unknown length"

# Part of a stage, how it grows (S steps, d input features, D model_dim, F ff_dim, M modalities, L
# layers of an encoder, N points of integrated gradients, else 1), and the modules or products whose
# matrix products it is. What no part names is counted as a part of its own.
_PARTS = {
    "input projection": ("S d D", {"projection"}),
    "tied projection": ("S D V", {"bte,ve->btv"}),  # V tokens
    "attention projections": ("S D^2", {"projections", "query", "key", "value", "out"}),
    "attention maps": ("S^2 D", {"maps"}),
    "feed-forward": ("S D F", {"ffn"}),
    "recurrence": ("S D^2", {"cell"}),
    "frames of sound": ("S d", {"convolutions"}),
    "positions by convolution": ("S D^2", {"encoder.positions"}),
    "gates of distances": ("S D", {"gates"}),
    "attention pooling": ("S D^2", {"pool"}),
    "gate": ("D^2 + D M", {"gate"}),
    "weighted sum": ("M D", {"bm,bmd->bd"}),
    "output": ("D^2", {"hidden", "regression"}),
    "attribution": ("N L^2 (S D^2 + S^2 D + S D F)", {"attribution"}),
}


def matmul_flops(function: Callable, *arguments: Any) -> dict[tuple[str, ...], int]:
    """Counts the FLOPs of a function's matrix products, by the modules that they belong to.

    A product is a `dot_general` or a convolution, two FLOPs per multiplication. A loop of known
    length counts as often as it runs. One of unknown length counts once, and stands as
    `UNKNOWN_LENGTH` among the modules of its products. Nothing is compiled; what no result needs
    is left out, as XLA does.
    """
    found: dict[tuple[str, ...], int] = {}
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    needed, _ = dce_jaxpr(program, [True] * len(program.outvars))
    for equation, scope, times in _equations(needed):
        if multiplications := _multiplications(equation):
            found[scope] = found.get(scope, 0) + 2 * multiplications * times
    return found


def _equations(
    jaxpr: Any, scope: tuple[str, ...] = (), times: int = 1
) -> Iterator[tuple[Any, tuple[str, ...], int]]:
    """Yields every operation of a program, the modules around it, and how often it runs."""
    for equation in jaxpr.eqns:
        inside = (*scope, *filter(None, str(equation.source_info.name_stack).split("/")))
        yield equation, inside, times
        repeated = times
        if equation.primitive.name == "scan":
            repeated *= equation.params["length"]
        elif equation.primitive.name == "while":
            inside = (*inside, UNKNOWN_LENGTH)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _equations(inner, inside, repeated)


def _multiplications(equation: Any) -> int:
    """Counts the multiplications of a matrix product or a convolution; 0 for all else."""
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        return int(np.prod([left[i] for i in contracted])) * int(np.prod(result))
    if equation.primitive.name == "conv_general_dilated":
        of_left, of_kernel, of_result = equation.params["dimension_numbers"]
        left, kernel = (variable.aval.shape for variable in equation.invars)
        result = equation.outvars[0].aval.shape
        # The kernel's second axis holds the input channels of one group alone.
        size = result[of_result[0]] * result[of_result[1]] * kernel[of_kernel[1]]
        for x, k, y in zip(of_left[2:], of_kernel[2:], of_result[2:], strict=True):
            # A step of the input, a tap and a step of the result: two of them fix the third. The
            # longest is left out, for dilations (of transposed convolutions and gradients) make
            # it longer by holes, which cost nothing.
            lengths = sorted((left[x], kernel[k], result[y]))
            size *= lengths[0] * lengths[1]
        return size
    return 0


def cost_report(model: nn.Module, spec: CorpusSpec) -> dict[str, Any]:
    """Reports the cost of one sample whose sequences fill their tables; strict-JSON-ready.

    `flops` are those of matrix products and convolutions, `xla_flops` is XLA's own total of the
    forward pass before optimisation: element-wise operations too, but the body of a loop only once.
    A product that no known part names is a part of its stage named after its module, and
    `grows_as` is None. A part with `counted_once` is in a loop of unknown length, of which one pass
    is counted; `training_flops` is None if JAX cannot differentiate such a loop. A guided model's
    stages count both passes, and apart from them all that its attributions ask for, of which XLA
    leaves out what it finds computed already.
    """
    features, masks = blank_sample(spec)
    variables = dict(jax.eval_shape(model.init, jax.random.key(0), features, masks))
    params = variables.pop("params", {})

    def score(params: Any, others: Any) -> jax.Array:
        prediction = model.apply({"params": params, **others}, features, masks)
        return sum(x.sum() for x in jax.tree.leaves((prediction.score, prediction.aux)))

    forward = matmul_flops(score, params, variables)
    stages: dict[_StagePart, int] = {}
    for scope, flops in forward.items():
        part = _part_of(scope)
        stages[part] = stages.get(part, 0) + flops
    try:
        training = sum(matmul_flops(jax.value_and_grad(score), params, variables).values())
    except ValueError:  # a loop of unknown length cannot be differentiated
        operations = _equations(jax.make_jaxpr(score)(params, variables).jaxpr)
        if all(equation.primitive.name != "while" for equation, _, _ in operations):
            raise
        training = None

    # The parameters of every module, of the modules inside it, and in all.
    counts: dict[str, int] = {}
    total = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        size = int(np.prod(leaf.shape))
        names = [jax.tree_util.keystr((entry,), simple=True) for entry in path]
        names = names[:-1] or names  # a parameter of the model itself stands under its own name
        for module in dict.fromkeys(("/".join(names[:1]), "/".join(names[:2]))):
            counts[module] = counts.get(module, 0) + size
        total += size

    analysis = jax.jit(score).lower(params, variables).cost_analysis() or {}
    return {
        "sizes": {m: {"steps": spec.length(m), "features": spec.width(m)} for m in spec.modalities},
        "parameters": {**counts, "total": total},
        "stages": [{**part._asdict(), "flops": flops} for part, flops in stages.items()],
        "flops": sum(forward.values()),
        "training_flops": training,
        "xla_flops": float(analysis["flops"]) if "flops" in analysis else None,
    }


class _StagePart(NamedTuple):
    stage: str
    part: str
    grows_as: str | None
    counted_once: bool


def _part_of(scope: tuple[str, ...]) -> _StagePart:
    """Finds where a product inside these modules, the model the first of them, is counted."""
    once = UNKNOWN_LENGTH in scope
    if "attribution" in scope:
        return _StagePart("guidance", "attribution", _PARTS["attribution"][0], once)
    scope = tuple(name for name in scope if name != UNKNOWN_LENGTH) or ("model",)
    # A first pass is a model in a model; a product of the model itself has no module inside it.
    inside = scope[len(scope) - scope[::-1].index(scope[0]) :] or scope[:1]
    stage, names = inside[0], inside[1:] or inside
    for part, (grows_as, known) in _PARTS.items():
        if any(name in known or (name.endswith("_pool") and "pool" in known) for name in names):
            return _StagePart(stage, part, grows_as, once)
    modules = [name for name in names if "->" not in name]  # an einsum is no module
    return _StagePart(stage, "/".join(modules) or stage, None, once)
