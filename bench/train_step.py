"""Measures training steps and inference against the same model in PyTorch, in one run.

    python bench/train_step.py [--dims=128,256] [--repeats=7]
        [--lengths=CORPUS.npz|aligned50|unaligned] [--samples=N]

On a CPU it prints one table: samples per second of msajax, PyTorch eager and torch.compile
(whichever is installed), medians over interleaved repeats, with ratios; then parameters,
matrix-product FLOPs, the share of the machine's own matrix-product peak, what the time of a step
goes into, compile seconds cold and cached, peak memory. On a GPU it prints the tables of
accelerator.py. All compute the same: scores are compared before anything is timed. AdamW, clip 1,
dropout 0.1, batch 32. Sequence lengths are those of the text of a corpus, or uniform in 1 … 20;
of aligned50, or unaligned (128 samples of these, unless told), they are as in CMU-MOSEI, 50 steps
at most, or 50 of text, 500 of audio and 375 of video. PyTorch takes whole batches of the longest,
as its users' programs do; msajax cuts them to their length quarter.
"""

import argparse
import dataclasses
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path.cwd())]

import accelerator
import jax
import jax.numpy as jnp
import numpy as np
import operations
from jax.experimental.compilation_cache import compilation_cache
from rich.console import Console
from rich.table import Table

from msajax.config import Config, MeshConfig, ModelConfig, OptimConfig, TrainConfig
from msajax.corpus.corpus import Split
from msajax.corpus.formats import open_corpus
from msajax.corpus.steps import spans, step_mask
from msajax.inference.bundle import Bundle
from msajax.inference.scoring import (
    EvaluationBatches,
    cut_batches,
    make_predict,
    predict_batches,
)
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.models.cost import matmul_flops
from msajax.preparation.batches import BLOCK, epoch_order, quarters_of
from msajax.preparation.fit import Preparation
from msajax.runtime.devices import make_layout
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS
from msajax.training.feed import Dispatch, Feed, Pace
from msajax.training.objective import make_objective
from msajax.training.optimizers import make_optimizer
from msajax.training.programs import make_programs
from msajax.training.step import Recipe, make_rates

BATCH, PAUSE = 32, 0.5  # rows of a step, seconds
_NAMES = ("text", "audio", "video")
SPEC = CorpusSpec(_NAMES, (300, 74, 47), (20, 20, 20))
SPECS = {
    "aligned50": CorpusSpec(_NAMES, (300, 74, 35), (50, 50, 50)),
    "unaligned": CorpusSpec(_NAMES, (300, 74, 35), (50, 500, 375)),
}


def make_split(shares: np.ndarray, spec: CorpusSpec) -> Split:
    """Makes random features, each sample of which has a share of the longest steps."""
    rng, features, masks = np.random.default_rng(0), {}, {}
    for m, longest, width in zip(spec.modalities, spec.lengths, spec.widths, strict=True):
        masks[m] = np.arange(longest) < np.maximum(np.round(shares * longest), 1)[:, None]
        x = rng.normal(size=(len(shares), longest, width)) * masks[m][..., None]
        features[m] = x.astype(np.float32)
    ids = np.arange(len(shares)).astype(str)
    return Split(ids, features, masks, labels=rng.normal(size=(len(shares), 1)))


def first_batch(split: Split) -> list[dict[str, np.ndarray]]:
    """Returns features and masks of the first rows, uncut."""
    return [{m: x[:BATCH] for m, x in a.items()} for a in (split.features, split.masks)]


def read_shares(lengths: str | None, samples: int) -> np.ndarray:
    """Returns what share of the longest steps samples have.

    Of a corpus it is that of the text of its training split, after compaction.
    """
    rng = np.random.default_rng(1)
    if lengths is None:
        return rng.integers(1, 21, samples) / 20
    if lengths in SPECS:  # 21 of 50 on average
        return np.clip(rng.beta(2, 2.76, samples), 0.02, 1)
    split = open_corpus(lengths).split("train")
    return np.maximum(spans(step_mask(split, "text", True))[1], 1) / 20


