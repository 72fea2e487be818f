"""One pure step over any number of devices: layouts agree, whatever they are.

Adam turns rounding into steps where the true gradient is zero: attention does not see key biases.
So SGD is compared to 1e-6, and AdamW to 1e-5 but for key biases.
"""

import itertools
import json
import logging
import pathlib
import signal
import socket
import types

import jax
import numpy as np
import pytest
import survivors
from layouts import STEPS
from tiny import SMALLEST, lines_of, run, tiny_config

from msajax.config import Config, MeshConfig
from msajax.corpus.corpus import Split
from msajax.errors import UserError
from msajax.inference.scoring import Scorer, cut_batches, evaluation_rows, make_predict
from msajax.models.build import build_model
from msajax.preparation.batches import epoch_order, quarters_of
from msajax.runtime import devices
from msajax.runtime.devices import deal, make_layout, mesh_shape
from msajax.spec import CorpusSpec
from msajax.tasks import TASKS

ONE = {"mode": "jit", "data": 1, "seed": 1, "seeds": 2, "accumulation_steps": 1}
BOTH = {"optimizers": ["sgd", "adamw"]}
CCC = {"loss": "ccc"}  # which compares the rows of a batch
SMALL = {"small": True}  # quick to compile
LAYOUTS = {  # by the number of virtual devices
    1: [ONE, ONE | CCC | SMALL, ONE | SMALL | BOTH],
    4: [
        ONE | {"data": 2, "model": 2},
        ONE | SMALL | BOTH | {"data": 2, "seed": 2, "seeds": 3},
        ONE | SMALL | {"data": 4, "mode": "pmap", "accumulation_steps": 2},
        ONE | SMALL | CCC | {"data": 4},
    ],
}
TOGETHER = {  # so many processes with a device each
    2: [
        ONE | SMALL | {"data": 2, "streams": True, "accumulation_steps": 2},
        ONE | SMALL | {"model": 2},
    ],
}
CASES = [(str(n), i) for n, layouts in LAYOUTS.items() for i in range(len(layouts))]
CASES += [(f"{n} processes", i) for n, layouts in TOGETHER.items() for i in range(len(layouts))]


def finish(running: list[survivors.Fork], log: pathlib.Path) -> None:
    """Waits for processes that must succeed; leaves none behind."""
    try:
        codes = [process.wait() for process in running]
        assert codes == [0] * len(running), log.read_text()
    finally:
        for process in running:
            process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def trained(forks, tmp_path_factory):
    """Every layout's parameters after the same steps, by the number of devices or of processes."""
    folder = tmp_path_factory.mktemp("layouts")
    log = folder / "log"

    def start(devices: int, output: pathlib.Path, layouts: list[dict], **environment: str):
        environment |= survivors.on_devices(devices)
        settings = {"log": log, "environment": environment, "program": "layouts:main"}
        return forks.start(output, *map(json.dumps, layouts), **settings)

    for count, layouts in LAYOUTS.items():
        more = {"INTERRUPTED": str(folder / "runs")} if count == 4 else {}
        finish([start(count, folder / f"{count}.npz", layouts, **more)], log)
    for count, layouts in TOGETHER.items():
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        output = folder / f"{count} processes.npz"
        meeting = f"localhost:{port} {count}"
        finish([start(1, output, layouts, PROCESSES=f"{meeting} {i}") for i in range(count)], log)
    return {path.name.removesuffix(".npz"): dict(np.load(path)) for path in folder.glob("*.npz")}


def arrays_of(trained, devices, i, kind):
    prefix = f"{i}:{kind}:"
    found = trained[devices].items()
    return {k.removeprefix(prefix): v for k, v in found if k.startswith(prefix)}


