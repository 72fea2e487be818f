"""Compiles programs of an experiment for accelerators that are not there, and says what they cost.

    python bench/ahead.py CONFIG --target=tpu:v5e:2x4|gpu:h100:8 [--precision=bfloat16] [--seeds=5]
                          [--mode=jit|pmap] [--model=2] [--program=train|valid|predict]
                          [--rows=256] [--steps=50] [--output=F.jsonl]

Targets are tpu:v5e:1x1, 2x4 and 16x16, tpu:v6e:1x1 and 2x4, gpu:h100:1 and 8. Batches, widths and
lengths are those of the preset and its corpus, unless rows or steps are given. Prints a line of
JSON for each target: seconds to compile, and of a step (or of a call that predicts) floating-point
operations, bytes that kernels read and write, kernels, collectives, and the milliseconds that XLA
estimates; GPU compilers know neither operations nor bytes. Memory is that of one device. A dispatch
takes several steps in a loop: its program is compiled with one and with two of them in the loop's
body, and a step, of all seeds, is what the second one adds. `plain` is the same of a plain
rendering of the step (plain_step.py), for presets that it renders.

Needs requirements-ahead.txt. A CPU compiles: a minute or two a line.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from msajax.errors import UserError
from msajax.runtime.targets import parse_target

_PACKAGES = {"tpu": "libtpu", "gpu": "jax_cuda13_plugin"}
_KERNELS = ("fusion", "custom-call", "dot", "reduce", "copy", "scatter", "gather", "sort")
_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = .*?[\]\})] ([a-z][\w\-]*)\(", re.MULTILINE)
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84978434048 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def main() -> int:
    """Compiles for every target that is asked for, and prints a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="an experiment file")
    parser.add_argument("--target", nargs="+", required=True)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--mode", choices=("jit", "pmap"), default="jit")
    parser.add_argument("--model", type=int, default=1, help="mesh.model")
    parser.add_argument("--rows", type=int, help="of a batch, on all devices")
    parser.add_argument("--steps", type=int, help="of every sequence")
    parser.add_argument("--program", choices=("train", "valid", "predict"), default="train")
    parser.add_argument("--no_plain", action="store_true")
    parser.add_argument("--output", help="a file to which the lines are added")
    options = parser.parse_args()

    for target in options.target:
        try:
            package = _PACKAGES[parse_target(target).platform]
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
        if importlib.util.find_spec(package) is None:
            print(
                f"{target} needs {package}: pip install -r requirements-ahead.txt", file=sys.stderr
            )
            return 2
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        # Without cuBLAS at hand no tiles are found for some products.
        "XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=true",
    }
    for target in options.target:
        line = json.dumps(measure(target, options))
        print(line, flush=True)
        if options.output:
            with open(options.output, "a", encoding="utf-8") as file:
                print(line, file=file)
    return 0


def measure(target: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compiles one program, and its plain rendering, for a target."""
    import jax
    from plain_step import is_rendered

    from msajax.corpus.formats import open_own_or_fold
    from msajax.layers.platform import made_for
    from msajax.preparation.fit import fit

    config = read_config(options)
    corpus = open_own_or_fold(config.data.path, config.reading)
    spec = fit(corpus, config.reading, config.model, {}).spec
    devices = devices_of(target)
    with made_for(parse_target(target).platform):
        figures = {"train": of_training, "valid": of_scores, "predict": of_scores}[options.program](
            config, spec, devices, options.program
        )
    plain = None
    if options.program == "train" and not options.no_plain and is_rendered(config, spec):
        plain = of_plain(config, spec, devices)
    return {
        "config": options.config,
        "target": target,
        "program": options.program,
        "precision": options.precision,
        "seeds": options.seeds,
        "mode": options.mode,
        "model": options.model,
        "rows": config.train.batch_size,
        "steps": max(spec.lengths),
        "jax": jax.__version__,
        **figures,
        "plain": plain,
    }


def read_config(options: argparse.Namespace) -> Any:
    """Returns the experiment, on a synthetic corpus of its real one's widths and lengths."""
    from msajax.config import from_config_dict

    spec = importlib.util.spec_from_file_location("experiment", options.config)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config, small = module.get_config(), module.get_config("smoke")
    config.data.update(small.data)
    values = {
        "model.dtype": options.precision,
        "train.seeds": options.seeds,
        "mesh.mode": options.mode,
        "mesh.model": options.model,
        "mesh.seed": 1,
    }
    if options.rows:
        values["train.batch_size"] = options.rows
    if options.steps:
        lengths = (options.steps,) * len(config.data.synthetic.lengths)
        values |= {"data.synthetic.lengths": lengths, "model.max_len": options.steps}
    config.update_from_flattened_dict(values)
    return from_config_dict(config)


def devices_of(target: str) -> list[Any]:
    """Describes the devices of a target."""
    from jax.experimental import topologies

    platform, kind, size = parse_target(target)
    if platform == "tpu":
        hosts = {"chips_per_host_bounds": (1, 1, 1)} if size == "1x1" else {}
        topology = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{kind}:{size}", **hosts
        )
    else:
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=_H100, topology=f"1x1x{size}"
        )
    return list(topology.devices)


