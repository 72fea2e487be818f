"""One pure step over any number of devices: layouts agree, whatever they are.

Adam turns rounding into steps where the true gradient is zero: attention does not see key biases.
So SGD is compared to 1e-6, and AdamW to 1e-5 but for key biases.
"""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from msajax.config import MeshConfig
from msajax.errors import UserError
from msajax.training.parallel import make_layout

HERE = pathlib.Path(__file__).resolve().parent
ONE = {"mode": "jit", "data": 1, "seed": 1, "seeds": 2, "accumulation_steps": 1}
LAYOUTS = {
    1: [ONE, ONE | {"mode": "pmap"}, ONE | {"accumulation_steps": 3}],
    2: [ONE | {"data": 2}, ONE | {"data": 2, "mode": "pmap"}, ONE | {"seed": 2}],
    4: [
        ONE | {"data": 4},
        ONE | {"data": 2, "seed": 2},
        ONE | {"data": 4, "mode": "pmap", "accumulation_steps": 2},
    ],
    8: [ONE | {"data": 8}, ONE | {"data": 8, "mode": "pmap"}, ONE | {"data": 4, "seed": 2}],
}
CASES = [(n, i) for n, layouts in LAYOUTS.items() for i in range(len(layouts))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every layout's parameters after 20 steps, a process for each number of devices."""
    folder = tmp_path_factory.mktemp("layouts")
    for devices, layouts in LAYOUTS.items():
        subprocess.run(
            [
                sys.executable,
                str(HERE / "layouts.py"),
                str(devices),
                str(folder / f"{devices}.npz"),
                *map(json.dumps, layouts),
            ],
            check=True,
            cwd=HERE.parent,
            env=os.environ | {"XLA_FLAGS": ""},
        )
    return {devices: dict(np.load(folder / f"{devices}.npz")) for devices in LAYOUTS}


def arrays_of(trained, devices, i, kind):
    prefix = f"{i}:{kind}:"
    found = trained[devices].items()
    return {k.removeprefix(prefix): v for k, v in found if k.startswith(prefix)}


@pytest.mark.parametrize(("devices", "i"), CASES)
def test_every_layout_takes_the_same_sgd_steps(trained, devices, i):
    assert trained[devices]["devices"] == devices
    expected, got = arrays_of(trained, 1, 0, "sgd"), arrays_of(trained, devices, i, "sgd")
    assert expected["steps"].tolist() == got["steps"].tolist() == [20, 20]
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=1e-6, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(("devices", "i"), CASES)
def test_every_layout_takes_the_same_adamw_steps_but_for_key_biases(trained, devices, i):
    expected, got = arrays_of(trained, 1, 0, "adamw"), arrays_of(trained, devices, i, "adamw")
    np.testing.assert_allclose(
        got["first_gradient_norm"], expected["first_gradient_norm"], rtol=1e-6
    )
    for name, value in expected.items():
        if "key/bias" not in name:
            np.testing.assert_allclose(got[name], value, atol=1e-5, rtol=0, err_msg=name)


def test_the_steps_that_are_compared_moved_every_parameter(trained):
    sgd = arrays_of(trained, 1, 0, "sgd")
    adamw = arrays_of(trained, 1, 0, "adamw")
    still = [k for k in sgd if k != "steps" and np.abs(sgd[k] - adamw[k]).max() < 1e-4]
    assert [k for k in still if "key/bias" not in k] == []


def test_too_many_devices_are_refused_with_both_numbers():
    there = len(jax.local_devices())
    with pytest.raises(UserError, match=f"needs {there + 1} devices, but there are {there}"):
        make_layout(MeshConfig(data=there + 1), "auto", 1)


def test_one_device_trains_seeds_in_turn_on_a_cpu():
    layout = make_layout(MeshConfig(), "auto", 5)
    assert layout.mesh.shape == {"seed": 1, "data": 1}
    assert layout.seed_axis == "map"
