"""Measures what recurrent layers cost against attention as sequences get longer.

    python bench/recurrent.py [--lengths=16,64,256,1024] [--rows=16] [--repeats=5]

One encoder layer of width 128 of each kind (a Transformer block with four heads and a feed-forward
of 512, an RNN, a GRU, an LSTM), in float32: milliseconds of a forward and backward pass over a
batch of equal lengths without dropout, the gradients being those of parameters and inputs. Prints a
Markdown table of medians with their ranges, and of each kind's time over that of attention. The
kinds take turns in every repeat. A few minutes on 2 cores.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp

from msajax.config import ModelConfig
from msajax.layers.transformer import ModalityEncoder

KINDS = ("transformer", "rnn", "gru", "lstm")
WIDTH = 128


def main() -> None:
    """Measures every kind at every length, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="16,64,256,1024")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    device, cores = jax.devices()[0].device_kind, len(os.sched_getaffinity(0))
    print(f"{device}, {cores} cores, batches of {options.rows}\n")
    print(f"| steps | {' | '.join(KINDS)} | {' | '.join(f'{k} / attention' for k in KINDS[1:])} |")
    print(f"|{'---|' * 2 * len(KINDS)}")
    for length in map(int, options.lengths.split(",")):
        passes = {kind: compiled(kind, options.rows, length) for kind in KINDS}
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(options.repeats):
            for kind, run in passes.items():
                times[kind].append(milliseconds(run))
        middle = {kind: statistics.median(found) for kind, found in times.items()}
        cells = [f"{middle[k]:.1f} ({min(found):.1f} to {max(found):.1f})"
                 for k, found in times.items()]  # fmt: skip
        cells += [f"{middle[kind] / middle['transformer']:.2f}" for kind in KINDS[1:]]
        print(f"| {length:,} | {' | '.join(cells)} |", flush=True)


def compiled(kind: str, rows: int, length: int) -> Callable[[], None]:
    """Compiles the forward and backward pass of one layer, and returns what runs it to its end."""
    config = ModelConfig(
        model_dim=WIDTH,
        num_heads=4,
        ff_dim=4 * WIDTH,
        n_layers_mod=1,
        mixer=kind,
        positions="none",
        input_projection="where_needed",
        dropout_rate=0.0,
    )
    encoder = ModalityEncoder(config, length)
    x = jax.random.normal(jax.random.key(0), (rows, length, WIDTH))
    mask = jnp.ones((rows, length), bool)
    variables = encoder.init(jax.random.key(1), x, mask, train=False)

    def loss(variables, x):
        return jnp.square(encoder.apply(variables, x, mask, train=True)).mean()

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(variables, x).compile()
    run = lambda: jax.block_until_ready(program(variables, x))  # noqa: E731
    run()  # which does not count
    return run


def milliseconds(run: Callable[[], None], least: float = 0.05) -> float:
    """Runs a pass for some time, and returns what one took."""
    start, passes = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < least or not passes:
        run()
        passes += 1
    return 1e3 * seconds / passes


if __name__ == "__main__":
    main()
