"""Promises of training: seeds are independent, dispatches invisible, resumption exact."""

import dataclasses
import shutil

import chex
import jax
import numpy as np
import pytest
from survivors import differences, state_of
from tiny import SMALLEST, lines_of, run, tiny_config

from msajax.config import Config
from msajax.errors import UserError
from msajax.runs.checkpoints import Checkpoints
from msajax.runtime.profiler import Profiler, make_folder
from msajax.training import feed, programs

# Two length quarters, so that steps have two programs.
SETTINGS = {**SMALLEST, "data__synthetic__lengths": (2,), "train__seeds": 3}
CONFIG = tiny_config(**SETTINGS)
STOPPING = tiny_config(**SETTINGS, train__epochs=14, train__patience=1)


def alone(config: Config, seed: int) -> Config:
    """The same, of one random seed."""
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, seeds=1, first_seed=seed)
    )


def one_seed(variables, k: int):
    """Those of member k of a run."""
    return jax.tree.map(lambda x: np.asarray(x[k]), variables)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Three seeds, four epochs, without interruption; a step is traced once a length quarter."""
    folder = tmp_path_factory.mktemp("whole")
    programs.jit_programs.cache_clear()  # another file may have had this run
    train_step, traced = programs.train_step, []

    def counted(*args, **named):
        traced.append(named)
        return train_step(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "train_step", counted)
        trained = run(CONFIG, folder)
    assert len(traced) == 2
    return trained, folder


def test_another_run_of_the_same_settings_traces_and_compiles_nothing(whole_run, tmp_path):
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
    settings = {"train__first_seed": 1, "train__epochs": 5, "train__checkpoint_every_steps": 3}
    assert run(tiny_config(**SETTINGS, **settings), tmp_path / "other").finished
    assert [name for name in events if "/core/compile/" in name] == []
    run(tiny_config(**SETTINGS, optim__schedule="constant"), tmp_path / "another schedule")
    assert [name for name in events if "/core/compile/" in name]


def test_seeds_differ_from_each_other(whole_run):
    kernels = np.asarray(whole_run[0].variables["params"]["text_encoder"]["projection"]["kernel"])
    assert np.abs(kernels[0] - kernels[1]).max() > 0.01


def test_one_step_a_dispatch_and_a_whole_epoch_a_dispatch_are_bit_equal(
    whole_run, tmp_path, monkeypatch
):
    together, folder = whole_run
    monkeypatch.setattr(feed.Pace, "update", lambda *_: None)
    monkeypatch.setattr(
        feed.Pace, "__init__", lambda self: vars(self).update(steps=1, compiled=set())
    )
    single = run(CONFIG, tmp_path / "single")
    monkeypatch.setattr(
        feed.Pace, "__init__", lambda self: vars(self).update(steps=1000, compiled=set())
    )
    whole = run(CONFIG, tmp_path / "whole")
    chex.assert_trees_all_equal(single.variables, whole.variables)
    chex.assert_trees_all_equal(single.variables, together.variables)
    assert differences(tmp_path / "single", tmp_path / "whole", finished=False) == []


def test_a_corpus_that_streams_gives_the_bits_of_one_on_the_device(whole_run, tmp_path):
    together, folder = whole_run
    streamed = run(tiny_config(**SETTINGS, data__device_memory_budget=0), tmp_path)
    chex.assert_trees_all_equal(streamed.variables, together.variables)
    assert differences(tmp_path, folder, finished=False) == []


def test_resumption_is_exact_and_repairs_the_lines_of_unsaved_epochs(whole_run, tmp_path):
    together, folder = whole_run
    paused = run(CONFIG, tmp_path, stop_after_epochs=2)
    assert not paused.finished
    text = (tmp_path / "metrics.jsonl").read_text()
    last = text.splitlines()[-1]
    assert '"epoch": 2' in last
    # A line of an epoch that was not saved, and one of which a part was written.
    lost = last.replace('"epoch": 2', '"epoch": 3') + "\n" + last[: len(last) // 2]
    (tmp_path / "metrics.jsonl").write_text(text + lost)
    resumed = run(CONFIG, tmp_path)
    assert resumed.finished
    chex.assert_trees_all_equal(resumed.variables, together.variables)
    assert resumed.best_epoch == together.best_epoch
    assert differences(tmp_path, folder, finished=False) == []


def test_map_and_vmap_agree_to_rounding_on_the_first_epoch(tmp_path):
    # Adam turns rounding into steps where a gradient is zero, so only the first steps compare.
    settings = {"train__epochs": 1, "train__batch_size": 44, "optim__learning_rate": 1e-3}
    settings |= SMALLEST | {"train__loss": "mse"}
    by_map = run(tiny_config(**settings), tmp_path / "map")
    by_vmap = run(tiny_config(train__seed_axis="vmap", **settings), tmp_path / "vmap")
    (a, *_), (b, *_) = lines_of(tmp_path / "map"), lines_of(tmp_path / "vmap")
    assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-6)
    assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-6)

    def comparable(trained):
        flat = jax.tree_util.tree_leaves_with_path(trained.variables["params"])
        return {
            jax.tree_util.keystr(path): leaf for path, leaf in flat if "key" not in str(path)
        }

    chex.assert_trees_all_close(comparable(by_map), comparable(by_vmap), atol=1e-5)


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """Three seeds that stop by themselves, at different epochs."""
    folder = tmp_path_factory.mktemp("stopped")
    return run(STOPPING, folder), folder


def test_a_stopped_seed_writes_no_more_lines_and_keeps_its_parameters(stopped_run, tmp_path):
    trained, folder = stopped_run
    lines = lines_of(folder)
    last = {line["seed"]: line["epoch"] for line in lines}
    assert len(set(last.values())) > 1, "this test needs seeds that stop at different epochs"
    for k, seed in enumerate(last):
        own = [line for line in lines if line["seed"] == seed]
        assert [line["epoch"] for line in own] == list(range(1, last[seed] + 1))
        assert [line["stopped"] for line in own] == [False] * (len(own) - 1) + [True]
        best = min(range(len(own)), key=lambda i: own[i]["valid_mae"])
        assert trained.best_epoch[k] == own[best]["epoch"]
        assert [line["best"] for line in own][best:] == [True] + [False] * (len(own) - 1 - best)
    early = min(last, key=last.get)
    other = run(alone(STOPPING, early), tmp_path)
    chex.assert_trees_all_equal(one_seed(trained.variables, early), one_seed(other.variables, 0))
    assert lines_of(tmp_path) == [line for line in lines if line["seed"] == early]
    together, by_itself = state_of(folder), state_of(tmp_path)
    for name in by_itself:  # it stood still while the others went on
        if name.startswith("train/"):
            assert np.array_equal(together[name][early], by_itself[name][0]), name


def test_the_kept_parameters_are_those_of_the_best_epoch(stopped_run, tmp_path):
    trained, folder = stopped_run
    best = min(trained.best_epoch)
    k = trained.best_epoch.index(best)
    last = max(line["epoch"] for line in lines_of(folder) if line["seed"] == k)
    assert best < last, "this test needs a best epoch before the last"
    until_best = run(STOPPING, tmp_path, stop_after_epochs=best)
    state = state_of(tmp_path)
    chex.assert_trees_all_equal(one_seed(trained.variables, k), one_seed(until_best.variables, k))
    kernel = "params/regression/kernel"
    assert np.array_equal(state[f"train/{kernel}"][k], state[f"best/{kernel}"][k])


def test_only_the_latest_two_checkpoints_are_kept(tmp_path):
    with Checkpoints(str(tmp_path)) as checkpoints:
        for step in range(1, 6):
            checkpoints.save(step, {"a": np.arange(3.0) + step})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["4", "5"]


def test_a_folder_made_anew_at_the_place_of_the_checkpoints_is_left_alone(tmp_path):
    folder = tmp_path / "checkpoints"
    with pytest.raises(UserError, match="checkpoints: another folder stands there now"):
        with Checkpoints(str(folder)) as checkpoints:
            checkpoints.save(1, {"a": np.arange(3.0)})
            checkpoints.restore({"a": np.zeros(3)})
            shutil.rmtree(folder)
            folder.mkdir()  # many a file system gives it the number of the one before
            checkpoints.save(2, {"a": np.arange(3.0)})
    assert list(folder.iterdir()) == []


def test_a_profile_that_cannot_be_written_is_a_users_mistake(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="file cannot be written: File exists"):
        make_folder(str(tmp_path / "file"))

    def full():
        raise RuntimeError("INTERNAL: no space left\nand more")  # as XLA raises it

    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: None)
    monkeypatch.setattr(jax.profiler, "stop_trace", full)
    with (
        pytest.raises(UserError, match=r"No profile can be written .*no space left\.$"),
        Profiler(str(tmp_path / "trace")) as profiler,
    ):
        profiler.before_dispatch(True)