@pytest.mark.parametrize(("devices", "i"), CASES)
def test_every_layout_takes_the_same_sgd_steps(trained, devices, i):
    assert trained[devices]["devices"] == int(devices.split()[0])
    layout = (LAYOUTS if devices.isdecimal() else TOGETHER)[int(devices.split()[0])][i]
    alone = 1 if "loss" in layout else 2 if "small" in layout else 0
    expected, got = arrays_of(trained, "1", alone, "sgd"), arrays_of(trained, devices, i, "sgd")
    assert got["steps"].tolist() == [STEPS] * layout["seeds"]
    for name, value in expected.items():  # of the first two seeds
        np.testing.assert_allclose(got[name][:2], value, atol=1e-6, rtol=1e-6, err_msg=name)


def test_seeds_dealt_to_fewer_devices_stop_go_on_and_end_as_each_does_alone(trained):
    found = {k.removeprefix("interrupted:"): v for k, v in trained["4"].items() if "ed:" in k}
    assert found["differences"].tolist() == []  # of the run that was interrupted four times
    assert found["sizes"].tolist() == [3]  # checkpoints hold the seeds, not the slots
    stops, best = found["stops"].tolist(), found["best_epoch"].tolist()
    assert stops[2] < min(stops[:2])  # alone on its device, so that the others are dealt anew
    assert best == [found[f"best_epoch_{k}"] for k in range(3)]
    assert found["copies"].tolist() == [2, 2]  # of the training split; and rows are scored by both
    apart = {k: v for k, v in found.items() if k.startswith("apart_") and "key/bias" not in k}
    assert len(apart) > 3 and max(apart.values()) < 1e-5


def test_devices_predict_rows_of_their_own_and_gather_results_alone(trained):
    assert trained["4"]["gathered"].tolist() == [4, 2]  # scores and weights


def test_layouts_take_the_same_adamw_steps_but_for_key_biases(trained):
    expected, got = arrays_of(trained, "1", 2, "adamw"), arrays_of(trained, "4", 1, "adamw")
    np.testing.assert_allclose(
        got["first_gradient_norm"][:2], expected["first_gradient_norm"], rtol=1e-6
    )
    for name, value in expected.items():
        if "key/bias" not in name:
            np.testing.assert_allclose(got[name][:2], value, atol=1e-5, rtol=0, err_msg=name)


def test_each_process_reads_its_own_rows_of_a_corpus_that_streams(trained):
    # 9 rows and the last one repeated to 12, for 2 devices and 2 accumulation steps; 4 steps at
    # once. Either process holds half of the rows of each of both seeds' batches.
    quarters = np.full(44, 4)
    orders = [epoch_order(s, 0, quarters=quarters, batch_size=9).indices[:4] for s in (0, 1)]
    rows = np.pad(np.stack(orders), [(0, 0), (0, 0), (0, 3)], mode="edge")
    read = [trained[f"2 processes.npz.rows{i}"] for i in (0, 1)]
    for first, own in zip((0, 6), read, strict=True):
        np.testing.assert_array_equal(own["arr_0"], rows[:, :, first : first + 6].ravel())
        assert {x.size for x in own.values()} == {2 * 4 * 6}


def test_the_steps_that_are_compared_moved_every_parameter(trained):
    way = {k: x for k, x in arrays_of(trained, "1", 0, "sgd").items() if k.startswith("moved/")}
    assert len(way) > 9
    assert [k for k, x in way.items() if "key/bias" not in k and np.abs(x).max() < 1e-4] == []


SHAPES = {  # (seed, data) for 1 to 8 devices, by the number of seeds, of batches of 32
    1: [(1, 1)] + [(1, 2)] * 7,
    2: [(1, 1), (2, 1), (2, 1)] + [(2, 2)] * 5,
    3: [(1, 1), (2, 1)] + [(3, 1)] * 3 + [(3, 2)] * 3,
    4: [(1, 1), (2, 1), (3, 1)] + [(4, 1)] * 4 + [(4, 2)],
    5: [(1, 1), (2, 1), (3, 1), (4, 1)] + [(5, 1)] * 4,
}