class Msajax:
    """Holds so many random seeds on one device: in turn on a CPU, together on a GPU."""

    def __init__(
        self,
        config: ModelConfig,
        split: Split,
        seeds: int = 1,
        steps_per_dispatch: int = BLOCK,
        spec: CorpusSpec = SPEC,
        optimizer: str = "adamw",
    ):
        self.split, self.seeds, self.spec = split, seeds, spec
        optim = OptimConfig(name=optimizer, clip_norm=1.0 if optimizer == "adamw" else 0.0)
        model, module = declared(config), build_model(config, spec)
        steps = -(-len(split) // BATCH)
        recipe = Recipe(
            module=module,
            model=model,
            optimizer=make_optimizer(optim, parameter_shapes(config, spec)),
            objective=make_objective(Config(model=config), model, "regression"),
            passes=(steps,) * max(len(model.stages), 1),
        )
        self.layout = make_layout(MeshConfig(data=1, seed=1), "auto", seeds)
        quarters = quarters_of(split, spec)
        rates = make_rates(Config(model=config), recipe.optimizer.rates(optim, 10_000))
        memory = model.memory and model.memory.begin(split.labels, spec)
        self.programs = make_programs(recipe, rates, spec, self.layout, memory)
        self.predict = make_predict(module, TASKS["regression"], self.layout)
        self.state = self.programs.init(np.arange(seeds, dtype=np.uint32))
        self.orders = [epoch_order(s, 0, quarters=quarters, batch_size=BATCH) for s in range(seeds)]
        self.passes = len(recipe.passes)
        self.feed, self.pace = Feed(split, spec, self.programs, self.layout, 1), Pace()
        self.pace.steps, self.stopped = steps_per_dispatch, np.zeros(seeds, bool)
        self.batches = EvaluationBatches(split, spec, self.layout)
        widths = zip(spec.modalities[1:], spec.widths[1:], strict=True)
        as_they_are = {m: (np.zeros(width), np.ones(width)) for m, width in widths}
        aligned = len(set(spec.lengths)) == 1
        groups = (spec.modalities,) if aligned else tuple((m,) for m in spec.modalities)
        preparation = Preparation(spec, (), as_they_are, 10.0, "uniform", True, groups=groups)
        served = Config(model=config, train=TrainConfig(compile_cache="off"))
        params = jax.device_get(self.state.params)
        self.bundle = Bundle(served, preparation, list(range(seeds)), [0] * seeds, params, "")

    def train(self) -> int:
        """Takes the steps of one epoch; returns the samples that it trained on."""
        for _ in range(self.passes):
            for dispatch in self.dispatches():
                self.run_dispatch(dispatch, dispatch.last)
        return self.seeds * len(self.split)

    def dispatches(self) -> Iterator[Dispatch]:
        """Yields the dispatches of the first epoch."""
        return self.feed.epoch(self.orders, self.stopped, 0, self.pace)

    def run_dispatch(self, dispatch: Dispatch, last: int) -> None:
        """Takes the steps of a dispatch up to `last`, and waits for them."""
        self.state, log = self.programs.train_steps(
            self.state, dispatch.batches, self.stopped, dispatch.first, last
        )
        jax.device_get(log)

    def infer(self) -> int:
        """Scores the whole split."""
        predict_batches(self.predict, self.state.variables, self.batches)
        return self.seeds * len(self.split)

    def infer_one(self) -> int:
        """Scores 20 samples one at a time, each as a request would come, by `Bundle.predict`."""
        for row in range(20):
            self.bundle.predict(*self.sample(row))
        return 20

    def sample(self, row: int) -> list[dict[str, np.ndarray]]:
        """Returns features and masks of one row."""
        sources = self.split.features, self.split.masks
        return [{m: x[row : row + 1] for m, x in source.items()} for source in sources]

    def scores(self) -> np.ndarray:
        """Returns the scores of the first 32 rows, uncut, of the first random seed."""
        batch = first_batch(self.split)
        return np.asarray(self.predict(self.state.variables, *batch).score[0])

    def peak_bytes(self) -> int | None:
        """Returns the most memory that arrays took on an accelerator; None on a CPU."""
        statistics_of_device = jax.devices()[0].memory_stats()
        return statistics_of_device and statistics_of_device["peak_bytes_in_use"]


class CompiledCall:
    """Runs what `Bundle.predict` runs on the device, alone: its samples lie there already."""

    def __init__(self, system: Msajax):
        self.scorer = system.bundle.scorer
        self.batches = []
        for row in range(20):
            one = Split(system.split.ids[:1], *system.sample(row))
            self.batches += cut_batches(one, system.spec, system.layout.put_rows)

    def infer_one(self) -> int:
        """Scores 20 samples one at a time."""
        for batch in self.batches:
            found = self.scorer.predict(self.scorer.variables, batch.features, batch.masks)
            jax.block_until_ready(found)
        return len(self.batches)


def interleaved(systems: dict, method: str, repeats: int) -> dict[str, list[float]]:
    """Times every system in turn, each behind a pause and a round that does not count.

    PyTorch's threads go on spinning for a while when their work is done, and would slow down
    whatever is timed next. Returns samples per second.
    """
    rates = {name: [] for name in systems}
    for _ in range(repeats):
        for name, system in systems.items():
            time.sleep(PAUSE)
            getattr(system, method)()
            started = time.perf_counter()
            samples = getattr(system, method)()
            rates[name].append(samples / (time.perf_counter() - started))
            print(f"{method} {name} {rates[name][-1]:.1f}", file=sys.stderr, flush=True)
    return rates


def matmul_peak(repeats: int) -> float:
    """Measures the FLOP/s of a large float32 product through XLA: the best of so many."""
    a = jnp.asarray(np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32))
    product = jax.jit(lambda x: x @ a)
    product(a).block_until_ready()
    best = 0.0
    for _ in range(repeats):
        started = time.perf_counter()
        product(a).block_until_ready()
        best = max(best, 2 * 1024**3 / (time.perf_counter() - started))
    return best