def of_training(config: Any, spec: Any, devices: list[Any], program: str) -> dict[str, Any]:
    """Returns the figures of a training step."""
    import jax
    import numpy as np

    from msajax.preparation.batches import BLOCK, Batch
    from msajax.training import programs
    from msajax.training.run import layout_of, make_recipe
    from msajax.training.step import make_rates

    recipe = make_recipe(config, spec, (1000,), frozenset(), ())
    rates = make_rates(config, recipe.optimizer.rates(config.optim, 10_000))
    layout = layout_of(config, devices)
    seeds, rows = config.train.seeds, config.train.batch_size
    rows += -rows % layout.data_devices
    sharding = layout.batch_sharding

    def lies(dtype: Any, *tail: int) -> Any:
        return jax.ShapeDtypeStruct((seeds, BLOCK, rows, *tail), dtype, sharding=sharding)

    features, masks = arrays_of(spec, lies)
    batches = Batch(
        features, masks, lies(np.float32, len(spec.label_names)), lies(np.float32), lies(np.int32)
    )

    def put(tree: Any, *axes: str) -> Any:
        where = layout.sharding(*axes)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(np.shape(x), jax.numpy.result_type(x), sharding=where),
            tree,
        )

    def lower() -> Any:
        programs.jit_programs.cache_clear()
        jitted = programs.jit_programs(recipe, spec, layout, ())
        bounds = put((np.zeros(seeds, bool), np.int32(0), np.int32(0)))
        if layout.mode == "pmap":
            state = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), jitted.state(seeds)
            )
            return jitted.lower_steps(state, {}, rates, batches, *bounds)
        return jitted.lower_steps(jitted.state(seeds), {}, put(rates), batches, *bounds)

    whole, seconds = compiled(lower())
    with two_steps(programs):
        both, _ = compiled(lower())
    one, two = count(whole), count(both)
    in_turn = seeds if layout.seed_axis == "map" else 1  # XLA counts the body of a loop once
    step = {name: subtract(two[name], one[name], in_turn) for name in one}
    return figures_of(step, whole, seconds)


@contextlib.contextmanager
def two_steps(programs: Any) -> Iterator[None]:
    """Puts two steps into the body of the loop."""
    step = programs.train_step

    def twice(state: Any, batch: Any, **more: Any) -> Any:
        state, _ = step(state, batch, **more)
        return step(state, batch, **more)

    programs.train_step = twice
    try:
        yield
    finally:
        programs.train_step = step


def of_scores(config: Any, spec: Any, devices: list[Any], program: str) -> dict[str, Any]:
    """Returns the figures of a batch of validation, or of one sample."""
    import jax

    from msajax.inference.scoring import evaluation_rows
    from msajax.training import programs
    from msajax.training.run import layout_of, make_recipe

    recipe = make_recipe(config, spec, (1000,), frozenset(), ())
    layout = layout_of(config, devices)
    jitted = programs.jit_programs(recipe, spec, layout, ())
    rows = evaluation_rows(spec)[-1] if program == "valid" else 1
    over = () if rows % layout.data_devices else ("data",)

    def lies(dtype: Any, *tail: int) -> Any:
        return jax.ShapeDtypeStruct((rows, *tail), dtype, sharding=layout.sharding(*over))

    variables = jitted.state(config.train.seeds).variables
    whole, seconds = compiled(jitted.predict.lower(variables, {}, *arrays_of(spec, lies)))
    return figures_of(count(whole), whole, seconds)