@pytest.mark.parametrize("seeds", SHAPES)
def test_virtual_devices_take_seeds_first_and_then_16_rows_or_more(seeds):
    found = [mesh_shape(MeshConfig(), "map", seeds, 32, devices) for devices in range(1, 9)]
    assert found == [(*shape, 1) for shape in SHAPES[seeds]]


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_no_device_trains_two_seeds_more_than_another_and_each_seed_has_its_slot(devices):
    same = {"get": lambda x: x, "put_state": lambda x: x}
    layout = types.SimpleNamespace(seed_devices=devices, maps_seeds=devices > 1, **same)
    for stopped in itertools.product([False, True], repeat=4):
        dealt, state = deal(np.array(stopped), layout), np.array([5, 6, 7, 8])
        running = (~dealt.stopped).reshape(devices, -1).sum(axis=1)
        assert running.sum() == 4 - sum(stopped) and np.ptp(running) <= 1
        spread = dealt.spread(state)
        assert spread.tolist() == state[dealt.seeds].tolist()
        assert dealt.stopped[dealt.slots].tolist() == list(stopped)
        assert dealt.collect(spread).tolist() == dealt.get(spread).tolist() == state.tolist()
        if not sum(stopped):  # nothing is moved without need
            assert dealt.in_order == (devices != 3)


def test_too_many_devices_are_refused_with_both_numbers():
    there = len(jax.local_devices())
    with pytest.raises(UserError, match=f"needs {there + 1} devices, but there are {there}"):
        make_layout(MeshConfig(data=there + 1), "auto", 1)


def test_a_width_that_the_devices_of_the_model_axis_do_not_divide_is_refused():
    with pytest.raises(UserError, match="mesh.model = 3 does not divide model.model_dim = 8"):
        make_layout(MeshConfig(model=3), "auto", 1, model_dim=8)


def test_one_device_trains_seeds_in_turn_on_a_cpu():
    layout = make_layout(MeshConfig(), "auto", 5)
    assert layout.mesh.shape == {"seed": 1, "data": 1, "model": 1}
    assert layout.seed_axis == "map"


def test_a_run_begins_with_one_cpu_device_and_goes_on_with_those_of_its_start(monkeypatch):
    chosen = []
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(devices, "_set_cpu_devices", lambda number: chosen.append(number) or number)
    devices.choose(Config(), None)
    devices.choose(Config(), 3)
    assert chosen == [1, 3]
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    devices.choose(Config(), 3)  # several processes have as many as they have
    assert chosen == [1, 3]


def test_a_number_that_comes_after_jax_has_started_is_refused_or_said(monkeypatch, caplog):
    there = jax.local_device_count()
    asked = Config(mesh=MeshConfig(cpu_devices=there + 1))
    with pytest.raises(UserError, match=f"too late: .* with {there} CPU device"):
        devices.choose(asked, None)
    devices.choose(Config(mesh=MeshConfig(cpu_devices=there)), None)
    with caplog.at_level(logging.INFO):
        devices.choose(Config(), there + 1)  # XLA_FLAGS names a number, which counts
        assert caplog.messages == []
        monkeypatch.delenv("XLA_FLAGS")
        devices.choose(Config(), there + 1)
    assert caplog.messages == [
        f"JAX has started already: the run takes its {there} CPU device(s), not {there + 1}."
    ]


def test_a_run_goes_on_with_other_devices_to_the_same_best_epochs(forks, tmp_path):
    settings = SMALLEST | {"optim__learning_rate": 3e-3}
    path = survivors.write_experiment(tmp_path / "tiny_run.py", **settings)
    alone, many = tmp_path / "alone", tmp_path / "many"
    expected = run(tiny_config(**settings), alone)
    for count, there, code, *arguments in (  # in the environment, or if it is 0 none
        (0, 2, 75, "--config.mesh.cpu_devices=2", "--stop_after_epochs=1"),
        (0, 2, 75, "--config.mesh.mode=pmap", "--stop_after_epochs=2"),  # as it was started
        (4, 4, 0, "--config.mesh.seed=2"),
    ):
        asked = "--config", path, "--workdir", many, *arguments
        done = forks.run(*asked, environment=survivors.on_devices(count))
        assert done.returncode == code, done.stderr
        assert json.loads((many / "run.json").read_text())["devices"] == there
    results = json.loads((many / "results.json").read_text())
    assert results["best_epoch"] == list(expected.best_epoch)
    lines, expected_lines = lines_of(many), lines_of(alone)
    assert [(x["seed"], x["epoch"], x["step"]) for x in lines] == [
        (x["seed"], x["epoch"], x["step"]) for x in expected_lines
    ]
    for key in ("train_loss", "valid_mae"):
        np.testing.assert_allclose(
            [x[key] for x in lines], [x[key] for x in expected_lines], rtol=1e-4
        )


