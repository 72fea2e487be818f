"""Measures training on a GPU: msajax against PyTorch eager, compiled and as CUDA graphs.

Called by train_step.py. Every row of the tables is a process of its own, so that its peak memory is
its own and a row that fails takes no other with it. On a CPU (`--rows=accelerator`) the same rows
run, without those of CUDA graphs and without the memory of a device.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
EAGER, COMPILED = "torch eager", "torch.compile"
REPLAYED, WHOLE_GRAPH = "torch.compile, CUDA graphs", "torch, step as a CUDA graph"
PEERS = (EAGER, COMPILED, REPLAYED, WHOLE_GRAPH)
NUMBERS = {  # in what products are computed, as settings of `model.*`
    "float32": {},
    "tensorfloat32": {"matmul_precision": "tensorfloat32"},
    "bfloat16": {"dtype": "bfloat16"},
}
STEPS_PER_DISPATCH = (1, 4, 16)
UNCUT = 64 * 32  # samples of the rows above: 64 batches of one length quarter
COMPARED_AFTER = 20  # steps, when two runs' bits are compared
LIMIT = 900  # seconds of a row
METHODS = ("train", "infer", "infer_one")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Says what all rows of a table share.

    Attributes:
        dim: width of the model.
        lengths: a corpus whose lengths of text the samples have; "" draws them from 1 … 20.
        samples: of the split; 0 takes all.
        repeats: how often every measurement is taken.
    """

    dim: int
    lengths: str
    samples: int
    repeats: int


