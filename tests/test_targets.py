"""Steps made for accelerators that are not there, and what a run would need of them."""

import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys

import chex
import numpy as np
import pytest
import toys
from tiny import descent, tiny_config

from msajax.config import MeshConfig
from msajax.errors import UserError
from msajax.layers.platform import made_for
from msajax.models.build import parameter_shapes
from msajax.preparation.batches import Batch
from msajax.runtime.targets import parse_target
from msajax.spec import CorpusSpec
from msajax.training.plan import plan, plan_on

SPEC = CorpusSpec(("text", "audio"), (6, 5), (5, 3))
CONFIG = tiny_config(
    model__n_layers_mod=1, model__dropout_rate=0.2, optim__name="adamw", train__seeds=4
)


def test_a_step_made_for_an_accelerator_is_that_of_a_cpu():
    rng, rows = np.random.default_rng(0), 6
    features = {m: rng.normal(size=(rows, SPEC.length(m), SPEC.width(m))) for m in SPEC.modalities}
    masks = {m: np.arange(SPEC.length(m)) < rng.integers(1, 4, (rows, 1)) for m in SPEC.modalities}
    features = {m: x.astype(np.float32) for m, x in features.items()}
    labels, ones = rng.normal(size=(rows, 1)).astype(np.float32), np.ones(rows, np.float32)
    batch = Batch(features, masks, labels, ones, np.arange(rows, dtype=np.int32))
    recipe = toys.recipe_of(CONFIG, SPEC)
    moves = descent(1.0, parameter_shapes(CONFIG.model, SPEC), clip_norm=0.1)
    recipe = dataclasses.replace(recipe, optimizer=moves)
    (first, expected), log = toys.steps(recipe, [batch], spec=SPEC)
    assert log[0].grad_norm > 0.1  # it is clipped
    for platform in ("gpu", "tpu"):
        moves = dataclasses.replace(moves, joins_norm=platform == "gpu")
        recipe = dataclasses.replace(recipe, optimizer=moves)
        with made_for(platform):
            (again, found), same = toys.steps(recipe, [batch], spec=SPEC)
        chex.assert_trees_all_equal(first, again)
        chex.assert_trees_all_close(found.params, expected.params, rtol=0, atol=2e-7)
        chex.assert_trees_all_close(same, log, rtol=1e-6)


@pytest.mark.parametrize(
    ("target", "mesh", "shape"),
    [
        ("tpu:v5e:2x4", {}, (4, 2, 1)),  # seeds first
        ("gpu:h100:8", {"model": 2}, (4, 1, 2)),
        ("gpu:h100:1", {}, (1, 1, 1)),
        ("tpu:v5e:16x16", {"mode": "pmap"}, (1, 256, 1)),
    ],
)
def test_the_plan_says_what_each_device_of_a_target_holds(target, mesh, shape):
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(**mesh))
    found, whole = plan_on(parse_target(target), config, SPEC, 1000), plan(config, SPEC)
    assert tuple(found["mesh"].values()) == shape and found["devices"] == np.prod(shape)
    (seeds, _, parts), needed = shape, found["needed"]
    numbers = 0  # of one seed, on one device: kernels lie over `model`, biases on all of it
    for shape in parameter_shapes(CONFIG.model, SPEC).values():
        numbers += math.prod(shape) // (parts if len(shape) > 1 and shape[1] % parts == 0 else 1)
    assert numbers == whole["parameters"]["moving"] or parts > 1
    assert needed["state"] == 4 * 3 * 4 // seeds * numbers  # two moments
    at_once = 4 // seeds if "gpu" in target else 1  # one after another on a TPU
    assert needed["gradients"] == 4 * at_once * numbers
    assert needed["data"] == 1000 * (5 * (4 * 6 + 1) + 3 * (4 * 5 + 1))
    assert needed.pop("total") == sum(needed.values()) and found["fits"]


@pytest.mark.parametrize("target", ["tpu:v5e:1x1", "tpu:v5e:2x4", "gpu:h100:1"])
def test_a_program_is_compiled_for_devices_that_are_not_there(target):
    pytest.importorskip("libtpu" if "tpu" in target else "jax_cuda13_plugin")
    root = pathlib.Path(__file__).resolve().parent.parent
    small = ("--rows=8", "--steps=2", f"--target={target}")
    done = subprocess.run(
        [sys.executable, root / "bench/ahead.py", root / "configs/text_only.py", *small],
        env={name: x for name, x in os.environ.items() if name != "XLA_FLAGS"},
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout) if done.returncode == 0 else pytest.fail(done.stderr)
    assert found["kernels"] > 10 and found["argument_mib"] > 0 and found["plain"] is None
    assert found["collectives"] == ({"all-reduce": 1} if "2x4" in target else {})
    assert (found["bytes"] is None) == ("gpu" in target)


def test_what_does_not_fit_is_said_and_what_there_is_not_is_refused():
    train = dataclasses.replace(CONFIG.train, batch_size=2**22)
    too_large = dataclasses.replace(CONFIG, train=train)
    found = plan_on(parse_target("tpu:v5e:1x1"), too_large, SPEC, 1000)
    assert not found["fits"] and found["needed"]["activations"] > 16 * 2**30 == found["memory"]
    asks = dataclasses.replace(CONFIG, mesh=MeshConfig(data=3))
    with pytest.raises(UserError, match="mesh.data = 3 .*needs 3 devices, but there are 1"):
        plan_on(parse_target("gpu:h100:1"), asks, SPEC, 1000)
    for text in ("tpu:v5e", "gpu:h100:0", "tpu:v5e:8", "cpu"):
        with pytest.raises(UserError, match=f"--target={text} is no target: write tpu:v5e:2x4"):
            parse_target(text)