SPEC = CorpusSpec(("text", "audio"), (3, 2), (8, 5))


def random_split(size: int) -> Split:
    """A prepared split whose sequences have every length, some none."""
    rng = np.random.default_rng(size)
    masks, features = {}, {}
    for m in SPEC.modalities:
        lengths = rng.integers(0, SPEC.length(m) + 1, size)
        masks[m] = np.arange(SPEC.length(m))[None, :] < lengths[:, None]
        values = rng.normal(size=(size, SPEC.length(m), SPEC.width(m)))
        features[m] = (values * masks[m][..., None]).astype(np.float32)
    return Split(ids=np.arange(size).astype(str), features=features, masks=masks)


@pytest.fixture(scope="module")
def scored():
    """A model, and two seeds of it on the devices."""
    model = build_model(tiny_config().model, SPEC)
    split, layout = random_split(2), make_layout(MeshConfig(), "auto", 2)
    keys = jax.random.split(jax.random.key(0), 2)
    init = jax.jit(jax.vmap(lambda key: model.init(key, split.features, split.masks)))
    variables = init(keys)
    predict = make_predict(model, TASKS["regression"], layout)
    return model, Scorer(predict, variables, SPEC, layout.put_rows)


def test_scores_of_every_quarter_are_those_of_the_uncut_sequences_in_file_order(scored):
    model, scorer = scored
    split = random_split(150)
    assert set(quarters_of(split, SPEC)) == {1, 2, 3, 4}
    scores, weights = scorer.score(split, "test")

    @jax.jit
    @jax.vmap
    def apply(variables):
        return model.apply(variables, split.features, split.masks)

    whole = apply(scorer.variables)
    np.testing.assert_allclose(scores, whole.score, atol=1e-5, rtol=0)
    np.testing.assert_allclose(weights, whole.modality_weights, atol=1e-5, rtol=0)
    one = scorer._replace(kept=[1]).score(split, "test")  # the members that count
    np.testing.assert_array_equal(one[0], scores[[1]])
    np.testing.assert_array_equal(one[1], weights[[1]])


@pytest.mark.parametrize(("lengths", "most"), [((4, 3), 128), ((50, 50, 50), 32), ((500, 375), 8)])
def test_batches_of_a_split_hold_each_row_once_and_fewer_of_zeros_than_of_samples(lengths, most):
    spec = CorpusSpec("abc"[: len(lengths)], (1,) * len(lengths), lengths)
    assert evaluation_rows(spec) == (1, most // 8, most)
    for samples in (1, 2, 57, 200, 300):
        masks = {m: np.ones((samples, n), bool) for m, n in zip("abc", lengths, strict=False)}
        features = {m: x[..., None].astype(np.float32) for m, x in masks.items()}
        split = Split(np.arange(samples).astype(str), features, masks, np.zeros((samples, 1)))
        batches = list(cut_batches(split, spec, lambda arrays: arrays))
        np.testing.assert_array_equal(np.concatenate([b.rows for b in batches]), range(samples))
        computed = sum(len(b.masks["a"]) for b in batches)
        assert samples <= computed < samples + max(samples, most // 8)


def test_no_size_of_file_compiles_a_program_of_its_own(scored):
    _, scorer = scored
    for size in (1, 2, 3, 5, 17, 20, 33, 127, 128, 129, 150, 300):
        scores, _ = scorer.score(random_split(size), "test")
        assert scores.shape == (2, size, 1)
    assert scorer.predict.program._cache_size() <= 4 * 3