@dataclasses.dataclass(frozen=True)
class Row:
    """Says what one process measures.

    Attributes:
        system: msajax, or one of `PEERS`.
        number: one of `NUMBERS`.
        seeds: random seeds in one program, of msajax.
        steps: steps of a dispatch, of msajax, on uncut sequences; 0 measures what a run does.
        deterministic: whether XLA's flag for it is set, as by `train.deterministic`.
        asked: time, or what is asked for in place of it: bits, a digest of all that a few steps
            change, or shares, what the time of a step goes into.
    """

    system: str
    number: str = "float32"
    seeds: int = 1
    steps: int = 0
    deterministic: bool = True
    asked: str = "time"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that only these tables read."""
    parser.add_argument("--rows", default="", help="cpu or accelerator; by default what there is")
    parser.add_argument("--samples", type=int, default=0, help="at most; 0: all")
    parser.add_argument("--numbers", default=",".join(NUMBERS), help="of an accelerator's rows")
    parser.add_argument("--seeds", default="1,5,20", help="in one program, of the first number")


def is_there() -> bool:
    """Asks JAX for an accelerator, in a process of its own: this one must leave its memory free."""
    asked = "import jax; print(jax.default_backend())"
    found = subprocess.run([sys.executable, "-c", asked], stdout=subprocess.PIPE, text=True)
    return found.stdout.strip() not in ("", "cpu")


def report(arguments: argparse.Namespace) -> int:
    """Prints the tables of every width; returns 1 if a row of msajax failed or bits differ."""
    numbers, counts = arguments.numbers.split(","), [int(n) for n in arguments.seeds.split(",")]
    peers = (EAGER, WHOLE_GRAPH) if arguments.no_compile else PEERS
    alone = {number: Row("msajax", number) for number in numbers}
    rows = [*alone.values(), *(Row("msajax", numbers[0], n) for n in counts if n > 1)]
    rows += [Row("msajax", numbers[0], deterministic=False)]
    rows += [Row(peer, number) for number in numbers for peer in peers]
    healthy = True
    for dim in map(int, arguments.dims.split(",")):
        setting = Setting(dim, arguments.lengths or "", arguments.samples, arguments.repeats)
        found = {row: _measure_apart(setting, row) for row in rows}
        _print_table(setting, found)
        healthy &= all("error" not in found[row] for row in rows if row.system == "msajax")
        print("\nSteps per dispatch, uncut sequences, samples per second:")
        for steps in STEPS_PER_DISPATCH:
            result = _measure_apart(setting, Row("msajax", numbers[0], steps=steps))
            healthy &= "error" not in result
            print(f"- {steps}: {_range(result.get('train')) or result['error']}")
        for number, row in alone.items():
            again = _measure_apart(setting, dataclasses.replace(row, asked="bits"))
            shares = _measure_apart(setting, dataclasses.replace(row, asked="shares"))
            equal = "bits" in again and again["bits"] == found[row].get("bits")
            healthy &= equal
            said = "equal" if equal else f"DIFFERENT: {found[row].get('bits')}, {again}"
            print(f"\n{number}: {shares.get('shares') or shares['error']}")
            print(f"Bits after {COMPARED_AFTER} steps of two processes from one seed: {said}")
    return int(not healthy)


def _print_table(setting: Setting, found: dict[Row, dict]) -> None:
    """Prints a line for every row; the first one is what the others are compared with."""
    first = next(iter(found))
    print(f"\nD={setting.dim}, F={2 * setting.dim}, batch 32; samples per second of all seeds")
    print("together (median, lowest to highest), how many times eager's speed and the time of one")
    print("seed that is, seconds to the end of the first epoch, peak MiB on the device, largest")
    print(f"difference of a score from {first.system}, {first.number}.\n")
    columns = ("", "training", "times eager", "times one seed", "inference", "one sample")
    print(f"| {' | '.join((*columns, 'first epoch', 'MiB', 'score'))} |\n|{'---|' * 9}")
    for row, result in found.items():
        name = f"{row.system}, {row.number}" + f", {row.seeds} seeds" * (row.seeds > 1)
        name += "" if row.deterministic else ", not deterministic"
        if "error" in result:
            print(f"| {name} | {result['error']} {'| ' * 8}")
            continue
        speed = statistics.median(result["train"])
        eager, one = (found.get(Row(x, row.number), {}) for x in (EAGER, "msajax"))
        faster = f"{speed / statistics.median(eager['train']):.1f}" if "train" in eager else ""
        longer = ""
        if row.seeds > 1 and "train" in one:
            longer = f"{row.seeds * statistics.median(one['train']) / speed:.1f}"
        memory, scores = result["peak_bytes"], found[first].get("scores")
        apart = scores and max(abs(a - b) for a, b in zip(scores, result["scores"], strict=True))
        cells = [name, _range(result["train"]), faster, longer]
        cells += [_range(result.get("infer")), _range(result.get("infer_one"))]
        cells += [f"{result['first_epoch']:.1f}", f"{memory / 2**20:.0f}" if memory else ""]
        cells += ["" if apart is None else f"{apart:.0e}"]
        print(f"| {' | '.join(cells)} |")


def _range(rates: list[float] | None) -> str:
    if not rates:
        return ""
    return f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"


def _measure_apart(setting: Setting, row: Row) -> dict:
    """Measures a row in a process of its own; `{"error": …}` if that fails."""
    environment = dict(os.environ)
    if row.system != "msajax":
        environment["JAX_PLATFORMS"] = "cpu"  # JAX only makes the parameters that both begin with
    if row.asked == "shares":  # as one CUDA graph the operations of a program have no names
        flag = "--xla_gpu_enable_command_buffer="
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flag}".strip()
    asked = json.dumps([dataclasses.asdict(setting), dataclasses.asdict(row)])
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, __file__, asked],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        last = lines[-1] if lines else f"exit code {done.returncode}"
        result = json.loads(last) if done.returncode == 0 else {"error": last[:200]}
    except subprocess.TimeoutExpired:
        result = {"error": f"not done after {LIMIT} s"}
    said = _range(result.get("train")) or result.get("error", row.asked)
    print(f"{time.monotonic() - started:5.0f} s  {row}: {said}", file=sys.stderr, flush=True)
    return result


def measure(setting: Setting, row: Row) -> dict:
    """Measures a row in this process."""
    sys.path[:0] = [str(HERE), str(pathlib.Path.cwd())]
    from msajax.config import TrainConfig
    from msajax.runtime.devices import configure_jax

    configure_jax(TrainConfig(deterministic=row.deterministic, compile_cache="off"))
    import jax
    import numpy as np
    import train_step

    from msajax.config import ModelConfig
    from msajax.preparation import batches
    from msajax.training import feed

    shares = train_step.read_shares(setting.lengths or None, setting.samples or 1284)
    shares = np.ones(UNCUT) if row.steps else shares
    split = train_step.make_split(shares[: setting.samples or None], train_step.SPEC)
    config = ModelConfig(model_dim=setting.dim, ff_dim=2 * setting.dim, **NUMBERS[row.number])
    if row.asked == "shares":
        return {"shares": train_step.shares(config, train_step.SPEC)}
    if row.system == "msajax":
        steps = row.steps or batches.BLOCK
        if steps > batches.BLOCK:  # a dispatch takes steps of one block
            batches.BLOCK = feed.BLOCK = steps
        system = train_step.Msajax(config, split, row.seeds, steps)
    else:
        import timed_torch

        state = train_step.Msajax(ModelConfig(model_dim=setting.dim, ff_dim=2 * setting.dim), split)
        params = jax.tree.map(lambda x: np.asarray(x[0]), state.state.params)
        system = timed_torch.Torch(config, train_step.SPEC, split, params, row.system, row.number)
    result = {"scores": np.ravel(system.scores()).tolist()}
    started = time.perf_counter()
    if row.system == "msajax":
        result["bits"] = _bits(system)
    if row.asked == "bits":
        return result
    system.train()
    result["first_epoch"] = time.perf_counter() - started
    alone = row.seeds == 1 and not row.steps and row.deterministic
    for method in METHODS if alone and row.system != WHOLE_GRAPH else METHODS[:1]:
        rates = train_step.interleaved({"": system}, method, setting.repeats)
        result[method] = rates[""]
    result["peak_bytes"] = system.peak_bytes()
    return result


def _bits(system) -> str:
    """Takes the first steps of an epoch, and returns a digest of all that they have changed."""
    import jax

    left = COMPARED_AFTER
    for dispatch in system.dispatches():
        last = min(dispatch.last, dispatch.first + left)
        system.run_dispatch(dispatch, last)
        left -= last - dispatch.first
        if left == 0:
            break
    digest = hashlib.sha256()
    for x in jax.tree.leaves(jax.device_get(system.state)):
        digest.update(x.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    the_setting, the_row = json.loads(sys.argv[1])
    print(json.dumps(measure(Setting(**the_setting), Row(**the_row))))