def of_plain(config: Any, spec: Any, devices: list[Any]) -> dict[str, Any]:
    """Returns the figures of the plain rendering's step, its rows spread over all devices."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from plain_step import make_plain

    plain, seeds = make_plain(config, spec), config.train.seeds
    mesh = Mesh(np.array(devices), ("data",))
    rows = config.train.batch_size + -config.train.batch_size % len(devices)

    of_seeds, step = ((seeds,), jax.vmap(plain.step)) if seeds > 1 else ((), plain.step)

    def lies(*over: str) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*(None for _ in of_seeds), *over))
        return lambda x: jax.ShapeDtypeStruct((*of_seeds, *x.shape), x.dtype, sharding=sharding)

    state = jax.tree.map(lies(), plain.state)
    batch = jax.tree.map(lies("data"), plain.batch(rows))
    whole, seconds = compiled(jax.jit(step, donate_argnums=0).lower(state, batch))
    return figures_of(count(whole), whole, seconds)


def arrays_of(spec: Any, lies: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the shapes of features and masks at the longest length."""
    import jax

    from msajax.models.contract import blank_sample

    return jax.tree.map(lambda x: lies(x.dtype, *x.shape[1:]), blank_sample(spec))


def compiled(lowered: Any) -> tuple[Any, float]:
    """Compiles a program; returns it and the seconds that it took."""
    began = time.perf_counter()
    return lowered.compile(), time.perf_counter() - began


def count(program: Any) -> dict[str, Any]:
    """Counts what a compiled program does, every loop's body once."""
    cost, text = program.cost_analysis() or {}, program.as_text()
    opcodes = Counter(_INSTRUCTION.findall("\n".join(launching(text))))
    collectives = {}
    for name in _COLLECTIVES:
        if found := opcodes[name] + opcodes[f"{name}-start"]:
            collectives[name] = found
    return {
        "flops": cost.get("flops"),
        "bytes": cost.get("bytes accessed"),
        "kernels": sum(opcodes[name] for name in _KERNELS),
        "collectives": collectives,
        "estimated_ms": 1e3 * cost["optimal_seconds"] if "optimal_seconds" in cost else None,
    }


def launching(text: str) -> list[str]:
    """Returns what launches kernels: the bodies of the entry and of loops, branches and calls."""
    bodies, entry = {}, ""
    for found in re.finditer(r"(?ms)^(ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", text):
        bodies[found[2]] = found[3]
        entry = found[2] if found[1] else entry
    reached, left = [], [entry]
    while left:
        name = left.pop()
        if name in reached:
            continue
        reached.append(name)
        for line in bodies[name].splitlines():
            if re.search(r"[\]\})] (?:while|conditional|call|async-start)\(", line):
                pattern = r"(?:body|to_apply|calls|\w+_computation)=%?([\w.\-]+)"
                left += re.findall(pattern, line)
                for branches in re.findall(r"branch_computations=\{([^}]*)\}", line):
                    left += re.findall(r"[\w.\-]+", branches)
    return [bodies[name] for name in reached]


def subtract(two: Any, one: Any, times: int) -> Any:
    """Returns what the second step adds to a figure, so many times."""
    if isinstance(two, dict):
        return {name: times * n for name in two if (n := two[name] - one.get(name, 0))}
    return None if two is None else times * (two - one)


def figures_of(counts: dict[str, Any], program: Any, seconds: float) -> dict[str, Any]:
    """Puts figures together, in the order of a line."""
    memory = program.memory_analysis()
    mib = {
        f"{name}_mib": round(getattr(memory, f"{name}_size_in_bytes") / 2**20, 2)
        for name in ("argument", "temp", "output")
    }
    estimate = counts["estimated_ms"]
    if estimate is not None and not (math.isfinite(estimate) and estimate > 0):
        estimate = None
    names = ("flops", "bytes", "kernels", "collectives")
    return {
        "compile_seconds": round(seconds, 1),
        **{name: counts[name] for name in names},
        **mib,
        "estimated_ms": estimate,
    }


if __name__ == "__main__":
    sys.exit(main())
