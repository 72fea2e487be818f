"""Trains tiny runs on several layouts of virtual CPU devices; writes what they came to.

A fork of its own for every number of devices, whose arguments are OUTPUT.npz LAYOUT…
with a layout as JSON: {"mode": "jit", "data": 2, "seed": 1, "seeds": 2, "accumulation_steps": 1},
perhaps with "model", "streams", "loss", "small" (one modality of one step) and "optimizers", which
are ["sgd"] or with "adamw". With
PROCESSES="HOST:PORT COUNT ID" in the environment it is one of several processes, with so many
devices each, of which the first one writes; each also writes the rows that it has read of features
that stream, one array for every reading. With INTERRUPTED=FOLDER in the environment it also trains
whole runs there, some with interruptions, of three random seeds over two devices.
"""

import json
import os
import pathlib
import sys

import jax
import numpy as np
from survivors import StopAfter, differences, state_of
from tiny import SMALLEST, descent, lines_of, rates_of, run, tiny_config

from msajax.corpus.formats import open_corpus
from msajax.corpus.on_demand import OnDemand
from msajax.inference.scoring import predict_program
from msajax.layers import long_attention
from msajax.models.build import build_model, declared, parameter_shapes
from msajax.preparation.apply import prepare
from msajax.preparation.batches import QUARTERS, epoch_order
from msajax.preparation.fit import fit
from msajax.runtime import processes
from msajax.runtime.devices import deal, make_layout
from msajax.tasks import TASKS
from msajax.training.feed import Feed, Pace
from msajax.training.objective import make_objective
from msajax.training.optimizers import make_optimizer
from msajax.training.programs import make_programs
from msajax.training.run import layout_of
from msajax.training.step import Recipe
from msajax.training.transforms import make_transforms

STEPS = 6  # more than an epoch has
# 44 rows in batches of 9: neither divides by the devices, and the last batch is filled.
SETTINGS = {
    "train__batch_size": 9,
    "train__terms": ("gate_entropy=0.1",),
    "train__transforms": ("modality_dropout:*=0.2", "step_dropout:text=0.2", "feature_noise:*=0.1"),
    "model__dropout_rate": 0.2,
    "model__input_dropout": 0.1,
}


def train(layout: dict, kind: str) -> dict[str, np.ndarray]:
    """STEPS steps of SGD, or of AdamW, from the same start; parameters, and their way, by path."""
    small = SMALLEST | {"train__terms": (), "train__transforms": ("feature_noise:*=0.1",)}
    config = tiny_config(
        **SETTINGS | (small if layout.get("small") else {}),
        train__loss=layout.get("loss", "l1"),
        mesh__mode=layout["mode"],
        mesh__data=layout["data"],
        mesh__seed=layout["seed"],
        mesh__model=layout.get("model", 1),
        train__seeds=layout["seeds"],
        train__accumulation_steps=layout["accumulation_steps"],
        optim__name="adamw",
        optim__weight_decay=0.01,
        optim__clip_norm=1.0,
        optim__learning_rate=1e-3,
    )
    corpus = open_corpus(config.data.path, config.data)
    preparation = fit(corpus, config.data, config.model)
    budget = 0 if layout.get("streams") else 2**31
    split, _ = prepare(corpus.split("train"), preparation, budget)
    spec = preparation.spec
    quarters = np.full(len(split), QUARTERS)  # one program, not one for each length quarter
    paths = parameter_shapes(config.model, spec)
    adamw = make_optimizer(config.optim, paths)
    model = declared(config.model)
    recipe = Recipe(
        module=build_model(config.model, spec),
        model=model,
        optimizer=adamw if kind == "adamw" else descent(0.05, paths, clip_norm=1.0),
        objective=make_objective(config, model, "regression"),
        transforms=make_transforms(config.train.transforms, spec),
        accumulation_steps=layout["accumulation_steps"],
    )
    where = make_layout(config.mesh, "auto", layout["seeds"])
    programs = make_programs(recipe, rates_of(recipe, STEPS, config), spec, where)
    state = programs.init(np.arange(layout["seeds"], dtype=np.uint32))
    feed = Feed(split, spec, programs, where, layout["accumulation_steps"])
    dealt, taken, first = deal(np.zeros(layout["seeds"], bool), where), 0, None
    start = where.get(state.params)
    state = dealt.spread(state)
    for epoch in range(STEPS):  # a Pace takes one step at a time until it has learned more
        orders = [
            epoch_order(s, epoch, quarters=quarters, batch_size=9) for s in range(layout["seeds"])
        ]
        orders = [orders[k] for k in dealt.seeds]
        for _, batches, begin, end, _ in feed.epoch(orders, dealt.stopped, 0, Pace()):
            if taken == STEPS:
                break
            state, log = programs.train_steps(state, batches, dealt.stopped, begin, end)
            first = first or jax.device_get(log)
            taken += end - begin
    state = dealt.collect(state)
    end = where.get(state.params)
    of_both = {"params": end, "moved": jax.tree.map(np.subtract, end, start)}
    flat = jax.tree_util.tree_leaves_with_path(of_both)
    arrays = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in flat}
    terms = {"first_sums": first.sums[:, 0], "first_weights": first.weights[:, 0]}
    arrays |= terms | {"first_gradient_norm": first.grad_norm[:, 0]}
    return arrays | {"steps": where.get(state.step)}