def compile_seconds(config: ModelConfig, split: Split, spec: CorpusSpec) -> tuple[float, float]:
    """Times the way from nothing to the first step, cold and from a filled cache, in seconds."""
    seconds = []
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        compilation_cache.reset_cache()
        for _ in range(2):
            jax.clear_caches()
            system, started = Msajax(config, split, spec=spec), time.perf_counter()
            system.run_dispatch(next(system.dispatches()), last=1)
            seconds.append(time.perf_counter() - started)
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
    return seconds[0], seconds[1]


def shares(config: ModelConfig, spec: CorpusSpec) -> str:
    """Says what the time of uncut steps goes into, by kinds of operations."""
    jax.clear_caches()
    system = Msajax(config, make_split(np.ones(8 * BATCH), spec), spec=spec)
    system.train()  # compiles
    seconds, of_kinds = operations.shares_of_time(system.train, "train_steps")
    said = ", ".join(f"{kind} {share:.0%}" for kind, share in of_kinds.items())
    return f"{seconds / 8 * 1e3:.0f} ms of operations in an uncut step: {said}"


def main() -> None:
    """Runs everything and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dims", default="128,256")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--lengths")
    parser.add_argument("--no_compile", action="store_true", help="leave torch.compile out")
    accelerator.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.rows == "accelerator" or (not arguments.rows and accelerator.is_there()):
        sys.exit(accelerator.report(arguments))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # PyTorch, too, is to take the CPU that JAX takes
    try:
        import torch

        peers = list(accelerator.PEERS[: 1 if arguments.no_compile else 2])
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    except ImportError:
        peers = []
        print("PyTorch is not installed: msajax alone is measured (pip install torch).")
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    spec = SPECS.get(arguments.lengths, SPEC)
    samples = arguments.samples or (128 if arguments.lengths == "unaligned" else 1284)
    split = make_split(read_shares(arguments.lengths, samples), spec)
    peak = matmul_peak(20)
    for dim in map(int, arguments.dims.split(",")):
        config = ModelConfig(model_dim=dim, ff_dim=2 * dim)
        measure(config, split, spec, peers, arguments.repeats, peak)


def measure(
    config: ModelConfig,
    split: Split,
    spec: CorpusSpec,
    peers: list[str],
    repeats: int,
    peak: float,
) -> None:
    """Prints the table of one width on a CPU, and what stands below it."""
    console, dim = Console(width=110), config.model_dim
    systems: dict = {"msajax": Msajax(config, split, spec=spec)}
    params = jax.tree.map(lambda x: np.asarray(x[0]), systems["msajax"].state.params)
    for name in peers:
        import timed_torch

        systems[name] = timed_torch.Torch(config, spec, split, params, name)
        difference = np.abs(systems[name].scores() - systems["msajax"].scores()).max()
        print(f"D={dim}: {name} and msajax differ by {difference:.1e} in a score")
    table = Table(title=f"samples per second, D={dim}, F={2 * dim}, batch {BATCH}")
    for column in ("", "system", "median", "min", "max", "msajax is faster by"):
        table.add_column(column, justify="right" if column not in ("", "system") else "left")
    medians = {}
    for method in ("train", "infer", "infer_one"):
        also: dict = {}
        if method == "train" and spec is SPEC:
            also = {"msajax, 5 seeds": Msajax(config, split, seeds=5)}
        elif method == "infer_one":
            also = {"msajax, compiled call": CompiledCall(systems["msajax"])}
        rates = interleaved(systems | also, method, repeats)
        ours = medians[method] = statistics.median(rates["msajax"])
        for name, values in rates.items():
            median = statistics.median(values)
            ratio = "" if name.startswith("msajax") else f"{ours / median:.2f}x"
            table.add_row(
                method, name, f"{median:.0f}", f"{min(values):.0f}", f"{max(values):.0f}", ratio
            )
    console.print(table)
    systems.clear()  # and with them their programs, which `shares` would take for its own

    one = dataclasses.replace(config, dropout_rate=0.0)
    batch, model = first_batch(split), build_model(one, spec)

    def score_sum(params):
        return model.apply({"params": params}, *batch).score.sum()

    flops = sum(matmul_flops(jax.grad(score_sum), params).values())
    reached = medians["train"] * flops / BATCH / peak
    where = shares(config, spec)
    cold, cached = compile_seconds(config, split, spec)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(
        f"D={dim}: {sum(x.size for x in jax.tree.leaves(params)):,} parameters; "
        f"{flops / BATCH / 1e6:.1f} M matrix-product FLOPs per uncut sample and step; msajax "
        f"trains at {reached:.0%} of the machine's own product peak of {peak / 1e9:.0f} GFLOP/s, "
        f"counting uncut samples; {where}; first step after {cold:.1f} s cold, {cached:.1f} s "
        f"cached; peak memory of this process {memory:.0f} MiB"
    )


if __name__ == "__main__":
    main()
