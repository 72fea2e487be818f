"""Parameters as vectors inside a program: the same training, whatever lies side by side."""

import jax
import numpy as np
import pytest
from tiny import run, tiny_config

from msajax.training import packing, programs
from msajax.training.groups import ParameterSettings

OTHER = ParameterSettings(1.0, 0.0, 0, group=2)
SETTINGS = {"a/kernel": ParameterSettings(1.0, 0.1, 0, group=1), "a/bias": OTHER, "b": OTHER,
            "c/kernel": ParameterSettings(1.0, 0.1, 0, group=1, frozen=True)}  # fmt: skip


def state_of(rng, axes=()):
    """A state like that of training, with what belongs to no parameter."""
    shapes = {"a": {"kernel": (2, 3), "bias": (3,)}, "b": (), "c": {"kernel": (4,)}}

    def draw():
        one = lambda shape: rng.normal(size=(*axes, *shape)).astype("f4")  # noqa: E731
        return jax.tree.map(one, shapes, is_leaf=lambda x: isinstance(x, tuple))

    return {"step": np.zeros(axes), "params": draw(), "opt_state": ({"mean": draw()}, {})}


def test_a_large_array_lies_alone():
    most = packing.LARGEST
    sizes = {"a": {"kernel": most, "bias": 3}, "b": most, "c": {"kernel": most + 1}}
    params = jax.tree.map(np.zeros, sizes)
    settings = SETTINGS | {"c/kernel": SETTINGS["a/kernel"]}
    packed = packing.make_packing(params, settings, True).pack(params)
    assert sorted(x.size for x in packed.values()) == [most, most + 1, most + 3]


@pytest.mark.parametrize("axes", [(), (5,)])
@pytest.mark.parametrize("joins", [True, False])
def test_arrays_of_a_kind_and_group_lie_side_by_side_and_come_back(axes, joins):
    state = state_of(np.random.default_rng(0), axes)
    found = packing.make_packing(state_of(np.random.default_rng(0)), SETTINGS, joins)
    packed = found.pack(state, len(axes))
    assert len(packed) == (1 + 2 * 3 if joins else 1 + 2 * 4)
    if joins:
        params = state["params"]
        expected = [params["a"]["bias"], params["b"][..., None]]
        np.testing.assert_array_equal(packed["params/group 2"], np.concatenate(expected, -1))
    back = found.unpack(packed, len(axes))
    jax.tree.map(np.testing.assert_array_equal, back, state)
    assert jax.tree.structure(back) == jax.tree.structure(state)


def test_a_run_whose_parameters_move_together_is_that_of_each_apart(tmp_path, monkeypatch):
    groups = ("regression/*:learning_rate=0.01", "text_encoder/*:frozen=true")
    # By the usual eps the gradient of a key's bias, which is 0 but for rounding, would move it.
    config = tiny_config(
        train__epochs=2, optim__name="adamw", optim__groups=groups, optim__average=0.5,
        optim__weight_decay=0.1, optim__clip_norm=0.5, optim__eps=1e-3,
    )  # fmt: skip
    runs = []
    for largest in (packing.LARGEST, 0):
        monkeypatch.setattr(packing, "LARGEST", largest)
        programs.jit_programs.cache_clear()  # else the second run has the programs of the first
        runs.append(run(config, tmp_path / f"{largest}").variables)
    programs.jit_programs.cache_clear()
    together, apart = runs
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6), together, apart
    )