def interrupted(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Trains three seeds over two devices, whole, with interruptions, and each seed alone.

    The last one is the first to stop.
    """
    first_seed = 7
    settings = SMALLEST | {
        "train__epochs": 6,
        "train__patience": 1,
        "train__checkpoint_every_steps": 4,
        "optim__learning_rate": 0.02,
        "mesh__data": 1,
    }
    folder.mkdir()
    config = tiny_config(**settings, train__seeds=3, train__first_seed=first_seed, mesh__seed=2)
    whole = run(config, folder / "whole")
    for questions in (4, 9, 14):
        run(config, folder / "parts", stop=StopAfter(questions))
    run(config, folder / "parts")
    found = differences(folder / "parts", folder / "whole", finished=False)
    sizes = {len(x) for key, x in state_of(folder / "whole").items() if key.startswith("train/")}
    arrays = {"differences": np.array(found), "sizes": np.array(sorted(sizes))}
    stops = {line["seed"]: line["epoch"] for line in lines_of(folder / "whole") if line["stopped"]}
    arrays["stops"] = np.array([stops[seed] for seed in range(first_seed, first_seed + 3)])
    arrays["best_epoch"] = np.array(whole.best_epoch)
    layout = layout_of(config)
    arrays["copies"] = np.array([layout.copies, layout.for_rows.data_devices])
    for k in range(3):
        alone = {"train__seeds": 1, "train__first_seed": first_seed + k, "mesh__seed": 1}
        one = tiny_config(**settings, **alone)
        alone = run(one, folder / f"seed_{k}")
        arrays[f"best_epoch_{k}"] = np.array(alone.best_epoch[0])
        of_both = jax.device_get((whole.variables["params"], alone.variables["params"]))
        apart = jax.tree.map(lambda a, b, k=k: np.abs(a[k] - b[0]).max(), *of_both)
        flat = jax.tree_util.tree_leaves_with_path(apart)
        named = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in flat}
        arrays |= {f"apart_{k}:{name}": x for name, x in named.items()}
    return {f"interrupted:{name}": x for name, x in arrays.items()}


def gathered() -> dict[str, np.ndarray]:
    """Counts the arrays that devices gather to predict, where attention takes row after row."""
    long_attention._LONG, long_attention._ELEMENTS_CPU = 1, 1
    config = tiny_config(mesh__seed=1)
    spec = fit(open_corpus(config.data.path, config.data), config.data, config.model).spec
    module, where = build_model(config.model, spec), make_layout(config.mesh, "auto", 1)
    rows = 2 * where.data_devices
    shapes = {m: [rows, spec.length(m), spec.width(m)] for m in spec.modalities}
    features = {m: np.ones(shape, np.float32) for m, shape in shapes.items()}
    given = [features, {m: np.ones(shape[:2], bool) for m, shape in shapes.items()}]
    variables = module.init(jax.random.key(0), *given, train=False)
    variables = jax.tree.map(lambda x: x[None], {"params": variables["params"]})
    program = predict_program.__wrapped__(module, TASKS["regression"], where)
    given = where.put_state(variables), {}, *where.put_rows(given)
    text = program.lower(*given).compile().as_text()
    assert "while(" in text
    return {"gathered": np.array([where.data_devices, text.count(" all-gather(")])}


def main() -> None:
    """Trains the layouts that the command line names."""
    if meeting := os.environ.get("PROCESSES"):
        address, count, process_id = meeting.split()
        processes.join(address, int(count), int(process_id), 600)
    results, rows_read, read = {}, [], OnDemand.__getitem__

    def watched(self, key):
        rows_read.append(key[0])
        return read(self, key)

    OnDemand.__getitem__ = watched
    for i, layout in enumerate(map(json.loads, sys.argv[2:])):
        for kind in layout.get("optimizers", ["sgd"]):
            trained = train(layout, kind)
            results |= {f"{i}:{kind}:{name}": x for name, x in trained.items()}
    if folder := os.environ.get("INTERRUPTED"):
        results |= interrupted(pathlib.Path(folder)) | gathered()
    if processes.is_first():
        np.savez(sys.argv[1], devices=jax.device_count(), **results)
    np.savez(f"{sys.argv[1]}.rows{jax.process_index()}", *rows_read)
